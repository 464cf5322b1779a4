//! CircuitBreaker: what the selected callers may ask for, how often, and when they are refused for a time.
//!
//! Fields of the original keep their names and meaning, so an existing manifest applies unchanged: what it may hold is
//! settled in `validate`. Numbers are wide on purpose, see `sharding`.

mod reason;
mod status;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::{Deserialize, Serialize};

pub use reason::{PolicyReason, UnknownReason};
pub use status::{CircuitBreakerStatus, LimitingSnapshot, LimitingState, SpecInForce, TargetStatus};

use crate::duration::Duration;
#[cfg(feature = "schema")]
use crate::names::TOKENS_MAX;
#[cfg(feature = "schema")]
use crate::schema::{self, API_GROUP_RULE, DNS_LABEL, NAMESPACE_RULE, RESOURCE_RULE, rules};

/// Most limits of one object: more than an operator has things to do, and few enough that the API server, which must know
/// before what our rules cost at most, takes one that compares the names of all.
pub const RATE_LIMITINGS_MAX: usize = 256;
/// Most resource rules of one limit, or of one fault.
pub const RESOURCE_RULES_MAX: usize = 64;
/// Most resource rules of one object: about as many as routers hold of one caller without being slower by it.
pub const RESOURCE_RULES_TOTAL_MAX: usize = 1024;
/// Most breakers of one object; each is one for every member cluster that it names.
pub const BREAKERS_MAX: usize = 64;
/// Most words in each list of a resource rule.
pub const RULE_WORDS_MAX: usize = 256;
/// Most properties of a limit, and the longest value of one in characters.
pub const PROPERTIES_MAX: usize = 256;
/// See [`PROPERTIES_MAX`].
pub const PROPERTY_MAX: usize = 4096;

/// What the selected callers may ask for, how often, and when they are refused for a time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(kube::CustomResource, schemars::JsonSchema))]
#[cfg_attr(
    feature = "schema",
    allow(clippy::duplicated_attributes, reason = "print columns repeat their keys"),
    kube(
        group = "ctrlmesh.kusionstack.io",
        version = "v1alpha1",
        kind = "CircuitBreaker",
        namespaced,
        shortname = "cbk",
        category = "portolan",
        status = "CircuitBreakerStatus",
        derive = "PartialEq",
        doc = "What the selected callers may ask API servers for, how often, and when they are refused for a time.",
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
        printcolumn(name = "Callers", type_ = "integer", json_path = ".status.callers"),
        printcolumn(
            name = "Opened",
            type_ = "integer",
            description = "Rules that refuse everything now, each counted for every caller and router.",
            json_path = ".status.opened"
        ),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
    )
)]
#[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-validations" = rules([
    ("!has(self.rateLimitings) || self.rateLimitings.map(r, has(r.resourceRules) ? r.resourceRules.size() : 0).sum() <= 1024",
     "at most 1024 resourceRules in one object: merge rules, or split the object"),
    ("!has(self.rateLimitings) || !has(self.breakers) || self.breakers.all(b, !self.rateLimitings.exists(r, r.name == b.name))",
     "a breaker has the name of one of rateLimitings: give each a name of its own, by which its state is kept"),
]))))]
#[serde(rename_all = "camelCase")]
pub struct CircuitBreakerSpec {
    /// Which callers it holds: their Pods, in the namespace of this object's own name, in every caller cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::label_selector"))]
    pub selector: Option<LabelSelector>,
    /// Names of the member clusters whose callers it holds. Absent: of all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(
        length(min = 1, max = 128),
        inner(length(min = 1, max = 63), regex(pattern = DNS_LABEL)),
        extend("x-kubernetes-list-type" = "set"),
    ))]
    pub caller_clusters: Vec<String>,
    /// Limits of requests to API servers. All that a request meets count; one that refuses is enough.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(
        length(max = RATE_LIMITINGS_MAX),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]),
    ))]
    pub rate_limitings: Vec<RateLimiting>,
    /// Which other servers may be asked. Needs the sidecar: not served yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 256), extend("x-kubernetes-list-type" = "atomic")))]
    pub traffic_intercept_rules: Vec<TrafficInterceptRule>,
    /// Breakers of the selected callers alone, beside the members' own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(
        length(max = BREAKERS_MAX),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]),
    ))]
    pub breakers: Vec<CallerBreaker>,
}

impl CircuitBreakerSpec {
    /// The spec without its rules about traffic to other servers than API servers, which no router serves yet: a limit that has
    /// no other rules goes whole.
    #[must_use]
    pub fn served(&self) -> Self {
        let mut served = self.clone();
        served.traffic_intercept_rules.clear();
        served.rate_limitings.retain_mut(|limit| {
            limit.rest_rules.clear();
            !limit.resource_rules.is_empty()
        });
        served
    }

    /// Whether there is any rule in it.
    pub(crate) fn orders_something(&self) -> bool {
        !(self.rate_limitings.is_empty() && self.breakers.is_empty() && self.traffic_intercept_rules.is_empty())
    }
}

/// One limit: a token bucket, and what happens when it is empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-validations" = rules([
    ("(has(self.resourceRules) && self.resourceRules.size() > 0) || (has(self.restRules) && self.restRules.size() > 0)",
     "needs at least one of resourceRules: say which requests it counts"),
    ("!has(self.resourceRules) || self.resourceRules.all(r, has(r.apiGroups) && r.apiGroups.size() > 0 && has(r.resources) && r.resources.size() > 0 && has(r.verbs) && r.verbs.size() > 0 && has(r.namespaces) && r.namespaces.size() > 0)",
     "each of resourceRules needs apiGroups, resources, verbs and namespaces: write \"*\" for all"),
    ("(has(self.triggerPolicy) && self.triggerPolicy in ['ForceOpened', 'ForceClosed']) || has(self.bucket)",
     "bucket {burst, interval, limit} is needed, unless triggerPolicy is ForceOpened or ForceClosed"),
    ("(has(self.triggerPolicy) && self.triggerPolicy in ['ForceOpened', 'ForceClosed']) || !has(self.bucket) || self.bucket.burst > 0",
     "bucket.burst 0 would refuse every request: say triggerPolicy: ForceOpened if that is meant"),
    ("(has(self.triggerPolicy) && self.triggerPolicy in ['ForceOpened', 'ForceClosed']) || !has(self.bucket) || (self.bucket.interval != '' && duration(self.bucket.interval) > duration('0s'))",
     "bucket.interval must be longer than nothing, such as 1s"),
    ("!has(self.cost) || !has(self.bucket) || (has(self.triggerPolicy) && self.triggerPolicy in ['ForceOpened', 'ForceClosed']) || ((!has(self.cost.get) || self.cost.get <= self.bucket.burst) && (!has(self.cost.list) || self.cost.list <= self.bucket.burst) && (!has(self.cost.watch) || self.cost.watch <= self.bucket.burst) && (!has(self.cost.create) || self.cost.create <= self.bucket.burst) && (!has(self.cost.update) || self.cost.update <= self.bucket.burst) && (!has(self.cost.patch) || self.cost.patch <= self.bucket.burst) && (!has(self.cost.delete) || self.cost.delete <= self.bucket.burst) && (!has(self.cost.deletecollection) || self.cost.deletecollection <= self.bucket.burst) && (!has(self.cost.proxy) || self.cost.proxy <= self.bucket.burst))",
     "cost above bucket.burst could never be paid: raise burst or lower the cost"),
]))))]
#[serde(rename_all = "camelCase")]
pub struct RateLimiting {
    /// Its name, by which its state is kept over edits. Unique in the object. Printable ASCII without `/`, `,`, `=` and `@`, as
    /// it travels in headers and annotations.
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::rule_name"))]
    pub name: String,
    /// Which requests it counts: those that any of these match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = RESOURCE_RULES_MAX), extend("x-kubernetes-list-type" = "atomic")))]
    pub resource_rules: Vec<ResourceRule>,
    /// Requests to other servers. Needs the sidecar: not served yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 256), extend("x-kubernetes-list-type" = "atomic")))]
    pub rest_rules: Vec<RestRule>,
    /// How many requests pass. Not needed with ForceOpened and ForceClosed.
    #[serde(default, skip_serializing_if = "Bucket::is_absent")]
    pub bucket: Bucket,
    /// What becomes of a request that meets the rule. Absent: Normal.
    #[serde(default)]
    pub trigger_policy: TriggerPolicy,
    /// How a rule recovers that opened because its bucket was empty. Absent: Manual.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recover_policy: Option<RecoverPolicy>,
    /// Whose bucket it is. Absent: PerRouter.
    #[serde(default)]
    pub scope: LimitScope,
    /// Tokens that a request takes, by its verb; at most `burst`. Verbs that are absent: one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::cost"))]
    pub cost: BTreeMap<String, i64>,
    /// Kept for manifests of the original, and not used.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "schema", schemars(extend(
        "additionalProperties" = {"type": "string", "maxLength": PROPERTY_MAX},
        "maxProperties" = PROPERTIES_MAX,
    )))]
    pub properties: BTreeMap<String, String>,
}

/// Requests to API servers, by what they ask. Each list must hold the request's word, or `*`. An empty list is refused in a
/// CircuitBreaker, and matches all in a FaultInjection, as the originals have it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ResourceRule {
    /// API groups; the empty one is the core group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(
        length(max = RULE_WORDS_MAX),
        inner(length(max = 253), regex(pattern = API_GROUP_RULE)),
        extend("x-kubernetes-list-type" = "atomic"),
    ))]
    pub api_groups: Vec<String>,
    /// Plural names: `pods` without its subresources, `pods/exec`, `pods/*` for all subresources of pods, `*/scale`, `*` for
    /// everything with all subresources.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(
        length(max = RULE_WORDS_MAX),
        inner(length(min = 1, max = 253), regex(pattern = RESOURCE_RULE)),
        extend("x-kubernetes-list-type" = "atomic"),
    ))]
    pub resources: Vec<String>,
    /// The API server's verbs, or `*`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(
        length(max = RULE_WORDS_MAX),
        extend("items" = schema::verbs(), "x-kubernetes-list-type" = "atomic"),
    ))]
    pub verbs: Vec<String>,
    /// Namespaces. `*` also has what has no namespace and what is asked over all of them, which "" has alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(
        length(max = RULE_WORDS_MAX),
        inner(length(max = 63), regex(pattern = NAMESPACE_RULE)),
        extend("x-kubernetes-list-type" = "atomic"),
    ))]
    pub namespaces: Vec<String>,
    /// Member clusters that the request goes to, or may go to. Absent: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(
        length(max = RULE_WORDS_MAX),
        inner(length(min = 1, max = 63), regex(pattern = NAMESPACE_RULE)),
        extend("x-kubernetes-list-type" = "atomic"),
    ))]
    pub clusters: Vec<String>,
}

/// Requests to other servers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RestRule {
    /// A URL, or the beginning of one followed by `/*`.
    #[cfg_attr(feature = "schema", schemars(length(max = 4096)))]
    pub url: String,
    /// The HTTP method.
    #[cfg_attr(feature = "schema", schemars(length(max = 32)))]
    pub method: String,
}

/// A token bucket: `limit` tokens come in each `interval`, and `burst` of them are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Bucket {
    /// Most tokens that it holds, and what it begins with.
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = TOKENS_MAX)))]
    pub burst: i64,
    /// In which `limit` tokens come, as Go writes it: "1s", "1.5s", "100ms". At most 720h.
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::go_duration_or_none"))]
    pub interval: String,
    /// Tokens that come in each interval. 0: none, what is spent never comes back.
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = TOKENS_MAX)))]
    pub limit: i64,
}

impl Bucket {
    /// Whether there is none.
    fn is_absent(&self) -> bool {
        *self == Self::default()
    }
}

/// What becomes of a request that meets a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-validations" = rules([
    ("!has(self.type) || self.type != 'SleepingWindow' || (has(self.sleepingWindowSize) && self.sleepingWindowSize != '' && duration(self.sleepingWindowSize) > duration('0s'))",
     "sleepingWindowSize is needed with SleepingWindow, such as 30s: say after how long the rule closes"),
]))))]
#[serde(rename_all = "camelCase")]
pub struct RecoverPolicy {
    /// By whom. Absent: Manual.
    #[serde(rename = "type", default)]
    pub type_: RecoverType,
    /// After how long, with SleepingWindow, as Go writes it. At most 720h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::go_duration_or_none"))]
    pub sleeping_window_size: Option<String>,
}

/// By whom a rule is closed that has opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum RecoverType {
    /// By a person: `portolanctl breaker close`, or the annotation.
    #[default]
    Manual,
    /// By itself, after sleepingWindowSize.
    SleepingWindow,
}

/// Whose bucket a limit is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum LimitScope {
    /// Each caller has one, in each router.
    #[default]
    PerRouter,
    /// All callers that the object selects have one together, over all routers, which the hub divides among them by demand.
    Shared,
}

/// Which other servers may be asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TrafficInterceptRule {
    /// Its name.
    #[cfg_attr(feature = "schema", schemars(length(max = 253)))]
    pub name: String,
    /// Whether it lets through or keeps out.
    pub intercept_type: InterceptType,
    /// How contents are read.
    pub content_type: ContentType,
    /// Hosts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 1024), inner(length(max = 4096)), extend("x-kubernetes-list-type" = "atomic")))]
    pub contents: Vec<String>,
    /// HTTP methods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 64), inner(length(max = 32)), extend("x-kubernetes-list-type" = "atomic")))]
    pub methods: Vec<String>,
}

/// Whether an intercept rule lets through or keeps out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum InterceptType {
    /// Only what it names passes.
    #[default]
    Whitelist,
    /// What it names does not pass.
    Blacklist,
}

/// How the contents of an intercept rule are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ContentType {
    /// As hosts.
    #[default]
    Normal,
    /// As regular expressions.
    Regexp,
}

/// A breaker of the selected callers alone, for each of some member clusters. What is absent is as the router has it.
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
]))))]
#[serde(rename_all = "camelCase")]
pub struct CallerBreaker {
    /// Its name, by which its state is kept over edits. Unique among breakers and rateLimitings.
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::rule_name"))]
    pub name: String,
    /// Names of the member clusters, each of which has one of its own. Absent: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(
        length(min = 1, max = 128),
        inner(length(min = 1, max = 63), regex(pattern = DNS_LABEL)),
        extend("x-kubernetes-list-type" = "set"),
    ))]
    pub clusters: Vec<String>,
    /// Failures in a row that open it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 100_000)))]
    pub consecutive_failures: Option<i64>,
    /// Share of failures within the window that opens it, in (0, 1].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0.001, max = 1.0)))]
    pub failure_ratio: Option<f64>,
    /// Requests within the window below which the ratio says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1_000_000)))]
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
