//! Where a member fences its pairs: what agents and routers are told at each step of a handover.

use portolan_crds::labels::{FENCE_EPOCH, FENCE_SHARD};
use portolan_crds::ledger::PairFence;

use super::*;

/// `a` has ns-z and ns-b of east, whose agent reports that routers may say their epoch.
fn fleet() -> Fleet {
    let mut fleet = Fleet::new(&["ns-b", "ns-z"]);
    fleet.caller("east", "p", "op");
    fleet.agent("east").allowed = Some(v1::Allowed {
        extras: [FENCE_EPOCH, FENCE_SHARD].map(str::to_owned).into(),
        ..v1::Allowed::default()
    });
    fleet.apply("a", spec(&[("east", &["ns-b", "ns-z"])]));
    fleet.compile(0);
    fleet
}

/// The agent has carried the order out.
fn carried_out(fleet: &mut Fleet, namespace: &str, epoch: u64) {
    let agent = fleet.agent("east");
    let state = v1::FenceState {
        namespace: namespace.to_owned(),
        epoch,
        closed: true,
        open: Vec::new(),
        message: String::new(),
    };
    agent.fences.insert(namespace.to_owned(), state);
    let known = agent.namespaces.as_mut().unwrap().get_mut(namespace);
    known.unwrap().epochs = vec![epoch];
}

/// ns-b is fenced from now on, and `a` lets go of it to `b`.
fn releasing() -> Fleet {
    let mut fleet = fleet();
    carried_out(&mut fleet, "ns-b", 1);
    fleet.compile(0);
    fleet.apply("a", spec(&[("east", &["ns-z"])]));
    fleet.apply("b", spec(&[("east", &["ns-b"])]));
    fleet.compile(0);
    fleet
}

fn orders(world: &World) -> Vec<(String, u64)> {
    let orders = world.agent_configs["east"].rest().fences.iter();
    orders.map(|order| (order.namespace.clone(), order.epoch)).collect()
}

fn order(namespace: &str, epoch: u64) -> (String, u64) {
    (namespace.to_owned(), epoch)
}

fn grant(world: &World, shard: &str, namespace: &str) -> (u64, bool) {
    let owned = world.owned("east", shard).unwrap();
    let grant = owned.namespaces.iter().find(|grant| grant.namespace == namespace);
    grant.map(|grant| (grant.owner_count, grant.fenced)).unwrap()
}

/// All routers have let go, and all say their epochs.
fn let_go() -> Released {
    Released {
        let_go: [(shard_name("a"), u64::MAX)].into(),
        saying_epochs: [shard_name("a")].into(),
        ..Released::default()
    }
}

fn over(epoch: u64) -> Released {
    Released {
        over: [("east".to_owned(), "ns-b".to_owned(), epoch)].into(),
        ..let_go()
    }
}

#[test]
fn writes_say_their_epoch_once_the_member_goes_by_it() {
    let mut fleet = fleet();
    let world = fleet.compile(0);
    assert_eq!(orders(&world), [order("ns-b", 1), order("ns-z", 2)]);
    assert_eq!(grant(&world, "a", "ns-b"), (1, false));
    carried_out(&mut fleet, "ns-b", 1);
    let world = fleet.compile(0);
    assert_eq!(orders(&world), [order("ns-z", 2)]);
    assert_eq!(grant(&world, "a", "ns-b"), (1, true));
    let fence = world
        .state
        .ledger
        .get(&OperatorName::default(), "east", "ns-b")
        .unwrap()
        .fence;
    assert_eq!(fence, PairFence { epoch: 1, whole: false });
    // It is in the ledger: whatever the agent does.
    fleet.restart();
    fleet.facts.agents.remove("east");
    assert_eq!(grant(&fleet.compile(0), "a", "ns-b"), (1, true));
}

#[test]
fn a_pair_is_granted_once_it_is_closed_and_what_was_let_through_is_over() {
    let mut fleet = releasing();
    // Neither everybody's acknowledgement nor its age is enough.
    let ripe = Released {
        by_all: u64::MAX,
        saying_epochs: [shard_name("a")].into(),
        ..Released::default()
    };
    let world = fleet.compile(ripe);
    assert_eq!((world.owner("east", "ns-b"), orders(&world).len()), (Some("a"), 1));
    let world = fleet.compile(let_go());
    assert_eq!(orders(&world), [order("ns-b", 2), order("ns-z", 2)]);
    let closing: Vec<_> = world.state.ledger.closing().map(|(pair, _)| pair).collect();
    assert_eq!(closing, [("east".to_owned(), "ns-b".to_owned(), 1)]);
    carried_out(&mut fleet, "ns-b", 2);
    let world = fleet.compile(let_go());
    assert_eq!(world.owner("east", "ns-b"), Some("a"), "a write may be open");
    let world = fleet.compile(over(1));
    assert_eq!(world.owner("east", "ns-b"), Some("b"));
    assert_eq!(grant(&world, "b", "ns-b"), (2, true));
    let fence = world
        .state
        .ledger
        .get(&OperatorName::default(), "east", "ns-b")
        .unwrap()
        .fence;
    assert_eq!(fence, PairFence { epoch: 2, whole: true });
    assert_eq!(orders(&world), [order("ns-z", 2)]);
}

#[test]
fn a_release_that_is_taken_back_begins_an_epoch_that_earlier_words_say_nothing_of() {
    let mut fleet = releasing();
    fleet.delete("b");
    fleet.compile(let_go());
    fleet.apply("a", spec(&[("east", &["ns-b", "ns-z"])]));
    let world = fleet.compile(over(1));
    assert_eq!(grant(&world, "a", "ns-b"), (2, false));
    assert_eq!(orders(&world), [order("ns-b", 2), order("ns-z", 2)]);
    carried_out(&mut fleet, "ns-b", 2);
    assert_eq!(grant(&fleet.compile(0), "a", "ns-b"), (2, true));
}

#[test]
fn where_it_cannot_be_fenced_it_is_handed_over_as_before() {
    let ripe = |saying: &[&str]| Released {
        by_all: u64::MAX,
        saying_epochs: saying.iter().map(|name| shard_name(name)).collect(),
        ..Released::default()
    };
    // A router is older.
    assert_eq!(releasing().compile(ripe(&[])).owner("east", "ns-b"), Some("b"));
    // The right was taken.
    let mut fleet = releasing();
    fleet.agent("east").allowed = Some(v1::Allowed::default());
    let world = fleet.compile(ripe(&["a"]));
    assert_eq!(world.owner("east", "ns-b"), Some("b"));
    assert_eq!((grant(&world, "b", "ns-b"), orders(&world)), ((2, false), vec![]));
    // Its agent never carried an order out.
    let mut fleet = fleet_without_orders();
    assert_eq!(fleet.compile(ripe(&["a"])).owner("east", "ns-b"), Some("b"));
}

fn fleet_without_orders() -> Fleet {
    let mut fleet = fleet();
    fleet.apply("a", spec(&[("east", &["ns-z"])]));
    fleet.apply("b", spec(&[("east", &["ns-b"])]));
    fleet.compile(0);
    fleet
}

#[test]
fn a_namespace_that_was_made_anew_takes_writes_that_say_nothing_until_it_is_annotated() {
    let mut fleet = fleet();
    carried_out(&mut fleet, "ns-b", 1);
    fleet.compile(0);
    fleet.agent("east").fences.clear();
    let known = fleet.agent("east").namespaces.as_mut().unwrap().get_mut("ns-b");
    known.unwrap().epochs = Vec::new();
    let world = fleet.compile(0);
    assert_eq!(grant(&world, "a", "ns-b"), (1, false));
    assert_eq!(orders(&world), [order("ns-b", 1), order("ns-z", 2)]);
}

/// As after `portolanctl ledger adopt`: routers told who has it, and the ledger counts from 1.
#[test]
fn an_owner_whose_epoch_the_member_is_beyond_begins_a_later_one() {
    let mut fleet = fleet();
    let known = fleet.agent("east").namespaces.as_mut().unwrap().get_mut("ns-b");
    known.unwrap().epochs = vec![7];
    let world = fleet.compile(0);
    assert_eq!(grant(&world, "a", "ns-b"), (8, false));
    assert_eq!(orders(&world), [order("ns-b", 8), order("ns-z", 2)]);
    carried_out(&mut fleet, "ns-b", 8);
    let world = fleet.compile(0);
    assert_eq!(
        (grant(&world, "a", "ns-b"), orders(&world)),
        ((8, true), vec![order("ns-z", 2)])
    );
}

#[test]
fn a_pair_whose_fence_is_given_up_is_handed_over_as_before_and_not_said_to_be_fenced() {
    let mut fleet = releasing();
    let given_up = |by_all| Released {
        by_all,
        given_up: [("east".to_owned(), "ns-b".to_owned(), 1)].into(),
        ..let_go()
    };
    fleet.compile(let_go());
    let early = Released {
        of_shard: [(shard_name("a"), 0)].into(),
        ..given_up(0)
    };
    let world = fleet.compile(early);
    assert_eq!(world.owner("east", "ns-b"), Some("a"), "not before the 5 s are over");
    let world = fleet.compile(given_up(u64::MAX));
    assert_eq!(world.owner("east", "ns-b"), Some("b"));
    assert_eq!(grant(&world, "b", "ns-b"), (2, false));
    let fence = world
        .state
        .ledger
        .get(&OperatorName::default(), "east", "ns-b")
        .unwrap()
        .fence;
    assert_eq!(fence, PairFence::default());
    // The agent is back, and had raised the annotation before it left.
    carried_out(&mut fleet, "ns-b", 2);
    let world = fleet.compile(0);
    assert_eq!(grant(&world, "b", "ns-b"), (2, true));
    assert!(
        !world
            .state
            .ledger
            .get(&OperatorName::default(), "east", "ns-b")
            .unwrap()
            .fence
            .whole
    );
}

#[test]
fn of_a_member_that_is_accepted_no_more_everything_is_handed_over_as_before() {
    let mut fleet = releasing();
    fleet.facts.members.get_mut("east").unwrap().accept = false;
    let ripe = Released {
        by_all: u64::MAX,
        ..let_go()
    };
    let world = fleet.compile(ripe);
    assert_ne!(world.owner("east", "ns-b"), Some("a"), "it ends");
    assert!(!world.agent_configs.contains_key("east"));
}

#[test]
fn a_release_that_is_forced_waits_for_no_router_but_for_the_fence() {
    let force = |fleet: &mut Fleet, epoch: u64| {
        let forced = format!("east/ns-b@{epoch}: its router is gone").parse();
        fleet.facts.shards.get_mut(&shard_name("a")).unwrap().forced = Some(forced);
    };
    let nobody = || Released {
        of_shard: [(shard_name("a"), 0)].into(),
        saying_epochs: [shard_name("a")].into(),
        ..Released::default()
    };
    let mut fleet = releasing();
    force(&mut fleet, 2);
    let world = fleet.compile(nobody());
    assert_eq!(orders(&world), [order("ns-z", 2)], "another epoch");
    force(&mut fleet, 1);
    let world = fleet.compile(nobody());
    assert_eq!(world.owner("east", "ns-b"), Some("a"));
    assert_eq!(orders(&world), [order("ns-b", 2), order("ns-z", 2)]);
    carried_out(&mut fleet, "ns-b", 2);
    let over = Released {
        over: over(1).over,
        ..nobody()
    };
    let world = fleet.compile(over);
    assert_eq!(
        (world.owner("east", "ns-b"), grant(&world, "b", "ns-b")),
        (Some("b"), (2, true))
    );
    // Where there is no fence there is nothing to wait for.
    let mut fleet = fleet_without_orders();
    force(&mut fleet, 1);
    assert_eq!(fleet.compile(nobody()).owner("east", "ns-b"), Some("b"));
}

#[test]
fn a_namespace_made_anew_while_it_is_released_had_writes_that_said_nothing() {
    let mut fleet = releasing();
    let known = fleet.agent("east").namespaces.as_mut().unwrap().get_mut("ns-b");
    known.unwrap().epochs = Vec::new();
    let world = fleet.compile(0);
    let entry = world
        .state
        .ledger
        .get(&OperatorName::default(), "east", "ns-b")
        .unwrap();
    assert!(entry.is_fenced() && !entry.fence.whole);
}

/// As after another hub had the member, or this one's ledger was lost.
#[test]
fn a_first_owner_begins_after_what_the_member_goes_by() {
    let mut fleet = Fleet::new(&["ns-a"]);
    fleet.agent("east").allowed = Some(v1::Allowed {
        extras: [FENCE_EPOCH, FENCE_SHARD].map(str::to_owned).into(),
        ..v1::Allowed::default()
    });
    carried_out(&mut fleet, "ns-a", 7);
    fleet.apply("a", spec(&[("east", &["ns-a"])]));
    let world = fleet.compile(0);
    assert_eq!(
        (grant(&world, "a", "ns-a"), orders(&world)),
        ((8, false), vec![order("ns-a", 8)])
    );
}

/// A router that cannot be heard goes on with what it has: it says no epoch, and the member takes its writes.
#[test]
fn a_fence_is_whole_once_every_router_has_heard_of_it_whoever_has_the_pair_by_then() {
    let mut fleet = releasing();
    let whole = |world: &World| {
        world
            .state
            .ledger
            .get(&OperatorName::default(), "east", "ns-b")
            .unwrap()
            .fence
            .whole
    };
    fleet.compile(let_go());
    carried_out(&mut fleet, "ns-b", 2);
    let world = fleet.compile(over(1));
    assert_eq!((world.owner("east", "ns-b"), whole(&world)), (Some("b"), false));
    assert!(world.state.ledger.awaits_epochs());
    let heard = |by_all| Released {
        by_all,
        ..Released::default()
    };
    assert!(!whole(&fleet.compile(heard(1))), "it was fenced in a later run");
    let world = fleet.compile(heard(world.state.run));
    assert!(whole(&world) && !world.state.ledger.awaits_epochs());
    // Also after a restart, of which nobody knows what was heard before.
    let mut fleet = releasing();
    fleet.restart();
    assert!(!whole(&fleet.compile(0)));
    let all = Released {
        of_shard: [(shard_name("a"), 0)].into(),
        ..heard(u64::MAX)
    };
    assert!(whole(&fleet.compile(all)));
}

/// Late writes to the one before say its epochs.
#[test]
fn a_namespace_of_a_name_that_was_forgotten_begins_a_later_epoch() {
    let mut fleet = fleet();
    carried_out(&mut fleet, "ns-b", 40);
    fleet
        .agent("east")
        .namespaces
        .as_mut()
        .unwrap()
        .get_mut("ns-b")
        .unwrap()
        .epochs = vec![40];
    let last = grant(&fleet.compile(0), "a", "ns-b").0;
    assert_eq!(last, 41);
    fleet.apply("a", spec(&[("east", &["ns-z"])]));
    let made = fleet.agent("east").namespaces.as_mut().unwrap().remove("ns-b").unwrap();
    for _ in 0..3 {
        fleet.compile(u64::MAX);
    }
    assert_eq!(
        fleet.state.ledger.get(&OperatorName::default(), "east", "ns-b"),
        None,
        "it is forgotten"
    );
    let made = crate::facts::Namespace {
        epochs: Vec::new(),
        ..made
    };
    fleet
        .agent("east")
        .namespaces
        .as_mut()
        .unwrap()
        .insert("ns-b".to_owned(), made);
    fleet.apply("a", spec(&[("east", &["ns-b", "ns-z"])]));
    assert!(grant(&fleet.compile(0), "a", "ns-b").0 > last);
}

#[test]
fn a_release_that_is_forced_before_it_begins_waits_as_any() {
    let mut fleet = fleet();
    let forced = "east/ns-b@1: to be first".parse();
    fleet.facts.shards.get_mut(&shard_name("a")).unwrap().forced = Some(forced);
    let forced = fleet.facts.shards[&shard_name("a")].forced.clone();
    fleet.apply("a", spec(&[("east", &["ns-z"])]));
    fleet.apply("b", spec(&[("east", &["ns-b"])]));
    fleet.facts.shards.get_mut(&shard_name("a")).unwrap().forced = forced;
    for _ in 0..3 {
        let nobody = Released {
            of_shard: [(shard_name("a"), 0)].into(),
            ..Released::default()
        };
        assert_eq!(fleet.compile(nobody).owner("east", "ns-b"), Some("a"));
    }
}
