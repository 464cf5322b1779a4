//! Leader locks under callers that run, from edit to edit; what routers are told at each step.

use std::time::Duration;

use super::*;
use crate::compile::{LockNews, LockUsersAway, Scope};
use portolan_wire::subscription::Subscription;

const LONGEST: Duration = Duration::from_secs(crate::settings::DEFAULT_LONGEST_LEASE_SECONDS);

fn of(primary: &str, controller: &serde_json::Value) -> ShardingConfigSpec {
    ShardingConfigSpec {
        primary_cluster: Some(primary.to_owned()),
        controller: serde_json::from_value(controller.clone()).unwrap(),
        caller_clusters: vec!["east".to_owned(), "west".to_owned()],
        ..spec(&[("east", &["ns-a"]), ("west", &["ns-b"])])
    }
}

/// A caller runs, and the lock is `op` in east.
fn fleet() -> Fleet {
    let mut fleet = Fleet::new(&["ns-a"]);
    fleet.caller("east", "p", "op");
    fleet.apply("a", of("east", &json!({"leaderElectionName": "op"})));
    fleet.compile(0);
    fleet
}

/// All routers hand locks over, and this is known of that of `a`.
fn heard(news: LockNews) -> Released {
    Released {
        locks_are_handed_over: true,
        locks: [(shard_name("a"), news)].into(),
        ..Released::default()
    }
}

fn open() -> Released {
    heard(LockNews::default())
}

fn closed_for(time: Duration) -> Released {
    heard(LockNews {
        closed_for: Some(time),
        ..LockNews::default()
    })
}

fn told(world: &World) -> (v1::LockState, String, String) {
    let rules = world.rules("a").unwrap();
    let lock = rules.lock.clone().unwrap_or_default();
    let from = lock
        .from
        .clone()
        .map(|from| format!("{} {}", from.cluster, from.leader_election_name));
    (lock.state(), rules.primary_cluster.clone(), from.unwrap_or_default())
}

#[test]
fn a_lock_is_handed_over_under_callers_that_run() {
    let mut fleet = fleet();
    assert_eq!(fleet.compile(open()).rules("a").unwrap().lock, None, "it never moved");
    fleet.apply("a", of("west", &json!({"leaderElectionName": "other"})));
    let from = || "east op".to_owned();
    let closed = (v1::LockState::Closed, "west".to_owned(), from());
    let world = fleet.compile(open());
    assert_eq!((world.refusal("a"), told(&world)), (None, closed.clone()));
    assert_eq!(told(&fleet.compile(open())), closed, "some router may use it");
    fleet.restart();
    assert_eq!(told(&fleet.compile(open())), closed, "a hub goes on where the last was");
    // Another place meanwhile waits, another edit does not.
    fleet.apply("a", of("east", &json!({"leaderElectionName": "other"})));
    let world = fleet.compile(open());
    assert!(
        world.message("a").contains("the last handover of it is not over"),
        "{}",
        world.message("a")
    );
    assert_eq!(told(&world), closed);
    fleet.apply("a", of("west", &json!({"leaderElectionName": "other"})));
    let world = fleet.compile(closed_for(Duration::ZERO));
    assert_eq!(told(&world), (v1::LockState::Bringing, "west".to_owned(), from()));
    fleet.restart();
    let world = fleet.compile(open());
    assert_eq!(told(&world).0, v1::LockState::Bringing);
    let generation = world.rules("a").unwrap().lock.clone().unwrap().generation;
    let brought = heard(LockNews {
        brought: true,
        ..LockNews::default()
    });
    let world = fleet.compile(brought);
    assert_eq!(told(&world), (v1::LockState::Open, "west".to_owned(), String::new()));
    let lock = world.rules("a").unwrap().lock.clone().unwrap();
    assert_eq!((lock.generation, lock.former_name.as_str()), (generation, "op"));
}

#[test]
fn what_cannot_be_brought_runs_out() {
    let mut fleet = fleet();
    fleet.apply("a", of("west", &json!({"leaderElectionName": "op"})));
    fleet.compile(open());
    fleet.compile(closed_for(Duration::ZERO));
    let late = heard(LockNews {
        lasts: LONGEST,
        ..LockNews::default()
    });
    let before = fleet.compile(open()).rules("a").unwrap().lock.clone().unwrap();
    let world = fleet.compile(late);
    assert_eq!(
        told(&world).0,
        v1::LockState::Closed,
        "whoever could bring it does not any more"
    );
    let ending = world.rules("a").unwrap().lock.clone().unwrap();
    assert!(ending.generation > before.generation, "closed once more");
    assert_eq!(told(&fleet.compile(open())).0, v1::LockState::Closed);
    assert_eq!(told(&fleet.compile(closed_for(Duration::ZERO))).0, v1::LockState::Open);
    // Another kind of lock brings nothing.
    fleet.apply(
        "a",
        of(
            "west",
            &json!({"leaderElectionName": "op", "leaderElectionResourceLock": "configmaps"}),
        ),
    );
    assert_eq!(told(&fleet.compile(open())).0, v1::LockState::Closed);
    assert_eq!(told(&fleet.compile(closed_for(LONGEST / 2))).0, v1::LockState::Closed);
    assert_eq!(told(&fleet.compile(closed_for(LONGEST))).0, v1::LockState::Open);
}

#[test]
fn what_is_in_no_one_place_or_of_an_older_router_does_not_move() {
    let mut fleet = fleet();
    fleet.apply("a", of("west", &json!({"leaderElectionName": "op"})));
    let world = fleet.compile(0);
    assert!(world.message("a").contains("upgrade it"), "{}", world.message("a"));
    assert_eq!(world.rules("a").unwrap().primary_cluster, "east");
    fleet.apply("a", of("west", &json!({"leaderElection": "Disabled"})));
    let world = fleet.compile(open());
    assert!(
        world.message("a").contains("not in one place before and after"),
        "{}",
        world.message("a")
    );
    fleet.agent("east").callers = Some(BTreeMap::new());
    assert_eq!(fleet.compile(open()).refusal("a"), None, "nobody runs any more");
}

#[test]
fn none_begins_to_move_while_a_router_is_away_that_may_use_it() {
    let mut fleet = fleet();
    fleet.apply("a", of("west", &json!({"leaderElectionName": "op"})));
    for away in [
        LockUsersAway {
            unknown: true,
            ..LockUsersAway::default()
        },
        LockUsersAway {
            shards: [shard_name("a")].into(),
            ..LockUsersAway::default()
        },
    ] {
        let world = fleet.compile(Released { away, ..open() });
        assert!(world.message("a").contains("is away"), "{}", world.message("a"));
        assert_eq!(world.rules("a").unwrap().primary_cluster, "east");
    }
    let of_another = LockUsersAway {
        shards: [shard_name("b")].into(),
        ..LockUsersAway::default()
    };
    let world = fleet.compile(Released {
        away: of_another,
        ..open()
    });
    assert_eq!(told(&world).0, v1::LockState::Closed);
}

#[test]
fn what_is_being_closed_may_go_back_where_it_was() {
    let mut fleet = fleet();
    fleet.apply("a", of("west", &json!({"leaderElectionName": "other"})));
    let closing = fleet.compile(open()).rules("a").unwrap().lock.clone().unwrap();
    fleet.apply("a", of("east", &json!({"leaderElectionName": "op"})));
    let world = fleet.compile(open());
    assert_eq!(
        (world.refusal("a"), told(&world)),
        (None, (v1::LockState::Open, "east".to_owned(), String::new()))
    );
    let back = world.rules("a").unwrap().lock.clone().unwrap();
    assert!(
        back.generation > closing.generation,
        "nothing said of the closing counts"
    );
    assert_eq!(back.former_name, "other");
    // From where it is being brought it may be in use already.
    fleet.apply("a", of("west", &json!({"leaderElectionName": "op"})));
    fleet.compile(open());
    fleet.compile(closed_for(Duration::ZERO));
    fleet.apply("a", of("east", &json!({"leaderElectionName": "op"})));
    let world = fleet.compile(open());
    assert!(world.message("a").contains("is not over"), "{}", world.message("a"));
}

#[test]
fn a_router_of_one_shard_is_told_of_the_member_that_the_lock_leaves() {
    let mut fleet = fleet();
    fleet.caller("west", "q", "op");
    let of = |primary| ShardingConfigSpec {
        clusters: spec(&[("west", &["ns-b"])]).clusters,
        ..of(primary, &json!({"leaderElectionName": "op"}))
    };
    fleet.apply("a", of("east"));
    fleet.compile(open());
    fleet.apply("a", of("west"));
    let world = fleet.compile(open());
    assert_eq!(told(&world).0, v1::LockState::Closed);
    let pods = world.views.keys().filter(|pod| pod.cluster == "west");
    let scopes: Vec<_> = pods
        .map(|pod| Scope::of(&Subscription::Caller(pod.clone()), &world))
        .collect();
    assert!(!scopes.is_empty());
    let left = Ref::Target("east".to_owned());
    assert!(
        scopes.iter().all(|scope| scope.sees(&left)),
        "east still has the record"
    );
}
