//! Connections that say nothing: they may neither stay nor keep others out.

use std::time::Duration;

use http::Method;
use portolan_testbed::patience;
use portolan_tests::door::request;
use tokio::io::AsyncReadExt as _;

use crate::world;

const PATH: &str = "/api/v1/namespaces/h-beta/configmaps";

#[tokio::test]
async fn silence_is_let_go_and_who_is_known_stays() {
    let (world, _) = world().await;
    let door = world.listed_door("beta", PATH).await.unwrap();
    let known = door.open().await.unwrap();
    let get = || request(Method::GET, PATH, &[], &[]).unwrap();
    assert_eq!(known.ask(get()).await.unwrap().status, 200);
    let mut silent = Vec::new();
    for at in 0..60 {
        let alpn = if at % 2 == 0 { "h2" } else { "http/1.1" };
        silent.push(door.connect(alpn).await.unwrap());
    }
    let ended = silent.iter_mut().map(async |stream| {
        let mut buffer = [0; 256];
        while matches!(stream.read(&mut buffer).await, Ok(1..)) {}
    });
    // Ten seconds for them to become known, some more to be told to go.
    let patience = patience().max(Duration::from_mins(1));
    let ended = tokio::time::timeout(patience, futures::future::join_all(ended)).await;
    assert!(ended.is_ok(), "silent connections are still open");
    assert_eq!(known.ask(get()).await.unwrap().status, 200);
}
