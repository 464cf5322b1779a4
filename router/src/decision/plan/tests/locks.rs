//! Locks that a ConfigMap or Endpoints carries, and what would delete locks of any kind.

use super::*;

const MAPS: &str = "/api/v1/namespaces/ops/configmaps";

/// The callers' own namespace is home's, and the primary is `primary`.
fn world(lock: &str, primary: &str) -> World {
    let mut shard = two();
    shard.rules.lock_resource = lock.into();
    shard.rules.primary_cluster = primary.into();
    World::new(shard)
}

#[test]
fn a_config_map_carries_the_lock_where_the_shard_says_so() {
    world("configmaps", "east").check(&[
        (&format!("GET {MAPS}/op"), "leader-election → east lease:op---blue"),
        (&format!("PUT {MAPS}/op"), "leader-election → east lease:op---blue"),
        (&format!("PATCH {MAPS}/op"), "leader-election → east lease:op---blue"),
        (&format!("DELETE {MAPS}/op"), "leader-election → east lease:op---blue"),
        (&format!("POST {MAPS}"), "own-namespace ? home, east by lease op"),
        (
            &format!("GET {MAPS}?fieldSelector=metadata.name=op"),
            "leader-election ⇒ east lease:op---blue",
        ),
        (
            &format!("GET {MAPS}?watch&fieldSelector=metadata.name=op"),
            "leader-election ⇒ east lease:op---blue",
        ),
        (
            "GET /api/v1/watch/namespaces/ops/configmaps/op",
            "leader-election ⇒ east lease:op---blue",
        ),
        (
            &format!("DELETE {MAPS}?fieldSelector=metadata.name=op"),
            "leader-election → east lease:op---blue",
        ),
        // All others are whose they were.
        (&format!("GET {MAPS}/other"), "own-namespace → home"),
        (&format!("GET {MAPS}"), "own-namespace ⇒ home"),
        (&format!("DELETE {MAPS}"), "own-namespace → home"),
        ("GET /api/v1/namespaces/ns-a/configmaps/op", "owned-namespace → east"),
        ("GET /api/v1/namespaces/ops/endpoints/op", "own-namespace → home"),
        // A Lease of the name is the election's all the same.
        (&format!("PUT {LEASES}/op"), "leader-election → east lease:op---blue"),
    ]);
    world("", "east").check(&[
        (&format!("GET {MAPS}/op"), "own-namespace → home"),
        (&format!("POST {MAPS}"), "own-namespace → home"),
    ]);
    world("endpoints", "east").check(&[
        (
            "PUT /api/v1/namespaces/ops/endpoints/op",
            "leader-election → east lease:op---blue",
        ),
        (&format!("PUT {MAPS}/op"), "own-namespace → home"),
    ]);
}

#[test]
fn a_collection_shows_the_lock_by_its_own_name() {
    world("configmaps", "home").check(&[
        (&format!("GET {MAPS}"), "own-namespace ⇒ home shown:op"),
        (&format!("GET {MAPS}?watch"), "own-namespace ⇒ home shown:op"),
        (
            &format!("GET {MAPS}?fieldSelector=metadata.name=other"),
            "own-namespace ⇒ home",
        ),
    ]);
}

#[test]
fn locks_are_not_deleted_by_the_dozen() {
    for all in [
        "",
        "?labelSelector=",
        "?labelSelector=!app",
        "?labelSelector=app!=x",
        "?labelSelector=ctrlmesh.kusionstack.io/namespace=ops",
        "?labelSelector=ctrlmesh.kusionstack.io/control=true,app!=x",
        "?labelSelector=ctrlmesh.kusionstack.io/sharding-hash",
    ] {
        let (maps, leases) = (format!("DELETE {MAPS}{all}"), format!("DELETE {LEASES}{all}"));
        let world = world("configmaps", "home");
        world.check(&[(&maps, "leader-election ✗ 403"), (&leases, "leader-election ✗ 403")]);
        assert!(
            world.fault(&maps).to_string().contains("delete op by its name"),
            "{all}"
        );
    }
    world("configmaps", "home").check(&[
        (&format!("DELETE {MAPS}?labelSelector=app=x"), "own-namespace → home"),
        (&format!("DELETE {LEASES}?labelSelector=app"), "other-lease → home"),
        (
            &format!("DELETE {LEASES}?fieldSelector=metadata.name=other"),
            "other-lease → home",
        ),
        (
            &format!("DELETE {LEASES}?fieldSelector=metadata.name=op"),
            "leader-election → home lease:op---blue",
        ),
    ]);
}

/// What keeps other ConfigMaps from being made (their namespace is leaving the shard, their member is cordoned) does not
/// keep the lock from being made.
#[test]
fn what_stops_other_objects_does_not_stop_the_election() {
    let mut shard = two();
    shard.rules.lock_resource = "configmaps".into();
    let world = World::of(vec!["ops/blue".into()], Some(shard), |target| {
        target.cordoned = target.cluster == "home";
    });
    let Plan::Choose(choose) = world.plan(&world.pod(), &format!("POST {MAPS}"), &[]).plan else {
        panic!("the body tells");
    };
    let held: Vec<_> = choose.candidates.iter().map(|one| one.held.is_some()).collect();
    assert_eq!(held, [true, false]);
    assert!(choose.candidates[1].forward.is_priority());
}

/// Nor does what keeps the lock from being made (its primary was withdrawn) keep others from it.
#[test]
fn what_stops_the_election_does_not_stop_other_objects() {
    let world = withdrawn::withdrawn(world("configmaps", "east"), &["east"]);
    let Plan::Choose(choose) = world.plan(&world.pod(), &format!("POST {MAPS}"), &[]).plan else {
        panic!("the body tells");
    };
    let held: Vec<_> = choose.candidates.iter().map(|one| one.held.clone()).collect();
    assert!(held[0].is_none() && *choose.candidates[0].forward.target.cluster == *"home");
    assert!(held[1].as_ref().is_some_and(|why| why.contains("east was withdrawn")));
}

/// A Pod that owns its lock must be seen by the garbage collector of the member that has the lock.
#[test]
fn the_owner_of_a_lock_is_looked_for() {
    let asks = |request: &str| {
        world("configmaps", "east")
            .forward(request)
            .needs
            .contains(&Need::Owners)
    };
    assert!(asks(&format!("PUT {MAPS}/op")));
    assert!(asks(&format!("PUT {LEASES}/op")));
}

/// A lock that is on its way from east (of name `op-before`) to west.
fn moving(state: v1::LockState, former: &str) -> World {
    World::new(moving_shard(state, former))
}

fn moving_shard(state: v1::LockState, former: &str) -> told::Shard {
    let mut shard = two();
    shard.rules.primary_cluster = "west".into();
    shard.rules.lock_resource = "configmaps".into();
    shard.rules.lock = Some(v1::Lock {
        generation: 3,
        state: state.into(),
        from: Some(v1::LockPlace {
            cluster: "east".into(),
            leader_election_name: "op-before".into(),
            lock_resource: "endpoints".into(),
        }),
        former_name: former.into(),
    });
    shard
}

#[test]
fn a_lock_on_its_way_is_used_nowhere() {
    for state in [v1::LockState::Closed, v1::LockState::Unspecified] {
        moving(state, "op-before").check(&[
            (&format!("GET {LEASES}/op"), "lock-closed ✗ 503"),
            (&format!("PUT {LEASES}/op"), "lock-closed ✗ 503"),
            (&format!("PUT {LEASES}/op-before"), "lock-closed ✗ 503"),
            (&format!("POST {LEASES}"), "lock-closed ✗ 503"),
            (&format!("PUT {LEASES}/other"), "lock-closed ✗ 503"),
            (&format!("PUT {MAPS}/op"), "lock-closed ✗ 503"),
            ("PUT /api/v1/namespaces/ops/endpoints/op", "lock-closed ✗ 503"),
            (&format!("PUT {MAPS}/other"), "own-namespace → home"),
        ]);
    }
}

#[test]
fn a_lock_that_was_brought_is_used_by_both_names() {
    moving(v1::LockState::Bringing, "op-before").check(&[
        (
            &format!("PUT {LEASES}/op"),
            "leader-election → west lease:op---blue lock:east",
        ),
        (
            &format!("PUT {LEASES}/op-before"),
            "leader-election → west lease:op---blue lock:east",
        ),
        ("PUT /api/v1/namespaces/ops/endpoints/op", "own-namespace → home"),
    ]);
    moving(v1::LockState::Open, "op-before").check(&[
        (&format!("PUT {LEASES}/op"), "leader-election → west lease:op---blue"),
        (
            &format!("GET {LEASES}/op-before"),
            "leader-election → west lease:op---blue",
        ),
    ]);
    moving(v1::LockState::Open, "").check(&[(
        &format!("GET {LEASES}/op-before"),
        "other-lease ? west, home by lease op",
    )]);
}

/// As by its present one: held where the election is, and not because others are.
#[test]
fn the_lock_is_made_by_its_former_name_where_it_is_by_its_present_one() {
    let held = |world: &World| {
        let Plan::Choose(choose) = world.plan(&world.pod(), &format!("POST {MAPS}"), &[]).plan else {
            panic!("the body tells");
        };
        let By::Lease(lease) = &choose.by else { panic!("a lock") };
        assert_eq!(lease.former.as_deref(), Some("op-before"));
        let held = choose.candidates.iter().map(|one| one.held.is_some());
        held.collect::<Vec<_>>()
    };
    assert_eq!(held(&moving(v1::LockState::Open, "op-before")), [false, false, false]);
    assert_eq!(held(&moving(v1::LockState::Closed, "op-before")), [false, true, true]);
    let cordoned = World::of(
        vec!["ops/blue".into()],
        Some(moving_shard(v1::LockState::Open, "op-before")),
        |target| {
            target.cordoned = target.cluster == "home";
        },
    );
    assert_eq!(held(&cordoned), [true, false, false]);
}

#[test]
fn who_may_lead_another_shard_reads_and_asks_and_writes_nothing() {
    let world = world("configmaps", "east");
    let Caller::Pod(view) = world.pod() else {
        unreachable!("it is one")
    };
    let view = CallerView {
        held_elsewhere: Some(HeldElsewhere {
            until_unix_seconds: 7,
            reason: "it renewed leases/op---green in member cluster east".into(),
        }),
        ..CallerView::clone(&view)
    };
    let caller = Caller::Pod(Arc::new(view));
    let refused = "shard-changed ✗ 429";
    let review = "POST /apis/authentication.k8s.io/v1/tokenreviews";
    for (request, expected) in [
        (&format!("GET {MAPS}/op"), "leader-election → east lease:op---blue"),
        (
            &"GET /api/v1/namespaces/ns-a/pods/p".to_owned(),
            "owned-namespace → east",
        ),
        (&review.to_owned(), "review ? east, west, home by body"),
        (&format!("PUT {MAPS}/op"), refused),
        (&format!("PUT {LEASES}/op"), refused),
        (&"POST /api/v1/namespaces/ns-a/pods".to_owned(), refused),
        (&"DELETE /api/v1/namespaces/ns-a/pods".to_owned(), refused),
        (&"GET /api/v1/namespaces/ns-a/pods/p/exec?command=x".to_owned(), refused),
        (&"POST /api/v1/namespaces".to_owned(), refused),
        (&"PATCH /api/v1/nodes/n".to_owned(), refused),
    ] {
        assert_eq!(say(&world.plan(&caller, request, &[])), expected, "{request}");
    }
    let Plan::Refuse(fault) = world.plan(&caller, "POST /api/v1/namespaces/ns-a/pods", &[]).plan else {
        panic!("it is refused")
    };
    let text = fault.to_string();
    assert!(
        text.contains("operator-0") && text.contains("ops/blue") && text.contains("op---green"),
        "{text}"
    );
    assert_eq!(fault.retry_after_seconds(), Some(1), "nothing was sent");
}
