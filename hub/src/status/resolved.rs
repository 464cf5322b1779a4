//! Condition NamespacesResolved: whether every namespace that a shard names exists, once. Pure; called by `shard`.

use std::collections::BTreeSet;

use portolan_crds::{ConditionReason, ConditionType, Finding};
use portolan_wire::protocol::{LABELS_MAX_BYTES, NAMESPACES_LABELS_MAX_BYTES};

use super::finding::nothing_in_force;
use crate::compile::{Verdict, WantedMember, some_of};
use crate::facts::Facts;

pub(super) fn resolved(facts: &Facts, verdict: &Verdict, in_force: bool) -> Finding {
    const TYPE: ConditionType = ConditionType::NamespacesResolved;
    let members = &verdict.wanted.members;
    let strangers = members.iter().map(|member| member.cluster.as_str());
    let strangers = strangers.filter(|cluster| facts.joined(cluster).is_none());
    let strangers: Vec<_> = strangers
        .map(|cluster| {
            if facts.withdrawn(cluster).is_some() {
                format!("{cluster} was withdrawn (its spec.accept is false)")
            } else {
                format!("{cluster} has not joined, or is not accepted")
            }
        })
        .collect();
    let pairs = |of: fn(&WantedMember) -> &BTreeSet<String>| {
        let pairs = members
            .iter()
            .flat_map(|member| of(member).iter().map(|name| format!("{}/{name}", member.cluster)));
        pairs.collect::<Vec<_>>()
    };
    let (absent, shadowed) = (pairs(|member| &member.absent), pairs(|member| &member.shadowed));
    let unreported: Vec<_> = members
        .iter()
        .filter(|member| member.unreported)
        .map(|member| member.cluster.as_str())
        .collect();
    if !in_force {
        nothing_in_force(TYPE)
    } else if let Some((reason, message)) = verdict.wanted.refusal() {
        Finding::fails(TYPE, reason, message)
    } else if !strangers.is_empty() {
        let message = format!(
            "MemberCluster {}: nothing is served from there",
            strangers.join(", MemberCluster ")
        );
        Finding::fails(TYPE, ConditionReason::ClusterNotJoined, message)
    } else if !shadowed.is_empty() {
        let message = format!(
            "{} exist too, but the namespace of that name is served from another cluster: from where it was first, \
             else from the earlier in spec.clusters",
            some_of(&shadowed, ", ")
        );
        Finding::fails(TYPE, ConditionReason::Shadowed, message)
    } else if !absent.is_empty() {
        let message = format!(
            "{} do not exist yet: create them, or correct spec.clusters[].namespaces",
            some_of(&absent, ", ")
        );
        Finding::fails(TYPE, ConditionReason::NamespaceMissing, message)
    } else if !unreported.is_empty() {
        let message = format!("the inventory of {} has not been reported yet", unreported.join(", "));
        Finding::unknown(TYPE, ConditionReason::WaitingForAgent, message)
    } else {
        Finding::holds(TYPE, counted(members, &pairs(|member| &member.unread)))
    }
}

/// How many namespaces there are; `unread`: those whose labels nobody knows.
fn counted(members: &[WantedMember], unread: &[String]) -> String {
    let count: usize = members.iter().map(|member| member.namespaces.len()).sum();
    let unread = match unread {
        [] => String::new(),
        unread => format!(
            "; with so many labels that agents do not tell them (more than {LABELS_MAX_BYTES} bytes, or the most of a member whose \
             namespaces have more than {NAMESPACES_LABELS_MAX_BYTES} together), so that no namespaceSelector chooses them: {}",
            some_of(unread, ", ")
        ),
    };
    format!("{count} namespaces in {} clusters{unread}", members.len())
}
