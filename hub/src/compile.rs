//! Facts → what every router and agent must know. Pure: no IO, no clock, no randomness; same facts, same hashes.
//!
//! Order of things: *draft* what each shard wants (`wanted`), *arbitrate* between the drafts by age against who
//! holds what (`arbitrate`), *settle* the ledger of (cluster, namespace) pairs (`ledger`); and, once that is stored, *render* resources
//! for the wire (`members`, `shards`, `policies`, `callers`). The ledger is the only thing carried from one run to the next, beside
//! the accepted specs: it is what keeps every pair with one owner while specs and inventories change. Caller:
//! `distribute`.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use jiff::Timestamp;
use portolan_crds::ledger::{CursorFormat, LockInForce, Vacancy};
use portolan_crds::{ObjectLimiter, ShardName, ShardingConfigSpec};
use portolan_wire::subscription::CallerPod;
use portolan_wire::v1;

use crate::facts::{Facts, PolicyName, ShardObject};
use crate::settings::Settings;

mod agent_config;
mod arbitrate;
mod callers;
mod credentials;
mod extents;
mod fence;
mod held;
mod ledger;
mod locks;
mod members;
mod memo;
mod new_locks;
mod policies;
mod reference;
mod roots;
mod scope;
mod shards;
mod steps;
#[cfg(test)]
mod tests;
mod vacant;
mod wanted;

pub(crate) use agent_config::{AgentOrders, selector_of_root};
pub(crate) use arbitrate::{Contested, Given, Verdict, some_contested, some_of};
use callers::SeenCallers;
pub(crate) use callers::{caller_selector, is_caller, runs_in, selects};
pub(crate) use credentials::{Credential, Credentials, Own};
pub(crate) use fence::{Crowded, crowded, hindrance};
pub(crate) use held::{CallerKey, Hold, Holders, Past, Teller, Untold, callers_of};
use ledger::Field;
pub(crate) use ledger::{Entry, Ledger, LockUsersAway, Released};
pub(crate) use locks::{LockNews, place as lock_place};
use members::{Thumbprints, Unconfirmed};
pub(crate) use memo::Memo;
pub(crate) use policies::{MAX_IN_NAMESPACE, MAX_OF_CALLER, PolicyReach, Reached, SharedLimit, Standing, Supply};
use reference::Earlier;
pub(crate) use reference::{Compiled, Offered, Ref};
pub(crate) use roots::{Children, Generated};
pub(crate) use scope::Scope;
pub(crate) use steps::{Steps, lacks_kinds};
use vacant::Vacancies;
pub(crate) use wanted::{Wanted, WantedMember};

/// What the compiler carries over: who holds which pair, and which spec of each shard is in force.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct State {
    /// Number of the run that made it, in the life of this process.
    pub(crate) run: u64,
    /// Names the life of the ledger: view revisions of another one say nothing about this one's.
    pub(crate) incarnation: String,
    /// What routers are told to write.
    pub(crate) cursor_format: CursorFormat,
    pub(crate) accepted: BTreeMap<ShardName, Accepted>,
    /// What each root generates. Not stored: after a restart it follows from the children that there are.
    pub(crate) roots: BTreeMap<ShardName, Children>,
    /// What came of specs of roots that are not in force, so that none is shared out anew run for run.
    pub(crate) attempts: roots::Attempts,
    /// What limits let go of. Not stored: what waits for it is.
    pub(crate) steps: Steps,
    /// Shared: the world, the store and the next run each hold on to it.
    pub(crate) ledger: Arc<Ledger>,
}

/// A spec in force.
#[derive(Debug, Clone, Default)]
pub(crate) struct Accepted {
    /// UID of the object: one that is made anew under the same name starts anew.
    pub(crate) uid: String,
    pub(crate) generation: i64,
    pub(crate) spec: Arc<ShardingConfigSpec>,
    /// What the spec weighs, in bytes of JSON.
    pub(crate) bytes: usize,
    /// How its leader lock came to be where the spec says.
    pub(crate) lock: LockInForce,
    /// Limits that routers are told beside the spec's, until they have let go of what others had.
    pub(crate) withheld: Vec<ObjectLimiter>,
}

impl PartialEq for Accepted {
    fn eq(&self, other: &Self) -> bool {
        // Most are compared with themselves, run by run.
        let same_spec = || Arc::ptr_eq(&self.spec, &other.spec) || self.spec == other.spec;
        let same_object = self.generation == other.generation && self.uid == other.uid;
        same_object && self.lock == other.lock && self.withheld == other.withheld && same_spec()
    }
}

/// The outcome of one run.
#[derive(Debug, Clone, Default)]
pub(crate) struct World {
    pub(crate) state: State,
    pub(crate) resources: BTreeMap<Ref, Compiled>,
    /// Members of whose target routers are told, or may hold one.
    pub(crate) targets: HashSet<String>,
    /// What cannot be said yet of which cluster, so that absence from `resources` is no reason to take it from a router.
    pub(crate) unknown: BTreeSet<(v1::ResourceKind, String)>,
    /// Of clusters of which not all callers are known, those that are, or are known to be gone.
    pub(crate) seen_callers: BTreeMap<String, SeenCallers>,
    pub(crate) shards: BTreeMap<ShardName, Verdict>,
    /// The callers of each shard, by the resource names of their views.
    pub(crate) callers: BTreeMap<ShardName, BTreeSet<Ref>>,
    /// The views of all callers by the names of their Pods, by which routers beside them know them.
    pub(crate) views: BTreeMap<CallerPod, BTreeSet<Ref>>,
    /// Pods that the selector of a shard matches and that its `serviceAccounts` keeps out, in words.
    pub(crate) not_admitted: BTreeMap<ShardName, BTreeSet<String>>,
    /// Pods, in words, whose labels are too many to be known, by their namespace: no shard there has them.
    pub(crate) unread_pods: BTreeMap<String, BTreeSet<String>>,
    /// How each policy that there is stands, and which callers it reaches.
    pub(crate) policies: BTreeMap<PolicyName, PolicyReach>,
    /// Limits in force that routers have together, with the tokens that come to each in a second, in thousandths.
    pub(crate) shared_limits: BTreeMap<SharedLimit, Supply>,
    pub(crate) agent_configs: BTreeMap<String, AgentOrders>,
    /// What is of one router and no other: its tokens.
    pub(crate) credentials: Credentials,
    /// For the next world, of which members nothing has changed: no part of the outcome.
    pub(crate) thumbprints: Arc<Thumbprints>,
    pub(crate) unconfirmed: BTreeMap<String, Unconfirmed>,
}

impl World {
    /// Whether the two differ in nothing but the number of their run.
    pub(crate) fn same_outcome(&self, other: &Self) -> bool {
        self.state.incarnation == other.state.incarnation
            && self.state.cursor_format == other.state.cursor_format
            && self.state.accepted == other.state.accepted
            && self.state.roots == other.state.roots
            && self.state.steps == other.state.steps
            && self.state.ledger == other.state.ledger
            && self.resources == other.resources
            && self.unknown == other.unknown
            && self.seen_callers == other.seen_callers
            && self.shards == other.shards
            && self.callers == other.callers
            && self.not_admitted == other.not_admitted
            && self.unread_pods == other.unread_pods
            && self.policies == other.policies
            && self.shared_limits == other.shared_limits
            && self.agent_configs == other.agent_configs
            && self.credentials == other.credentials
    }

    /// Adds the view of a caller, under its name and that of its Pod.
    pub(crate) fn add_view(&mut self, name: Ref, body: v1::CallerView) {
        let pod = CallerPod {
            cluster: body.home_cluster.clone(),
            namespace: body.namespace.clone(),
            pod: body.pod.clone(),
        };
        self.views.entry(pod).or_default().insert(name.clone());
        let compiled = Compiled::new(v1::resource::Body::CallerView(body));
        self.resources.insert(name, compiled);
    }

    /// The view of a caller by its name.
    pub(crate) fn view_of(&self, name: &Ref) -> Option<&v1::CallerView> {
        match &self.resources.get(name)?.resource.body {
            Some(v1::resource::Body::CallerView(view)) => Some(view),
            _ => None,
        }
    }

    /// What a shard has in each member, as routers are told.
    pub(crate) fn owned_by(&self, shard: &ShardName) -> impl Iterator<Item = (&Ref, &Compiled)> {
        let first = Ref::Ownership {
            shard: shard.clone(),
            cluster: String::new(),
        };
        let from = self.resources.range(first..);
        from.take_while(move |(name, _)| name.owner() == Some(shard))
    }

    /// All that there is for the router of this name, in no order.
    pub(crate) fn all_for<'a>(&'a self, router: &str) -> impl Iterator<Item = Offered<'a>> + use<'a> {
        let common = self.resources.iter().map(|(name, compiled)| compiled.offered(name));
        let own = self.credentials.of_router(router).into_iter();
        common.chain(own.flat_map(|own| own.offered()))
    }

    /// Whether there is something of this name for the router.
    pub(crate) fn has_for(&self, router: &str, name: &Ref) -> bool {
        self.resources.contains_key(name) || self.credentials.get(router, name).is_some()
    }

    /// Whether a router that holds `known` must give it up. Tokens of members are never: of those that its agent has not told
    /// of nothing is known, and a router that was forgotten is told nothing at all. Neither is a policy of which this process
    /// has seen no good spec yet: the router's is the last good one.
    pub(crate) fn is_gone(&self, known: &Ref) -> bool {
        let unknown = match known {
            Ref::Policy(name) => {
                let reach = self.policies.get(name);
                reach.is_some_and(|reach| reach.standing == Standing::NoneGood)
            }
            Ref::View { home, pod_uid } => {
                let seen = self.seen_callers.get(home);
                self.is_unknown(known.kind(), home) && !seen.is_some_and(|seen| seen.has(pod_uid))
            }
            _ => known
                .cluster()
                .is_some_and(|cluster| self.is_unknown(known.kind(), cluster)),
        };
        !unknown && !self.resources.contains_key(known)
    }

    /// Whether it cannot be said yet what there is of this kind in `cluster`.
    pub(crate) fn is_unknown(&self, kind: v1::ResourceKind, cluster: &str) -> bool {
        self.unknown.contains(&(kind, cluster.to_owned()))
    }
}

impl State {
    /// Takes what `newer`, which has the same outcome, knows of roots beside it.
    pub(crate) fn know_roots_of(&mut self, newer: Self) {
        (self.roots, self.attempts) = (newer.roots, newer.attempts);
    }

    /// Whether any root in force is shared out by how many objects there are.
    pub(crate) fn weighs_objects(&self) -> bool {
        self.roots.values().any(Children::weigh_objects)
    }

    /// Whether what comes next depends on how far routers are.
    pub(crate) fn awaits_routers(&self) -> bool {
        let ledger = &self.ledger;
        let closed = |accepted: &Accepted| accepted.lock.vacancy == Some(Vacancy::Closed);
        ledger.is_releasing()
            || ledger.awaits_epochs()
            || ledger.is_withholding()
            || self.hands_locks_over()
            || self.steps.await_routers()
            || self.accepted.values().any(closed)
    }

    /// Whether any leader lock is on its way to another place.
    pub(crate) fn hands_locks_over(&self) -> bool {
        self.moving_locks().next().is_some()
    }

    /// Whether it is a shard whose leader lock is on its way to another place.
    pub(crate) fn is_lock_moving(&self, name: &Ref) -> bool {
        let Ref::Shard(shard) = name else { return false };
        let accepted = self.accepted.get(shard);
        accepted
            .is_some_and(|accepted| accepted.lock.handover.is_some() || accepted.lock.vacancy == Some(Vacancy::Closed))
    }

    /// Leader locks that are on their way to another place.
    pub(crate) fn moving_locks(&self) -> impl Iterator<Item = (&ShardName, &LockInForce)> {
        let locks = self.accepted.iter().map(|(shard, accepted)| (shard, &accepted.lock));
        locks.filter(|(_, lock)| lock.handover.is_some())
    }

    /// Whether nobody has anything, and nothing is in force.
    pub(crate) fn is_empty(&self) -> bool {
        self.accepted.is_empty() && self.ledger.clusters().is_empty() && !self.ledger.is_withholding()
    }
}

/// What [`decide`] found out.
#[derive(Debug, Clone, Default)]
pub(crate) struct Decided {
    pub(crate) state: State,
    pub(crate) verdicts: BTreeMap<ShardName, Verdict>,
    /// What callers may hold: known anew whenever it is published.
    pub(crate) holders: Arc<Holders>,
}

impl Decided {
    /// Whether the present spec of any shard is refused.
    pub(crate) fn refuses(&self) -> bool {
        self.verdicts.values().any(|verdict| verdict.refusal.is_some())
    }
}

/// Who has which pair from now on, and which specs are in force. `memo`: what the run before found out, which changes nothing but
/// how long this one takes.
pub(crate) fn decide(given: Given<'_>, memo: &mut Memo) -> Decided {
    let Given {
        facts,
        settings,
        before,
        released,
        now,
    } = given;
    let run = before.run + 1;
    let moved_on = before.hands_locks_over().then(|| {
        let mut moved_on = before.clone();
        locks::advance(&mut moved_on.accepted, &released.locks, settings.longest_lease);
        moved_on
    });
    let before = moved_on.as_ref().unwrap_or(before);
    let mut ledger = Ledger::clone(&before.ledger);
    ledger.outdate_forced(facts);
    ledger.free(facts, released, now);
    let heard = |cluster: &str, since| facts.is_heard_since(cluster, since);
    ledger.drop_departures(now, |shard| before.accepted.contains_key(shard), heard);
    let found = ledger.clone();
    let outcome = arbitrate::arbitrate(
        Given { before, ..given },
        &found,
        (&mut memo.asked, &mut memo.judgements, &mut memo.extents),
    );
    let vacancies = Vacancies {
        facts,
        settings,
        accepted: &outcome.accepted,
        verdicts: &outcome.verdicts,
        now,
        takers: RefCell::default(),
    };
    let keeps = |field: Field<'_>, namespace: &str, entry: &Entry| vacancies.keeps(field, namespace, entry);
    ledger.settle(facts, (&outcome.claims, &outcome.judged), keeps, (run, now));
    ledger.fence(facts, released, (run, &outcome.judged));
    ledger.forget(facts, &outcome.judged);
    memo.judgements.note(facts, &outcome.judged, (&before.ledger, &ledger));
    let (mut accepted, mut verdicts) = (outcome.accepted, outcome.verdicts);
    let steps = steps::take(Given { before, ..given }, &outcome.roots, &mut accepted, &mut verdicts);
    released
        .holders
        .look_at_vacant(&mut accepted, facts, settings.longest_lease);
    let state = State {
        run,
        incarnation: before.incarnation.clone(),
        cursor_format: before.cursor_format,
        accepted,
        roots: outcome.roots,
        attempts: outcome.attempts,
        steps,
        ledger: Arc::new(ledger),
    };
    Decided {
        state,
        verdicts,
        holders: released.holders.clone(),
    }
}

/// What everybody must know of what was decided, by facts that may be later ones. `last`: the world before, which changes nothing
/// but how much is shared with it. `now`: which faults have ended.
pub(crate) fn render(
    facts: &Facts,
    settings: &Settings,
    decided: Decided,
    last: Option<&World>,
    now: Timestamp,
) -> World {
    let earlier = Earlier(last);
    let mut world = World {
        state: decided.state,
        shards: decided.verdicts,
        ..World::default()
    };
    members::render(&mut world, facts, settings, earlier);
    shards::render(&mut world, settings, earlier);
    let mut holders = policies::render(&mut world, facts, now);
    let held = callers::HeldBy {
        holders: &decided.holders,
        longest: settings.longest_lease,
        now,
    };
    callers::render(&mut world, facts, &mut holders, held);
    world.agent_configs = agent_config::render(facts, settings, &world, earlier);
    world
}

/// Shards, oldest first: the order in which they may claim. A child is as old as its root, and comes after it.
fn by_age<'a>(
    facts: &'a Facts,
    roots: &BTreeMap<&'a ShardName, &'a ShardName>,
) -> Vec<(&'a ShardName, &'a ShardObject)> {
    let mut shards: Vec<_> = facts.shards.iter().collect();
    shards.sort_by_key(|(name, object)| {
        let root = roots.get(name).and_then(|root| facts.shards.get_key_value(*root));
        let (eldest, of_family) = root.unwrap_or((name, object));
        (of_family.created, eldest, root.is_some(), object.created, *name)
    });
    shards
}
