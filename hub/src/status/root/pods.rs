//! Condition ChildrenServed: whether each child of a root has something to own and Pods that own it, and each Pod of the
//! root's is some child's.
//!
//! The StatefulSet is in member clusters: what is known of it are its Pods, as agents tell them, by their names.

use std::collections::BTreeSet;

use portolan_crds::partition::ChildRole;
use portolan_crds::{Canary, ConditionReason, ConditionType, Finding};
use portolan_wire::v1::ResourceKind;

use super::super::finding::nothing_in_force;
use super::{Root, callers};
use crate::compile::{Accepted, Ref, selector_of_root, selects, some_of};

const TYPE: ConditionType = ConditionType::ChildrenServed;
/// Pods in these phases run nothing any more.
const ENDED: [&str; 2] = ["Succeeded", "Failed"];

pub(super) fn served(root: &Root<'_>) -> Finding {
    let Some(accepted) = root.accepted else {
        return nothing_in_force(TYPE);
    };
    let Some(generated) = root.generated.filter(|_| accepted.spec.active_root().is_some()) else {
        return Finding::holds(TYPE, "there are no children");
    };
    let homes = &accepted.spec.caller_clusters;
    let world = root.sources.world;
    let silent = homes
        .iter()
        .filter(|home| world.is_unknown(ResourceKind::CallerView, home));
    let silent: Vec<_> = silent.collect();
    if !silent.is_empty() {
        let message = format!(
            "the agent of {} has not reported its Pods since the hub started: routers go on with the callers they have",
            some_of(silent, ", ")
        );
        return Finding::unknown(TYPE, ConditionReason::WaitingForAgent, message);
    }
    let children = generated.expansion.children.iter();
    let unserved = children.filter(|child| callers(world, root.name, &child.name) == 0);
    let unserved: Vec<_> = unserved.map(|child| child.name.as_str()).collect();
    let pods = Pods::of(root, accepted);
    let troubles = [
        (ConditionReason::NoCallers, pods.canary_lacks(accepted)),
        (ConditionReason::NoCallers, without_pods(accepted, &unserved)),
        (ConditionReason::PodsInNoShard, pods.in_no_shard()),
        (
            ConditionReason::NothingToOwn,
            nothing_to_own(&unintended(root, accepted)),
        ),
    ];
    let troubles: Vec<_> = troubles
        .into_iter()
        .filter_map(|(reason, message)| Some((reason, message?)))
        .collect();
    let Some((reason, _)) = troubles.first() else {
        let count = generated.expansion.children.len();
        return Finding::holds(TYPE, format!("each of {count} children has something to own, and Pods"));
    };
    let messages: Vec<_> = troubles.iter().map(|(_, message)| message.as_str()).collect();
    Finding::fails(TYPE, *reason, messages.join("; "))
}

/// The root's Pods that agents tell of.
struct Pods {
    /// How many Pods the StatefulSet has at least: one more than the highest ordinal.
    replicas: Option<u32>,
    /// Those that no child has, in words.
    nobodys: Vec<String>,
}

impl Pods {
    fn of(root: &Root<'_>, accepted: &Accepted) -> Self {
        let (facts, world) = (root.sources.facts, root.sources.world);
        let stateful_set = accepted
            .spec
            .root
            .as_ref()
            .map(|root| root.target_stateful_set.as_str());
        let stateful_set = stateful_set.unwrap_or_default();
        let selector = selector_of_root(accepted);
        let children: BTreeSet<&Ref> = root
            .children()
            .filter_map(|child| world.callers.get(child))
            .flatten()
            .collect();
        let mut pods = Self {
            replicas: None,
            nobodys: Vec::new(),
        };
        let homes = &accepted.spec.caller_clusters;
        let agents = facts.agents.iter();
        let agents = agents.filter(|(cluster, _)| homes.is_empty() || homes.contains(cluster));
        let told = agents.flat_map(|(cluster, agent)| {
            let callers = agent.callers.iter().flat_map(|callers| callers.values());
            callers.map(move |pod| (cluster, pod))
        });
        for (cluster, pod) in told.filter(|(_, pod)| pod.namespace == root.name.namespace()) {
            if ENDED.contains(&pod.phase.as_str()) {
                continue;
            }
            let ordinal = ordinal(stateful_set, &pod.pod);
            let next = ordinal.map(|ordinal| ordinal.saturating_add(1));
            pods.replicas = pods.replicas.max(next);
            let view = Ref::View {
                home: cluster.clone(),
                pod_uid: pod.uid.clone(),
            };
            let is_selected = selector.as_ref().is_some_and(|selector| selects(selector, pod));
            if is_selected && !children.contains(&view) {
                pods.nobodys.push(format!("{} in {cluster}", pod.pod));
            }
        }
        pods
    }

    /// A canary of more Pods than there are has the Pods of others, which then have none.
    fn canary_lacks(&self, accepted: &Accepted) -> Option<String> {
        let root = accepted.spec.root.as_ref()?;
        let wanted = u32::try_from(root.canary.as_ref()?.replicas?).ok()?;
        let replicas = self.replicas.filter(|replicas| *replicas < wanted)?;
        let name = &root.target_stateful_set;
        Some(format!(
            "spec.root.canary.replicas: StatefulSet {name:?} has {replicas} Pods and the canary is to have {wanted}: scale it \
             up, or give the canary fewer"
        ))
    }

    fn in_no_shard(&self) -> Option<String> {
        (!self.nobodys.is_empty()).then(|| {
            format!(
                "routers answer 403 to Pod {}: spec.selector matches, and no child has it; narrow spec.selector, scale the \
                 StatefulSet down, or raise spec.root.auto",
                some_of(&self.nobodys, ", ")
            )
        })
    }
}

fn without_pods(accepted: &Accepted, children: &[&str]) -> Option<String> {
    let root = accepted.spec.root.as_ref().filter(|_| !children.is_empty())?;
    let canary = root.canary.as_ref().and_then(|canary| canary.replicas).unwrap_or(0);
    let (size, each) = root
        .auto
        .as_ref()
        .map_or((0, 0), |auto| (auto.sharding_size, auto.every_shard_replicas));
    let all = i64::from(canary.max(0)) + i64::from(size) * i64::from(each);
    Some(format!(
        "no running Pod serves ShardingConfig {}: scale StatefulSet {:?} to {all} replicas, or lower spec.root.auto",
        some_of(children, ", "),
        root.target_stateful_set
    ))
}

/// Children that have nothing, but for a canary that is to take nothing.
fn unintended(root: &Root<'_>, accepted: &Accepted) -> Vec<String> {
    let generates = accepted.spec.root.as_ref();
    let canary = generates.and_then(|generates| generates.canary.as_ref());
    let mut empty = root.empty();
    if canary.is_some_and(Canary::rests) {
        empty.retain(|child| ChildRole::of_name(child) != Some(ChildRole::Canary));
    }
    empty
}

fn nothing_to_own(children: &[String]) -> Option<String> {
    (!children.is_empty()).then(|| {
        format!(
            "ShardingConfig {} has nothing, as there are fewer pairs of cluster and bucket than shards: lower \
             spec.root.auto.shardingSize",
            some_of(children, ", ")
        )
    })
}

/// Which of the StatefulSet's Pods it is.
fn ordinal(stateful_set: &str, pod: &str) -> Option<u32> {
    let number = pod.strip_prefix(stateful_set)?.strip_prefix('-')?;
    number
        .parse()
        .ok()
        .filter(|ordinal: &u32| ordinal.to_string() == number)
}
