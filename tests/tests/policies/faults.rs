//! Faults that are ordered for requests: what comes of them, and where it is told that they were ordered.

use std::time::{Duration, Instant};

use anyhow::ensure;
use http::Method;
use portolan_crds::FaultInjection;
use portolan_testbed::eventually;
use portolan_tests::trace::{Span, roots};
use rand::RngExt as _;
use serde_json::json;

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

#[tokio::test]
async fn aborts_and_delays_are_felt_and_marked() {
    let ground = ground().await;
    let door = ground.caller("aborted").await;
    let of = |verbs: &[&str], name: &str| json!([{"apiGroups": [""], "resources": [name], "verbs": verbs, "namespaces": ["aborted-e"]}]);
    let header = json!([{"method": "GET", "headers": [{"name": "X-Rehearsal", "value": "yes"}]}]);
    let faults = json!({"httpFault": [
        {"name": "broken", "abort": {"httpStatus": 500}, "match": {"resources": of(&["get"], "configmaps"), "httpMatch": header}},
        {"name": "never", "abort": {"httpStatus": 500, "percent": "0"}, "match": {"resources": of(&["get"], "configmaps")}},
        {"name": "slow", "delay": {"fixedDelay": "400ms"}, "match": {"resources": of(&["get"], "secrets")}},
        {"name": "conflict", "abort": {"httpStatus": 409, "percent": "100"}, "match": {"resources": of(&["create"], "configmaps")}},
    ]});
    let policy: FaultInjection = ground.hold("aborted", faults).await;

    let plain = door.get(MAP, &[]).await.unwrap();
    assert_eq!(
        (plain.status, plain.header("portolan-fault")),
        (200, ""),
        "{}",
        plain.message()
    );

    let trace = new_trace();
    let parent = format!("00-{trace}-00f067aa0ba902b7-01");
    let headers = [("x-rehearsal", "yes"), ("traceparent", &*parent)];
    let aborted = door.get(MAP, &headers).await.unwrap();
    aborted.expect_status(500, &["operators/aborted/broken"]).unwrap();
    assert_eq!(aborted.header("portolan-fault"), "operators/aborted/broken");
    assert_eq!(aborted.header("retry-after"), "");
    let request = span(&ground, &trace).await;
    assert_eq!(request.tag("portolan.fault"), Some("operators/aborted/broken"));
    assert!(
        request.children.is_empty(),
        "no member was asked: {}",
        request.render(&[])
    );

    let (trace, asked) = (new_trace(), Instant::now());
    let parent = format!("00-{trace}-00f067aa0ba902b7-01");
    let path = "/api/v1/namespaces/aborted-e/secrets/nothing";
    let delayed = door.get(path, &[("traceparent", &parent)]).await.unwrap();
    assert!(asked.elapsed() >= SLOW, "{:?}", asked.elapsed());
    assert_eq!(delayed.status, 404, "the member is asked");
    assert_eq!(delayed.header("portolan-fault"), "operators/aborted/slow");
    let request = span(&ground, &trace).await;
    assert_eq!(request.tag("portolan.fault"), Some("operators/aborted/slow"));
    assert!(u128::from(request.duration) >= SLOW.as_micros());

    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "made"}});
    let maps = "/api/v1/namespaces/aborted-e/configmaps";
    door.post(maps, &object)
        .await
        .unwrap()
        .expect_status(409, &["ordered"])
        .unwrap();
    let direct = ground.world.direct_door("east").await.unwrap();
    assert_eq!(
        direct.get(&format!("{maps}/made"), &[]).await.unwrap().status,
        404,
        "it has reached no member"
    );
    let member = door.with_prefix("/clusters/east");
    let aborted = member
        .call(Method::GET, MAP, &[("x-rehearsal", "yes")], &[])
        .await
        .unwrap();
    assert_eq!(
        aborted.header("portolan-fault"),
        "operators/aborted/broken",
        "the explicit view is no way out"
    );

    ground
        .told(
            "operators/aborted",
            &["broken", "Injected", "east/portolan-dev-aborted"],
        )
        .await;
    ground.delete(&policy).await;
    assert_eq!(door.get(MAP, &[("x-rehearsal", "yes")]).await.unwrap().status, 200);
}
