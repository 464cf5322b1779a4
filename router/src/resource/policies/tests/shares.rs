//! Limits that routers share: what each may take, and what it tells of demand.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn shared(burst: i64, limit: i64) -> Value {
    with(
        self::limit("all", "LimiterOnly", burst, limit),
        "scope",
        json!("Shared"),
    )
}

fn told(revision: u64, millionths: u32) -> ToldShares {
    share_of(revision, millionths, false)
}

/// A part of the bucket that no router had before.
fn fresh(revision: u64, millionths: u32) -> ToldShares {
    share_of(revision, millionths, true)
}

fn share_of(revision: u64, millionths: u32, fresh: bool) -> ToldShares {
    ToldShares::of(&v1::Shares {
        revision,
        shares: vec![v1::RuleShare {
            policy: BREAKER.into(),
            uid: "u1".into(),
            rule: "all".into(),
            millionths,
            fresh,
        }],
    })
}

/// A router that was there when the limit came.
fn old_router(limits: &[Value]) -> World {
    let mut world = World::new(&[]);
    world.policies.heard_hub();
    world.edit(limits);
    world
}

#[tokio::test(start_paused = true)]
async fn all_callers_take_of_the_share_that_the_router_has() {
    let world = old_router(&[shared(10, 0)]);
    assert_eq!(world.pass("1", 5), 0, "none is told");
    world.policies.restore(fresh(1, 500_000));
    assert_eq!((world.pass("1", 3), world.pass("2", 5)), (3, 2));
}

#[tokio::test(start_paused = true)]
async fn a_router_that_comes_later_begins_with_an_empty_share() {
    let world = World::new(&[shared(10, 10)]);
    world.policies.restore(told(1, 500_000));
    assert_eq!(world.pass("1", 5), 0, "what it would be given others may have spent");
    advance(Duration::from_secs(1)).await;
    assert_eq!(world.pass("1", 50), 5);
}

/// Demand moves between two routers, and the hub moves the bucket after it: who has less hears it first.
#[tokio::test(start_paused = true)]
async fn two_routers_never_pass_more_than_the_limit() {
    let routers = [old_router(&[shared(100, 100)]), old_router(&[shared(100, 100)])];
    let share = |shares: [u32; 2]| {
        for (router, millionths) in routers.iter().zip(shares) {
            router.policies.restore(fresh(1, millionths));
        }
    };
    share([500_000, 500_000]);
    let mut passed = 0;
    for step in 0..600_usize {
        let busy = usize::from((step / 100) % 2 == 1);
        if step % 100 == 10 {
            // The hub has heard of it.
            routers[1 - busy].policies.restore(fresh(1, 20_000));
            routers[busy].policies.restore(fresh(1, 980_000));
        }
        passed += routers[busy].pass("1", 15);
        assert!(passed <= 100 + step * 10, "{passed} after {step} tenths");
        advance(Duration::from_millis(100)).await;
    }
    assert!(passed > 5_300, "{passed}");
}

#[tokio::test(start_paused = true)]
async fn demand_is_told_with_the_share_that_a_restart_would_have() {
    let world = old_router(&[shared(10, 10)]);
    let demand = || world.report().demands.remove(0);
    assert_eq!(demand().uid, "u1");
    assert_eq!((demand().revision, demand().share_millionths), (0, 0));
    advance(Duration::from_secs(1)).await;
    assert_eq!(world.pass("1", 50), 0);
    advance(Duration::from_secs(1)).await;
    assert_eq!(
        demand().asked_per_second_thousandths,
        25_000,
        "what was refused was asked for"
    );
    world.policies.reshare(told(7, 400_000));
    assert_eq!((demand().revision, demand().share_millionths), (0, 0));
    let unsecured = world.policies.unsecured().unwrap();
    world.policies.secured(unsecured);
    assert!(world.policies.unsecured().is_none());
    assert_eq!((demand().revision, demand().share_millionths), (7, 400_000));
    world.policies.reshare(told(8, 100_000));
    assert_eq!((demand().revision, demand().share_millionths), (7, 400_000));
}

#[test]
fn of_very_many_limits_those_are_told_that_there_is_a_share_or_demand_of() {
    let demand = |share_millionths, asked_per_second_thousandths| v1::SharedDemand {
        share_millionths,
        asked_per_second_thousandths,
        ..v1::SharedDemand::default()
    };
    let mut demands = vec![demand(0, 0); 5_000];
    demands.extend([demand(0, 7), demand(1, 0), demand(0, 9)]);
    let told = super::super::shared::most_wanted(demands);
    assert_eq!(told.len(), 4_096);
    assert_eq!(told[..4], [demand(1, 0), demand(0, 9), demand(0, 7), demand(0, 0)]);
}

/// Killed before, it would come back with what the file says, and the hub relies on that.
#[tokio::test(start_paused = true)]
async fn a_share_grows_once_it_is_on_disk_and_shrinks_at_once() {
    let world = old_router(&[shared(100, 10)]);
    let second = async || {
        advance(Duration::from_mins(1)).await;
        world.pass("1", 200)
    };
    let write = || world.policies.secured(world.policies.unsecured().unwrap());
    world.policies.reshare(told(1, 500_000));
    assert_eq!(second().await, 0, "not written yet");
    write();
    assert_eq!(second().await, 50);
    world.policies.reshare(told(2, 800_000));
    assert_eq!(second().await, 50);
    world.policies.reshare(told(3, 200_000));
    assert_eq!(second().await, 20, "written or not");
    write();
    world.policies.reshare(told(4, 900_000));
    world.policies.forget_unsecured();
    assert!(world.policies.unsecured().is_none());
    assert_eq!(second().await, 20, "the next hub knows of no more");
    assert_eq!(world.report().shares_revision, 3);
}

#[tokio::test(start_paused = true)]
async fn an_edit_of_another_rule_keeps_share_and_tokens_and_a_changed_rule_begins_anew() {
    let mut world = old_router(&[shared(10, 0)]);
    world.policies.restore(fresh(1, 1_000_000));
    assert_eq!(world.pass("1", 4), 4);
    world.edit(&[shared(10, 0), limit("other", "LimiterOnly", 100, 0)]);
    assert_eq!(world.pass("1", 20), 6);
    world.edit(&[shared(12, 0)]);
    assert_eq!(world.pass("1", 20), 12, "with the share that was told for it");
}

/// A request takes of its caller's own limits and of the shared ones, or of none.
#[tokio::test(start_paused = true)]
async fn own_and_shared_limits_are_taken_together() {
    let world = old_router(&[shared(3, 0), limit("own", "LimiterOnly", 2, 0)]);
    world.policies.restore(fresh(1, 1_000_000));
    assert_eq!((world.pass("1", 9), world.pass("2", 9)), (2, 1));
    let tokens = |rule: &str| {
        let rules = world.report().rules;
        let of = rules.into_iter().filter(|state| state.rule == rule);
        of.map(|state| state.tokens.unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(tokens("all"), [0]);
    assert_eq!(tokens("own"), [0, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_share_that_never_holds_a_token_opens_nothing() {
    let normal = with(self::limit("all", "Normal", 1, 1), "scope", json!("Shared"));
    let world = old_router(&[normal]);
    world.policies.restore(told(1, 300_000));
    for _ in 0..100 {
        assert_eq!(world.pass("1", 1), 0);
        advance(Duration::from_millis(100)).await;
    }
    world.policies.restore(told(2, 1_000_000));
    advance(Duration::from_secs(1)).await;
    assert_eq!(world.pass("1", 1), 1, "it has its turn");
}

#[tokio::test(start_paused = true)]
async fn a_shared_limit_that_is_met_before_it_is_followed_to_has_what_was_told_for_it() {
    let mut world = old_router(&[]);
    world.policies.restore(fresh(1, 500_000));
    let applied = crate::value::snapshot::told::upsert(
        &world.snapshot,
        "1",
        [Body::Policy(policy("u1", &spec(&[shared(10, 0)])))],
    );
    world.snapshot = applied.snapshot;
    assert_eq!(world.pass("1", 3), 3);
    world.policies.follow(&world.snapshot);
    assert_eq!(world.pass("1", 9), 2);
}

#[tokio::test(start_paused = true)]
async fn what_something_else_refuses_takes_no_tokens() {
    let world = old_router(&[shared(3, 0), limit("own", "LimiterOnly", 2, 0)]);
    world.policies.restore(fresh(1, 1_000_000));
    let view = world.view("1");
    let judging = judging(&view, world.snapshot.generation, "get");
    for _ in 0..5 {
        assert!(world.policies.admit(&judging).is_ok());
    }
    assert_eq!(
        (world.pass("1", 9), world.pass("2", 9)),
        (2, 1),
        "and nobody gets more than there was"
    );
}

/// A caller's label changes and changes back; or the only caller of this router is made anew.
#[tokio::test(start_paused = true)]
async fn a_shared_limit_that_comes_back_is_as_it_was_left() {
    let mut world = old_router(&[shared(10, 0)]);
    world.policies.restore(fresh(1, 1_000_000));
    assert_eq!(world.pass("1", 20), 10);
    let policy = Body::Policy(policy("u1", &spec(&[shared(10, 0)])));
    for share in [1_000_000, 400_000] {
        world.removed(v1::ResourceKind::Policy, BREAKER);
        world.policies.restore(told(2, 0));
        world.told([policy.clone()]);
        world.policies.restore(told(3, share));
        assert_eq!(world.pass("1", 20), 0, "it was spent");
    }
}

/// Its first caller comes, when others have been there for long; or it is the first router that is told of the limit at all.
#[tokio::test(start_paused = true)]
async fn what_comes_to_a_running_router_is_full_only_where_nobody_had_it_before() {
    let begins_with = |shares: &[ToldShares]| {
        let mut world = old_router(&[]);
        for told in shares {
            world.policies.restore(told.clone());
        }
        world.edit(&[shared(10, 0)]);
        world.pass("1", 20)
    };
    assert_eq!(begins_with(&[told(1, 500_000)]), 0, "others may have spent it");
    assert_eq!(begins_with(&[fresh(1, 500_000)]), 5);
    assert_eq!(begins_with(&[fresh(1, 500_000), told(2, 500_000)]), 5, "said once");
    assert_eq!(
        begins_with(&[fresh(1, 500_000), told(2, 900_000)]),
        5,
        "others had the rest"
    );
    let given_up = [fresh(1, 500_000), told(2, 200_000), told(3, 700_000)];
    assert_eq!(begins_with(&given_up), 2, "others have what was given up");
    let given_up = [fresh(1, 500_000), told(2, 0), told(3, 500_000)];
    assert_eq!(begins_with(&given_up), 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_said_to_be_new_again_is_filled_once_and_not_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let file = SharesFile::in_folder(folder.path());
    let world = old_router(&[shared(10, 0)]);
    world.policies.reshare(fresh(1, 500_000));
    assert_eq!(world.pass("1", 20), 0, "not on disk yet");
    let unsecured = world.policies.unsecured().unwrap();
    file.save(&unsecured).unwrap();
    world.policies.secured(unsecured);
    assert!(world.policies.unsecured().is_none());
    assert_eq!(world.pass("1", 20), 5);
    // The hub has not heard yet that it was heard.
    world.policies.restore(fresh(2, 500_000));
    world.policies.forget_unsecured();
    world.policies.restore(fresh(3, 400_000));
    assert_eq!(world.pass("1", 20), 0);
    let restarted = old_router(&[]);
    restarted.policies.restore(file.load());
    let mut restarted = restarted;
    restarted.edit(&[shared(10, 0)]);
    assert_eq!(restarted.pass("1", 20), 0, "it may have spent it before");
}

/// How a write of the shares ends.
#[derive(Debug, Clone, Copy)]
enum Write {
    Done,
    /// Before the rename.
    Failed,
    /// By the rename, or after it.
    Doubtful,
}

#[derive(Debug, Clone)]
enum Step {
    Tell(u32),
    Write(Write),
    NewStream,
    /// It comes back with one of those that the file may have.
    Restart(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    let share = prop_oneof![Just(0), Just(500_000), 0..=1_000_000_u32];
    prop_oneof![
        3 => share.prop_map(Step::Tell),
        3 => prop::sample::select(&[Write::Done, Write::Failed, Write::Doubtful][..]).prop_map(Step::Write),
        1 => Just(Step::NewStream),
        1 => any::<prop::sample::Index>().prop_map(Step::Restart),
    ]
}

proptest! {
    /// Whatever fails: no more is used than each of the states that a restart may find says, and no less is told to the hub.
    #[test]
    fn whatever_a_write_leaves_no_more_is_used_and_no_less_is_told(steps in vec(step(), 1..40)) {
        let key = ("u1".into(), "all".into());
        let mut world = old_router(&[shared(10, 0)]);
        let mut on_disk = vec![ToldShares::default()];
        for (revision, step) in (1..).zip(steps) {
            match step {
                Step::Tell(share) => world.policies.reshare(told(revision, share)),
                Step::NewStream => world.policies.forget_unsecured(),
                Step::Write(write) => {
                    let Some(written) = world.policies.unsecured() else { continue };
                    match write {
                        Write::Done => {
                            on_disk = vec![written.clone()];
                            world.policies.secured(written);
                        }
                        Write::Failed => {}
                        Write::Doubtful => {
                            on_disk.push(written.clone());
                            world.policies.doubted(&written);
                        }
                    }
                }
                Step::Restart(which) => {
                    let found = which.get(&on_disk).clone();
                    world = old_router(&[shared(10, 0)]);
                    world.policies.restore(found.clone());
                    on_disk = vec![found];
                }
            }
            let used = world.policies.shared.lock().share(&key);
            let said = world.report().demands[0].share_millionths;
            for share in on_disk.iter().map(|found| found.share(&key)) {
                prop_assert!(used <= share && share <= said, "{used} used, {share} on disk, {said} said");
            }
        }
        // As soon as a write succeeds all is as it was told.
        if let Some(written) = world.policies.unsecured() {
            world.policies.secured(written);
        }
        prop_assert!(world.policies.unsecured().is_none());
        let used = world.policies.shared.lock().share(&key);
        prop_assert_eq!(used, world.report().demands[0].share_millionths);
    }
}
