//! The shard changes under an open watch: the same stream tells what came and what left.

use serde_json::{Value, json};

use crate::stream::Watch;
use crate::{MAPS, MEMBERS, door, make_in, position, world};

pub(crate) async fn own(shard: &str, clusters: Value) {
    world().await.own(shard, clusters).await.unwrap();
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
        "moving",
        json!([{"name": "east", "namespaces": ["moving-e", "moving-x"]}, {"name": "west", "namespaces": ["moving-w"]}]),
    )
    .await;
    for watch in [&mut watch, &mut listed] {
        assert_eq!(watch.sees("in-moving-x").await, "ADDED");
    }
    // It leaves again.
    own(
        "moving",
        json!([{"name": "east", "namespaces": ["moving-e"]}, {"name": "west", "namespaces": ["moving-w"]}]),
    )
    .await;
    for watch in [&mut watch, &mut listed] {
        assert_eq!(watch.sees("in-moving-x").await, "DELETED");
    }
    // The whole of west does.
    own("moving", json!([{"name": "east", "namespaces": ["moving-e"]}])).await;
    let gone = "DELETED moving-w/own";
    is_told_or_lists_again(&mut watch, gone).await;
    // Its client was told of all that it has, so it can be told what of it is gone.
    while !listed.has_seen(gone) {
        listed.next().await.expect("it goes on");
    }
    // Another part of west.
    own(
        "moving",
        json!([{"name": "east", "namespaces": ["moving-e"]}, {"name": "west", "namespaces": ["moving-y"]}]),
    )
    .await;
    assert_eq!(listed.sees("in-moving-y").await, "ADDED");
    make_in("east", "moving-e", "after").await;
    assert_eq!(listed.sees("after").await, "ADDED");
    assert_eq!(listed.count("ERROR"), 0, "{:?}", listed.seen);
}

/// What a client holds of a member that came with a position cannot be asked for any more once the member has left: it lists
/// again, once, and is told so within the stream. Where the member was listed for the watch before, it is told like the others.
async fn is_told_or_lists_again(watch: &mut Watch, gone: &str) {
    let mut last = Value::Null;
    while let Some(event) = watch.next().await {
        last = event;
        if watch.has_seen(gone) {
            break;
        }
    }
    assert!(last["object"]["code"] == 410 || watch.has_seen(gone), "{last}");
}

/// Whoever was away while a namespace came is told what is in there; pages of before it are over.
#[tokio::test]
async fn positions_of_before_a_namespace_came_go_on_with_it() {
    let _calm = MEMBERS.read().await;
    let world = world().await;
    world.namespace("east", "grown-x").await.unwrap();
    make_in("east", "grown-x", "there-before").await;
    let door = door("grown").await;
    let before = position(&door).await;
    let one = "/api/v1/namespaces/grown-w/configmaps";
    let elsewhere = door.get(one, &[]).await.unwrap().json();
    let elsewhere = elsewhere["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let page = door.get(&format!("{MAPS}?limit=1"), &[]).await.unwrap().json();
    let token = page["metadata"]["continue"].as_str().map(str::to_owned);
    let mut open = Watch::json(
        &door,
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=",
    )
    .await;
    own(
        "grown",
        json!([{"name": "east", "namespaces": ["grown-e", "grown-x"]}, {"name": "west", "namespaces": ["grown-w"]}]),
    )
    .await;
    assert_eq!(open.sees("there-before").await, "ADDED");
    let mut late = Watch::json(&door, &format!("resourceVersion={before}")).await;
    assert_eq!(late.sees("there-before").await, "ADDED");
    let token = token.expect("both members have objects, and a page has one");
    let next = door
        .get(&format!("{MAPS}?limit=1&continue={token}"), &[])
        .await
        .unwrap();
    assert_eq!(next.status, 200, "{}", next.message());
    let listed = String::from_utf8_lossy(&next.body);
    assert!(
        !listed.contains("there-before"),
        "pages go on with what was the shard's then: {listed}"
    );
    // The bookmark of the stream that was open all the time speaks of the new share.
    make_in("east", "grown-x", "later").await;
    open.sees("later").await;
    let on = open.bookmark().await;
    make_in("west", "grown-w", "last").await;
    let mut resumed = Watch::json(&door, &format!("resourceVersion={on}")).await;
    assert_eq!(resumed.sees("last").await, "ADDED");
    // One namespace's positions are its own business.
    let path = format!("{one}?watch=true&timeoutSeconds=5&resourceVersion={elsewhere}");
    let answer = door.get(&path, &[]).await.unwrap();
    let told = String::from_utf8_lossy(&answer.body);
    assert!(
        answer.status == 200 && told.contains("\"last\"") && !told.contains("\"ERROR\""),
        "{told}"
    );
}
