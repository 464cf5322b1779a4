//! CircuitBreakers and FaultInjections: their rules and defaults as a real API server reads them, and that it takes what
//! validation has nothing against.

use kube::api::ListParams;
use kube::{Api, Client};
use portolan_crds::{
    CircuitBreaker, CircuitBreakerSpec, FaultInjection, FaultInjectionSpec, Problem, Reason, validate_circuit_breaker,
    validate_fault_injection,
};
use portolan_testbed::{Cluster, eventually};
use serde_json::{Value, json};

use super::{apply, create, keeps, refusal, run};

/// Applies ours and those of the original, each twice: the second time changes nothing, so nothing was dropped or rewritten.
pub(super) async fn manifests_apply_unchanged(hub: &Cluster, client: &Client) {
    let breakers = Api::<CircuitBreaker>::namespaced(client.clone(), "operator-demo");
    let injections = Api::<FaultInjection>::namespaced(client.clone(), "operator-demo");
    eventually("the kinds are served", || async {
        injections.list(&ListParams::default()).await?;
        breakers.list(&ListParams::default()).await
    })
    .await;
    for (path, objects) in [
        ("examples/circuit-breaker.yaml", 1),
        ("examples/fault-injection.yaml", 1),
        ("crds/tests/original", 7),
    ] {
        let first = apply(hub, path).await;
        assert_eq!(first.matches(".ctrlmesh.kusionstack.io/").count(), objects, "{first}");
        let again = apply(hub, path).await;
        assert_eq!(again.matches(" unchanged").count(), again.lines().count(), "{again}");
    }
    // What is left out stays so: defaults within lists are the types'.
    let short = breakers.get("short").await.unwrap().spec;
    assert_eq!(short.rate_limitings[0].recover_policy, None);
    let short = injections.get("short").await.unwrap().spec;
    let fault = &short.http_fault[0];
    let percent = fault.delay.as_ref().unwrap().percent.as_deref();
    assert_eq!((percent, fault.r#match.is_none()), (None, true));
    let kept = breakers.get("breaker-demo").await.unwrap().spec;
    assert_eq!(kept.rate_limitings[0].properties["owner"], "team-a");
}

/// A good limit, with what a case says in place of its fields.
fn limit(case: &str) -> Value {
    const GOOD: &str = "{name: l, bucket: {burst: 5, interval: 1s, limit: 5}, triggerPolicy: Normal, resourceRules: [{apiGroups: [''], resources: [pods], verbs: [delete], namespaces: ['*']}]}";
    let mut limit: Value = serde_yaml_ng::from_str(GOOD).unwrap();
    let case: Value = serde_yaml_ng::from_str(case).unwrap();
    limit.as_object_mut().unwrap().extend(case.as_object().unwrap().clone());
    limit
}

/// Fields of one limit, and what the refusal must say.
const BAD_LIMITS: &[(&str, &str)] = &[
    ("name: ''", "rateLimitings[0].name"),
    ("name: a/b", "rateLimitings[0].name"),
    ("name: 'a b '", "rateLimitings[0].name"),
    ("name: löschen", "rateLimitings[0].name"),
    ("bucket: {burst: 5, interval: soon, limit: 5}", "bucket.interval"),
    ("bucket: {burst: 5, interval: 1d, limit: 5}", "bucket.interval"),
    ("bucket: {burst: 5, interval: 721h, limit: 5}", "must be at most 720h"),
    (
        "bucket: {burst: 5, interval: 0s, limit: 5}",
        "must be longer than nothing",
    ),
    (
        "bucket: {burst: 5, interval: '', limit: 5}",
        "must be longer than nothing",
    ),
    (
        "bucket: {burst: 0, interval: 1s, limit: 5}",
        "say triggerPolicy: ForceOpened",
    ),
    ("bucket: {burst: -1, interval: 1s, limit: 5}", "bucket.burst"),
    ("bucket: {burst: 4294967296, interval: 1s, limit: 5}", "bucket.burst"),
    ("bucket: {burst: 5, interval: 1s, limit: -1}", "bucket.limit"),
    ("bucket: null", "bucket {burst, interval, limit} is needed"),
    ("cost: {list: 6}", "cost above bucket.burst"),
    ("cost: {list: -1}", "cost.list"),
    (
        "triggerPolicy: ForceOpen",
        "supported values: \"Normal\", \"LimiterOnly\", \"ForceOpened\", \"ForceClosed\"",
    ),
    (
        "recoverPolicy: {type: Sleeping}",
        "supported values: \"Manual\", \"SleepingWindow\"",
    ),
    (
        "recoverPolicy: {type: SleepingWindow}",
        "sleepingWindowSize is needed with SleepingWindow",
    ),
    (
        "recoverPolicy: {type: SleepingWindow, sleepingWindowSize: ''}",
        "sleepingWindowSize is needed with SleepingWindow",
    ),
    (
        "recoverPolicy: {type: Manual, sleepingWindowSize: x}",
        "sleepingWindowSize",
    ),
    ("scope: Global", "supported values: \"PerRouter\", \"Shared\""),
    ("resourceRules: []", "needs at least one of resourceRules"),
    ("resourceRules: [{}]", "write \"*\" for all"),
    (
        "resourceRules: [{apiGroups: [apps/v1], resources: [pods], verbs: [get], namespaces: ['*']}]",
        "apiGroups[0]",
    ),
    (
        "resourceRules: [{apiGroups: [''], resources: ['*/*'], verbs: [get], namespaces: ['*']}]",
        "resources[0]",
    ),
    (
        "resourceRules: [{apiGroups: [''], resources: [pods], verbs: [remove], namespaces: ['*']}]",
        "supported values: \"get\", \"list\"",
    ),
    (
        "resourceRules: [{apiGroups: [''], resources: [pods], verbs: [get], namespaces: [A]}]",
        "namespaces[0]",
    ),
];

/// Whole specs.
const BAD_BREAKERS: &[(&str, &str)] = &[
    ("callerClusters: [a, a]", "Duplicate value"),
    ("selector: {matchLabels: {a: b c}}", "selector.matchLabels.a"),
    ("breakers: [{name: a}, {name: a}]", "Duplicate value"),
    ("breakers: [{name: a, failureRatio: 2}]", "failureRatio"),
    (
        "breakers: [{name: a, openFor: 3m, maxOpenFor: 1m}]",
        "maxOpenFor must not be shorter",
    ),
    ("breakers: [{name: a, clusters: ['*']}]", "clusters[0]"),
    (
        "trafficInterceptRules: [{name: a, interceptType: Greylist, contentType: Normal}]",
        "supported values: \"Whitelist\", \"Blacklist\"",
    ),
];

const BAD_INJECTIONS: &[(&str, &str)] = &[
    ("until: tomorrow", "spec.until"),
    ("until: '2026-01-02T15:04:05'", "spec.until"),
    ("httpFault: [{name: a}]", "has neither delay nor abort"),
    (
        "httpFault: [{name: a/b, abort: {httpStatus: 500}}]",
        "httpFault[0].name",
    ),
    (
        "httpFault: [{name: a, abort: {httpStatus: 500}}, {name: a, abort: {httpStatus: 500}}]",
        "two of httpFault have one name",
    ),
    (
        "{httpFault: [{name: a, abort: {httpStatus: 500}}], watchFault: [{name: a, action: Drop}]}",
        "a watchFault has the name of one of httpFault",
    ),
    (
        "httpFault: [{abort: {httpStatus: 302}}]",
        "httpStatus must be from 400 to 599",
    ),
    ("httpFault: [{abort: {}}]", "httpStatus must be from 400 to 599"),
    (
        "httpFault: [{abort: {httpStatus: 500, percent: '101'}}]",
        "must be from 0 (none) to 100 (all)",
    ),
    (
        "httpFault: [{abort: {httpStatus: 500, percent: half}}]",
        "abort.percent",
    ),
    ("httpFault: [{delay: {}}]", "fixedDelay is needed"),
    ("httpFault: [{delay: {fixedDelay: 6m}}]", "at most 5m"),
    ("httpFault: [{delay: {fixedDelay: 1s, percent: ''}}]", "delay.percent"),
    (
        "httpFault: [{abort: {httpStatus: 500}, match: {httpMatch: [{host: {}}]}}]",
        "needs exact or regex",
    ),
    (
        "httpFault: [{abort: {httpStatus: 500}, match: {httpMatch: [{method: get}]}}]",
        "method",
    ),
    (
        "httpFault: [{abort: {httpStatus: 500}, match: {httpMatch: [{headers: [{name: 'a b'}]}]}}]",
        "headers[0].name",
    ),
    (
        "httpFault: [{abort: {httpStatus: 500}, match: {callers: [{}]}}]",
        "needs cluster, pod or serviceAccount",
    ),
    (
        "httpFault: [{abort: {httpStatus: 500}, effectiveTime: {startTime: '24:00:00'}}]",
        "effectiveTime.startTime",
    ),
    (
        "httpFault: [{abort: {httpStatus: 500}, effectiveTime: {daysOfWeek: [7]}}]",
        "daysOfWeek[0]",
    ),
    (
        "httpFault: [{abort: {httpStatus: 500}, effectiveTime: {timeZone: ''}}]",
        "timeZone",
    ),
    (
        "watchFault: [{name: a, action: Cut}]",
        "supported values: \"Drop\", \"Stall\"",
    ),
    (
        "watchFault: [{name: a, action: Drop}, {name: a, action: Drop}]",
        "Duplicate value",
    ),
    (
        "watchFault: [{name: a, action: Delay}]",
        "duration is needed with Delay",
    ),
    ("watchFault: [{name: a, action: Delay, duration: 6m}]", "at most 5m"),
    (
        "watchFault: [{name: a, action: Drop, duration: 1s}]",
        "duration is for Delay and Stall alone",
    ),
    (
        "watchFault: [{name: a, action: Stall, duration: 0s}]",
        "duration must be longer than nothing",
    ),
    (
        "watchFault: [{name: a, action: RepeatBookmark, part: Leg}]",
        "RepeatBookmark has no legs",
    ),
    (
        "watchFault: [{name: a, action: Drop, after: {events: -1}}]",
        "after.events",
    ),
    ("watchFault: [{name: a, action: Drop, after: {time: ''}}]", "after.time"),
];

/// Where the types can read it at all, the one function of hub, router and portolanctl refuses it as well.
pub(super) async fn bad_ones_are_refused(client: &Client) {
    let limits = BAD_LIMITS
        .iter()
        .map(|(case, fix)| (json!({"rateLimitings": [limit(case)]}), fix));
    let limit = limit("{}");
    let clash = json!({"rateLimitings": [limit], "breakers": [{"name": "l"}]});
    let twice = json!({"rateLimitings": [limit, limit]});
    let whole = BAD_BREAKERS
        .iter()
        .map(|(yaml, fix)| (serde_yaml_ng::from_str(yaml).unwrap(), fix));
    let two = [
        (clash, &"a breaker has the name of one of rateLimitings"),
        (twice, &"Duplicate value"),
    ];
    for (spec, fix) in limits.chain(whole).chain(two) {
        refusal(client, "CircuitBreaker", &spec, fix).await;
        assert_ne!(problems("CircuitBreaker", &spec), Some(vec![]), "{spec}");
    }
    for (yaml, fix) in BAD_INJECTIONS {
        let spec = serde_yaml_ng::from_str(yaml).unwrap();
        refusal(client, "FaultInjection", &spec, fix).await;
        assert_ne!(problems("FaultInjection", &spec), Some(vec![]), "{spec}");
    }
}

/// `None`: it cannot be read.
fn problems(kind: &str, spec: &Value) -> Option<Vec<Problem>> {
    if kind == "CircuitBreaker" {
        let spec = serde_json::from_value::<CircuitBreakerSpec>(spec.clone()).ok()?;
        return Some(validate_circuit_breaker(&spec));
    }
    let spec = serde_json::from_value::<FaultInjectionSpec>(spec.clone()).ok()?;
    Some(validate_fault_injection(&spec))
}

/// What validation has nothing against, the API server takes: the widest there is, and documents with some places changed.
pub(super) async fn good_ones_are_taken(client: &Client) {
    let rule = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"], "namespaces": ["*"]});
    let limits: Vec<Value> = (0..256)
        .map(|index| {
            let mut limit = limit("cost: {list: 5}");
            limit["name"] = json!(format!("{index:0>253}"));
            limit["resourceRules"] = json!([rule, rule, rule, rule]);
            limit
        })
        .collect();
    let breakers: Vec<Value> = (0..64)
        .map(|index| json!({"name": format!("b{index:0>252}")}))
        .collect();
    taken(
        client,
        "CircuitBreaker",
        &json!({"rateLimitings": limits, "breakers": breakers}),
    )
    .await;
    let faults = |prefix: &str, more: Value| -> Vec<Value> {
        let named = |index| {
            let mut fault = more.clone();
            fault["name"] = json!(format!("{prefix}{index:0>252}"));
            fault
        };
        (0..128).map(named).collect()
    };
    let matched = json!({"resources": [rule, rule, rule, rule]});
    let requests = faults(
        "h",
        json!({"abort": {"httpStatus": 500, "percent": "12.5"}, "match": matched}),
    );
    let watches = faults(
        "w",
        json!({"action": "Delay", "duration": "1.5s", "match": {"resources": [{}, {}, {}, {}]}}),
    );
    let most = json!({"httpFault": requests, "watchFault": watches});
    taken(client, "FaultInjection", &most).await;

    let mut draw = draws();
    let mut judged = 0;
    while judged < CHANGED {
        for (kind, whole) in [("CircuitBreaker", WHOLE_BREAKER), ("FaultInjection", WHOLE_INJECTION)] {
            let whole: Value = serde_yaml_ng::from_str(whole).unwrap();
            let mut spec = whole["spec"].clone();
            for _ in 0..=draw(1) {
                change(&mut spec, &mut draw);
            }
            if accepted(kind, &spec) && !empty_clusters(&spec) {
                taken(client, kind, &spec).await;
                judged += 1;
            }
        }
    }
}

async fn taken(client: &Client, kind: &str, spec: &Value) {
    assert!(accepted(kind, spec), "{spec}");
    assert_eq!(create(client, kind, "candidate", spec).await, Ok(()), "{spec}");
}

fn accepted(kind: &str, spec: &Value) -> bool {
    problems(kind, spec).is_some_and(|problems| problems.iter().all(|problem| problem.reason == Reason::NotImplemented))
}

/// The schema refuses an empty list of clusters, which would mean all of them; the types cannot tell it from an absent one.
fn empty_clusters(spec: &Value) -> bool {
    let breakers = spec["breakers"].as_array().into_iter().flatten();
    let lists = breakers
        .map(|breaker| &breaker["clusters"])
        .chain([&spec["callerClusters"]]);
    lists.into_iter().any(|list| list.as_array().is_some_and(Vec::is_empty))
}

/// Changed documents that are accepted.
const CHANGED: usize = 300;

/// A fixed sequence (Knuth's MMIX generator), so that a failure comes back; each number is at most what is asked for.
fn draws() -> impl FnMut(usize) -> usize {
    let mut state = 1_u64;
    move |most| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).expect("31 bits") % (most + 1)
    }
}

/// Makes some place of it into something else, or nothing.
fn change(value: &mut Value, draw: &mut impl FnMut(usize) -> usize) {
    const WORDS: [&str; 30] = [
        "",
        "*",
        "a",
        "deletes",
        "a:b (c)",
        "*/scale",
        "pods/*",
        "get",
        "watch",
        "LimiterOnly",
        "ForceClosed",
        "Manual",
        "Leg",
        "Stall",
        "Expire",
        "0",
        "0s",
        "1h2m3.5s",
        ".5s",
        "1.s",
        "1µs",
        "1μs",
        "720h",
        "5m",
        ".5",
        "007.",
        "9:00:00",
        "23:59:59",
        "Asia/Tokyo",
        "2030-01-01t00:00:00.5+01:00",
    ];
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            let index = draw(fields.len() - 1);
            let name = fields.keys().nth(index).cloned().expect("it is below their number");
            match draw(9) {
                0 => drop(fields.remove(&name)),
                _ => change(&mut fields[&name], draw),
            }
        }
        Value::Array(items) if !items.is_empty() => {
            let index = draw(items.len() - 1);
            match draw(9) {
                0 => drop(items.remove(index)),
                _ => change(&mut items[index], draw),
            }
        }
        Value::Number(_) => *value = json!([0, 1, 5, 31, 200, 404, 599, 100_000][draw(7)]),
        Value::Bool(_) => *value = json!(draw(1) == 0),
        _ => *value = json!(WORDS[draw(WORDS.len() - 1)]),
    }
}

/// Every field of both kinds, with a value that is not its default.
const WHOLE_BREAKER: &str = r"
spec:
  selector: {matchLabels: {a: b}, matchExpressions: [{key: a, operator: In, values: [b]}]}
  callerClusters: [east]
  rateLimitings:
  - name: deletes
    resourceRules: [{apiGroups: [''], resources: [pods, pods/exec], verbs: [delete], namespaces: ['*', ''], clusters: [east]}]
    restRules: [{url: 'https://a/*', method: GET}]
    bucket: {burst: 10, interval: 1.5s, limit: 5}
    triggerPolicy: LimiterOnly
    recoverPolicy: {type: SleepingWindow, sleepingWindowSize: 10m}
    scope: Shared
    cost: {list: 10, get: 0, watch: 1, create: 1, update: 1, patch: 1, delete: 1, deletecollection: 2, proxy: 3}
    properties: {a: b}
  trafficInterceptRules: [{name: t, interceptType: Blacklist, contentType: Regexp, contents: [x], methods: [GET]}]
  breakers:
  - {name: b, clusters: [west], consecutiveFailures: 5, failureRatio: 0.5, minRequests: 20, window: 30s, openFor: 5s, maxOpenFor: 2m}
status:
  observedGeneration: 1
  conditions:
  - {type: Accepted, status: 'True', reason: Ok, message: '', observedGeneration: 1, lastTransitionTime: '2026-01-02T03:04:05Z'}
  callers: 2
  opened: 1
  targetStatus:
  - podName: p
    cluster: east
    router: r
    limitingSnapshots:
    - {name: deletes, state: Opened, reason: LimitExceeded, lastTransitionTime: '2026-01-02T03:04:05Z', refusedLastMinute: 3, refusedTotal: 4, tokens: 5}
";
const WHOLE_INJECTION: &str = r"
spec:
  selector: {matchLabels: {a: b}}
  callerClusters: [east]
  disabled: true
  until: '2030-01-01T00:00:00Z'
  httpFault:
  - name: one
    delay: {fixedDelay: 1.5s, percent: '20'}
    abort: {httpStatus: 409, percent: '12.5'}
    match: &match
      resources: [{apiGroups: [apps], resources: [deployments], verbs: [watch], namespaces: [a], clusters: [east]}]
      httpMatch: [{host: {exact: h, regex: i}, path: {regex: '/api/.*'}, method: GET, headers: [{name: X-A, value: b}]}]
      callers: [{cluster: east, pod: a-0, serviceAccount: greeter}]
    effectiveTime: &when
      {startTime: '22:00:00', endTime: '06:00:00', daysOfWeek: [1], daysOfMonth: [31], months: [12], timeZone: Europe/Berlin}
  watchFault:
  - name: two
    action: Delay
    after: {events: 3, bytes: 100, time: 30s}
    duration: 500ms
    percent: '50'
    part: Leg
    match: *match
    effectiveTime: *when
status:
  observedGeneration: 1
  conditions:
  - {type: Accepted, status: 'False', reason: Invalid, message: '', observedGeneration: 1, lastTransitionTime: '2026-01-02T03:04:05Z'}
  - {type: Active, status: 'False', reason: Disabled, message: '', observedGeneration: 1, lastTransitionTime: '2026-01-02T03:04:05Z'}
  callers: 3
  targetStatus: [{podName: p, cluster: east, router: r, name: one, injectedLastMinute: 1, injectedTotal: 2}]
";

pub(super) async fn every_field_is_kept(client: &Client) {
    let breakers = Api::<CircuitBreaker>::namespaced(client.clone(), "operator-demo");
    keeps(&breakers, "CircuitBreaker", WHOLE_BREAKER).await;
    let injections = Api::<FaultInjection>::namespaced(client.clone(), "operator-demo");
    keeps(&injections, "FaultInjection", WHOLE_INJECTION).await;
}

pub(super) async fn people_see_the_columns(hub: &Cluster) {
    for (kind, columns) in [
        ("cbk", ["whole", "True", "Ok", "2", "1"]),
        ("fj", ["whole", "False", "Invalid", "False", "3"]),
    ] {
        let table = run(hub, &["get", kind, "-n", "operator-demo"]).await;
        let row = |line: &str| line.split_whitespace().take(columns.len()).eq(columns);
        assert!(table.lines().any(row), "{table}");
    }
    let explained = run(
        hub,
        &["explain", "circuitbreakers.spec.rateLimitings.resourceRules.resources"],
    )
    .await;
    assert!(explained.contains("pods/exec"), "{explained}");
}
