//! Whole documents, and some of their places made into something else.

use serde_json::{Value, json};

/// A fixed sequence (Knuth's MMIX generator), so that a failure comes back; each number is at most what is asked for.
pub(super) fn draws() -> impl FnMut(usize) -> usize {
    let mut state = 1_u64;
    move |most| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).expect("31 bits") % (most + 1)
    }
}

/// What some place may become: right here, wrong there.
const WORDS: [&str; 44] = [
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
    "2030-02-30T00:00:00Z",
    "2030-01-01T00:00:60Z",
    "9999-12-31T00:00:00Z",
    "httpFault-0",
    "-GET",
    "25h",
    "24h",
    "0.1ns",
    "1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s",
    "pppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppp",
    "a..b/c",
    "Mars/Olympus",
    "(",
    "100.0000000001",
];

/// Makes some place of it into something else, or nothing.
pub(super) fn change(value: &mut Value, draw: &mut impl FnMut(usize) -> usize) {
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
        Value::Number(_) => *value = json!([0, 1, 2, 5, 30, 31, 200, 404, 599, 100_000][draw(9)]),
        Value::Bool(_) => *value = json!(draw(1) == 0),
        _ => *value = json!(WORDS[draw(WORDS.len() - 1)]),
    }
}

/// Every field of both kinds, with a value that is not its default.
pub(super) const WHOLE_BREAKER: &str = r"
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
  callerNames: [east/ops/p]
  callersNotNamed: 1
  opened: 1
  targetStatus:
  - podName: p
    cluster: east
    router: r
    limitingSnapshots:
    - {name: deletes, state: Opened, reason: LimitExceeded, lastTransitionTime: '2026-01-02T03:04:05Z', refusedLastMinute: 3, refusedTotal: 4, tokens: 5}
";
pub(super) const WHOLE_INJECTION: &str = r"
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
  callerNames: [east/ops/p]
  callersNotNamed: 2
  targetStatus: [{podName: p, cluster: east, router: r, name: one, injectedLastMinute: 1, injectedTotal: 2}]
";
