//! Faults that are ordered for requests: what comes of them, and where it is told that they were ordered.

use std::time::{Duration, Instant};

use anyhow::ensure;
use portolan_crds::FaultInjection;
use portolan_testbed::eventually;
use portolan_tests::door::Door;
use portolan_tests::trace::{Span, roots};
use rand::RngExt as _;
use serde_json::{Value, json};

use crate::{Ground, ground};

const MAP: &str = "/api/v1/namespaces/aborted-e/configmaps/kube-root-ca.crt";
const SLOW: Duration = Duration::from_millis(400);

/// The router's span of a request of this trace.
async fn span(ground: &Ground, trace: &str) -> Span {
    eventually("the trace is in Jaeger", || async {
        let answer = ground.jaeger.trace(trace).await?;
        let spans = roots(&answer);
        let request = spans
            .iter()
            .find(|span| span.tag("span.kind") == Some("server"))
            .cloned();
        ensure!(request.is_some(), "{answer}");
        Ok(request)
    })
    .await
    .unwrap()
}

/// An id that Jaeger does not cut.
fn new_trace() -> String {
    format!("1{:031x}", rand::rng().random::<u128>() >> 4)
}

/// What is ordered: by header, never, a delay, and for all creations.
fn ordered() -> Value {
    let of = |verb: &str, name: &str| json!([{"apiGroups": [""], "resources": [name], "verbs": [verb], "namespaces": ["aborted-e"]}]);
    let header = json!([{"method": "GET", "headers": [{"name": "X-Rehearsal", "value": "yes"}]}]);
    let maps = of("get", "configmaps");
    json!({"httpFault": [
        {"name": "broken", "abort": {"httpStatus": 500}, "match": {"resources": maps, "httpMatch": header}},
        {"name": "never", "abort": {"httpStatus": 500, "percent": "0"}, "match": {"resources": maps}},
        {"name": "slow", "delay": {"fixedDelay": "400ms"}, "match": {"resources": of("get", "secrets")}},
        {"name": "conflict", "abort": {"httpStatus": 409}, "match": {"resources": of("create", "configmaps")}},
    ]})
}

#[tokio::test]
async fn aborts_and_delays_are_felt_and_marked() {
    let ground = ground().await;
    let door = ground.caller("aborted").await;
    let policy: FaultInjection = ground.hold("aborted", ordered()).await;
    let plain = door.get(MAP, &[]).await.unwrap();
    let marked = plain.header("portolan-fault");
    assert_eq!((plain.status, marked), (200, ""), "{}", plain.message());
    let caller = "east/operators/portolan-dev-aborted";
    let told = ground.said(&["explain", "get", MAP, "--as", caller]).await;
    for words in [
        "FaultInjection/operators/aborted/broken: answers 100 of a hundred with 500, of requests with a head as it says",
        "FaultInjection/operators/aborted/never: answers 0 of a hundred with 500",
    ] {
        assert!(told.contains(words), "{told}");
    }
    assert!(!told.contains("slow"), "{told}");
    an_abort_is_marked(&ground, &door).await;
    a_delay_is_marked(&ground, &door).await;
    an_abort_reaches_no_member(&ground, &door).await;
    let words = ["broken", "Injected", "east/portolan-dev-aborted"];
    ground.told("operators/aborted", &words).await;
    ground.delete(&policy).await;
    assert_eq!(door.get(MAP, &[("x-rehearsal", "yes")]).await.unwrap().status, 200);
}

async fn an_abort_is_marked(ground: &Ground, door: &Door) {
    let trace = new_trace();
    let parent = format!("00-{trace}-00f067aa0ba902b7-01");
    let headers = [("x-rehearsal", "yes"), ("traceparent", &*parent)];
    let aborted = door.get(MAP, &headers).await.unwrap();
    aborted.expect_status(500, &["operators/aborted/broken"]).unwrap();
    assert_eq!(aborted.header("portolan-fault"), "operators/aborted/broken");
    assert_eq!(aborted.header("retry-after"), "");
    let request = span(ground, &trace).await;
    assert_eq!(request.tag("portolan.fault"), Some("operators/aborted/broken"));
    assert!(
        request.children.is_empty(),
        "no member was asked: {}",
        request.render(&[])
    );
    let member = door.with_prefix("/clusters/east");
    let aborted = member.get(MAP, &[("x-rehearsal", "yes")]).await.unwrap();
    let marked = aborted.header("portolan-fault");
    assert_eq!(marked, "operators/aborted/broken", "the explicit view is no way out");
}

async fn a_delay_is_marked(ground: &Ground, door: &Door) {
    let (trace, asked) = (new_trace(), Instant::now());
    let parent = format!("00-{trace}-00f067aa0ba902b7-01");
    let path = "/api/v1/namespaces/aborted-e/secrets/nothing";
    let delayed = door.get(path, &[("traceparent", &parent)]).await.unwrap();
    assert!(asked.elapsed() >= SLOW, "{:?}", asked.elapsed());
    assert_eq!(delayed.status, 404, "the member is asked");
    assert_eq!(delayed.header("portolan-fault"), "operators/aborted/slow");
    let request = span(ground, &trace).await;
    assert_eq!(request.tag("portolan.fault"), Some("operators/aborted/slow"));
    assert!(u128::from(request.duration) >= SLOW.as_micros());
}

async fn an_abort_reaches_no_member(ground: &Ground, door: &Door) {
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "made"}});
    let maps = "/api/v1/namespaces/aborted-e/configmaps";
    let aborted = door.post(maps, &object).await.unwrap();
    aborted.expect_status(409, &["ordered"]).unwrap();
    let direct = ground.world.direct_door("east").await.unwrap();
    assert_eq!(direct.get(&format!("{maps}/made"), &[]).await.unwrap().status, 404);
}
