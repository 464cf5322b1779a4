//! The answer to a write comes when the caller's own watch has shown it.

use std::time::Duration;

use futures::FutureExt as _;
use portolan_testbed::Fault;
use portolan_tests::fleet::admin_get;
use serde_json::json;

use crate::stream::Watch;
use crate::{MEMBERS, door, mend_west, position, world};

#[tokio::test]
async fn own_writes_are_seen_before_they_are_answered() {
    let _mine = MEMBERS.write().await;
    mend_west().await;
    let door = door("fenced").await;
    let mut watch = Watch::json(&door, &format!("resourceVersion={}", position(&door).await)).await;
    let west = world().await.cluster("west");
    west.fault(Fault::Delay(Duration::from_millis(20))).await.unwrap();
    for at in 0..10 {
        let name = format!("own-{at}");
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        let answer = door
            .post("/api/v1/namespaces/fenced-w/configmaps", &object)
            .await
            .unwrap();
        assert_eq!(answer.status, 201, "{}", answer.message());
        // It has left the router before the answer did: what remains is this process' own way to it.
        let seen = tokio::time::timeout(Duration::from_millis(15), watch.sees(&name).boxed()).await;
        assert_eq!(seen.as_deref(), Ok("ADDED"), "{name}");
    }
    west.fault(Fault::None).await.unwrap();
    let router = world().await.fleet.process("router").unwrap();
    let metrics = admin_get(&router.admin, "/metrics").await.unwrap();
    let kept = metrics
        .lines()
        .find(|line| line.starts_with("portolan_router_fanout_fences_total{outcome=\"seen\"}"));
    assert!(kept.is_some_and(|line| !line.ends_with(" 0")), "{metrics}");
}
