//! Whether a write of a shard's callers that arrives late, after a namespace has gone to another shard, is refused by its
//! member: condition HandoverFenced (`docs/semantics.md#handover`). Pure; called by `shard`.

use std::collections::{BTreeMap, BTreeSet};

use portolan_crds::labels::FORCE_RELEASE;
use portolan_crds::{ConditionReason, ConditionType, Finding, ShardName};

use super::finding::nothing_in_force;
use super::{Routers, Sources};
use crate::compile::{Accepted, hindrance, some_of};
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
    let mut open = BTreeMap::<&str, Vec<&str>>::new();
    let (mut fenced, mut partly) = (0_usize, BTreeMap::<&str, Vec<&str>>::new());
    let mut doubtful = BTreeSet::new();
    for (cluster, namespace, entry) in world.state.ledger.held_by(name) {
        let stuck = || entry.closing.is_some() && hindrance(facts, cluster, namespace).is_some();
        if entry.is_fenced() && !stuck() {
            fenced += 1;
            doubtful.insert(cluster);
            if !entry.fence.whole {
                partly.entry(cluster).or_default().push(namespace);
            }
        } else {
            open.entry(cluster).or_default().push(namespace);
        }
    }
    let open = open.into_iter().map(|(cluster, all)| why_not(facts, cluster, &all));
    let partly = partly.into_iter().map(|(cluster, all)| {
        let named = some_of(&all, ", ");
        format!("{cluster} ({named}): not every router has heard yet that its writes are to say their epoch")
    });
    let doubts = doubts(facts, doubtful);
    let unread = facts
        .shards
        .get(name)
        .and_then(|object| object.forced.as_ref()?.as_ref().err());
    let unread = unread.map(|reason| format!("annotation {FORCE_RELEASE} forces nothing: {reason}"));
    let open: Vec<_> = unread.into_iter().chain(open).chain(partly).collect();
    if !open.is_empty() {
        return fails(format!("{}{doubts}", some_of(&open, "; ")));
    }
    Finding::holds(
        TYPE,
        format!("the members of its {fenced} namespaces refuse writes of former owners{doubts}"),
    )
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

fn why_not(facts: &Facts, cluster: &str, namespaces: &[&str]) -> String {
    let named = some_of(namespaces.iter().copied(), ", ");
    let mut reasons = namespaces
        .iter()
        .filter_map(|namespace| hindrance(facts, cluster, namespace));
    let reason = reasons.next().unwrap_or_else(|| "not yet".to_owned());
    format!("{cluster} ({named}): {reason}")
}
