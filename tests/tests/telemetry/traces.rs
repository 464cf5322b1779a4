//! Traces, read back from Jaeger.

use kube::api::{Api, Patch, PatchParams};
use portolan_crds::ShardingConfig;
use portolan_testbed::eventually;
use portolan_tests::trace::{Span, roots};
use rand::RngExt as _;
use serde_json::{Value, json};

use crate::{Ground, WEST, ground};

/// The caller's own span.
pub(crate) const PARENT: &str = "00f067aa0ba902b7";

pub(crate) fn new_trace() -> String {
    // Jaeger cuts leading zeros.
    format!("1{:031x}", rand::rng().random::<u128>() >> 4)
}

pub(crate) fn traceparent(trace: &str, sampled: bool) -> String {
    format!("00-{trace}-{PARENT}-0{}", u8::from(sampled))
}

/// GETs `path` as part of the caller's trace; returns the code.
async fn ask(ground: &Ground, path: &str, trace: &str, sampled: bool) -> u16 {
    let door = ground.world.merged_door("alpha").await.unwrap();
    let parent = traceparent(trace, sampled);
    door.get(path, &[("traceparent", &parent)]).await.unwrap().status
}

/// Waits until the trace has a request with as many legs, and returns the request and what Jaeger said.
pub(crate) async fn request(ground: &Ground, trace: &str, legs: usize) -> (Span, Value) {
    eventually("the trace is in Jaeger", || async {
        let answer = ground.jaeger.trace(trace).await?;
        let requests: Vec<Span> = roots(&answer)
            .into_iter()
            .filter(|span| span.tag("span.kind") == Some("server"))
            .collect();
        let [request] = &requests[..] else {
            anyhow::bail!("not one request: {answer}");
        };
        anyhow::ensure!(
            request.children.iter().filter(|span| is_leg(span)).count() == legs,
            "{answer}"
        );
        Ok((request.clone(), answer))
    })
    .await
}

/// Not what is asked before: reviews go to members too.
pub(crate) fn is_leg(span: &Span) -> bool {
    span.tag("span.kind") == Some("client") && span.tag("class").is_some()
}

pub(crate) fn assert_tags(span: &Span, wanted: &[(&str, &str)]) {
    for (key, value) in wanted {
        assert_eq!(span.tag(key), Some(*value), "{key} of {}: {:?}", span.name, span.tags);
    }
}

#[tokio::test]
async fn a_request_is_one_tree() {
    let ground = ground().await.read().await;
    let trace = new_trace();
    assert_eq!(ask(&ground, WEST, &trace, true).await, 200);
    let (request, answer) = request(&ground, &trace, 1).await;
    assert_eq!(request.service, "portolan-router");
    assert_tags(
        &request,
        &[
            ("span.kind", "server"),
            ("caller", "system:serviceaccount:operators:portolan-dev-alpha"),
            ("shard", "operators/alpha"),
            ("verb", "get"),
            ("resource", "configmaps"),
            ("clusters", "west"),
            ("http.request.method", "GET"),
            ("url.path", WEST),
            ("http.response.status_code", "200"),
        ],
    );
    assert!(
        request.tag("plan").is_some_and(|plan| !plan.is_empty()),
        "{:?}",
        request.tags
    );
    let spans = answer["data"][0]["spans"].as_array().unwrap();
    let root = spans
        .iter()
        .find(|span| span["operationName"] == "get configmaps")
        .unwrap();
    assert_eq!(
        root["references"][0]["spanID"], PARENT,
        "the caller's span is its parent"
    );

    let leg = request
        .children
        .iter()
        .find(|span| span.name == "west get configmaps")
        .unwrap();
    assert_eq!(leg.service, "portolan-router");
    let wanted = [
        ("span.kind", "client"),
        ("cluster", "west"),
        ("peer.service", "west"),
        ("class", "unary"),
        ("http.response.status_code", "200"),
    ];
    assert_tags(leg, &wanted);
    assert!(request.start <= leg.start && leg.start + leg.duration <= request.start + request.duration + 1);
}

/// A refusal is a tree without legs, and says why.
#[tokio::test]
async fn a_refusal_is_traced() {
    let ground = ground().await.read().await;
    let trace = new_trace();
    assert_eq!(
        ask(&ground, "/api/v1/namespaces/default/secrets/x", &trace, true).await,
        403
    );
    let (request, _) = request(&ground, &trace, 0).await;
    assert_tags(
        &request,
        &[
            ("http.response.status_code", "403"),
            ("resource", "secrets"),
            ("shard", "operators/alpha"),
        ],
    );
    assert!(
        request
            .tag("otel.status_description")
            .is_some_and(|why| why.contains("namespace default is outside")),
        "{:?}",
        request.tags
    );
}

/// What is recorded is the router's to draw: a caller could hide what it does, or fill the store.
#[tokio::test]
async fn the_caller_does_not_decide() {
    let mut ground = ground().await.write().await;
    let unwanted = new_trace();
    assert_eq!(ask(&ground, WEST, &unwanted, false).await, 200);
    request(&ground, &unwanted, 1).await;

    ground.router.stop().await.unwrap();
    ground
        .router
        .start_with(&[("--trace-sample-ratio", "0")])
        .await
        .unwrap();
    ground.router.ready().await;
    let wanted = new_trace();
    assert_eq!(ask(&ground, WEST, &wanted, true).await, 200);
    // It exports what it has when it ends.
    ground.router.stop().await.unwrap();
    ground.router.start_again().await.unwrap();
    ground.until_router_is_back().await;
    let after = new_trace();
    assert_eq!(ask(&ground, WEST, &after, true).await, 200);
    request(&ground, &after, 1).await;
    assert!(ground.jaeger.trace(&wanted).await.is_err(), "it was recorded");
}

/// Heads of requests may be 64 KiB; a span holds the beginning of what they say.
#[tokio::test]
async fn the_caller_does_not_fill_spans() {
    let ground = ground().await.read().await;
    let door = ground.world.merged_door("alpha").await.unwrap();
    let trace = new_trace();
    let parent = traceparent(&trace, true);
    let state: Vec<String> = (0..8).map(|tenant| format!("t{tenant}={}", "x".repeat(250))).collect();
    let state = state.join(",");
    let asked = [("traceparent", &*parent), ("tracestate", &*state)];
    let path = format!("/api/v1/namespaces/team-b/{}/{}", "k".repeat(8_000), "n".repeat(8_000));
    let answer = door.get(&path, &asked).await.unwrap();
    assert!(answer.status >= 400, "{}", answer.status);
    let (_, told) = request(&ground, &trace, 1).await;
    let spans = told["data"][0]["spans"].as_array().unwrap();
    let size = told.to_string().len() / spans.len();
    assert!(size < 3_000, "{size} bytes a span: {told}");
}

/// What the hub compiles, pushes, and the router serves from then on is one trace over two programs.
#[tokio::test]
async fn a_push_is_one_tree() {
    let ground = ground().await.read().await;
    let client = ground.world.cluster("hub").client().await.unwrap();
    let shards: Api<ShardingConfig> = Api::namespaced(client, "operators");
    for view in ["Deny", "Allow"] {
        let edit = Patch::Merge(json!({"spec": {"explicitView": view}}));
        shards.patch("alpha", &PatchParams::default(), &edit).await.unwrap();
    }
    let (push, swap) = eventually("compile, push and swap are one tree", || async {
        let traces = ground.jaeger.traces("portolan-hub").await.ok()?;
        let traces = traces["data"].as_array()?.iter();
        let trees = traces.flat_map(|trace| roots(&json!({"data": [trace]})));
        trees.filter(|tree| tree.name == "compile").find_map(|compile| {
            let push = compile.children.iter().find(|span| span.name == "push")?.clone();
            let swap = push.children.iter().find(|span| span.name == "swap")?.clone();
            Some((push, swap))
        })
    })
    .await;
    assert_eq!(push.service, "portolan-hub");
    assert_eq!(swap.service, "portolan-router");
    assert_eq!(push.tag("upserted"), swap.tag("upserted"));
    assert_tags(&swap, &[("rejected", "0")]);
}

#[tokio::test]
async fn agents_trace_what_they_do() {
    let ground = ground().await.read().await;
    eventually("sweeps and reports of agents are in Jaeger", || async {
        let traces = ground.jaeger.traces("portolan-agent").await.ok()?;
        let spans = traces["data"]
            .as_array()?
            .iter()
            .flat_map(|trace| trace["spans"].as_array().unwrap());
        let names: Vec<&str> = spans.filter_map(|span| span["operationName"].as_str()).collect();
        (names.contains(&"sweep") && names.contains(&"report")).then_some(())
    })
    .await;
}
