//! What members do for a request, down to etcd, is in traces of their own that are linked to its legs.

use portolan_testbed::eventually;
use portolan_tests::trace::{Span, trees};

use crate::traces::{is_leg, new_trace, request, traceparent};
use crate::{Ground, WEST, ground};

/// As API servers call it.
const GET: &str = "GET /api/v1/namespaces/{:namespace}/configmaps/{:name}";
const LIST: &str = "GET /api/v1/configmaps";

/// The trees of API servers whose requests name a span of ours.
async fn linked(ground: &Ground, operation: &str, below: &str, to: &(String, String)) -> Span {
    eventually("the member's trace is linked to the leg", || async {
        let answer = ground.jaeger.find("apiserver", operation).await?;
        let all = trees(&answer);
        let found: Vec<&Span> = all.iter().filter(|tree| tree.links.contains(to)).collect();
        let [tree] = found[..] else {
            anyhow::bail!("{} of {} trees are linked to {to:?}", found.len(), all.len());
        };
        anyhow::ensure!(
            tree.walk().iter().any(|span| span.service == below),
            "nothing of {below} in\n{}",
            tree.render(&[])
        );
        Ok(tree.clone())
    })
    .await
}

#[tokio::test]
async fn a_members_spans_are_linked_to_the_leg() {
    let ground = ground().await.read().await;
    let door = ground.world.merged_door("alpha").await.unwrap();
    let trace = new_trace();
    let asked = [("traceparent", &*traceparent(&trace, true))];
    // An exact read goes down to etcd.
    assert_eq!(door.get(WEST, &asked).await.unwrap().status, 200);
    let (request, _) = request(&ground, &trace, 1).await;
    let leg = request.children.iter().find(|span| is_leg(span)).unwrap();
    let member = linked(&ground, GET, "etcd", &leg.id).await;
    assert_eq!((&*member.service, &*member.name), ("apiserver", GET));
    assert_ne!(member.id.0, trace, "it takes nobody for its parent");
    assert_eq!(member.tag("span.kind"), Some("server"));
    assert!(leg.start <= member.start + 1000, "{} {}", leg.start, member.start);
}

#[tokio::test]
async fn each_leg_of_a_list_has_its_members_trace() {
    let ground = ground().await.read().await;
    let door = ground.world.merged_door("alpha").await.unwrap();
    let trace = new_trace();
    let asked = [("traceparent", &*traceparent(&trace, true))];
    assert_eq!(door.get("/api/v1/configmaps", &asked).await.unwrap().status, 200);
    let (request, _) = request(&ground, &trace, 2).await;
    let mut traces = Vec::new();
    for leg in request.children.iter().filter(|span| is_leg(span)) {
        traces.push(linked(&ground, LIST, "apiserver", &leg.id).await.id.0);
    }
    traces.dedup();
    assert_eq!(traces.len(), 2, "{traces:?}");
}
