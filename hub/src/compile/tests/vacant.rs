//! A namespace that is deleted, and one that is made again: what becomes of its pair.

use jiff::SignedDuration;
use portolan_crds::labels::{FENCE_EPOCH, FENCE_SHARD};
use portolan_crds::ledger::PairFence;

use super::*;
use crate::compile::ledger::{MOST_VACANT, VACANT_FOR};

const ALL: u64 = u64::MAX;

/// `a` has all namespaces of east, ns-a and ns-b, and of west, which has none.
fn fleet() -> Fleet {
    let mut fleet = Fleet::new(&["ns-a", "ns-b"]);
    fleet.inventory("west", &[]);
    fleet.caller("east", "p", "op");
    fleet.apply("a", spec(&[("east", &[]), ("west", &[])]));
    fleet.compile(ALL);
    fleet
}

fn grant(world: &World, shard: &str, namespace: &str) -> Option<v1::NamespaceGrant> {
    let owned = world.owned("east", shard)?.namespaces.iter();
    owned.clone().find(|grant| grant.namespace == namespace).cloned()
}

fn is_granted(grant: &v1::NamespaceGrant) -> bool {
    grant.state() == v1::GrantState::Granted
}

#[test]
fn a_pair_whose_namespace_has_gone_stays_its_shards_in_a_new_epoch() {
    let mut fleet = fleet();
    let before = grant(&fleet.compile(ALL), "a", "ns-b").unwrap();
    fleet.inventory("east", &["ns-a"]);
    let world = fleet.compile(ALL);
    let vacant = grant(&world, "a", "ns-b").unwrap();
    assert!(is_granted(&vacant) && vacant.vacant && !before.vacant, "{vacant:?}");
    assert_eq!(vacant.owner_count, before.owner_count + 1);
    assert_eq!(vacant.view_revision, before.view_revision, "it never left");
    let world = fleet.compile(ALL);
    assert_eq!(grant(&world, "a", "ns-b").as_ref(), Some(&vacant), "once");
    fleet.inventory("east", &["ns-a", "ns-b"]);
    let again = grant(&fleet.compile(ALL), "a", "ns-b").unwrap();
    assert!(is_granted(&again) && !again.vacant);
    assert_eq!(again.owner_count, vacant.owner_count);
}

/// A Namespace that is made anew has no annotation: its member would take no write that says an epoch.
#[test]
fn writes_to_what_is_made_again_say_no_epoch() {
    for spec in [spec(&[("east", &[])]), spec(&[("east", &["ns-b"])])] {
        let mut fleet = Fleet::new(&["ns-b"]);
        fleet.agent("east").allowed = Some(v1::Allowed {
            extras: [FENCE_EPOCH, FENCE_SHARD].map(str::to_owned).into(),
            ..v1::Allowed::default()
        });
        fleet.apply("a", spec);
        let epoch = grant(&fleet.compile(ALL), "a", "ns-b").unwrap().owner_count;
        let state = v1::FenceState {
            namespace: "ns-b".to_owned(),
            epoch,
            closed: true,
            open: Vec::new(),
            message: String::new(),
        };
        let agent = fleet.agent("east");
        agent.fences.insert("ns-b".to_owned(), state);
        agent.namespaces.as_mut().unwrap().get_mut("ns-b").unwrap().epochs = vec![epoch];
        let fenced = grant(&fleet.compile(ALL), "a", "ns-b").unwrap();
        assert!(fenced.fenced);
        fleet.inventory("east", &[]);
        let gone = grant(&fleet.compile(ALL), "a", "ns-b").unwrap();
        assert!(
            is_granted(&gone) && !gone.fenced && gone.owner_count > epoch,
            "{gone:?}"
        );
        fleet.inventory("east", &["ns-b"]);
        let again = grant(&fleet.compile(ALL), "a", "ns-b").unwrap();
        assert!(!again.fenced, "before its annotation is set");
        assert_eq!(
            fleet
                .state
                .ledger
                .get(&OperatorName::default(), "east", "ns-b")
                .unwrap()
                .fence,
            PairFence::default()
        );
    }
}

#[test]
fn whoever_names_it_gets_it_and_is_no_overlap() {
    let mut fleet = fleet();
    fleet.inventory("east", &["ns-a"]);
    fleet.compile(ALL);
    fleet.apply("b", spec(&[("east", &["ns-b"])]));
    let world = fleet.compile(0);
    assert_eq!(world.refusal("b"), None);
    let releasing = grant(&world, "a", "ns-b").unwrap();
    assert_eq!(releasing.state(), v1::GrantState::Releasing);
    assert!(releasing.vacant, "there is still none");
    let world = fleet.compile(ALL);
    assert_eq!(world.owner("east", "ns-b"), Some("b"));
    assert!(!grant(&world, "b", "ns-b").unwrap().vacant, "b goes on wanting it");
    assert_eq!(fleet.state.ledger.vacancy_ends(), None, "there is nothing to wait for");
    // What a shard names it goes on wanting, there or not.
    fleet.apply("c", spec(&[("east", &["ns-b"])]));
    assert_eq!(fleet.compile(ALL).refusal("c"), Some(ConditionReason::Overlap));
}

#[test]
fn labels_that_follow_from_the_name_take_it_and_others_do_not() {
    let by = |key: &str, operator: &str, values: &[&str]| {
        let mut spec = spec(&[("east", &[])]);
        let selector = json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        spec.clusters[0].namespace_selector = Some(serde_json::from_value(selector).unwrap());
        spec
    };
    let keys = Settings::default().keys;
    for (rules, taken) in [
        (by("team", "NotIn", &["a"]), false),
        (by("kubernetes.io/metadata.name", "In", &["ns-b"]), true),
        (by("kubernetes.io/metadata.name", "In", &["ns-c"]), false),
        (by(keys.namespace(), "NotIn", &["ns-a"]), true),
    ] {
        let mut fleet = Fleet::new(&["ns-a", "ns-b"]);
        fleet.apply("a", by("crew", "DoesNotExist", &[]));
        fleet.compile(ALL);
        fleet.inventory("east", &[]);
        fleet.compile(ALL);
        fleet.apply("b", rules.clone());
        let world = fleet.compile(0);
        let state = grant(&world, "a", "ns-b").unwrap();
        assert_eq!(!is_granted(&state), taken, "{:?}", rules.clusters);
    }
}

#[test]
fn it_is_released_after_an_hour() {
    let mut fleet = fleet();
    fleet.inventory("east", &["ns-a"]);
    let at = Timestamp::from_second(1_000_000).unwrap();
    fleet.compile_at(ALL, at);
    assert_eq!(fleet.state.ledger.vacancy_ends(), Some(at + VACANT_FOR));
    let world = fleet.compile_at(ALL, at + VACANT_FOR - SignedDuration::from_secs(1));
    assert!(is_granted(&grant(&world, "a", "ns-b").unwrap()));
    let world = fleet.compile_at(ALL, at + VACANT_FOR);
    assert!(!is_granted(&grant(&world, "a", "ns-b").unwrap()));
    let world = fleet.compile_at(ALL, at + VACANT_FOR);
    assert_eq!((world.owner("east", "ns-b"), grant(&world, "a", "ns-b")), (None, None));
    assert_eq!(fleet.state.ledger.vacancy_ends(), None);
}

#[test]
fn what_its_own_shard_names_does_not_wait_any_more() {
    let mut fleet = fleet();
    fleet.inventory("east", &["ns-a"]);
    fleet.compile(ALL);
    assert!(fleet.state.ledger.vacancy_ends().is_some());
    fleet.apply("a", spec(&[("east", &["ns-a", "ns-b"])]));
    let world = fleet.compile(ALL);
    let named = grant(&world, "a", "ns-b").unwrap();
    assert!(is_granted(&named) && !named.vacant, "{named:?}");
    assert_eq!(fleet.state.ledger.vacancy_ends(), None);
}

#[test]
fn it_follows_its_namespace_to_another_member() {
    let mut fleet = fleet();
    fleet.inventory("east", &["ns-a"]);
    fleet.compile(ALL);
    fleet.inventory("west", &["ns-b"]);
    let world = fleet.compile(0);
    assert!(!is_granted(&grant(&world, "a", "ns-b").unwrap()));
    assert_eq!(world.owner("west", "ns-b"), None, "some router may still write to east");
    let world = fleet.compile(ALL);
    assert_eq!(world.owner("east", "ns-b"), None);
    assert_eq!(world.owner("west", "ns-b"), Some("a"), "not shadowed by what is gone");
}

#[test]
fn a_shard_that_is_gone_or_wants_nothing_there_keeps_nothing() {
    for edit in [
        (|fleet: &mut Fleet| fleet.delete("a")) as fn(&mut Fleet),
        |fleet| fleet.apply("a", spec(&[("west", &[])])),
        |fleet| fleet.apply("a", spec(&[("east", &["ns-a"])])),
    ] {
        let mut fleet = fleet();
        fleet.inventory("east", &["ns-a"]);
        fleet.compile(ALL);
        edit(&mut fleet);
        let world = fleet.compile(ALL);
        assert!(!is_granted(&grant(&world, "a", "ns-b").unwrap()));
    }
}

#[test]
fn few_of_one_shard_wait_in_one_member() {
    let names: Vec<String> = (0..MOST_VACANT + 2).map(|number| format!("ns-{number:03}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut fleet = Fleet::new(&names);
    fleet.apply("a", spec(&[("east", &[])]));
    fleet.compile(ALL);
    for gone in 1..=names.len() {
        fleet.inventory("east", &names[gone..]);
        fleet.compile_at(ALL, Timestamp::from_second(i64::try_from(gone).unwrap()).unwrap());
    }
    let world = fleet.compile_at(ALL, Timestamp::from_second(100).unwrap());
    let left: Vec<_> = world.owned("east", "a").unwrap().namespaces.iter().collect();
    assert_eq!(left.len(), MOST_VACANT);
    assert_eq!(left[0].namespace, "ns-002", "those that are vacant longest go");
}

/// What a hub that starts does not know it takes nothing by.
#[test]
fn a_restart_of_the_hub_keeps_it() {
    let mut fleet = fleet();
    fleet.inventory("east", &["ns-a"]);
    fleet.compile(ALL);
    fleet.restart();
    fleet.agent("east").namespaces = None.into();
    let world = fleet.compile(ALL);
    assert!(is_granted(&grant(&world, "a", "ns-b").unwrap()));
    fleet.inventory("east", &["ns-a"]);
    let vacant = grant(&fleet.compile(ALL), "a", "ns-b").unwrap();
    assert!(is_granted(&vacant) && vacant.vacant);
}
