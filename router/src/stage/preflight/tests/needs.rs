//! Labels, bodies and the leader-election Lease, against one scripted member. The rules themselves are tested with `plan`.

use http::Method;
use serde_json::{Value, json};

use super::*;
use crate::decision::plan::choose::{By, Choose, OtherLease};
use crate::decision::plan::{BodyRule, Change};
use crate::stage::dispatch::tests::{LEASES, World, lease, lease_name, world};

/// To the first candidate, or to the last if the body names the Lease.
async fn send(
    world: &World,
    candidates: Vec<Forward>,
    method: Method,
    path: &str,
    body: Value,
) -> Result<(u16, Value), Fault> {
    let request = Request::builder().method(method.clone()).uri(path);
    let request = request.header("content-type", "application/json").body(()).unwrap();
    let (head, ()) = request.into_parts();
    let asked = classify(&head.method, &head.uri, &head.headers).unwrap();
    let preflight = Preflight {
        dispatcher: world.dispatcher.clone(),
        access: no_reviews(),
        routing: RoutingStore::new(Duration::from_secs(20), Tasks::new()),
    };
    let pending = Pending {
        head: &head,
        asked: &asked,
        caller: &Caller::Person {
            user: "ada".to_owned(),
            groups: Vec::new(),
        },
        routing: &world.routing,
        received: &Context::new(),
        deadline: Instant::now() + Duration::from_secs(20),
    };
    let mut bytes = Body::from(Bytes::from(body.to_string()));
    let choose = Choose {
        candidates: candidates.into_iter().map(Into::into).collect(),
        by: By::Lease(OtherLease {
            names: lease_name(),
            collection: LEASES.to_owned(),
            name: asked.resource.as_ref().and_then(|one| one.name.clone()),
            moved: false,
            former: None,
        }),
    };
    let forward = preflight.choose(choose, pending, &mut bytes).await?;
    preflight.check(&forward, pending, &mut bytes).await?;
    assert!(
        matches!(&bytes, Body::Whole(bytes) if *bytes == body.to_string()),
        "it stays to be sent"
    );
    world.dispatch(*forward, method, path, body).await
}

#[tokio::test]
async fn a_create_is_the_election_only_if_the_body_says_so() {
    let world = world(|_, _| lease("any")).await;
    let candidates = || {
        let election = Forward {
            rewrite: Rewrite {
                lease: Some(lease_name()),
                ..Rewrite::default()
            },
            ..world.forward()
        };
        vec![world.forward(), election]
    };
    for name in ["leader", "other"] {
        send(&world, candidates(), Method::POST, LEASES, lease(name))
            .await
            .unwrap();
    }
    let names: Vec<_> = world
        .asked()
        .into_iter()
        .map(|(_, _, body)| serde_json::from_str::<Value>(&body).unwrap()["metadata"]["name"].clone())
        .collect();
    assert_eq!(names, ["leader---shard", "other"]);
}

const POD: &str = "/api/v1/namespaces/ns/pods/a";

fn limited(world: &World) -> Vec<Forward> {
    let selector = portolan_crds::selector::Selector::parse("app=foo").unwrap();
    let labels = LabelCheck {
        path: POD.to_owned(),
        selector: selector.clone(),
        connects: false,
        object: "pods ns/a".to_owned(),
        shard: "ns/shard".to_owned(),
    };
    let body = BodyRule {
        selector,
        change: Change::Whole,
        object: "pods ns/a".to_owned(),
        shard: "ns/shard".to_owned(),
    };
    vec![Forward {
        needs: vec![Need::Labels(labels), Need::Body(body)],
        ..world.forward()
    }]
}

fn pod(app: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "ns", "labels": {"app": app}}})
}

#[tokio::test]
async fn an_object_of_others_is_looked_at_and_left_alone() {
    let world = world(|_, _| pod("bar")).await;
    let refused = send(&world, limited(&world), Method::PUT, POD, pod("foo")).await;
    assert!(matches!(refused, Err(Fault::Forbidden(_))), "{refused:?}");
    let asked = world.asked();
    assert_eq!(asked.len(), 1, "looked at, not written: {asked:?}");
    assert_eq!((&asked[0].0, asked[0].1.as_str()), (&Method::GET, POD));
}

#[tokio::test]
async fn what_would_leave_the_shard_is_refused_and_what_stays_is_sent_whole() {
    let world = world(|_, _| pod("foo")).await;
    let refused = send(&world, limited(&world), Method::PUT, POD, pod("bar")).await;
    assert!(matches!(refused, Err(Fault::Forbidden(_))), "{refused:?}");
    let sent = send(&world, limited(&world), Method::PUT, POD, pod("foo")).await;
    assert_eq!(sent.unwrap().0, 200);
    let asked = world.asked();
    let methods: Vec<_> = asked.iter().map(|(method, ..)| method.clone()).collect();
    assert_eq!(methods, [Method::GET, Method::GET, Method::PUT]);
    assert_eq!(serde_json::from_str::<Value>(&asked[2].2).unwrap(), pod("foo"));
}

#[tokio::test]
async fn an_answer_to_a_question_is_no_larger_than_an_object() {
    let world = world(|_, _| {
        let mut large = pod("foo");
        large["metadata"]["annotations"] = json!({"a": "x".repeat(2 << 20)});
        large
    })
    .await;
    let refused = send(&world, limited(&world), Method::PUT, POD, pod("foo")).await;
    assert!(matches!(refused, Err(Fault::Unavailable { .. })), "{refused:?}");
    assert_eq!(world.asked().len(), 1, "asked, not written");
}
