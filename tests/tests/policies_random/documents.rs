//! Random documents of both kinds: some good, some broken in one of the ways that people break them, some just anything.

use portolan_crds::{CircuitBreakerSpec, FaultInjectionSpec, validate_circuit_breaker, validate_fault_injection};
use rand::RngExt as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use crate::Kind;

/// Places that a document is changed in, at most.
const CHANGES: usize = 3;

/// Every field that something comes of.
const BREAKER: &str = r"
selector: {matchLabels: {shard: storm}}
callerClusters: [east]
rateLimitings:
- name: deletes
  resourceRules: [{apiGroups: [''], resources: [pods, pods/exec], verbs: [delete], namespaces: ['*', ''], clusters: [east]}]
  bucket: {burst: 10, interval: 1.5s, limit: 5}
  triggerPolicy: Normal
  recoverPolicy: {type: SleepingWindow, sleepingWindowSize: 100ms}
  scope: Shared
  cost: {list: 10, get: 0}
- name: all
  resourceRules: [{apiGroups: ['*'], resources: ['*'], verbs: ['*'], namespaces: ['*']}]
  bucket: {burst: 50, interval: 1s, limit: 50}
  triggerPolicy: LimiterOnly
breakers:
- {name: own, clusters: [east], consecutiveFailures: 5, failureRatio: 0.5, minRequests: 20, window: 30s, openFor: 1s, maxOpenFor: 2s}
";
const INJECTION: &str = r"
selector: {matchLabels: {shard: storm}}
callerClusters: [east]
disabled: false
until: '2099-01-01T00:00:00Z'
httpFault:
- name: late
  delay: {fixedDelay: 5ms, percent: '20'}
  abort: {httpStatus: 409, percent: '12.5'}
  match:
    resources: [{apiGroups: [''], resources: [configmaps], verbs: [get, create], namespaces: [], clusters: [east]}]
    httpMatch: [{path: {regex: '/api/.*'}, method: GET, headers: [{name: X-Storm, value: b}]}, {method: '*'}]
    callers: [{cluster: east}]
  effectiveTime: {startTime: '00:00:00', endTime: '23:59:59', months: [1, 12], timeZone: Europe/Berlin}
watchFault:
- {name: cut, action: Drop, after: {events: 1}, percent: '50', match: {resources: [{verbs: [watch]}]}}
- {name: put-off, action: Delay, duration: 50ms, part: Leg}
";

/// A document that may be anything.
pub(crate) fn any(kind: Kind, rng: &mut StdRng) -> Value {
    let mut spec = calm(kind);
    for _ in 0..rng.random_range(0..=CHANGES) {
        match rng.random_range(0..4) {
            0 => wreck(&mut spec, rng),
            1 => repeat(&mut spec, rng),
            _ => vary(&mut spec, rng),
        }
    }
    spec
}

/// The good document that others are made of.
pub(crate) fn calm(kind: Kind) -> Value {
    let text = match kind {
        Kind::CircuitBreaker => BREAKER,
        Kind::FaultInjection => INJECTION,
    };
    serde_yaml_ng::from_str(text).unwrap()
}

/// Some place goes, or has another value of its type: many such documents are still good.
fn vary(value: &mut Value, rng: &mut StdRng) {
    const WORDS: [&str; 20] = [
        "",
        "*",
        "a",
        "late",
        "*/scale",
        "pods/*",
        "get",
        "Normal",
        "ForceClosed",
        "PerRouter",
        "Stall",
        "Whole",
        "0",
        "0s",
        "100ms",
        "1.5h",
        "50",
        "09:00:00",
        "Asia/Tokyo",
        "2001-01-01T00:00:00Z",
    ];
    const NUMBERS: [i64; 7] = [0, 1, 5, 31, 200, 404, 100_000];
    let goes = rng.random_bool(0.1);
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            let index = rng.random_range(0..fields.len());
            let name = fields.keys().nth(index).unwrap().clone();
            if goes {
                fields.remove(&name);
            } else {
                vary(&mut fields[&name], rng);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            let index = rng.random_range(0..items.len());
            if goes {
                items.remove(index);
            } else {
                vary(&mut items[index], rng);
            }
        }
        Value::Number(_) => *value = json!(NUMBERS[rng.random_range(0..NUMBERS.len())]),
        Value::Bool(_) => *value = json!(goes),
        _ => *value = json!(WORDS[rng.random_range(0..WORDS.len())]),
    }
}

/// What may stand anywhere: of another type, too large, too much.
fn junk(rng: &mut StdRng) -> Value {
    let junk = [
        Value::Null,
        json!(true),
        json!(-1),
        json!(i64::MAX),
        json!(1e300),
        json!(0.1),
        json!(""),
        json!("\u{0}ä"),
        json!("x".repeat(5_000)),
        json!([]),
        json!({}),
        json!([[{"a": [null]}]]),
        json!("(a{99}){99}"),
        json!("9999999999h"),
        json!("Mars/Olympus"),
    ];
    junk[rng.random_range(0..junk.len())].clone()
}

/// Some place becomes something else, of whatever type.
fn wreck(value: &mut Value, rng: &mut StdRng) {
    let inside = rng.random_bool(0.85);
    match value {
        Value::Object(fields) if inside && !fields.is_empty() => {
            let index = rng.random_range(0..fields.len());
            wreck(fields.values_mut().nth(index).unwrap(), rng);
        }
        Value::Array(items) if inside && !items.is_empty() => {
            let index = rng.random_range(0..items.len());
            wreck(&mut items[index], rng);
        }
        place => *place = junk(rng),
    }
}

/// Some list has its items twice, or very often.
fn repeat(value: &mut Value, rng: &mut StdRng) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            let index = rng.random_range(0..fields.len());
            repeat(fields.values_mut().nth(index).unwrap(), rng);
        }
        Value::Array(items) if rng.random_bool(0.3) && !items.is_empty() => {
            let times = [2, 300][usize::from(rng.random_bool(0.2))];
            *items = items.iter().cycle().take(items.len() * times).cloned().collect();
        }
        Value::Array(items) if !items.is_empty() => {
            let index = rng.random_range(0..items.len());
            repeat(&mut items[index], rng);
        }
        _ => {}
    }
}

/// Ways to break a document: where, and what stands there then.
fn breakages(kind: Kind) -> Vec<(&'static str, Value)> {
    match kind {
        Kind::CircuitBreaker => vec![
            ("", json!("spec")),
            ("", json!([])),
            ("/rateLimitings", json!(7)),
            ("/rateLimitings/1", Value::Null),
            ("/rateLimitings/1/name", json!("void-even")),
            ("/rateLimitings/0/name", json!("a/b")),
            ("/rateLimitings/0/triggerPolicy", json!("ForceOpen")),
            (
                "/rateLimitings/1/bucket",
                json!({"burst": 1e30, "interval": "1s", "limit": 1}),
            ),
            (
                "/rateLimitings/1/bucket",
                json!({"burst": "5", "interval": "1s", "limit": 1}),
            ),
            ("/rateLimitings/1/recoverPolicy", json!({"type": "SleepingWindow"})),
            ("/rateLimitings/0/resourceRules/0/verbs", json!(["remove"])),
            ("/rateLimitings/0/resourceRules", json!([])),
            ("/rateLimitings/0/scope", json!("Global")),
            ("/selector", json!({"matchLabels": {"shard": "a b"}})),
            ("/selector", json!("everybody")),
            ("/breakers", json!([{"name": "b", "openFor": "3m", "maxOpenFor": "1m"}])),
        ],
        Kind::FaultInjection => vec![
            ("/httpFault/0/effectiveTime", json!({"timeZone": "Mars/Olympus"})),
            ("/httpFault/1/match/httpMatch", json!([{"path": {"regex": "("}}])),
            ("", Value::Null),
            ("", json!(1.5)),
            ("/httpFault", json!({"name": "late"})),
            ("/httpFault/1/name", json!("void-late")),
            (
                "/httpFault/0/effectiveTime",
                json!({"daysOfMonth": [31], "months": [2]}),
            ),
            ("/httpFault/0/delay/fixedDelay", json!(100)),
            ("/httpFault/0/delay/fixedDelay", json!("9999999999h")),
            ("/httpFault/0/delay/percent", json!("101")),
            ("/httpFault/1/abort/httpStatus", json!(99_999_999_999_i64)),
            ("/httpFault/1/abort/httpStatus", json!(302)),
            ("/httpFault/1/match", json!(["everything"])),
            ("/watchFault", json!([{"name": "w", "action": "Cut"}])),
            ("/watchFault", json!([{"name": "void-late", "action": "Drop"}])),
            ("/until", json!("tomorrow")),
            ("/disabled", json!("maybe")),
            ("/callerClusters", json!({"east": true})),
        ],
    }
}

/// The spec, broken in one way that leaves to be read whom it holds: of an object that was broken before a hub began, that is
/// all that the hub knows.
pub(crate) fn broken_within(kind: Kind, spec: &Value, rng: &mut StdRng) -> Value {
    loop {
        let broken = broken(kind, spec, rng);
        if ["selector", "callerClusters"]
            .iter()
            .all(|field| broken[field] == spec[field])
        {
            return broken;
        }
    }
}

/// The spec, broken in one way.
pub(crate) fn broken(kind: Kind, spec: &Value, rng: &mut StdRng) -> Value {
    let mut ways = breakages(kind);
    let (place, value) = ways.swap_remove(rng.random_range(0..ways.len()));
    let mut spec = spec.clone();
    match place.rsplit_once('/') {
        Some((parent, field)) if spec.pointer(place).is_none() => {
            spec.pointer_mut(parent).unwrap()[field] = value;
        }
        _ => *spec.pointer_mut(place).unwrap() = value,
    }
    assert!(!is_good(kind, &spec), "{spec}");
    spec
}

/// Whether hub and routers have nothing against it: by the functions that they all use.
pub(crate) fn is_good(kind: Kind, spec: &Value) -> bool {
    let text = spec.to_string();
    match kind {
        _ if !spec.is_object() => false,
        Kind::CircuitBreaker => serde_json::from_str::<CircuitBreakerSpec>(&text)
            .is_ok_and(|spec| validate_circuit_breaker(&spec).is_empty()),
        Kind::FaultInjection => serde_json::from_str::<FaultInjectionSpec>(&text)
            .is_ok_and(|spec| validate_fault_injection(&spec).is_empty()),
    }
}

/// Each way is one: else the tests would wait for a refusal that never comes, or prove nothing.
#[test]
fn each_way_to_break_a_document_breaks_it() {
    use rand::SeedableRng as _;
    let mut rng = StdRng::seed_from_u64(1);
    for kind in Kind::ALL {
        let promise = crate::promise::Promise::new(kind, "kept", "k-0");
        assert!(is_good(kind, &promise.next()) && is_good(kind, &promise.void()) && is_good(kind, &calm(kind)));
        for _ in 0..200 {
            broken(kind, &promise.void(), &mut rng);
        }
        let good = (0..400).filter(|_| is_good(kind, &any(kind, &mut rng))).count();
        assert!((100..300).contains(&good), "{good} of 400 {kind:?}s are good");
    }
}
