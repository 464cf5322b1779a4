//! The table of `tests/original.rs`: each field of the original, its words, and what is there and what is not.

/// What becomes of a field.
#[derive(Clone, Debug)]
pub(crate) enum Fate {
    /// It means here what it meant there.
    Taken,
    /// The object is `Accepted=False, reason=NotImplemented`, naming this field.
    NotServed(&'static str),
    /// The object is `Accepted=False, reason=Invalid`, naming this field and saying this.
    Refused(&'static str, &'static str),
    /// It cannot be read: the API server refuses it, and so do we, saying this.
    Unreadable(&'static str),
}

use self::Fate::{NotServed, Refused, Taken, Unreadable};

/// Every field that its CRDs have in `spec`, by name, as far as the two kinds go.
pub(crate) const FIELDS: [(&str, &[&str]); 2] = [
    (
        "CircuitBreaker",
        &[
            "selector",
            "name",
            "apiGroups",
            "resources",
            "verbs",
            "namespaces",
            "url",
            "method",
            "resourceRules",
            "restRules",
            "bucket",
            "burst",
            "interval",
            "limit",
            "triggerPolicy",
            "recoverPolicy",
            "type",
            "sleepingWindowSize",
            "properties",
            "trafficInterceptRules",
            "interceptType",
            "contentType",
            "contents",
            "methods",
        ],
    ),
    (
        "FaultInjection",
        &[
            "selector",
            "disabled",
            "httpFault",
            "name",
            "delay",
            "fixedDelay",
            "percent",
            "abort",
            "httpStatus",
            "match",
            "resources",
            "apiGroups",
            "namespaces",
            "verbs",
            "httpMatch",
            "host",
            "path",
            "exact",
            "regex",
            "method",
            "headers",
            "value",
            "effectiveTime",
            "startTime",
            "endTime",
            "daysOfWeek",
            "daysOfMonth",
            "months",
        ],
    ),
];

pub(crate) const BREAKER: &[(&str, Fate)] = &[
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
    (
        "{selector: {}, trafficInterceptRules: [{name: a, interceptType: Whitelist, contentType: Normal, contents: ['h:80'], methods: [GET]}]}",
        NotServed("spec.trafficInterceptRules"),
    ),
    (
        "{selector: {}, trafficInterceptRules: [{interceptType: Whitelist, contentType: Normal}]}",
        Unreadable("missing field `name`"),
    ),
    (
        "{selector: {}, trafficInterceptRules: [{name: a, contentType: Normal}]}",
        Unreadable("missing field `interceptType`"),
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
pub(crate) const LIMIT: &[(&str, Fate)] = &[
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
        "resourceRules: [{apiGroups: [''], resources: [], verbs: [get], namespaces: ['*']}]",
        Refused(
            "spec.rateLimitings[0].resourceRules[0].resources",
            "would match nothing",
        ),
    ),
    (
        "resourceRules: [{apiGroups: [''], resources: [pods], namespaces: ['*']}]",
        Refused("spec.rateLimitings[0].resourceRules[0].verbs", "would match nothing"),
    ),
    (
        "resourceRules: [{apiGroups: [''], resources: [pods], verbs: [get]}]",
        Refused(
            "spec.rateLimitings[0].resourceRules[0].namespaces",
            "would match nothing",
        ),
    ),
    // There `*` was one only alone in its list.
    (
        "resourceRules: [{apiGroups: ['', '*'], resources: [pods, '*'], verbs: [get, '*'], namespaces: [a, '*']}]",
        Taken,
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
    (
        "restRules: [{url: 'https://a/b/*'}]",
        Unreadable("missing field `method`"),
    ),
    ("restRules: [{method: GET}]", Unreadable("missing field `url`")),
    ("bucket: {burst: 3, interval: 1.5s, limit: 10}", Taken),
    ("bucket: {interval: 1s, limit: 1}", Unreadable("missing field `burst`")),
    ("bucket: {burst: 3, limit: 1}", Unreadable("missing field `interval`")),
    (
        "bucket: {burst: 3, interval: 1s, limit: 4294967296}",
        Refused("spec.rateLimitings[0].bucket.limit", "must be from 0"),
    ),
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
    // Was Normal, as one is that is absent.
    (
        "triggerPolicy: ForceOpen",
        Unreadable(
            "unknown variant `ForceOpen`, expected one of `Normal`, `LimiterOnly`, `ForceOpened`, `ForceClosed`",
        ),
    ),
    ("recoverPolicy: {type: Manual}", Taken),
    // There its type was required.
    ("recoverPolicy: {}", Taken),
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

pub(crate) const INJECTION: &[(&str, Fate)] = &[
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
    (
        "{httpFault: [{name: a, abort: {httpStatus: 500, percent: '12.5'}}]}",
        Taken,
    ),
    // Was always.
    (
        "{httpFault: [{name: a, abort: {httpStatus: 500, percent: '0'}}]}",
        Taken,
    ),
    // Outside was never.
    (
        "{httpFault: [{name: a, abort: {httpStatus: 500, percent: '-1'}}]}",
        Refused("spec.httpFault[0].abort.percent", "is no percentage"),
    ),
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
        "{httpFault: [{name: a, abort: {httpStatus: '500'}}]}",
        Unreadable("invalid type: string \"500\""),
    ),
    (
        "{httpFault: [{name: a, abort: {httpStatus: 500}, match: {resources: [{}]}}]}",
        Taken,
    ),
    (
        "{httpFault: [{name: a, abort: {httpStatus: 500}, match: {resources: [{apiGroups: [], namespaces: ['*', a], resources: [pods, '*'], verbs: []}]}}]}",
        Taken,
    ),
    // The exact one counted, and any method that was empty or `*`.
    (
        "{httpFault: [{name: a, abort: {httpStatus: 500}, match: {httpMatch: [{host: {exact: h, regex: i}, path: {exact: /a, regex: b}, method: '*'}, {method: ''}]}}]}",
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
        "{httpFault: [{name: a, abort: {httpStatus: 500}, effectiveTime: {endTime: '24:00:00'}}]}",
        Refused("spec.httpFault[0].effectiveTime.endTime", "is no time of day"),
    ),
    (
        "{httpFault: [{name: a, abort: {httpStatus: 500}, effectiveTime: {daysOfMonth: [0]}}]}",
        Refused("spec.httpFault[0].effectiveTime.daysOfMonth[0]", "31"),
    ),
    (
        "{httpFault: [{name: a, abort: {httpStatus: 500}, effectiveTime: {months: [13]}}]}",
        Refused("spec.httpFault[0].effectiveTime.months[0]", "12"),
    ),
    (
        "{httpFault: [{name: a, abort: {httpStatus: 500}, effectiveTime: {daysOfWeek: [7]}}]}",
        Refused("spec.httpFault[0].effectiveTime.daysOfWeek[0]", "0 is Sunday"),
    ),
];
