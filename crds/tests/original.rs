//! Manifests of the original, and each field of its CircuitBreaker and FaultInjection: what becomes of them here.
//!
//! `original/` has manifests of the shapes that its documentation shows. What its proxy crashed on or misread is marked.
#![allow(clippy::unwrap_used, reason = "also in functions that only tests call")]

#[path = "fields/original.rs"]
mod fields;

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

use self::fields::Fate::{self, NotServed, Refused, Taken, Unreadable};
use self::fields::{BREAKER, FIELDS, INJECTION, LIMIT};

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

fn check(kind: &str, spec: &str, fate: &Fate) {
    let found = judge(kind, &serde_yaml_ng::from_str(spec).unwrap());
    let fits = match (fate, &found) {
        (Taken, Ok(problems)) => problems.is_empty(),
        (NotServed(field), Ok(problems)) => {
            let reason = |problem: &Problem| matches!(problem.reason, Reason::NotImplemented | Reason::NotServed);
            problems.len() == 1 && problems[0].field == *field && reason(&problems[0])
        }
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

#[test]
fn no_field_of_its_is_without_a_case() {
    for (kind, fields) in FIELDS {
        let tables = match kind {
            "CircuitBreaker" => [BREAKER, LIMIT].concat(),
            _ => INJECTION.to_vec(),
        };
        for field in fields {
            let named = |case: &str| case.contains(&format!("{field}:"));
            assert!(tables.iter().any(|(case, _)| named(case)), "{kind} {field}");
        }
    }
}

/// A rule without recoverPolicy latches until a person closes it; without percent a fault hits all; 0 is never.
#[test]
fn what_is_absent_has_its_default() {
    let without = limit("name: l").replace("triggerPolicy: Normal, ", "");
    let spec: CircuitBreakerSpec = serde_yaml_ng::from_str(&without).unwrap();
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
    let faults = "{observedGeneration: 1, lastUpdatedTime: '2024-01-02T03:04:05Z', currentSpecHash: d, targetStatus: [{podName: a, podIP: b, configHash: c, message: not available}]}";
    let faults: FaultInjectionStatus = serde_yaml_ng::from_str(faults).unwrap();
    assert_eq!(faults.target_status[0].pod_name, "a");
}
