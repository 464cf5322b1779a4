//! What the hub says about a ShardingConfig. Pure, and news only: what has to be known after a restart is in the ledger.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use portolan_crds::{
    ClusterShardStatus, ConditionReason, ConditionType, Contention, Finding, STATUS_NAMESPACES_MAX, ShardName,
    ShardingConfigStatus,
};

use super::finding::{BY_LIMITS, NOT_ARBITRATED, nothing_in_force, set};
use super::member::told_of_labels;
use super::resolved::resolved;
use super::unserved::{clear, cluster_scoped_served, separate, webhook_served};
use super::{Sources, callers, fenced, injected, leader, reach, releases, replicated, root};
use crate::acks::moving_lock;
use crate::compile::{Accepted, Verdict, World, some_contested};
use crate::facts::ShardObject;

/// The status that the shard ought to have; `None` while the world does not know its present generation.
pub(super) fn status(sources: Sources<'_>, name: &ShardName, object: &ShardObject) -> Option<ShardingConfigStatus> {
    let Sources {
        world,
        routers,
        breakers,
        now,
        ..
    } = sources;
    let mut status = ShardingConfigStatus {
        observed_generation: Some(object.generation),
        conditions: object.status.conditions.clone(),
        view_revision: Some(view_revision(world, name)),
        ..ShardingConfigStatus::default()
    };
    releases::tell(sources, name, &mut status);
    let accepted = world.state.accepted.get(name);
    status.lock = accepted.and_then(|accepted| moving_lock(name, accepted, sources.routers));
    if object.deleting {
        status.clusters = clusters(world, name, &Verdict::default());
        let message = "being deleted: it goes once every router has let go of the namespaces in status.clusters";
        let leaving = Finding::fails(ConditionType::Complete, ConditionReason::HandoverPending, message);
        set(&mut status.conditions, [leaving], object.generation, now);
        return Some(status);
    }
    let verdict = world.shards.get(name)?;
    if verdict.generation != object.generation {
        return None;
    }
    let accepted = world.state.accepted.get(name);
    if root::is_root(accepted, object) {
        let judged = is_accepted(verdict, accepted.is_some());
        return Some(root::status(sources, (name, object), verdict, judged));
    }
    let callers = callers::callers(world, name, routers);
    let findings = [
        is_accepted(verdict, accepted.is_some()),
        callers::distributed(sources, name, &callers),
        complete(name, verdict, accepted.is_some()),
        disjoint(
            name,
            verdict,
            accepted.is_some_and(|accepted| accepted.spec.clusters.is_empty()),
            world.state.ledger.contention(),
        ),
        resolved(sources.facts, verdict, accepted.is_some()),
        reach::members_reachable((world, name, verdict), accepted, routers, breakers),
        leader::one_leader(sources.facts, name, accepted, routers, now),
        fenced::handover_fenced(sources, name, accepted),
    ];
    status.clusters = clusters(world, name, verdict);
    let total = callers.total;
    status.callers = Some(callers);
    let failing = failing(sources, (name, object), (accepted, total), &mut status.conditions);
    let findings = findings.into_iter().chain(failing);
    set(&mut status.conditions, findings, object.generation, now);
    Some(status)
}

/// Conditions that are there only while they do not hold; those that are not found any more are taken away.
fn failing(
    sources: Sources<'_>,
    (name, object): (&ShardName, &ShardObject),
    (accepted, callers): (Option<&Accepted>, i64),
    present: &mut Vec<Condition>,
) -> impl Iterator<Item = Finding> + use<> {
    let webhook = webhook_served(accepted.map(|accepted| &*accepted.spec));
    if webhook.is_none() {
        clear(present, ConditionType::WebhookServed);
    }
    let replicated = replicated::replicated(sources.routers, name, accepted);
    if replicated.is_none() && replicated::is_known(sources.routers) {
        clear(present, ConditionType::Replicated);
    }
    let separate = separate(sources.world, object);
    if separate.is_none() {
        clear(present, ConditionType::OperatorSeparate);
    }
    let kinds =
        accepted.and_then(|accepted| cluster_scoped_served(accepted, sources.world.state.ledger.contention(), callers));
    if kinds.is_none() {
        clear(present, ConditionType::ClusterScopedServed);
    }
    let injected = injected::callers_injected(sources.facts, name, accepted);
    if injected.is_none() && injected::is_known(sources.facts, name, accepted) {
        clear(present, ConditionType::CallersInjected);
    }
    let all = webhook.into_iter().chain(separate).chain(kinds);
    all.chain(replicated).chain(injected)
}

fn clusters(world: &World, name: &ShardName, verdict: &Verdict) -> Vec<ClusterShardStatus> {
    let owned: BTreeMap<_, _> = world.state.ledger.held_by_cluster(name).collect();
    let members = verdict.wanted.members.iter();
    let members: BTreeMap<_, _> = members.map(|member| (member.cluster.as_str(), member)).collect();
    let labelled = |cluster: &str, owned: &[&str]| {
        told_of_labels(world, cluster).is_some_and(|told| {
            let mine = told.unconfirmed.iter();
            let mine = mine.map(String::as_str).any(|namespace| owned.contains(&namespace));
            !mine && !told.kinds.is_empty() && told.kinds.iter().all(|kind| kind.complete)
        })
    };
    let all: BTreeSet<_> = members.keys().chain(owned.keys()).copied().collect();
    let status = |cluster: &str| {
        let owned = owned.get(cluster).map_or(&[][..], Vec::as_slice);
        let shadowed = members.get(cluster).into_iter().flat_map(|member| &member.shadowed);
        let named = owned.iter().take(STATUS_NAMESPACES_MAX);
        ClusterShardStatus {
            name: cluster.to_owned(),
            namespace_count: i64::try_from(owned.len()).unwrap_or(i64::MAX),
            namespaces: named.map(|namespace| (*namespace).to_owned()).collect(),
            generations: BTreeMap::new(),
            objects: None,
            labels_synced: labelled(cluster, owned),
            shadowed: shadowed.take(STATUS_NAMESPACES_MAX).cloned().collect(),
        }
    };
    all.into_iter().map(status).collect()
}

fn view_revision(world: &World, name: &ShardName) -> i64 {
    let ledger = &world.state.ledger;
    let left = ledger.departed_clusters(name);
    let left = left.flat_map(|cluster| ledger.departures(cluster, name));
    let entered = ledger.held_by(name).map(|(.., entry)| entry.view_revision);
    let revisions = entered.chain(left.map(|(_, departure)| departure.view_revision));
    i64::try_from(revisions.max().unwrap_or_default()).unwrap_or(i64::MAX)
}

fn is_accepted(verdict: &Verdict, in_force: bool) -> Finding {
    const TYPE: ConditionType = ConditionType::Accepted;
    let Some(refusal) = &verdict.refusal else {
        return Finding::holds(TYPE, "the spec is valid and in force");
    };
    let rest = if in_force {
        "the last accepted spec stays in force"
    } else {
        "nothing is in force"
    };
    Finding::fails(TYPE, refusal.reason, format!("{}; {rest}", refusal.message))
}

/// Whether the shard has what it asks for. What others go on wanting is `Disjoint`'s to tell.
fn complete(name: &ShardName, verdict: &Verdict, in_force: bool) -> Finding {
    const TYPE: ConditionType = ConditionType::Complete;
    if !in_force {
        nothing_in_force(TYPE)
    } else if !verdict.awaited.is_empty() {
        let message = format!(
            "waiting for {}: granted here without further action once every router has let go of them there; all else \
             is in force",
            some_contested(&verdict.awaited, name.namespace())
        );
        Finding::fails(TYPE, ConditionReason::HandoverPending, message)
    } else if verdict.refusal.is_none() && !verdict.conflicts.is_empty() {
        let message = format!(
            "other shards have {}",
            some_contested(&verdict.conflicts, name.namespace())
        );
        Finding::fails(TYPE, ConditionReason::Overlap, message)
    } else {
        Finding::holds(TYPE, "the shard has every namespace that it asks for")
    }
}

/// `is_home`: it has no clusters. In a ledger of before nobody looks what of it others have.
fn disjoint(name: &ShardName, verdict: &Verdict, is_home: bool, contention: Contention) -> Finding {
    const TYPE: ConditionType = ConditionType::Disjoint;
    if is_home && contention.is_fleet() {
        return Finding::unknown(TYPE, ConditionReason::NotArbitrated, NOT_ARBITRATED);
    }
    if is_home && verdict.conflicts.is_empty() {
        return Finding::holds(TYPE, BY_LIMITS);
    }
    if verdict.conflicts.is_empty() {
        return Finding::holds(TYPE, "no pair of cluster and namespace is another shard's");
    }
    let message = format!(
        "owned by other shards: {}",
        some_contested(&verdict.conflicts, name.namespace())
    );
    Finding::fails(TYPE, ConditionReason::Overlap, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::Contested;

    #[test]
    fn what_shards_without_clusters_share_is_not_known() {
        let name = ShardName::new("ops", "a").unwrap();
        let said = disjoint(&name, &Verdict::default(), true, Contention::Fleet);
        assert_eq!((said.status, said.reason), (None, ConditionReason::NotArbitrated));
        assert!(said.message.contains("spec.clusters is absent"), "{}", said.message);
        for (is_home, contention) in [(false, Contention::Fleet), (true, Contention::Operator)] {
            assert_eq!(
                disjoint(&name, &Verdict::default(), is_home, contention).status,
                Some(true)
            );
        }
        let verdict = Verdict {
            conflicts: vec![Contested {
                pair: "pods of bucket 3".to_owned(),
                owner: ShardName::new("ops", "blue").ok(),
            }],
            ..Verdict::default()
        };
        let said = disjoint(&name, &verdict, true, Contention::Operator);
        assert_eq!((said.status, said.reason), (Some(false), ConditionReason::Overlap));
        assert!(
            said.message.contains("pods of bucket 3 (of ops/blue)"),
            "{}",
            said.message
        );
    }
}
