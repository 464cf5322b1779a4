//! Who may begin, from where, and with whom: merged watches before their first byte.

use super::*;

#[tokio::test]
async fn a_replica_does_not_go_on_from_what_another_was_sent() {
    let mut world = World::new(&["east", "west"]).await;
    world.caller = replica("1");
    let (mut watch, mut streams) = world
        .open(&format!("resourceVersion={}", world.cursor(&[10, 20])))
        .await;
    streams[1].1.send_data(event("ADDED", "b", 21), false).unwrap();
    watch.expect("ADDED", "b").await;
    drop(watch);
    world.caller = replica("2");
    let other = world.start("resourceVersion=21").await.unwrap().unwrap();
    assert_eq!(other.whole().await["object"]["code"], 410);
    world.caller = replica("1");
    let (_watch, streams) = world.open("resourceVersion=21").await;
    assert!(streams[1].0.contains("resourceVersion=21&"), "{}", streams[1].0);
}

/// Before Kubernetes 1.32: the marker is the router's wish for a member whose place in the cursor is open, and not the
/// client's.
#[tokio::test]
async fn a_member_without_watch_list_is_asked_plainly_unless_the_client_wants_it() {
    let mut world = World::new(&["east", "west"]).await;
    let started = world.start(&format!(
        "resourceVersion={}&allowWatchBookmarks=true",
        world.cursor(&[10])
    ));
    let (path, _stream) = world.members[0].opens().await;
    assert!(path.contains("resourceVersion=10&"), "{path}");
    let path = world.members[1].refuses(422).await;
    assert!(path.contains("sendInitialEvents=true"), "{path}");
    let (path, mut stream) = world.members[1].opens().await;
    assert!(!path.contains("sendInitialEvents"), "{path}");
    let mut watch = started.await.unwrap().unwrap();
    assert_eq!(watch.status, StatusCode::OK);
    stream.send_data(event("ADDED", "b", 21), false).unwrap();
    watch.expect("ADDED", "b").await;
    drop(watch);
    let started = world.start("sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true");
    let (_, _stream) = world.members[0].opens().await;
    world.members[1].refuses(422).await;
    assert_eq!(started.await.unwrap().unwrap().status, StatusCode::UNPROCESSABLE_ENTITY);
}

#[tokio::test]
async fn what_does_not_speak_as_an_api_server_is_away_and_named() {
    for (names, query) in [
        (&["east", "west"][..], ""),
        (&["west"], ""),
        (&["west"], "resourceVersion=0"),
    ] {
        for (header, value) in [("content-type", "text/html"), ("content-encoding", "gzip")] {
            let mut world = World::new(names).await;
            let started = world.start(query);
            let (west, others) = world.members.split_last_mut().unwrap();
            let mut streams = Vec::new();
            for member in others {
                streams.push(member.opens().await);
            }
            let mut answer = head(200);
            answer.headers_mut().insert(header, value.parse().unwrap());
            let mut asked = west.asked().await;
            let mut page = asked.respond.send_response(answer, false).unwrap();
            page.send_data(Bytes::from_static(b"<html></html>"), true).unwrap();
            match started.await.unwrap() {
                Err(Fault::TooManyRequests { message, cluster, .. }) => {
                    assert_eq!(cluster.as_deref(), Some("west"));
                    assert!(message.contains("west") && message.contains(value), "{message}");
                }
                other => panic!("{names:?}: {:?}", other.map(|watch| watch.status)),
            }
        }
    }
}

#[tokio::test]
async fn only_the_first_list_goes_without_a_member() {
    let mut world = World::new(&["east", "west"]).await;
    world.plan.unavailable = Unavailable::PartialStart;
    world.caller = young(&world.fanouts.routing);
    let again = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&resourceVersion=";
    for version in [world.cursor(&[10, 20]), "17".to_owned()] {
        let started = world.start(&format!("{again}{version}"));
        let (_, _stream) = world.members[0].opens().await;
        world.members[1].refuses(503).await;
        let fault = started.await.unwrap().err().unwrap();
        assert!(matches!(fault, Fault::TooManyRequests { .. }), "{version}: {fault:?}");
    }
    // One that breaks off later is waited for as well.
    let (mut watch, mut streams) = world.open(&format!("{again}17")).await;
    streams[0].1.send_data(event("ADDED", "a", 3), false).unwrap();
    streams[0].1.send_data(bookmark(5, true), false).unwrap();
    watch.expect("ADDED", "a").await;
    world.members[1].backend = None;
    drop(streams.pop());
    tokio::select! {
        event = watch.next() => panic!("{event:?}"),
        () = eventually("the leg is held", || world.leg(1).0 == "held") => {}
    }
}

#[tokio::test]
async fn no_member_is_connected_before_it_has_said_that_the_caller_may() {
    let mut world = World::new(&["east", "west"]).await;
    for leg in &mut world.plan.legs {
        leg.forward.needs = vec![Need::Access(Check::Impersonate {
            cluster: leg.cluster().to_string(),
            user: "ada".to_owned(),
            groups: Vec::new(),
            wanted: Impersonation::user("robot"),
        })];
    }
    let both = world.plan.clone();
    // East says no, whatever west would say; west alone cannot be asked.
    let position = format!("resourceVersion={}", world.cursor(&[10, 20]));
    for query in ["", &*position, "resourceVersionMatch=Exact"] {
        world.plan = both.clone();
        let code = match world.start(query).await.unwrap() {
            Ok(watch) => watch.status,
            Err(fault) => fault.status_code(),
        };
        assert_eq!(code, StatusCode::FORBIDDEN, "{query}");
    }
    world.plan.legs.remove(0);
    let fault = world.start("").await.unwrap().err().unwrap();
    assert!(matches!(fault, Fault::TooManyRequests { .. }), "{fault:?}");
    // A leg that joins a running stream.
    let fan = world.ask("");
    let shared = Arc::new(Shared {
        fanouts: world.fanouts.clone(),
        accepted: crate::value::media::Accepted::of(&fan.asking.headers).unwrap(),
        asking: fan.asking,
        never_shown: Vec::new(),
        ends: tokio::time::Instant::now() + PATIENCE,
    });
    let wish = Wish {
        query: Wish::of(Start::Sync, false),
        shape: None,
        fields: None,
        hurries: false,
        wait: Duration::ZERO,
    };
    let joining = |leg| connect(&shared, &Arc::new(both.clone()), leg, wish.clone(), None);
    assert!(matches!(joining(0).await, Answered::Refused(answer) if answer.status() == StatusCode::FORBIDDEN));
    assert!(matches!(joining(1).await, Answered::Away(_)));
    for member in &mut world.members {
        assert!(member.asked.try_recv().is_err(), "{} was asked", member.name);
    }
}

#[tokio::test]
async fn a_union_without_memory_for_its_names_ends_or_does_not_begin() {
    let mut world = World::new(&["east", "west"]).await;
    world.plan.unique = true;
    let (mut watch, mut streams) = world.open("").await;
    for (version, name) in (3..).zip(["a", "b", "c", "d", "e", "f", "g", "h"]) {
        streams[0].1.send_data(event("ADDED", name, version), false).unwrap();
        watch.expect("ADDED", name).await;
    }
    let fault = world.start("").await.unwrap().err().unwrap();
    assert!(
        matches!(fault, Fault::TooManyRequests { cluster: None, .. }),
        "{fault:?}"
    );
    streams[0].1.send_data(event("ADDED", "i", 20), false).unwrap();
    let mut last = watch.next().await.unwrap();
    if last["type"] == "ADDED" {
        last = watch.next().await.unwrap();
    }
    assert_eq!(last["object"]["code"], 410, "{last}");
    assert_eq!(watch.next().await, None);
    drop(watch);
    assert_eq!(world.fanouts.names.used(), 0);
}
