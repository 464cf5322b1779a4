//! West goes, in every way it can, and comes back: the client's stream goes on, and nothing is ever said to be deleted.

use portolan_testbed::Fault;
use portolan_tests::programs::admin_get;

use crate::stream::Watch;
use crate::{MEMBERS, door, make, mend_west, position, until_west_is, world};

/// From before it goes to after it is back.
async fn goes_on(way: &str, go: impl AsyncFnOnce()) {
    let _mine = MEMBERS.write().await;
    mend_west().await;
    let door = door("gone").await;
    let mut watch = Watch::json(&door, &format!("resourceVersion={}", position(&door).await)).await;
    let name = |what: &str| format!("{what}-{way}");
    make("gone", "west", &name("before")).await;
    watch.sees(&name("before")).await;

    go().await;
    until_west_is("gone", "held").await;
    let router = world().await.fleet.process("router").unwrap();
    let metrics = admin_get(&router.admin, "/metrics").await.unwrap();
    for figure in ["watch_legs", "watch_leg_lag_seconds"] {
        let line = format!("portolan_router_{figure}{{cluster=\"west\",state=\"held\"}}");
        assert!(metrics.contains(&line), "{line} is not in {metrics}");
    }
    make("gone", "east", &name("meanwhile")).await;
    assert_eq!(watch.sees(&name("meanwhile")).await, "ADDED");
    // Who comes now with a position is served by east alone.
    let cursor = watch.bookmark().await;
    let mut resumed = Watch::json(&door, &format!("resourceVersion={cursor}")).await;
    make("gone", "east", &name("resumed")).await;
    assert_eq!(resumed.sees(&name("resumed")).await, "ADDED");
    // Who comes without one waits for both.
    let path = format!("{}?watch=true&resourceVersion=0", crate::MAPS);
    let fresh = door.get(&path, &[]).await.unwrap();
    fresh.expect_status(429, &["west"]).unwrap();
    assert!(!fresh.header("retry-after").is_empty());

    mend_west().await;
    make("gone", "west", &name("after")).await;
    assert_eq!(watch.sees(&name("after")).await, "ADDED");
    assert_eq!(resumed.sees(&name("after")).await, "ADDED");
    for watch in [&watch, &resumed] {
        assert_eq!(
            (watch.count("DELETED"), watch.count("ERROR")),
            (0, 0),
            "{:?}",
            watch.seen
        );
        let mut once: Vec<_> = watch.seen.iter().filter(|event| event.starts_with("ADDED")).collect();
        let all = once.len();
        once.sort();
        once.dedup();
        assert_eq!(once.len(), all, "twice: {:?}", watch.seen);
    }
    drop(resumed);
    until_west_is("gone", "live").await;
}

#[tokio::test]
async fn killed() {
    goes_on("killed", async || world().await.cluster("west").kill().await.unwrap()).await;
}

#[tokio::test]
async fn cut_off() {
    goes_on("cut", async || {
        world().await.cluster("west").fault(Fault::Reset).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn blackholed() {
    goes_on("blackholed", async || {
        world().await.cluster("west").fault(Fault::Blackhole).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn frozen() {
    goes_on("frozen", async || world().await.cluster("west").freeze().await.unwrap()).await;
}
