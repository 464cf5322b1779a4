//! The leader is killed, or frozen for longer than its Lease.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use portolan_testbed::eventually;
use portolan_tests::programs::admin_get;
use portolan_tests::replicas::metric;

use crate::ground::{Ground, ROUTERS};

/// Kills of the leader in the short form.
const KILLS: usize = 2;
/// In each of so many kills a handover is under way.
const HANDOVER_EACH: usize = 5;
/// Crash → last router acknowledged. On a machine that does nothing else it is to be five seconds.
const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(15);
/// The last router is back → what was being handed over is. On a machine that does nothing else it is to be fifteen seconds; who does not
/// know what routers sent while another replica led waits for a minute.
const HANDED_OVER_WITHIN: Duration = Duration::from_secs(45);
/// Longer than the Lease.
const FROZEN_FOR: Duration = Duration::from_secs(8);
/// In the long form: from the edit that begins a handover until the leader is frozen, one after the other. All its steps are within.
const FROZEN_AFTER_MILLIS: [u64; 8] = [0, 50, 100, 200, 400, 800, 1600, 3200];
/// In the long form.
const LONG_FROZEN_FOR: Duration = Duration::from_mins(1);

#[expect(clippy::disallowed_methods, reason = "a setting of this suite alone")]
fn long() -> Option<usize> {
    let said = std::env::var("PORTOLAN_REPLICA_KILLS").ok()?;
    Some(said.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_notice_nothing_when_the_leader_is_killed_or_frozen() {
    let mut ground = Ground::start(3, &[]).await;
    ground.replicas.ready().await;
    ground.watch_goes_on().await;
    killed(&mut ground).await;
    if long().is_some() {
        frozen_in_each_step(&mut ground).await;
    }
    let term = frozen(&mut ground, FROZEN_FOR, false).await;
    a_router_remembers(&mut ground, term).await;
}

async fn killed(ground: &mut Ground) {
    let mut took = Vec::new();
    for round in 0..long().unwrap_or(KILLS) {
        let leader = ground.replicas.leader().await;
        let hands_over = round % HANDOVER_EACH == 0;
        if hands_over {
            ground.begin_move().await;
        }
        let killed = Instant::now();
        ground.kill(leader).await;
        let (next, acknowledged) = ground.replicas.taken_over(leader, ROUTERS, killed).await.unwrap();
        let back = Instant::now();
        println!(
            "kill {round}: hub-{} after hub-{}: {acknowledged:?}",
            next + 1,
            leader + 1
        );
        took.push(acknowledged);
        ground.watch_goes_on().await;
        if hands_over {
            let moved = ground.moved(back).await;
            println!("handed over {moved:?} after the last router was back");
            assert!(moved < HANDED_OVER_WITHIN, "{moved:?}");
        }
        ground.replicas.start_again(leader).await.unwrap();
    }
    took.sort();
    let at = |share: usize| took[(took.len() * share).div_ceil(100) - 1];
    println!(
        "crash → last router acknowledged: median {:?}, p99 {:?}, of {}",
        at(50),
        at(99),
        took.len()
    );
    assert!(at(99) < TAKEN_OVER_WITHIN, "{took:?}");
}

/// The new owner has what it is given while the old leader sleeps, and keeps it when that wakes.
async fn frozen_in_each_step(ground: &mut Ground) {
    for millis in FROZEN_AFTER_MILLIS {
        ground.replicas.ready().await;
        ground.begin_move().await;
        tokio::time::sleep(Duration::from_millis(millis)).await;
        println!("frozen {millis} ms after the edit");
        frozen(ground, LONG_FROZEN_FOR, true).await;
    }
}

/// It wakes when another one leads, finds that out before it tells anybody anything, and ends. Returns the term of that one, which ends
/// the handover if one `is_under_way`.
async fn frozen(ground: &mut Ground, period: Duration, is_under_way: bool) -> u64 {
    let leader = ground.replicas.leader().await;
    // Not by its address: nobody would know whether it is frozen.
    let others: Vec<_> = (0..3).filter(|number| *number != leader).collect();
    ground.replicas.reach(&others);
    ground.signal(leader, Signal::SIGSTOP);
    let frozen = Instant::now();
    let (next, acknowledged) = ground.replicas.taken_over(leader, ROUTERS, frozen).await.unwrap();
    println!("frozen: hub-{} after hub-{}: {acknowledged:?}", next + 1, leader + 1);
    if is_under_way {
        let moved = ground.moved(Instant::now()).await;
        println!("handed over {moved:?} after the last router was back");
        assert!(moved < HANDED_OVER_WITHIN, "{moved:?}");
    }
    let term = metric(&ground.replicas.hubs[next], "portolan_hub_term").await.unwrap();
    tokio::time::sleep(period.saturating_sub(frozen.elapsed())).await;
    ground.signal(leader, Signal::SIGCONT);
    let code = ground.replicas.hubs[leader].ended().await.unwrap();
    assert_ne!(code, 0);
    let log = ground.replicas.hubs[leader].log().unwrap();
    assert!(log.contains("another replica leads"), "{log}");
    ground.watch_goes_on().await;
    assert_eq!(
        metric(&ground.replicas.hubs[next], "portolan_hub_term").await,
        Some(term)
    );
    ground.replicas.start_again(leader).await.unwrap();
    ground.replicas.reach_all();
    term
}

/// A router that starts anew remembers whom it has heard.
async fn a_router_remembers(ground: &mut Ground, term: u64) {
    let state = portolan_tests::routers::state_dir(&ground.world, "second");
    let kept = std::fs::read_to_string(state.join("term")).unwrap();
    assert_eq!(kept.trim(), term.to_string());
    ground.second.kill().await.unwrap();
    std::fs::write(state.join("term"), (term + 1).to_string()).unwrap();
    ground.second.start_again().await.unwrap();
    eventually("it refuses a hub of before", || async {
        let log = ground.second.log().unwrap();
        log.contains("it is not the hub any more").then_some(())
    })
    .await;
    admin_get(ground.second.admin(), "/readyz")
        .await
        .expect("it serves the last good state");
}
