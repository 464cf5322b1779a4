//! What the hub says about a ShardingConfig. Pure.
//!
//! `accepted` and the namespaces in `clusters` are more than news: after a restart the compiler starts from them.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use portolan_crds::{
    AcceptedSpec, CallerReplica, CallersStatus, ClusterShardStatus, ConditionReason, ConditionType, Finding,
    STATUS_NAMESPACES_MAX, STATUS_REPLICAS_MAX, ShardName, ShardingConfigSpec, ShardingConfigStatus, set_condition,
};
use portolan_wire::v1::resource::Body;

use super::member::whole_seconds;
use super::resolved::resolved;
use super::{named, reach};
use crate::acks::RouterState;
use crate::compile::{Contested, Ref, Verdict, World};
use crate::facts::{Facts, ShardObject};

type Routers = BTreeMap<String, RouterState>;
pub(super) type Found = (ConditionType, (Option<bool>, ConditionReason, String));

/// Message of conditions about a spec that there is not.
pub(super) const NOTHING_IN_FORCE: &str = "no spec is in force, see Accepted";

/// The status that the shard ought to have; `None` while the world does not know its present generation.
pub(super) fn status(
    facts: &Facts,
    world: &World,
    (name, object): (&ShardName, &ShardObject),
    routers: &Routers,
    now: Timestamp,
) -> Option<ShardingConfigStatus> {
    if object.deleting {
        return Some(leaving(facts, world, (name, object), now));
    }
    let verdict = world
        .shards
        .get(name)
        .filter(|verdict| verdict.generation == object.generation)?;
    let accepted = world.state.accepted.get(name);
    let callers = callers(world, name, routers);
    let mut status = ShardingConfigStatus {
        observed_generation: Some(object.generation),
        conditions: object.status.conditions.clone(),
        children: Vec::new(),
        clusters: clusters(facts, world, name, verdict),
        accepted: accepted.and_then(|accepted| AcceptedSpec::new(accepted.generation, &accepted.spec).ok()),
        callers: None,
    };
    let findings = [
        is_accepted(verdict, accepted.is_some()),
        distributed(
            &callers,
            routers,
            accepted.map(|accepted| silent_homes(world, &accepted.spec)),
            &guessed(verdict),
        ),
        complete(verdict, accepted.is_some()),
        disjoint(verdict),
        resolved(facts, verdict, accepted.is_some()),
        reach::members_reachable(world, (name, verdict), accepted, routers),
    ];
    status.callers = Some(callers);
    for (type_, (holds, reason, message)) in findings {
        let finding = Finding {
            type_,
            status: holds,
            reason,
            message,
            observed_generation: Some(object.generation),
        };
        set_condition(&mut status.conditions, finding, &whole_seconds(now));
    }
    Some(status)
}

/// Of a shard that was deleted and waits for routers. What it has and its last spec stay told: a hub that starts anew
/// begins with them.
fn leaving(
    facts: &Facts,
    world: &World,
    (name, object): (&ShardName, &ShardObject),
    now: Timestamp,
) -> ShardingConfigStatus {
    let mut status = ShardingConfigStatus {
        observed_generation: Some(object.generation),
        clusters: clusters(facts, world, name, &Verdict::default()),
        callers: None,
        ..object.status.clone()
    };
    let message = "being deleted: it goes once every router has let go of the namespaces in status.clusters";
    let finding = Finding {
        type_: ConditionType::Complete,
        status: Some(false),
        reason: ConditionReason::HandoverPending,
        message: message.to_owned(),
        observed_generation: Some(object.generation),
    };
    set_condition(&mut status.conditions, finding, &whole_seconds(now));
    status
}

fn clusters(facts: &Facts, world: &World, name: &ShardName, verdict: &Verdict) -> Vec<ClusterShardStatus> {
    let ledger = &world.state.ledger;
    let wanted = verdict.wanted.members.iter().map(|member| member.cluster.as_str());
    let all: BTreeSet<_> = wanted.chain(ledger.clusters()).collect();
    let labelled = |cluster: &str| {
        let coverage = facts.agents.get(cluster).and_then(|agent| agent.coverage.as_ref());
        coverage.is_some_and(|coverage| !coverage.is_empty() && coverage.values().all(|kind| kind.complete))
    };
    all.into_iter()
        .filter_map(|cluster| {
            let mut owned: Vec<_> = ledger
                .in_cluster(cluster)
                .filter(|(_, entry)| entry.owner.as_ref() == Some(name))
                .collect();
            let namespace_count = i64::try_from(owned.len()).unwrap_or(i64::MAX);
            if owned.len() > STATUS_NAMESPACES_MAX {
                // A hub that starts anew knows the rest by the spec, but not what the spec no longer asks for.
                owned.sort_by_key(|(_, entry)| (entry.releasing_since.is_none(), entry.generation == 1));
                owned.truncate(STATUS_NAMESPACES_MAX);
                owned.sort_by_key(|(namespace, _)| *namespace);
            }
            let moved = owned.iter().filter(|(_, entry)| entry.generation > 1);
            let generations: BTreeMap<_, _> = moved
                .map(|(namespace, entry)| {
                    let generation = i64::try_from(entry.generation).unwrap_or(i64::MAX);
                    ((*namespace).to_owned(), generation)
                })
                .collect();
            let member = verdict.wanted.members.iter().find(|member| member.cluster == cluster);
            if owned.is_empty() && member.is_none() {
                return None;
            }
            let shadowed = member.into_iter().flat_map(|member| &member.shadowed);
            Some(ClusterShardStatus {
                name: cluster.to_owned(),
                namespace_count,
                namespaces: owned.into_iter().map(|(namespace, _)| namespace.to_owned()).collect(),
                generations,
                objects: None,
                labels_synced: labelled(cluster),
                shadowed: shadowed.take(STATUS_NAMESPACES_MAX).cloned().collect(),
            })
        })
        .collect()
}

/// How far the callers' views have come. A caller is current when every connected router serves it by the present view.
fn callers(world: &World, name: &ShardName, routers: &Routers) -> CallersStatus {
    let connected: Vec<_> = routers.values().filter(|router| router.left.is_none()).collect();
    let views = world.callers.get(name).into_iter().flatten();
    let mut replicas: Vec<_> = views.filter_map(|view| replica(world, view, &connected)).collect();
    let current = replicas.iter().filter(|(current, _)| *current).count();
    // Those that are not current first; the list is cut.
    replicas.sort_by(|a, b| (a.0, &a.1.cluster, &a.1.pod).cmp(&(b.0, &b.1.cluster, &b.1.pod)));
    CallersStatus {
        total: i64::try_from(replicas.len()).unwrap_or(i64::MAX),
        current: i64::try_from(current).unwrap_or(i64::MAX),
        replicas: replicas
            .into_iter()
            .map(|(_, replica)| replica)
            .take(STATUS_REPLICAS_MAX)
            .collect(),
    }
}

fn replica(world: &World, view: &Ref, connected: &[&RouterState]) -> Option<(bool, CallerReplica)> {
    let compiled = world.resources.get(view)?;
    let Some(Body::CallerView(body)) = &compiled.resource.body else {
        return None;
    };
    let version = &compiled.resource.version;
    let held: Vec<_> = connected.iter().map(|router| router.held.get(view)).collect();
    let serves = |held: Option<&String>| held == Some(version);
    let current = !held.is_empty() && held.iter().all(|held| serves(*held));
    // Of several routers the one that lags is told of.
    let lagging = held.iter().find(|held| !serves(**held)).or(held.first());
    let nack = connected.iter().find_map(|router| {
        let (refused, reason) = router.rejected.get(view)?;
        (refused == version).then(|| reason.clone())
    });
    let replica = CallerReplica {
        cluster: body.home_cluster.clone(),
        namespace: body.namespace.clone(),
        pod: body.pod.clone(),
        uid: body.pod_uid.clone(),
        version: lagging.and_then(|held| held.cloned()),
        nack,
    };
    Some((current, replica))
}

fn is_accepted(verdict: &Verdict, in_force: bool) -> Found {
    let found = match &verdict.refusal {
        None => (
            Some(true),
            ConditionReason::Ok,
            "the spec is valid and in force".to_owned(),
        ),
        Some(refusal) => {
            let rest = if in_force {
                "the last accepted spec stays in force"
            } else {
                "nothing is in force"
            };
            (Some(false), refusal.reason, format!("{}; {rest}", refusal.message))
        }
    };
    (ConditionType::Accepted, found)
}

/// Caller clusters whose agents have not told this process of any Pods.
fn silent_homes<'a>(world: &World, spec: &'a ShardingConfigSpec) -> Vec<&'a str> {
    let homes = spec.caller_clusters.iter().map(String::as_str);
    homes.filter(|home| world.unknown.homes.contains(*home)).collect()
}

/// Members of which it is not known what the shard has there: routers that hold an earlier view are sent none.
fn guessed(verdict: &Verdict) -> Vec<&str> {
    let members = verdict.wanted.members.iter().filter(|member| member.guessed);
    members.map(|member| member.cluster.as_str()).collect()
}

/// `silent`: see [`silent_homes`]; `None` if no spec is in force.
fn distributed(callers: &CallersStatus, routers: &Routers, silent: Option<Vec<&str>>, guessed: &[&str]) -> Found {
    let connected = routers.values().filter(|router| router.left.is_none()).count();
    let refused = callers
        .replicas
        .iter()
        .find_map(|replica| Some((replica, replica.nack.as_ref()?)));
    let progress = format!(
        "{} of {} callers are served by the present version",
        callers.current, callers.total
    );
    let Some(silent) = silent else {
        let found = (None, ConditionReason::Invalid, NOTHING_IN_FORCE.to_owned());
        return (ConditionType::Distributed, found);
    };
    let found = if let Some((replica, reason)) = refused {
        let message = format!(
            "{progress}; a router refused that of Pod {}/{} in {}: {reason}",
            replica.namespace, replica.pod, replica.cluster
        );
        (Some(false), ConditionReason::Rejected, message)
    } else if callers.total == 0 && !silent.is_empty() {
        let message = format!(
            "the agent of {} has not reported its Pods since the hub started: routers go on with the callers they have",
            silent.join(", ")
        );
        (None, ConditionReason::WaitingForAgent, message)
    } else if callers.total == 0 {
        let message = "no running Pod in this namespace of the caller clusters matches spec.selector";
        (Some(false), ConditionReason::NoCallers, message.to_owned())
    } else if connected == 0 {
        let message = format!("{progress}: no router is connected to the hub");
        (Some(false), ConditionReason::Progressing, message)
    } else if callers.current < callers.total && !guessed.is_empty() {
        let message = format!(
            "{progress}; the agent of {} has not reported its namespaces since the hub started: until it has, routers go \
             on with the views they have",
            guessed.join(", ")
        );
        (None, ConditionReason::WaitingForAgent, message)
    } else if callers.current < callers.total {
        (Some(false), ConditionReason::Progressing, progress)
    } else {
        (
            Some(true),
            ConditionReason::Ok,
            format!("{progress}, on {connected} routers"),
        )
    };
    (ConditionType::Distributed, found)
}

/// Whether the shard has what it asks for. What others go on wanting is `Disjoint`'s to tell.
fn complete(verdict: &Verdict, in_force: bool) -> Found {
    let found = if !in_force {
        (None, ConditionReason::Invalid, NOTHING_IN_FORCE.to_owned())
    } else if !verdict.awaited.is_empty() {
        let message = format!(
            "waiting for {}: granted here without further action once every router has let go of them there; all else \
             is in force",
            contested(&verdict.awaited)
        );
        (Some(false), ConditionReason::HandoverPending, message)
    } else if verdict.refusal.is_none() && !verdict.conflicts.is_empty() {
        let message = format!("other shards have {}", contested(&verdict.conflicts));
        (Some(false), ConditionReason::Overlap, message)
    } else {
        let message = "the shard has every namespace that it asks for";
        (Some(true), ConditionReason::Ok, message.to_owned())
    };
    (ConditionType::Complete, found)
}

fn contested(pairs: &[Contested]) -> String {
    let pairs: Vec<_> = pairs.iter().map(ToString::to_string).collect();
    named(pairs.iter().map(String::as_str))
}

fn disjoint(verdict: &Verdict) -> Found {
    let found = if verdict.conflicts.is_empty() {
        let message = "no pair of cluster and namespace is another shard's";
        (Some(true), ConditionReason::Ok, message.to_owned())
    } else {
        let message = format!("owned by other shards: {}", contested(&verdict.conflicts));
        (Some(false), ConditionReason::Overlap, message)
    };
    (ConditionType::Disjoint, found)
}

#[cfg(test)]
mod tests {
    use portolan_wire::v1;

    use super::*;
    use crate::acks::Acks;
    use crate::compile::Compiled;

    #[test]
    fn a_view_that_is_kept_back_is_not_served() {
        let view = Ref::View {
            home: "east".to_owned(),
            pod_uid: "p".to_owned(),
        };
        let resource = v1::Resource {
            version: "2".to_owned(),
            body: Some(Body::CallerView(v1::CallerView::default())),
        };
        let name = ShardName::new("ops", "a").unwrap();
        let compiled = Compiled {
            resource,
            provisional: true,
        };
        let world = World {
            resources: [(view.clone(), compiled)].into(),
            callers: [(name.clone(), [view.clone()].into())].into(),
            ..World::default()
        };
        for (held, current, guessed, wanted) in [
            ("1", 0, vec!["west"], (None, ConditionReason::WaitingForAgent)),
            ("1", 0, vec![], (Some(false), ConditionReason::Progressing)),
            ("2", 1, vec!["west"], (Some(true), ConditionReason::Ok)),
        ] {
            let acks = Acks::default();
            acks.connected("gateway", 1, String::new(), [(view.clone(), held.to_owned())].into());
            acks.read(|routers| {
                let callers = callers(&world, &name, routers);
                assert_eq!((callers.current, callers.total), (current, 1));
                let (_, (holds, reason, _)) = distributed(&callers, routers, Some(Vec::new()), &guessed);
                assert_eq!((holds, reason), wanted);
            });
        }
    }
}
