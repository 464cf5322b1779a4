//! FaultInjection: faults that are ordered, to see whether an operator survives them.
//!
//! Fields of the original keep their names and meaning, so an existing manifest applies unchanged; see `validate`.

mod effective;
mod percent;
mod schedule;
mod status;
mod text;
mod until;

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::{Deserialize, Serialize};

pub use effective::EffectiveTime;
pub use percent::{Percent, PercentError};
pub use schedule::{Schedule, ScheduleError};
pub use status::{FaultInjectionStatus, InjectedStatus};
pub use text::{TextError, TextPattern};
pub use until::{TimeError, parse_until};

#[cfg(feature = "schema")]
use crate::circuit_breaker::RESOURCE_RULES_MAX;
use crate::circuit_breaker::ResourceRule;
#[cfg(feature = "schema")]
use crate::schema::{self, DNS_LABEL, DNS_SUBDOMAIN, HEADER_NAME, HEADER_VALUE, HTTP_METHOD_RULE, rules};

/// Most faults of requests, and most of watches, of one object.
pub const FAULTS_MAX: usize = 128;
/// Most `httpMatch`, most headers of each, and most `callers` of one match.
pub const MATCHES_MAX: usize = 64;
/// Longest regular expression, in characters.
pub const REGEX_MAX: usize = 1024;
/// Most regular expressions of one object, each of which may take a megabyte once it is compiled.
pub const REGEXES_TOTAL_MAX: usize = 64;
/// Longest text to compare with, in characters.
pub const EXACT_MAX: usize = 2048;

/// What the names of `httpFault` begin with that have none of their own.
pub const UNNAMED: &str = "httpFault-";

/// Faults that are ordered for requests of the selected callers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(kube::CustomResource, schemars::JsonSchema))]
#[cfg_attr(
    feature = "schema",
    allow(clippy::duplicated_attributes, reason = "print columns repeat their keys"),
    kube(
        group = "ctrlmesh.kusionstack.io",
        version = "v1alpha1",
        kind = "FaultInjection",
        namespaced,
        shortname = "fj",
        category = "portolan",
        status = "FaultInjectionStatus",
        derive = "PartialEq",
        doc = "Faults that are ordered for requests and watches of the selected callers, to see whether an operator survives them.",
        printcolumn(
            name = "Accepted",
            type_ = "string",
            json_path = r#".status.conditions[?(@.type=="Accepted")].status"#
        ),
        printcolumn(
            name = "Reason",
            type_ = "string",
            json_path = r#".status.conditions[?(@.type=="Accepted")].reason"#
        ),
        printcolumn(
            name = "Active",
            type_ = "string",
            json_path = r#".status.conditions[?(@.type=="Active")].status"#
        ),
        printcolumn(name = "Callers", type_ = "integer", json_path = ".status.callers"),
        printcolumn(name = "Until", type_ = "string", priority = 1, json_path = ".spec.until"),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
    )
)]
#[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-validations" = rules([
    ("!has(self.httpFault) || self.httpFault.all(f, !has(f.name) || f.name == '' || self.httpFault.exists_one(g, has(g.name) && g.name == f.name))",
     "two of httpFault have one name: give each a name of its own"),
    ("(has(self.httpFault) ? self.httpFault.map(f, has(f.match) && has(f.match.resources) ? f.match.resources.size() : 0).sum() : 0) + (has(self.watchFault) ? self.watchFault.map(f, has(f.match) && has(f.match.resources) ? f.match.resources.size() : 0).sum() : 0) <= 1024",
     "at most 1024 match.resources in one object: merge rules, or split the object"),
    ("!has(self.httpFault) || !has(self.watchFault) || self.watchFault.all(w, !self.httpFault.exists(f, has(f.name) && f.name == w.name))",
     "a watchFault has the name of one of httpFault: give each a name of its own"),
    ("!has(self.httpFault) || self.httpFault.all(f, has(f.name) && f.name != '') || !(self.httpFault.exists(f, has(f.name) && f.name.startsWith('httpFault-')) || (has(self.watchFault) && self.watchFault.exists(w, w.name.startsWith('httpFault-'))))",
     "names that begin with httpFault- are of faults that have none: give each of httpFault a name, or this one another"),
    ("(has(self.httpFault) ? self.httpFault.map(f, has(f.match) && has(f.match.httpMatch) ? f.match.httpMatch.map(h, (has(h.host) && has(h.host.regex) && h.host.regex.size() > 0 ? 1 : 0) + (has(h.path) && has(h.path.regex) && h.path.regex.size() > 0 ? 1 : 0)).sum() : 0).sum() : 0) + (has(self.watchFault) ? self.watchFault.map(f, has(f.match) && has(f.match.httpMatch) ? f.match.httpMatch.map(h, (has(h.host) && has(h.host.regex) && h.host.regex.size() > 0 ? 1 : 0) + (has(h.path) && has(h.path.regex) && h.path.regex.size() > 0 ? 1 : 0)).sum() : 0).sum() : 0) <= 64",
     "at most 64 regular expressions in one object: split it"),
]))))]
#[serde(rename_all = "camelCase")]
pub struct FaultInjectionSpec {
    /// Whose requests fail: callers' Pods, in the namespace of this object's own name, in every caller cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::label_selector"))]
    pub selector: Option<LabelSelector>,
    /// Names of the member clusters whose callers are meant. Absent: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(
        length(min = 1, max = 128),
        inner(length(min = 1, max = 63), regex(pattern = DNS_LABEL)),
        extend("x-kubernetes-list-type" = "set"),
    ))]
    pub caller_clusters: Vec<String>,
    /// Nothing of it happens.
    #[serde(default)]
    pub disabled: bool,
    /// Nothing of it happens from then on, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::time_with_zone"))]
    pub until: Option<String>,
    /// Faults of requests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = FAULTS_MAX), extend("x-kubernetes-list-type" = "atomic")))]
    pub http_fault: Vec<HttpFault>,
    /// Faults of watches that run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(
        length(max = FAULTS_MAX),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]),
    ))]
    pub watch_fault: Vec<WatchFault>,
}

/// What happens to requests that match.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-validations" = rules([
    ("has(self.delay) || has(self.abort)",
     "has neither delay nor abort: say what happens to the requests"),
]))))]
#[serde(rename_all = "camelCase")]
pub struct HttpFault {
    /// Its name. Unique in the object. Absent: `httpFault-<index>`. Printable ASCII without `/`, `,`, `=` and `@`, as it travels
    /// in headers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::rule_name_or_none"))]
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

impl HttpFault {
    /// The name it is known by, as the one at `index` of its object's.
    pub fn name_at(&self, index: usize) -> Cow<'_, str> {
        if self.name.is_empty() {
            return format!("{UNNAMED}{index}").into();
        }
        self.name.as_str().into()
    }
}

/// A request waits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-validations" = rules([
    ("has(self.fixedDelay) && duration(self.fixedDelay) <= duration('5m')",
     "fixedDelay is needed, such as 500ms, and at most 5m"),
]))))]
#[serde(rename_all = "camelCase")]
pub struct Delay {
    /// For so long, as Go writes it: "500ms", "1.5s". At most 5m.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::go_duration"))]
    pub fixed_delay: String,
    /// How many of a hundred, from 0 (none) to 100. Absent: 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::percent"))]
    pub percent: Option<String>,
}

/// A request is answered with an error.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-validations" = rules([
    ("has(self.httpStatus) && (self.httpStatus == 200 || self.httpStatus >= 400)",
     "httpStatus must be from 400 to 599, such as 503; 200 means no abort"),
]))))]
#[serde(rename_all = "camelCase")]
pub struct Abort {
    /// The HTTP status, 400 to 599. 200 means none, as the original has it.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[cfg_attr(feature = "schema", schemars(range(min = 200, max = 599)))]
    pub http_status: i64,
    /// How many of a hundred, from 0 (none) to 100. Absent: 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::percent"))]
    pub percent: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde asks for")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// Which requests. Those that are given must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Match {
    /// By what they ask of an API server: any of these. In each an empty list, or `*` in it, is everything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = RESOURCE_RULES_MAX), extend("x-kubernetes-list-type" = "atomic")))]
    pub resources: Vec<ResourceRule>,
    /// By their head: any of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = MATCHES_MAX), extend("x-kubernetes-list-type" = "atomic")))]
    pub http_match: Vec<HttpMatch>,
    /// By who asks, beside the selector: any of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = MATCHES_MAX), extend("x-kubernetes-list-type" = "atomic")))]
    pub callers: Vec<CallerMatch>,
}

/// A request's head. Those that are given must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    #[cfg_attr(feature = "schema", schemars(length(max = 32), regex(pattern = HTTP_METHOD_RULE)))]
    pub method: Option<String>,
    /// Headers, all of which it must have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = MATCHES_MAX), extend("x-kubernetes-list-type" = "atomic")))]
    pub headers: Vec<HeaderMatch>,
}

/// A text: exact, or by a regular expression that must match all of it. Exact wins where both are given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-validations" = rules([
    ("(has(self.exact) && self.exact != '') || (has(self.regex) && self.regex != '')",
     "needs exact or regex: leave it out for any"),
]))))]
#[serde(rename_all = "camelCase")]
pub struct TextMatch {
    /// All of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = EXACT_MAX)))]
    pub exact: Option<String>,
    /// A regular expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = REGEX_MAX)))]
    pub regex: Option<String>,
}

/// A header and its value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HeaderMatch {
    /// Its name, whatever its case.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 256), regex(pattern = HEADER_NAME)))]
    pub name: String,
    /// Its value, exactly. Absent or empty: any.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 4096), regex(pattern = HEADER_VALUE)))]
    pub value: String,
}

/// One caller, or some. Those that are given must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-validations" = rules([
    ("has(self.cluster) || has(self.pod) || has(self.serviceAccount)",
     "needs cluster, pod or serviceAccount: leave callers out for all that selector matches"),
]))))]
#[serde(rename_all = "camelCase")]
pub struct CallerMatch {
    /// Its home cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 63), regex(pattern = DNS_LABEL)))]
    pub cluster: Option<String>,
    /// Its Pod's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN)))]
    pub pod: Option<String>,
    /// Its ServiceAccount's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN)))]
    pub service_account: Option<String>,
}

/// What happens to watches that match, once they run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-validations" = rules([
    ("self.action != 'Delay' || (has(self.duration) && duration(self.duration) <= duration('5m'))",
     "duration is needed with Delay, such as 500ms, and at most 5m"),
    ("!has(self.duration) || duration(self.duration) > duration('0s')", "duration must be longer than nothing, such as 1s"),
    ("!has(self.duration) || self.action in ['Delay', 'Stall']",
     "duration is for Delay and Stall alone: remove it"),
    ("!has(self.part) || self.part != 'Leg' || self.action != 'RepeatBookmark'",
     "RepeatBookmark has no legs, as bookmarks are the merged watch's: say part: Whole"),
    ("!has(self.match) || !has(self.match.resources) || self.match.resources.all(r, !has(r.verbs) || r.verbs.size() == 0 || 'watch' in r.verbs || '*' in r.verbs)",
     "verbs without watch have no watches: name watch or leave verbs out"),
]))))]
#[serde(rename_all = "camelCase")]
pub struct WatchFault {
    /// Its name. Unique in the object.
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::rule_name"))]
    pub name: String,
    /// What happens.
    pub action: WatchAction,
    /// When in the watch's life: after all of these. Absent: at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<After>,
    /// For how long a Stall lasts, and by how much Delay puts off each event. As Go writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::go_duration"))]
    pub duration: Option<String>,
    /// How many of a hundred watches, from 0 (none) to 100. Absent: 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::percent"))]
    pub percent: Option<String>,
    /// What of a merged watch. Absent: Whole. Drop, Stall, Delay and Expire alone know legs: those of the clusters that match.
    #[serde(default)]
    pub part: WatchPart,
    /// Which watches. Absent: all of the callers'.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub r#match: Option<Match>,
    /// When. Absent: always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_time: Option<EffectiveTime>,
}

/// What happens to a watch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct After {
    /// Events that the client had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 1_000_000_000)))]
    pub events: Option<i64>,
    /// Bytes that the client had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 1_000_000_000_000_i64)))]
    pub bytes: Option<i64>,
    /// Time since it began, as Go writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::go_duration"))]
    pub time: Option<String>,
}

/// What of a merged watch a fault hits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum WatchPart {
    /// What the client sees.
    #[default]
    Whole,
    /// One member's part of it, which the router mends as it would if the member had done it.
    Leg,
}
