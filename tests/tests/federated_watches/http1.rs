//! Merged lists and watches over HTTP/1.1, which Python's clients speak: a stream's end is told by its last chunk there,
//! and what breaks off has none.

use std::time::Duration;

use http::Method;
use http_body_util::BodyExt as _;
use portolan_testbed::{Fault, eventually, patience};
use portolan_tests::door::{Line, request};
use portolan_tests::watch::{Watch, held};
use serde_json::{Value, json};

use crate::{MAPS, MEMBERS, door, make, mend_west, world};

const SHARD: &str = "plain";
/// Nearly as large as an object may be.
const LARGE: usize = 1_000_000;
/// More of these than the fault stage lets be under way.
const MANY: usize = 8;

#[tokio::test]
async fn lists_and_watches_end_where_they_say() {
    let _calm = MEMBERS.read().await;
    let door = door(SHARD).await;
    make(SHARD, "east", "here").await;
    make(SHARD, "west", "there").await;
    let line = door.open_http1().await.unwrap();
    let get = || request(Method::GET, MAPS, &[], &[]).unwrap();
    let list = line.ask(get()).await.unwrap();
    let same = door.ask(get()).await.unwrap().json();
    let (list, again) = (list.json(), line.ask(get()).await.unwrap().json());
    // Agents may be writing labels: the objects are the same, not their versions.
    let names = |list: &Value| held(list).unwrap().into_keys().collect::<Vec<_>>();
    assert_eq!(names(&list), names(&same));
    assert_eq!(names(&list), names(&again), "on the same connection");

    let version = list["metadata"]["resourceVersion"].as_str().unwrap();
    let path = format!("{MAPS}?resourceVersion={version}&timeoutSeconds=10");
    let mut watch = Watch::over(line, &path).await.unwrap();
    for member in ["east", "west"] {
        let name = format!("new-{member}");
        make(SHARD, member, &name).await;
        let key = format!("{SHARD}-{}/{name}", &member[..1]);
        assert_eq!(watch.sees(&key).await.unwrap(), "ADDED");
    }
    while watch.next().await.unwrap().is_some() {}
    assert_eq!(
        watch.seen.last().map(String::as_str),
        Some("BOOKMARK"),
        "{:?}",
        watch.seen
    );
    assert_eq!(watch.count("ERROR"), 0, "{:?}", watch.seen);
}

#[tokio::test]
async fn a_list_that_breaks_off_never_looks_whole() {
    let _mine = MEMBERS.write().await;
    mend_west().await;
    let door = door(SHARD).await;
    let direct = world().await.direct_door("west").await.unwrap();
    let text = "x".repeat(LARGE);
    for at in 0..MANY {
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": format!("large-{at}"), "labels": {"large": "yes"}}, "data": {"text": text},
        });
        let path = format!("/api/v1/namespaces/{SHARD}-w/configmaps");
        assert_eq!(direct.post(&path, &object).await.unwrap().status, 201);
    }
    for line in [door.open_http1().await.unwrap(), door.open().await.unwrap()] {
        breaks_off(&line).await;
        mend_west().await;
    }
    let path = format!("/api/v1/namespaces/{SHARD}-w/configmaps?labelSelector=large");
    let gone = direct.call(Method::DELETE, &path, &[], &[]).await.unwrap();
    assert_eq!(gone.status, 200, "{}", gone.message());
}

async fn breaks_off(line: &Line) {
    let west = world().await.cluster("west");
    let path = format!("{MAPS}?labelSelector=large");
    let get = |path: &str| request(Method::GET, path, &[], &[]).unwrap();
    eventually("west is asked again, on a connection that stays", || async {
        let answer = line.ask(get(&format!("{MAPS}?labelSelector=none"))).await.unwrap();
        if answer.status == 200 {
            Ok(())
        } else {
            Err(answer.message())
        }
    })
    .await;
    // Half of the answer is under way when the first of it is here.
    west.fault(Fault::Delay(Duration::from_millis(400))).await.unwrap();
    let mut answer = line.send(get(&path)).await.unwrap();
    assert_eq!(answer.status(), 200);
    let mut read = Vec::new();
    let broke = loop {
        let frame = tokio::time::timeout(patience(), answer.frame()).await.unwrap();
        match frame {
            Some(Ok(frame)) => read.extend_from_slice(&frame.into_data().unwrap_or_default()),
            Some(Err(_)) => break true,
            None => break false,
        }
        if read.len() > LARGE {
            west.fault(Fault::Reset).await.unwrap();
        }
    };
    assert!(broke, "it ended well after {} bytes", read.len());
    assert!(read.len() > LARGE && read.len() < MANY * LARGE, "{} bytes", read.len());
}
