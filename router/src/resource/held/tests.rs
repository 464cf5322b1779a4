//! What a router knows of the locks that its callers renewed, and what it tells the hub of them.

use portolan_wire::v1;

use super::*;
use crate::value::snapshot::{Snapshot, told};

fn caller(pod: &str) -> CallerKey {
    CallerKey {
        home_cluster: "east".into(),
        pod_uid: pod.into(),
    }
}

/// Of a caller of shard `a`, whose lock is `op---a` in east.
fn renewal(lock: &str, of_election: bool) -> Renewal {
    Renewal {
        lock: HeldLock {
            cluster: "east".to_owned(),
            resource: "leases".to_owned(),
            name: lock.to_owned(),
            of_election,
        },
        shard: "ops/a".into(),
        shard_uid: "uid-a".into(),
        is_beside: !of_election,
        lasts: Some(Duration::from_secs(15)),
        is_released: false,
    }
}

/// The caller in a shard of this name and uid, whose lock is `op---<shard>` in `primary`, if it has one.
fn view(shard: &str, uid: &str, (primary, lock): (&str, &str)) -> Arc<CallerView> {
    let view = told::CallerView {
        home_cluster: "east".to_owned(),
        pod_uid: "p".to_owned(),
        namespace: "ops".to_owned(),
        pod: "p".to_owned(),
        service_account: "op".to_owned(),
        shards: vec![format!("ops/{shard}")],
        shard: Some(told::Shard {
            rules: v1::Shard {
                uid: uid.to_owned(),
                primary_cluster: primary.to_owned(),
                leader_election_name: lock.to_owned(),
                label_prefix: "ctrlmesh.kusionstack.io/".to_owned(),
                bucketing: Some(portolan_crds::Bucketing::default().into()),
                ..v1::Shard::default()
            },
            members: vec![told::MemberGrant {
                cluster: "east".to_owned(),
                ..told::MemberGrant::default()
            }],
        }),
        ..told::CallerView::default()
    };
    let applied = told::upsert(&Snapshot::default(), "1", view.bodies());
    assert!(applied.rejected.is_empty(), "{:?}", applied.rejected);
    applied.snapshot.callers[&caller("p")].clone()
}

#[tokio::test(start_paused = true)]
async fn what_a_caller_renewed_counts_until_it_has_run_out_and_only_in_another_shard() {
    let held = HeldLocks::default();
    held.renewed(caller("p"), renewal("op---a", true));
    let elsewhere = |shard, uid, lock| held.elsewhere(&view(shard, uid, lock)).is_some();
    assert!(!elsewhere("a", "uid-a", ("east", "op")), "its own shard");
    assert!(
        !elsewhere("a", "uid-a", ("west", "op")),
        "its own shard, whose lock is handed over"
    );
    assert!(elsewhere("b", "uid-b", ("east", "op")));
    assert!(!elsewhere("a", "uid-2", ("east", "op")), "made anew, by the same lock");
    assert!(elsewhere("a", "uid-2", ("west", "op")), "made anew, by another");
    assert!(
        !elsewhere("b", "uid-b", ("east", "")),
        "it elects nobody, as far as routers know"
    );
    let told = held.elsewhere(&view("b", "uid-b", ("east", "op"))).unwrap();
    assert!(
        told.reason.contains("leases/op---a") && told.reason.contains("ops/a"),
        "{}",
        told.reason
    );
    tokio::time::advance(Duration::from_secs(19)).await;
    held.renewed(caller("q"), renewal("op---a", true));
    assert!(elsewhere("b", "uid-b", ("east", "op")));
    tokio::time::advance(Duration::from_secs(2)).await;
    assert!(
        !elsewhere("b", "uid-b", ("east", "op")),
        "15 s and 5 for clocks are over"
    );
    assert_eq!(held.told().0.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_was_released_is_not_held_and_nothing_counts_for_longer_than_the_hub_says() {
    let held = HeldLocks::default();
    let lasts = || held.told().0.into_values().collect::<Vec<_>>();
    held.renewed(
        caller("p"),
        Renewal {
            lasts: None,
            ..renewal("op---a", true)
        },
    );
    assert_eq!(lasts(), [180], "nobody knows for how long");
    held.renewed(caller("p"), renewal("op---a", true));
    held.renewed(
        caller("p"),
        Renewal {
            lasts: None,
            ..renewal("op---a", true)
        },
    );
    assert_eq!(lasts(), [20], "what left it out did not change it");
    let long = Some(Duration::from_hours(1));
    held.renewed(
        caller("p"),
        Renewal {
            lasts: long,
            ..renewal("op---a", true)
        },
    );
    assert_eq!(lasts(), [180]);
    held.set_longest(8);
    held.set_longest(0);
    assert_eq!(lasts(), [8]);
    held.renewed(
        caller("p"),
        Renewal {
            is_released: true,
            ..renewal("op---a", true)
        },
    );
    assert!(lasts().is_empty());
}

#[test]
fn what_was_renewed_of_late_is_told_and_bounded_by_caller() {
    let held = HeldLocks::default();
    let lease = |name: usize| OtherLease {
        shard: "ops/a".to_owned(),
        name: name.to_string(),
    };
    let begun = Instant::now();
    let renew = |pod: &str, name: usize, now: u64| {
        let at = (begun + Duration::from_secs(now), i64::try_from(now).unwrap());
        held.renewed_at(caller(pod), renewal(&name.to_string(), false), at);
    };
    renew("a", 1, 100);
    renew("a", 2, 200);
    renew("a", 1, 210);
    renew("b", 1, 205);
    assert_eq!(held.beside_at(330), [(lease(1), 210)].into());
    let lock = Renewal {
        is_beside: false,
        ..renewal("op---a", true)
    };
    held.renewed_at(caller("a"), lock, (begun + Duration::from_mins(5), 300));
    for name in 0..1_000 {
        renew("a", name, 400);
    }
    assert_eq!(held.beside_at(400).len(), MOST);
    let of_a = held.callers.get(&caller("a")).unwrap();
    assert!(
        of_a.iter().any(|held| held.renewal.lock.of_election),
        "other Leases do not push the lock out"
    );
    drop(of_a);
    renew("a", 1, 401);
    renew("b", 2_000, 401);
    let late = held.beside_at(401);
    assert_eq!(late.get(&lease(1)), Some(&401));
    assert_eq!(late.get(&lease(2_000)), Some(&401), "whatever others do");
}
