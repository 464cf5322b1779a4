//! Answers that nobody reads: each keeps one of the member's own places for as long as it is not read, and an API server has
//! some hundred for all.

use std::time::{Duration, Instant};

use http::{Method, Response};
use hyper::body::Incoming;
use portolan_tests::door::{Door, Line, request};
use portolan_tests::world::World;
use serde_json::json;
use tokio::task::JoinSet;

use crate::world;

const OWN: &str = "/api/v1/namespaces/h-delta/configmaps";
const OTHERS: &str = "/api/v1/namespaces/h-beta/configmaps";
/// Connections, and what is asked on each: more than an API server has places for.
const LINES: usize = 16;
const EACH: usize = 32;
/// For an answer that may never come.
const OPENING: Duration = Duration::from_secs(2);
/// Places that the member has for all, at least: what a level of requests keeps when it was idle before.
const PLACES: u32 = 24;
/// An API server keeps a request waiting for a place for 15 s, and refuses it then: who was answered sooner was in no danger.
const IN_TIME: Duration = Duration::from_secs(14);

/// Between looks at these.
const LOOK: Duration = Duration::from_millis(100);

type Unread = Vec<(Line, Vec<Response<Incoming>>)>;

/// More than any window holds, and in more objects than an API server keeps ready for a watch (ten of a quiet kind): its place is
/// free when all others are taken.
async fn fill(door: &Door) {
    for at in 0..64 {
        let object = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": format!("large-{at}")},
            "data": {"text": "x".repeat(80 << 10)},
        });
        let made = door.post(OWN, &object).await.unwrap();
        assert!(matches!(made.status, 201 | 409), "{}", made.message());
    }
}

/// Asks for all of it many times, at once, and reads nothing.
async fn unread(door: &Door, query: &str) -> Unread {
    let mut opening = JoinSet::new();
    for _ in 0..LINES {
        let line = door.open().await.unwrap();
        let path = format!("{OWN}{query}");
        opening.spawn(async move {
            let asked = (0..EACH).map(|_| {
                let get = request(Method::GET, &path, &[], &[]).unwrap();
                tokio::time::timeout(OPENING, line.send(get))
            });
            let answers = futures::future::join_all(asked).await;
            let begun = answers.into_iter().filter_map(|answer| answer.ok()?.ok()).collect();
            (line, begun)
        });
    }
    opening.join_all().await
}

/// Requests of all ServiceAccounts that are in a place of east's.
async fn in_places(world: &World) -> u32 {
    let metrics = world.direct("east").ok(&["get", "--raw", "/metrics"]).await.unwrap();
    let all = metrics.lines().filter(|line| {
        line.starts_with("apiserver_flowcontrol_current_executing_seats{") && line.contains("\"service-accounts\"")
    });
    let counts = all.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u32>().ok());
    counts.sum()
}

/// A busy machine is still at what was asked a moment ago.
async fn until_few(world: &World, held: &str) {
    let begun = Instant::now();
    loop {
        let places = in_places(world).await;
        if places < PLACES {
            return;
        }
        assert!(
            begun.elapsed() < IN_TIME,
            "delta keeps {places} of east's places {held}"
        );
        tokio::time::sleep(LOOK).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_nobody_reads_leave_the_members_places_to_others() {
    let (world, _) = world().await;
    let own = world.listed_door("delta", OWN).await.unwrap();
    let other = world.listed_door("beta", OTHERS).await.unwrap();
    let before = own.get(OWN, &[]).await.unwrap().json()["metadata"]["resourceVersion"].clone();
    fill(&own).await;
    // What has happened since then comes unannounced behind the head of a watch.
    let since = format!("?watch=true&resourceVersion={}", before.as_str().unwrap());
    let marked = "?watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    for query in ["", "?watch=true", marked, &since] {
        let held = unread(&own, query).await;
        let begun: usize = held.iter().map(|(_, answers)| answers.len()).sum();
        until_few(world, &format!("with {begun} of {query:?}")).await;
        for _ in 0..3 {
            let asked = Instant::now();
            let answer = other.get(OTHERS, &[]).await.unwrap();
            let took = asked.elapsed();
            let what = format!("beside {begun} of delta's {query:?}, after {took:?}");
            assert_eq!(answer.status, 200, "{what}: {}", answer.message());
            assert!(took < IN_TIME, "{what}");
        }
        drop(held);
    }
}
