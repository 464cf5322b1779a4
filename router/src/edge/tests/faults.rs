//! Ordered faults, from a replica's socket to a scripted member's. Each defect of the predecessor has a test that says so.

mod watches;

use std::sync::atomic::{AtomicBool, AtomicUsize};

use http::header::RETRY_AFTER;
use http::{Response, StatusCode};
use hyper::body::Incoming;
use portolan_wire::v1;
use portolan_wire::v1::resource::Body;
use serde_json::{Value, json};

use super::*;
use crate::edge::operators::Operators;
use crate::resource::injected::Kind;
use crate::resource::upstream::scripted::spawn;
use crate::value::snapshot::told;

const PODS: &str = "/api/v1/namespaces/east/pods";
const ONE: &str = "/api/v1/namespaces/east/pods/one";
const ELECTION: &str = "/apis/coordination.k8s.io/v1/namespaces/ops/leases/leader";

async fn operators(script: Script) -> (Backend, Operators) {
    bounded(script, Bounds::default()).await
}

async fn bounded(script: Script, bounds: Bounds) -> (Backend, Operators) {
    let backend = Backend::start(100, script).await;
    let operators = Operators::bounded(&[("east", &backend)], bounds).await;
    (backend, operators)
}

fn marks(answer: &Response<Incoming>) -> Option<&str> {
    answer
        .headers()
        .get("portolan-fault")
        .map(|value| value.to_str().unwrap())
}

fn faults(faults: &Value) -> Value {
    json!({ "httpFault": faults })
}

#[tokio::test]
async fn an_abort_is_answered_as_an_api_server_would_and_reaches_no_member() {
    let (backend, operators) = operators(mirror()).await;
    operators.order(&faults(&json!([{"name": "away", "abort": {"httpStatus": 503}}])));
    let answer = operators.get(ONE).await;
    assert_eq!(marks(&answer), Some("ops/fj/away"));
    assert!(!answer.headers().contains_key(RETRY_AFTER));
    let seen = json(answer).await;
    assert_status(&seen, 503, "ServiceUnavailable");
    let cause = &seen["details"]["causes"][0];
    assert_eq!(cause["reason"], "Policy", "{seen}");
    assert!(
        cause["message"]
            .as_str()
            .unwrap()
            .starts_with("FaultInjection/ops/fj/away"),
        "{seen}"
    );
    assert_eq!(
        (&seen["details"]["kind"], &seen["details"]["name"]),
        (&json!("pods"), &json!("one"))
    );
    assert_eq!(backend.seen.requests(), 0);
    assert_eq!(operators.router.injected.count(Kind::Abort), 1);
    let other = operators.ask("b", "GET", ONE).await;
    assert_eq!(other.status(), 200, "who is not selected is served");
    assert!(!other.headers().contains_key("portolan-fault"));
    operators.stop();
    assert_eq!(operators.get(ONE).await.status(), 200);
}

#[tokio::test]
async fn each_code_comes_with_the_reason_that_api_servers_give() {
    let (backend, operators) = operators(mirror()).await;
    for (method, path, code, reason) in [
        ("GET", ONE, 404, "NotFound"),
        ("POST", PODS, 409, "AlreadyExists"),
        ("PUT", ONE, 409, "Conflict"),
        ("GET", PODS, 410, "Expired"),
        ("PUT", ONE, 422, "Invalid"),
        ("GET", ONE, 403, "Forbidden"),
        ("GET", PODS, 429, "TooManyRequests"),
        ("GET", PODS, 500, "InternalError"),
        ("GET", PODS, 504, "Timeout"),
    ] {
        operators.order(&faults(&json!([{"name": "it", "abort": {"httpStatus": code}}])));
        let answer = operators.ask("a", method, path).await;
        let waits = answer.headers().get(RETRY_AFTER).cloned();
        assert_eq!(waits.is_some(), code == 429, "{method} {code}");
        assert_status(&json(answer).await, code, reason);
    }
    // Clients repeat a watch for ever that is refused so: API servers tell it within the stream.
    operators.order(&faults(&json!([{"name": "it", "abort": {"httpStatus": 410}}])));
    let answer = operators.get(&format!("{PODS}?watch=true")).await;
    assert_eq!((answer.status(), marks(&answer)), (StatusCode::OK, Some("ops/fj/it")));
    let event = json(answer).await;
    assert_eq!(event["type"], "ERROR");
    assert_status(&event["object"], 410, "Expired");
    assert_eq!(backend.seen.requests(), 0);
}

/// The predecessor's order was that of a random map.
#[tokio::test]
async fn delays_add_up_and_then_the_first_abort_in_order_counts() {
    let (backend, operators) = operators(mirror()).await;
    operators.order(&faults(&json!([
        {"name": "slow", "delay": {"fixedDelay": "60ms"}},
        {"name": "away", "abort": {"httpStatus": 500}, "delay": {"fixedDelay": "40ms"}},
        {"name": "other", "abort": {"httpStatus": 503}},
    ])));
    for _ in 0..5 {
        let before = Instant::now();
        let answer = operators.get(ONE).await;
        assert!(before.elapsed() >= Duration::from_millis(100));
        assert_eq!(answer.status(), 500);
        assert_eq!(marks(&answer), Some("ops/fj/slow, ops/fj/away"));
    }
    operators.order(&faults(&json!([{"name": "slow", "delay": {"fixedDelay": "40ms"}}])));
    let answer = operators.get(ONE).await;
    assert_eq!((answer.status(), marks(&answer)), (StatusCode::OK, Some("ops/fj/slow")));
    assert_eq!(backend.seen.requests(), 1, "what is only late arrives");
    assert_eq!(operators.router.injected.count(Kind::Delay), 11);
}

/// The predecessor slept on when its client had gone.
#[tokio::test]
async fn a_delay_ends_when_its_client_goes_and_few_may_wait() {
    let bounds = Bounds {
        // Half of it is for three, with their tokens.
        max_waiting: 208 << 10,
        ..Bounds::default()
    };
    let (_backend, operators) = bounded(mirror(), bounds).await;
    operators.order(&faults(&json!([{"name": "slow", "delay": {"fixedDelay": "5m"}}])));
    let mut client = operators.connect().await;
    let mut wait = || {
        let asked = client.send_request(operators.request("a", "GET", ONE, ""));
        spawn(async move { drop(asked.await) })
    };
    let waiting = [wait(), wait(), wait()];
    let refused = async {
        loop {
            // As many as may wait do.
            let asked = operators.get(ONE);
            if let Ok(answer) = tokio::time::timeout(Duration::from_millis(300), asked).await {
                return answer;
            }
        }
    };
    let answer = tokio::time::timeout(PATIENCE, refused).await.expect("it is bounded");
    assert_eq!((answer.status().as_u16(), marks(&answer)), (429, Some("ops/fj/slow")));
    assert!(answer.headers().contains_key(RETRY_AFTER));
    assert_eq!(
        operators.ask("b", "GET", ONE).await.status(),
        200,
        "others wait for nobody"
    );
    for one in waiting {
        one.abort();
    }
    let free = async {
        // Whoever is not refused waits.
        while tokio::time::timeout(Duration::from_millis(300), operators.get(ONE))
            .await
            .is_ok()
        {}
    };
    tokio::time::timeout(PATIENCE, free)
        .await
        .expect("their places are free");
}

#[tokio::test]
async fn a_delay_is_over_with_the_time_of_its_request_or_with_its_order() {
    let bounds = Bounds {
        request_timeout: Duration::from_millis(300),
        ..Bounds::default()
    };
    let (backend, operators) = bounded(mirror(), bounds).await;
    operators.order(&faults(&json!([{"name": "slow", "delay": {"fixedDelay": "5m"}}])));
    let answer = tokio::time::timeout(PATIENCE, operators.get(ONE)).await.unwrap();
    assert_status(&json(answer).await, 504, "Timeout");
    assert_eq!(backend.seen.requests(), 0);
    // A watch may wait longer for its head, but not when the switch is thrown.
    let watch = format!("{PODS}?watch=true&timeoutSeconds=1");
    let (answer, ()) = tokio::join!(operators.get(&watch), async {
        while operators.router.injected.count(Kind::Delay) < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        operators.stop();
    });
    assert_ne!(answer.status(), 504, "it went on at once");
}

/// The predecessor's 0 % meant always; a missing percentage, or no match, was the end of it.
#[tokio::test]
async fn zero_percent_is_never_and_none_is_always() {
    let (_backend, operators) = operators(mirror()).await;
    for (percent, hits) in [
        (json!("0"), 0),
        (json!("0.0"), 0),
        (json!("100"), 30),
        (json!(null), 30),
    ] {
        let mut abort = json!({"httpStatus": 500});
        if !percent.is_null() {
            abort["percent"] = percent.clone();
        }
        operators.order(&faults(&json!([{"abort": abort}])));
        let mut client = operators.connect().await;
        let mut hit = 0;
        for _ in 0..30 {
            let answer = client
                .send_request(operators.request("a", "GET", ONE, ""))
                .await
                .unwrap();
            hit += usize::from(answer.status() == 500);
        }
        assert_eq!(hit, hits, "{percent}");
    }
    operators.order(&faults(&json!([{"abort": {"httpStatus": 500, "percent": "50"}}])));
    let mut client = operators.connect().await;
    let mut hit = 0;
    for _ in 0..200 {
        let answer = client
            .send_request(operators.request("a", "GET", ONE, ""))
            .await
            .unwrap();
        hit += usize::from(answer.status() == 500);
    }
    assert!((50..150).contains(&hit), "{hit} of 200 at a half");
}

/// Whether a rule hits a GET of replica `a`, beside one that hits all.
async fn hits(operators: &Operators, rule: &Value, path: &str, agent: &str) -> bool {
    operators.order(&faults(&json!([
        {"abort": {"httpStatus": 500}, "match": rule},
        {"delay": {"fixedDelay": "1ms"}},
    ])));
    let mut request = operators.request("a", "GET", path, "");
    request.headers_mut().insert("user-agent", agent.parse().unwrap());
    let answer = operators.connect().await.send_request(request).await.unwrap();
    // Rules without a name have one each.
    let hits = answer.status() == 500;
    let expected = if hits {
        "ops/fj/httpFault-1, ops/fj/httpFault-0"
    } else {
        "ops/fj/httpFault-1"
    };
    assert_eq!(marks(&answer), Some(expected), "{rule}");
    hits
}

const EXPLICIT: &str = "/clusters/east/api/v1/namespaces/east/pods/one";

/// The predecessor never looked at headers, and had one name for all rules without one.
#[tokio::test]
async fn requests_are_matched_by_their_heads() {
    let (_backend, operators) = operators(mirror()).await;
    for (head, path, agent, expected) in [
        (json!({"path": {"exact": ONE}}), ONE, "", true),
        (json!({"path": {"exact": ONE}}), EXPLICIT, "", false),
        (json!({"path": {"exact": ONE, "regex": "nothing"}}), ONE, "", true),
        (json!({"path": {"regex": "/api/v1/.*/one"}}), ONE, "", true),
        (json!({"path": {"regex": "namespaces"}}), ONE, "", false),
        (json!({"path": {"regex": "/clusters/east/.*"}}), EXPLICIT, "", true),
        (json!({"host": {"exact": "Router.test"}}), ONE, "", true),
        (json!({"host": {"regex": "router[.]tes"}}), ONE, "", false),
        (json!({"method": "GET"}), ONE, "", true),
        (json!({"method": "POST"}), ONE, "", false),
        (
            json!({"headers": [{"name": "user-agent", "value": "x"}]}),
            ONE,
            "x",
            true,
        ),
        (
            json!({"headers": [{"name": "User-Agent", "value": "x"}]}),
            ONE,
            "y",
            false,
        ),
    ] {
        let rule = json!({ "httpMatch": [head, {"method": "PUT"}] });
        assert_eq!(hits(&operators, &rule, path, agent).await, expected, "{rule} {path}");
    }
}

#[tokio::test]
async fn requests_are_matched_by_caller_and_resource() {
    let (_backend, operators) = operators(mirror()).await;
    for (rule, expected) in [
        (json!({"callers": [{"pod": "operator-a", "cluster": "east"}]}), true),
        (
            json!({"callers": [{"pod": "operator-b"}, {"serviceAccount": "other"}]}),
            false,
        ),
        (json!({"resources": [{"resources": ["pods"], "verbs": ["get"]}]}), true),
        (json!({"resources": [{"resources": ["pods/exec"]}]}), false),
        (json!({"resources": [{"clusters": ["west"]}]}), false),
        (json!({"resources": [{}], "httpMatch": [{"method": "POST"}]}), false),
    ] {
        assert_eq!(hits(&operators, &rule, ONE, "").await, expected, "{rule}");
    }
}

/// The predecessor did not read `disabled`.
#[tokio::test]
async fn what_is_disabled_or_over_orders_nothing() {
    let (_backend, operators) = operators(mirror()).await;
    let fault = json!([{"abort": {"httpStatus": 500}}]);
    for spec in [
        json!({"disabled": true, "httpFault": fault}),
        json!({"until": "2020-01-01T00:00:00Z", "httpFault": fault}),
        json!({"httpFault": [{"abort": {"httpStatus": 200}}]}),
    ] {
        operators.order(&spec);
        let answer = operators.get(ONE).await;
        assert_eq!((answer.status(), marks(&answer)), (StatusCode::OK, None), "{spec}");
    }
}

#[tokio::test]
async fn elections_fail_where_they_are_named_alone() {
    let (backend, operators) = operators(mirror()).await;
    let abort = json!({"httpStatus": 500});
    operators.order(&faults(
        &json!([{"abort": abort}, {"abort": abort, "match": {"resources": [{"resources": ["*"]}]}}]),
    ));
    assert_eq!(marks(&operators.get(ELECTION).await), None);
    assert_eq!(backend.seen.requests(), 1, "it went to its member");
    let other = ELECTION.replace("leader", "another");
    assert_eq!(operators.get(&other).await.status(), 500, "no election's");
    operators.order(&faults(
        &json!([{"abort": abort, "match": {"resources": [{"resources": ["leases"]}]}}]),
    ));
    assert_eq!(operators.get(ELECTION).await.status(), 500);
    assert_eq!(backend.seen.requests(), 1);
}

#[tokio::test]
async fn an_abort_teaches_nothing_about_its_member() {
    let (backend, operators) = operators(mirror()).await;
    operators.order(&faults(&json!([{"abort": {"httpStatus": 503}}])));
    let mut client = operators.connect().await;
    for _ in 0..100 {
        let answer = client
            .send_request(operators.request("a", "GET", ONE, ""))
            .await
            .unwrap();
        assert_eq!(answer.status(), 503);
    }
    assert_eq!(backend.seen.requests(), 0);
    let routing = operators.router.routing.load();
    let upstream = routing.upstreams.get("east").unwrap();
    for class in TrafficClass::ALL {
        assert_eq!(upstream.breaker(class).report().state, State::Closed, "{class:?}");
    }
    let answer = operators.ask("b", "GET", ONE).await;
    assert_eq!(answer.status(), 200);
}

/// A FaultInjection whose one rule hits everything and is named after its edit.
fn marked(object: &str, edit: usize) -> Body {
    let rule = json!([{"name": format!("edit-{edit}"), "delay": {"fixedDelay": "1us"}}]);
    let Body::Policy(policy) = told::fault_injection(&faults(&rule)) else {
        unreachable!("it is one")
    };
    Body::Policy(v1::Policy {
        name: format!("FaultInjection/ops/{object}"),
        uid: object.to_owned(),
        ..policy
    })
}

/// The predecessor read its rules while they were written, and ended for it. Here two objects change together, each of which
/// marks all answers by the edit that it is of: of half an edit an answer would have marks of two.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_request_is_judged_by_half_an_edit() {
    const EDITS: usize = 300;
    const SEEN: usize = 10;
    let (_backend, operators) = operators(mirror()).await;
    operators.tell([marked("one", 0), marked("other", 0)]);
    operators.hold(&["FaultInjection/ops/one", "FaultInjection/ops/other"]);
    let over = Arc::new(AtomicBool::new(false));
    let have_seen = Arc::new(AtomicUsize::new(0));
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let (mut client, over, have_seen) = (operators.connect().await, over.clone(), have_seen.clone());
        let requests: Vec<_> = (0..16).map(|_| operators.request("a", "GET", ONE, "")).collect();
        clients.spawn(async move {
            let mut seen = std::collections::BTreeSet::new();
            for request in requests.iter().cycle() {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                let answer = client.send_request(request.clone()).await.unwrap();
                let marks = marks(&answer).expect("both hit everything").to_owned();
                let edits: Vec<_> = marks.split(", ").map(|mark| mark.rsplit_once('-').unwrap().1).collect();
                assert_eq!((edits.len(), edits[0]), (2, edits[1]), "{marks}");
                if seen.insert(edits[0].to_owned()) && seen.len() == SEEN {
                    have_seen.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    // Requests and edits are to take turns, however busy the machine is; a client that fails ends it.
    let mut edit = 0;
    while edit < EDITS || (have_seen.load(Ordering::Relaxed) < 3 && clients.try_join_next().is_none()) {
        edit += 1;
        operators.tell([marked("one", edit), marked("other", edit)]);
        tokio::task::yield_now().await;
    }
    over.store(true, Ordering::Relaxed);
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    assert_eq!(have_seen.load(Ordering::Relaxed), 3, "a client has failed");
}
