//! What the hub says about CircuitBreakers and FaultInjections. Pure.

use jiff::Timestamp;
use portolan_crds::circuit_breaker::SpecInForce;
use portolan_crds::fault_injection::Schedule;
use portolan_crds::labels::{ANNOTATION_CLOSE, CONFIG_MAP_FAULTS};
use portolan_crds::validate::summary;
use portolan_crds::{ConditionReason, ConditionType, FaultInjectionSpec, Finding, accepted_reason};
use portolan_wire::v1::ResourceKind;

use super::Sources;
use super::finding::set;
use super::presence::Presences;
use super::unserved::{clear, rules_served};
use crate::compile::{MAX_IN_NAMESPACE, MAX_OF_CALLER, PolicyReach, Reached, Standing, World, some_of};
use crate::facts::{Facts, FaultsStopped, PolicyInForce, PolicyName, PolicyObject, PolicySpec, PolicyStatus};
use crate::shares::WithheldShares;

mod distributed;
mod divided;
mod targets;
#[cfg(test)]
mod tests;

pub(super) use targets::{Injected, MAX_SHOWN, Opened, RuleAt};

/// What all policies have in common: looked at once for all of them.
pub(super) struct Common<'a> {
    reports: targets::Reports<'a>,
    routers: distributed::Connected<'a>,
    withheld: &'a WithheldShares,
}

impl<'a> Common<'a> {
    pub(super) fn of(sources: Sources<'a>, withheld: &'a WithheldShares, presences: &'a Presences) -> Self {
        Self {
            withheld,
            reports: targets::Reports::of(sources.world, sources.routers, presences),
            routers: distributed::Connected::of(sources.world, sources.routers),
        }
    }

    /// All rules of a policy that refuse all, and why.
    pub(super) fn opened(&self, name: &PolicyName) -> Opened {
        self.reports.opened(name)
    }

    /// Whether a rule that refused all may do so still, though it is not among those of which that is said.
    pub(super) fn may_be_opened(&self, name: &PolicyName, rule: &RuleAt) -> bool {
        self.reports.may_be_opened(name, rule)
    }

    /// The faults of a policy that were injected, and into whom.
    pub(super) fn injected(&self, name: &PolicyName) -> Injected {
        self.reports.hits(name)
    }
}

/// The status that the policy ought to have; `None` while the world does not know its present generation.
pub(super) fn status(
    sources: Sources<'_>,
    common: &Common<'_>,
    name: &PolicyName,
    object: &PolicyObject,
) -> Option<PolicyStatus> {
    let Sources { facts, world, now, .. } = sources;
    let reach = world.policies.get(name)?;
    if (&reach.uid, reach.generation) != (&object.uid, object.generation) {
        return None;
    }
    let withheld = common.withheld.get(name).map_or(&[][..], Vec::as_slice);
    let divided = divided::divided(world, name, withheld);
    let findings = [
        is_accepted(object, reach.standing),
        is_active(object, reach.standing, facts.faults_stopped.as_ref(), now),
        common.routers.distributed(world, name, reach.standing),
        callers_found(facts, world, object, reach),
    ];
    let mut status = object.status.clone();
    let in_force = in_force_or_before(object);
    let callers = i64::try_from(reach.callers.count).ok();
    let (names, not_named) = named(&reach.callers);
    let conditions = match &mut status {
        PolicyStatus::Breaker(status) => {
            status.observed_generation = Some(object.generation);
            status.callers = callers;
            status.in_force = in_force;
            status.caller_names = names;
            status.callers_not_named = not_named;
            let before = std::mem::take(&mut status.target_status);
            status.target_status = common.reports.limits(name, before);
            status.opened = Some(common.reports.count_opened(name, &status.target_status, status.opened));
            &mut status.conditions
        }
        PolicyStatus::Fault(status) => {
            status.observed_generation = Some(object.generation);
            status.callers = callers;
            status.in_force = in_force;
            status.caller_names = names;
            status.callers_not_named = not_named;
            let before = std::mem::take(&mut status.target_status);
            status.target_status = common.reports.injected(name, before);
            &mut status.conditions
        }
    };
    let rules_served = rules_served(&object.problems);
    for (type_, found) in [
        (ConditionType::Divided, &divided),
        (ConditionType::RulesServed, &rules_served),
    ] {
        if found.is_none() {
            clear(conditions, type_);
        }
    }
    let findings = findings.into_iter().chain(divided).chain(rules_served);
    set(conditions, findings, object.generation, now);
    Some(status)
}

/// Of what this hub knows no good spec of, what an earlier one said.
fn in_force_or_before(object: &PolicyObject) -> Option<SpecInForce> {
    let Some(good) = &object.in_force else {
        return object.status.in_force().cloned();
    };
    let (selector, caller_clusters) = good.spec.holds();
    Some(SpecInForce {
        generation: good.generation,
        selector,
        caller_clusters,
    })
}

/// Names of callers, and how many have none told; `None`: none.
fn named(callers: &Reached) -> (Vec<String>, Option<i64>) {
    let names = callers.first.iter().map(ToString::to_string);
    let rest = callers.count.saturating_sub(callers.first.len());
    let rest = i64::try_from(rest).ok().filter(|rest| *rest > 0);
    (names.collect(), rest)
}

fn is_accepted(object: &PolicyObject, standing: Standing) -> Finding {
    const TYPE: ConditionType = ConditionType::Accepted;
    let refusing: Vec<_> = object
        .problems
        .iter()
        .filter(|problem| problem.refuses())
        .cloned()
        .collect();
    if !refusing.is_empty() {
        let rest = match &object.in_force {
            Some(good) => format!(
                "the last accepted spec stays in force, of generation {}",
                good.generation
            ),
            None if object.was_there => "this hub knows no good spec of it: routers that have one keep it".to_owned(),
            None => "nothing of it comes into force".to_owned(),
        };
        let message = format!("{}; {rest}", summary(&refusing));
        return Finding::fails(TYPE, accepted_reason(&refusing), message);
    }
    if standing == Standing::Excess {
        let message = format!(
            "its namespace has more than {MAX_IN_NAMESPACE} CircuitBreakers and FaultInjections: the oldest are in force; \
             delete some, or put rules together"
        );
        return Finding::fails(TYPE, ConditionReason::TooManyPolicies, message);
    }
    let message = match unclosed(object) {
        unread if unread.is_empty() => "the spec is valid".to_owned(),
        unread => format!(
            "the spec is valid; of annotation {ANNOTATION_CLOSE} this closes nothing: {}; write <rule>=<time, as in \
             2026-01-02T15:04:05Z>, joined by commas",
            some_of(&unread, ", ")
        ),
    };
    Finding::holds(TYPE, message)
}

/// What the annotation that closes rules says for nothing: what cannot be read, and what names no rule.
fn unclosed(object: &PolicyObject) -> Vec<String> {
    let bad = object.bad_close.iter().map(|entry| format!("{entry:?} cannot be read"));
    let Some(good) = object.in_force.as_deref() else {
        return bad.collect();
    };
    let is_rule = |name: &str| {
        let is_breaker = |(breaker, _): (&str, &str)| good.rules.breaks(breaker);
        good.rules.has_rule(name) || name.split_once('@').is_some_and(is_breaker)
    };
    let unknown = object.closed.iter().filter(|closed| !is_rule(&closed.rule));
    bad.chain(unknown.map(|closed| format!("{:?} is no rule of it", closed.rule)))
        .collect()
}

/// Whether something comes of it.
fn is_active(object: &PolicyObject, standing: Standing, stopped: Option<&FaultsStopped>, now: Timestamp) -> Finding {
    const TYPE: ConditionType = ConditionType::Active;
    let fails = |reason, message: String| Finding::fails(TYPE, reason, message);
    match standing {
        Standing::InForce => in_force(object.in_force.as_deref(), now),
        Standing::NoneGood => {
            let message = "this hub knows no good spec of it, see Accepted: routers that have one keep it";
            Finding::unknown(TYPE, ConditionReason::Invalid, message)
        }
        Standing::NeverGood => {
            let message = "it has had no good spec, see Accepted".to_owned();
            fails(ConditionReason::Invalid, message)
        }
        Standing::Withdrawn => fails(ConditionReason::Disabled, "withdrawn by its label".to_owned()),
        Standing::Disabled => fails(ConditionReason::Disabled, "spec.disabled is true".to_owned()),
        Standing::Stopped => fails(ConditionReason::Stopped, stopped_by(stopped)),
        Standing::Expired => fails(ConditionReason::Expired, "spec.until has passed".to_owned()),
        Standing::Excess => {
            let message = "it is not in force, see Accepted".to_owned();
            fails(ConditionReason::TooManyPolicies, message)
        }
    }
}

fn in_force(good: Option<&PolicyInForce>, now: Timestamp) -> Finding {
    const TYPE: ConditionType = ConditionType::Active;
    let Some(PolicySpec::Fault(spec)) = good.map(|good| &good.spec) else {
        return Finding::holds(TYPE, "it is in force");
    };
    let schedules = schedules(spec);
    if schedules.is_empty()
        || schedules
            .iter()
            .any(|at| at.as_ref().is_none_or(|at| at.is_active(now)))
    {
        return Finding::holds(
            TYPE,
            "it is in force; at which times is judged by each router's own clock",
        );
    }
    let message = "none of its effectiveTimes is now, by the hub's clock; each router judges by its own";
    Finding::fails(TYPE, ConditionReason::NotNow, message)
}

/// When each of its faults is in force; `None`: always.
fn schedules(spec: &FaultInjectionSpec) -> Vec<Option<Schedule>> {
    let http = spec.http_fault.iter().map(|fault| fault.effective_time.as_ref());
    let watch = spec.watch_fault.iter().map(|fault| fault.effective_time.as_ref());
    let times = http.chain(watch);
    // One that is in force was read before.
    times.map(|time| Schedule::new(time?).ok()).collect()
}

fn stopped_by(stopped: Option<&FaultsStopped>) -> String {
    let FaultsStopped { by, reason, since } = stopped.cloned().unwrap_or_default();
    let mut message = "all faults of this hub are stopped".to_owned();
    for (word, text) in [(" by ", by), (" since ", since), (": ", reason)] {
        if !text.is_empty() {
            message = format!("{message}{word}{text}");
        }
    }
    format!("{message} (ConfigMap {CONFIG_MAP_FAULTS}; portolanctl faults resume)")
}

fn callers_found(facts: &Facts, world: &World, object: &PolicyObject, reach: &PolicyReach) -> Finding {
    const TYPE: ConditionType = ConditionType::CallersFound;
    let Some(selection) = &object.selection else {
        let message = "spec.selector or spec.callerClusters cannot be read";
        return Finding::unknown(TYPE, ConditionReason::Invalid, message);
    };
    if selection.selector.is_none() {
        let message = "there is no spec.selector, so nobody is held: {} selects all callers of its namespace";
        return Finding::fails(TYPE, ConditionReason::NoSelector, message);
    }
    let Reached { count, spared, .. } = reach.callers;
    if spared > 0 {
        let message = format!(
            "{count} callers are selected, and {spared} of them are held by the {MAX_OF_CALLER} oldest CircuitBreakers and \
             FaultInjections that select them, which this is none of: delete some, or put rules together"
        );
        return Finding::fails(TYPE, ConditionReason::TooManyPolicies, message);
    }
    if count > 0 {
        return Finding::holds(TYPE, format!("{count} callers are selected"));
    }
    let missing = selection
        .caller_clusters
        .iter()
        .filter(|name| !facts.members.contains_key(*name));
    let missing: Vec<_> = missing.map(|name| format!("{name:?}")).collect();
    if !missing.is_empty() {
        let message = format!(
            "spec.callerClusters: no MemberCluster is named {}",
            some_of(&missing, ", ")
        );
        return Finding::fails(TYPE, ConditionReason::UnknownCluster, message);
    }
    let untold = world
        .unknown
        .iter()
        .filter(|(kind, cluster)| *kind == ResourceKind::CallerView && selection.is_of(cluster));
    let untold: Vec<_> = untold.map(|(_, cluster)| cluster.as_str()).collect();
    if !untold.is_empty() {
        let message = format!("callers in {} are not known yet", some_of(&untold, ", "));
        return Finding::unknown(TYPE, ConditionReason::WaitingForAgent, message);
    }
    let message = "no Pod of its namespace that is a caller of some shard matches spec.selector, in any of its caller \
                   clusters";
    Finding::fails(TYPE, ConditionReason::NoCallers, message)
}
