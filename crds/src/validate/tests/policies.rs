//! Each rule of CircuitBreakers and FaultInjections by the smallest spec that breaks it.

mod faults;

use super::*;
use crate::circuit_breaker::{BREAKERS_MAX, RATE_LIMITINGS_MAX, RESOURCE_RULES_MAX, ResourceRule};
use crate::fault_injection::{FAULTS_MAX, REGEXES_TOTAL_MAX};
use crate::{CircuitBreakerSpec, FaultInjectionSpec};

/// A limit that has nothing against it.
const RULE: &str = "resourceRules: [{apiGroups: [''], resources: [pods], verbs: [delete], namespaces: ['*']}]";
const BUCKET: &str = "bucket: {burst: 10, interval: 1s, limit: 5}";

fn breaker(yaml: &str) -> Vec<Problem> {
    let spec: CircuitBreakerSpec = serde_yaml_ng::from_str(yaml).unwrap();
    validate_circuit_breaker(&spec)
}

/// Problems of one limit with these fields besides its name.
fn limit(more: &str) -> Vec<String> {
    let problems = breaker(&format!("{{selector: {{}}, rateLimitings: [{{name: l, {more}}}]}}"));
    within("spec.rateLimitings[0].", &problems)
}

fn injection(yaml: &str) -> Vec<Problem> {
    let spec: FaultInjectionSpec = serde_yaml_ng::from_str(yaml).unwrap();
    validate_fault_injection(&spec)
}

fn matched(more: &str) -> Vec<String> {
    let problems = injection(&format!(
        "{{selector: {{}}, httpFault: [{{name: f, delay: {{fixedDelay: 1s}}, match: {more}}}]}}"
    ));
    within("spec.httpFault[0].match.", &problems)
}

/// Their fields without what all of them begin with.
fn within(prefix: &str, problems: &[Problem]) -> Vec<String> {
    let told = fields(problems);
    told.iter()
        .map(|field| field.strip_prefix(prefix).unwrap_or(field).to_owned())
        .collect()
}

type Case<'a> = (&'a str, &'a [&'a str]);

#[test]
fn whom_a_policy_holds() {
    let cases: &[Case] = &[
        // Holds nobody; a condition says so.
        ("{}", &[]),
        ("{selector: {}}", &[]),
        (
            "{selector: {matchLabels: {'a b': c}}}",
            &["spec.selector.matchLabels[a b]: Invalid"],
        ),
        (
            "{selector: {matchLabels: {a: b}, matchExpressions: [{key: a, operator: DoesNotExist}]}}",
            &["spec.selector: Invalid"],
        ),
        (
            "{callerClusters: [east, '*', east]}",
            &["spec.callerClusters[1]: Invalid", "spec.callerClusters[2]: Duplicate"],
        ),
    ];
    for (yaml, expected) in cases {
        assert_eq!(fields(&breaker(yaml)), *expected, "{yaml}");
        assert_eq!(fields(&injection(yaml)), *expected, "{yaml}");
    }
}

#[test]
fn each_rule_of_a_bucket_names_its_field() {
    let with = |bucket: &str, more: &str| limit(&format!("{RULE}, bucket: {bucket}, {more}"));
    for good in [
        "{burst: 1, interval: 1s, limit: 1}",
        "{burst: 4294967295, interval: 720h, limit: 4294967295}",
        "{burst: 10, interval: 1.5s, limit: 5}",
        "{burst: 10, interval: 100ms, limit: 5}",
        // Never refills.
        "{burst: 10, interval: 1m0s, limit: 0}",
    ] {
        assert_eq!(with(good, ""), [""; 0], "{good}");
    }
    let cases: &[Case] = &[
        ("{burst: 0, interval: 1s, limit: 1}", &["bucket.burst: Invalid"]),
        (
            "{burst: -1, interval: 1s, limit: -1}",
            &["bucket.burst: Invalid", "bucket.limit: Invalid"],
        ),
        (
            "{burst: 4294967296, interval: 1s, limit: 1}",
            &["bucket.burst: Invalid"],
        ),
        ("{burst: 1, interval: '', limit: 1}", &["bucket.interval: Invalid"]),
        (
            "{burst: 1, interval: a minute, limit: 1}",
            &["bucket.interval: Invalid"],
        ),
        ("{burst: 1, interval: '60', limit: 1}", &["bucket.interval: Invalid"]),
        ("{burst: 1, interval: 0s, limit: 1}", &["bucket.interval: Invalid"]),
        ("{burst: 1, interval: -1s, limit: 1}", &["bucket.interval: Invalid"]),
        ("{burst: 1, interval: 1d, limit: 1}", &["bucket.interval: Invalid"]),
        ("{burst: 1, interval: 721h, limit: 1}", &["bucket.interval: Invalid"]),
        ("{burst: 0, interval: '', limit: 0}", &["bucket: Required"]),
    ];
    for (bucket, expected) in cases {
        assert_eq!(with(bucket, ""), *expected, "{bucket}");
        assert_eq!(with(bucket, "triggerPolicy: LimiterOnly"), *expected, "{bucket}");
    }
    assert_eq!(limit(RULE), ["bucket: Required"]);
}

/// Nothing is counted, so the bucket says nothing; what it says must still be readable.
#[test]
fn a_forced_rule_needs_no_bucket() {
    for forced in ["triggerPolicy: ForceOpened", "triggerPolicy: ForceClosed"] {
        for bucket in [
            "",
            "bucket: {burst: 0, interval: '', limit: 0}",
            "bucket: {burst: 0, interval: 0s, limit: 0}",
            BUCKET,
        ] {
            let bucket = if bucket.is_empty() { "" } else { &format!(", {bucket}") };
            assert_eq!(
                limit(&format!("{RULE}, {forced}{bucket}, cost: {{list: 99}}")),
                [""; 0],
                "{bucket}"
            );
        }
        let unreadable = limit(&format!(
            "{RULE}, {forced}, bucket: {{burst: 0, interval: soon, limit: 0}}"
        ));
        assert_eq!(unreadable, ["bucket.interval: Invalid"]);
    }
}

#[test]
fn costs_and_recovery() {
    let cases: &[Case] = &[
        ("cost: {list: 10, get: 0, deletecollection: 3}", &[]),
        ("cost: {list: 11}", &["cost[list]: Invalid"]),
        (
            "cost: {get: -1, lists: 1}",
            &["cost[get]: Invalid", "cost[lists]: Invalid"],
        ),
        ("cost: {'*': 1}", &["cost[*]: Invalid"]),
        ("recoverPolicy: {}", &[]),
        ("recoverPolicy: {type: Manual}", &[]),
        ("recoverPolicy: {type: Manual, sleepingWindowSize: 1m}", &[]),
        ("recoverPolicy: {type: Manual, sleepingWindowSize: 0s}", &[]),
        ("recoverPolicy: {type: Manual, sleepingWindowSize: ''}", &[]),
        (
            "recoverPolicy: {type: Manual, sleepingWindowSize: x}",
            &["recoverPolicy.sleepingWindowSize: Invalid"],
        ),
        ("recoverPolicy: {type: SleepingWindow, sleepingWindowSize: 1m30s}", &[]),
        (
            "recoverPolicy: {type: SleepingWindow}",
            &["recoverPolicy.sleepingWindowSize: Required"],
        ),
        (
            "recoverPolicy: {type: SleepingWindow, sleepingWindowSize: ''}",
            &["recoverPolicy.sleepingWindowSize: Required"],
        ),
        (
            "recoverPolicy: {type: SleepingWindow, sleepingWindowSize: 0s}",
            &["recoverPolicy.sleepingWindowSize: Invalid"],
        ),
        (
            "recoverPolicy: {type: SleepingWindow, sleepingWindowSize: 721h}",
            &["recoverPolicy.sleepingWindowSize: Invalid"],
        ),
        ("properties: {any: thing}, scope: Shared", &[]),
    ];
    for (more, expected) in cases {
        assert_eq!(limit(&format!("{RULE}, {BUCKET}, {more}")), *expected, "{more}");
    }
}

/// Words of a resource rule that are none, and which of them are told of.
const BAD_WORDS: &[Case] = &[
    (
        "apiGroups: [apps/v1, Apps]",
        &["apiGroups[0]: Invalid", "apiGroups[1]: Invalid"],
    ),
    (
        "resources: ['', Pods, pods/, /exec, pods/exec/x, '*/*', 'po*', pods.apps]",
        &[
            "resources[0]: Invalid",
            "resources[1]: Invalid",
            "resources[2]: Invalid",
            "resources[3]: Invalid",
            "resources[4]: Invalid",
            "resources[5]: Invalid",
            "resources[6]: Invalid",
            "resources[7]: Invalid",
        ],
    ),
    (
        "verbs: [Delete, remove, '', connect]",
        &[
            "verbs[0]: Invalid",
            "verbs[1]: Invalid",
            "verbs[2]: Invalid",
            "verbs[3]: Invalid",
        ],
    ),
    (
        "namespaces: [A, 'a-*']",
        &["namespaces[0]: Invalid", "namespaces[1]: Invalid"],
    ),
    (
        "clusters: ['', East]",
        &["clusters[0]: Invalid", "clusters[1]: Invalid"],
    ),
];

#[test]
fn each_word_of_a_resource_rule_is_judged() {
    const ALL: &str = "apiGroups: ['*'], resources: ['*'], verbs: ['*'], namespaces: ['*']";
    for good in [
        ALL,
        "apiGroups: ['', apps, apiextensions.k8s.io], resources: [pods, pods/exec, pods/*, '*/scale'], verbs: [get, list, watch, create, update, patch, delete, deletecollection, proxy], namespaces: ['', a, '*']",
        "apiGroups: ['*', apps], resources: ['*', pods], verbs: ['*', get], namespaces: ['*', a], clusters: [east, '*']",
    ] {
        assert_eq!(
            limit(&format!("resourceRules: [{{{good}}}], {BUCKET}")),
            [""; 0],
            "{good}"
        );
        assert_eq!(matched(&format!("{{resources: [{{{good}}}]}}")), [""; 0], "{good}");
    }
    for (words, expected) in BAD_WORDS {
        let name = words.split(':').next().unwrap();
        let others: Vec<&str> = ALL.split(", ").filter(|list| !list.starts_with(name)).collect();
        let told = limit(&format!(
            "resourceRules: [{{{}, {words}}}], {BUCKET}",
            others.join(", ")
        ));
        let expected: Vec<String> = expected
            .iter()
            .map(|field| format!("resourceRules[0].{field}"))
            .collect();
        assert_eq!(told, expected, "{words}");
    }
}

/// What matched nothing in the original is refused; a fault's lists are all without a word, as the original had it.
#[test]
fn an_empty_list_is_refused_in_a_limit_and_is_all_in_a_fault() {
    let lists = ["apiGroups", "resources", "verbs", "namespaces"];
    let expected = lists.map(|list| format!("resourceRules[0].{list}: Required"));
    assert_eq!(limit(&format!("resourceRules: [{{}}], {BUCKET}")), expected);
    assert_eq!(limit(BUCKET), ["resourceRules: Required"]);
    assert_eq!(matched("{resources: [{}]}"), [""; 0]);
    assert_eq!(matched("{}"), [""; 0]);
}

#[test]
fn names_of_rules_can_travel() {
    let name = |name: &str| {
        let spec = CircuitBreakerSpec {
            breakers: vec![crate::circuit_breaker::CallerBreaker {
                name: name.to_owned(),
                ..Default::default()
            }],
            ..CircuitBreakerSpec::default()
        };
        fields(&validate_circuit_breaker(&spec))
    };
    for good in ["a", "deletePod", "team a: deletes (50%)", "*", &"x".repeat(253)] {
        assert_eq!(name(good), [""; 0], "{good}");
    }
    for bad in [
        "a/b",
        "a,b",
        "a=b",
        "a@east",
        " a",
        "a ",
        "a\nb",
        "a\tb",
        "löschen",
        "删除",
        &"x".repeat(254),
    ] {
        assert_eq!(name(bad), ["spec.breakers[0].name: Invalid"], "{bad}");
    }
    assert_eq!(name(""), ["spec.breakers[0].name: Required"]);
}

#[test]
fn no_two_rules_have_one_name() {
    let named = format!("{RULE}, {BUCKET}");
    let yaml = format!(
        "{{rateLimitings: [{{name: a, {named}}}, {{name: b, {named}}}, {{name: a, {named}}}], breakers: [{{name: b}}, {{name: c}}]}}"
    );
    let problems = breaker(&yaml);
    let expected = [
        "spec.rateLimitings[2].name: Duplicate",
        "spec.breakers[0].name: Duplicate",
    ];
    assert_eq!(fields(&problems), expected);
    assert!(
        problems[1]
            .message
            .contains("\"b\" is the name of spec.rateLimitings[1] already"),
        "{}",
        problems[1]
    );

    let abort = "abort: {httpStatus: 500}";
    let yaml = format!(
        "{{httpFault: [{{name: httpFault-1, {abort}}}, {{{abort}}}, {{{abort}}}], watchFault: [{{name: httpFault-2, action: Drop}}]}}"
    );
    let expected = ["spec.httpFault[0].name: Invalid", "spec.watchFault[0].name: Invalid"];
    assert_eq!(
        fields(&injection(&yaml)),
        expected,
        "unnamed ones are named by their place"
    );
    let yaml = format!("{{httpFault: [{{name: httpFault-1, {abort}}}, {{name: httpFault-0, {abort}}}]}}");
    assert_eq!(fields(&injection(&yaml)), [""; 0], "all have a name");
}

#[test]
fn breakers_are_bounded_as_a_members() {
    let cases: &[Case] = &[
        ("{name: b}", &[]),
        (
            "{name: b, clusters: [east], consecutiveFailures: 5, failureRatio: 0.5, minRequests: 20, window: 30s, openFor: 5s, maxOpenFor: 2m}",
            &[],
        ),
        (
            "{name: b, clusters: ['*'], consecutiveFailures: 0, failureRatio: 1.5, minRequests: 0, window: 0s, openFor: 1.5s, maxOpenFor: 25h}",
            &[
                "spec.breakers[0].clusters[0]: Invalid",
                "spec.breakers[0].consecutiveFailures: Invalid",
                "spec.breakers[0].minRequests: Invalid",
                "spec.breakers[0].failureRatio: Invalid",
                "spec.breakers[0].window: Invalid",
                "spec.breakers[0].openFor: Invalid",
                "spec.breakers[0].maxOpenFor: Invalid",
            ],
        ),
        (
            "{name: b, openFor: 3m, maxOpenFor: 2m}",
            &["spec.breakers[0].maxOpenFor: Invalid"],
        ),
        (
            "{name: b, failureRatio: .nan}",
            &["spec.breakers[0].failureRatio: Invalid"],
        ),
    ];
    for (yaml, expected) in cases {
        assert_eq!(
            fields(&breaker(&format!("{{breakers: [{yaml}]}}"))),
            *expected,
            "{yaml}"
        );
    }
}

#[test]
fn what_needs_the_sidecar_is_not_served_for_that_object_alone() {
    let problems = breaker(&format!(
        "{{rateLimitings: [{{name: a, restRules: [{{url: 'https://x/*', method: GET}}], {BUCKET}}}], trafficInterceptRules: [{{name: t, interceptType: Whitelist, contentType: Regexp, contents: ['('], methods: [GET]}}]}}"
    ));
    let expected = [
        "spec.rateLimitings[0].restRules: NotImplemented",
        "spec.trafficInterceptRules: NotImplemented",
    ];
    assert_eq!(fields(&problems), expected);
    assert_eq!(accepted_reason(&problems), ConditionReason::NotImplemented);
}

#[test]
fn rules_beside_those_that_need_the_sidecar_are_served() {
    let rest = "restRules: [{url: 'https://x/*', method: GET}]";
    let intercept = "trafficInterceptRules: [{name: t, interceptType: Whitelist, contentType: Normal, contents: [x], methods: [GET]}]";
    let served = format!("{{name: a, {RULE}, {BUCKET}}}");
    for (spec, unserved) in [
        (
            format!("{{rateLimitings: [{{name: a, {RULE}, {rest}, {BUCKET}}}]}}"),
            "spec.rateLimitings[0].restRules: NotServed",
        ),
        (
            format!("{{rateLimitings: [{served}, {{name: b, {rest}, {BUCKET}}}]}}"),
            "spec.rateLimitings[1].restRules: NotServed",
        ),
        (
            format!("{{rateLimitings: [{served}], {intercept}}}"),
            "spec.trafficInterceptRules: NotServed",
        ),
    ] {
        let problems = breaker(&spec);
        assert_eq!(fields(&problems), [unserved], "{spec}");
        assert_eq!(accepted_reason(&problems), ConditionReason::Ok);
        let spec: CircuitBreakerSpec = serde_yaml_ng::from_str(&spec).unwrap();
        let expected: CircuitBreakerSpec = serde_yaml_ng::from_str(&format!("{{rateLimitings: [{served}]}}")).unwrap();
        assert_eq!(spec.served(), expected);
        assert_eq!(validate_circuit_breaker(&spec.served()), vec![]);
    }
}

/// What is bounded in the schema is bounded here: an object may be older than the schema, or come by another way.
#[test]
fn everything_is_bounded() {
    let rule = ResourceRule {
        api_groups: vec![String::new()],
        resources: vec!["pods".to_owned()],
        verbs: vec!["get".to_owned()],
        namespaces: vec!["a".to_owned()],
        clusters: Vec::new(),
    };
    let limits = |count: usize, rules: usize| -> CircuitBreakerSpec {
        let spec = format!("{{rateLimitings: [{{name: l, {RULE}, {BUCKET}}}], breakers: [{{name: b}}]}}");
        let mut spec: CircuitBreakerSpec = serde_yaml_ng::from_str(&spec).unwrap();
        let mut limit = spec.rate_limitings.remove(0);
        limit.resource_rules = vec![rule.clone(); rules];
        let named = |index| {
            let mut limit = limit.clone();
            limit.name = format!("l{index}");
            limit
        };
        spec.rate_limitings = (0..count).map(named).collect();
        spec
    };
    let told = |spec: &CircuitBreakerSpec| fields(&validate_circuit_breaker(spec));
    assert_eq!(told(&limits(RATE_LIMITINGS_MAX, 4)), [""; 0]);
    assert_eq!(told(&limits(16, RESOURCE_RULES_MAX)), [""; 0]);
    assert_eq!(
        told(&limits(RATE_LIMITINGS_MAX + 1, 1)),
        ["spec.rateLimitings: Invalid"]
    );
    assert_eq!(
        told(&limits(1, RESOURCE_RULES_MAX + 1)),
        ["spec.rateLimitings[0].resourceRules: Invalid"]
    );
    assert_eq!(told(&limits(RATE_LIMITINGS_MAX, 5)), ["spec: Invalid"]);
    let mut many = limits(1, 1);
    many.rate_limitings[0].resource_rules[0].namespaces = vec!["a".to_owned(); 257];
    assert_eq!(
        told(&many),
        ["spec.rateLimitings[0].resourceRules[0].namespaces: Invalid"]
    );
    let breaker = many.breakers.remove(0);
    let named = |index| crate::circuit_breaker::CallerBreaker {
        name: format!("b{index}"),
        ..breaker.clone()
    };
    let many = CircuitBreakerSpec {
        breakers: (0..=BREAKERS_MAX).map(named).collect(),
        ..limits(1, 1)
    };
    assert_eq!(told(&many), ["spec.breakers: Invalid"]);

    let faults = |count: usize, paths: usize| {
        let head = "{path: {regex: '/a'}},".repeat(paths);
        let fault = format!("{{abort: {{httpStatus: 500}}, match: {{httpMatch: [{head}]}}}},");
        fields(&injection(&format!("{{httpFault: [{}]}}", fault.repeat(count))))
    };
    assert_eq!(faults(FAULTS_MAX, 0), [""; 0]);
    assert_eq!(faults(FAULTS_MAX + 1, 0), ["spec.httpFault: Invalid"]);
    assert_eq!(faults(1, REGEXES_TOTAL_MAX), [""; 0]);
    assert_eq!(faults(2, REGEXES_TOTAL_MAX), ["spec: Invalid"]);
}

/// People read these: what is wrong, what stands there, what to write.
#[test]
fn problems_say_the_fix() {
    let first = |problems: Vec<Problem>| problems[0].to_string();
    let told = first(breaker(&format!(
        "{{rateLimitings: [{{name: a, {RULE}, bucket: {{burst: 5, interval: soon, limit: 5}}}}]}}"
    )));
    assert_eq!(
        told,
        "spec.rateLimitings[0].bucket.interval: \"soon\" is not a duration: write whole numbers with h, m, s or ms, such as \"30s\" or \"1m30s\""
    );
    let told = first(breaker(&format!(
        "{{rateLimitings: [{{name: a/b, {RULE}, {BUCKET}}}]}}"
    )));
    assert!(
        told.contains("although the original took it") && told.contains("'/', ',', '=' and '@'"),
        "{told}"
    );
    let told = first(breaker(&format!(
        "{{rateLimitings: [{{name: a, {RULE}, bucket: {{burst: 0, interval: 1s, limit: 5}}}}]}}"
    )));
    assert!(
        told.ends_with("0 would refuse every request: say triggerPolicy: ForceOpened if that is meant"),
        "{told}"
    );
    let told = first(injection("{httpFault: [{abort: {httpStatus: 200, percent: '101'}}]}"));
    assert_eq!(
        told,
        "spec.httpFault[0].abort.percent: \"101\" is no percentage: write a number from \"0\" (none) to \"100\" (all), such as \"12.5\""
    );
}
