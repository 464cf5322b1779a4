//! Divides limits that routers have together, and tells each router its share.
//!
//! What is divided how is pure (`core`, `division`); here are the clock, the world, and the way to the sessions. Callers:
//! router sessions (who comes, says and goes), `app` (the loop).

mod core;
mod division;
mod router;
mod rule;
#[cfg(test)]
mod tests;
mod withheld;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use portolan_wire::subscription::Subscription;
use portolan_wire::v1;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};

use self::core::{Core, Message, Object, Registered};
pub(crate) use self::withheld::{Why, Withheld, WithheldShares};
use crate::compile::{Ref, Scope, Standing, World};
use crate::distribute::Worlds;
use crate::facts::{Facts, PolicyName};
use crate::index::Index;
use crate::metrics::Metrics;

/// Reports come one by one; one division for all of some moment. A share that moves does so in two of them.
const SETTLE: Duration = Duration::from_millis(100);
/// Time alone lets routers be told again, and forgets who is not heard.
const TICK: Duration = Duration::from_secs(1);
/// Revisions of one hub, which begin where those of the hub before cannot have got to.
const REVISIONS_OF_A_TERM: u32 = 32;

/// Most limits that routers have together, of which one is heard: what routers are built for.
pub(crate) const MAX_DEMANDS: usize = 4_096;

/// Keeps who has what, and tells sessions. Shared by them and the loop. Made when the hub starts, and begun once the ledger
/// is open.
#[derive(Debug)]
pub(crate) struct Arbiter {
    // A mutex: held for one message, or for one division.
    state: Mutex<State>,
    /// Somebody came, said something or went.
    heard: Notify,
    /// What routers keep for long that others are to have. A watch: statuses tell how it is now.
    withheld: watch::Sender<Arc<WithheldShares>>,
}

#[derive(Debug)]
struct State {
    core: Core,
    /// The last shares of each router that is connected, by the epoch of its stream.
    outboxes: BTreeMap<String, (u64, watch::Sender<v1::Shares>)>,
}

impl Default for Arbiter {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                core: Core::default(),
                outboxes: BTreeMap::new(),
            }),
            heard: Notify::new(),
            withheld: watch::Sender::default(),
        }
    }
}

impl Arbiter {
    /// Revisions are beyond those of all hubs before. `term`: of the ledger, which each hub counts up.
    pub(crate) fn begin(&self, term: u64) {
        let highest = u64::MAX >> REVISIONS_OF_A_TERM;
        self.state.lock().core.begin(term.min(highest) << REVISIONS_OF_A_TERM);
    }

    /// A stream of the router whose object has this uid begins: what it is to be told, whenever that changes.
    pub(crate) fn connected(&self, router: &str, uid: &str, epoch: u64, serves: bool) -> watch::Receiver<v1::Shares> {
        // A watch: only the last counts, and a session that waits for its router must not hold up others.
        let (outbox, shares) = watch::channel(v1::Shares::default());
        let mut state = self.state.lock();
        let enrolled = (router.to_owned(), uid.to_owned());
        state.core.connected(enrolled, epoch, serves, Instant::now());
        state.outboxes.insert(router.to_owned(), (epoch, outbox));
        self.heard.notify_one();
        shares
    }

    /// A stream is over.
    pub(crate) fn left(&self, router: &str, epoch: u64) {
        let mut state = self.state.lock();
        state.core.left(router, epoch, Instant::now());
        if state.outboxes.get(router).is_some_and(|(of, _)| *of == epoch) {
            state.outboxes.remove(router);
        }
        self.heard.notify_one();
    }

    /// A router has ended, and others may have its part of everything.
    pub(crate) fn gave_back(&self, router: &str, epoch: u64) {
        self.state.lock().core.gave_back(router, epoch, Instant::now());
        self.heard.notify_one();
    }

    /// What a router has and was asked for, and of which revision the shares are that it keeps to.
    pub(crate) fn reported(&self, router: &str, epoch: u64, demands: &[v1::SharedDemand], revision: u64) {
        self.state.lock().core.reported(router, epoch, demands, revision);
        self.heard.notify_one();
    }

    /// What routers keep for long that others are to have.
    pub(crate) fn withheld(&self) -> watch::Receiver<Arc<WithheldShares>> {
        self.withheld.subscribe()
    }

    /// Divides whenever something changed. Runs until the hub stops.
    pub(crate) async fn run(self: Arc<Self>, mut worlds: Worlds, index: Arc<Index>, metrics: Metrics) {
        let mut facts = index.compile_changes();
        loop {
            tokio::select! {
                changed = worlds.changed() => if changed.is_err() { return },
                _ = facts.changed() => {}
                () = self.heard.notified() => {}
                () = tokio::time::sleep(TICK) => {}
            }
            tokio::time::sleep(SETTLE).await;
            facts.mark_unchanged();
            let world = worlds
                .borrow_and_update()
                .as_ref()
                .map(|published| published.world.clone());
            if let Some(world) = world {
                let (told, withheld) = self.divide(&world, &index);
                metrics.divided(world.shared_limits.len(), told, limits(&withheld));
                self.tell_withheld(withheld);
            }
        }
    }

    /// How many routers are told, and who keeps what for long.
    fn divide(&self, world: &World, index: &Index) -> (usize, WithheldShares) {
        let State { core, outboxes } = &mut *self.state.lock();
        let objects = world.policies.iter().map(|(name, reach)| {
            let object = Object {
                uid: reach.uid.clone(),
                in_force: reach.standing == Standing::InForce,
            };
            (name.clone(), object)
        });
        let objects = objects.collect();
        core.set_rules(&world.shared_limits, objects, Instant::now());
        // Read with the lock held: whoever enrolled and is connected is among them.
        let now = Instant::now();
        core.set_routers(index.read(|facts| registered(facts, world)), now);
        let messages = core.divide(now);
        let told = messages.len();
        for Message { router, epoch, shares } in messages {
            if let Some((_, outbox)) = outboxes.get(&router).filter(|(of, _)| *of == epoch) {
                outbox.send_replace(shares);
            }
        }
        (told, core.withheld(now))
    }

    fn tell_withheld(&self, withheld: WithheldShares) {
        for (router, why) in withholding(&withheld).difference(&withholding(&self.withheld.borrow())) {
            tracing::warn!(router, ?why, "a router keeps shares of limits that others are to have");
        }
        self.withheld.send_if_modified(|told| {
            let changed = **told != withheld;
            if changed {
                *told = Arc::new(withheld);
            }
            changed
        });
    }

    /// What each router may be using at most, by policy and rule.
    pub(crate) fn dump(&self) -> Value {
        let state = self.state.lock();
        let bounds = state.core.bounds();
        let rules = bounds.iter().map(|(limit, routers)| {
            let routers: Value = routers
                .iter()
                .map(|(name, share)| ((*name).to_owned(), json!(share)))
                .collect();
            (format!("{}/{}", limit.policy, limit.rule), routers)
        });
        rules.collect()
    }
}

/// How many limits something is kept of.
fn limits(withheld: &WithheldShares) -> usize {
    let rules = |of: &Vec<Withheld>| of.iter().map(|one| &one.rule).collect::<BTreeSet<_>>().len();
    withheld.values().map(rules).sum()
}

/// Who keeps something, and why.
fn withholding(withheld: &WithheldShares) -> BTreeSet<(&str, Why)> {
    let all = withheld.values().flatten();
    all.map(|one| (one.router.as_str(), one.why)).collect()
}

/// The routers that there are, and which of the policies that they have together each may be told of.
fn registered(facts: &Facts, world: &World) -> BTreeMap<String, Registered> {
    let shared: BTreeSet<&PolicyName> = world.shared_limits.keys().map(|limit| &limit.policy).collect();
    let registered = facts.routers.iter().map(|(name, router)| {
        let sees = match &router.subscription {
            Some(subscription) => seen(subscription, world, &shared),
            None => Some(BTreeSet::new()),
        };
        let uid = router.uid.clone();
        (name.clone(), Registered { uid, sees })
    });
    registered.collect()
}

/// Those of the shared policies that it may be told of; `None`: all. Looks through those that hold its own callers, not through all
/// that there are.
fn seen(subscription: &Subscription, world: &World, shared: &BTreeSet<&PolicyName>) -> Option<BTreeSet<PolicyName>> {
    let Some(any) = shared.first() else {
        return Some(BTreeSet::new());
    };
    let scope = Scope::of(subscription, world);
    // Of one policy that is as uncertain as of each.
    if scope.is_uncertain(&Ref::Policy((*any).clone())) {
        return None;
    }
    let seen = scope.policies()?.iter().filter(|policy| shared.contains(policy));
    Some(seen.cloned().collect())
}
