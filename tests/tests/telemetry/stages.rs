//! What takes time within a request is a span of its own.

use std::time::Duration;

use http::Method;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _};
use portolan_testbed::{Fault, eventually};
use portolan_tests::trace::Span;
use portolan_tests::watch::Watch;
use portolan_tests::world::AUDIENCE;
use serde_json::json;

use crate::traces::{assert_tags, is_leg, new_trace, request, traceparent};
use crate::{Ground, WEST, ground};

const CONFIG_MAPS: &str = "/api/v1/namespaces/team-b/configmaps";

fn assert_within(outer: &Span, inner: &Span) {
    // Jaeger rounds to microseconds.
    let end = |span: &Span| span.start + span.duration;
    assert!(
        outer.start <= inner.start && end(inner) <= end(outer) + 1,
        "{} {}+{} is not within {} {}+{}",
        inner.name,
        inner.start,
        inner.duration,
        outer.name,
        outer.start,
        outer.duration
    );
}

fn child<'a>(span: &'a Span, name: &str) -> &'a Span {
    let found = span.children.iter().find(|child| child.name == name);
    found.unwrap_or_else(|| panic!("no {name} in\n{}", span.render(&[])))
}

#[tokio::test]
async fn a_merged_list_is_first_bytes_and_a_merge() {
    let ground = ground().await.read().await;
    let door = ground.world.merged_door("alpha").await.unwrap();
    let trace = new_trace();
    let asked = [("traceparent", &*traceparent(&trace, true))];
    assert_eq!(door.get("/api/v1/configmaps", &asked).await.unwrap().status, 200);
    let (list, _) = request(&ground, &trace, 2).await;
    assert_eq!(list.name, "list configmaps");
    assert_tags(child(&list, "merge"), &[("members", "2")]);
    for leg in list.children.iter().filter(|span| is_leg(span)) {
        let first = child(leg, &format!("first byte of {}", leg.tag("cluster").unwrap()));
        assert_within(leg, first);
        assert!(first.start <= child(&list, "merge").start);
    }
}

/// A token that the router has not seen yet.
async fn new_token(ground: &Ground) -> String {
    let east = ground.world.cluster("east");
    let pods: Api<Pod> = Api::namespaced(east.client().await.unwrap(), "operators");
    let pod = pods.get("portolan-dev-alpha").await.unwrap();
    let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
    let uid = pod.uid().unwrap();
    let bound = Some(("portolan-dev-alpha", uid.as_str()));
    east.issue_token("operators", &account.unwrap(), &[AUDIENCE], bound)
        .await
        .unwrap()
}

#[tokio::test]
async fn who_asks_first_waits_for_reviews() {
    let ground = ground().await.read().await;
    let token = new_token(&ground).await;
    let door = ground.world.token_door(Some(&token)).await.unwrap();
    let (first, second) = (new_trace(), new_trace());
    for trace in [&first, &second] {
        let asked = [("traceparent", &*traceparent(trace, true))];
        assert_eq!(door.get(WEST, &asked).await.unwrap().status, 200);
    }
    let (first, _) = request(&ground, &first, 1).await;
    let review = child(&first, "token review of east");
    assert_tags(review, &[("span.kind", "client"), ("peer.service", "east")]);
    assert_within(&first, review);
    let (second, _) = request(&ground, &second, 1).await;
    assert!(second.named("token review of east").is_none(), "the answer is kept");

    let trace = new_trace();
    let parent = traceparent(&trace, true);
    // Whom the members let the router act as.
    let asked = [("traceparent", &*parent), ("impersonate-user", "portolan:dev")];
    door.get(WEST, &asked).await.unwrap();
    let (acting, _) = request(&ground, &trace, 1).await;
    let preflight = child(&acting, "preflight");
    let review = child(preflight, "access review of west");
    assert_tags(review, &[("peer.service", "west")]);
}

#[tokio::test]
async fn a_write_waits_at_the_fence() {
    let ground = ground().await.read().await;
    let door = ground.world.merged_door("alpha").await.unwrap();
    let mut watch = Watch::open(
        &door,
        "/api/v1/configmaps?sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
    )
    .await
    .unwrap();
    watch.begun().await.unwrap();
    let trace = new_trace();
    let parent = traceparent(&trace, true);
    let headers = [("traceparent", &*parent), ("content-type", "application/json")];
    let object =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("fenced-{}", &trace[..8])}});
    let body = object.to_string();
    let made = door.call(Method::POST, CONFIG_MAPS, &headers, body.as_bytes()).await;
    assert_eq!(made.unwrap().status, 201);
    let (create, _) = request(&ground, &trace, 1).await;
    assert_eq!(create.name, "create configmaps");
    let fence = child(&create, "fence");
    assert_tags(fence, &[("watches", "1")]);
    assert!(fence.tag("outcome").is_some(), "{:?}", fence.tags);
}

#[tokio::test]
async fn a_breaker_says_in_the_trace_that_it_refused() {
    let ground = ground().await.write().await;
    let west = ground.world.cluster("west");
    west.fault(Fault::Reset).await.unwrap();
    let door = ground.world.merged_door("alpha").await.unwrap();
    let open = eventually("the breaker is open", || async {
        let answer = door.get(WEST, &[]).await?;
        anyhow::ensure!(
            answer.message().contains("is not asked for now"),
            "{}",
            answer.message()
        );
        let trace = new_trace();
        let asked = [("traceparent", &*traceparent(&trace, true))];
        let answer = door.get(WEST, &asked).await?;
        anyhow::ensure!(
            answer.message().contains("is not asked for now"),
            "{}",
            answer.message()
        );
        Ok::<_, anyhow::Error>(trace)
    })
    .await;
    west.fault(Fault::None).await.unwrap();
    let (refused, _) = request(&ground, &open, 1).await;
    let leg = child(&refused, "west get configmaps");
    let refusal = child(leg, "breaker of west");
    assert!(
        refusal.tag("reason").is_some() && refusal.tag("state") == Some("open"),
        "{:?}",
        refusal.tags
    );
    assert!(leg.named("first byte of west").is_none(), "it was not asked");
    let closed = eventually("west is asked again", || async {
        let trace = new_trace();
        let asked = [("traceparent", &*traceparent(&trace, true))];
        let answer = door.get(WEST, &asked).await?;
        anyhow::ensure!(answer.status == 200, "{}", answer.message());
        Ok(trace)
    })
    .await;
    let (asked, _) = request(&ground, &closed, 1).await;
    let leg = child(&asked, "west get configmaps");
    assert!(
        leg.events.iter().any(|event| event == "breaker changed"),
        "the first that was answered has closed it: {:?}",
        leg.events
    );
}

/// As many of its caller's lists as may be at a member at a time, and one more.
#[tokio::test]
async fn who_waits_for_a_place_waits_in_a_queue() {
    let ground = ground().await.write().await;
    let west = ground.world.cluster("west");
    let door = ground.world.merged_door("alpha").await.unwrap();
    assert_eq!(door.get(CONFIG_MAPS, &[]).await.unwrap().status, 200);
    west.fault(Fault::Delay(Duration::from_millis(500))).await.unwrap();
    let traces: Vec<_> = (0..12).map(|_| new_trace()).collect();
    let lists = traces.iter().map(async |trace| {
        let asked = [("traceparent", &*traceparent(trace, true))];
        door.get(CONFIG_MAPS, &asked).await.unwrap().status
    });
    let answers = futures::future::join_all(lists).await;
    west.fault(Fault::None).await.unwrap();
    assert!(answers.iter().all(|status| *status == 200), "{answers:?}");
    let mut waited = 0;
    for trace in &traces {
        let (list, _) = request(&ground, trace, 1).await;
        let Some(queue) = list.named("queue of west") else {
            continue;
        };
        assert_within(&list, queue);
        assert_tags(queue, &[("queue", "places"), ("class", "list"), ("cluster", "west")]);
        waited += 1;
    }
    assert_eq!(waited, 5, "seven at a time");
}
