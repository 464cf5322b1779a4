//! What people say of a member's breakers.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use super::TrafficClass;
#[cfg(feature = "schema")]
use crate::schema::{self, rules};

/// A breaker of every router that is held open or closed, or set back, by hand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-validations" = rules([
    ("self.state == 'Reset' || has(self.until)", "until must say when it ends: what is held by hand ends by itself"),
    ("self.state != 'Reset' || has(self.since)", "since must say when it was said: routers carry out a reset once"),
    ("!has(self.since) || !has(self.until) || self.since < self.until", "until must be later than since"),
]))))]
#[serde(rename_all = "camelCase")]
pub struct HeldBreaker {
    /// Which requests. Absent: all that no other entry is for, but for reviews of callers' tokens, without which nobody is
    /// known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic_class: Option<TrafficClass>,
    /// What it is to be.
    pub state: HandState,
    /// Why, for all who meet it.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 256)))]
    pub reason: String,
    /// Who says so, by the name that the hub's API server knows; its audit log knows for certain.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 256)))]
    pub by: String,
    /// When it was said. Of a Reset needed: routers carry out another than the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::time"))]
    pub since: Option<Time>,
    /// When it ends, by each router's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::time"))]
    pub until: Option<Time>,
}

/// What a breaker is by hand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum HandState {
    /// Lets nothing through but renewals of leader elections.
    #[default]
    Open,
    /// Lets everything through, whatever the member does.
    Closed,
    /// Closed once, with nothing remembered, and its own again.
    Reset,
}
