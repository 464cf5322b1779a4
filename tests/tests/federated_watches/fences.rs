//! The answer to a write comes when the caller's own watch has shown it.

use std::time::Duration;

use portolan_testbed::Fault;
use portolan_tests::programs::admin_get;
use serde_json::json;

use crate::stream::Watch;
use crate::{MEMBERS, door, mend_west, position, world};

/// Writes whose answer was kept until the caller's watch had their event on its way.
async fn kept() -> u64 {
    let router = world().await.fleet.process("router").unwrap();
    let metrics = admin_get(&router.admin, "/metrics").await.unwrap();
    let series = "portolan_router_fanout_fences_total{outcome=\"seen\"} ";
    let line = metrics.lines().find_map(|line| line.strip_prefix(series));
    line.map_or(0, |count| count.parse().unwrap())
}

#[tokio::test]
async fn own_writes_are_seen_before_they_are_answered() {
    let _mine = MEMBERS.write().await;
    mend_west().await;
    let door = door("fenced").await;
    let mut watch = Watch::json(&door, &format!("resourceVersion={}", position(&door).await)).await;
    let west = world().await.cluster("west");
    west.fault(Fault::Delay(Duration::from_millis(20))).await.unwrap();
    let before = kept().await;
    for at in 0..10 {
        let name = format!("own-{at}");
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        let answer = door
            .post("/api/v1/namespaces/fenced-w/configmaps", &object)
            .await
            .unwrap();
        assert_eq!(answer.status, 201, "{}", answer.message());
        assert_eq!(watch.sees(&name).await, "ADDED", "{name}");
    }
    west.fault(Fault::None).await.unwrap();
    // The event has left the router before the answer did. Its way to this process is another connection's, so that the
    // two may be read in either order; and on a busy machine the fence may give up on some of them.
    assert!(kept().await > before, "no answer was kept");
}
