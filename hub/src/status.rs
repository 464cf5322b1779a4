//! Facts, world and acknowledgements → the objects' statuses.
//!
//! What a status says is pure (`member`, `shard`, `router`, `policies`); this file decides when it is worth a write: at once when something
//! material changed, every ten seconds when only figures did, never when nothing did; that of a policy at most every five.
//! One replica writes; with several, only the leader would.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use tokio::time::Instant;

use self::events::BreakerEvents;
use self::object::{Object, Status, write};
use self::policies::Common;
use self::rule_events::RuleEvents;
use crate::acks::{Acks, RouterState};
use crate::compile::{Standing, World};
use crate::distribute::Worlds;
use crate::facts::Facts;
use crate::index::Index;
use crate::metrics::{Metrics, PolicyStanding};
use crate::writer::Writer;

mod callers;
mod events;
mod fenced;
mod finding;
mod leader;
mod member;
mod object;
mod policies;
mod reach;
mod resolved;
mod router;
mod rule_events;
mod shard;

/// Changes come in bursts; one pass for all of them.
const SETTLE: Duration = Duration::from_millis(100);
/// Time alone makes heartbeats too old and tokens expire.
const TICK: Duration = Duration::from_secs(1);
/// Heartbeats, latencies and counts are written this often.
const FIGURES_PERIOD: Duration = Duration::from_secs(10);
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
    now: Timestamp,
}

/// Writes the statuses of MemberClusters, ShardingConfigs, Routers, CircuitBreakers and FaultInjections.
pub(crate) struct StatusWriter {
    client: Client,
    /// The hub's own.
    namespace: String,
    index: Arc<Index>,
    acks: Arc<Acks>,
    written: BTreeMap<Object, Written>,
    writer: Writer<Object>,
    events: BreakerEvents,
    rule_events: RuleEvents,
}

#[derive(Debug)]
struct Written {
    status: Status,
    at: Instant,
}

impl StatusWriter {
    pub(crate) fn new(client: Client, namespace: &str, index: Arc<Index>, acks: Arc<Acks>) -> Self {
        Self {
            events: BreakerEvents::new(client.clone()),
            rule_events: RuleEvents::new(client.clone()),
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
        loop {
            tokio::select! {
                _ = facts.changed() => {}
                _ = acks.changed() => {}
                _ = worlds.changed() => {}
                () = tokio::time::sleep(TICK) => {}
            }
            tokio::time::sleep(SETTLE).await;
            facts.mark_unchanged();
            acks.mark_unchanged();
            worlds.mark_unchanged();
            self.observe(&worlds, &metrics);
            let due = self.due(&worlds);
            self.write(due, &metrics).await;
        }
    }

    /// What conditions name, as figures.
    fn observe(&self, worlds: &Worlds, metrics: &Metrics) {
        let unreached = |routers: &Routers| reach::unreached(routers).into_keys().map(str::to_owned).collect();
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
    fn due(&mut self, worlds: &Worlds) -> Vec<(Object, (String, Status))> {
        let Some(world) = worlds.borrow().as_ref().map(|published| published.world.clone()) else {
            return Vec::new();
        };
        let routers = &self.acks.read(Clone::clone);
        let now = Timestamp::now();
        let wanted: Vec<_> = self.index.read(|facts| {
            let world = &*world;
            let sources = Sources {
                facts,
                world,
                routers,
                now,
            };
            let events = &mut self.events;
            let members = facts.members.iter().map(|(cluster, object)| {
                events.found(cluster, &object.status.breakers);
                let wanted = member::status(sources, cluster, object);
                let observed = Status::Member(Box::new(object.status.clone()));
                let named = (Object::Member(cluster.clone()), object.uid.clone());
                (named, Status::Member(Box::new(wanted)), observed)
            });
            let shards = facts.shards.iter().filter_map(|(name, object)| {
                let wanted = shard::status(sources, name, object)?;
                let observed = Status::Shard(Box::new(object.status.clone()));
                let named = (Object::Shard(name.clone()), object.uid.clone());
                Some((named, Status::Shard(Box::new(wanted)), observed))
            });
            let all_routers = facts.routers.iter().map(|(name, object)| {
                let wanted = router::status(sources, name, object);
                let observed = Status::Router(Box::new(object.status.clone()));
                let named = (Object::Router(name.clone()), object.uid.clone());
                (named, Status::Router(Box::new(wanted)), observed)
            });
            let common = Common::of(sources);
            let rule_events = &mut self.rule_events;
            let policies = facts.policies.iter().filter_map(|(name, object)| {
                rule_events.found(name, &object.status);
                let wanted = policies::status(sources, &common, name, object)?;
                rule_events.now(name, || common.opened(name));
                let observed = Status::Policy(Box::new(object.status.clone()));
                let named = (Object::Policy(name.clone()), object.uid.clone());
                Some((named, Status::Policy(Box::new(wanted)), observed))
            });
            members.chain(shards).chain(all_routers).chain(policies).collect()
        });
        let known: BTreeSet<_> = wanted.iter().map(|((object, _), _, _)| object).collect();
        self.written.retain(|object, _| known.contains(object));
        self.events
            .keep(|cluster| known.contains(&Object::Member(cluster.to_owned())));
        self.rule_events
            .keep(|name| known.contains(&Object::Policy(name.clone())));
        let due = wanted.into_iter().filter(|((object, _), wanted, observed)| {
            let written = self.written.get(object);
            let is_early = matches!(object, Object::Policy(_))
                && written.is_some_and(|written| written.at.elapsed() < POLICY_PERIOD);
            !is_early && !self.writer.rests(object) && is_due(written, wanted, observed)
        });
        due.map(|((object, uid), wanted, _)| (object, (uid, wanted))).collect()
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
        let routers = &self.acks.read(Clone::clone);
        let speaks = |router: &str| routers.get(router).is_some_and(|router| router.left.is_none());
        self.events.tell(members, speaks).await;
        let policies = written.iter().filter_map(|(object, (uid, _))| match object {
            Object::Policy(name) => Some((name, uid.as_str())),
            _ => None,
        });
        self.rule_events.tell(policies, speaks).await;
        let at = Instant::now();
        self.written.extend(
            written
                .into_iter()
                .map(|(object, (_, status))| (object, Written { status, at })),
        );
    }
}

/// Rules that refuse all, in connected routers.
fn opened_rules(routers: &Routers) -> usize {
    let connected = routers.values().filter(|router| router.left.is_none());
    let rules = connected.flat_map(|router| router.rules.iter());
    rules.filter(|rule| rule.opened).count()
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

/// Whether `wanted` is worth a write, given what was written last and what the watch shows.
fn is_due(written: Option<&Written>, wanted: &Status, observed: &Status) -> bool {
    let present = written
        .filter(|written| written.at.elapsed() < TRUST_WRITTEN)
        .map_or(observed, |written| &written.status);
    if wanted == present {
        return false;
    }
    wanted.material() != present.material() || written.is_none_or(|written| written.at.elapsed() >= FIGURES_PERIOD)
}

#[cfg(test)]
mod tests;
