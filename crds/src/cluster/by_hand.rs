//! What people say of a member's breakers.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use super::TrafficClass;
#[cfg(feature = "schema")]
use crate::schema::{self, rules};

/// Longest that a breaker is held by hand: it is no setting.
pub const LONGEST_BY_HAND: Duration = Duration::from_hours(30 * 24);

/// A breaker of every router that is held open or closed, or set back, by hand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-validations" = rules([
    ("self.state == 'Reset' || has(self.until)", "until must say when it ends: what is held by hand ends by itself"),
    ("has(self.since)", "since must say when it was said: what is held ends at most 720h later, and routers carry out a reset once"),
    ("!has(self.since) || !has(self.until) || (self.since < self.until && self.until - self.since <= duration('720h'))",
     "until must be later than since, by 720h at most: what is held by hand is no setting"),
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
    /// When it was said. Routers carry out a Reset if it is another than the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::time"))]
    pub since: Option<Time>,
    /// When it ends, by each router's clock: at most 720 hours later.
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
