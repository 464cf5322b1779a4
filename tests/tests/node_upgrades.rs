//! An upgrade by Helm, and the way back, while operators work: hub, then agent, then routers are replaced by those of another image,
//! one after the other, and the hub gets other settings; no request fails, and nobody is told what is not so.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "also in functions that only tests call; what was measured is told"
)]

#[path = "node_upgrades/ground.rs"]
mod ground;
#[path = "node_upgrades/load.rs"]
mod load;
#[path = "node_upgrades/told.rs"]
mod told;

use std::time::Instant;

use portolan_testbed::inside;

use ground::{AGENT, Ground, HUB, NEW, OLD, ROUTER};
use load::{Deleted, Load};
use told::Watchers;

/// Requests of each kind that are little enough to be sure that the load has run all the while.
const AT_LEAST: usize = 50;

#[test]
fn an_upgrade_is_noticed_by_nobody() {
    inside(async {
        let ground = Ground::begin().await;
        let deleted = Deleted::default();
        let watchers = Watchers::begin(&ground, &deleted).await;
        let load = Load::begin(&ground, &deleted).await;
        for program in [HUB, AGENT, ROUTER] {
            let begun = Instant::now();
            ground.upgrade(program).await;
            ground.runs(program, NEW).await;
            println!("{} is upgraded: {:?}", program.name, begun.elapsed());
            assert_eq!(
                load.failures(),
                Vec::<String>::new(),
                "while {} was upgraded",
                program.name
            );
        }
        let begun = Instant::now();
        ground.settings().await;
        println!("the hub has other settings: {:?}", begun.elapsed());
        assert_eq!(
            load.failures(),
            Vec::<String>::new(),
            "while the hub was given other settings"
        );
        let begun = Instant::now();
        ground.roll_back().await;
        for program in [HUB, AGENT, ROUTER] {
            ground.runs(program, OLD).await;
        }
        println!("rolled back: {:?}", begun.elapsed());
        let done = load.end().await;
        println!("requests: {:?}", done.counts);
        assert_eq!(done.failures, Vec::<String>::new());
        assert!(
            done.counts.values().all(|count| *count >= AT_LEAST),
            "{:?}",
            done.counts
        );
        watchers.end(&ground).await;
    });
}
