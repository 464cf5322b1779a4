//! Limits that routers share: what each may take, and what it tells of demand.

use super::*;

fn shared(burst: i64, limit: i64) -> Value {
    with(
        self::limit("all", "LimiterOnly", burst, limit),
        "scope",
        json!("Shared"),
    )
}

fn told(revision: u64, millionths: u32) -> ToldShares {
    ToldShares::of(&v1::Shares {
        revision,
        shares: vec![v1::RuleShare {
            policy: BREAKER.into(),
            uid: "u1".into(),
            rule: "all".into(),
            millionths,
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
    world.policies.restore(told(1, 500_000));
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
            router.policies.restore(told(1, millionths));
        }
    };
    share([500_000, 500_000]);
    let mut passed = 0;
    for step in 0..600_usize {
        let busy = usize::from((step / 100) % 2 == 1);
        if step % 100 == 10 {
            // The hub has heard of it.
            routers[1 - busy].policies.restore(told(1, 20_000));
            routers[busy].policies.restore(told(1, 980_000));
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
    world.policies.restore(told(1, 1_000_000));
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
    world.policies.restore(told(1, 1_000_000));
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

/// A swap tells callers first, and a request may come before shared limits have followed.
#[tokio::test(start_paused = true)]
async fn a_shared_limit_that_is_met_before_it_is_followed_to_has_what_was_told_for_it() {
    let mut world = old_router(&[]);
    world.policies.restore(told(1, 500_000));
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
    world.policies.restore(told(1, 1_000_000));
    let view = world.view("1");
    let judging = judging(&view, world.snapshot.generation, "get");
    for _ in 0..5 {
        world.policies.admit(&judging).unwrap();
        world.policies.give_back(&judging);
    }
    world.policies.give_back(&judging);
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
    world.policies.restore(told(1, 1_000_000));
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
