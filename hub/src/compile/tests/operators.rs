//! Several programs of one fleet: each contends for namespaces with its own kind alone.

use portolan_crds::labels::{FENCE_EPOCH, FENCE_SHARD};
use portolan_crds::{Contention, OperatorName};

use super::*;

mod bounds;
mod switch;
mod words;

const ALL: u64 = u64::MAX;

/// A fleet of a new ledger.
fn fleet(namespaces: &[&str]) -> Fleet {
    let mut fleet = Fleet::new(namespaces);
    fleet.caller("east", "p", "op");
    fleet.state.ledger = Arc::new(Ledger::restore(Contention::Operator, [], 0, false));
    fleet
}

fn of(operator: &str, entries: &[(&str, &[&str])]) -> ShardingConfigSpec {
    ShardingConfigSpec {
        operator: Some(operator.to_owned()),
        ..spec(entries)
    }
}

fn name_of(operator: &str) -> OperatorName {
    format!("ops/{operator}").parse().unwrap()
}

fn epoch(world: &World, operator: &str, namespace: &str) -> u64 {
    let entry = world.state.ledger.get(&name_of(operator), "east", namespace);
    entry.unwrap().owner_count
}

fn grants(world: &World, shard: &str) -> Vec<String> {
    let owned = world.owned("east", shard);
    let grants = owned.into_iter().flat_map(|owned| &owned.namespaces);
    let mut grants: Vec<_> = grants.map(|grant| grant.namespace.clone()).collect();
    grants.sort();
    grants
}

#[test]
fn each_operator_has_the_namespace_in_an_epoch_of_its_own() {
    let mut fleet = fleet(&["shop-a"]);
    for (shard, operator) in [("rollouts", "rollouts"), ("prometheus", "prometheus")] {
        fleet.apply(shard, of(operator, &[("east", &["shop-a"])]));
    }
    fleet.apply("greetings", spec(&[("east", &["shop-a"])]));
    let world = fleet.compile(ALL);
    for shard in ["rollouts", "prometheus", "greetings"] {
        assert_eq!(
            (world.refusal(shard), grants(&world, shard)),
            (None, vec!["shop-a".to_owned()]),
            "{shard}"
        );
    }
    let epochs = world
        .state
        .ledger
        .all_of("east", "shop-a")
        .map(|(_, entry)| entry.owner_count);
    assert_eq!(epochs.collect::<BTreeSet<_>>().len(), 3, "no two have the same");
    fleet.apply("another", of("rollouts", &[("east", &["shop-a"])]));
    let world = fleet.compile(ALL);
    assert_eq!(world.refusal("another"), Some(ConditionReason::Overlap));
    assert!(
        world.message("another").contains("set spec.operator"),
        "{}",
        world.message("another")
    );
}

/// A ledger of before has one owner of each pair, whatever specs say.
#[test]
fn in_a_ledger_of_before_the_name_waits() {
    let mut fleet = Fleet::new(&["shop-a"]);
    fleet.caller("east", "p", "op");
    fleet.apply("rollouts", of("rollouts", &[("east", &["shop-a"])]));
    fleet.compile(ALL);
    fleet.apply("prometheus", of("prometheus", &[("east", &["shop-a"])]));
    let world = fleet.compile(ALL);
    assert_eq!(world.refusal("prometheus"), Some(ConditionReason::Overlap));
}

/// Names may be as many as an author thinks of: what nobody has any more under one of them is forgotten.
#[test]
fn an_operator_that_has_nothing_left_leaves_nothing() {
    let mut fleet = fleet(&["shop-a"]);
    let mut highest = 0;
    for number in 0..5 {
        let operator = format!("o-{number}");
        fleet.apply("a", of(&operator, &[("east", &["shop-a"])]));
        settled(&mut fleet);
        let world = settled(&mut fleet);
        let now = epoch(&world, &operator, "shop-a");
        assert!(now > highest, "{now} after {highest}");
        highest = now;
        assert_eq!(world.state.ledger.all_of("east", "shop-a").count(), 1);
        fleet.delete("a");
        let world = settled(&mut fleet);
        assert_eq!(world.state.ledger.all_of("east", "shop-a").count(), 0);
    }
}

/// The agent of east has set what was ordered, and seen that its API servers go by it.
pub(super) fn carry_out(fleet: &mut Fleet, world: &World) {
    for order in &world.agent_configs["east"].rest().fences {
        let open = if order.open.is_empty() {
            vec![order.epoch]
        } else {
            order.open.clone()
        };
        let agent = fleet.agent("east");
        let state = v1::FenceState {
            namespace: order.namespace.clone(),
            epoch: order.epoch,
            closed: true,
            message: String::new(),
            open: order.open.clone(),
        };
        agent.fences.insert(order.namespace.clone(), state);
        let known = agent.namespaces.as_mut().unwrap().get_mut(&order.namespace);
        let Some(known) = known else { continue };
        assert!(
            open.iter()
                .all(|epoch| known.epochs.contains(epoch) || Some(epoch) > known.epochs.last()),
            "{:?} after {:?}: none that was closed is opened again",
            open,
            known.epochs
        );
        known.epochs = open;
    }
}

/// What routers and members have done after each run.
fn settled(fleet: &mut Fleet) -> World {
    let mut world = fleet.compile(fence_released(fleet));
    for _ in 0..8 {
        carry_out(fleet, &world);
        world = fleet.compile(fence_released(fleet));
    }
    world
}

/// All routers have acknowledged everything, and what is closed at its member is over.
pub(super) fn fence_released(fleet: &Fleet) -> Released {
    let ledger = &fleet.state.ledger;
    let shards = ledger.releasing();
    let over = ledger
        .closing()
        .filter(|(pair, (_, next))| fleet.facts.is_closed(pair, *next));
    Released {
        by_all: ALL,
        let_go: shards.iter().map(|shard| (shard.clone(), ALL)).collect(),
        saying_epochs: shards,
        over: over.map(|(pair, _)| pair).collect(),
        ..Released::default()
    }
}

#[test]
fn a_handover_of_one_operator_is_fenced_beside_the_epoch_of_another() {
    let mut fleet = fleet(&["shop-a"]);
    fleet.agent("east").allowed = Some(v1::Allowed {
        extras: [FENCE_EPOCH, FENCE_SHARD].map(str::to_owned).into(),
        fence_lists: true,
        ..v1::Allowed::default()
    });
    fleet.apply("r1", of("rollouts", &[("east", &["shop-a"])]));
    fleet.apply("p1", of("prometheus", &[("east", &["shop-a"])]));
    let world = settled(&mut fleet);
    let (rollouts, prometheus) = (
        epoch(&world, "rollouts", "shop-a"),
        epoch(&world, "prometheus", "shop-a"),
    );
    let open = |fleet: &Fleet| fleet.facts.inventory("east").unwrap()["shop-a"].epochs.clone();
    let mut both = vec![rollouts, prometheus];
    both.sort_unstable();
    assert_eq!(open(&fleet), both);
    let fenced = |world: &World, shard: &str| world.owned("east", shard).unwrap().namespaces[0].fenced;
    assert!(fenced(&world, "r1") && fenced(&world, "p1"));

    fleet.apply("r1", of("rollouts", &[("west", &["shop-a"])]));
    fleet.apply("r2", of("rollouts", &[("east", &["shop-a"])]));
    let world = settled(&mut fleet);
    assert_eq!(grants(&world, "r2"), ["shop-a"]);
    let after = epoch(&world, "rollouts", "shop-a");
    assert!(after > rollouts.max(prometheus), "{after} after {both:?}");
    assert_eq!(
        epoch(&world, "prometheus", "shop-a"),
        prometheus,
        "no one else's epoch is refused"
    );
    assert_eq!(open(&fleet), [prometheus, after]);
    assert!(fenced(&world, "r2") && fenced(&world, "p1"));
}

/// A member whose policies compare one epoch goes on fencing the operator that was there first.
#[test]
fn a_member_that_takes_one_epoch_fences_the_first_operator_alone() {
    let mut fleet = fleet(&["shop-a"]);
    fleet.agent("east").allowed = Some(v1::Allowed {
        extras: [FENCE_EPOCH, FENCE_SHARD].map(str::to_owned).into(),
        ..v1::Allowed::default()
    });
    fleet.apply("r1", of("rollouts", &[("east", &["shop-a"])]));
    let first = settled(&mut fleet);
    fleet.apply("p1", of("prometheus", &[("east", &["shop-a"])]));
    let world = settled(&mut fleet);
    let fenced = |shard: &str| world.owned("east", shard).unwrap().namespaces[0].fenced;
    assert!(fenced("r1") && !fenced("p1"));
    let open = &fleet.facts.inventory("east").unwrap()["shop-a"].epochs;
    assert_eq!(*open, [epoch(&first, "rollouts", "shop-a")]);
}

/// Whoever changes its operator has nothing under the new name before all is released under the old one.
#[test]
fn a_shard_that_changes_its_operator_lets_go_of_everything_first() {
    let mut fleet = fleet(&["shop-a"]);
    fleet.apply("a", of("one", &[("east", &["shop-a"])]));
    fleet.compile(ALL);
    fleet.agent("east").callers = Some(BTreeMap::new());
    fleet.apply("a", of("two", &[("east", &["shop-a"])]));
    let releasing = fleet.compile(0);
    let ledger = &releasing.state.ledger;
    assert!(
        ledger
            .get(&name_of("one"), "east", "shop-a")
            .unwrap()
            .releasing_since
            .is_some()
    );
    assert_eq!(ledger.get(&name_of("two"), "east", "shop-a"), None);
    let before = epoch(&releasing, "one", "shop-a");
    fleet.compile(ALL);
    let world = fleet.compile(ALL);
    let ledger = &world.state.ledger;
    assert_eq!(ledger.get(&name_of("one"), "east", "shop-a"), None);
    assert_eq!(
        ledger.get(&name_of("two"), "east", "shop-a").unwrap().owner,
        Some(shard_name("a"))
    );
    assert!(epoch(&world, "two", "shop-a") > before);
}

/// Whoever runs would lose everything: as with a leader lock.
#[test]
fn a_name_is_edited_while_nobody_runs() {
    let mut fleet = fleet(&["shop-a"]);
    fleet.apply("a", of("one", &[("east", &["shop-a"])]));
    fleet.compile(ALL);
    let edited = |fleet: &mut Fleet, spec: ShardingConfigSpec| {
        fleet.apply("a", spec);
        fleet.compile(ALL)
    };
    for (spec, words) in [
        (of("two", &[("east", &["shop-a"])]), "changing it to \"two\""),
        (spec(&[("east", &["shop-a"])]), "changing it to absent"),
    ] {
        let world = edited(&mut fleet, spec);
        assert_eq!(world.refusal("a"), Some(ConditionReason::Invalid));
        let message = world.message("a");
        for part in ["spec.operator: it is \"one\"", words, "east/ops/pod-p", "to 0 first"] {
            assert!(message.contains(part), "{part}: {message}");
        }
        let held = world.state.ledger.get(&name_of("one"), "east", "shop-a").unwrap();
        assert_eq!((&held.owner, held.releasing_since), (&Some(shard_name("a")), None));
    }
    // Of a member that tells nothing yet nobody knows.
    fleet.agent("east").callers = None;
    let world = edited(&mut fleet, of("two", &[("east", &["shop-a"])]));
    assert!(world.message("a").contains("not known yet"), "{}", world.message("a"));
    fleet.agent("east").callers = Some(BTreeMap::new());
    assert_eq!(fleet.compile(0).refusal("a"), None, "nobody runs any more");
}

/// As long as a member may take a write of the epoch under the old name, nothing is claimed under the new one, there or elsewhere.
#[test]
fn all_is_closed_under_the_old_name_before_anything_is_claimed_under_the_new() {
    let mut fleet = fleet(&["shop-a", "shop-b"]);
    fleet.agent("east").callers = Some(BTreeMap::new());
    fleet.agent("east").allowed = Some(v1::Allowed {
        extras: [FENCE_EPOCH, FENCE_SHARD].map(str::to_owned).into(),
        fence_lists: true,
        ..v1::Allowed::default()
    });
    let owns: [(&str, &[&str]); 2] = [("east", &["shop-a"]), ("west", &["shop-b"])];
    fleet.apply("a", of("one", &owns));
    fleet.apply("waits", of("two", &[("east", &["shop-b"])]));
    let before = settled(&mut fleet);
    let epoch_before = epoch(&before, "one", "shop-a");
    fleet.apply("a", of("two", &owns));
    let (mut seen_closing, mut world) = (false, fleet.compile(0));
    for _ in 0..10 {
        let ledger = &world.state.ledger;
        let owners = |operator: &str| {
            let owned = [("east", "shop-a"), ("west", "shop-b")];
            let owners = owned.map(|(cluster, namespace)| {
                ledger
                    .get(&name_of(operator), cluster, namespace)
                    .and_then(|entry| entry.owner.clone())
            });
            owners.into_iter().flatten().count()
        };
        assert!(owners("one") == 0 || owners("two") == 0, "never as two");
        seen_closing |= ledger.closing().next().is_some();
        if owners("two") > 0 {
            let open = &fleet.facts.inventory("east").unwrap()["shop-a"].epochs;
            assert!(!open.contains(&epoch_before), "closed at the member: {open:?}");
        }
        carry_out(&mut fleet, &world);
        let released = fence_released(&fleet);
        world = fleet.compile(released);
    }
    assert!(seen_closing);
    assert_eq!(grants(&world, "a"), ["shop-a"]);
    assert!(epoch(&world, "two", "shop-a") > epoch_before);
    assert_eq!(grants(&world, "waits"), ["shop-b"], "another's is as it was");
}

#[test]
fn children_have_the_operator_of_their_root() {
    let mut fleet = super::roots::fleet();
    fleet.state.ledger = Arc::new(Ledger::restore(Contention::Operator, [], 0, false));
    let root = |operator: Option<&str>| ShardingConfigSpec {
        operator: operator.map(str::to_owned),
        ..super::roots::sized(2)
    };
    let held_as = |world: &World, name: &str| -> BTreeSet<(String, String)> {
        let operator = name_of(name);
        let mut held = BTreeSet::new();
        for cluster in CLUSTERS {
            let pairs = world.state.ledger.pairs_in(cluster);
            let of_children = pairs.filter(|(of, _, entry)| {
                let owner = entry.owner.as_ref();
                **of == operator && owner.is_some_and(|owner| owner.name().starts_with("op-"))
            });
            held.extend(of_children.map(|(_, namespace, _)| (cluster.to_owned(), namespace.to_owned())));
        }
        held
    };
    fleet.apply("root", root(Some("rollouts")));
    let world = fleet.settle();
    super::roots::check_whole(&world);
    let all = held_as(&world, "rollouts");
    assert!(all.len() > 5, "{all:?}");
    // What they are to have is no other shard's of the operator, and may be one's of another.
    fleet.apply("same", of("rollouts", &[("east", &["a"])]));
    fleet.apply("other", spec(&[("east", &["a"])]));
    let world = fleet.settle();
    assert_eq!(world.refusal("same"), Some(ConditionReason::Overlap));
    assert_eq!(
        (world.refusal("other"), grants(&world, "other")),
        (None, vec!["a".to_owned()])
    );
    fleet.caller("east", "p", "op");
    fleet.apply("root", root(Some("prometheus")));
    let world = fleet.settle();
    assert!(
        world.message("root").contains("spec.operator"),
        "{}",
        world.message("root")
    );
    assert_eq!(
        (held_as(&world, "rollouts"), held_as(&world, "prometheus").len()),
        (all.clone(), 0)
    );
    fleet.agent("east").callers = Some(BTreeMap::new());
    let world = fleet.settle();
    let refused = world.shards.iter().filter(|(_, verdict)| verdict.refusal.is_some());
    assert_eq!(refused.map(|(name, _)| name.name()).collect::<Vec<_>>(), [""; 0]);
    assert_eq!(
        (held_as(&world, "prometheus"), held_as(&world, "rollouts").len()),
        (all, 0)
    );
    assert_eq!(grants(&world, "same"), ["a"], "the name is free");
}

#[test]
fn a_hub_namespace_has_so_many_operators() {
    use portolan_crds::OPERATORS_MAX;
    let accepted = |world: &World| -> BTreeSet<String> {
        let accepted = world.state.accepted.keys();
        accepted.map(|name| name.name().to_owned()).collect()
    };
    let names: Vec<_> = (0..40).map(|at| format!("o-{at:02}")).collect();
    let first: BTreeSet<_> = names[..OPERATORS_MAX].iter().cloned().collect();
    let shard_of = |name: &str| of(name, &[("east", &["shop-a"])]);
    let mut fleet = fleet(&["shop-a"]);
    for name in &names {
        fleet.apply(name, shard_of(name));
    }
    let elsewhere = ShardName::new("shop", "own").unwrap();
    fleet.apply_of(&elsewhere, shard_of("own"));
    let world = fleet.compile(0);
    let with_elsewhere: BTreeSet<_> = first.iter().cloned().chain(["own".to_owned()]).collect();
    assert_eq!(
        accepted(&world),
        with_elsewhere,
        "the oldest, and who is of another namespace"
    );
    let last = &names[OPERATORS_MAX];
    assert_eq!(world.refusal(last), Some(ConditionReason::TooMuch));
    for part in ["\"o-32\"", "\"ops\"", "33 operators", "32 are", "absent counts"] {
        assert!(world.message(last).contains(part), "{part}: {}", world.message(last));
    }
    // As they come one by one, the last first: what is in force stays.
    let mut one_by_one = self::fleet(&["shop-a"]);
    for name in &names {
        one_by_one.apply(name, shard_of(name));
        one_by_one.compile(0);
    }
    assert_eq!(accepted(&one_by_one.compile(0)), first);
    // A second shard of a name that is there is none more, and neither is an edit of the last of a name.
    fleet.apply("second", of("o-00", &[("west", &["shop-a"])]));
    fleet.agent("east").callers = Some(BTreeMap::new());
    fleet.apply("o-01", shard_of("renamed"));
    let world = fleet.compile(0);
    assert_eq!((world.refusal("second"), world.refusal("o-01")), (None, None));
    fleet.apply("nameless", spec(&[("east", &["shop-a"])]));
    let world = fleet.compile(ALL);
    assert_eq!(world.refusal("nameless"), Some(ConditionReason::TooMuch));
    assert!(
        world.message("nameless").contains("with absent"),
        "{}",
        world.message("nameless")
    );
    fleet.delete("o-02");
    let world = fleet.compile(ALL);
    assert_eq!(world.refusal(last), None, "the oldest of those that wait");
    assert_eq!(world.refusal("o-33"), Some(ConditionReason::TooMuch));
}

/// Thousands of pairs of one author are closed, and one of another's beside them.
#[test]
fn no_authors_orders_wait_for_all_of_anothers() {
    let names: Vec<_> = (0..3_000).map(|at| format!("a-{at:04}")).collect();
    let mut all: Vec<&str> = names.iter().map(String::as_str).collect();
    all.push("z-single");
    let mut fleet = fleet(&all);
    fleet.agent("east").allowed = Some(v1::Allowed {
        extras: [FENCE_EPOCH, FENCE_SHARD].map(str::to_owned).into(),
        fence_lists: true,
        ..v1::Allowed::default()
    });
    let (much, little) = (ShardName::new("evil", "much").unwrap(), shard_name("little"));
    fleet.apply_of(&much, of("evil", &[("east", &all[..3_000])]));
    fleet.apply_of(&little, of("rollouts", &[("east", &["z-single"])]));
    let world = settled(&mut fleet);
    let fenced = |shard: &ShardName| {
        world
            .state
            .ledger
            .held_by(shard)
            .filter(|(.., entry)| entry.is_fenced())
            .count()
    };
    assert_eq!((fenced(&much), fenced(&little)), (3_000, 1));
    fleet.apply_of(&much, of("evil", &[("west", &["a-0000"])]));
    fleet.apply_of(&little, of("rollouts", &[("west", &["z-single"])]));
    fleet.compile(fence_released(&fleet));
    let world = fleet.compile(fence_released(&fleet));
    assert_eq!(world.state.ledger.closing().count(), 3_001);
    let orders = &world.agent_configs["east"].rest().fences;
    assert_eq!(orders.len(), portolan_wire::protocol::MAX_FENCES);
    assert!(
        orders.iter().any(|order| order.namespace == "z-single"),
        "in the first turn"
    );
}
