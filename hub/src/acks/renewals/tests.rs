//! What routers tell of locks that callers may hold: what counts of it, how much, and what is not known.

use portolan_wire::subscription::CallerPod;

use super::*;

const LONGEST: Duration = Duration::from_mins(3);

fn report(pod: &str, gone: bool) -> v1::HeldLocks {
    let held = v1::HeldLock {
        home_cluster: "east".to_owned(),
        pod_uid: pod.to_owned(),
        cluster: "east".to_owned(),
        resource: "leases".to_owned(),
        name: "op---a".to_owned(),
        of_election: true,
        shard_uid: "uid-a".to_owned(),
        lasts_seconds: 20,
        gone,
    };
    v1::HeldLocks {
        held: vec![held],
        ..v1::HeldLocks::default()
    }
}

fn come_as(acks: &Acks, (name, epoch): (&str, u64), process: &str, subscription: &Subscription) {
    let state = RouterState {
        process: process.to_owned(),
        renewals: Renewals::of(true),
        subscription: subscription.clone(),
        ..RouterState::new(epoch, BTreeMap::new())
    };
    assert!(acks.connected(name, state));
}

fn come(acks: &Acks, epoch: u64, process: &str) {
    come_as(acks, ("r", epoch), process, &Subscription::Everything);
}

fn pod() -> CallerPod {
    "east/ops/pod-p".parse().unwrap()
}

fn tell(acks: &Acks, epoch: u64, report: v1::HeldLocks) -> bool {
    acks.renewed(("r", epoch), report, false, LONGEST)
}

fn whole(acks: &Acks, epoch: u64, pods: &[&str]) {
    let held = pods.iter().flat_map(|pod| report(pod, false).held).collect();
    let report = v1::HeldLocks {
        reset: true,
        more: false,
        held,
    };
    assert!(tell(acks, epoch, report));
}

fn leave(acks: &Acks, epoch: u64, ended: bool) {
    acks.update("r", epoch, |state| {
        (state.left, state.ended) = (Some(Instant::now()), ended);
    });
}

fn known(acks: &Acks) -> (usize, bool) {
    let all = acks.renewals(LONGEST);
    (all.held.len(), !all.untold.is_nobody())
}

/// Locks of this caller by so many names.
fn many(pod: &str, count: usize) -> v1::HeldLocks {
    let held = (0..count).map(|index| v1::HeldLock {
        name: format!("lock-{index}"),
        ..report(pod, false).held.remove(0)
    });
    v1::HeldLocks {
        held: held.collect(),
        ..v1::HeldLocks::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_router_tells_as_much_as_its_callers_can_hold() {
    let shards = Subscription::from_scopes(["shard:ops/a"]).unwrap();
    for (subscription, callers) in [
        (Subscription::Caller(pod()), 2),
        (shards, MOST_OF_SHARD / MOST_OF_CALLER),
    ] {
        let acks = Acks::default();
        come_as(&acks, ("r", 1), "one", &subscription);
        for caller in 0..callers {
            assert!(tell(&acks, 1, many(&caller.to_string(), MOST_OF_CALLER)));
        }
        assert_eq!(known(&acks), (callers, false));
        assert!(!tell(&acks, 1, report("one more", false)));
        assert_eq!(known(&acks), (0, true), "none of its words counts");
    }
    let acks = Acks::default();
    come(&acks, 1, "one");
    assert!(!tell(&acks, 1, many("p", MOST_OF_CALLER + 1)), "not even of one caller");
}

#[tokio::test(start_paused = true)]
async fn who_says_the_same_wakes_nobody_and_who_toggles_once_a_second() {
    let acks = Acks::default();
    come_as(&acks, ("r", 1), "one", &Subscription::Caller(pod()));
    whole(&acks, 1, &["p"]);
    let (before, mut wakes) = (acks.renewals_heard(), acks.holders_elsewhere());
    wakes.mark_unchanged();
    for _ in 0..100 {
        assert!(acks.renewed(("r", 1), report("p", false), true, LONGEST));
    }
    assert_eq!((acks.renewals_heard(), wakes.has_changed().unwrap()), (before, false));
    for step in 0..1_000 {
        assert!(acks.renewed(("r", 1), report("p", step % 2 == 0), true, LONGEST));
    }
    let woken = acks.renewals_heard() - before;
    assert!((2..50).contains(&woken), "{woken}");
    tokio::time::advance(Duration::from_secs(5)).await;
    assert!(acks.settle_renewals(), "what it said last is looked at");
    assert!(!acks.settle_renewals());
}

#[tokio::test(start_paused = true)]
async fn of_processes_that_come_and_go_no_more_is_kept_than_of_one() {
    let acks = Acks::default();
    let kept = |acks: &Acks| acks.read(|routers| routers["r"].renewals.earlier.len());
    for epoch in 1..=100 {
        come_as(&acks, ("r", epoch), &epoch.to_string(), &Subscription::Caller(pod()));
        let mut forever = many(&epoch.to_string(), 2);
        for held in &mut forever.held {
            held.lasts_seconds = u32::MAX;
        }
        assert!(tell(&acks, epoch, forever));
        assert!(kept(&acks) <= 2 * MOST_OF_CALLER, "{}", kept(&acks));
        leave(&acks, epoch, true);
    }
    assert!(known(&acks).1, "what was forgotten is not known");
    tokio::time::advance(LONGEST).await;
    come_as(&acks, ("r", 101), "last", &Subscription::Caller(pod()));
    assert_eq!(kept(&acks), 0, "nothing counts for longer");
}

#[tokio::test(start_paused = true)]
async fn a_router_that_cannot_say_is_doubted_for_its_own_callers() {
    let acks = Acks::default();
    come_as(&acks, ("r", 1), "one", &Subscription::Caller(pod()));
    whole(&acks, 1, &["p"]);
    leave(&acks, 1, false);
    let mut of_pod = Untold::default();
    of_pod.add(&Subscription::Caller(pod()));
    assert_eq!(acks.renewals(LONGEST).untold, of_pod);
    let shards = Subscription::from_scopes(["shard:ops/a"]).unwrap();
    come_as(&acks, ("r", 2), "two", &shards);
    whole(&acks, 2, &[]);
    assert_eq!(acks.renewals(LONGEST).untold, of_pod, "the one before");
    tokio::time::advance(LONGEST).await;
    assert_eq!(known(&acks), (0, false));
}

#[tokio::test(start_paused = true)]
async fn what_a_router_told_counts_until_it_says_otherwise_or_has_been_gone_for_as_long() {
    let acks = Acks::default();
    come(&acks, 1, "one");
    assert_eq!(known(&acks), (0, true), "it has not told yet");
    whole(&acks, 1, &["p"]);
    assert_eq!(known(&acks), (1, false));
    assert!(tell(&acks, 1, report("q", false)));
    tokio::time::advance(LONGEST).await;
    assert_eq!(known(&acks), (2, false), "they go on");
    assert!(tell(&acks, 1, report("q", true)));
    assert_eq!(known(&acks), (1, false));
    leave(&acks, 1, true);
    assert_eq!(known(&acks), (1, false), "it said that it serves nobody any more");
    tokio::time::advance(Duration::from_secs(21)).await;
    assert_eq!(known(&acks), (0, false));
}

#[tokio::test(start_paused = true)]
async fn what_was_renewed_by_a_process_that_is_gone_is_not_known_for_the_longest_time() {
    let acks = Acks::default();
    come(&acks, 1, "one");
    whole(&acks, 1, &["p"]);
    leave(&acks, 1, false);
    assert_eq!(known(&acks), (1, true), "it may serve on");
    come(&acks, 2, "one");
    assert_eq!(known(&acks), (1, true));
    whole(&acks, 2, &[]);
    assert_eq!(known(&acks), (0, false), "it is there again, and knows");
    whole(&acks, 2, &["p"]);
    leave(&acks, 2, false);
    come(&acks, 3, "two");
    whole(&acks, 3, &[]);
    assert_eq!(known(&acks), (1, true), "the one before said so");
    tokio::time::advance(Duration::from_secs(21)).await;
    assert_eq!(known(&acks), (0, true));
    tokio::time::advance(LONGEST).await;
    assert_eq!(known(&acks), (0, false));
}

#[tokio::test(start_paused = true)]
async fn nobody_knows_after_a_start_of_the_hub_nor_of_a_router_that_does_not_tell() {
    let acks = Acks::default();
    assert_eq!(known(&acks), (0, false), "there was no hub before");
    acks.expect_returns();
    assert_eq!(known(&acks), (0, true));
    tokio::time::advance(LONGEST).await;
    assert_eq!(known(&acks), (0, false));
    assert!(acks.connected("older", RouterState::new(1, BTreeMap::new())));
    assert_eq!(known(&acks), (0, true));
    let huge = v1::HeldLock {
        name: "n".repeat(LONGEST_NAME + 1),
        ..report("p", false).held.remove(0)
    };
    let huge = v1::HeldLocks {
        held: vec![huge],
        ..v1::HeldLocks::default()
    };
    assert!(!acks.renewed(("older", 1), huge, false, LONGEST));
}
