//! Traffic policies: CircuitBreakers and FaultInjections as the hub told them, and those of one caller joined so that a
//! request is matched against all their rules at once.
//!
//! Values only. Which callers a policy holds the hub has decided; what follows from a rule that matches is
//! `decision::policy`'s. Made by `value::snapshot::build` when a snapshot is made, never for a request.

mod bits;
mod limit;
mod matcher;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use portolan_crds::circuit_breaker::{CallerBreaker, CircuitBreakerSpec, RateLimiting, ResourceRule};
use portolan_crds::fault_injection::FaultInjectionSpec;

pub(crate) use self::bits::Rows;
pub(crate) use self::limit::{Limit, Rate};
pub(crate) use self::matcher::{Asked, AskedResource, Matcher};
use self::matcher::{Empty, MatcherBuilder};
use crate::value::injection::{FaultName, Faults, RequestFault, WatchFault};

/// One CircuitBreaker or FaultInjection, checked.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Policy {
    /// `<kind>/<namespace>/<name>`.
    pub(crate) name: Arc<str>,
    /// Of the object: one that is made anew under the same name starts anew.
    pub(crate) uid: Arc<str>,
    /// `metadata.generation` of the spec.
    pub(crate) generation: i64,
    /// What it says.
    pub(crate) spec: PolicySpec,
    /// Rules that a person closed.
    pub(crate) closed: Vec<ClosedByHand>,
    /// Its limits as numbers, in the spec's order.
    limits: Vec<Arc<Limit>>,
}

/// What a policy says.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PolicySpec {
    /// Limits, and breakers of callers.
    CircuitBreaker(CircuitBreakerSpec),
    /// Faults that are ordered, as they were written and as requests are judged by them.
    FaultInjection(FaultInjectionSpec, Faults),
}

/// A rule that had opened and that a person closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClosedByHand {
    /// Its name.
    pub(crate) rule: String,
    /// One that is later than the last is carried out.
    pub(crate) at_unix_milliseconds: i64,
}

impl Policy {
    /// Of a spec that was checked.
    pub(crate) fn new(name: &str, uid: &str, generation: i64, spec: PolicySpec) -> Self {
        let mut policy = Self {
            name: name.into(),
            uid: uid.into(),
            generation,
            spec,
            closed: Vec::new(),
            limits: Vec::new(),
        };
        policy.limits = policy.rate_limitings().iter().map(Limit::new).map(Arc::new).collect();
        policy
    }

    /// Its limits as numbers; a FaultInjection has none.
    pub(crate) fn limits(&self) -> &[Arc<Limit>] {
        &self.limits
    }

    /// Its limits as they were told.
    fn rate_limitings(&self) -> &[RateLimiting] {
        match &self.spec {
            PolicySpec::CircuitBreaker(spec) => &spec.rate_limitings,
            PolicySpec::FaultInjection(..) => &[],
        }
    }

    /// Its breakers of callers; a FaultInjection has none.
    pub(crate) fn breakers(&self) -> &[CallerBreaker] {
        match &self.spec {
            PolicySpec::CircuitBreaker(spec) => &spec.breakers,
            PolicySpec::FaultInjection(..) => &[],
        }
    }

    /// When a person closed this rule last, in milliseconds of Unix time; `None`: nobody has.
    pub(crate) fn closed_at(&self, rule: &str) -> Option<i64> {
        let of = self.closed.iter().filter(|closed| closed.rule == rule);
        of.map(|closed| closed.at_unix_milliseconds).max()
    }

    /// Its faults of requests; a CircuitBreaker has none.
    pub(crate) fn http_faults(&self) -> &[RequestFault] {
        match &self.spec {
            PolicySpec::CircuitBreaker(_) => &[],
            PolicySpec::FaultInjection(_, faults) => &faults.requests,
        }
    }

    /// Its faults of running watches; a CircuitBreaker has none.
    pub(crate) fn watch_faults(&self) -> &[WatchFault] {
        match &self.spec {
            PolicySpec::CircuitBreaker(_) => &[],
            PolicySpec::FaultInjection(_, faults) => &faults.watches,
        }
    }
}

/// All policies that hold one caller, compiled. Callers with the same policies share one.
#[derive(Debug)]
pub(crate) struct CallerPolicies {
    /// In order of their names.
    policies: Vec<Arc<Policy>>,
    /// `rateLimitings` of all of them.
    limits: RuleSet,
    /// `httpFault` of all of them.
    http_faults: RuleSet,
    /// `watchFault` of all of them.
    watch_faults: RuleSet,
}

/// Rules of one kind of several policies, in order of policies and then as each has them, with what matches them.
#[derive(Debug, Default)]
pub(crate) struct RuleSet {
    rules: Vec<RuleAt>,
    matcher: Matcher,
}

/// Where a rule stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RuleAt {
    policy: usize,
    rule: usize,
}

impl CallerPolicies {
    /// `policies` in order of their names.
    pub(crate) fn new(policies: Vec<Arc<Policy>>) -> Self {
        let limits = RuleSet::new(&policies, Policy::rate_limitings, |limit, rows| {
            rows.add_each(&limit.resource_rules, Empty::MatchesNothing);
        });
        let http_faults = RuleSet::new(&policies, Policy::http_faults, |fault, rows| {
            add_fault(&fault.when.resources, rows);
        });
        let watch_faults = RuleSet::new(&policies, Policy::watch_faults, |fault, rows| {
            add_fault(&fault.when.resources, rows);
        });
        Self {
            policies,
            limits,
            http_faults,
            watch_faults,
        }
    }

    /// The policies, in order of their names.
    pub(crate) fn policies(&self) -> &[Arc<Policy>] {
        &self.policies
    }

    /// Ids of the limits that a request meets. Nothing is allocated where it meets none.
    pub(crate) fn limits_met(&self, asked: &Asked<'_>) -> Vec<usize> {
        let mut ids = Vec::new();
        self.limits.each(asked, |id| ids.push(id));
        ids
    }

    /// What tells which limits a request meets. Nothing is allocated but for thousands of rows.
    pub(crate) fn limit_rows(&self, asked: &Asked<'_>) -> Rows {
        self.limits.matcher.rows(asked)
    }

    /// Tells the id of each limit of these rows, once, in order.
    pub(crate) fn each_limit_of(&self, rows: &Rows, found: impl FnMut(usize)) {
        self.limits.matcher.each_of(rows, found);
    }

    /// All limits with their policies; their places are their ids.
    pub(crate) fn limits(&self) -> impl Iterator<Item = (&Arc<Policy>, &Arc<Limit>)> {
        self.all(&self.limits, Policy::limits)
    }

    /// The limit of this id.
    pub(crate) fn limit(&self, id: usize) -> Option<(&Arc<Policy>, &Arc<Limit>)> {
        self.rule(*self.limits.rules.get(id)?, Policy::limits)
    }

    /// Breakers for this member, with their policies.
    pub(crate) fn breakers<'a>(
        &'a self,
        cluster: &'a str,
    ) -> impl Iterator<Item = (&'a Arc<Policy>, &'a CallerBreaker)> {
        let all = self
            .policies
            .iter()
            .flat_map(|policy| policy.breakers().iter().map(move |breaker| (policy, breaker)));
        all.filter(move |(_, breaker)| breaker.clusters.is_empty() || breaker.clusters.iter().any(|one| one == cluster))
    }

    /// Whether a FaultInjection is among them that orders anything.
    pub(crate) fn has_faults(&self) -> bool {
        !self.http_faults.is_empty() || !self.watch_faults.is_empty()
    }

    /// All faults of requests that match, in order of policies and then as each has them.
    pub(crate) fn http_faults<'a>(&'a self, asked: &Asked<'_>) -> Vec<&'a RequestFault> {
        self.matching(&self.http_faults, asked, Policy::http_faults)
    }

    /// All faults of running watches that match, in order of policies and then as each has them.
    pub(crate) fn watch_faults<'a>(&'a self, asked: &Asked<'_>) -> Vec<&'a WatchFault> {
        self.matching(&self.watch_faults, asked, Policy::watch_faults)
    }

    /// Whether there is a fault of requests of this name.
    pub(crate) fn orders_of_requests(&self, name: &FaultName) -> bool {
        let mut all = self.all(&self.http_faults, Policy::http_faults);
        all.any(|(_, fault)| fault.name == *name)
    }

    /// All faults of running watches.
    pub(crate) fn all_watch_faults(&self) -> impl Iterator<Item = &WatchFault> {
        self.all(&self.watch_faults, Policy::watch_faults)
            .map(|(_, fault)| fault)
    }

    fn all<'a, R: 'a>(
        &'a self,
        set: &'a RuleSet,
        rules: fn(&Policy) -> &[R],
    ) -> impl Iterator<Item = (&'a Arc<Policy>, &'a R)> {
        set.rules.iter().filter_map(move |at| self.rule(*at, rules))
    }

    fn matching<'a, R>(&'a self, set: &'a RuleSet, asked: &Asked<'_>, rules: fn(&Policy) -> &[R]) -> Vec<&'a R> {
        let mut found = Vec::new();
        set.each(asked, |id| {
            let rule = set.rules.get(id).and_then(|at| self.rule(*at, rules));
            found.extend(rule.map(|(_, rule)| rule));
        });
        found
    }

    fn rule<R>(&self, at: RuleAt, rules: fn(&Policy) -> &[R]) -> Option<(&Arc<Policy>, &R)> {
        let policy = self.policies.get(at.policy)?;
        Some((policy, rules(policy).get(at.rule)?))
    }
}

/// What it was made of says all of it.
impl PartialEq for CallerPolicies {
    fn eq(&self, other: &Self) -> bool {
        self.policies == other.policies
    }
}

impl RuleSet {
    fn new<R>(policies: &[Arc<Policy>], rules: fn(&Policy) -> &[R], add: impl Fn(&R, &mut MatcherBuilder)) -> Self {
        let mut at = Vec::new();
        let mut rows = MatcherBuilder::default();
        for (policy, of) in policies.iter().enumerate() {
            for (rule, one) in rules(of).iter().enumerate() {
                at.push(RuleAt { policy, rule });
                add(one, &mut rows);
                rows.next_rule();
            }
        }
        Self {
            rules: at,
            matcher: rows.build(),
        }
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Tells the id of each rule that matches, once, in order.
    pub(crate) fn each(&self, asked: &Asked<'_>, found: impl FnMut(usize)) {
        self.matcher.each(asked, found);
    }
}

/// A fault without `match`, or without `resources` in it, is of all requests.
fn add_fault(resources: &[ResourceRule], rows: &mut MatcherBuilder) {
    if resources.is_empty() {
        rows.add(&ResourceRule::default(), Empty::MatchesAll);
    } else {
        rows.add_each(resources, Empty::MatchesAll);
    }
}
