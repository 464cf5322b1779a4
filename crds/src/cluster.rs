//! MemberCluster: a cluster that the hub federates, how routers reach it and what its agent reports.

mod by_hand;
mod endpoint;

use k8s_openapi::ByteString;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde::{Deserialize, Serialize};

pub use by_hand::{HandState, HeldBreaker, LONGEST_BY_HAND};
pub use endpoint::{Address, Endpoint, EndpointError};

use crate::duration::Duration;
#[cfg(feature = "schema")]
use crate::schema::{self, rules};

/// A member cluster: the hub's half of its registration, how routers reach it and guard it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(kube::CustomResource, schemars::JsonSchema))]
#[cfg_attr(
    feature = "schema",
    allow(clippy::duplicated_attributes, reason = "print columns repeat their keys"),
    kube(
        group = "ctrlmesh.kusionstack.io",
        version = "v1alpha1",
        kind = "MemberCluster",
        shortname = "mc",
        category = "portolan",
        status = "MemberClusterStatus",
        derive = "PartialEq",
        doc = "A cluster that the hub federates: how routers reach it and what its agent reports. Its labels are what clusters[].selector of a ShardingConfig matches.",
        printcolumn(
            name = "Accepted",
            type_ = "string",
            json_path = r#".status.conditions[?(@.type=="Accepted")].status"#
        ),
        printcolumn(
            name = "Joined",
            type_ = "string",
            json_path = r#".status.conditions[?(@.type=="Joined")].status"#
        ),
        printcolumn(
            name = "Available",
            type_ = "string",
            json_path = r#".status.conditions[?(@.type=="Available")].status"#
        ),
        printcolumn(name = "Version", type_ = "string", json_path = ".status.kubernetesVersion"),
        printcolumn(
            name = "Latency",
            type_ = "integer",
            description = "Milliseconds to /readyz of its API server.",
            json_path = ".status.apiLatencyMilliseconds"
        ),
        printcolumn(name = "Cordoned", type_ = "boolean", json_path = ".spec.cordoned"),
        printcolumn(
            name = "Namespaces",
            type_ = "integer",
            priority = 1,
            json_path = ".status.namespaces"
        ),
        printcolumn(
            name = "Heartbeat",
            type_ = "date",
            priority = 1,
            json_path = ".status.lastHeartbeat"
        ),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
    )
)]
#[serde(rename_all = "camelCase")]
pub struct MemberClusterSpec {
    /// Whether the hub lets this cluster join: its half of the double opt-in. The member's half is the agent's join.
    #[serde(default)]
    pub accept: bool,
    /// API servers of the cluster as routers reach them, in order of preference: a later one is used while those before it
    /// fail. Addresses of one name are used alike. Needs at least one: finding them out from the agent is not served yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 16), extend("x-kubernetes-list-type" = "atomic")))]
    pub endpoints: Vec<Endpoint>,
    /// PEM certificates that the API servers' certificates are verified against, base64 as in every Kubernetes caBundle. May
    /// hold several CAs: both, while one is replaced. Needed: finding it out from the agent is not served yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::bytes", length(max = 262_144)))]
    pub ca_bundle: Option<ByteString>,
    /// How routers reach the API servers. Direct: by the endpoints. Tunnel: through the agent's connection; not served yet.
    #[serde(default)]
    pub access: Access,
    /// How callers appear in this cluster.
    #[serde(default)]
    pub identity: Identity,
    /// Overrides of the routers' circuit breaker for this cluster. Fields that are absent keep the routers' defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breaker: Option<Breaker>,
    /// Takes no new shards while set; what is owned here stays served.
    #[serde(default)]
    pub cordoned: bool,
    /// Namespaces of the hub whose ShardingConfigs may have this cluster, as a member or for their callers. Empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 256), extend("x-kubernetes-list-type" = "set")))]
    pub allowed_namespaces: Vec<String>,
}

impl MemberClusterSpec {
    /// Whether ShardingConfigs of this namespace of the hub may have the cluster.
    pub fn allows(&self, namespace: &str) -> bool {
        self.allowed_namespaces.is_empty() || self.allowed_namespaces.iter().any(|allowed| allowed == namespace)
    }
}

/// How routers reach a member's API servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Access {
    /// Through `spec.endpoints`.
    #[default]
    Direct,
    /// Through the agent's outbound connection. Not served yet.
    Tunnel,
}

/// How callers appear in a member cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// Whose credentials requests carry. Impersonate: the router's, impersonating the caller's ServiceAccount.
    /// ServiceAccount: a token of the mapped ServiceAccount itself; not served yet.
    #[serde(default)]
    pub mode: IdentityMode,
}

/// Whose credentials requests carry in a member cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum IdentityMode {
    /// The router's own ServiceAccount, impersonating the caller's ServiceAccount.
    #[default]
    Impersonate,
    /// A token of the mapped ServiceAccount itself. Not served yet.
    ServiceAccount,
}

/// Overrides of a circuit breaker. Every field is optional; absent means the router's default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-validations" = rules([
    ("!has(self.openFor) || !has(self.maxOpenFor) || duration(self.openFor) <= duration(self.maxOpenFor)",
     "maxOpenFor must not be shorter than openFor, which grows to it"),
    ("!has(self.window) || (duration(self.window) > duration('0s') && duration(self.window) <= duration('24h'))",
     "window must be longer than nothing and at most 24h"),
    ("!has(self.openFor) || (duration(self.openFor) > duration('0s') && duration(self.openFor) <= duration('24h'))",
     "openFor must be longer than nothing and at most 24h"),
    ("!has(self.maxOpenFor) || (duration(self.maxOpenFor) > duration('0s') && duration(self.maxOpenFor) <= duration('24h'))",
     "maxOpenFor must be longer than nothing and at most 24h"),
    ("!has(self.slowUnary) || (duration(self.slowUnary) > duration('0s') && duration(self.slowUnary) <= duration('24h'))",
     "slowUnary must be longer than nothing and at most 24h"),
    ("!has(self.slowList) || (duration(self.slowList) > duration('0s') && duration(self.slowList) <= duration('24h'))",
     "slowList must be longer than nothing and at most 24h"),
]))))]
#[serde(rename_all = "camelCase")]
pub struct Breaker {
    /// Opens after this many failures in a row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 100_000)))]
    pub consecutive_failures: Option<i32>,
    /// Opens when this share of the window's requests failed: above 0, at most 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0.001, max = 1.0)))]
    pub failure_ratio: Option<f64>,
    /// Requests in the window before failureRatio is looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1_000_000)))]
    pub min_requests: Option<i32>,
    /// How far back failureRatio looks, such as "30s".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Duration>,
    /// How long it stays open at first, such as "5s".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_for: Option<Duration>,
    /// What the open time grows to while probes fail, such as "2m".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_open_for: Option<Duration>,
    /// A read of one object that is answered sooner is not slow, whatever the cluster took minutes ago, such as "500ms".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_unary: Option<Duration>,
    /// The same of a list and of the start of a watch, such as "2s".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_list: Option<Duration>,
    /// Breakers that are held by hand, at most one of each class and one for all; written by portolanctl breaker.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 6), extend("x-kubernetes-list-type" = "atomic")))]
    pub by_hand: Vec<HeldBreaker>,
}

/// What the hub knows of a member cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct MemberClusterStatus {
    /// metadata.generation that the rest of the status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Accepted, Joined, Available, CredentialsReady, LabelsSynced, NothingLeftOut.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::conditions"))]
    pub conditions: Vec<Condition>,
    /// Version of its API server, such as v1.36.3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes_version: Option<String>,
    /// UID of its kube-system namespace, pinned when it joined: another cluster under the same name is refused.
    #[serde(default, rename = "clusterUID", skip_serializing_if = "Option::is_none")]
    pub cluster_uid: Option<String>,
    /// Milliseconds that its API server took to answer the agent's last probe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_latency_milliseconds: Option<i64>,
    /// When the agent was last heard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::time"))]
    pub last_heartbeat: Option<Time>,
    /// Number of its namespaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<i64>,
    /// Number of objects that have their labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labelled_objects: Option<i64>,
    /// Number of objects that ought to have them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_objects: Option<i64>,
    /// Version of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
    /// When the first of the routers' present tokens for this cluster expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::time"))]
    pub token_expiry: Option<Time>,
    /// ServiceAccounts (namespace/name) that the member lets the router act as.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-list-type" = "atomic")))]
    pub allowed_service_accounts: Vec<String>,
    /// Users that the member lets the router act as.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-list-type" = "atomic")))]
    pub allowed_users: Vec<String>,
    /// Breakers of this cluster that are not closed, by router: at most 500, those of single requests first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-list-type" = "atomic")))]
    pub breakers: Vec<BreakerStatus>,
}

/// Most breakers that a status names: with more it would not fit its object.
pub const BREAKERS_MAX: usize = 500;

/// State of one router's breaker for one class of traffic to this cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct BreakerStatus {
    /// Name of the router.
    pub router: String,
    /// Which requests it guards.
    pub traffic_class: TrafficClass,
    /// Whether it lets them through.
    pub state: BreakerState,
    /// What opened or closed it last.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// When the breaker came into this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::time"))]
    pub since: Option<Time>,
}

/// Class of requests that a breaker guards apart from the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum TrafficClass {
    /// Requests with one answer, but for lists.
    #[default]
    Unary,
    /// Reads of whole collections.
    List,
    /// Beginnings of watches.
    WatchStart,
    /// exec, attach, port-forward, proxy upgrades.
    Upgrade,
    /// Reviews of callers' tokens.
    TokenReview,
}

/// State of a breaker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum BreakerState {
    /// Lets everything through.
    #[default]
    Closed,
    /// Lets nothing through.
    Open,
    /// Lets one probe through.
    HalfOpen,
}
