//! What the hub reports about a ShardingConfig. Nothing here is read back, but once: what hubs told that kept no ledger.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ShardingConfigSpec;
#[cfg(feature = "schema")]
use crate::schema;

/// Most namespaces listed by name per cluster; `namespaceCount` always counts all. Keeps the object far below etcd's 1.5 MB.
pub const STATUS_NAMESPACES_MAX: usize = 500;
/// Most callers listed; `total` always counts all. Those that are not current come first.
pub const STATUS_REPLICAS_MAX: usize = 200;
/// Most releases listed; `releasingCount` always counts all. Those that wait longest come first.
pub const STATUS_RELEASES_MAX: usize = 50;

/// What the hub reports about a ShardingConfig.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ShardingConfigStatus {
    /// metadata.generation that the rest of the status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Accepted, Distributed, Complete, Disjoint, NamespacesResolved, MembersReachable, OneLeader, HandoverFenced, and
    /// Replicated, WebhookServed and CallersInjected where they do not hold; of a root Accepted, Complete, Disjoint, NamespacesResolved, ChildrenServed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::conditions"))]
    pub conditions: Vec<Condition>,
    /// Names of the child ShardingConfigs that a root generated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-list-type" = "atomic")))]
    pub children: Vec<String>,
    /// Names of those of the children that have nothing: there are more shards than pairs, or the canary has it all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-list-type" = "atomic")))]
    pub empty_children: Vec<String>,
    /// What the shard owns, by member cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]),
    ))]
    pub clusters: Vec<ClusterShardStatus>,
    /// The callers of the shard, and how far the current version has reached them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callers: Option<CallersStatus>,
    /// Number of namespaces that the shard no longer wants and that are not another's yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub releasing_count: Option<i64>,
    /// Of these the first 50, those that wait longest first: who waits for whom.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-list-type" = "atomic")))]
    pub releases: Vec<ReleaseStatus>,
    /// The leader lock of the shard, while it is on its way to another place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<LockStatus>,
    /// View revision at which a namespace last entered or left the shard; 0 if none ever did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub view_revision: Option<i64>,
    /// The last spec that was accepted, as hubs told it that kept no ledger. Read once, by a hub that finds no ledger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted: Option<AcceptedSpec>,
}

/// A leader lock on its way to another place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct LockStatus {
    /// Where it was: its name, and the member cluster.
    pub from: String,
    /// Where it will be.
    pub to: String,
    /// Whom that waits for, and for what.
    pub waits_for: String,
}

/// A namespace on its way to another shard, or to nobody.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReleaseStatus {
    /// Name of the MemberCluster.
    pub cluster: String,
    /// The namespace.
    pub namespace: String,
    /// Epoch of its owner: grows with each, and no two of a namespace have the same.
    pub epoch: i64,
    /// Namespace and name of the ShardingConfig that waits for it; absent: none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Whom that waits for, and for what.
    pub waits_for: String,
    /// Since when it is being released, as far as this hub knows: since it started at the earliest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::time"))]
    pub since: Option<Time>,
}

/// What the shard owns in one member cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ClusterShardStatus {
    /// Name of the MemberCluster.
    pub name: String,
    /// Number of namespaces owned there.
    #[serde(default)]
    pub namespace_count: i64,
    /// Names of the namespaces owned there; of more than 500 the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-list-type" = "atomic")))]
    pub namespaces: Vec<String>,
    /// Number of owners that namespaces have had that changed hands, as hubs told it that kept no ledger.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub generations: BTreeMap<String, i64>,
    /// Number of labelled objects in them, as the agent last reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objects: Option<i64>,
    /// Whether every object in them has its labels, so that the router need not filter by namespace itself.
    #[serde(default)]
    pub labels_synced: bool,
    /// Namespaces that exist here too but that the shard has in another cluster of spec.clusters; the first 500.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-list-type" = "atomic")))]
    pub shadowed: Vec<String>,
}

/// The callers of a shard and how far the current configuration has reached them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CallersStatus {
    /// Number of callers.
    pub total: i64,
    /// Number of callers that are served by the current version.
    pub current: i64,
    /// The callers, the first 200, those that are not current first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-list-type" = "atomic")))]
    pub replicas: Vec<CallerReplica>,
}

/// One caller: a Pod of the operator in its home cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CallerReplica {
    /// Home cluster.
    pub cluster: String,
    /// Namespace of the Pod.
    pub namespace: String,
    /// Name of the Pod.
    pub pod: String,
    /// UID of the Pod.
    pub uid: String,
    /// Version of the shard's configuration that its router serves it by; absent until the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Why it is not served by the current version: its router refused that (the last good one stays in force), or several
    /// shards select the Pod (its requests are refused).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nack: Option<String>,
}

/// A spec that was accepted, as it was.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AcceptedSpec {
    /// metadata.generation of that spec.
    pub generation: i64,
    /// The spec. Kept untyped, so that a hub of another version does not lose fields or fail to read the object.
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::any_object"))]
    pub spec: Value,
}

impl AcceptedSpec {
    /// The spec, as far as this version understands it.
    pub fn decode(&self) -> Result<ShardingConfigSpec, serde_json::Error> {
        ShardingConfigSpec::deserialize(&self.spec)
    }
}
