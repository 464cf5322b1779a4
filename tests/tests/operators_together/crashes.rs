//! What dies while namespaces move: routers and the hub, by SIGKILL, one after the other, each once before any
//! comes again. Each comes back after a moment.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use portolan_tests::daemon::Daemon;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use tokio::sync::Mutex;
use tokio::time::sleep;

use crate::ground::Ground;

/// For how long something is away, in milliseconds.
const AWAY: std::ops::Range<u64> = 200..3_000;
/// Until the next crash: time for moves, as a release waits a minute for a router that was killed.
const PAUSE: std::ops::Range<u64> = 5_000..30_000;
/// A hub that dies again within the minute for which it waits would never move anything.
const HUB_LIVES: Duration = Duration::from_mins(3);

/// How often each has died, until it is told to stop.
pub(crate) async fn run(ground: &Ground, seed: u64, stop: &AtomicBool) -> BTreeMap<&'static str, usize> {
    let mut rng = StdRng::seed_from_u64(seed);
    let (mut counts, mut deck) = (BTreeMap::new(), Vec::new());
    let mut hub_died: Option<Instant> = None;
    while !stop.load(Ordering::Relaxed) {
        let away = Duration::from_millis(rng.random_range(AWAY));
        let Some((name, program)) = deck.pop() else {
            deck.extend([
                ("first router", &ground.routers[0]),
                ("second router", &ground.routers[1]),
            ]);
            if hub_died.is_none_or(|died| died.elapsed() > HUB_LIVES) {
                deck.push(("hub", &ground.hub));
            }
            deck.shuffle(&mut rng);
            continue;
        };
        if name == "hub" {
            hub_died = Some(Instant::now());
        }
        dies(program, away).await;
        *counts.entry(name).or_default() += 1;
        let pause = Instant::now() + Duration::from_millis(rng.random_range(PAUSE));
        while Instant::now() < pause && !stop.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(50)).await;
        }
    }
    counts
}

async fn dies(program: &Mutex<Daemon>, away: Duration) {
    let mut program = program.lock().await;
    program.kill().await.unwrap();
    sleep(away).await;
    program.start_again().await.unwrap();
    program.ready().await;
}
