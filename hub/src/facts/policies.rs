//! Traffic policies as facts: CircuitBreakers and FaultInjections, and the switch that stops all faults.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::ApiResource;
use portolan_crds::circuit_breaker::SpecInForce;
use portolan_crds::names::{is_dns_label, is_dns_subdomain};
use portolan_crds::{
    CircuitBreaker, CircuitBreakerSpec, CircuitBreakerStatus, FaultInjection, FaultInjectionSpec, FaultInjectionStatus,
    Problem, Selector,
};
use portolan_wire::v1;

use super::Facts;

/// Which kind a policy is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum PolicyKind {
    CircuitBreaker,
    FaultInjection,
}

/// Which policy: kind, namespace and name of its object. Written `<kind>/<namespace>/<name>`, as on the wire.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PolicyName {
    pub(crate) kind: PolicyKind,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// A CircuitBreaker or FaultInjection object.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PolicyObject {
    pub(crate) uid: String,
    pub(crate) generation: i64,
    pub(crate) created: Timestamp,
    /// A hub before this process has known it, so that routers may have a good spec of it.
    pub(crate) was_there: bool,
    /// It has the label that withdraws it.
    pub(crate) labelled_off: bool,
    /// `spec.disabled`, read from the raw object, so that it counts even if the rest of the spec is bad.
    pub(crate) disabled: bool,
    /// The earlier of `spec.until` in the raw object and in the spec in force.
    pub(crate) until: Option<Timestamp>,
    /// Whom it holds: by the spec in force, or while none is known by what the status says of it, or else by the raw object.
    /// `None` if that cannot be read either.
    pub(crate) selection: Option<Selection>,
    /// What is wrong with the present spec.
    pub(crate) problems: Vec<Problem>,
    /// The last spec without problems that this process has seen of the object.
    pub(crate) in_force: Option<Arc<PolicyInForce>>,
    /// Rules that people closed.
    pub(crate) closed: Vec<v1::ClosedByHand>,
    /// What of the annotation that closes rules cannot be read.
    pub(crate) bad_close: Vec<String>,
    pub(crate) status: PolicyStatus,
}

/// Whom a policy holds, of the Pods in its namespace.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Selection {
    /// `None` is absent, and selects nobody.
    pub(crate) selector: Option<Selector>,
    /// Empty: all.
    pub(crate) caller_clusters: Vec<String>,
}

/// A spec in force.
#[derive(Debug, PartialEq)]
pub(crate) struct PolicyInForce {
    pub(crate) generation: i64,
    pub(crate) spec: PolicySpec,
    /// The spec as routers are sent it.
    pub(crate) json: String,
    pub(crate) rules: Arc<RuleNames>,
}

/// What the rules of a spec are called, in what routers report.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RuleNames {
    /// Of limits and of faults.
    rules: BTreeSet<String>,
    /// Of breakers, each of which is one for every cluster that it names; if it names none, for all.
    breakers: BTreeMap<String, BTreeSet<String>>,
}

#[derive(Debug, PartialEq)]
pub(crate) enum PolicySpec {
    Breaker(CircuitBreakerSpec),
    Fault(FaultInjectionSpec),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PolicyStatus {
    Breaker(CircuitBreakerStatus),
    Fault(FaultInjectionStatus),
}

/// All faults are stopped.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FaultsStopped {
    pub(crate) by: String,
    pub(crate) reason: String,
    pub(crate) since: String,
}

impl PolicyStatus {
    /// Generation that it is about; `None`: no hub has written it.
    pub(crate) fn observed_generation(&self) -> Option<i64> {
        match self {
            Self::Breaker(status) => status.observed_generation,
            Self::Fault(status) => status.observed_generation,
        }
    }

    /// The spec that was in force when it was written.
    pub(crate) fn in_force(&self) -> Option<&SpecInForce> {
        match self {
            Self::Breaker(status) => status.in_force.as_ref(),
            Self::Fault(status) => status.in_force.as_ref(),
        }
    }
}

impl PolicySpec {
    /// Whom it holds, in its own words.
    pub(crate) fn holds(&self) -> (Option<LabelSelector>, Vec<String>) {
        match self {
            Self::Breaker(spec) => (spec.selector.clone(), spec.caller_clusters.clone()),
            Self::Fault(spec) => (spec.selector.clone(), spec.caller_clusters.clone()),
        }
    }
}

impl PolicyKind {
    pub(crate) const ALL: [Self; 2] = [Self::CircuitBreaker, Self::FaultInjection];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::CircuitBreaker => "CircuitBreaker",
            Self::FaultInjection => "FaultInjection",
        }
    }

    /// The kind as the API server serves it.
    pub(crate) fn resource(self) -> ApiResource {
        match self {
            Self::CircuitBreaker => ApiResource::erase::<CircuitBreaker>(&()),
            Self::FaultInjection => ApiResource::erase::<FaultInjection>(&()),
        }
    }
}

impl PolicyName {
    /// `None` if no object has such a name.
    pub(crate) fn new(kind: PolicyKind, namespace: &str, name: &str) -> Option<Self> {
        (is_dns_label(namespace) && is_dns_subdomain(name)).then(|| Self {
            kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.kind.name(), self.namespace, self.name)
    }
}

impl FromStr for PolicyName {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (kind, rest) = text.split_once('/').ok_or(())?;
        let (namespace, name) = rest.split_once('/').ok_or(())?;
        let kind = PolicyKind::ALL.into_iter().find(|one| one.name() == kind).ok_or(())?;
        Self::new(kind, namespace, name).ok_or(())
    }
}

impl PolicyInForce {
    /// `None` if it cannot be sent.
    pub(crate) fn new(generation: i64, spec: PolicySpec) -> Option<Self> {
        let json = match &spec {
            PolicySpec::Breaker(spec) => serde_json::to_string(spec),
            PolicySpec::Fault(spec) => serde_json::to_string(spec),
        };
        Some(Self {
            generation,
            json: json.ok()?,
            rules: Arc::new(RuleNames::of(&spec)),
            spec,
        })
    }
}

impl RuleNames {
    fn of(spec: &PolicySpec) -> Self {
        match spec {
            PolicySpec::Breaker(spec) => {
                let breakers = spec.breakers.iter();
                let breakers = breakers.map(|rule| (rule.name.clone(), rule.clusters.iter().cloned().collect()));
                Self {
                    rules: spec.rate_limitings.iter().map(|rule| rule.name.clone()).collect(),
                    breakers: breakers.collect(),
                }
            }
            PolicySpec::Fault(spec) => {
                let requests = spec.http_fault.iter().enumerate();
                let requests = requests.map(|(index, fault)| fault.name_at(index).into_owned());
                let watches = spec.watch_fault.iter().map(|fault| fault.name.clone());
                Self {
                    rules: requests.chain(watches).collect(),
                    breakers: BTreeMap::new(),
                }
            }
        }
    }

    /// Whether a limit or a fault has this name.
    pub(crate) fn has_rule(&self, name: &str) -> bool {
        self.rules.contains(name)
    }

    /// Whether a breaker of this name is one for `cluster` too.
    pub(crate) fn has_breaker(&self, name: &str, cluster: &str) -> bool {
        let clusters = self.breakers.get(name);
        clusters.is_some_and(|clusters| clusters.is_empty() || clusters.contains(cluster))
    }

    /// Whether there is such a breaker.
    pub(crate) fn breaks(&self, name: &str) -> bool {
        self.breakers.contains_key(name)
    }
}

impl Facts {
    /// The next time after `after` at which a FaultInjection ends.
    pub(crate) fn next_end(&self, after: Timestamp) -> Option<Timestamp> {
        let ends = self.policies.values().filter_map(|policy| policy.until);
        ends.filter(|end| *end > after).min()
    }
}

impl Selection {
    /// Whether callers whose home is `cluster` may be meant.
    pub(crate) fn is_of(&self, cluster: &str) -> bool {
        self.caller_clusters.is_empty() || self.caller_clusters.iter().any(|name| name == cluster)
    }
}
