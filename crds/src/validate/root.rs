//! The rules of a root, by itself. What its children make of it is said by [`crate::partition::expand`].

use super::Problems;
use super::selectors::check_limits;
use crate::names::is_dns_subdomain;
use crate::shard::MAX_BUCKETS;
use crate::sharding::{Auto, Canary, Root};

/// Most Pods that a child can have: so many values has a selector.
const REPLICAS_MAX: i64 = 4096;

pub(super) fn check_root(problems: &mut Problems, root: &Root) {
    for (field, name) in [
        ("prefix", &root.prefix),
        ("targetStatefulSet", &root.target_stateful_set),
    ] {
        if !is_dns_subdomain(name) {
            problems.invalid(
                format!("spec.root.{field}"),
                format!("{name:?} must be a DNS subdomain, as names of objects are"),
            );
        }
    }
    match &root.auto {
        Some(auto) => check_auto(problems, auto),
        None if root.disable == Some(true) => {}
        None => problems.required("spec.root.auto", "say among how many shards the root is shared out"),
    }
    if let Some(canary) = &root.canary {
        check_canary(problems, canary);
    }
    check_limits(problems, "spec.root.resourceSelector", &root.resource_selector);
}

fn check_auto(problems: &mut Problems, auto: &Auto) {
    problems.within(
        "spec.root.auto.shardingSize",
        auto.sharding_size,
        1..=i64::from(MAX_BUCKETS),
    );
    problems.within(
        "spec.root.auto.everyShardReplicas",
        auto.every_shard_replicas,
        1..=REPLICAS_MAX,
    );
}

fn check_canary(problems: &mut Problems, canary: &Canary) {
    const FIELD: &str = "spec.root.canary";
    match canary.replicas {
        Some(replicas) => problems.within(&format!("{FIELD}.replicas"), replicas, 0..=REPLICAS_MAX),
        None => problems.required(
            format!("{FIELD}.replicas"),
            "say how many Pods serve the canary; 0 turns it off",
        ),
    }
    if let Some(percent) = canary.percent {
        problems.within(&format!("{FIELD}.percent"), percent, 0..=100);
    }
    let takes_nothing = canary.in_namespaces.is_empty() && canary.in_shard_hash.is_empty() && canary.percent.is_none();
    if takes_nothing && canary.replicas.is_some_and(|replicas| replicas > 0) {
        let message = "say what it takes: set inNamespaces, inShardHash or percent, or replicas to 0";
        problems.required(FIELD, message);
    }
    for (index, namespace) in canary.in_namespaces.iter().enumerate() {
        problems.dns_label(&format!("{FIELD}.inNamespaces[{index}]"), namespace);
    }
    problems.duplicates(&format!("{FIELD}.inNamespaces"), &canary.in_namespaces);
    for (index, bucket) in canary.in_shard_hash.iter().enumerate() {
        if !bucket
            .parse::<u16>()
            .is_ok_and(|number| number < MAX_BUCKETS && number.to_string() == *bucket)
        {
            let message = format!("{bucket:?} is no bucket: write a number from 0 to one less than the hub's buckets");
            problems.invalid(format!("{FIELD}.inShardHash[{index}]"), message);
        }
    }
    problems.duplicates(&format!("{FIELD}.inShardHash"), &canary.in_shard_hash);
}
