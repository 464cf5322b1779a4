//! FaultInjection: faults that are ordered, to see whether an operator survives them.
//!
//! Fields of the original keep their names and meaning, so an existing manifest applies unchanged; see `validate`.

mod effective;
mod status;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::{Deserialize, Serialize};

pub use effective::EffectiveTime;
pub use status::{FaultInjectionStatus, InjectedStatus};

use crate::circuit_breaker::ResourceRule;

/// Faults that are ordered for requests of the selected callers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FaultInjectionSpec {
    /// Whose requests fail: callers' Pods, in the namespace of this object's own name, in every caller cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Names of the member clusters whose callers are meant. Absent: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caller_clusters: Vec<String>,
    /// Nothing of it happens.
    #[serde(default)]
    pub disabled: bool,
    /// Nothing of it happens from then on, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// Faults of requests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub http_fault: Vec<HttpFault>,
    /// Faults of watches that run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub watch_fault: Vec<WatchFault>,
}

/// What happens to requests that match.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpFault {
    /// Its name. Unique in the object. Absent: `httpFault-<index>`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// They wait. Delays of all faults that match add up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<Delay>,
    /// They are answered with an error and reach no member. Of several the first in order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub abort: Option<Abort>,
    /// Which requests. Absent: all of the callers' but their election's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub r#match: Option<Match>,
    /// When. Absent: always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_time: Option<EffectiveTime>,
}

/// A request waits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Delay {
    /// For so long, as Go writes it.
    #[serde(default)]
    pub fixed_delay: String,
    /// How many of a hundred, from 0 (none) to 100. Absent: 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<String>,
}

/// A request is answered with an error.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Abort {
    /// The HTTP status, 400 to 599. 200 means none, as the original has it.
    #[serde(default)]
    pub http_status: i64,
    /// How many of a hundred, from 0 (none) to 100. Absent: 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<String>,
}

/// Which requests. Those that are given must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Match {
    /// By what they ask of an API server: any of these. In each an empty list, or `*` in it, is everything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<ResourceRule>,
    /// By their head: any of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub http_match: Vec<HttpMatch>,
    /// By who asks, beside the selector: any of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub callers: Vec<CallerMatch>,
}

/// A request's head. Those that are given must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpMatch {
    /// The host, without its port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<TextMatch>,
    /// The path as the client sent it, without its query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<TextMatch>,
    /// The method; `*` or absent: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Headers, all of which it must have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<HeaderMatch>,
}

/// A text: exact, or by a regular expression that must match all of it. Exact wins where both are given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TextMatch {
    /// All of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exact: Option<String>,
    /// A regular expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regex: Option<String>,
}

/// A header and its value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeaderMatch {
    /// Its name, whatever its case.
    pub name: String,
    /// Its value, exactly.
    pub value: String,
}

/// One caller, or some. Those that are given must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallerMatch {
    /// Its home cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// Its Pod's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Its ServiceAccount's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account: Option<String>,
}

/// What happens to watches that match, once they run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WatchFault {
    /// Its name. Unique in the object.
    pub name: String,
    /// What happens.
    pub action: WatchAction,
    /// When in the watch's life: after all of these. Absent: at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<After>,
    /// For how long a Stall lasts, and by how much Delay puts off each event. As Go writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<String>,
    /// How many of a hundred watches, from 0 (none) to 100. Absent: 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<String>,
    /// What of a merged watch. Drop, Stall, Delay and Expire alone know legs: those of the clusters that match.
    #[serde(default)]
    pub on: WatchPart,
    /// Which watches. Absent: all of the callers'.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub r#match: Option<Match>,
    /// When. Absent: always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_time: Option<EffectiveTime>,
}

/// What happens to a watch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WatchAction {
    /// It is cut, as a connection that breaks.
    #[default]
    Drop,
    /// Nothing comes for `duration`, without one to its end.
    Stall,
    /// 410 Expired within the stream, and its end.
    Expire,
    /// Each event comes later by `duration`.
    Delay,
    /// The last bookmark comes again.
    RepeatBookmark,
}

/// A point in a watch's life.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct After {
    /// Events that the client had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<i64>,
    /// Bytes that the client had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<i64>,
    /// Time since it began, as Go writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
}

/// What of a merged watch a fault hits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WatchPart {
    /// What the client sees.
    #[default]
    Whole,
    /// One member's part of it, which the router mends as it would if the member had done it.
    Leg,
}
