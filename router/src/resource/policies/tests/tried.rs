//! Policies tried on what was asked of late.

use super::*;

fn tried(world: &World, limits: &[Value], callers: &[&str]) -> Value {
    let wire = v1::Policy {
        name: "CircuitBreaker/ops/tried".into(),
        ..policy("tried", &spec(limits))
    };
    let policy = crate::value::snapshot::build::check_policy(&wire).unwrap();
    let callers: Vec<_> = callers.iter().map(|uid| world.view(uid)).collect();
    world.policies.try_policy(policy, &callers)
}

#[tokio::test(start_paused = true)]
async fn a_trial_says_what_would_have_been_refused_and_for_whom() {
    let world = World::new(&[]);
    for _ in 0..10 {
        assert_eq!((world.pass("1", 3), world.pass("2", 1)), (3, 1));
        advance(Duration::from_secs(1)).await;
    }
    let limits = [limit("calm", "LimiterOnly", 2, 1)];
    let outcome = tried(&world, &limits, &["1", "2"]);
    // Two at first, and one in each of nine seconds.
    assert_eq!(
        (&outcome["requests"], &outcome["refused"]),
        (&json!(40), &json!(19)),
        "{outcome}"
    );
    assert_eq!(outcome["rules"][0]["limited"], 19);
    let callers = &outcome["callers"];
    assert_eq!(
        (&callers[0]["caller"], &callers[0]["refused"]),
        (&json!("east/1"), &json!(19))
    );
    assert_eq!(
        (&callers[1]["pod"], &callers[1]["refused"]),
        (&json!("ops/operator-2"), &json!(0))
    );
    let span = outcome["toUnixMilliseconds"].as_i64().unwrap() - outcome["fromUnixMilliseconds"].as_i64().unwrap();
    assert!((9_990..=10_010).contains(&span), "{span}");
    assert_eq!(world.report(), v1::PolicyReport::default(), "nothing live has changed");
    assert_eq!(tried(&world, &limits, &["2"])["refused"], 0);
}

#[tokio::test(start_paused = true)]
async fn a_trial_judges_as_the_policy_would() {
    let limits = [
        limit("latch", "Normal", 4, 1),
        with(limit("all", "LimiterOnly", 6, 2), "scope", json!("Shared")),
    ];
    let recorded = World::new(&[]);
    let mut live = World::new(&[]);
    live.policies.heard_hub();
    live.edit(&limits);
    let share = v1::RuleShare {
        policy: BREAKER.into(),
        uid: "u1".into(),
        rule: "all".into(),
        millionths: 1_000_000,
        fresh: true,
    };
    live.policies.restore(ToldShares::of(&v1::Shares {
        revision: 1,
        shares: vec![share],
    }));
    let mut refused = 0;
    for step in 0..200_usize {
        let uid = if step % 3 == 0 { "1" } else { "2" };
        assert!(recorded.asks(uid).is_ok());
        refused += usize::from(live.asks(uid).is_err());
        advance(Duration::from_millis((step as u64 * 37) % 500)).await;
    }
    let outcome = tried(&recorded, &limits, &["1", "2"]);
    assert_eq!(outcome["refused"], refused, "{outcome}");
    assert!(outcome["rules"][0]["openedFirstUnixMilliseconds"].is_i64(), "{outcome}");
}
