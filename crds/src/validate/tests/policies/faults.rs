//! Each rule of the faults of a FaultInjection.

use super::*;

/// Problems of one fault of requests with these fields besides its name.
fn fault(more: &str) -> Vec<String> {
    let problems = injection(&format!("{{selector: {{}}, httpFault: [{{name: f, {more}}}]}}"));
    within("spec.httpFault[0].", &problems)
}

fn watch(more: &str) -> Vec<String> {
    let problems = injection(&format!("{{selector: {{}}, watchFault: [{{name: w, {more}}}]}}"));
    within("spec.watchFault[0].", &problems)
}

#[test]
fn each_fault_of_requests_names_its_field() {
    let cases: &[Case] = &[
        ("delay: {fixedDelay: 1.5s}", &[]),
        ("delay: {fixedDelay: 0s, percent: '0'}", &[]),
        (
            "delay: {fixedDelay: 5m, percent: '99.9'}, abort: {httpStatus: 503}",
            &[],
        ),
        ("abort: {httpStatus: 200}", &[]),
        ("abort: {httpStatus: 400, percent: '100'}", &[]),
        ("effectiveTime: {}", &["spec.httpFault[0]: Required"]),
        ("delay: {}", &["delay.fixedDelay: Required"]),
        ("delay: {fixedDelay: 5m1s}", &["delay.fixedDelay: Invalid"]),
        (
            "delay: {fixedDelay: later, percent: half}",
            &["delay.percent: Invalid", "delay.fixedDelay: Invalid"],
        ),
        ("abort: {}", &["abort.httpStatus: Invalid"]),
        ("abort: {httpStatus: 302}", &["abort.httpStatus: Invalid"]),
        (
            "abort: {httpStatus: 600, percent: '-1'}",
            &["abort.percent: Invalid", "abort.httpStatus: Invalid"],
        ),
        (
            "abort: {httpStatus: 503, percent: '100.1'}",
            &["abort.percent: Invalid"],
        ),
        ("abort: {httpStatus: 503, percent: ''}", &["abort.percent: Invalid"]),
        (
            "abort: {httpStatus: 503}, effectiveTime: {startTime: noon, daysOfWeek: [7], timeZone: Moon}",
            &[
                "effectiveTime.startTime: Invalid",
                "effectiveTime.daysOfWeek[0]: Invalid",
                "effectiveTime.timeZone: Invalid",
            ],
        ),
    ];
    for (more, expected) in cases {
        assert_eq!(fault(more), *expected, "{more}");
    }
}

#[test]
fn each_part_of_a_match_names_its_field() {
    let cases: &[Case] = &[
        (
            "{httpMatch: [{host: {exact: a}, path: {regex: '/api/.*'}, method: GET, headers: [{name: User-Agent, value: kubectl}, {name: x}]}, {method: '*'}, {method: ''}]}",
            &[],
        ),
        ("{httpMatch: [{host: {}}]}", &["httpMatch[0].host: Invalid"]),
        (
            "{httpMatch: [{path: {exact: '', regex: ''}}]}",
            &["httpMatch[0].path: Invalid"],
        ),
        ("{httpMatch: [{path: {regex: '('}}]}", &["httpMatch[0].path: Invalid"]),
        (
            "{httpMatch: [{method: get}, {method: 'G T'}]}",
            &["httpMatch[0].method: Invalid", "httpMatch[1].method: Invalid"],
        ),
        (
            "{httpMatch: [{headers: [{name: '', value: a}, {name: 'a b', value: a}, {name: a, value: ' a'}, {name: a, value: \"a\\nb\"}, {name: a, value: ä}]}]}",
            &[
                "httpMatch[0].headers[0].name: Invalid",
                "httpMatch[0].headers[1].name: Invalid",
                "httpMatch[0].headers[2].value: Invalid",
                "httpMatch[0].headers[3].value: Invalid",
                "httpMatch[0].headers[4].value: Invalid",
            ],
        ),
        ("{callers: [{cluster: east, pod: a-0, serviceAccount: a.b}]}", &[]),
        (
            "{callers: [{}, {cluster: '*', pod: A, serviceAccount: ''}]}",
            &[
                "callers[0]: Required",
                "callers[1].cluster: Invalid",
                "callers[1].pod: Invalid",
                "callers[1].serviceAccount: Invalid",
            ],
        ),
    ];
    for (more, expected) in cases {
        assert_eq!(matched(more), *expected, "{more}");
    }
}

#[test]
fn each_fault_of_watches_names_its_field() {
    let cases: &[Case] = &[
        ("action: Drop", &[]),
        (
            "action: Drop, after: {events: 3, bytes: 100, time: 30s}, percent: '50', part: Leg",
            &[],
        ),
        ("action: Stall", &[]),
        ("action: Stall, duration: 1h", &[]),
        ("action: Delay, duration: 500ms, part: Leg", &[]),
        (
            "action: Expire, match: {resources: [{verbs: [watch]}, {verbs: ['*']}, {verbs: []}]}",
            &[],
        ),
        ("action: RepeatBookmark", &[]),
        ("action: Delay", &["duration: Required"]),
        ("action: Delay, duration: 0s", &["duration: Invalid"]),
        ("action: Delay, duration: 6m", &["duration: Invalid"]),
        ("action: Stall, duration: 0s", &["duration: Invalid"]),
        ("action: Drop, duration: 1s", &["duration: Invalid"]),
        ("action: RepeatBookmark, part: Leg", &["part: Invalid"]),
        ("action: Drop, percent: all", &["percent: Invalid"]),
        (
            "action: Drop, after: {events: -1, bytes: -1, time: now}",
            &["after.events: Invalid", "after.bytes: Invalid", "after.time: Invalid"],
        ),
        (
            "action: Drop, match: {resources: [{verbs: [list, get]}]}",
            &["match.resources[0].verbs: Invalid"],
        ),
        (
            "action: Drop, effectiveTime: {months: [0]}",
            &["effectiveTime.months[0]: Invalid"],
        ),
    ];
    for (more, expected) in cases {
        assert_eq!(watch(more), *expected, "{more}");
    }
    let unnamed = injection("{watchFault: [{name: '', action: Drop}]}");
    assert_eq!(fields(&unnamed), ["spec.watchFault[0].name: Required"]);
}

#[test]
fn the_end_is_a_point_in_time() {
    assert_eq!(
        injection("{until: '2026-01-02T15:04:05+01:00', disabled: true}"),
        vec![]
    );
    for until in ["", "tomorrow", "2026-01-02", "2026-01-02T15:04:05"] {
        assert_eq!(
            fields(&injection(&format!("{{until: '{until}'}}"))),
            ["spec.until: Invalid"],
            "{until}"
        );
    }
}
