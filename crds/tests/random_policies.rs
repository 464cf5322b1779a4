//! Documents that nobody would write: good ones, with some places made into something else. Whatever comes of it, nothing
//! panics, and what validation has nothing against can be used.
#![allow(clippy::unwrap_used, reason = "also in functions that only tests call")]

use std::collections::BTreeSet;

use portolan_crds::circuit_breaker::TriggerPolicy;
use portolan_crds::duration::parse_go_duration;
use portolan_crds::fault_injection::{EffectiveTime, Match, Percent, Schedule, parse_until};
use portolan_crds::{
    CircuitBreakerSpec, FaultInjectionSpec, Selector, validate_circuit_breaker, validate_fault_injection,
};
use proptest::prelude::*;
use proptest::sample::Index;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Every field of both, with good values.
const BREAKER: &str = r"
selector: {matchLabels: {a: b}, matchExpressions: [{key: c, operator: In, values: [d]}]}
callerClusters: [east]
rateLimitings:
- name: deletes
  resourceRules: [{apiGroups: ['', apps], resources: [pods, pods/exec, '*/scale'], verbs: [delete], namespaces: ['*', ''], clusters: [east]}]
  bucket: {burst: 10, interval: 1.5s, limit: 5}
  triggerPolicy: Normal
  recoverPolicy: {type: SleepingWindow, sleepingWindowSize: 10m}
  scope: Shared
  cost: {list: 10, get: 0}
  properties: {a: b}
- name: wall
  resourceRules: [{apiGroups: ['*'], resources: ['*'], verbs: ['*'], namespaces: ['*']}]
  triggerPolicy: ForceOpened
  scope: PerRouter
- name: rest
  restRules: [{url: 'https://a/*', method: GET}]
  bucket: {burst: 1, interval: 100ms, limit: 0}
  triggerPolicy: LimiterOnly
  scope: PerRouter
trafficInterceptRules: [{name: t, interceptType: Whitelist, contentType: Regexp, contents: [x], methods: [GET]}]
breakers:
- {name: b, clusters: [west], consecutiveFailures: 5, failureRatio: 0.5, minRequests: 20, window: 30s, openFor: 5s, maxOpenFor: 2m}
";
const INJECTION: &str = r"
selector: {matchLabels: {a: b}}
callerClusters: [east]
disabled: true
until: '2030-01-01T00:00:00Z'
httpFault:
- name: one
  delay: {fixedDelay: 1.5s, percent: '20'}
  abort: {httpStatus: 409, percent: '12.5'}
  match:
    resources: [{apiGroups: [apps], resources: [deployments], verbs: [update], namespaces: [a], clusters: [east]}]
    httpMatch: [{host: {exact: h}, path: {regex: '/api/.*'}, method: GET, headers: [{name: X-A, value: b}]}]
    callers: [{cluster: east, pod: a-0, serviceAccount: greeter}]
  effectiveTime: {startTime: '22:00:00', endTime: '06:00:00', daysOfWeek: [1], daysOfMonth: [31], months: [12], timeZone: Europe/Berlin}
- abort: {httpStatus: 200}
watchFault:
- name: two
  action: Delay
  after: {events: 3, bytes: 100, time: 30s}
  duration: 500ms
  percent: '50'
  part: Leg
  match: {resources: [{verbs: [watch]}]}
  effectiveTime: {daysOfWeek: [0, 6]}
";

/// What a place may be made into.
fn junk() -> impl Strategy<Value = Value> {
    let words = [
        "",
        "*",
        "a",
        "deletes",
        "two",
        "httpFault-1",
        "a/b",
        "*/*",
        "East",
        "get",
        "Normal",
        "ForceClosed",
        "Manual",
        "Leg",
        "Drop",
        "Stall",
        "0",
        "0s",
        "1s",
        "-1s",
        "721h",
        "1d",
        "9999999999h",
        "50",
        "100.1",
        "NaN",
        "12:00:00",
        "24:00:00",
        "Mars/Olympus",
        "Asia/Tokyo",
        "2030-01-01T00:00:00Z",
        "(",
        "(a{99}){99}",
        ".*",
        "a b",
        "ä",
        "\u{0}",
    ];
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-2_i64..600).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop::sample::select(words.to_vec()).prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        Just(json!([])),
        Just(json!({})),
        Just(json!({"a": {"b": [1]}})),
        "[a-z]{300}".prop_map(Value::from),
    ]
}

#[derive(Clone, Debug)]
enum Change {
    Put(Value),
    Remove,
    Repeat(usize),
}

fn change() -> impl Strategy<Value = (Index, Change)> {
    let change = prop_oneof![
        6 => junk().prop_map(Change::Put),
        2 => Just(Change::Remove),
        1 => (1_usize..300).prop_map(Change::Repeat),
    ];
    (any::<Index>(), change)
}

fn document(good: &'static str) -> impl Strategy<Value = Value> {
    prop::collection::vec(change(), 0..4).prop_map(move |changes| {
        let mut document: Value = serde_yaml_ng::from_str(good).unwrap();
        for (place, change) in changes {
            let mut pointers = Vec::new();
            places("", &document, &mut pointers);
            let pointer = pointers[place.index(pointers.len())].clone();
            apply(&mut document, &pointer, change);
        }
        document
    })
}

/// JSON pointers of everything in it, itself first.
fn places(at: &str, value: &Value, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                places(
                    &format!("{at}/{}", name.replace('~', "~0").replace('/', "~1")),
                    value,
                    found,
                );
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                places(&format!("{at}/{index}"), value, found);
            }
        }
        _ => {}
    }
}

fn apply(document: &mut Value, pointer: &str, change: Change) {
    let parent = pointer.rsplit_once('/');
    match (change, parent) {
        (Change::Put(value), _) => *document.pointer_mut(pointer).unwrap() = value,
        (Change::Remove, Some((parent, name))) => match document.pointer_mut(parent).unwrap() {
            Value::Object(fields) => drop(fields.remove(name)),
            Value::Array(items) => drop(items.remove(name.parse().unwrap())),
            _ => {}
        },
        (Change::Repeat(times), _) => {
            if let Some(Value::Array(items)) = document.pointer_mut(pointer) {
                *items = items.iter().cycle().take(items.len() * times).cloned().collect();
            }
        }
        (Change::Remove, None) => {}
    }
}

fn read<T: DeserializeOwned>(document: &Value) -> Option<T> {
    serde_json::from_value(document.clone()).ok()
}

/// All that a router makes ready of a limit that was accepted.
fn breaker_can_be_used(spec: &CircuitBreakerSpec) {
    let mut names = BTreeSet::new();
    for limit in &spec.rate_limitings {
        assert!(!limit.name.contains(['/', ',', '=', '@']) && names.insert(&limit.name));
        if matches!(limit.trigger_policy, TriggerPolicy::Normal | TriggerPolicy::LimiterOnly) {
            assert!(!parse_go_duration(&limit.bucket.interval).unwrap().is_zero());
            assert!(limit.bucket.burst > 0 && limit.cost.values().all(|cost| (0..=limit.bucket.burst).contains(cost)));
            u32::try_from(limit.bucket.burst).unwrap();
            u32::try_from(limit.bucket.limit).unwrap();
        }
        let window = limit
            .recover_policy
            .as_ref()
            .and_then(|recover| recover.sleeping_window_size.as_deref());
        window
            .filter(|window| !window.is_empty())
            .map(|window| parse_go_duration(window).unwrap());
    }
    for breaker in &spec.breakers {
        assert!(names.insert(&breaker.name));
        for time in [&breaker.window, &breaker.open_for, &breaker.max_open_for]
            .into_iter()
            .flatten()
        {
            assert!(!time.parse().unwrap().is_zero());
        }
    }
    spec.selector
        .as_ref()
        .map(|selector| Selector::from_label_selector(selector).unwrap());
}

fn injection_can_be_used(spec: &FaultInjectionSpec) {
    let when_and_what = |percent: Option<&str>, effective: Option<&EffectiveTime>, matched: Option<&Match>| {
        Percent::of(percent).unwrap();
        effective.map(|effective| Schedule::new(effective).unwrap());
        for head in matched.iter().flat_map(|matched| &matched.http_match) {
            for text in [&head.host, &head.path].into_iter().flatten() {
                text.compile().unwrap();
            }
        }
    };
    let mut names = BTreeSet::new();
    for (index, fault) in spec.http_fault.iter().enumerate() {
        assert!(names.insert(fault.name_at(index).into_owned()));
        let (delay, abort) = (fault.delay.as_ref(), fault.abort.as_ref());
        when_and_what(
            delay.and_then(|delay| delay.percent.as_deref()),
            fault.effective_time.as_ref(),
            fault.r#match.as_ref(),
        );
        when_and_what(abort.and_then(|abort| abort.percent.as_deref()), None, None);
        delay.map(|delay| parse_go_duration(&delay.fixed_delay).unwrap());
        assert!(abort.is_none_or(|abort| u16::try_from(abort.http_status).is_ok_and(|status| status >= 200)));
    }
    for fault in &spec.watch_fault {
        assert!(names.insert(fault.name.clone()));
        when_and_what(
            fault.percent.as_deref(),
            fault.effective_time.as_ref(),
            fault.r#match.as_ref(),
        );
        let after = fault.after.as_ref().and_then(|after| after.time.as_deref());
        for time in [fault.duration.as_deref(), after].into_iter().flatten() {
            parse_go_duration(time).unwrap();
        }
    }
    spec.until.as_deref().map(|until| parse_until(until).unwrap());
    spec.selector
        .as_ref()
        .map(|selector| Selector::from_label_selector(selector).unwrap());
}

/// A router reads the very text that the hub wrote of the spec, and must come to the same.
fn comes_back<T: DeserializeOwned + serde::Serialize + PartialEq + std::fmt::Debug>(spec: &T) {
    let written = serde_json::to_string(spec).unwrap();
    assert_eq!(&serde_json::from_str::<T>(&written).unwrap(), spec);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn circuit_breakers(document in document(BREAKER)) {
        if let Some(spec) = read::<CircuitBreakerSpec>(&document) {
            let problems = validate_circuit_breaker(&spec);
            prop_assert!(problems.iter().all(|problem| problem.field.starts_with("spec") && !problem.message.is_empty()));
            let served = |problem: &portolan_crds::Problem| problem.refuses() && problem.reason != portolan_crds::Reason::NotImplemented;
            if !problems.iter().any(served) {
                breaker_can_be_used(&spec);
                comes_back(&spec);
            }
        }
    }

    #[test]
    fn fault_injections(document in document(INJECTION)) {
        if let Some(spec) = read::<FaultInjectionSpec>(&document) {
            let problems = validate_fault_injection(&spec);
            prop_assert!(problems.iter().all(|problem| problem.field.starts_with("spec") && !problem.message.is_empty()));
            if problems.is_empty() {
                injection_can_be_used(&spec);
                comes_back(&spec);
            }
        }
    }
}

/// The documents that the others are made of are good, or the laws above would say nothing.
#[test]
fn what_is_changed_was_good() {
    let document = |good: &str| serde_yaml_ng::from_str::<Value>(good).unwrap();
    let breaker: CircuitBreakerSpec = read(&document(BREAKER)).unwrap();
    let fields: Vec<String> = validate_circuit_breaker(&breaker)
        .into_iter()
        .map(|problem| problem.field)
        .collect();
    assert_eq!(
        fields,
        ["spec.rateLimitings[2].restRules", "spec.trafficInterceptRules"]
    );
    let injection: FaultInjectionSpec = read(&document(INJECTION)).unwrap();
    assert_eq!(validate_fault_injection(&injection), vec![]);
    breaker_can_be_used(&breaker);
    injection_can_be_used(&injection);
    assert_eq!(
        serde_json::to_value(&breaker).unwrap(),
        document(BREAKER),
        "a field is missing"
    );
    assert_eq!(
        serde_json::to_value(&injection).unwrap(),
        document(INJECTION),
        "a field is missing"
    );
}
