//! Breakers of callers, beside those of members.

use super::*;
use crate::resource::breaker::Outcome;

fn breaker_world(clusters: &Value) -> World {
    let spec = json!({
        "selector": {},
        "breakers": [{"name": "own", "clusters": clusters, "consecutiveFailures": 2, "openFor": "1h", "maxOpenFor": "1h"}],
    });
    let mut world = World::new(&[]);
    assert_eq!(world.told([Body::Policy(policy("u1", &spec))]), []);
    world
}

fn fail(world: &World, uid: &str, cluster: &str) {
    let (view, cluster) = (world.view(uid), cluster.into());
    let view = (&*view, world.snapshot.generation);
    for pass in world.policies.ask_breakers(view, &cluster, false).unwrap_or_default() {
        pass.told(Outcome::Failure);
    }
}

fn is_refused(world: &World, uid: &str, cluster: &str) -> bool {
    world
        .policies
        .ask_breakers((&world.view(uid), world.snapshot.generation), &cluster.into(), false)
        .is_err()
}

#[tokio::test(start_paused = true)]
async fn a_breaker_is_of_one_caller_and_one_member() {
    let world = breaker_world(&json!(["east", "west"]));
    for _ in 0..2 {
        fail(&world, "1", "east");
        fail(&world, "1", "north");
    }
    assert!(is_refused(&world, "1", "east"));
    for (uid, cluster) in [("1", "west"), ("2", "east"), ("1", "north")] {
        assert!(!is_refused(&world, uid, cluster), "{uid} {cluster}");
    }
    let rules = world.report().rules;
    let (rule, caller) = (&*rules[0].rule, &*rules[0].caller);
    assert_eq!(
        (rule, caller, rules[0].opened, rules[0].total),
        ("own@east", "east/1", true, 1)
    );
    assert_eq!(rules[0].reason, "ConsecutiveFailures");
    let fault = world
        .policies
        .ask_breakers((&world.view("1"), world.snapshot.generation), &"east".into(), true)
        .unwrap_err();
    assert_eq!(fault.status_code().as_u16(), 429);
    assert_eq!(fault.retry_after_seconds(), Some(30));
}

#[tokio::test(start_paused = true)]
async fn breakers_keep_their_state_over_edits_of_others_and_are_closed_by_hand() {
    let mut world = breaker_world(&json!([]));
    for _ in 0..2 {
        fail(&world, "1", "east");
        fail(&world, "1", "west");
    }
    let spec = |failures: i64, limit: i64| {
        json!({
            "selector": {},
            "rateLimitings": [self::limit("all", "LimiterOnly", limit, limit)],
            "breakers": [{"name": "own", "clusters": [], "consecutiveFailures": failures, "openFor": "1h", "maxOpenFor": "1h"}],
        })
    };
    let told = |spec: Value, rule: &str, at: i64| {
        let closed = v1::ClosedByHand {
            rule: rule.into(),
            at_unix_milliseconds: at,
        };
        Body::Policy(v1::Policy {
            closed: vec![closed],
            ..policy("u1", &spec)
        })
    };
    world.told([told(spec(2, 7), "all", 1)]);
    assert!(is_refused(&world, "1", "east") && is_refused(&world, "1", "west"));
    world.told([told(spec(2, 7), "own@east", 1)]);
    assert!(!is_refused(&world, "1", "east") && is_refused(&world, "1", "west"));
    world.told([told(spec(2, 7), "own", 2)]);
    assert!(!is_refused(&world, "1", "west"));
    fail(&world, "1", "west");
    world.told([told(spec(3, 7), "own", 2)]);
    assert_eq!(world.report().rules.len(), 0, "one that changed begins anew");
}

/// A request that was planned before an edit may ask after it, and first of all.
#[tokio::test(start_paused = true)]
async fn a_breaker_is_as_the_newest_snapshot_that_asks_has_it() {
    let mut world = breaker_world(&json!([]));
    let (before, generation) = (world.view("1"), world.snapshot.generation);
    let spec = json!({"selector": {}, "breakers": [{"name": "own", "clusters": [], "consecutiveFailures": 1}]});
    assert_eq!(world.told([Body::Policy(policy("u1", &spec))]), []);
    let east = "east".into();
    let late = || world.policies.ask_breakers((&before, generation), &east, false);
    assert!(late().is_ok());
    fail(&world, "1", "east");
    assert!(is_refused(&world, "1", "east"), "by one failure, as it says now");
    assert!(late().is_err(), "and nobody goes back to what it said");
}

#[tokio::test(start_paused = true)]
async fn a_breaker_is_as_it_was_for_who_comes_back_soon() {
    let mut world = breaker_world(&json!([]));
    for _ in 0..2 {
        fail(&world, "1", "east");
    }
    let minutes = |count: u64| Duration::from_mins(count);
    world.told([caller("1", &[])]);
    assert!(!is_refused(&world, "1", "east"));
    assert_eq!(world.report().rules.len(), 0);
    advance(minutes(9)).await;
    world.told([caller("1", &[BREAKER])]);
    assert!(is_refused(&world, "1", "east"));
    world.told([caller("1", &[])]);
    advance(minutes(11)).await;
    world.told([caller("2", &[])]);
    world.told([caller("1", &[BREAKER])]);
    assert!(!is_refused(&world, "1", "east"));
}

/// Whoever makes policies anew all the time fills no memory of a router that others share.
#[tokio::test(start_paused = true)]
async fn breakers_of_policies_that_are_gone_are_bounded() {
    let breakers: Vec<_> = (0..64).map(|index| json!({"name": format!("b{index}")})).collect();
    let spec = json!({"selector": {}, "breakers": breakers});
    let mut world = breaker_world(&json!([]));
    for turn in 0..40 {
        world.told([Body::Policy(policy(&format!("made-{turn}"), &spec))]);
        fail(&world, "1", "east");
        advance(Duration::from_secs(1)).await;
    }
    let at_most = aside::MOST_ASIDE + 64;
    let kept = world.policies.breakers.len();
    assert!((aside::MOST_ASIDE..=at_most).contains(&kept), "{kept}");
}
