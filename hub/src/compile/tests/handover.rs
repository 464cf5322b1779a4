//! A live namespace changes its owner: what each side is told at each step, in whatever order the two are edited.

use super::*;

const ALL: u64 = u64::MAX;

impl World {
    /// Pairs that a shard waits for.
    fn awaited(&self, name: &str) -> Vec<String> {
        let awaited = &self.shards[&shard_name(name)].awaited;
        awaited.iter().map(|awaited| awaited.told_in("ops")).collect()
    }

    fn conflicts(&self, name: &str) -> Vec<String> {
        let conflicts = &self.shards[&shard_name(name)].conflicts;
        conflicts.iter().map(|conflict| conflict.told_in("ops")).collect()
    }
}

/// `a` has ns-a and ns-b of east.
fn fleet() -> Fleet {
    let mut fleet = Fleet::new(&["ns-a", "ns-b"]);
    fleet.caller("east", "p", "op");
    fleet.apply("a", spec(&[("east", &["ns-a", "ns-b"])]));
    fleet.compile(ALL);
    fleet
}

fn lets_go(fleet: &mut Fleet) {
    fleet.apply("a", spec(&[("east", &["ns-a"])]));
}

fn claims(fleet: &mut Fleet) {
    fleet.apply("b", spec(&[("west", &["ns-a"]), ("east", &["ns-b"])]));
}

#[test]
fn the_claimant_is_accepted_and_waits_for_the_release_alone() {
    let mut fleet = fleet();
    lets_go(&mut fleet);
    claims(&mut fleet);
    let world = fleet.compile(0);
    assert_eq!((world.refusal("a"), world.refusal("b")), (None, None));
    assert_eq!(world.awaited("b"), ["east/ns-b (of ops/a)"]);
    assert_eq!(world.owner("west", "ns-a"), Some("b"), "what is free is had at once");
    assert_eq!(world.owner("east", "ns-b"), Some("a"));
    let releasing = world.state.run;
    // Still unseen by some router: nothing moves.
    let world = fleet.compile(releasing - 1);
    assert_eq!(world.owner("east", "ns-b"), Some("a"));
    let world = fleet.compile(releasing);
    assert_eq!(world.owner("east", "ns-b"), Some("b"));
    assert!(world.awaited("b").is_empty());
    assert_eq!(
        world
            .state
            .ledger
            .get(&OperatorName::default(), "east", "ns-b")
            .unwrap()
            .owner_count,
        3
    );
}

#[test]
fn the_order_of_the_edits_does_not_matter() {
    for orders in [[lets_go as fn(&mut Fleet), claims], [claims, lets_go]] {
        let mut fleet = fleet();
        for edit in orders {
            edit(&mut fleet);
            fleet.compile(0);
        }
        let world = fleet.compile(ALL);
        assert_eq!(world.owner("east", "ns-b"), Some("b"));
        assert_eq!((world.refusal("a"), world.refusal("b")), (None, None));
    }
}

#[test]
fn an_owner_that_goes_on_wanting_it_is_an_overlap() {
    let mut fleet = fleet();
    claims(&mut fleet);
    let world = fleet.compile(ALL);
    assert_eq!(world.refusal("b"), Some(ConditionReason::Overlap));
    assert!(
        world.message("b").contains("east/ns-b (of ops/a)"),
        "{}",
        world.message("b")
    );
    assert_eq!(
        world.owner("west", "ns-a"),
        None,
        "a spec is taken as a whole or not at all"
    );
}

/// An edit that is refused lets go of nothing, whatever it says.
#[test]
fn a_refused_edit_of_the_owner_gives_nothing_away() {
    let mut fleet = fleet();
    fleet.apply("other", spec(&[("west", &["ns-c"])]));
    fleet.compile(ALL);
    fleet.apply("a", spec(&[("east", &["ns-a"]), ("west", &["ns-c"])]));
    claims(&mut fleet);
    let world = fleet.compile(ALL);
    assert_eq!(world.refusal("a"), Some(ConditionReason::Overlap));
    assert_eq!(world.refusal("b"), Some(ConditionReason::Overlap));
    assert_eq!(world.owner("east", "ns-b"), Some("a"));
}

#[test]
fn two_shards_swap_in_one_go() {
    let mut fleet = Fleet::new(&["ns-a", "ns-b"]);
    fleet.apply("a", spec(&[("east", &["ns-a"])]));
    fleet.apply("b", spec(&[("east", &["ns-b"])]));
    fleet.compile(ALL);
    fleet.apply("a", spec(&[("east", &["ns-b"])]));
    let world = fleet.compile(ALL);
    assert_eq!(world.refusal("a"), Some(ConditionReason::Overlap), "b still wants it");
    fleet.apply("b", spec(&[("east", &["ns-a"])]));
    let world = fleet.compile(0);
    assert_eq!((world.refusal("a"), world.refusal("b")), (None, None));
    let world = fleet.compile(ALL);
    assert_eq!(world.owner("east", "ns-a"), Some("b"));
    assert_eq!(world.owner("east", "ns-b"), Some("a"));
}

#[test]
fn what_is_promised_is_not_taken_back_nor_promised_twice() {
    let mut fleet = fleet();
    lets_go(&mut fleet);
    claims(&mut fleet);
    fleet.compile(0);
    fleet.apply("a", spec(&[("east", &["ns-a", "ns-b"])]));
    fleet.apply("c", spec(&[("east", &["ns-b"])]));
    let world = fleet.compile(0);
    assert_eq!(world.conflicts("a"), ["east/ns-b (of ops/b)"]);
    assert_eq!(world.refusal("a"), Some(ConditionReason::Overlap));
    assert_eq!(world.refusal("c"), Some(ConditionReason::Overlap));
    assert_eq!(fleet.compile(ALL).owner("east", "ns-b"), Some("b"));
}

#[test]
fn what_nobody_waits_for_is_taken_back() {
    let mut fleet = fleet();
    lets_go(&mut fleet);
    let before = fleet
        .compile(0)
        .state
        .ledger
        .get(&OperatorName::default(), "east", "ns-b")
        .unwrap()
        .view_revision;
    fleet.apply("a", spec(&[("east", &["ns-a", "ns-b"])]));
    let world = fleet.compile(0);
    let entry = world
        .state
        .ledger
        .get(&OperatorName::default(), "east", "ns-b")
        .unwrap();
    assert_eq!(
        (entry.releasing_since, entry.owner_count, entry.view_revision),
        (None, 3, before),
        "what was acknowledged of the epoch before says nothing of this one"
    );
    assert_eq!(world.refusal("a"), None);
}

/// As deleted while its finalizer holds it.
fn deleted(fleet: &mut Fleet, name: &str) {
    let object = fleet.facts.shards.get_mut(&shard_name(name)).unwrap();
    object.deleting = true;
    object.has_finalizer = true;
    object.generation += 1;
}

#[test]
fn a_deleted_shard_has_its_namespaces_until_they_are_released_also_over_a_restart() {
    let mut fleet = fleet();
    deleted(&mut fleet, "a");
    fleet.restart();
    claims(&mut fleet);
    let world = fleet.compile(0);
    assert_eq!(
        world.view("east", "p").map(|view| view.shards.clone()),
        Some(vec!["ops/b".to_owned()])
    );
    assert_eq!(world.owner("east", "ns-b"), Some("a"));
    assert_eq!(world.awaited("b"), ["east/ns-b (of ops/a)"]);
    assert!(world.state.ledger.is_owner(&shard_name("a")));
    let world = fleet.compile(ALL);
    assert_eq!(world.owner("east", "ns-b"), Some("b"));
    assert!(!world.state.ledger.is_owner(&shard_name("a")), "it may go");
}

/// A member whose agent never spoke keeps nothing from callers, and nobody's namespaces there are anybody else's.
#[test]
fn of_a_silent_member_what_was_had_stays() {
    let mut fleet = fleet();
    fleet.apply("a", spec(&[("west", &[])]));
    for _ in 0..3 {
        fleet.compile(ALL);
    }
    let inventory = fleet.agent("west").namespaces.take();
    fleet.restart();
    fleet.apply("b", spec(&[("west", &["ns-b", "ns-z"])]));
    let world = fleet.compile(ALL);
    assert!(world.shards[&shard_name("a")].wanted.members[0].unreported);
    assert_eq!(world.conflicts("b"), ["west/ns-b (of ops/a)"]);
    fleet.agent("west").namespaces = inventory.into();
    assert_eq!(fleet.compile(ALL).owner("west", "ns-b"), Some("a"));
}

/// What is on its way back stays promised to who waits for it, whatever its owner asks for while an agent is silent.
#[test]
fn a_release_goes_on_after_a_restart() {
    let mut fleet = fleet();
    lets_go(&mut fleet);
    claims(&mut fleet);
    fleet.compile(0);
    fleet.restart();
    let world = fleet.compile(0);
    assert_eq!(world.owner("east", "ns-b"), Some("a"));
    assert_eq!(world.awaited("b"), ["east/ns-b (of ops/a)"]);
    assert!(!world.state.ledger.releasing().is_empty());
    assert_eq!(fleet.compile(1).owner("east", "ns-b"), Some("b"));
}

#[test]
fn an_adopted_ledger_gives_nobody_what_it_does_not_name() {
    let mut fleet = fleet();
    let mut ledger = Ledger::clone(&fleet.state.ledger);
    ledger = Ledger::restore(
        ledger.contention(),
        ledger.chunks("east", "", &[Slot::WHOLE].into(), &[Slot::WHOLE].into()),
        ledger.view_revision(),
        true,
    );
    fleet.state.ledger = Arc::new(ledger);
    fleet.restart();
    claims(&mut fleet);
    fleet.apply("a", spec(&[("east", &["ns-a", "ns-b", "ns-c"])]));
    let world = fleet.compile(0);
    assert_eq!(world.owner("east", "ns-a"), Some("a"), "what it names stays");
    assert_eq!(world.owner("east", "ns-c"), None);
    assert_eq!(world.awaited("a"), ["east/ns-c (not in the adopted ledger)"]);
    let world = fleet.compile(1);
    assert_eq!(world.owner("east", "ns-c"), Some("a"), "every router has been heard");
    assert!(!world.state.ledger.is_withholding());
}

#[test]
fn namespaces_that_are_no_more_are_forgotten() {
    let mut fleet = Fleet::new(&["ns-a", "ns-b"]);
    fleet.apply("a", spec(&[("east", &[])]));
    fleet.compile(ALL);
    fleet.inventory("east", &["ns-b"]);
    fleet.compile(ALL);
    // It may come back for an hour.
    let later = Timestamp::from_second(3_600).unwrap();
    fleet.compile_at(ALL, later);
    let world = fleet.compile_at(ALL, later);
    assert_eq!(world.state.ledger.get(&OperatorName::default(), "east", "ns-a"), None);
    assert_eq!(world.owner("east", "ns-b"), Some("a"));
    fleet.facts.members.remove("east");
    fleet.facts.agents.remove("east");
    fleet.compile(ALL);
    let world = fleet.compile(ALL);
    assert_eq!(world.state.ledger.clusters().len(), 0);
}

/// What a deleted shard has in a member that was deleted too keeps nobody waiting.
#[test]
fn a_member_that_is_gone_holds_up_no_deletion() {
    let mut fleet = fleet();
    deleted(&mut fleet, "a");
    fleet.facts.members.remove("east");
    fleet.facts.agents.remove("east");
    fleet.restart();
    fleet.compile(ALL);
    let world = fleet.compile(ALL);
    assert!(!world.state.ledger.is_owner(&shard_name("a")), "it may go");
}

#[test]
fn the_lease_does_not_move_while_anybody_may_hold_it() {
    let mut fleet = Fleet::new(&["ns-a"]);
    let of = |primary: &str, lease: Option<&str>| ShardingConfigSpec {
        primary_cluster: Some(primary.to_owned()),
        controller: lease.map(|name| serde_json::from_value(json!({"leaderElectionName": name})).unwrap()),
        ..spec(&[("east", &["ns-a"]), ("west", &["ns-b"])])
    };
    fleet.caller("east", "p", "op");
    fleet.apply("shard", of("east", None));
    fleet.compile(0);
    fleet.apply("shard", of("west", None));
    assert_eq!(
        fleet.compile(0).refusal("shard"),
        None,
        "there is no Lease of the shard"
    );
    fleet.apply("shard", of("west", Some("op")));
    assert_eq!(fleet.compile(0).refusal("shard"), None);
    fleet.apply("shard", of("east", Some("op")));
    let world = fleet.compile(0);
    assert_eq!(world.refusal("shard"), Some(ConditionReason::Invalid));
    let words = [
        "op in west",
        "to op in east",
        "east/ops/pod-p",
        "scale the operator to 0",
    ];
    for word in words.into_iter().chain(["spec.primaryCluster"]) {
        assert!(world.message("shard").contains(word), "{}", world.message("shard"));
    }
    let primary = |world: &World| world.rules("shard").unwrap().primary_cluster.clone();
    assert_eq!(primary(&world), "west", "the last accepted spec stays");
    for lease in [Some("other"), None] {
        fleet.apply("shard", of("west", lease));
        let world = fleet.compile(0);
        assert_eq!(world.refusal("shard"), Some(ConditionReason::Invalid), "{lease:?}");
        assert!(world.message("shard").contains("spec.controller.leaderElectionName"));
    }
    let lock = json!({"leaderElectionName": "op", "leaderElectionResourceLock": "configmaps"});
    let carried = ShardingConfigSpec {
        controller: serde_json::from_value(lock).unwrap(),
        ..of("west", None)
    };
    fleet.apply("shard", carried);
    let world = fleet.compile(0);
    let field = "spec.controller.leaderElectionResourceLock";
    for word in [field, "op in west", "to op (configmaps too) in west"] {
        assert!(world.message("shard").contains(word), "{}", world.message("shard"));
    }
    fleet.apply("shard", of("east", Some("op")));
    let callers = fleet.agent("east").callers.take();
    assert!(fleet.compile(0).message("shard").contains("not known yet"));
    fleet.agent("east").callers = Some(BTreeMap::new());
    assert_eq!(fleet.compile(0).refusal("shard"), None, "nobody runs any more");
    fleet.agent("east").callers = callers;
    assert_eq!(primary(&fleet.compile(0)), "east");
    let ended = fleet.agent("east").callers.as_mut().and_then(|all| all.get_mut("p"));
    ended.unwrap().phase = "Succeeded".to_owned();
    fleet.apply("shard", of("west", Some("op")));
    assert_eq!(fleet.compile(0).refusal("shard"), None);
}
