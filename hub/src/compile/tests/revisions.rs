//! View revisions: at which one a pair enters its shard, and how long it is known at which one it left.

use jiff::{SignedDuration, Timestamp};
use portolan_crds::ledger::Departure;

use super::*;

const ALL: u64 = u64::MAX;

fn at_hour(hour: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_hours(hour)
}

fn departures(world: &World, name: &str) -> Vec<(String, Departure)> {
    let departures = world.state.ledger.departures("east", &shard_name(name));
    departures
        .map(|(namespace, departure)| (namespace.to_owned(), departure))
        .collect()
}

/// `a` had ns-b, which moved on to `b` at hour 10; `a` keeps ns-a.
fn moved() -> (Fleet, World) {
    let mut fleet = Fleet::new(&["ns-a", "ns-b"]);
    fleet.apply("a", spec(&[("east", &["ns-a", "ns-b"])]));
    fleet.compile(ALL);
    fleet.apply("a", spec(&[("east", &["ns-a"])]));
    fleet.apply("b", spec(&[("east", &["ns-b"])]));
    let releasing = fleet.compile(0);
    assert_eq!(
        releasing.state.ledger.view_revision(),
        2,
        "a release alone is no change of ownership"
    );
    let world = fleet.compile_at(ALL, at_hour(10));
    (fleet, world)
}

#[test]
fn each_change_of_ownership_takes_the_next() {
    let (_, world) = moved();
    let revision = |namespace| {
        world
            .state
            .ledger
            .get(&OperatorName::default(), "east", namespace)
            .unwrap()
            .view_revision
    };
    assert_eq!((revision("ns-a"), revision("ns-b")), (1, 4));
    let left = Departure {
        view_revision: 3,
        unix_seconds: at_hour(10).as_second(),
    };
    assert_eq!(departures(&world, "a"), [("ns-b".to_owned(), left)]);
    assert!(departures(&world, "b").is_empty());
    assert_eq!(world.state.ledger.view_revision(), 4);
}

#[test]
fn what_left_is_known_for_a_day() {
    let (mut fleet, _) = moved();
    let world = fleet.compile_at(ALL, at_hour(34));
    assert_eq!(departures(&world, "a").len(), 1);
    assert_eq!(world.state.ledger.departures_dropped_up_to("east", &shard_name("a")), 0);
    // The last one stays: it says how new the shard's view is.
    let world = fleet.compile_at(ALL, at_hour(60));
    assert_eq!(departures(&world, "a").len(), 1);
    fleet.apply("a", spec(&[("east", &["ns-z"])]));
    for _ in 0..3 {
        fleet.compile_at(ALL, at_hour(60));
    }
    let world = fleet.compile_at(ALL, at_hour(61));
    let left: Vec<String> = departures(&world, "a").into_iter().map(|(name, _)| name).collect();
    assert_eq!(left, ["ns-a", "ns-b"], "the last that was dropped says so");
    assert_eq!(world.state.ledger.departures_dropped_up_to("east", &shard_name("a")), 3);
    assert_eq!(world.state.ledger.view_revision(), 6);
}

#[test]
fn what_left_is_known_until_a_day_after_all_members_were_heard() {
    let (mut fleet, _) = moved();
    fleet.apply("a", spec(&[("east", &["ns-a"]), ("west", &["ns-w"])]));
    fleet.inventory("west", &["ns-w"]);
    for _ in 0..2 {
        fleet.compile_at(ALL, at_hour(11));
    }
    let dropped = |world: &World| world.state.ledger.departures_dropped_up_to("east", &shard_name("a"));
    fleet.facts.silent.insert("west".to_owned());
    assert_eq!(dropped(&fleet.compile_at(ALL, at_hour(100))), 0, "west is not heard");
    fleet.facts.silent.remove("west");
    fleet.facts.listening = true;
    assert_eq!(
        dropped(&fleet.compile_at(ALL, at_hour(100))),
        0,
        "the hub has just started"
    );
    fleet.facts.listening = false;
    fleet.facts.spoke_again.insert("west".to_owned(), at_hour(100));
    assert_eq!(
        dropped(&fleet.compile_at(ALL, at_hour(123))),
        0,
        "it was heard again less than a day ago"
    );
    // A hub that starts in that day has it from the one before.
    fleet.facts.spoke_again.clear();
    fleet.facts.pins.get_mut("west").unwrap().history.silent_at = at_hour(100).as_second();
    assert_eq!(dropped(&fleet.compile_at(ALL, at_hour(123))), 0, "that is written down");
    assert_eq!(dropped(&fleet.compile_at(ALL, at_hour(125))), 3);
}

#[test]
fn a_namespace_that_leaves_again_takes_nothing_back_of_what_was_dropped() {
    let (mut fleet, _) = moved();
    fleet.compile_at(ALL, at_hour(60));
    fleet.apply("b", spec(&[("east", &["ns-z"])]));
    fleet.compile_at(ALL, at_hour(60));
    fleet.apply("a", spec(&[("east", &["ns-a", "ns-b"])]));
    fleet.compile_at(ALL, at_hour(60));
    fleet.apply("a", spec(&[("east", &["ns-a"])]));
    fleet.compile_at(ALL, at_hour(60));
    let world = fleet.compile_at(ALL, at_hour(60));
    let dropped = |world: &World| world.state.ledger.departures_dropped_up_to("east", &shard_name("a"));
    assert_eq!(dropped(&world), 3);
    let left = departures(&world, "a");
    assert!(left.len() == 1 && left[0].1.view_revision > 3, "{left:?}");
    let world = fleet.compile_at(ALL, at_hour(100));
    assert_eq!(dropped(&world), left[0].1.view_revision, "that is dropped by now");
}

#[test]
fn what_is_dropped_of_one_shard_is_not_dropped_of_another() {
    let (mut fleet, _) = moved();
    fleet.apply("quiet", spec(&[("east", &["ns-q", "ns-r"])]));
    fleet.inventory("east", &["ns-a", "ns-b", "ns-q", "ns-r"]);
    fleet.compile(ALL);
    fleet.apply("quiet", spec(&[("east", &["ns-r"])]));
    for _ in 0..2 {
        fleet.compile_at(ALL, at_hour(50));
    }
    let world = fleet.compile_at(ALL, at_hour(60));
    let dropped = |name| world.state.ledger.departures_dropped_up_to("east", &shard_name(name));
    assert_eq!((dropped("a"), dropped("quiet")), (3, 0));
    assert_eq!(departures(&world, "quiet").len(), 1);
}

/// A namespace that comes and goes all day is one entry.
#[test]
fn of_many_departures_the_earliest_are_dropped() {
    const MANY: usize = 30_000;
    let mut fleet = Fleet::new(&[]);
    fleet.apply("a", spec(&[("east", &[])]));
    for generation in 0..2 {
        let names: Vec<_> = (0..MANY).map(|index| format!("ns-{generation}-{index}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        fleet.inventory("east", &names);
        fleet.compile_at(ALL, at_hour(generation));
        fleet.inventory("east", &[]);
        // A few of them wait for an hour.
        for hour in [generation, generation + 1, generation + 1] {
            fleet.compile_at(ALL, at_hour(hour));
        }
    }
    let world = fleet.compile_at(ALL, at_hour(2));
    let departures = departures(&world, "a");
    assert_eq!(departures.len(), 50_000 + 1, "the last that was dropped says so");
    let dropped_up_to = world.state.ledger.departures_dropped_up_to("east", &shard_name("a"));
    assert!(
        departures
            .iter()
            .all(|(_, departure)| departure.view_revision >= dropped_up_to)
    );
    // The pair that was vacant last began an epoch beyond the last revision, which is not given for that.
    let first = MANY + 2;
    assert_eq!(dropped_up_to, (first + 2 * MANY - 50_000 - 1) as u64);
}

#[test]
fn an_object_that_is_older_than_what_was_accepted_of_it_is_no_edit() {
    let mut fleet = Fleet::new(&["ns-a", "ns-b"]);
    fleet.apply("a", spec(&[("east", &["ns-a"])]));
    fleet.compile(ALL);
    let older = fleet.facts.shards.clone();
    fleet.apply("a", spec(&[("east", &["ns-a", "ns-b"])]));
    let world = fleet.compile(ALL);
    let accepted = world.state.accepted.clone();
    // As a hub knows it that has begun to lead, and whose watch is behind.
    fleet.facts.shards = older;
    let world = fleet.compile(0);
    assert_eq!(world.refusal("a"), None);
    assert_eq!(world.state.accepted, accepted);
    let owned = world.owned("east", "a").unwrap();
    let namespaces: Vec<_> = owned.namespaces.iter().map(|grant| grant.namespace.as_str()).collect();
    assert_eq!(namespaces, ["ns-a", "ns-b"]);
    assert!(world.state.ledger.releasing().is_empty());
}
