//! Facts, world and acknowledgements → the objects' statuses.
//!
//! What a status says is pure (`member`, `shard`, `router`, `policies`); this file decides when it is worth a write: at once when something
//! material changed, every ten seconds or more when only figures did, never when nothing did; that of a policy at most every five.
//! One replica writes; with several, only the leader would.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};

use self::events::BreakerEvents;
use self::object::{Object, Status, write};
use self::policies::Common;
use self::policy_events::PolicyEvents;
use self::presence::Presences;
use self::reach::Breakers;
use crate::acks::{Acks, RouterState};
use crate::compile::{Standing, World};
use crate::distribute::Worlds;
use crate::facts::Facts;
use crate::index::Index;
use crate::metrics::{Metrics, PolicyStanding};
use crate::shares::{Arbiter, WithheldShares};
use crate::writer::{Writer, in_turns};

mod callers;
mod events;
mod fenced;
mod finding;
mod injected;
mod leader;
mod member;
mod object;
mod policies;
mod policy_events;
mod presence;
mod reach;
mod releases;
mod replicated;
mod resolved;
mod root;
mod router;
mod shard;
mod unserved;

/// Changes come in bursts; one pass for all of them.
const SETTLE: Duration = Duration::from_millis(100);
/// Time alone makes heartbeats too old and tokens expire.
const TICK: Duration = Duration::from_secs(1);
/// While nothing else changes, a tick looks at one object in so many, each in its turn.
const TURNS: usize = 10;
/// After a pass it rests for so many times as long as that took: of a large fleet a pass takes a good part of a second, and
/// something changes all the time.
const REST_FACTOR: u32 = 10;
/// Objects that are looked at before agents and watches may write facts again.
const AT_ONCE: usize = 32;
/// Heartbeats, latencies and counts of some members are written this often, each at a time of its own.
const FIGURES_PERIOD: Duration = Duration::from_secs(10);
/// Of more than a hundred and sixty they are written more seldom, so that two such writes are this far apart.
const FIGURES_EACH: Duration = Duration::from_millis(60);
/// Figures are never written more seldom than this: people look at them.
const FIGURES_PERIOD_MAX: Duration = Duration::from_mins(1);
/// No status of a policy is written more often: routers' rules open and close as often as callers like.
const POLICY_PERIOD: Duration = Duration::from_secs(5);
/// What we wrote counts as the object's status until the watch has had time to bring it back.
const TRUST_WRITTEN: Duration = Duration::from_secs(5);

/// All routers by name.
type Routers = BTreeMap<String, RouterState>;

/// What statuses are made of.
#[derive(Clone, Copy)]
struct Sources<'a> {
    facts: &'a Facts,
    world: &'a World,
    routers: &'a Routers,
    /// Theirs, by member.
    breakers: &'a Breakers<'a>,
    now: Timestamp,
}

/// Writes the statuses of MemberClusters, ShardingConfigs, Routers, CircuitBreakers and FaultInjections.
pub(crate) struct StatusWriter {
    client: Client,
    /// The hub's own.
    namespace: String,
    index: Arc<Index>,
    acks: Arc<Acks>,
    withheld: watch::Receiver<Arc<WithheldShares>>,
    written: BTreeMap<Object, Written>,
    writer: Writer<Object>,
    events: BreakerEvents,
    policy_events: PolicyEvents,
    /// Who is here to be heard of breakers, and who of policies, as statuses were made last.
    breaker_presences: Presences,
    policy_presences: Presences,
    started: Instant,
    /// How often figures are written.
    figures_period: Duration,
}

/// Which objects are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// Something has changed.
    AtAll,
    /// Of [`TURNS`], from 0.
    AtThoseWhoseTurnIs(usize),
}

#[derive(Debug)]
struct Written {
    /// Of the object: one that is made anew under the same name has nothing written.
    uid: String,
    status: Status,
    at: Instant,
}

impl StatusWriter {
    pub(crate) fn new(client: Client, namespace: &str, index: Arc<Index>, acks: Arc<Acks>, shares: &Arbiter) -> Self {
        Self {
            withheld: shares.withheld(),
            events: BreakerEvents::new(client.clone()),
            policy_events: PolicyEvents::new(client.clone()),
            breaker_presences: Presences::default(),
            policy_presences: Presences::default(),
            started: Instant::now(),
            figures_period: FIGURES_PERIOD,
            client,
            namespace: namespace.to_owned(),
            index,
            acks,
            written: BTreeMap::new(),
            writer: Writer::new("status"),
        }
    }

    /// Runs until cancelled.
    pub(crate) async fn run(mut self, mut worlds: Worlds, metrics: Metrics) {
        let (mut facts, mut acks) = (self.index.status_changes(), self.acks.changes());
        let mut reports = self.acks.status_changes();
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut turn, mut rest, mut is_more) = (0, SETTLE, false);
        loop {
            let changed = tokio::select! {
                () = std::future::ready(()), if is_more => true,
                _ = facts.changed() => true,
                _ = acks.changed() => true,
                _ = reports.changed() => true,
                _ = worlds.changed() => true,
                Ok(()) = self.withheld.changed() => true,
                _ = ticks.tick() => false,
            };
            let look = if changed || is_more {
                tokio::time::sleep(rest).await;
                // Not where it was their turn: what changed in that moment is to be looked at by all.
                facts.mark_unchanged();
                acks.mark_unchanged();
                reports.mark_unchanged();
                worlds.mark_unchanged();
                Look::AtAll
            } else {
                turn = (turn + 1) % TURNS;
                Look::AtThoseWhoseTurnIs(turn)
            };
            let begun = Instant::now();
            if look == Look::AtAll {
                self.observe(&worlds, &metrics);
            }
            let all = self.due(&worlds, look).await;
            let due;
            (due, is_more) = in_turns(all, Object::author);
            rest = SETTLE.max(begun.elapsed() * REST_FACTOR);
            self.write(due, &metrics).await;
        }
    }

    /// What conditions name, as figures.
    fn observe(&self, worlds: &Worlds, metrics: &Metrics) {
        let unreached = |routers: &Routers| Breakers::of(routers).unreached().map(str::to_owned).collect();
        let unreached: BTreeSet<String> = self.acks.read(unreached);
        let published = worlds.borrow();
        let verdicts = published.iter().flat_map(|published| published.world.shards.values());
        let (shadowed, awaited) = verdicts.fold((0, 0), |(shadowed, awaited), verdict| {
            let members = verdict.wanted.members.iter();
            let here: usize = members.map(|member| member.shadowed.len()).sum();
            (shadowed + here, awaited + verdict.awaited.len())
        });
        metrics.observe(unreached, shadowed, awaited);
        let policies = published.iter().flat_map(|published| published.world.policies.values());
        let mut standings = BTreeMap::new();
        for reach in policies {
            *standings.entry(standing(reach.standing)).or_default() += 1;
        }
        let stopped = self.index.read(|facts| facts.faults_stopped.is_some());
        metrics.observe_policies(&standings, stopped, self.acks.read(opened_rules));
    }

    /// Statuses that are worth a write now, with the uid of the object that each is about.
    async fn due(&mut self, worlds: &Worlds, look: Look) -> Vec<(Object, (String, Status))> {
        let Some(world) = worlds.borrow().as_ref().map(|published| published.world.clone()) else {
            return Vec::new();
        };
        let routers = &self.acks.read(Clone::clone);
        let breakers = &Breakers::of(routers);
        let (index, now) = (self.index.clone(), Timestamp::now());
        let objects = index.read(|facts| {
            self.keep(facts);
            let enrolled: BTreeSet<_> = facts.routers.keys().collect();
            let presences =
                |has_spoken: fn(&RouterState) -> bool| Presences::of(&enrolled, routers, self.started, has_spoken);
            (self.breaker_presences, self.policy_presences) = (
                presences(|router| router.heard.is_some()),
                presences(|router| router.told_rules.is_some() || !router.serves_policies),
            );
            self.figures_period = figures_period(facts.members.len());
            objects(facts, look, now)
        });
        let mut due = Vec::new();
        for some in objects.chunks(AT_ONCE) {
            index.read(|facts| {
                let sources = Sources {
                    facts,
                    world: &world,
                    routers,
                    breakers,
                    now,
                };
                let wanted = some.iter().filter_map(|object| self.wanted(sources, object));
                let wanted: Vec<_> = wanted.collect();
                due.extend(wanted.into_iter().filter(|wanted| self.is_due(wanted)));
            });
            // Of a large fleet it takes a good part of a second, in which sessions must not wait.
            tokio::task::yield_now().await;
        }
        let policies = index.read(|facts| {
            self.of_policies(Sources {
                facts,
                world: &world,
                routers,
                breakers,
                now,
            })
        });
        due.extend(policies.into_iter().filter(|wanted| self.is_due(wanted)));
        let due = due.into_iter();
        due.map(|wanted| (wanted.object, (wanted.uid, wanted.status))).collect()
    }

    fn is_due(&self, wanted: &Wanted) -> bool {
        let written = self.written.get(&wanted.object);
        let is_early = matches!(wanted.object, Object::Policy(_))
            && written.is_some_and(|written| written.at.elapsed() < POLICY_PERIOD);
        !is_early && !self.writer.rests(&wanted.object) && self.is_due_by(written, wanted)
    }

    /// Given what was written last.
    fn is_due_by(&self, written: Option<&Written>, wanted: &Wanted) -> bool {
        let trusted = written.filter(|written| written.at.elapsed() < TRUST_WRITTEN);
        let present = trusted.map_or(&wanted.observed, |written| &written.status);
        if wanted.status == *present {
            return false;
        }
        let turn = |at: Instant| wanted.object.turn(at - self.started, self.figures_period);
        let is_turn = |written: &Written| turn(written.at) != turn(Instant::now());
        wanted.status.material() != present.material() || written.is_none_or(is_turn)
    }

    /// Forgets objects that are gone, and no others: of one that was just edited nothing can be said for a moment.
    fn keep(&mut self, facts: &Facts) {
        self.written
            .retain(|object, written| object.uid(facts) == Some(&written.uid));
        self.events.keep(|cluster| facts.members.contains_key(cluster));
        self.policy_events.keep(|name| facts.policies.contains_key(name));
    }

    /// Of all but policies, which are looked at together. `None`: the object is gone, or nothing can be said of it for a moment.
    fn wanted(&mut self, sources: Sources<'_>, object: &Object) -> Option<Wanted> {
        let facts = sources.facts;
        let (uid, status, observed) = match object {
            Object::Member(cluster) => {
                let known = facts.members.get(cluster)?;
                self.events.found(cluster, &known.status.breakers);
                let status = Status::Member(Box::new(member::status(sources, cluster, known)));
                (&known.uid, status, Status::Member(Box::new(known.status.clone())))
            }
            Object::Shard(name) => {
                let known = facts.shards.get(name)?;
                let status = Status::Shard(Box::new(shard::status(sources, name, known)?));
                (&known.uid, status, Status::Shard(Box::new(known.status.clone())))
            }
            Object::Router(name) => {
                let known = facts.routers.get(name)?;
                let status = Status::Router(Box::new(router::status(sources, name, known)));
                (&known.uid, status, Status::Router(Box::new(known.status.clone())))
            }
            Object::Policy(_) => return None,
        };
        Some(Wanted {
            object: object.clone(),
            uid: uid.clone(),
            status,
            observed,
        })
    }

    fn of_policies(&mut self, sources: Sources<'_>) -> Vec<Wanted> {
        if sources.facts.policies.is_empty() {
            return Vec::new();
        }
        let withheld = self.withheld.borrow().clone();
        let common = Common::of(sources, &withheld, &self.policy_presences);
        let policies = sources.facts.policies.iter().filter_map(|(name, object)| {
            self.policy_events.found(name, object);
            let status = policies::status(sources, &common, name, object)?;
            self.policy_events.now(name, object, &status, &common);
            Some(Wanted {
                object: Object::Policy(name.clone()),
                uid: object.uid.clone(),
                status: Status::Policy(Box::new(status)),
                observed: Status::Policy(Box::new(object.status.clone())),
            })
        });
        policies.collect()
    }

    async fn write(&mut self, due: Vec<(Object, (String, Status))>, metrics: &Metrics) {
        let (client, namespace) = (&self.client, self.namespace.as_str());
        let write = |object, (uid, status)| write(client, namespace, object, uid, status);
        let written = self.writer.write(due, write, &metrics.statuses).await;
        let members = written
            .iter()
            .filter_map(|(object, (uid, status))| match (object, status) {
                (Object::Member(cluster), Status::Member(status)) => {
                    Some((cluster.as_str(), uid.as_str(), status.breakers.as_slice()))
                }
                _ => None,
            });
        self.events.tell(members, &self.breaker_presences).await;
        let policies = written.iter().filter_map(|(object, _)| match object {
            Object::Policy(name) => Some(name),
            _ => None,
        });
        self.policy_events
            .tell(&policies.collect(), &self.policy_presences)
            .await;
        let at = Instant::now();
        self.written.extend(
            written
                .into_iter()
                .map(|(object, (uid, status))| (object, Written { uid, status, at })),
        );
    }
}

/// The status that an object ought to have, and the one that it has as far as the watch knows.
struct Wanted {
    object: Object,
    uid: String,
    status: Status,
    observed: Status,
}

/// All that are to be looked at, but for policies. Of members that are not heard it is known that they may be told of as such by
/// now.
fn objects(facts: &Facts, look: Look, now: Timestamp) -> Vec<Object> {
    let is_turn = |(index, _): &(usize, Object)| match look {
        Look::AtAll => true,
        Look::AtThoseWhoseTurnIs(turn) => index % TURNS == turn,
    };
    let members = facts.members.keys().cloned().map(Object::Member);
    let shards = facts.shards.keys().cloned().map(Object::Shard);
    let routers = facts.routers.keys().cloned().map(Object::Router);
    let all = members.chain(shards).chain(routers).enumerate();
    let is_unheard =
        |object: &Object| matches!(object, Object::Member(cluster) if member::is_unheard(facts, cluster, now));
    let looked_at = all.filter(|numbered| is_turn(numbered) || is_unheard(&numbered.1));
    looked_at.map(|(_, object)| object).collect()
}

/// How often figures of so many members are written: each costs a write. In steps, as objects have other turns with each other
/// period, and members come one by one.
fn figures_period(members: usize) -> Duration {
    let members = u32::try_from(members).unwrap_or(u32::MAX);
    let steps = FIGURES_EACH
        .saturating_mul(members)
        .as_millis()
        .div_ceil(FIGURES_PERIOD.as_millis());
    let steps = u32::try_from(steps).unwrap_or(u32::MAX);
    FIGURES_PERIOD
        .saturating_mul(steps)
        .clamp(FIGURES_PERIOD, FIGURES_PERIOD_MAX)
}

/// Rules that refuse all, in connected routers.
fn opened_rules(routers: &Routers) -> usize {
    let connected = routers.values().filter(|router| router.left.is_none());
    connected.map(|router| router.rules.opened()).sum()
}

fn standing(standing: Standing) -> PolicyStanding {
    match standing {
        Standing::InForce => PolicyStanding::InForce,
        Standing::NoneGood => PolicyStanding::NoneGood,
        Standing::NeverGood => PolicyStanding::NeverGood,
        Standing::Withdrawn => PolicyStanding::Withdrawn,
        Standing::Disabled => PolicyStanding::Disabled,
        Standing::Stopped => PolicyStanding::Stopped,
        Standing::Expired => PolicyStanding::Expired,
        Standing::Excess => PolicyStanding::Excess,
    }
}

#[cfg(test)]
mod tests;
