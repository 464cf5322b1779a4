//! Positions, markers and mending of streams that are open.

use super::*;
use crate::value::kinds::MemberKinds;

#[tokio::test]
async fn who_asks_for_no_bookmarks_goes_on_from_the_last_object() {
    let mut world = World::new(&["east", "west"]).await;
    let (mut watch, mut streams) = world
        .open(&format!("resourceVersion={}", world.cursor(&[10, 20])))
        .await;
    streams[1].1.send_data(event("ADDED", "b", 21), false).unwrap();
    watch.expect("ADDED", "b").await;
    streams[0].1.send_data(event("ADDED", "a", 11), false).unwrap();
    watch.expect("ADDED", "a").await;
    drop(watch);
    let (_watch, streams) = world.open("resourceVersion=11").await;
    assert!(streams[0].0.contains("resourceVersion=11&"), "{}", streams[0].0);
    assert!(streams[1].0.contains("resourceVersion=21&"), "{}", streams[1].0);
}

#[tokio::test]
async fn one_marker_when_all_have_sent_theirs() {
    let mut world = World::new(&["east", "west"]).await;
    let query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=&allowWatchBookmarks=true";
    let (mut watch, mut streams) = world.open(query).await;
    assert!(streams[0].0.contains("sendInitialEvents=true"), "{}", streams[0].0);
    streams[0].1.send_data(event("ADDED", "a", 3), false).unwrap();
    streams[0].1.send_data(bookmark(5, true), false).unwrap();
    streams[0].1.send_data(event("DELETED", "a", 6), false).unwrap();
    watch.expect("ADDED", "a").await;
    streams[1].1.send_data(event("ADDED", "b", 8), false).unwrap();
    streams[1].1.send_data(bookmark(9, true), false).unwrap();
    watch.expect("ADDED", "b").await;
    let marker = watch.next().await.unwrap();
    assert_eq!(
        marker["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true",
        "{marker}"
    );
    watch.expect("DELETED", "a").await;
    assert_eq!(watch.bookmark().await, world.cursor(&[6, 9]));
}

#[tokio::test]
async fn a_union_without_a_member_that_has_the_kind_no_more_is_listed_anew() {
    let mut world = World::new(&["east", "west"]).await;
    world.plan.unique = true;
    // Discovery has seen it go.
    let routing = &world.fanouts.routing;
    routing.set_kinds(&"west".into(), "uid-west", &Arc::default());
    let started = world.start(&format!("resourceVersion={}", world.cursor(&[10, 20])));
    let (_, _east) = world.members[0].opens().await;
    world.members[1].refuses(404).await;
    let mut watch = started.await.unwrap().unwrap();
    let last = watch.next().await.unwrap();
    assert_eq!(last["object"]["code"], 410, "{last}");
    assert!(last["object"]["message"].to_string().contains("member west"), "{last}");
    assert!(watch.next().await.is_none());
}

#[tokio::test]
async fn a_member_where_the_client_goes_on_is_not_absent_by_its_404_alone() {
    let mut world = World::new(&["east", "west"]).await;
    let started = world.start(&format!("resourceVersion={}", world.cursor(&[10, 20])));
    let (_, _east) = world.members[0].opens().await;
    world.members[1].refuses(404).await;
    let _watch = started.await.unwrap().unwrap();
    assert_eq!(world.leg(1).0, "held");
}

/// It would tell of an absence that nobody knows of.
#[tokio::test]
async fn a_404_of_a_member_that_does_not_know_what_it_serves_is_no_absence() {
    for (is_stale, status) in [(false, 200), (true, 429)] {
        let mut world = World::new(&["east", "west"]).await;
        let mut kinds = MemberKinds::default();
        if is_stale {
            kinds.mark_stale("", "v1");
        }
        world
            .fanouts
            .routing
            .set_kinds(&"west".into(), "uid-west", &Arc::new(kinds));
        let started = world.start("allowWatchBookmarks=true");
        let (_, _east) = world.members[0].opens().await;
        world.members[1].refuses(404).await;
        let started = started.await.unwrap();
        let found = started.map_or_else(|fault| fault.status_code().as_u16(), |_| 200);
        assert_eq!(found, status, "stale: {is_stale}");
    }
}

#[tokio::test]
async fn a_member_without_watch_list_is_mended_without_a_marker() {
    let mut world = World::new(&["east", "west"]).await;
    let started = world.start("allowWatchBookmarks=true");
    assert!(world.members[0].refuses(422).await.contains("sendInitialEvents=true"));
    let (path, mut east) = world.members[0].opens().await;
    assert!(!path.contains("sendInitialEvents"), "{path}");
    let (_, mut west) = world.members[1].opens().await;
    let mut watch = started.await.unwrap().unwrap();
    west.send_data(bookmark(9, true), false).unwrap();
    watch.bookmark().await;
    let together = |events: [Bytes; 2]| Bytes::from(events.concat());
    east.send_data(together([event("ADDED", "a", 3), bookmark(5, false)]), false)
        .unwrap();
    watch.expect("ADDED", "a").await;
    assert_eq!(watch.bookmark().await, world.cursor(&[5, 9]));
    let gone = json!({"type": "ERROR", "object": {"kind": "Status", "apiVersion": "v1", "code": 410}});
    east.send_data(format!("{gone}\n").into(), false).unwrap();
    let mending = async {
        let (path, mut east) = world.members[0].opens().await;
        assert!(!path.contains("sendInitialEvents"), "not refused once more: {path}");
        east.send_data(together([event("ADDED", "b", 7), bookmark(8, false)]), false)
            .unwrap();
        east
    };
    let reading = async {
        watch.expect("ADDED", "b").await;
        watch.expect("DELETED", "a").await;
        watch.bookmark().await
    };
    let (_east, last) = tokio::join!(mending, reading);
    assert_eq!(last, world.cursor(&[8, 9]));
}

/// A page of metadata as of version 10, of these names.
fn page(names: &[&str], token: &str) -> Bytes {
    let items = names
        .iter()
        .map(|name| json!({"metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "7"}}));
    let items: Vec<Value> = items.collect();
    let meta = json!({"resourceVersion": "10", "continue": token});
    let list =
        json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": meta, "items": items});
    list.to_string().into()
}

fn gone() -> Bytes {
    let gone = json!({"type": "ERROR", "object": {"kind": "Status", "apiVersion": "v1", "code": 410}});
    format!("{gone}\n").into()
}

#[tokio::test]
async fn a_member_that_forgot_where_a_resumed_watch_stood_lists_what_was_there() {
    let mut world = World::new(&["east", "west"]).await;
    let (mut watch, mut streams) = world
        .open(&format!(
            "x=1&resourceVersion={}&allowWatchBookmarks=true&timeoutSeconds=60",
            world.cursor(&[10, 20])
        ))
        .await;
    streams[1].1.send_data(event("ADDED", "w", 21), false).unwrap();
    watch.expect("ADDED", "w").await;
    streams[0].1.send_data(gone(), false).unwrap();
    let mended = world.cursor(&[13, 21]);
    let mending = async {
        let (path, mut list) = world.members[0].opens().await;
        for word in ["resourceVersion=10&", "resourceVersionMatch=Exact", "limit=250"] {
            assert!(path.contains(word), "{path} says {word}");
        }
        for word in ["watch=", "timeoutSeconds", "sendInitialEvents", "allowWatchBookmarks"] {
            assert!(!path.contains(word), "{path} says nothing of {word}");
        }
        list.send_data(page(&["a", "b"], "more"), true).unwrap();
        let (path, mut list) = world.members[0].opens().await;
        assert!(
            path.contains("continue=more") && !path.contains("resourceVersion"),
            "{path}"
        );
        list.send_data(page(&["c"], ""), true).unwrap();
        let (path, mut east) = world.members[0].opens().await;
        assert!(
            path.contains("sendInitialEvents=true") && path.contains("watch=1"),
            "{path}"
        );
        let now = [event("ADDED", "b", 7), event("ADDED", "c", 12), bookmark(13, true)];
        east.send_data(now.concat().into(), false).unwrap();
        east
    };
    let reading = async {
        // What the client had and has is not told again.
        let mut seen = Vec::new();
        loop {
            let event = watch.next().await.unwrap();
            let name = event["object"]["metadata"]["name"].as_str().map(str::to_owned);
            seen.extend(name.map(|name| format!("{} {name}", event["type"].as_str().unwrap())));
            if event["object"]["metadata"]["resourceVersion"] == *mended {
                return seen;
            }
        }
    };
    let (_east, seen) = tokio::join!(mending, reading);
    assert_eq!(seen, ["MODIFIED c", "DELETED a"]);
}

/// A member that ends a resumed watch without a word is not asked the same for ever.
#[tokio::test]
async fn a_member_that_ends_a_resumed_watch_at_once_is_read_anew() {
    let mut world = World::new(&["east", "west"]).await;
    let query = format!("resourceVersion={}&allowWatchBookmarks=true", world.cursor(&[10, 20]));
    let (mut watch, mut streams) = world.open(&query).await;
    streams[0].1.send_data(Bytes::new(), true).unwrap();
    let ending = async {
        for _ in 1..3 {
            let (path, mut stream) = world.members[0].opens().await;
            assert!(
                path.contains("watch=") && path.contains("resourceVersion=10&"),
                "{path}"
            );
            stream.send_data(Bytes::new(), true).unwrap();
        }
        let (path, mut list) = world.members[0].opens().await;
        let lists = path.contains("resourceVersion=10&") && path.contains("resourceVersionMatch=Exact");
        assert!(lists, "{path}");
        list.send_data(page(&["a"], ""), true).unwrap();
        let (path, mut east) = world.members[0].opens().await;
        assert!(path.contains("sendInitialEvents=true"), "{path}");
        let now = [event("ADDED", "b", 12), bookmark(13, true)];
        east.send_data(now.concat().into(), false).unwrap();
        east
    };
    let reading = async {
        let mut seen = Vec::new();
        while seen.len() < 2 {
            let event = watch.next().await.unwrap();
            let name = event["object"]["metadata"]["name"].as_str();
            seen.extend(name.map(|name| format!("{} {name}", event["type"].as_str().unwrap())));
        }
        seen
    };
    let (_east, mut seen) = tokio::join!(ending, reading);
    seen.sort();
    assert_eq!(seen, ["ADDED b", "DELETED a"]);
}

#[tokio::test]
async fn the_only_members_history_is_told_in_order_where_the_member_forgot_it() {
    let mut world = World::new(&["east"]).await;
    world.plan.only_member = true;
    let (mut watch, mut streams) = world.open("resourceVersion=10&allowWatchBookmarks=true").await;
    streams[0].1.send_data(gone(), false).unwrap();
    let mended = world.cursor(&[14]);
    let mending = async {
        let (path, mut list) = world.members[0].opens().await;
        assert!(path.contains("resourceVersionMatch=Exact"), "{path}");
        list.send_data(page(&["a", "b"], ""), true).unwrap();
        let (_, mut east) = world.members[0].opens().await;
        let now = [event("ADDED", "b", 13), event("ADDED", "c", 12), bookmark(14, true)];
        east.send_data(now.concat().into(), false).unwrap();
        east
    };
    // By name b comes first; who goes on from its version must have been told of c.
    let reading = async {
        watch.expect("DELETED", "a").await;
        watch.expect("ADDED", "c").await;
        watch.expect("MODIFIED", "b").await;
        assert_eq!(watch.bookmark().await, mended);
    };
    let _streams = tokio::join!(mending, reading);
}

#[tokio::test]
async fn what_a_member_has_compacted_is_listed_anew_by_the_client() {
    let mut world = World::new(&["east", "west"]).await;
    let (mut watch, mut streams) = world
        .open(&format!("resourceVersion={}", world.cursor(&[10, 20])))
        .await;
    streams[0].1.send_data(gone(), false).unwrap();
    let (_, last) = tokio::join!(world.members[0].refuses(410), watch.next());
    let last = last.unwrap();
    assert_eq!((&last["type"], &last["object"]["code"]), (&"ERROR".into(), &410.into()));
    assert!(watch.next().await.is_none());
    let expired = world.fanouts.open.metrics.expirations("compacted");
    assert_eq!(expired, 1);
}

/// A resumed watch of one member that has forgotten where it stood.
async fn forgotten() -> (World, Watch, Vec<(String, SendStream<Bytes>)>) {
    let mut world = World::new(&["east"]).await;
    let (watch, mut streams) = world.open(&format!("resourceVersion={}", world.cursor(&[10]))).await;
    streams[0].1.send_data(gone(), false).unwrap();
    (world, watch, streams)
}

#[tokio::test]
async fn a_member_that_will_not_list_what_the_client_holds_makes_it_list_anew() {
    for code in [400, 403, 422] {
        let (mut world, mut watch, _streams) = forgotten().await;
        let (_, last) = tokio::join!(world.members[0].refuses(code), watch.next());
        let last = last.unwrap();
        assert_eq!(last["object"]["code"], 410, "{code}: {last}");
        assert!(
            last["object"]["message"].to_string().contains("member cluster east"),
            "{last}"
        );
        assert!(watch.next().await.is_none());
        assert_eq!(world.fanouts.open.metrics.expirations("refused"), 1);
    }
}

#[tokio::test]
async fn a_list_that_cannot_be_read_is_asked_for_some_times_only() {
    let (mut world, mut watch, _streams) = forgotten().await;
    let member = &mut world.members[0];
    let answering = async {
        for _ in 0..3 {
            let (_, mut list) = member.opens().await;
            list.send_data(Bytes::from_static(b"{}"), true).unwrap();
        }
    };
    let ((), last) = tokio::join!(answering, watch.next());
    assert_eq!(last.unwrap()["object"]["code"], 410);
    assert_eq!(world.fanouts.open.metrics.expirations("unreadable"), 1);
}

#[tokio::test]
async fn a_page_that_is_too_large_is_asked_for_in_parts() {
    let (mut world, mut watch, _streams) = forgotten().await;
    let member = &mut world.members[0];
    let answering = async {
        let mut limits = Vec::new();
        for _ in 0..5 {
            let (path, mut list) = member.opens().await;
            let limit = path.split("limit=").nth(1).unwrap();
            limits.push(limit.split('&').next().unwrap().to_owned());
            list.reserve_capacity(5 << 20);
            let _ = list.send_data(vec![b' '; 5 << 20].into(), true);
        }
        limits
    };
    let (limits, last) = tokio::join!(answering, watch.next());
    assert_eq!(limits, ["250", "62", "15", "3", "1"]);
    assert_eq!(last.unwrap()["object"]["code"], 410, "one object alone is too large");
}
