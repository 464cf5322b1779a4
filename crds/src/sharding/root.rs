//! `root`: one ShardingConfig that generates the others.

use serde::{Deserialize, Serialize};

use super::ObjectLimiter;
#[cfg(feature = "schema")]
use crate::schema::{DNS_LABEL, DNS_SUBDOMAIN};

/// Generates child ShardingConfigs that share what the root owns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Root {
    /// Takes the children back: each lets go of what it owns, and then it is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disable: Option<bool>,
    /// Beginning of the children's names.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 200), regex(pattern = DNS_SUBDOMAIN)))]
    pub prefix: String,
    /// StatefulSet whose Pods are shared out among the children, by ordinal.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN)))]
    pub target_stateful_set: String,
    /// A shard that tries changes first. What it takes is taken from the others. Off with replicas 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
    /// Shares what the canary leaves among shards of equal size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto: Option<Auto>,
    /// The resources that are shared out, and which objects of them, as in limits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic")))]
    pub resource_selector: Vec<ObjectLimiter>,
}

/// What the canary shard takes: every namespace that any of inNamespaces, inShardHash and percent names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Canary {
    /// Number of Pods of the StatefulSet that serve the canary shard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 4096)))]
    pub replicas: Option<i32>,
    /// Namespaces by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(
        length(max = 1024), inner(length(min = 1, max = 63), regex(pattern = DNS_LABEL)),
        extend("x-kubernetes-list-type" = "atomic"),
    ))]
    pub in_namespaces: Vec<String>,
    /// Namespaces by bucket, in decimal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(
        length(max = 1024), inner(length(max = 4), regex(pattern = "^(0|[1-9][0-9]{0,3})$")),
        extend("x-kubernetes-list-type" = "atomic"),
    ))]
    pub in_shard_hash: Vec<String>,
    /// Namespaces by a share of all buckets, in percent, rounded up to whole buckets. A larger share has all buckets of a
    /// smaller one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 100)))]
    pub percent: Option<i32>,
}

impl Canary {
    /// Whether it has Pods and is to take nothing, as between two upgrades.
    pub fn rests(&self) -> bool {
        let has_pods = self.replicas.is_some_and(|replicas| replicas > 0);
        has_pods && self.percent == Some(0) && self.in_namespaces.is_empty() && self.in_shard_hash.is_empty()
    }
}

/// Shares (cluster, bucket) pairs among shards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Auto {
    /// Number of shards beside the canary. Those that get nothing, as there are more of them than pairs, are named in status.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1024)))]
    pub sharding_size: i32,
    /// Number of Pods of the StatefulSet that serve each shard.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 4096)))]
    pub every_shard_replicas: i32,
    /// What the shards have about equally much of. Pairs: their numbers of pairs differ by at most one. Objects: a pair weighs
    /// 16 and the objects of labelled kinds that the cluster's agent counts in it, at most 1,000,000. Pairs move when a shard,
    /// its lightest pair aside, weighs more than half as much again as another, and then until none weighs a tenth more.
    /// Counts alone move pairs of a root at most once in 10 minutes, the longer the more often they did of late, up to a day.
    /// Pairs stay while a cluster is not counted yet.
    #[serde(default)]
    pub balance: Balance,
}

/// What shards have about equally much of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Balance {
    /// (cluster, bucket) pairs.
    #[default]
    Pairs,
    /// Objects in them.
    Objects,
}
