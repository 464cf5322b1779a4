//! How many epochs a member takes of one namespace, and whose those are.

use portolan_crds::ledger::{Chunk, Pair, PairFence, Slot};
use portolan_crds::policy::{OPEN_EPOCHS_MAX, epochs_annotation};

use super::*;
use crate::compile::fence::{Crowded, crowded, orders};
use crate::compile::ledger::Fields;
use crate::facts::Facts;

const MOST: u64 = OPEN_EPOCHS_MAX as u64;

/// One of many, in the order of their epochs.
fn nth(number: u64) -> OperatorName {
    name_of(&format!("o-{number:03}"))
}

/// East has `shop`, where these epochs are open.
fn facts(lists: bool, open: impl IntoIterator<Item = u64>) -> Facts {
    let mut fleet = fleet(&["shop"]);
    let agent = fleet.agent("east");
    agent.allowed = Some(v1::Allowed {
        extras: [FENCE_EPOCH, FENCE_SHARD].map(str::to_owned).into(),
        fence_lists: lists,
        ..v1::Allowed::default()
    });
    let known = agent.namespaces.as_mut().unwrap().get_mut("shop");
    known.unwrap().epochs = open.into_iter().collect();
    fleet.facts
}

/// Each operator has `shop` in an epoch: fenced, and being released.
fn ledger(pairs: impl IntoIterator<Item = (u64, bool, bool)>) -> Ledger {
    let mut chunk = Chunk::new("east", Slot::WHOLE);
    for (epoch, fenced, releasing) in pairs {
        let pair = Pair {
            fence: PairFence {
                epoch: if fenced { epoch } else { 0 },
                whole: fenced,
            },
            owner: Some(shard_name(&format!("s-{epoch}"))),
            owner_count: epoch,
            view_revision: epoch,
            releasing,
        };
        chunk.add("shop", nth(epoch), pair);
    }
    Ledger::restore(Contention::Operator, [chunk], 1_000, false)
}

fn crowds(facts: &Facts, ledger: &Ledger, number: u64) -> Option<Crowded> {
    let entry = ledger.get(&nth(number), "east", "shop").unwrap();
    crowded(facts, ledger, ("east", "shop"), entry)
}

#[test]
fn a_member_fences_so_many_operators_off_and_the_next_one_not() {
    let facts = facts(true, 1..=MOST);
    let full = ledger((1..=MOST + 1).map(|epoch| (epoch, epoch <= MOST, false)));
    assert_eq!(orders(&facts, &full, "east"), []);
    assert_eq!(crowds(&facts, &full, MOST + 1), Some(Crowded::Full));
    assert_eq!(crowds(&facts, &full, MOST), None);

    let mut closing = ledger((1..=MOST + 1).map(|epoch| (epoch, epoch <= MOST, epoch == 5)));
    closing.close_all();
    let told = &orders(&facts, &closing, "east")[0];
    assert_eq!((told.epoch, told.open.len()), (MOST + 2, OPEN_EPOCHS_MAX));
    assert!(
        !told.open.contains(&5) && !told.open.contains(&(MOST + 1)),
        "a handover of another takes nobody's place"
    );

    let left = ledger(
        (1..=MOST + 1)
            .filter(|epoch| *epoch != 5)
            .map(|epoch| (epoch, epoch <= MOST, false)),
    );
    let told = &orders(&facts, &left, "east")[0];
    assert_eq!((told.epoch, told.open.len()), (MOST + 1, OPEN_EPOCHS_MAX));
    assert_eq!(crowds(&facts, &left, MOST + 1), None);
}

#[test]
fn what_a_namespace_says_of_all_of_them_is_short() {
    let uid = "0dd03baa-1a1e-4a3c-9c3b-1f5a2a2a2a2a";
    let open: Vec<_> = (9_999_000..9_999_000 + MOST).collect();
    assert!(epochs_annotation(&open, uid).len() <= 2_048 + uid.len());
}

/// An epoch that the member has passed can never be set: whoever gets a place late begins a later one.
#[test]
fn who_gets_a_place_late_begins_an_epoch_that_can_be_set() {
    // The epoch of who had the first one, and no place, beside so many others.
    let begun = |lists, others: u64, open: &[u64]| {
        let facts = facts(lists, (2..others + 2).chain(open.iter().copied()));
        let all = (1..others + 2).map(|epoch| (epoch, epoch > 1, false));
        let mut ledger = ledger(all);
        let fields = Fields::from([(nth(1), ["east".to_owned()].into())]);
        ledger.fence(&facts, &Released::default(), (1, &fields));
        ledger.get(&nth(1), "east", "shop").unwrap().owner_count
    };
    assert_eq!(begun(true, MOST, &[]), 1, "there is no place");
    assert_eq!(begun(true, MOST - 1, &[]), MOST + 1);
    assert_eq!(begun(false, 1, &[]), 1, "there is no place");
    for lists in [true, false] {
        assert_eq!(begun(lists, 0, &[]), 1, "it can be set as it is");
        assert_eq!(begun(lists, 0, &[9]), 10, "nobody here has the one that is set");
    }
}

fn allow(fleet: &mut Fleet, lists: bool) {
    fleet.agent("east").allowed = Some(v1::Allowed {
        extras: [FENCE_EPOCH, FENCE_SHARD].map(str::to_owned).into(),
        fence_lists: lists,
        ..v1::Allowed::default()
    });
}

fn fenced(world: &World, shard: &str) -> bool {
    world.owned("east", shard).unwrap().namespaces[0].fenced
}

fn open(fleet: &Fleet) -> Vec<u64> {
    fleet.facts.inventory("east").unwrap()["shop-a"].epochs.clone()
}

/// Both operators are there, and the member compares one epoch.
fn of_before() -> Fleet {
    let mut fleet = fleet(&["shop-a"]);
    allow(&mut fleet, false);
    fleet.apply("r1", of("rollouts", &[("east", &["shop-a"])]));
    settled(&mut fleet);
    fleet.apply("p1", of("prometheus", &[("east", &["shop-a"])]));
    settled(&mut fleet);
    fleet
}

#[test]
fn a_member_that_takes_one_epoch_goes_on_fencing_who_was_first() {
    let mut fleet = of_before();
    for (give, take) in [("r1", "r2"), ("r2", "r1")] {
        fleet.apply(give, of("rollouts", &[("west", &["shop-a"])]));
        fleet.apply(take, of("rollouts", &[("east", &["shop-a"])]));
        let world = settled(&mut fleet);
        assert_eq!(grants(&world, take), ["shop-a"]);
        assert!(fenced(&world, take) && !fenced(&world, "p1"), "{give} to {take}");
        assert_eq!(open(&fleet), [epoch(&world, "rollouts", "shop-a")]);
    }
    // The other's goes as it goes where nothing is fenced.
    fleet.apply("p1", of("prometheus", &[("west", &["shop-a"])]));
    fleet.apply("p2", of("prometheus", &[("east", &["shop-a"])]));
    let world = settled(&mut fleet);
    assert_eq!(grants(&world, "p2"), ["shop-a"]);
    assert!(fenced(&world, "r1") && !fenced(&world, "p2"));
    // The one that is left is the first.
    fleet.delete("r1");
    fleet.delete("r2");
    settled(&mut fleet);
    let world = settled(&mut fleet);
    assert!(fenced(&world, "p2"));
    assert_eq!(open(&fleet), [epoch(&world, "prometheus", "shop-a")]);
}

#[test]
fn a_member_that_joins_again_fences_all_of_them_and_back() {
    let mut fleet = of_before();
    allow(&mut fleet, true);
    let world = settled(&mut fleet);
    assert!(fenced(&world, "r1") && fenced(&world, "p1"));
    let both = open(&fleet);
    assert_eq!(both.len(), 2, "{both:?}");
    // Policies of before admit none of several.
    allow(&mut fleet, false);
    let world = fleet.compile(fence_released(&fleet));
    assert!(!fenced(&world, "r1") && !fenced(&world, "p1"));
    let world = settled(&mut fleet);
    assert_eq!(open(&fleet), both[1..], "none that is over counts again");
    let of = [
        epoch(&world, "rollouts", "shop-a"),
        epoch(&world, "prometheus", "shop-a"),
    ];
    assert_eq!(
        [fenced(&world, "r1"), fenced(&world, "p1")],
        of.map(|epoch| epoch == both[1])
    );
}

/// What an agent reports may be what a hub of before told it, which had the epoch kept for the other's pair.
#[test]
fn what_was_kept_for_one_before_a_restart_closes_nothing_of_the_other() {
    let mut fleet = fleet(&["shop-a"]);
    fleet.agent("east").allowed = Some(v1::Allowed {
        extras: [FENCE_EPOCH, FENCE_SHARD].map(str::to_owned).into(),
        fence_lists: true,
        ..v1::Allowed::default()
    });
    fleet.apply("r1", of("rollouts", &[("east", &["shop-a"])]));
    fleet.apply("p1", of("prometheus", &[("east", &["shop-a"])]));
    let world = settled(&mut fleet);
    let was = [("r1", "rollouts"), ("p1", "prometheus")].map(|(shard, of)| (epoch(&world, of, "shop-a"), shard, of));
    // The older epoch is closed.
    let ((_, first, theirs), (second_epoch, second, ours)) = (was[0].min(was[1]), was[0].max(was[1]));
    let lets_go = |shard: &str| Released {
        let_go: [(shard_name(shard), ALL)].into(),
        saying_epochs: [shard_name(shard)].into(),
        of_shard: [(shard_name(first), 0), (shard_name(second), 0)].into(),
        ..Released::default()
    };
    fleet.apply(first, of(theirs, &[("west", &["shop-a"])]));
    fleet.compile(lets_go(first));
    let world = fleet.compile(lets_go(first));
    carry_out(&mut fleet, &world);
    let kept = second_epoch + 1;
    assert_eq!(
        fleet.facts.inventory("east").unwrap()["shop-a"].epochs,
        [second_epoch, kept]
    );

    let agent = fleet.facts.agents.remove("east").unwrap();
    fleet.restart();
    fleet.apply(second, of(ours, &[("west", &["shop-a"])]));
    fleet.apply("next", of(ours, &[("east", &["shop-a"])]));
    fleet.compile(lets_go(second));
    let world = fleet.compile(lets_go(second));
    let closing: Vec<_> = world
        .state
        .ledger
        .closing()
        .map(|(pair, (_, next))| (pair, next))
        .collect();
    let pair = ("east".to_owned(), "shop-a".to_owned(), second_epoch);
    assert_eq!(closing, [(pair.clone(), kept)], "the same is kept again");
    fleet.facts.agents.insert("east".to_owned(), agent);
    assert!(!fence_released(&fleet).over.contains(&pair));
    let world = fleet.compile(lets_go(second));
    carry_out(&mut fleet, &world);
    assert!(
        !fleet.facts.inventory("east").unwrap()["shop-a"]
            .epochs
            .contains(&second_epoch)
    );
    assert!(fence_released(&fleet).over.contains(&pair));
    let world = settled(&mut fleet);
    assert_eq!(
        (epoch(&world, ours, "shop-a"), grants(&world, "next")),
        (kept, vec!["shop-a".to_owned()])
    );
}
