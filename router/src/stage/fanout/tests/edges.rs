//! How watches begin and end, and the fence.

use super::*;
use crate::resource::upstream::Ended;

#[tokio::test]
async fn the_start_needs_all_members_or_a_position_or_leave_to_go_without() {
    let mut world = World::new(&["east", "west"]).await;
    // No position: all or nobody.
    let started = world.start("");
    let (_, _stream) = world.members[0].opens().await;
    world.members[1].refuses(503).await;
    let fault = started.await.unwrap().err().unwrap();
    assert!(
        matches!(&fault, Fault::TooManyRequests { cluster: Some(cluster), .. } if cluster == "west"),
        "{fault:?}"
    );
    // A position: whoever is there.
    let started = world.start(&format!("resourceVersion={}", world.cursor(&[10, 20])));
    let (_, mut stream) = world.members[0].opens().await;
    world.members[1].refuses(503).await;
    let mut watch = started.await.unwrap().unwrap();
    assert_eq!(world.leg(1).0, "held");
    stream.send_data(event("ADDED", "a", 11), false).unwrap();
    watch.expect("ADDED", "a").await;
    drop(watch);
    // Leave to go without.
    world.plan.unavailable = Unavailable::PartialStart;
    world.caller = young(&world.fanouts.routing);
    let started = world.start("sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true");
    let (_, mut stream) = world.members[0].opens().await;
    world.members[1].refuses(503).await;
    let mut watch = started.await.unwrap().unwrap();
    assert!(
        watch.headers["warning"].to_str().unwrap().contains("west"),
        "{:?}",
        watch.headers
    );
    stream.send_data(event("ADDED", "a", 3), false).unwrap();
    stream.send_data(bookmark(5, true), false).unwrap();
    watch.expect("ADDED", "a").await;
    let marker = watch.next().await.unwrap();
    assert_eq!(
        marker["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true",
        "{marker}"
    );
}

#[tokio::test]
async fn a_members_refusal_is_the_answer() {
    let mut world = World::new(&["east", "west"]).await;
    let started = world.start("");
    let (_, _stream) = world.members[0].opens().await;
    world.members[1].refuses(403).await;
    let watch = started.await.unwrap().unwrap();
    assert_eq!(watch.status, StatusCode::FORBIDDEN);
    let warning = watch.headers["warning"].to_str().unwrap();
    assert!(warning.contains("member cluster west answered 403"), "{warning}");
    assert_eq!(watch.whole().await["message"], "west");
    for code in [400, 406, 422] {
        let started = world.start("fieldSelector=spec.color%3Dred");
        let (_, _stream) = world.members[0].opens().await;
        world.members[1].refuses(code).await;
        if code == 422 {
            // Asked without a marker as well, which it might not have known.
            world.members[1].refuses(code).await;
        }
        let watch = started.await.unwrap().unwrap();
        let warning = watch.headers["warning"].to_str().unwrap();
        assert!(warning.contains("member cluster west answered 4"), "{code}: {warning}");
    }
    // What none of them serves is not there; what one of them serves is.
    let started = world.start("");
    world.members[0].refuses(404).await;
    world.members[1].refuses(404).await;
    assert_eq!(started.await.unwrap().unwrap().status, StatusCode::NOT_FOUND);
    let started = world.start("");
    world.members[0].refuses(404).await;
    let (_, mut stream) = world.members[1].opens().await;
    let mut watch = started.await.unwrap().unwrap();
    assert_eq!(world.leg(0).0, "absent");
    stream.send_data(event("ADDED", "b", 21), false).unwrap();
    watch.expect("ADDED", "b").await;
}

#[tokio::test]
async fn ends_are_told_and_clean() {
    let mut world = World::new(&["east", "west"]).await;
    let query = format!(
        "resourceVersion={}&allowWatchBookmarks=true&timeoutSeconds=3",
        world.cursor(&[10, 20])
    );
    let (mut watch, mut streams) = world.open(&query).await;
    streams[0].1.send_data(event("ADDED", "a", 11), false).unwrap();
    streams[1]
        .1
        .send_data(event("ADDED", "half", 21).slice(..30), false)
        .unwrap();
    watch.expect("ADDED", "a").await;
    watch.bookmark().await;
    assert_eq!(watch.next().await, None);
    drop(watch);
    let query = format!("resourceVersion={}&allowWatchBookmarks=true", world.cursor(&[10, 20]));
    let (mut watch, mut streams) = world.open(&query).await;
    for (at, version) in [(0, 11), (1, 21)] {
        streams[at].1.send_data(event("ADDED", "b", version), false).unwrap();
        watch.expect("ADDED", "b").await;
        watch.bookmark().await;
    }
    // Of one member alone: no reason to write anything.
    streams[0].1.send_data(bookmark(15, false), false).unwrap();
    eventually("the bookmark was read", || {
        futures::FutureExt::now_or_never(watch.body.frame()).is_none() && world.leg(0).1 == Some("15".to_owned())
    })
    .await;
    drain(&world);
    assert_eq!(watch.bookmark().await, world.cursor(&[15, 21]));
    assert_eq!(watch.next().await, None);
    assert_eq!(watch.body.ended(), Ended::Drained);
}

/// As `edge` runs what replans, to its end.
fn drain(world: &World) {
    let tasks = Tasks::new();
    tasks.spawn("replan", world.fanouts.replanner.clone().run(tasks.clone()));
    tasks.token().cancel();
}

/// client-go takes a watch that lasted less than a second and said nothing for broken, and lists anew.
#[tokio::test]
async fn a_drain_leaves_a_young_watch_its_second() {
    let mut world = World::new(&["east", "west"]).await;
    let query = format!("resourceVersion={}&allowWatchBookmarks=true", world.cursor(&[10, 20]));
    let (mut watch, _streams) = world.open(&query).await;
    let begun = std::time::Instant::now();
    drain(&world);
    assert_eq!(watch.next().await, None);
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(watch.body.ended(), Ended::Drained);
}

#[tokio::test]
async fn what_is_no_watch_is_tried_again_and_given_up_by_name() {
    let mut world = World::new(&["east", "west"]).await;
    let (mut watch, mut streams) = world
        .open(&format!("resourceVersion={}", world.cursor(&[10, 20])))
        .await;
    streams[0]
        .1
        .send_data(Bytes::from_static(b"<html></html>\n"), false)
        .unwrap();
    let spoil = async |stream: &mut SendStream<Bytes>| {
        // In two chunks, so that the first of them can be read.
        stream.send_data(Bytes::from_static(b"<html>"), false).unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        stream.send_data(Bytes::from_static(b"</html>\n"), false).unwrap();
    };
    let reading = async {
        let event = watch.next().await.unwrap();
        assert_eq!(event["object"]["code"], 410, "{event}");
        assert!(event["object"]["message"].as_str().unwrap().contains("east"), "{event}");
        assert_eq!(watch.next().await, None);
    };
    let spoiling = async {
        let mut kept = Vec::new();
        for _ in 0..2 {
            let (_, mut stream) = world.members[0].opens().await;
            spoil(&mut stream).await;
            kept.push(stream);
        }
        kept
    };
    tokio::join!(reading, spoiling);
}

/// A write to a namespace, of east's, and the member's answer to it.
fn written(user: &str, version: u64) -> (Write, Response<Body>) {
    let uri = "/api/v1/namespaces/ns/pods".parse().unwrap();
    let asked = classify(&Method::POST, &uri, &HeaderMap::new()).unwrap();
    let caller = Caller::Person {
        user: user.to_owned(),
        groups: Vec::new(),
    };
    let object =
        json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "own", "resourceVersion": version.to_string()}});
    let answer = Response::builder()
        .status(201)
        .header("content-type", "application/json")
        .body(Body::from(Bytes::from(object.to_string())))
        .unwrap();
    (Write::of(&caller, &asked, &"east".into()).unwrap(), answer)
}

#[tokio::test]
async fn a_write_is_answered_when_the_callers_own_watch_has_shown_it() {
    let mut world = World::new(&["east", "west"]).await;
    let (mut watch, mut streams) = world
        .open(&format!("resourceVersion={}", world.cursor(&[10, 20])))
        .await;
    let open = world.fanouts.open.clone();
    assert!(futures::FutureExt::now_or_never(watch.body.frame()).is_none());
    // What the watch has shown, and what others write, does not wait.
    for (user, version) in [("ada", 10), ("bob", 30)] {
        let (write, answer) = written(user, version);
        assert!(
            futures::FutureExt::now_or_never(fence::hold(&open, &write, answer)).is_some(),
            "{user}"
        );
    }
    let (write, answer) = written("ada", 11);
    let mut held = Box::pin(fence::hold(&open, &write, answer));
    assert!(futures::FutureExt::now_or_never(held.as_mut()).is_none());
    streams[0].1.send_data(event("ADDED", "own", 11), false).unwrap();
    watch.expect("ADDED", "own").await;
    let answer = futures::FutureExt::now_or_never(held.as_mut()).expect("the watch has shown it");
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(
        serde_json::from_slice::<Value>(&body).unwrap()["metadata"]["resourceVersion"],
        "11"
    );
    // Not for ever, and not for a leg that is down.
    let (write, answer) = written("ada", 12);
    let begun = std::time::Instant::now();
    fence::hold(&open, &write, answer).await;
    let waited = begun.elapsed();
    assert!(
        waited >= Duration::from_millis(240) && waited < Duration::from_secs(5),
        "{waited:?}"
    );
    world.members[0].backend = None;
    let reading = watch.body.frame();
    let (write, answer) = written("ada", 12);
    tokio::select! {
        _ = reading => panic!("nothing is to be said"),
        () = eventually("the leg is held", || world.leg(0).0 == "held") => {}
    }
    assert!(futures::FutureExt::now_or_never(fence::hold(&open, &write, answer)).is_some());
}

#[tokio::test]
async fn a_watch_that_its_client_does_not_read_is_no_witness() {
    let mut world = World::new(&["east", "west"]).await;
    let (mut watch, mut streams) = world
        .open(&format!("resourceVersion={}", world.cursor(&[10, 20])))
        .await;
    let open = world.fanouts.open.clone();
    streams[0].1.send_data(event("ADDED", "own", 11), false).unwrap();
    watch.expect("ADDED", "own").await;
    // From here on nobody takes anything of it.
    eventually("its writes are answered at once", || {
        let (write, answer) = written("ada", 12);
        futures::FutureExt::now_or_never(fence::hold(&open, &write, answer)).is_some()
    })
    .await;
    assert!(futures::FutureExt::now_or_never(watch.body.frame()).is_none());
    let (write, answer) = written("ada", 12);
    assert!(
        futures::FutureExt::now_or_never(fence::hold(&open, &write, answer)).is_none(),
        "it is read again"
    );
}
