//! What the hub reports about a FaultInjection. Nothing here is read back but `inForce`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::{Deserialize, Serialize};

use crate::circuit_breaker::SpecInForce;
#[cfg(feature = "schema")]
use crate::schema;

/// What the hub reports about a FaultInjection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FaultInjectionStatus {
    /// metadata.generation that the rest of the status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Accepted, Active, Distributed, CallersFound.
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
    /// Callers that it reaches and how often its faults were injected; bounded. In the words of a CircuitBreaker's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-list-type" = "atomic")))]
    pub target_status: Vec<InjectedStatus>,
}

/// How often faults hit one caller in one router.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct InjectedStatus {
    /// The caller's Pod.
    #[serde(default)]
    pub pod_name: String,
    /// The Pod's member cluster.
    #[serde(default)]
    pub cluster: String,
    /// The router that tells.
    #[serde(default)]
    pub router: String,
    /// The fault.
    #[serde(default)]
    pub name: String,
    /// How often within the last minute.
    #[serde(default)]
    pub injected_last_minute: i64,
    /// How often since the router knows it.
    #[serde(default)]
    pub injected_total: i64,
}
