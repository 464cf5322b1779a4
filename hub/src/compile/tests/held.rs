//! Callers that change their shard, and locks that are new, while somebody may lead by another lock.

use std::time::Duration;

use portolan_crds::HeldLock;
use portolan_wire::subscription::Subscription;

use super::*;
use crate::compile::{Hold, Holders, Past, Teller, Untold, callers_of};

const LONGEST: Duration = Duration::from_secs(crate::settings::DEFAULT_LONGEST_LEASE_SECONDS);
/// As routers count client-go's 15 s.
const LASTS: u32 = 20;

/// A fleet, what routers tell, and what the hub has seen of callers.
struct Scene {
    fleet: Fleet,
    holders: Holders,
    world: World,
    at: Timestamp,
}

/// For callers of this word, electing their leader by this controller.
fn of(app: &str, namespace: &str, controller: &serde_json::Value) -> ShardingConfigSpec {
    ShardingConfigSpec {
        selector: Some(serde_json::from_value(json!({"matchLabels": {"app": app}})).unwrap()),
        controller: serde_json::from_value(controller.clone()).unwrap(),
        ..spec(&[("east", &[namespace])])
    }
}

fn elects() -> serde_json::Value {
    json!({"leaderElectionName": "op"})
}

impl Scene {
    /// Shards `a` and `b`; a caller `p` of `a` and a caller `q` of `b`.
    fn new() -> Self {
        let mut fleet = Fleet::new(&["ns-a", "ns-b"]);
        fleet.caller("east", "p", "a");
        fleet.caller("east", "q", "b");
        fleet.apply("a", of("a", "ns-a", &elects()));
        fleet.apply("b", of("b", "ns-b", &elects()));
        let mut scene = Self {
            fleet,
            holders: Holders::default(),
            world: World::default(),
            at: Timestamp::from_second(1_000).unwrap(),
        };
        scene.compile();
        scene
    }

    fn compile(&mut self) {
        let released = Released {
            by_all: self.world.state.run,
            locks_are_handed_over: true,
            holders: Arc::new(self.holders.clone()),
            ..Released::default()
        };
        self.world = self.fleet.compile_at(released, self.at);
        let at = self.holders.at;
        for (caller, present) in callers_of(&self.world) {
            let past = self.holders.past.entry(caller).or_insert_with(|| Past::new(present));
            past.move_on(present, (at, LONGEST));
        }
    }

    fn pass(&mut self, time: Duration) {
        self.holders.at += time;
        self.at += jiff::SignedDuration::try_from(time).unwrap();
        self.compile();
    }

    /// The caller renews the lock of this shard by a gateway.
    fn renews(&mut self, caller: &str, shard: &str, lock: &str) {
        self.renews_by(&Subscription::Everything, caller, (shard, lock));
    }

    /// By a router of this subscription.
    fn renews_by(&mut self, router: &Subscription, caller: &str, (shard, lock): (&str, &str)) {
        let hold = Hold {
            lock: HeldLock {
                cluster: "east".to_owned(),
                resource: "leases".to_owned(),
                name: lock.to_owned(),
                of_election: lock.contains("---"),
            },
            shard_uid: format!("object-{shard}"),
            lasts_seconds: LASTS,
            teller: Teller::of(router),
        };
        let key = ("east".to_owned(), caller.to_owned());
        self.holders.held.entry(key).or_default().push(hold);
    }

    fn no_more(&mut self, caller: &str) {
        self.holders.held.remove(&("east".to_owned(), caller.to_owned()));
    }

    /// When the writes of a caller are not closed any more, in seconds from now.
    fn closed(&self, caller: &str) -> Option<i64> {
        let view = self.world.view("east", caller).unwrap();
        let closed = view.writes_closed.as_ref()?;
        Some(closed.until_unix_seconds - self.at.as_second())
    }

    /// What routers are told of the lock of a shard.
    fn lock(&self, shard: &str) -> Option<v1::LockState> {
        let lock = self.world.rules(shard).unwrap().lock.as_ref();
        lock.map(v1::Lock::state)
    }
}

#[test]
fn a_leader_that_changes_its_shard_is_let_write_when_what_it_renewed_has_run_out() {
    let mut scene = Scene::new();
    scene.renews("p", "a", "op---a");
    scene.renews("q", "b", "op---b");
    scene.compile();
    assert_eq!((scene.closed("p"), scene.closed("q")), (None, None));
    scene.fleet.caller("east", "p", "b");
    scene.compile();
    assert_eq!(scene.closed("p"), Some(LASTS.into()));
    let reason = scene
        .world
        .view("east", "p")
        .unwrap()
        .writes_closed
        .clone()
        .unwrap()
        .reason;
    assert!(reason.contains("leases/op---a in member cluster east"), "{reason}");
    assert_eq!(scene.closed("q"), None, "it leads there");
    assert_eq!(scene.lock("b"), None, "whoever leads there goes on");
    scene.pass(Duration::from_secs(7));
    assert_eq!(scene.closed("p"), Some(13), "what was told stays");
    scene.pass(Duration::from_secs(14));
    assert_eq!(
        scene.closed("p"),
        Some(LASTS.into()),
        "some router says that it still holds it"
    );
    scene.no_more("p");
    scene.compile();
    assert_eq!(scene.closed("p"), None);
    // Back again, and it leads there.
    scene.renews("p", "b", "op---b");
    scene.fleet.caller("east", "p", "a");
    scene.compile();
    assert_eq!(scene.closed("p"), Some(LASTS.into()));
}

#[test]
fn who_renewed_nothing_who_is_new_and_who_elects_nobody_does_not_wait() {
    let mut scene = Scene::new();
    scene.fleet.caller("east", "p", "b");
    scene.compile();
    assert_eq!(scene.closed("p"), None, "it renewed nothing");
    scene.fleet.caller("east", "fresh", "b");
    scene.holders.untold = Untold::everyone();
    scene.pass(LONGEST);
    assert_eq!(scene.closed("fresh"), None, "it was in no other shard");
    scene.fleet.apply("new", of("new", "ns-n", &elects()));
    scene.fleet.caller("east", "n", "new");
    scene.compile();
    assert_eq!((scene.closed("n"), scene.lock("new")), (None, None));
    // One that elects nobody has no leader that could be joined by another.
    scene.holders.untold = Untold::default();
    scene.renews("q", "b", "op---b");
    scene
        .fleet
        .apply("works", of("works", "ns-w", &json!({"leaderElection": "Disabled"})));
    scene.fleet.caller("east", "q", "works");
    scene.compile();
    assert_eq!(scene.closed("q"), None);
    // A Lease of another name is all shards' that have one primary.
    scene.renews("p", "b", "other");
    scene.fleet.caller("east", "p", "a");
    scene.compile();
    assert_eq!(scene.closed("p"), None);
}

#[test]
fn what_a_router_cannot_say_counts_for_the_longest_time() {
    let mut scene = Scene::new();
    scene.holders.untold = Untold::everyone();
    scene.compile();
    assert_eq!(scene.closed("p"), None, "it is where it was");
    scene.fleet.caller("east", "p", "b");
    scene.compile();
    let longest = i64::try_from(LONGEST.as_secs()).unwrap();
    assert_eq!(scene.closed("p"), Some(longest));
    scene.pass(Duration::from_secs(10));
    assert_eq!(scene.closed("p"), Some(longest - 10));
    scene.renews("p", "a", "op---a");
    scene.compile();
    assert_eq!(
        scene.closed("p"),
        Some(longest - 10),
        "one says what it knows, and another one still cannot"
    );
    // Past the time of what is known, when routers would open by themselves.
    scene.pass(Duration::from_secs(u64::from(LASTS) + 1));
    assert_eq!(scene.closed("p"), Some(longest - 31));
    scene.no_more("p");
    scene.compile();
    assert_eq!(scene.closed("p"), Some(longest - 31));
    scene.pass(LONGEST);
    assert_eq!(scene.closed("p"), None);
    scene.fleet.caller("east", "p", "a");
    scene.compile();
    assert!(scene.closed("p").is_some());
    scene.holders.untold = Untold::default();
    scene.compile();
    assert_eq!(scene.closed("p"), None, "they are all there again");
}

/// Routers open what is closed by themselves at the time that they were told.
#[test]
fn writes_do_not_open_between_two_runs_while_a_lock_counts() {
    let mut scene = Scene::new();
    scene.renews("p", "a", "op---a");
    scene.fleet.caller("east", "p", "b");
    scene.compile();
    let mut told = scene.closed("p").unwrap() + scene.at.as_second();
    let (mut changes, runs) = (0, 200);
    for _ in 0..runs {
        scene.pass(Duration::from_secs(1));
        let now = scene.closed("p").unwrap() + scene.at.as_second();
        assert!(now >= told && told > scene.at.as_second() + 3, "told too late");
        changes += i32::from(now != told);
        told = now;
    }
    assert!(changes <= runs / 10, "{changes} changes of its view");
    scene.no_more("p");
    scene.compile();
    assert_eq!(scene.closed("p"), None);
}

#[test]
fn a_router_is_believed_and_missed_for_callers_that_it_may_have_served() {
    let scopes = |scope: &str| Subscription::from_scopes([scope]).unwrap();
    let (of_p, of_q) = (scopes("caller:east/ops/pod-p"), scopes("caller:east/ops/pod-q"));
    for (router, counts) in [
        (&of_p, true),
        (&of_q, false),
        (&scopes("caller:west/ops/pod-p"), false),
        (&scopes("shard:ops/any"), true),
        (&scopes("shard:elsewhere/a"), false),
    ] {
        let mut scene = Scene::new();
        scene.renews_by(router, "p", ("a", "op---a"));
        scene.fleet.caller("east", "p", "b");
        scene.compile();
        assert_eq!(scene.closed("p").is_some(), counts, "{router:?}");
    }
    for (router, counts) in [
        (&of_p, true),
        (&of_q, false),
        (&scopes("shard:ops/a"), true),
        (&scopes("shard:ops/b"), false),
    ] {
        let mut scene = Scene::new();
        scene.holders.untold.add(router);
        scene.fleet.caller("east", "p", "b");
        scene.compile();
        assert_eq!(scene.closed("p").is_some(), counts, "{router:?}");
    }
    // Where it was before that counts too.
    let mut scene = Scene::new();
    scene.fleet.apply("c", of("c", "ns-c", &elects()));
    scene.holders.untold.add(&scopes("shard:ops/a"));
    scene.fleet.caller("east", "p", "b");
    scene.compile();
    scene.pass(Duration::from_secs(10));
    scene.fleet.caller("east", "p", "c");
    scene.compile();
    assert_eq!(scene.closed("p"), Some(i64::try_from(LONGEST.as_secs()).unwrap() - 10));
}

#[test]
fn a_new_lock_is_closed_while_callers_of_the_shard_may_lead_by_another() {
    let mut scene = Scene::new();
    scene.renews("p", "a", "op---a");
    scene.compile();
    scene.fleet.delete("a");
    scene.compile();
    scene.fleet.apply("a2", of("a", "ns-a", &elects()));
    scene.compile();
    assert_eq!(scene.lock("a2"), Some(v1::LockState::Closed));
    assert_eq!(scene.closed("p"), Some(LASTS.into()));
    scene.fleet.restart();
    scene.holders = Holders {
        untold: Untold::everyone(),
        young: true,
        ..Holders::default()
    };
    scene.compile();
    assert_eq!(
        scene.lock("a2"),
        Some(v1::LockState::Closed),
        "a hub goes on where the last was"
    );
    scene.holders = Holders::default();
    scene.renews("p", "a", "op---a");
    scene.compile();
    assert_eq!(scene.lock("a2"), Some(v1::LockState::Closed));
    scene.no_more("p");
    scene.compile();
    assert_eq!(scene.lock("a2"), None, "whoever comes first leads");
    scene.fleet.caller("east", "q", "a");
    scene.renews("q", "b", "op---b");
    scene.compile();
    assert_eq!(
        scene.lock("a2"),
        Some(v1::LockState::Closed),
        "nobody has led there yet"
    );
    scene.no_more("q");
    scene.renews("p", "a2", "op---a2");
    scene.compile();
    scene.renews("q", "b", "op---b");
    scene.compile();
    assert_eq!(
        (scene.lock("a2"), scene.closed("q")),
        (None, Some(LASTS.into())),
        "p leads"
    );
}

#[test]
fn a_shard_made_anew_by_the_same_lock_goes_on_and_by_another_waits() {
    let mut scene = Scene::new();
    scene.renews("p", "a", "op---a");
    scene.compile();
    let made_anew = |scene: &mut Scene, uid: &str, controller: &serde_json::Value| {
        scene.fleet.delete("a");
        scene.compile();
        scene.fleet.apply("a", of("a", "ns-a", controller));
        scene.fleet.facts.shards.get_mut(&shard_name("a")).unwrap().uid = uid.to_owned();
        scene.compile();
        (scene.lock("a"), scene.closed("p"))
    };
    assert_eq!(made_anew(&mut scene, "again", &elects()), (None, None));
    let other = json!({"leaderElectionName": "other"});
    let waits = (Some(v1::LockState::Closed), Some(i64::from(LASTS)));
    assert_eq!(made_anew(&mut scene, "once more", &other), waits);
}

#[test]
fn a_place_that_changed_while_nobody_ran_is_closed_to_who_comes_back_too_soon() {
    let mut scene = Scene::new();
    scene.renews("p", "a", "op---a");
    scene.fleet.apply("a", of("nobody", "ns-a", &elects()));
    scene.compile();
    scene
        .fleet
        .apply("a", of("nobody", "ns-a", &json!({"leaderElectionName": "other"})));
    scene.compile();
    assert_eq!(scene.world.refusal("a"), None);
    scene
        .fleet
        .apply("a", of("a", "ns-a", &json!({"leaderElectionName": "other"})));
    scene.compile();
    assert_eq!(scene.lock("a"), Some(v1::LockState::Closed));
    assert_eq!(
        scene.closed("p"),
        None,
        "nobody else can lead: what it writes harms nobody"
    );
    scene.no_more("p");
    scene.compile();
    assert_eq!(scene.lock("a"), Some(v1::LockState::Open));
}

#[test]
fn a_promotion_moves_no_caller_and_closes_nothing() {
    let mut fleet = Fleet::new(&["ns-a", "ns-b"]);
    fleet.caller("east", "p", "op");
    let root = |percent: u32| ShardingConfigSpec {
        root: serde_json::from_value(json!({
            "prefix": "op", "targetStatefulSet": "op",
            "canary": {"replicas": 1, "percent": percent},
            "auto": {"shardingSize": 2, "everyShardReplicas": 1},
        }))
        .ok(),
        controller: serde_json::from_value(elects()).unwrap(),
        ..spec(&[("east", &["ns-a", "ns-b"])])
    };
    for percent in [10, 25, 50] {
        fleet.apply("root", root(percent));
        let world = fleet.compile(Released {
            holders: Arc::new(Holders {
                untold: Untold::everyone(),
                ..Holders::default()
            }),
            ..Released::default()
        });
        let views = callers_of(&world);
        assert!(views.into_iter().all(|(_, present)| present.closed_until.is_none()));
        let closed = |accepted: &Accepted| accepted.lock.vacancy == Some(portolan_crds::ledger::Vacancy::Closed);
        assert!(!world.state.accepted.values().any(closed));
    }
}
