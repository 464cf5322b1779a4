//! A ledger of before, in which each pair has one owner, is switched to owners of each operator.

use super::*;

/// What cursors are made of, and what routers write by.
fn without_operator(world: &World, shard: &str) -> (v1::Shard, v1::Ownership) {
    let mut rules = world.rules(shard).unwrap().clone();
    let mut owned = world.owned("east", shard).unwrap().clone();
    rules.operator.clear();
    owned.operator.clear();
    (rules, owned)
}

/// Of a ledger of before, in which everybody contends with everybody.
#[test]
fn a_ledger_of_before_is_switched_and_nobody_who_has_something_notices() {
    let mut fleet = Fleet::new(&["shop-a", "shop-b", "shop-c"]);
    fleet.caller("east", "p", "op");
    fleet.agent("east").allowed = Some(v1::Allowed {
        extras: [FENCE_EPOCH, FENCE_SHARD].map(str::to_owned).into(),
        fence_lists: true,
        ..v1::Allowed::default()
    });
    fleet.apply("r1", of("rollouts", &[("east", &["shop-a", "shop-b", "shop-c"])]));
    fleet.apply("p1", of("prometheus", &[("east", &["shop-a"])]));
    settled(&mut fleet);
    // One is on its way, and one is vacant.
    fleet.agent("east").namespaces.as_mut().unwrap().remove("shop-c");
    fleet.apply("r1", of("rollouts", &[("east", &["shop-a", "shop-c"])]));
    fleet.apply("r2", of("rollouts", &[("east", &["shop-b"])]));
    let before = fleet.compile(0);
    assert_eq!(before.refusal("p1"), Some(ConditionReason::Overlap));
    assert!(
        before.message("p1").contains("portolanctl shards separate"),
        "{}",
        before.message("p1")
    );
    let entries = |world: &World, operator: &OperatorName| -> Vec<(String, Entry)> {
        let pairs = world.state.ledger.pairs_in("east").filter(|(of, ..)| *of == operator);
        pairs
            .map(|(_, namespace, entry)| (namespace.to_owned(), entry.clone()))
            .collect()
    };
    let accepted = fleet.state.accepted.clone();
    Arc::make_mut(&mut fleet.state.ledger).separate(&accepted);
    let after = fleet.compile(0);
    assert_eq!(
        entries(&after, &name_of("rollouts")),
        entries(&before, &OperatorName::default()),
        "owners, epochs, fences, view revisions, what is let go of"
    );
    assert_eq!(without_operator(&after, "r1"), without_operator(&before, "r1"));
    assert_eq!(after.rules("r1").unwrap().operator, "ops/rollouts");
    assert_eq!(after.owned("east", "r1").unwrap().operator, "ops/rollouts");
    assert_eq!(
        (after.refusal("p1"), grants(&after, "p1")),
        (None, vec!["shop-a".to_owned()])
    );
    let highest = before
        .state
        .ledger
        .all_of("east", "shop-a")
        .map(|(_, entry)| entry.owner_count);
    assert!(epoch(&after, "prometheus", "shop-a") > highest.max().unwrap());
    let awaited = &after.shards[&shard_name("r2")].awaited;
    assert_eq!(awaited.len(), 1, "{awaited:?}: it waits for its own operator's still");
    // And what is free begins after all that there were.
    let world = settled(&mut fleet);
    assert_eq!(grants(&world, "r2"), ["shop-b"]);
}

#[test]
fn what_is_free_when_a_ledger_is_switched_begins_after_all_epochs() {
    let mut fleet = Fleet::new(&["shop-a"]);
    for at in 0..3 {
        fleet.apply(&format!("a{at}"), of("one", &[("east", &["shop-a"])]));
        fleet.compile(ALL);
        fleet.delete(&format!("a{at}"));
        fleet.compile(ALL);
        fleet.compile(ALL);
    }
    let entry = |fleet: &Fleet, operator: &OperatorName| fleet.state.ledger.get(operator, "east", "shop-a").cloned();
    let free = entry(&fleet, &OperatorName::default()).unwrap();
    assert_eq!(free.owner, None);
    let accepted = fleet.state.accepted.clone();
    Arc::make_mut(&mut fleet.state.ledger).separate(&accepted);
    assert_eq!(entry(&fleet, &OperatorName::default()), None);
    fleet.apply("b", of("two", &[("east", &["shop-a"])]));
    fleet.compile(ALL);
    let taken = entry(&fleet, &name_of("two")).unwrap();
    assert!(taken.owner_count > free.owner_count, "{taken:?} after {free:?}");
}
