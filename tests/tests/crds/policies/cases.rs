//! Documents that must be refused, and what the refusal must say.

use serde_json::Value;

/// A good limit, with what a case says in place of its fields.
pub(super) fn limit(case: &str) -> Value {
    const GOOD: &str = "{name: l, bucket: {burst: 5, interval: 1s, limit: 5}, triggerPolicy: Normal, resourceRules: [{apiGroups: [''], resources: [pods], verbs: [delete], namespaces: ['*']}]}";
    let mut limit: Value = serde_yaml_ng::from_str(GOOD).unwrap();
    let case: Value = serde_yaml_ng::from_str(case).unwrap();
    limit.as_object_mut().unwrap().extend(case.as_object().unwrap().clone());
    limit
}

/// Fields of one limit, and what the refusal must say.
pub(super) const BAD_LIMITS: &[(&str, &str)] = &[
    ("name: ''", "rateLimitings[0].name"),
    ("name: a/b", "rateLimitings[0].name"),
    ("name: 'a b '", "rateLimitings[0].name"),
    ("name: löschen", "rateLimitings[0].name"),
    ("bucket: {burst: 5, interval: soon, limit: 5}", "bucket.interval"),
    ("bucket: {burst: 5, interval: 1d, limit: 5}", "bucket.interval"),
    ("bucket: {burst: 5, interval: 721h, limit: 5}", "must be at most 720h"),
    (
        "bucket: {burst: 5, interval: 1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s1s, limit: 5}",
        "bucket.interval",
    ),
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
        "resourceRules: [{apiGroups: [''], resources: [pppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppp], verbs: [get], namespaces: ['*']}]",
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
pub(super) const BAD_BREAKERS: &[(&str, &str)] = &[
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
        "breakers: [{name: a, window: 0s}]",
        "window must be longer than nothing and at most 24h",
    ),
    ("breakers: [{name: a, openFor: 0m}]", "openFor must be longer"),
    ("breakers: [{name: a, maxOpenFor: 25h}]", "maxOpenFor must be longer"),
    (
        "selector: {matchExpressions: [{key: a..b/c, operator: Exists}]}",
        "selector.matchExpressions[0].key",
    ),
    (
        "trafficInterceptRules: [{name: a, interceptType: Greylist, contentType: Normal}]",
        "supported values: \"Whitelist\", \"Blacklist\"",
    ),
];

pub(super) const BAD_INJECTIONS: &[(&str, &str)] = &[
    ("until: tomorrow", "spec.until"),
    ("until: '2026-01-02T15:04:05'", "spec.until"),
    ("until: '2026-01-02T15:04:60Z'", "spec.until"),
    ("until: '2026-02-30T15:04:05Z'", "spec.until"),
    ("until: '2026-01-02T15:04:05+24:00'", "spec.until"),
    ("until: '9999-12-31T23:59:59Z'", "before 9999-12-30"),
    ("until: '0000-01-01T00:00:00Z'", "spec.until"),
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
        "httpFault: [{name: httpFault-1, abort: {httpStatus: 500}}, {abort: {httpStatus: 500}}]",
        "names that begin with httpFault-",
    ),
    (
        "{httpFault: [{abort: {httpStatus: 500}}], watchFault: [{name: httpFault-0, action: Drop}]}",
        "names that begin with httpFault-",
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
        "httpFault: [{abort: {httpStatus: 500}, match: {httpMatch: [{method: -GET}]}}]",
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
        "httpFault: [{abort: {httpStatus: 500}, effectiveTime: {daysOfMonth: [30, 31], months: [2]}}]",
        "no month of months has such a day",
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
        "watchFault: [{name: a, action: Drop, match: {resources: [{verbs: [get, list]}]}}]",
        "verbs without watch have no watches",
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
