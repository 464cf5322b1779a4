//! A namespace is handed over to another shard: what its old owner's informers hold of it.

use portolan_tests::go_client::GoClient;
use portolan_tests::watch::Watch;
use serde_json::json;

use crate::{MEMBERS, begun, door, map, own, world};

const PATH: &str = "/api/v1/namespaces/fh/configmaps";

/// Until the informer holds so many, which is asked again and again.
async fn until_holds(informer: &mut GoClient, count: usize) {
    let started = std::time::Instant::now();
    loop {
        let held = informer.dump().await.unwrap().items;
        if held.len() == count {
            return;
        }
        assert!(started.elapsed() < portolan_testbed::patience(), "{held:?}");
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
}

#[tokio::test]
async fn an_informer_of_a_namespace_that_left_is_emptied() {
    let _calm = MEMBERS.read().await;
    let world = world().await;
    for name in ["one", "two"] {
        map("east", "fh", name).await;
    }
    let door = door("giver").await;
    // A namespace of a test's own has its root certificates, too.
    let all = door.get(PATH, &[]).await.unwrap().json()["items"]
        .as_array()
        .unwrap()
        .len();
    let kubeconfig = world.fleet.merged_kubeconfig("giver");
    let mut informers = Vec::new();
    for more in ["--watch-list=true", "--watch-list=false"] {
        let arguments = ["informer", "--namespace=fh", more];
        let mut informer = GoClient::synced(&kubeconfig, &arguments).await.unwrap();
        until_holds(&mut informer, all).await;
        informers.push(informer);
    }
    let before = door.get(PATH, &[]).await.unwrap().json();
    let mut watch = begun(&door, PATH).await;
    own("giver", json!([{"name": "east", "namespaces": ["fh-e"]}])).await;
    own("taker", json!([{"name": "east", "namespaces": ["fh-t", "fh"]}])).await;
    for informer in &mut informers {
        until_holds(informer, 0).await;
    }
    let wanted = |event: &serde_json::Value| event["type"] == "DELETED" || event["type"] == "ERROR";
    watch.until("what left is told", wanted).await.unwrap();
    // Who was not there then is told as well: first it is empty, then it is another's.
    let held = before["metadata"]["resourceVersion"].as_str().unwrap();
    let mut late = Watch::open(&door, &format!("{PATH}?resourceVersion={held}"))
        .await
        .unwrap();
    late.until("what left is told", wanted).await.unwrap();
    let list = door.get(&format!("{PATH}?resourceVersion={held}"), &[]).await.unwrap();
    assert_eq!(list.status, 200, "{}", list.message());
    assert_eq!(list.json()["items"], json!([]));
    let told = list.json()["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    for query in ["", "&watch=true"] {
        let path = format!("{PATH}?resourceVersion={told}{query}");
        let refused = door.get(&path, &[]).await.unwrap();
        refused.expect_status(403, &["fh", "operators/taker"]).unwrap();
    }
    let one = door.get(&format!("{PATH}/one"), &[]).await.unwrap();
    one.expect_status(403, &["fh"]).unwrap();
    let taker = crate::door("taker").await;
    let taken = taker.get(PATH, &[]).await.unwrap().json();
    assert_eq!(taken["items"].as_array().map(Vec::len), Some(all));
}
