//! What the hub reports about a CircuitBreaker. Nothing here is read back but `inForce`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, Time};
use serde::{Deserialize, Deserializer, Serialize};

#[cfg(feature = "schema")]
use crate::schema;

/// What the hub reports about a CircuitBreaker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CircuitBreakerStatus {
    /// metadata.generation that the rest of the status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Accepted, Active, Distributed, CallersFound; with limits of scope Shared also Divided.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::conditions"))]
    pub conditions: Vec<Condition>,
    /// Number of callers that it reaches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callers: Option<i64>,
    /// The spec that is in force, as far as it says whom it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_force: Option<SpecInForce>,
    /// The first of them, as `<cluster>/<namespace>/<Pod>`, in the order of these names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-list-type" = "atomic")))]
    pub caller_names: Vec<String>,
    /// Number of those that are not named. Absent: all are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callers_not_named: Option<i64>,
    /// Number of its rules that refuse everything now, each counted for every caller and router.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened: Option<i64>,
    /// Callers that it reaches and how their rules stand, the worst first; bounded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-list-type" = "atomic")))]
    pub target_status: Vec<TargetStatus>,
}

/// The spec that is in force, as far as it says whom it holds: a hub that starts while the spec is a bad one goes by it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SpecInForce {
    /// metadata.generation of that spec.
    #[serde(default)]
    pub generation: i64,
    /// Its selector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::label_selector"))]
    pub selector: Option<LabelSelector>,
    /// Its caller clusters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-list-type" = "atomic")))]
    pub caller_clusters: Vec<String>,
}

/// How the rules of one caller stand in one router.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TargetStatus {
    /// The caller's Pod. Empty for a Shared rule, which is all callers'.
    #[serde(default)]
    pub pod_name: String,
    /// The Pod's member cluster.
    #[serde(default)]
    pub cluster: String,
    /// The router that tells.
    #[serde(default)]
    pub router: String,
    /// Its rules, the worst first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-list-type" = "atomic")))]
    pub limiting_snapshots: Vec<LimitingSnapshot>,
}

/// How one rule stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct LimitingSnapshot {
    /// The rule: of rateLimitings, or `<breaker>@<cluster>`.
    #[serde(default)]
    pub name: String,
    /// Whether it refuses all.
    #[serde(default, deserialize_with = "known")]
    pub state: LimitingState,
    /// Why it is so: one of the words of PolicyReason, or what a newer router says.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::time"))]
    pub last_transition_time: Option<Time>,
    /// Requests that it refused within the last minute.
    #[serde(default)]
    pub refused_last_minute: i64,
    /// Requests that it refused since the router knows it.
    #[serde(default)]
    pub refused_total: i64,
    /// Whole tokens that are left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<i64>,
}

/// Whether a rule refuses all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum LimitingState {
    /// It refuses all, but for a request that tries.
    Opened,
    /// It does not.
    #[default]
    Closed,
}

/// A status that the original wrote, or a newer hub, must not keep anybody from reading the object.
fn known<'de, D: Deserializer<'de>>(state: D) -> Result<LimitingState, D::Error> {
    let state = Option::<String>::deserialize(state)?;
    Ok(match state.as_deref() {
        Some("Opened") => LimitingState::Opened,
        _ => LimitingState::Closed,
    })
}
