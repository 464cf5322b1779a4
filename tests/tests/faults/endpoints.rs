//! West by two endpoints, both its one API server's: one of them goes, the requests stay.

use std::time::{Duration, Instant};

use portolan_testbed::{Fault, eventually};
use portolan_tests::programs::admin_get;
use serde_json::{Value, json};

use crate::pulse::Pulse;
use crate::watcher::{Watcher, make};
use crate::{Ground, WEST, with_west};

/// Callers that ask one after the other.
const CALLERS: usize = 4;
/// While the fault is on, once the endpoint is ejected.
const FAULTY: Duration = Duration::from_secs(2);

/// States of west's endpoints, in order.
async fn states(ground: &Ground) -> Vec<String> {
    let told = admin_get(ground.router.admin(), "/endpoints").await.unwrap();
    let told: Vec<Value> = serde_json::from_str(&told).unwrap();
    let of_west = told.iter().filter(|endpoint| endpoint["cluster"] == "west");
    of_west
        .map(|endpoint| endpoint["state"].as_str().unwrap().to_owned())
        .collect()
}

async fn until_states(ground: &Ground, what: &str, expected: &[&str]) {
    eventually(what, || async {
        let now = states(ground).await;
        if now == expected {
            Ok(())
        } else {
            Err(format!("{now:?}"))
        }
    })
    .await;
}

/// The endpoints of west: its fault stage, and the API server itself.
async fn endpoints(ground: &Ground, both: bool) {
    let west = ground.world.cluster("west");
    let urls = [west.url(), west.direct_url()];
    let urls = urls.iter().take(if both { 2 } else { 1 });
    let urls: Vec<_> = urls.map(|url| json!({ "url": url })).collect();
    ground.patch_member("west", &json!({ "endpoints": urls })).await;
    eventually("the router has them", || async {
        states(ground).await.len() == urls.len()
    })
    .await;
}

/// Nobody's read fails that was not being answered, the watch goes on, and the first choice is back after it is over. Says how long all took.
async fn one_goes(fault: Fault) -> String {
    let (_mine, ground) = with_west().await;
    endpoints(&ground, true).await;
    let door = ground.world.merged_door("alpha").await.unwrap();
    let mut watch = Watcher::start(&door, "team-b").await.unwrap();
    watch.sees("where").await;
    let pulses: Vec<_> = (0..CALLERS).map(|_| Pulse::start(door.clone(), WEST)).collect();
    eventually("west is asked", || async { crate::served(&door.get(WEST, &[]).await?) }).await;

    let began = Instant::now();
    ground.world.cluster("west").fault(fault).await.unwrap();
    until_states(&ground, "one is ejected", &["ejected", "usable"]).await;
    let ejected = began.elapsed();
    let faulty = Instant::now();
    while faulty.elapsed() < FAULTY {
        crate::served(&door.get(WEST, &[]).await.unwrap()).unwrap();
    }
    let marker = format!("half-{fault:?}").to_lowercase();
    make(&ground.world, "west", "team-b", &marker).await;
    watch.sees(&marker).await;
    ground.world.cluster("west").fault(Fault::None).await.unwrap();
    let began = Instant::now();
    eventually("it returns", || async {
        states(&ground).await.first().is_some_and(|state| state != "ejected")
    })
    .await;
    let back = began.elapsed();
    let mut slowest = Duration::ZERO;
    let mut answered = 0;
    for pulse in pulses {
        let beats = pulse.end().await;
        // Of an answer that had begun when it went, nobody else has the rest.
        let begun = beats.failures.iter().filter(|why| why.contains("reading a body"));
        assert!(
            begun.count() == beats.failures.len() && beats.failures.len() <= 1,
            "{beats:?}"
        );
        (slowest, answered) = (slowest.max(beats.slowest), answered + beats.answered);
    }
    endpoints(&ground, false).await;
    format!("{fault:?}: ejected after {ejected:?}, back after {back:?}; {answered} reads, slowest {slowest:?}")
}

#[tokio::test]
async fn half_the_endpoints_are_reset() {
    println!("{}", one_goes(Fault::Reset).await);
}

#[tokio::test]
async fn half_the_endpoints_are_blackholed() {
    println!("{}", one_goes(Fault::Blackhole).await);
}
