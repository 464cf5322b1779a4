//! Watches: many through one router, their frames as the member sends them, their ends as the member ends them.

use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _, future};
use http::Method;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use portolan_testbed::{eventually, patience};
use portolan_tests::door::{Door, Line, request};
use serde_json::{Value, json};

use crate::{labelled, world};

const WATCHES: usize = 1000;
/// What "at once" means on a machine that is busy with everything else.
const AT_ONCE: Duration = Duration::from_secs(20);

async fn create(door: &Door, namespace: &str, name: &str) {
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"t": "1"}}});
    let path = format!("/api/v1/namespaces/{namespace}/configmaps");
    let answer = door.post(&path, &object).await.unwrap();
    assert_eq!(answer.status, 201, "{:?}", answer.body);
}

/// Reads until the body contains `wanted`, and returns what was read.
async fn read_until(body: &mut Incoming, wanted: &str) -> Vec<u8> {
    let mut seen = Vec::new();
    let contains = |seen: &[u8]| seen.windows(wanted.len()).any(|window| window == wanted.as_bytes());
    while !contains(&seen) {
        let frame = tokio::time::timeout(patience(), body.frame()).await;
        let frame = frame.unwrap_or_else(|_| panic!("no {wanted} in time, but {seen:?}"));
        let frame = frame.unwrap_or_else(|| panic!("the watch ended without {wanted}: {seen:?}"));
        seen.extend_from_slice(&frame.unwrap().into_data().unwrap_or_default());
    }
    seen
}

/// Starts a watch. An API server that is busy refuses some of very many, in words of its own (the router's are a Status),
/// and clients come again.
async fn start(line: &Line, path: &str) -> Incoming {
    eventually("a watch starts", || async {
        let answer = line.send(request(Method::GET, path, &[], &[]).unwrap()).await.unwrap();
        let (head, body) = answer.into_parts();
        if head.status == 200 {
            return Ok(body);
        }
        let told = body.collect().await.unwrap().to_bytes();
        let refused = head.status == 429 && told.starts_with(b"Too many requests");
        assert!(refused, "a watch is answered {}: {told:?}", head.status);
        Err(told)
    })
    .await
}

/// An API server takes 100 streams per connection; the router must open as many connections as that takes.
#[tokio::test]
async fn a_thousand_watches_see_an_event() {
    let world = world().await;
    world.namespace("east", "thousand").await.unwrap();
    let line = world.explicit_door("east").await.unwrap().open().await.unwrap();
    let watch = "/api/v1/namespaces/thousand/configmaps?watch=1&resourceVersion=0&timeoutSeconds=3000&labelSelector=t";
    let started = future::join_all((0..WATCHES).map(|_| start(&line, watch)));
    let mut bodies = tokio::time::timeout(patience(), started).await.unwrap();

    let began = Instant::now();
    let get = "/api/v1/namespaces/thousand/configmaps?limit=1";
    let beside = line.ask(request(Method::GET, get, &[], &[]).unwrap()).await.unwrap();
    assert_eq!(beside.status, 200);
    assert!(began.elapsed() < AT_ONCE, "a GET took {:?}", began.elapsed());

    create(&world.direct_door("east").await.unwrap(), "thousand", "event").await;
    let seen = bodies.iter_mut().map(|body| read_until(body, "\"name\":\"event\""));
    future::join_all(seen).await;
}

async fn both(path: &str, accept: &str) -> (Line, Line, [Incoming; 2]) {
    let world = world().await;
    let direct = world.direct_door("east").await.unwrap().open().await.unwrap();
    let routed = world.explicit_door("east").await.unwrap().open().await.unwrap();
    let ask = || request(Method::GET, path, &[("accept", accept)], &[]).unwrap();
    let wanted = direct.send(ask()).await.unwrap();
    let got = routed.send(ask()).await.unwrap();
    assert_eq!(got.status(), wanted.status());
    assert_eq!(got.headers().get("content-type"), wanted.headers().get("content-type"));
    (direct, routed, [wanted.into_body(), got.into_body()])
}

#[tokio::test]
async fn frames_and_ends_are_the_members() {
    let world = world().await;
    world.namespace("east", "frames").await.unwrap();
    let door = world.direct_door("east").await.unwrap();
    create(&door, "frames", "old").await;
    labelled(&door, "/api/v1/namespaces/frames/configmaps").await;
    let base = "/api/v1/namespaces/frames/configmaps?watch=true&labelSelector=t";
    for accept in [
        "application/json",
        "application/json;as=Table;v=v1;g=meta.k8s.io",
        "application/vnd.kubernetes.protobuf;stream=watch",
        "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json",
    ] {
        // An age in a Table may turn between the two, and a busy machine may be late with the only event.
        eventually(&format!("both see the same as {accept}"), || async {
            let (_direct, _routed, [wanted, got]) = both(&format!("{base}&timeoutSeconds=1"), accept).await;
            let whole = tokio::time::timeout(patience(), future::try_join(wanted.collect(), got.collect())).await;
            let (wanted, got) = whole.unwrap().expect("a clean end of stream");
            let (wanted, got) = (wanted.to_bytes(), got.to_bytes());
            if !got.is_empty() && wanted == got {
                Ok(())
            } else {
                Err(format!("{got:?} is not {wanted:?}"))
            }
        })
        .await;
    }
}

#[tokio::test]
async fn watch_lists_come_to_their_mark() {
    let world = world().await;
    world.namespace("east", "marks").await.unwrap();
    create(&world.direct_door("east").await.unwrap(), "marks", "first").await;
    let path = "/api/v1/namespaces/marks/configmaps?watch=true&sendInitialEvents=true\
                &resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=600&labelSelector=t";
    let line = world.explicit_door("east").await.unwrap().open().await.unwrap();
    let answer = line.send(request(Method::GET, path, &[], &[]).unwrap()).await.unwrap();
    let mut body = answer.into_body();
    let seen = read_until(&mut body, "k8s.io/initial-events-end").await;
    let events: Vec<Value> = serde_json::Deserializer::from_slice(&seen)
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert_eq!(events[0]["object"]["metadata"]["name"], "first");
    assert_eq!(events.last().unwrap()["type"], "BOOKMARK");
}

#[tokio::test]
async fn kube_rs_lists_watches_and_writes() {
    let world = world().await;
    world.namespace("west", "kube-rs").await.unwrap();
    let client = world
        .client(world.fleet.explicit_kubeconfig(), Some("west"))
        .await
        .unwrap();
    let api: Api<ConfigMap> = Api::namespaced(client, "kube-rs");
    let only = watcher::Config::default().labels("by=kube-rs");
    for config in [only.clone(), only.streaming_lists()] {
        let mut stream = watcher(api.clone(), config).applied_objects().boxed();
        let object = ConfigMap {
            metadata: ObjectMeta {
                name: Some("one".into()),
                labels: Some([("by".to_owned(), "kube-rs".to_owned())].into()),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        };
        api.create(&PostParams::default(), &object).await.unwrap();
        let patch = json!({"data": {"patched": "yes"}});
        api.patch("one", &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .unwrap();
        let patched = async {
            while let Some(seen) = stream.try_next().await.unwrap() {
                if seen.data.is_some_and(|data| data["patched"] == "yes") {
                    return;
                }
            }
        };
        tokio::time::timeout(patience(), patched).await.unwrap();
        api.delete("one", &DeleteParams::default()).await.unwrap();
    }
}
