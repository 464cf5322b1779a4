//! The rules of a CircuitBreaker.

use super::policies::{ANY_TIME, ResourceRules, RuleNames, SOME_TIME, check_callers, check_clusters, check_time};
use super::thresholds::Thresholds;
use super::{Problem, Problems, Reason};
use crate::circuit_breaker::{
    BREAKERS_MAX, Bucket, CallerBreaker, CircuitBreakerSpec, PROPERTIES_MAX, PROPERTY_MAX, RATE_LIMITINGS_MAX,
    RateLimiting, RecoverType, TriggerPolicy,
};
use crate::names::{TOKENS_MAX, VERBS};

/// Everything wrong with a CircuitBreaker; empty if it can be served.
///
/// ```
/// use portolan_crds::{CircuitBreakerSpec, validate_circuit_breaker};
///
/// let spec: CircuitBreakerSpec = serde_yaml_ng::from_str(
///     "
///     selector: {matchLabels: {app: greeter}}
///     rateLimitings:
///     - name: deletes
///       resourceRules: [{apiGroups: [''], resources: [pods], verbs: [delete], namespaces: ['*']}]
///       bucket: {burst: 5, interval: 1 minute, limit: 5}
///       triggerPolicy: Normal
///     ",
/// )?;
/// let problems = validate_circuit_breaker(&spec);
/// assert_eq!(problems[0].field, "spec.rateLimitings[0].bucket.interval");
/// # Ok::<(), serde_yaml_ng::Error>(())
/// ```
pub fn validate_circuit_breaker(spec: &CircuitBreakerSpec) -> Vec<Problem> {
    let mut problems = Problems::default();
    check_callers(&mut problems, spec.selector.as_ref(), &spec.caller_clusters);
    let (mut names, mut rules) = (RuleNames::default(), ResourceRules::default());
    problems.at_most("spec.rateLimitings", spec.rate_limitings.len(), RATE_LIMITINGS_MAX);
    for (index, limit) in spec.rate_limitings.iter().enumerate() {
        let field = format!("spec.rateLimitings[{index}]");
        names.check(&mut problems, &field, &limit.name);
        rules.check(
            &mut problems,
            &format!("{field}.resourceRules"),
            &limit.resource_rules,
            false,
        );
        check_limit(&mut problems, &field, limit);
    }
    rules.check_total(&mut problems);
    problems.at_most("spec.breakers", spec.breakers.len(), BREAKERS_MAX);
    for (index, breaker) in spec.breakers.iter().enumerate() {
        let field = format!("spec.breakers[{index}]");
        names.check(&mut problems, &field, &breaker.name);
        check_breaker(&mut problems, &field, breaker);
    }
    check_unserved(&mut problems, spec);
    problems.0
}

/// Rules about traffic to other servers than API servers, which are not served yet. What else the object orders is in force
/// without them: if there is nothing else, nothing is.
fn check_unserved(problems: &mut Problems, spec: &CircuitBreakerSpec) {
    let (reason, rest) = if spec.served().orders_something() {
        (Reason::NotServed, "the other rules of this object are in force")
    } else {
        (Reason::NotImplemented, "this object has no other rules")
    };
    let message = format!("rules about traffic to other servers are not served yet; {rest}");
    for (index, limit) in spec.rate_limitings.iter().enumerate() {
        if !limit.rest_rules.is_empty() {
            problems.add(
                format!("spec.rateLimitings[{index}].restRules"),
                reason,
                message.as_str(),
            );
        }
    }
    if !spec.traffic_intercept_rules.is_empty() {
        problems.add("spec.trafficInterceptRules", reason, message);
    }
}

fn check_limit(problems: &mut Problems, field: &str, limit: &RateLimiting) {
    if limit.resource_rules.is_empty() && limit.rest_rules.is_empty() {
        let message = "say which requests it counts: at least one rule";
        problems.required(format!("{field}.resourceRules"), message);
    }
    problems.at_most(&format!("{field}.properties"), limit.properties.len(), PROPERTIES_MAX);
    for (key, value) in &limit.properties {
        if value.chars().count() > PROPERTY_MAX {
            let message = format!("has more than {PROPERTY_MAX} characters, and nobody reads it: shorten it");
            problems.invalid(format!("{field}.properties[{key}]"), message);
        }
    }
    check_bucket(problems, field, limit);
    check_cost(problems, field, limit);
    let Some(recover) = &limit.recover_policy else { return };
    let window = recover.sleeping_window_size.as_deref().filter(|text| !text.is_empty());
    let field = format!("{field}.recoverPolicy.sleepingWindowSize");
    match window {
        // Nobody waits for it.
        Some(window) if recover.type_ == RecoverType::Manual => check_time(problems, &field, window, ANY_TIME),
        Some(window) => check_time(problems, &field, window, SOME_TIME),
        None if recover.type_ == RecoverType::Manual => {}
        None => problems.required(&field, "say after how long the rule closes, such as 30s"),
    }
}

/// Whether it asks its bucket.
fn counts(limit: &RateLimiting) -> bool {
    matches!(limit.trigger_policy, TriggerPolicy::Normal | TriggerPolicy::LimiterOnly)
}

/// With ForceOpened and ForceClosed nothing is counted: there the bucket need only be readable.
fn check_bucket(problems: &mut Problems, field: &str, limit: &RateLimiting) {
    let counts = counts(limit);
    let bucket = &limit.bucket;
    let field = format!("{field}.bucket");
    if counts && *bucket == Bucket::default() {
        let message = "say how many requests pass, such as {burst: 10, interval: 1s, limit: 5}";
        return problems.required(field, message);
    }
    problems.within(&format!("{field}.burst"), bucket.burst, 0..=TOKENS_MAX);
    problems.within(&format!("{field}.limit"), bucket.limit, 0..=TOKENS_MAX);
    if counts && bucket.burst == 0 {
        let message = "0 would refuse every request: say triggerPolicy: ForceOpened if that is meant";
        problems.invalid(format!("{field}.burst"), message);
    }
    let range = if counts { SOME_TIME } else { ANY_TIME };
    if counts || !bucket.interval.is_empty() {
        check_time(problems, &format!("{field}.interval"), &bucket.interval, range);
    }
}

fn check_cost(problems: &mut Problems, field: &str, limit: &RateLimiting) {
    for (verb, tokens) in &limit.cost {
        let field = format!("{field}.cost[{verb}]");
        if !VERBS.contains(&verb.as_str()) {
            let message = format!("is no verb of an API server: there are {}", VERBS.join(", "));
            problems.invalid(&field, message);
        }
        problems.within(&field, *tokens, 0..=TOKENS_MAX);
        if counts(limit) && *tokens > limit.bucket.burst {
            let burst = limit.bucket.burst;
            let message =
                format!("{tokens} tokens are never there, as burst is {burst}: raise burst or lower the cost");
            problems.invalid(&field, message);
        }
    }
}

fn check_breaker(problems: &mut Problems, field: &str, breaker: &CallerBreaker) {
    check_clusters(problems, &format!("{field}.clusters"), &breaker.clusters);
    let thresholds = Thresholds {
        consecutive_failures: breaker.consecutive_failures,
        failure_ratio: breaker.failure_ratio,
        min_requests: breaker.min_requests,
        window: breaker.window.as_ref(),
        open_for: breaker.open_for.as_ref(),
        max_open_for: breaker.max_open_for.as_ref(),
    };
    thresholds.check(problems, field);
}
