//! Whether a write of a shard's callers that arrives late, after a namespace has gone to another shard, is refused by its
//! member: condition HandoverFenced (`docs/semantics.md#handover`). Pure; called by `shard`.

use std::collections::{BTreeMap, BTreeSet};

use portolan_crds::labels::FORCE_RELEASE;
use portolan_crds::policy::OPEN_EPOCHS_MAX;
use portolan_crds::{ConditionReason, ConditionType, Finding, ShardName};

use super::finding::nothing_in_force;
use super::{Routers, Sources};
use crate::compile::{Accepted, Crowded, crowded, hindrance, some_of};
use crate::facts::Facts;

const TYPE: ConditionType = ConditionType::HandoverFenced;

pub(super) fn handover_fenced(sources: Sources<'_>, name: &ShardName, accepted: Option<&Accepted>) -> Finding {
    let Sources {
        facts, world, routers, ..
    } = sources;
    let Some(accepted) = accepted else {
        return nothing_in_force(TYPE);
    };
    let fails = |message| Finding::fails(TYPE, ConditionReason::NotFenced, message);
    if accepted.spec.clusters.is_empty() {
        return fails(
            "the shard has no spec.clusters: it owns no namespace by name, and members refuse none of its writes"
                .to_owned(),
        );
    }
    let older = silent(routers, name);
    if !older.is_empty() {
        let names = some_of(&older, ", ");
        return fails(format!("writes by routers {names} do not say their epoch: update them"));
    }
    let mut open = BTreeMap::<(&str, Option<Crowded>), Vec<&str>>::new();
    let (mut fenced, mut partly) = (0_usize, BTreeMap::<&str, Vec<&str>>::new());
    let mut doubtful = BTreeSet::new();
    let ledger = &world.state.ledger;
    for (cluster, namespace, entry) in ledger.held_by(name) {
        let stuck = || entry.closing.is_some() && hindrance(facts, cluster, namespace).is_some();
        if entry.is_fenced() && !stuck() {
            fenced += 1;
            doubtful.insert(cluster);
            if !entry.fence.whole {
                partly.entry(cluster).or_default().push(namespace);
            }
        } else {
            let crowded = crowded(facts, ledger, (cluster, namespace), entry);
            open.entry((cluster, crowded)).or_default().push(namespace);
        }
    }
    let is_full = open.keys().any(|(_, crowded)| *crowded == Some(Crowded::Full));
    let open = open
        .into_iter()
        .map(|((cluster, crowded), all)| why_not(facts, (cluster, crowded), &all));
    let partly = partly.into_iter().map(|(cluster, all)| {
        let named = some_of(&all, ", ");
        format!("{cluster} ({named}): not every router has heard yet that its writes are to say their epoch")
    });
    let doubts = doubts(facts, doubtful);
    let unread = unread(facts, name);
    let open: Vec<_> = unread.into_iter().chain(open).chain(partly).collect();
    if !open.is_empty() {
        let reason = if is_full {
            ConditionReason::TooManyOperators
        } else {
            ConditionReason::NotFenced
        };
        return Finding::fails(TYPE, reason, format!("{}{doubts}", some_of(&open, "; ")));
    }
    Finding::holds(
        TYPE,
        format!("the members of its {fenced} namespaces refuse writes of former owners{doubts}"),
    )
}

/// What nothing is forced by, although somebody wrote it.
fn unread(facts: &Facts, name: &ShardName) -> Option<String> {
    let object = facts.shards.get(name)?;
    let reason = object.forced.as_ref()?.as_ref().err()?;
    Some(format!("annotation {FORCE_RELEASE} forces nothing: {reason}"))
}

/// Routers that may serve the shard and do not say the epoch of its writes.
fn silent(routers: &Routers, name: &ShardName) -> BTreeSet<String> {
    let silent = routers
        .iter()
        .filter(|(_, state)| !state.says_epochs && state.may_serve(name));
    silent.map(|(router, _)| router.clone()).collect()
}

/// What is doubtful about fences of these members, although their agents say that they are closed.
fn doubts(facts: &Facts, clusters: BTreeSet<&str>) -> String {
    let doubts = clusters.into_iter().filter_map(|cluster| {
        let doubt = facts.agents.get(cluster)?.fence_doubt.as_ref()?;
        Some(format!("; {cluster}: {doubt}"))
    });
    doubts.collect()
}

fn why_not(facts: &Facts, (cluster, crowded): (&str, Option<Crowded>), namespaces: &[&str]) -> String {
    let named = some_of(namespaces.iter().copied(), ", ");
    let mut reasons = namespaces
        .iter()
        .filter_map(|namespace| hindrance(facts, cluster, namespace));
    let reason = match crowded {
        None => reasons.next().unwrap_or_else(|| "not yet".to_owned()),
        Some(Crowded::TakesOne) => format!(
            "the member compares one epoch of a namespace, and another operator was there first: run portolanctl join again for {cluster}"
        ),
        Some(Crowded::Full) => format!(
            "{OPEN_EPOCHS_MAX} other operators were there first, and a member fences no more off in one namespace: it will once another of \
             them gives the namespace up"
        ),
    };
    format!("{cluster} ({named}): {reason}")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;
    use portolan_crds::labels::{FENCE_EPOCH, FENCE_SHARD};
    use portolan_crds::ledger::{Chunk, Pair, PairFence, Slot};
    use portolan_crds::{ClusterEntry, Contention, ShardingConfigSpec};
    use portolan_wire::v1;

    use super::*;
    use crate::compile::{Ledger, State, World};
    use crate::facts::{AgentReport, MemberObject, Namespace};
    use crate::status::reach::Breakers;

    fn shard(number: u64) -> ShardName {
        ShardName::new("ops", format!("s-{number}")).unwrap()
    }

    /// All of so many operators but the last are fenced in ns-b of east.
    fn ledger(operators: u64) -> Ledger {
        let mut chunk = Chunk::new("east", Slot::WHOLE);
        for number in 1..=operators {
            let pair = Pair {
                fence: PairFence {
                    epoch: if number < operators { number } else { 0 },
                    whole: true,
                },
                owner: Some(shard(number)),
                owner_count: number,
                view_revision: number,
                releasing: false,
            };
            chunk.add("ns-b", format!("ops/o-{number}").parse().unwrap(), pair);
        }
        Ledger::restore(Contention::Operator, [chunk], operators, false)
    }

    /// What the last of so many operators is told, each of which has a shard in ns-b of east.
    fn told(operators: u64, lists: bool) -> (ConditionReason, String) {
        let mut facts = Facts::default();
        let member = MemberObject {
            generation: 1,
            accept: true,
            ..MemberObject::default()
        };
        facts.members.insert("east".to_owned(), member);
        let namespace = Namespace {
            epochs: (1..operators).collect(),
            ..Namespace::default()
        };
        let agent = AgentReport {
            connected: true,
            allowed: Some(v1::Allowed {
                extras: [FENCE_EPOCH, FENCE_SHARD].map(str::to_owned).into(),
                fence_lists: lists,
                ..v1::Allowed::default()
            }),
            namespaces: Some([("ns-b".to_owned(), namespace)].into()).into(),
            ..AgentReport::default()
        };
        facts.agents.insert("east".to_owned(), agent);
        let world = World {
            state: State {
                ledger: Arc::new(ledger(operators)),
                ..State::default()
            },
            ..World::default()
        };
        let accepted = Accepted {
            spec: Arc::new(ShardingConfigSpec {
                clusters: vec![ClusterEntry::default()],
                ..ShardingConfigSpec::default()
            }),
            ..Accepted::default()
        };
        let sources = Sources {
            facts: &facts,
            world: &world,
            routers: &Routers::default(),
            breakers: &Breakers::default(),
            now: Timestamp::UNIX_EPOCH,
        };
        let first = handover_fenced(sources, &shard(1), Some(&accepted));
        assert_eq!(first.status, Some(true), "{}", first.message);
        let last = handover_fenced(sources, &shard(operators), Some(&accepted));
        assert_eq!(last.status, Some(false));
        (last.reason, last.message)
    }

    #[test]
    fn who_comes_after_others_is_told_why_the_member_fences_nothing_of_it() {
        let (reason, message) = told(2, false);
        assert_eq!(reason, ConditionReason::NotFenced);
        assert!(
            message.starts_with("east (ns-b): ") && message.contains("portolanctl join again for east"),
            "{message}"
        );
        let (reason, message) = told(257, true);
        assert_eq!(reason, ConditionReason::TooManyOperators);
        assert!(message.starts_with("east (ns-b): 256 other operators"), "{message}");
        let (reason, message) = told(256, true);
        assert_eq!(
            (reason, message.as_str()),
            (ConditionReason::NotFenced, "east (ns-b): not yet")
        );
    }
}
