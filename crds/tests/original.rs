//! Manifests of the original, and each field of its CircuitBreaker and FaultInjection: what becomes of them here.
//!
//! `original/` has manifests of the shapes that its documentation shows. What its proxy crashed on or misread is marked.
#![allow(clippy::unwrap_used, reason = "also in functions that only tests call")]

use std::fs;
use std::path::PathBuf;

use portolan_crds::circuit_breaker::{RecoverType, TriggerPolicy};
use portolan_crds::fault_injection::Percent;
use portolan_crds::{
    CircuitBreakerSpec, CircuitBreakerStatus, FaultInjectionSpec, FaultInjectionStatus, Problem, Reason,
    validate_circuit_breaker, validate_fault_injection,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_yaml_ng::Value;

/// The documents of a file, each with its kind.
fn documents(file: &str) -> Vec<(String, Value)> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/original")
        .join(file);
    let text = fs::read_to_string(path).unwrap();
    let documents = serde_yaml_ng::Deserializer::from_str(&text).map(|document| Value::deserialize(document).unwrap());
    documents
        .map(|document| (document["kind"].as_str().unwrap().to_owned(), document))
        .collect()
}

fn read<T: DeserializeOwned>(spec: &Value) -> Result<T, String> {
    serde_yaml_ng::from_value(spec.clone()).map_err(|error| error.to_string())
}

/// Everything wrong with the spec, or why it cannot be read.
fn judge(kind: &str, spec: &Value) -> Result<Vec<Problem>, String> {
    match kind {
        "CircuitBreaker" => read(spec).map(|spec: CircuitBreakerSpec| validate_circuit_breaker(&spec)),
        _ => read(spec).map(|spec: FaultInjectionSpec| validate_fault_injection(&spec)),
    }
}

fn told(problems: &[Problem]) -> Vec<String> {
    let told = |problem: &Problem| format!("{}: {:?}", problem.field, problem.reason);
    problems.iter().map(told).collect()
}

/// A file, and the problems of its documents together.
const MANIFESTS: &[(&str, &[&str])] = &[
    ("delete-pods.yaml", &[]),
    ("force-opened.yaml", &[]),
    ("faults.yaml", &[]),
    ("as-short-as-it-gets.yaml", &[]),
    ("rest-rules.yaml", &["spec.rateLimitings[0].restRules: NotImplemented"]),
    ("intercept.yaml", &["spec.trafficInterceptRules: NotImplemented"]),
];

#[test]
fn its_manifests_are_accepted_or_not_served_yet() {
    for (file, expected) in MANIFESTS {
        let documents = documents(file);
        let problems = documents
            .iter()
            .flat_map(|(kind, document)| judge(kind, &document["spec"]).unwrap());
        assert_eq!(told(&problems.collect::<Vec<_>>()), *expected, "{file}");
    }
    let kept = fs::read_dir(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/original"))
        .unwrap()
        .count();
    assert_eq!(kept, MANIFESTS.len(), "a manifest that no case stands for");
}

/// Everything that is written in them is there once it was read: nothing is dropped without a word.
#[test]
fn nothing_of_its_manifests_is_lost() {
    fn lost(path: &str, written: &Value, kept: &Value, lost_ones: &mut Vec<String>) {
        match (written, kept) {
            (Value::Mapping(written), kept) => {
                for (name, value) in written {
                    lost(
                        &format!("{path}.{}", name.as_str().unwrap()),
                        value,
                        &kept[name],
                        lost_ones,
                    );
                }
            }
            (Value::Sequence(written), kept) => {
                for (index, value) in written.iter().enumerate() {
                    lost(&format!("{path}[{index}]"), value, &kept[index], lost_ones);
                }
            }
            (written, kept) if written != kept => lost_ones.push(path.to_owned()),
            _ => {}
        }
    }
    let mut lost_ones = Vec::new();
    for (file, _) in MANIFESTS {
        for (kind, document) in documents(file) {
            let kept = match kind.as_str() {
                "CircuitBreaker" => serde_yaml_ng::to_value(read::<CircuitBreakerSpec>(&document["spec"]).unwrap()),
                _ => serde_yaml_ng::to_value(read::<FaultInjectionSpec>(&document["spec"]).unwrap()),
            };
            lost(file, &document["spec"], &kept.unwrap(), &mut lost_ones);
        }
    }
    assert_eq!(lost_ones, Vec::<String>::new());
}

/// What becomes of a field.
#[derive(Debug)]
enum Fate {
    /// It means here what it meant there.
    Taken,
    /// The object is `Accepted=False, reason=NotImplemented`, naming this field.
    NotServed(&'static str),
    /// The object is `Accepted=False, reason=Invalid`, naming this field and saying this.
    Refused(&'static str, &'static str),
    /// It cannot be read: the API server refuses it, and so do we, saying this.
    Unreadable(&'static str),
}

use Fate::{NotServed, Refused, Taken, Unreadable};

/// Fields of one limit beside its name, and in their place what the case says.
fn limit(case: &str) -> String {
    let given = |field: &str| case.contains(&format!("{field}:"));
    let mut fields = vec![case.to_owned()];
    for (field, rest) in [
        ("name", "l"),
        ("bucket", "{burst: 5, interval: 1s, limit: 5}"),
        ("triggerPolicy", "Normal"),
        (
            "resourceRules",
            "[{apiGroups: [''], resources: [pods], verbs: [delete], namespaces: ['*']}]",
        ),
    ] {
        if !given(field) {
            fields.push(format!("{field}: {rest}"));
        }
    }
    format!("{{selector: {{}}, rateLimitings: [{{{}}}]}}", fields.join(", "))
}

const BREAKER: &[(&str, Fate)] = &[
    ("{selector: {matchLabels: {a: b}}}", Taken),
    // Selects nobody, there as here; a condition says so.
    ("{}", Taken),
    (
        "{selector: {matchLabels: {a: b c}}}",
        Refused("spec.selector.matchLabels[a]", "invalid value \"b c\""),
    ),
    (
        "{selector: {}, trafficInterceptRules: [{name: a, interceptType: Blacklist, contentType: Regexp, contents: [x], methods: ['*']}]}",
        NotServed("spec.trafficInterceptRules"),
    ),
    // It read both as its first word.
    (
        "{selector: {}, trafficInterceptRules: [{name: a, interceptType: Greylist, contentType: Normal}]}",
        Unreadable("unknown variant `Greylist`, expected `Whitelist` or `Blacklist`"),
    ),
    (
        "{selector: {}, trafficInterceptRules: [{name: a, interceptType: Whitelist, contentType: Glob}]}",
        Unreadable("unknown variant `Glob`, expected `Normal` or `Regexp`"),
    ),
];

/// Of one limit.
const LIMIT: &[(&str, Fate)] = &[
    ("name: deletePod", Taken),
    ("name: ''", Refused("spec.rateLimitings[0].name", "name the rule")),
    (
        "name: a/b",
        Refused("spec.rateLimitings[0].name", "although the original took it"),
    ),
    // Two overwrote each other.
    (
        "name: l}, {name: l, triggerPolicy: ForceClosed, resourceRules: [{apiGroups: ['*'], resources: ['*'], verbs: ['*'], namespaces: ['*']}]",
        Refused(
            "spec.rateLimitings[1].name",
            "is the name of spec.rateLimitings[0] already",
        ),
    ),
    (
        "resourceRules: [{apiGroups: ['*'], resources: ['*'], verbs: ['*'], namespaces: ['*']}]",
        Taken,
    ),
    // Matched nothing.
    (
        "resourceRules: [{apiGroups: [], resources: [pods], verbs: [get], namespaces: ['*']}]",
        Refused(
            "spec.rateLimitings[0].resourceRules[0].apiGroups",
            "would match nothing",
        ),
    ),
    (
        "resourceRules: []",
        Refused("spec.rateLimitings[0].resourceRules", "say which requests it counts"),
    ),
    (
        "resourceRules: [{apiGroups: [''], resources: [pods], verbs: [DELETE], namespaces: ['*']}]",
        Refused("spec.rateLimitings[0].resourceRules[0].verbs[0]", "is no verb"),
    ),
    // Its text promised subresources, its proxy ignored them.
    (
        "resourceRules: [{apiGroups: [''], resources: [pods/exec, '*/scale'], verbs: [create], namespaces: ['*']}]",
        Taken,
    ),
    (
        "resourceRules: [], restRules: [{url: 'https://a/b/*', method: GET}]",
        NotServed("spec.rateLimitings[0].restRules"),
    ),
    ("bucket: {burst: 3, interval: 1.5s, limit: 10}", Taken),
    ("bucket: {burst: 3, interval: 100ms, limit: 0}", Taken),
    // Was an unlimited rate.
    (
        "bucket: {burst: 3, interval: minute, limit: 10}",
        Refused("spec.rateLimitings[0].bucket.interval", "\"minute\" is not a duration"),
    ),
    (
        "bucket: {burst: 3, interval: '60', limit: 10}",
        Refused("spec.rateLimitings[0].bucket.interval", "is not a duration"),
    ),
    (
        "bucket: {burst: 0, interval: 1s, limit: 10}",
        Refused("spec.rateLimitings[0].bucket.burst", "triggerPolicy: ForceOpened"),
    ),
    ("bucket: {burst: 3, interval: 1s}", Unreadable("missing field `limit`")),
    (
        "bucket: {burst: -3, interval: 1s, limit: 1}",
        Refused("spec.rateLimitings[0].bucket.burst", "must be from 0"),
    ),
    ("triggerPolicy: Normal", Taken),
    ("triggerPolicy: LimiterOnly", Taken),
    ("triggerPolicy: ForceOpened", Taken),
    ("triggerPolicy: ForceClosed", Taken),
    // Was Normal.
    (
        "triggerPolicy: ForceOpen",
        Unreadable(
            "unknown variant `ForceOpen`, expected one of `Normal`, `LimiterOnly`, `ForceOpened`, `ForceClosed`",
        ),
    ),
    ("recoverPolicy: {type: Manual}", Taken),
    ("recoverPolicy: {type: SleepingWindow, sleepingWindowSize: 10m}", Taken),
    // Its proxy panicked on the first overflow without one: `limit` has none.
    ("properties: {a: b}", Taken),
    // Was Manual.
    (
        "recoverPolicy: {type: Sleeping}",
        Unreadable("unknown variant `Sleeping`, expected `Manual` or `SleepingWindow`"),
    ),
    (
        "recoverPolicy: {type: SleepingWindow}",
        Refused(
            "spec.rateLimitings[0].recoverPolicy.sleepingWindowSize",
            "after how long",
        ),
    ),
    (
        "recoverPolicy: {type: SleepingWindow, sleepingWindowSize: soon}",
        Refused(
            "spec.rateLimitings[0].recoverPolicy.sleepingWindowSize",
            "is not a duration",
        ),
    ),
];

const INJECTION: &[(&str, Fate)] = &[
    ("{selector: {matchLabels: {a: b}}}", Taken),
    ("{}", Taken),
    // Was ignored; here it is obeyed.
    ("{disabled: true}", Taken),
    (
        "{httpFault: [{name: a, delay: {fixedDelay: 100ms, percent: '60'}, match: {}}]}",
        Taken,
    ),
    // Unnamed ones overwrote each other.
    (
        "{httpFault: [{abort: {httpStatus: 500}, match: {}}, {abort: {httpStatus: 501}, match: {}}]}",
        Taken,
    ),
    (
        "{httpFault: [{name: a, abort: {httpStatus: 500}}, {name: a, abort: {httpStatus: 501}}]}",
        Refused("spec.httpFault[1].name", "already"),
    ),
    // Each of these three made its proxy panic.
    ("{httpFault: [{name: a, delay: {fixedDelay: 100ms}, match: {}}]}", Taken),
    ("{httpFault: [{name: a, abort: {httpStatus: 500}, match: {}}]}", Taken),
    (
        "{httpFault: [{name: a, abort: {httpStatus: 500, percent: '1'}}]}",
        Taken,
    ),
    (
        "{httpFault: [{name: a, delay: {fixedDelay: 100ms, percent: sixty}}]}",
        Refused("spec.httpFault[0].delay.percent", "is no percentage"),
    ),
    (
        "{httpFault: [{name: a, delay: {fixedDelay: 100, percent: '1'}}]}",
        Unreadable("invalid type: integer `100`, expected a string"),
    ),
    (
        "{httpFault: [{name: a, delay: {fixedDelay: '100', percent: '1'}}]}",
        Refused("spec.httpFault[0].delay.fixedDelay", "is not a duration"),
    ),
    (
        "{httpFault: [{name: a, delay: {percent: '1'}}]}",
        Refused("spec.httpFault[0].delay.fixedDelay", "for how long"),
    ),
    // Outside was never.
    (
        "{httpFault: [{name: a, abort: {httpStatus: 500, percent: '101'}}]}",
        Refused("spec.httpFault[0].abort.percent", "is no percentage"),
    ),
    (
        "{httpFault: [{name: a, abort: {httpStatus: 200, percent: '1'}}]}",
        Taken,
    ),
    (
        "{httpFault: [{name: a, abort: {httpStatus: 302, percent: '1'}}]}",
        Refused("spec.httpFault[0].abort.httpStatus", "400 to 599"),
    ),
    (
        "{httpFault: [{name: a, abort: {httpStatus: 500}, match: {resources: [{apiGroups: ['*'], namespaces: [a], resources: [pods], verbs: [get]}]}}]}",
        Taken,
    ),
    (
        "{httpFault: [{name: a, abort: {httpStatus: 500}, match: {resources: [{}]}}]}",
        Taken,
    ),
    (
        "{httpFault: [{name: a, abort: {httpStatus: 500}, match: {httpMatch: [{host: {exact: h}, path: {regex: '/a.*'}, method: GET, headers: [{name: X, value: '1'}]}]}}]}",
        Taken,
    ),
    // The value of a header was never looked at, and need not be there.
    (
        "{httpFault: [{name: a, abort: {httpStatus: 500}, match: {httpMatch: [{headers: [{name: X}]}]}}]}",
        Taken,
    ),
    (
        "{httpFault: [{name: a, abort: {httpStatus: 500}, match: {httpMatch: [{headers: [{value: x}]}]}}]}",
        Unreadable("missing field `name`"),
    ),
    (
        "{httpFault: [{name: a, abort: {httpStatus: 500}, match: {httpMatch: [{path: {regex: '['}}]}}]}",
        Refused("spec.httpFault[0].match.httpMatch[0].path", "unclosed character class"),
    ),
    (
        "{httpFault: [{name: a, abort: {httpStatus: 500}, effectiveTime: {startTime: '22:00:00', endTime: '06:00:00', daysOfWeek: [0, 6], daysOfMonth: [1, 31], months: [1, 12]}}]}",
        Taken,
    ),
    // Without a start or an end it looked at nothing.
    (
        "{httpFault: [{name: a, abort: {httpStatus: 500}, effectiveTime: {startTime: '', endTime: '', daysOfWeek: [1]}}]}",
        Taken,
    ),
    (
        "{httpFault: [{name: a, abort: {httpStatus: 500}, effectiveTime: {startTime: 10pm}}]}",
        Refused("spec.httpFault[0].effectiveTime.startTime", "is no time of day"),
    ),
    (
        "{httpFault: [{name: a, abort: {httpStatus: 500}, effectiveTime: {daysOfWeek: [7]}}]}",
        Refused("spec.httpFault[0].effectiveTime.daysOfWeek[0]", "0 is Sunday"),
    ),
];

fn check(kind: &str, spec: &str, fate: &Fate) {
    let found = judge(kind, &serde_yaml_ng::from_str(spec).unwrap());
    let fits = match (fate, &found) {
        (Taken, Ok(problems)) => problems.is_empty(),
        (NotServed(field), Ok(problems)) => told(problems) == [format!("{field}: NotImplemented")],
        (Refused(field, says), Ok(problems)) => {
            let problem = problems.iter().find(|problem| problem.field == *field);
            problem.is_some_and(|problem| problem.reason != Reason::NotImplemented && problem.message.contains(says))
        }
        (Unreadable(says), Err(error)) => error.contains(says),
        _ => false,
    };
    assert!(fits, "{spec}: not {fate:?} but {found:?}");
}

#[test]
fn each_field_of_its_circuit_breaker() {
    for (spec, fate) in BREAKER {
        check("CircuitBreaker", spec, fate);
    }
    for (case, fate) in LIMIT {
        check("CircuitBreaker", &limit(case), fate);
    }
}

#[test]
fn each_field_of_its_fault_injection() {
    for (spec, fate) in INJECTION {
        check("FaultInjection", spec, fate);
    }
}

/// A rule without recoverPolicy latches until a person closes it; without percent a fault hits all; 0 is never.
#[test]
fn what_is_absent_has_its_default() {
    let spec: CircuitBreakerSpec = serde_yaml_ng::from_str(&limit("name: l")).unwrap();
    let rule = &spec.rate_limitings[0];
    assert_eq!(
        (rule.trigger_policy, &rule.recover_policy),
        (TriggerPolicy::Normal, &None)
    );
    assert_eq!(
        rule.recover_policy.clone().unwrap_or_default().type_,
        RecoverType::Manual
    );
    let spec: FaultInjectionSpec =
        serde_yaml_ng::from_str("{httpFault: [{abort: {httpStatus: 500}, delay: {fixedDelay: 1s, percent: '0'}}]}")
            .unwrap();
    let fault = &spec.http_fault[0];
    assert_eq!(
        Percent::of(fault.abort.as_ref().unwrap().percent.as_deref()),
        Ok(Percent::ALL)
    );
    assert_eq!(
        Percent::of(fault.delay.as_ref().unwrap().percent.as_deref()),
        Ok(Percent::NONE)
    );
    assert_eq!(
        (fault.name_at(0).as_ref(), fault.r#match.is_none()),
        ("httpFault-0", true)
    );
}

/// The hub meets objects whose status the original's manager wrote.
#[test]
fn its_statuses_can_be_read() {
    let breaker = "
observedGeneration: 3
lastUpdatedTime: '2024-01-02T03:04:05Z'
currentSpecHash: 0cc175b9c0f1b6a831c399e269772661
targetStatus:
- podName: operator-demo-0
  podIP: 10.0.0.1
  configHash: 92eb5ffee6ae2fec3ad71c777531578f
  message: ok
  limitingSnapshots:
  - {name: deletePod, state: Opened, lastTransitionTime: '2024-01-02T03:04:05Z'}
  - {name: other, state: '', lastTransitionTime: null}
";
    let breaker: CircuitBreakerStatus = serde_yaml_ng::from_str(breaker).unwrap();
    assert_eq!(breaker.target_status[0].limiting_snapshots.len(), 2);
    let faults =
        "{observedGeneration: 1, targetStatus: [{podName: a, podIP: b, configHash: c, message: not available}]}";
    let faults: FaultInjectionStatus = serde_yaml_ng::from_str(faults).unwrap();
    assert_eq!(faults.target_status[0].pod_name, "a");
}
