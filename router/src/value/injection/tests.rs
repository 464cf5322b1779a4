//! What specs compile to. What validation refuses does not come here (`portolan_crds::validate`).

use http::Request;
use serde_json::{Value, json};

use super::*;

fn compile(spec: Value) -> Result<Faults, String> {
    let spec: FaultInjectionSpec = serde_json::from_value(spec).unwrap();
    Faults::compile(&"FaultInjection/ops/fj".into(), &"uid".into(), &spec)
}

fn request(faults: Value) -> Vec<RequestFault> {
    compile(json!({ "httpFault": faults })).unwrap().requests
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

const WHO: Who<'static> = Who {
    cluster: "east",
    pod: "operator-0",
    service_account: "operator",
};

/// The predecessor ended for a missing percentage and a missing match, and gave all rules without a name the same one.
#[test]
fn what_is_left_out_means_all_and_has_a_name() {
    let faults = request(json!([{"abort": {"httpStatus": 500}}, {"name": "own", "delay": {"fixedDelay": "1.5s"}}]));
    let names: Vec<String> = faults.iter().map(|fault| fault.name.to_string()).collect();
    assert_eq!(names, ["ops/fj/httpFault-0", "ops/fj/own"]);
    assert_eq!(faults[0].abort.unwrap().percent, Percent::ALL);
    assert_eq!(faults[1].delay.unwrap().time, Duration::from_millis(1500));
    let (head, ()) = Request::new(()).into_parts();
    for fault in &faults {
        assert!(fault.when.concerns(Head(&head), WHO));
        assert!(fault.when.is_in_force(Timestamp::now()) && !fault.when.is_timed());
    }
}

#[test]
fn a_disabled_one_orders_nothing_and_200_is_no_abort() {
    let fault = json!([{"abort": {"httpStatus": 500}}]);
    assert_eq!(
        compile(json!({"disabled": true, "httpFault": fault})),
        Ok(Faults::default())
    );
    let fault = &request(json!([{"abort": {"httpStatus": 200}, "delay": {"fixedDelay": "0s"}}]))[0];
    assert_eq!((fault.abort, fault.delay), (None, None));
}

/// The predecessor's windows over midnight were never active, and days counted only with both times given.
#[test]
fn windows_may_go_over_midnight_and_days_count_by_themselves() {
    let overnight = request(json!([{
        "abort": {"httpStatus": 500},
        "effectiveTime": {"startTime": "23:00:00", "endTime": "01:00:00"},
    }]));
    let when = &overnight[0].when;
    for (time, active) in [
        ("2026-03-02T22:59:59Z", false),
        ("2026-03-02T23:30:00Z", true),
        ("2026-03-03T00:59:59Z", true),
        ("2026-03-03T01:00:01Z", false),
    ] {
        assert_eq!(when.is_in_force(at(time)), active, "{time}");
    }
    let sundays = request(json!([{"abort": {"httpStatus": 500}, "effectiveTime": {"daysOfWeek": [0]}}]));
    assert!(sundays[0].when.is_in_force(at("2026-03-01T12:00:00Z")));
    assert!(!sundays[0].when.is_in_force(at("2026-03-02T12:00:00Z")));
    assert!(sundays[0].when.is_timed());
}

#[test]
fn nothing_happens_from_until_on() {
    let spec = json!({"until": "2026-03-01T12:00:00+01:00", "httpFault": [{"abort": {"httpStatus": 500}}]});
    let when = compile(spec).unwrap().requests.remove(0).when;
    assert!(when.is_in_force(at("2026-03-01T10:59:59Z")));
    assert!(!when.is_in_force(at("2026-03-01T11:00:00Z")));
}

#[test]
fn heads_are_read_as_the_client_sent_them() {
    let matches = |rule: Value, uri: &str, host: &str| {
        let rule = serde_json::from_value(rule).unwrap();
        let request = Request::builder()
            .uri(uri)
            .header("host", host)
            .header("x", "1")
            .header("x", "2");
        let (head, ()) = request.body(()).unwrap().into_parts();
        HeadMatch::compile(&rule).unwrap().matches(Head(&head))
    };
    for (rule, uri, yes) in [
        (json!({"host": {"exact": "router.test"}}), "/a", true),
        (json!({"host": {"exact": "router.test"}}), "https://other.test/a", false),
        (
            json!({"host": {"regex": "other[.].*"}}),
            "https://OTHER.test:8443/a",
            true,
        ),
        (json!({"path": {"exact": "/a%20b"}}), "/a%20b?c=d", true),
        (json!({"path": {"exact": "/a b"}}), "/a%20b", false),
        (json!({"path": {"regex": "/a|/b"}}), "/a/b", false),
        (json!({"method": "GET"}), "/a", true),
        (json!({"method": "*"}), "/a", true),
        (json!({"method": "PUT"}), "/a", false),
        (json!({"headers": [{"name": "X", "value": "2"}]}), "/a", true),
        (
            json!({"headers": [{"name": "X", "value": "2"}, {"name": "y", "value": "2"}]}),
            "/a",
            false,
        ),
        (json!({"headers": [{"name": "X"}]}), "/a", true),
        (json!({"headers": [{"name": "y"}]}), "/a", false),
    ] {
        assert_eq!(matches(rule.clone(), uri, "Router.test:443"), yes, "{rule} {uri}");
    }
}

#[test]
fn edits_of_a_rule_make_another_of_it() {
    let one = |spec: Value| compile(spec).unwrap();
    let before = one(json!({"watchFault": [{"name": "a", "action": "Stall"}, {"name": "b", "action": "Drop"}]}));
    let edited = one(json!({"watchFault": [
        {"name": "a", "action": "Stall", "match": {"httpMatch": [{"path": {"regex": "/x"}}]}},
        {"name": "b", "action": "Drop"},
    ]}));
    assert_ne!(before.watches[0], edited.watches[0]);
    assert_eq!(before.watches[1], edited.watches[1]);
}
