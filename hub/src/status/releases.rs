//! What a shard lets go of: who waits for each pair, for whom that waits, and since when. Pure; called by `shard`.

use std::collections::BTreeMap;

use portolan_crds::{ReleaseStatus, STATUS_RELEASES_MAX, ShardName, ShardingConfigStatus};

use super::finding::whole_seconds;
use super::{Routers, Sources};
use crate::compile::{Entry, hindrance, some_of};
use crate::facts::Facts;

/// Sets the count and the first of them.
pub(super) fn tell(sources: Sources<'_>, name: &ShardName, status: &mut ShardingConfigStatus) {
    let Sources {
        facts, world, routers, ..
    } = sources;
    let releasing = world.state.ledger.held_by(name);
    let mut releasing: Vec<_> = releasing
        .filter(|(.., entry)| entry.releasing_since.is_some())
        .collect();
    if releasing.is_empty() {
        return;
    }
    status.releasing_count = i64::try_from(releasing.len()).ok();
    releasing.sort_by_key(|(.., entry)| entry.releasing_from);
    releasing.truncate(STATUS_RELEASES_MAX);
    let waiting = world.shards.iter().flat_map(|(shard, verdict)| {
        // Shards of other operators have and ask for the same pairs. Those of another hub namespace are not named.
        let awaited = verdict.awaited.iter();
        let awaited = awaited.filter(|awaited| awaited.owner.as_ref() == Some(name));
        let awaited = awaited.filter(|_| shard.namespace() == name.namespace());
        awaited.map(move |awaited| (awaited.pair.as_str(), shard))
    });
    let waiting: BTreeMap<_, _> = waiting.collect();
    let told = releasing.into_iter().map(|(cluster, namespace, entry)| ReleaseStatus {
        cluster: cluster.to_owned(),
        namespace: namespace.to_owned(),
        epoch: i64::try_from(entry.owner_count).unwrap_or(i64::MAX),
        to: waiting
            .get(format!("{cluster}/{namespace}").as_str())
            .map(ToString::to_string),
        waits_for: waits_for(facts, routers, (cluster, namespace), entry),
        since: entry.releasing_from.map(whole_seconds),
    });
    status.releases = told.collect();
}

fn waits_for(facts: &Facts, routers: &Routers, (cluster, namespace): (&str, &str), entry: &Entry) -> String {
    let (Some(shard), Some(since)) = (&entry.owner, entry.releasing_since) else {
        return String::new();
    };
    let pair = (cluster.to_owned(), namespace.to_owned(), entry.owner_count);
    let forced = facts.is_forced(shard, &pair);
    let behind = routers
        .iter()
        .filter(|(_, state)| state.may_serve(shard) && state.acked_run < since);
    let behind: Vec<_> = behind
        .map(|(router, _)| match facts.router_refusals.get(router) {
            Some(_) => format!("{router} (refused: see kubectl describe router {router})"),
            None => router.clone(),
        })
        .collect();
    if !behind.is_empty() && !forced {
        return format!("routers {} to let go of it", some_of(behind, ", "));
    }
    let Some(next) = entry.closing else {
        return "writes under way, for 5 s".to_owned();
    };
    if facts.is_closed(&pair, next) {
        return "answers to writes that were admitted before it was closed, for a minute at most".to_owned();
    }
    match hindrance(facts, cluster, namespace) {
        Some(reason) => format!("member {cluster} to close it: {reason}"),
        None => format!("member {cluster} to close it"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;
    use portolan_crds::labels::{FENCE_EPOCH, FENCE_SHARD};
    use portolan_crds::ledger::{Chunk, Pair, PairFence, Slot};
    use portolan_crds::{ClusterEntry, Contention, OperatorName, ShardingConfigSpec};
    use portolan_wire::v1;

    use super::super::fenced::handover_fenced;
    use super::*;
    use crate::acks::RouterState;
    use crate::compile::{Accepted, Contested, Ledger, State, Verdict, World};
    use crate::facts::{AgentReport, MemberObject, Namespace};
    use crate::status::reach::Breakers;

    fn shard(name: &str) -> ShardName {
        ShardName::new("ops", name).unwrap()
    }

    /// East, whose agent is connected and has closed nothing.
    fn facts() -> Facts {
        let mut facts = Facts::default();
        let member = MemberObject {
            generation: 1,
            accept: true,
            ..MemberObject::default()
        };
        facts.members.insert("east".to_owned(), member);
        let agent = AgentReport {
            connected: true,
            allowed: Some(v1::Allowed {
                extras: [FENCE_EPOCH, FENCE_SHARD].map(str::to_owned).into(),
                ..v1::Allowed::default()
            }),
            namespaces: Some([("ns-b".to_owned(), Namespace::default())].into()).into(),
            ..AgentReport::default()
        };
        facts.agents.insert("east".to_owned(), agent);
        facts
    }

    /// `a` lets go of ns-b, for which `b` waits.
    fn world(is_closing: bool) -> World {
        let mut chunk = Chunk::new("east", Slot::WHOLE);
        let pair = Pair {
            fence: PairFence { epoch: 1, whole: true },
            owner: Some(shard("a")),
            owner_count: 1,
            view_revision: 1,
            releasing: true,
        };
        chunk.add("ns-b", OperatorName::default(), pair);
        let mut ledger = Ledger::restore(Contention::Fleet, [chunk], 1, false);
        if is_closing {
            ledger.close_all();
        }
        let accepted = Accepted {
            uid: String::new(),
            generation: 1,
            spec: Arc::new(ShardingConfigSpec {
                clusters: vec![ClusterEntry::default()],
                ..ShardingConfigSpec::default()
            }),
            ..Accepted::default()
        };
        let verdict = Verdict {
            awaited: vec![Contested {
                pair: "east/ns-b".to_owned(),
                owner: Some(shard("a")),
            }],
            ..Verdict::default()
        };
        World {
            state: State {
                ledger: Arc::new(ledger),
                accepted: [(shard("a"), accepted)].into(),
                ..State::default()
            },
            shards: [(shard("b"), verdict)].into(),
            ..World::default()
        }
    }

    fn told(facts: &Facts, world: &World, acked_run: u64) -> (ReleaseStatus, String) {
        let router = RouterState {
            acked_run,
            ..RouterState::new(1, [].into())
        };
        let routers = [("gateway".to_owned(), router)].into();
        let sources = Sources {
            facts,
            world,
            routers: &routers,
            breakers: &Breakers::default(),
            now: Timestamp::UNIX_EPOCH,
        };
        let mut status = ShardingConfigStatus::default();
        tell(sources, &shard("a"), &mut status);
        let fenced = handover_fenced(sources, &shard("a"), world.state.accepted.get(&shard("a")));
        (status.releases.remove(0), format!("{fenced:?}"))
    }

    #[test]
    fn a_release_tells_whom_it_waits_for() {
        let mut facts = facts();
        let (release, fenced) = told(&facts, &world(false), 0);
        assert_eq!(release.waits_for, "routers gateway to let go of it");
        assert_eq!((release.to.as_deref(), release.epoch), (Some("ops/b"), 1));
        assert!(!fenced.contains("east (ns-b)"), "nothing hinders: {fenced}");
        assert_eq!(told(&facts, &world(false), 1).0.waits_for, "writes under way, for 5 s");
        let (release, fenced) = told(&facts, &world(true), 1);
        assert_eq!(release.waits_for, "member east to close it");
        assert!(!fenced.contains("east (ns-b)"), "nothing hinders: {fenced}");
        let agent = facts.agents.get_mut("east").unwrap();
        let state = v1::FenceState {
            namespace: "ns-b".to_owned(),
            epoch: 2,
            closed: false,
            open: Vec::new(),
            message: "no policy".to_owned(),
        };
        agent.fences.insert("ns-b".to_owned(), state);
        let (release, fenced) = told(&facts, &world(true), 1);
        assert_eq!(release.waits_for, "member east to close it: no policy");
        assert!(
            fenced.contains("NotFenced") && fenced.contains("east (ns-b): no policy"),
            "{fenced}"
        );
        facts.agents.get_mut("east").unwrap().connected = false;
        let (_, fenced) = told(&facts, &world(true), 1);
        assert!(fenced.contains("east (ns-b): its agent is not connected"), "{fenced}");
        let agent = facts.agents.get_mut("east").unwrap();
        agent.fences.get_mut("ns-b").unwrap().closed = true;
        agent.namespaces.as_mut().unwrap().get_mut("ns-b").unwrap().epochs = vec![2];
        let (release, _) = told(&facts, &world(true), 1);
        assert!(release.waits_for.starts_with("answers to writes"), "{release:?}");
    }
}
