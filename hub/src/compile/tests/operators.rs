//! Several programs of one fleet: each contends for namespaces with its own kind alone.

use portolan_crds::labels::{FENCE_EPOCH, FENCE_SHARD};
use portolan_crds::{Contention, OperatorName};

use super::*;

mod bounds;
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
        .filter(|((cluster, namespace, _), (_, next))| fleet.facts.is_fenced(cluster, namespace, *next));
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
    fleet.compile(ALL);
    let world = fleet.compile(ALL);
    let ledger = &world.state.ledger;
    assert_eq!(ledger.get(&name_of("one"), "east", "shop-a").unwrap().owner, None);
    assert_eq!(
        ledger.get(&name_of("two"), "east", "shop-a").unwrap().owner,
        Some(shard_name("a"))
    );
    assert!(epoch(&world, "two", "shop-a") > epoch(&world, "one", "shop-a"));
}
