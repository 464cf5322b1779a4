//! CircuitBreaker: what the selected callers may ask for, how often, and when they are refused for a time.
//!
//! Fields of the original keep their names and meaning, so an existing manifest applies unchanged: what it may hold is
//! settled in `validate`. Numbers are wide on purpose, see `sharding`.

mod status;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::{Deserialize, Serialize};

pub use status::{CircuitBreakerStatus, LimitingSnapshot, LimitingState, TargetStatus};

use crate::duration::Duration;

/// What the selected callers may ask for, how often, and when they are refused for a time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CircuitBreakerSpec {
    /// Which callers it holds: their Pods, in the namespace of this object's own name, in every caller cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Names of the member clusters whose callers it holds. Absent: of all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caller_clusters: Vec<String>,
    /// Limits of requests to API servers. All that a request meets count; one that refuses is enough.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rate_limitings: Vec<RateLimiting>,
    /// Which other servers may be asked. Needs the sidecar: not served yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub traffic_intercept_rules: Vec<TrafficInterceptRule>,
    /// Breakers of the selected callers alone, beside the members' own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub breakers: Vec<CallerBreaker>,
}

/// One limit: a token bucket, and what happens when it is empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RateLimiting {
    /// Its name, by which its state is kept over edits. Unique in the object.
    pub name: String,
    /// Which requests it counts: those that any of these match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resource_rules: Vec<ResourceRule>,
    /// Requests to other servers. Needs the sidecar: not served yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rest_rules: Vec<RestRule>,
    /// How many requests pass.
    #[serde(default)]
    pub bucket: Bucket,
    /// What becomes of a request that meets the rule.
    #[serde(default)]
    pub trigger_policy: TriggerPolicy,
    /// How a rule recovers that opened because its bucket was empty. Absent: Manual.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recover_policy: Option<RecoverPolicy>,
    /// Whose bucket it is.
    #[serde(default)]
    pub scope: LimitScope,
    /// Tokens that a request takes, by its verb. Absent: one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cost: BTreeMap<String, i64>,
    /// Kept for manifests of the original, and not used.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub properties: BTreeMap<String, String>,
}

/// Requests to API servers, by what they ask. Each list must hold the request's word, or `*`. An empty list is refused in a
/// CircuitBreaker, and matches all in a FaultInjection, as the originals have it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceRule {
    /// API groups; the empty one is the core group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub api_groups: Vec<String>,
    /// Plural names: `pods` without its subresources, `pods/exec`, `pods/*`, `*/scale`, `*` for all with all subresources.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<String>,
    /// The API server's verbs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub verbs: Vec<String>,
    /// Namespaces. `*` also has what has no namespace and what is asked over all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// Member clusters that the request goes to, or may go to. Absent: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<String>,
}

/// Requests to other servers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RestRule {
    /// A URL, or the beginning of one followed by `/*`.
    pub url: String,
    /// The HTTP method.
    pub method: String,
}

/// A token bucket: `limit` tokens come in each `interval`, and `burst` of them are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Bucket {
    /// Most tokens that it holds.
    #[serde(default)]
    pub burst: i64,
    /// In which `limit` tokens come, as Go writes it.
    #[serde(default)]
    pub interval: String,
    /// Tokens that come in each interval.
    #[serde(default)]
    pub limit: i64,
}

/// What becomes of a request that meets a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TriggerPolicy {
    /// An empty bucket refuses it and opens the rule: what comes then is refused until it recovers.
    #[default]
    Normal,
    /// An empty bucket refuses it, and nothing more.
    LimiterOnly,
    /// It is refused.
    ForceOpened,
    /// It passes, as far as this rule is concerned.
    ForceClosed,
}

/// How a rule recovers that has opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecoverPolicy {
    /// By whom.
    #[serde(rename = "type", default)]
    pub type_: RecoverType,
    /// After how long, with SleepingWindow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sleeping_window_size: Option<String>,
}

/// By whom a rule is closed that has opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RecoverType {
    /// By a person: `portolanctl breaker close`, or the annotation.
    #[default]
    Manual,
    /// By itself, after sleepingWindowSize.
    SleepingWindow,
}

/// Whose bucket a limit is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LimitScope {
    /// Each caller has one, in each router.
    #[default]
    PerRouter,
    /// All callers that the object selects have one together, over all routers, which the hub divides among them by demand.
    Shared,
}

/// Which other servers may be asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrafficInterceptRule {
    /// Its name.
    pub name: String,
    /// Whether it lets through or keeps out.
    pub intercept_type: InterceptType,
    /// How contents are read.
    pub content_type: ContentType,
    /// Hosts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contents: Vec<String>,
    /// HTTP methods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
}

/// Whether an intercept rule lets through or keeps out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum InterceptType {
    /// Only what it names passes.
    #[default]
    Whitelist,
    /// What it names does not pass.
    Blacklist,
}

/// How the contents of an intercept rule are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ContentType {
    /// As hosts.
    #[default]
    Normal,
    /// As regular expressions.
    Regexp,
}

/// A breaker of the selected callers alone, for each of some member clusters. What is absent is as the router has it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallerBreaker {
    /// Its name, by which its state is kept over edits. Unique among breakers and rateLimitings.
    pub name: String,
    /// Names of the member clusters, each of which has one of its own. Absent: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<String>,
    /// Failures in a row that open it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consecutive_failures: Option<i64>,
    /// Share of failures within the window that opens it, in (0, 1].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_ratio: Option<f64>,
    /// Requests within the window below which the ratio says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_requests: Option<i64>,
    /// How far back the ratio looks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Duration>,
    /// First time it is open; doubles from one opening to the next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_for: Option<Duration>,
    /// Longest time it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_open_for: Option<Duration>,
}
