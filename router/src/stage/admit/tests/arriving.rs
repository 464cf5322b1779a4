//! Those whose callers are not known yet: who waits for whom.

use futures::future::{pending, ready};

use super::super::arrive::Arrived;
use super::*;

#[tokio::test(start_paused = true)]
async fn reviews_are_shared_by_the_tenants_that_tokens_are_of() {
    let admit = admit(1_000);
    let (east, [many, few]) = (Arc::from("east"), ["ns/many", "ns/few"].map(Arc::from));
    let review = async |member: &Arc<str>, tenant: &Arc<str>| admit.review(member, tenant, pending()).await;
    let mut held = Vec::new();
    while let Some(permit) = review(&east, &many).now_or_never() {
        held.push(permit.unwrap());
    }
    assert_eq!(held.len(), 64 - 8, "an eighth is kept for others");
    review(&east, &few).await.expect("who is another's is served");
    review(&"west".into(), &many).await.expect("and another member");
    let mut next = Box::pin(review(&east, &many));
    let mut of_few: Vec<_> = (0..9).map(|_| Box::pin(review(&east, &few))).collect();
    assert!((&mut next).now_or_never().is_none());
    let served = of_few
        .iter_mut()
        .filter_map(futures::FutureExt::now_or_never)
        .collect::<Vec<_>>();
    assert_eq!(served.len(), 8);
    drop(held.split_off(47));
    let last = of_few.last_mut().unwrap().now_or_never();
    assert!(matches!(last, Some(Ok(_))), "it came last, and has fewest");
    for _ in 0..8 {
        let lease = admit.review(&east, &many, ready(())).now_or_never();
        held.push(lease.expect("Leases have a reserve").unwrap());
    }
    drop((next, of_few, served, last));
    while let Some(permit) = review(&east, &many).now_or_never() {
        held.push(permit.unwrap());
    }
    let waited = Instant::now();
    let refused = review(&east, &many).await;
    assert!(matches!(refused, Err(Fault::TooManyRequests { .. })));
    assert!(waited.elapsed() >= Duration::from_secs(10), "it waits before");
    drop(held);
    assert_eq!(admit.reviews.len(), 0);
}

#[tokio::test]
async fn those_who_wait_for_one_member_leave_room_for_those_of_others() {
    let admit = waiting(80, 32);
    let arrive = |member: &str, tenant: &str, lease| arrive(&admit, (member, tenant), if lease { LEASE } else { PODS });
    let held: Vec<_> = (0..64).map_while(|_| arrive("east", "ns/many", false).ok()).collect();
    assert_eq!(held.len(), 16 - 2, "a half, of which one tenant has seven eighths");
    assert!(arrive("east", "ns/many", false).is_err());
    assert!(arrive("east", "ns/few", false).is_ok(), "another tenant");
    assert!(arrive("east", "ns/many", true).is_ok(), "Leases have a reserve");
    assert!(arrive("west", "ns/many", false).is_ok(), "another member");
    let all = i64::try_from(held.len() * Waiting::of_head(0).memory()).unwrap();
    assert_eq!(admit.metrics.waiting.get(), all);
    drop(held);
    assert_eq!((admit.metrics.waiting.get(), admit.arrivals.members()), (0, 0));
}

fn arrive(admit: &Admit, (member, tenant): (&str, &str), path: &str) -> Result<Arrived, Fault> {
    admit.arrive(&Arrival {
        member: &member.into(),
        tenant: &tenant.into(),
        head: 0,
        asked: &asked(path),
    })
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_and_are_known_keep_nobody_from_being_known() {
    let admit = waiting(4, 16);
    let mut held = Vec::new();
    let mut waits = Vec::new();
    for user in ["ada", "grace"] {
        held.push(ask(&admit, user, PODS, Life::Unary, 32 << 20).await.unwrap());
        for _ in 0..16 {
            let mut one = Box::pin(ask(&admit, user, PODS, Life::Unary, 1));
            if (&mut one).now_or_never().is_none() {
                waits.push(one);
            }
        }
    }
    assert_eq!(waits.len(), 12 + 2, "all but what is kept for who has none");
    let known = waits.len();
    let arrived: Vec<_> = (0..16)
        .map_while(|_| arrive(&admit, ("east", "ns/new"), PODS).ok())
        .collect();
    assert_eq!(arrived.len(), 8 - 1, "as if nobody else waited");
    let waiting = i64::try_from((known + arrived.len()) * Waiting::of_head(0).memory()).unwrap();
    assert_eq!(admit.metrics.waiting.get(), waiting);
}

#[tokio::test]
async fn an_overloaded_router_has_nobody_reviewed_whom_it_would_shed() {
    let load = Load::default();
    let admit = Admit::new(Limits::default(), load.clone(), AdmitMetrics::default());
    let (one, lock) = (format!("{PODS}/one"), "/api/v1/namespaces/ns/configmaps/leader");
    for (in_use, served) in [
        (0.5, [true, true, true, true]),
        (0.82, [false, true, true, true]),
        (1.1, [false, false, true, true]),
    ] {
        load.set_memory(in_use);
        for (path, served) in [PODS, &one, lock, LEASE].into_iter().zip(served) {
            let arrived = arrive(&admit, ("east", "ns/shard"), path);
            assert_eq!(arrived.is_ok(), served, "{path} at {in_use}");
        }
    }
}
