//! SIGTERM: not ready at once, what runs is finished, watches end so that clients resume, and the process ends with 0.

use std::time::{Duration, Instant};

use http::Method;
use nix::sys::signal::Signal;
use portolan_testbed::{Fault, eventually, patience};
use portolan_tests::door::request;
use portolan_tests::programs::admin_get;

use crate::watcher::{Ended, Watcher};
use crate::{EAST, WEST, alone, configured, served};

#[tokio::test]
async fn graceful() {
    let mut ground = alone().await;
    let ground = &mut *ground;
    let door = ground.world.merged_door("alpha").await.unwrap();
    served(&door.get(WEST, &[]).await.unwrap()).unwrap();
    let mut watch = Watcher::start(&door, "team-a").await.unwrap();
    watch.sees("where").await;
    let line = door.open().await.unwrap();
    // There and back again: the answer comes after three seconds, in which all below has to begin. The router's pings take as long.
    ground
        .world
        .cluster("west")
        .fault(Fault::Delay(Duration::from_millis(1500)))
        .await
        .unwrap();
    let slow = line.ask(request(Method::GET, WEST, &[], &[]).unwrap());

    let admin = ground.router.admin().to_owned();
    let terminated = async {
        // Once the slow request is under way.
        eventually("two requests are served", || async {
            let metrics = admin_get(&admin, "/metrics").await.unwrap();
            metrics
                .lines()
                .any(|line| line == "portolan_router_requests_in_flight 2")
        })
        .await;
        let started = Instant::now();
        ground.router.signal(Signal::SIGTERM).unwrap();
        let refusal = eventually("it is not ready", || async { admin_get(&admin, "/readyz").await.err() }).await;
        // Its admin server answers to the end, so that a kubelet sees why.
        assert!(format!("{refusal:#}").contains("503"), "{refusal:#}");
        started
    };
    let (answer, started) = tokio::join!(slow, terminated);
    served(&answer.unwrap()).unwrap();
    assert_eq!(watch.ended(patience()).await, Ended::Cleanly);
    drop(line);
    assert_eq!(ground.router.ended().await.unwrap(), 0);
    let deadline = configured("PORTOLAN_DRAIN_TIMEOUT");
    assert!(started.elapsed() < deadline, "{:?}", started.elapsed());

    ground.world.cluster("west").fault(Fault::None).await.unwrap();
    ground.router.start_again().await.unwrap();
    ground.router.ready().await;
    served(&door.get(EAST, &[]).await.unwrap()).unwrap();
    ground.until_west_is_back().await;
}
