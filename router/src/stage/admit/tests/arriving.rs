//! Those whose callers are not known yet: who waits for whom.

use futures::future::{pending, ready};

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
        .filter_map(|one| one.now_or_never())
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
    let admit = waiting(80, 64);
    let arrive = |member: &str, tenant: &str, lease| {
        admit.arrive(&Arrival {
            member: &member.into(),
            tenant: &tenant.into(),
            head: 0,
            lease,
        })
    };
    let held: Vec<_> = (0..64).map_while(|_| arrive("east", "ns/many", false).ok()).collect();
    assert_eq!(held.len(), 16 - 2, "a quarter, of which one tenant has seven eighths");
    assert!(arrive("east", "ns/many", false).is_err());
    assert!(arrive("east", "ns/few", false).is_ok(), "another tenant");
    assert!(arrive("east", "ns/many", true).is_ok(), "Leases have a reserve");
    assert!(arrive("west", "ns/many", false).is_ok(), "another member");
    let all = i64::try_from(held.len() * Waiting::of_head(0).memory()).unwrap();
    assert_eq!(admit.metrics.waiting.get(), all);
    drop(held);
    assert_eq!((admit.metrics.waiting.get(), admit.arrivals.members()), (0, 0));
}
