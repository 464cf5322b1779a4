//! What a new spec may ask for: member clusters as many and such as it can have, and buckets that there are.

use std::collections::BTreeSet;

use portolan_crds::names::SHARD_MEMBERS_MAX;
use portolan_crds::{Bucketing, ConditionReason, ShardName, ShardingConfigSpec};

use super::Refusal;
use crate::compile::wanted::{Known, Wanted};

/// A cursor has a place for each member, for the primary and for the caller's home, and room for so many.
pub(super) fn check_count(spec: &ShardingConfigSpec, wanted: &Wanted) -> Result<(), Refusal> {
    let mut clusters: BTreeSet<&str> = wanted.members.iter().map(|member| member.cluster.as_str()).collect();
    clusters.extend(spec.primary_cluster());
    let away = spec
        .caller_clusters
        .iter()
        .any(|home| !clusters.contains(home.as_str()));
    let count = clusters.len() + usize::from(away);
    if count <= SHARD_MEMBERS_MAX {
        return Ok(());
    }
    Err(Refusal {
        reason: ConditionReason::Invalid,
        message: format!(
            "spec.clusters: {count} member clusters, those of the primary and of the callers among them, and a shard can \
             have {SHARD_MEMBERS_MAX}: split it"
        ),
    })
}

/// The hub has as many buckets as it was told.
pub(super) fn check_buckets(bucketing: Bucketing, spec: &ShardingConfigSpec) -> Result<(), Refusal> {
    let last = bucketing.buckets() - 1;
    for (index, entry) in spec.clusters.iter().enumerate() {
        let buckets = entry.bucket_set().ok().flatten();
        let beyond = buckets
            .and_then(|buckets| buckets.last())
            .filter(|bucket| *bucket > last);
        if let Some(bucket) = beyond {
            let count = bucketing.buckets();
            return Err(Refusal {
                reason: ConditionReason::Invalid,
                message: format!(
                    "spec.clusters[{index}].buckets: this hub has no bucket {bucket}, it has {count}: write 0 to {last}"
                ),
            });
        }
    }
    Ok(())
}

/// The rules about the members that a new spec names. `family`: the shard, and what it shares its members with, being a
/// root or a child.
pub(super) fn check_members(known: &Known<'_>, family: &[&ShardName], wanted: &Wanted) -> Result<(), Refusal> {
    if let Some((reason, message)) = wanted.refusal() {
        return Err(Refusal { reason, message });
    }
    let cordoned = |cluster: &str| {
        let member = known.facts.members.get(cluster);
        let spec = member.and_then(|member| member.in_force.as_ref());
        spec.is_some_and(|spec| spec.cordoned)
    };
    let owned = |cluster: &str| {
        let mut shards = family.iter();
        shards.any(|name| known.ledger.owned_in(cluster, name).next().is_some())
    };
    let members = wanted.members.iter().map(|member| member.cluster.as_str());
    let closed: Vec<_> = members.filter(|cluster| cordoned(cluster) && !owned(cluster)).collect();
    if closed.is_empty() {
        return Ok(());
    }
    Err(Refusal {
        reason: ConditionReason::Cordoned,
        message: format!(
            "spec.clusters: MemberCluster {} is cordoned and takes no new shards: uncordon it, or leave it out",
            closed.join(", ")
        ),
    })
}
