//! The shard changes under an open watch: the same stream tells what came and what left.

use kube::Api;
use kube::api::{Patch, PatchParams};
use portolan_crds::ShardingConfig;
use serde_json::{Value, json};

use crate::stream::Watch;
use crate::{MEMBERS, door, make_in, position, world};

async fn own(clusters: Value) {
    let client = world().await.cluster("hub").client().await.unwrap();
    let shards: Api<ShardingConfig> = Api::namespaced(client, "operators");
    let body = json!({"spec": {"clusters": clusters}});
    shards
        .patch("moving", &PatchParams::default(), &Patch::Merge(&body))
        .await
        .unwrap();
}

#[tokio::test]
async fn namespaces_and_members_come_and_go() {
    let _calm = MEMBERS.read().await;
    let world = world().await;
    for (member, namespace) in [("east", "moving-x"), ("west", "moving-y")] {
        world.namespace(member, namespace).await.unwrap();
        make_in(member, namespace, &format!("in-{namespace}")).await;
    }
    let door = door("moving").await;
    let mut watch = Watch::json(&door, &format!("resourceVersion={}", position(&door).await)).await;
    let mut listed = Watch::json(
        &door,
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=",
    )
    .await;
    make_in("west", "moving-w", "own").await;
    for watch in [&mut watch, &mut listed] {
        watch.sees("own").await;
    }
    // A namespace of a member that is there already.
    own(
        json!([{"name": "east", "namespaces": ["moving-e", "moving-x"]}, {"name": "west", "namespaces": ["moving-w"]}]),
    )
    .await;
    assert_eq!(listed.sees("in-moving-x").await, "ADDED");
    // What a client holds that came with a position nobody knows: it lists again, once, and is told so within the stream.
    let mut last = Value::Null;
    while let Some(event) = watch.next().await {
        last = event;
    }
    assert_eq!(
        (&last["type"], &last["object"]["code"]),
        (&"ERROR".into(), &410.into()),
        "{last}"
    );
    // It leaves again, and the whole of west does.
    own(json!([{"name": "east", "namespaces": ["moving-e"]}])).await;
    assert_eq!(listed.sees("in-moving-x").await, "DELETED");
    // Its client was told of all that it has, so it can be told what of it is gone.
    while !listed.seen.iter().any(|event| event == "DELETED moving-w/own") {
        listed.next().await.expect("it goes on");
    }
    // Another part of west.
    own(json!([{"name": "east", "namespaces": ["moving-e"]}, {"name": "west", "namespaces": ["moving-y"]}])).await;
    assert_eq!(listed.sees("in-moving-y").await, "ADDED");
    make_in("east", "moving-e", "after").await;
    assert_eq!(listed.sees("after").await, "ADDED");
    assert_eq!(listed.count("ERROR"), 0, "{:?}", listed.seen);
}
