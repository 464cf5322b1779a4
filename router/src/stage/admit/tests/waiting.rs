//! Who waits: how many, with how much memory, and what that takes from others.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_waiter_is_served_when_there_is_room_and_too_many_are_not_let_wait() {
    let admit = waiting(4, 8);
    let held = [
        ask(&admit, "ada", PODS, Life::Unary, 0).await.unwrap(),
        ask(&admit, "ada", PODS, Life::Unary, 0).await.unwrap(),
    ];
    let mut waits: Vec<_> = (0..6)
        .map(|_| Box::pin(ask(&admit, "ada", PODS, Life::Unary, 0)))
        .collect();
    assert!(waits.iter_mut().all(|one| one.now_or_never().is_none()));
    let refused = ask(&admit, "ada", PODS, Life::Unary, 0).now_or_never();
    assert_eq!(refused.unwrap().unwrap_err(), Bound::Caller);
    drop(held);
    for one in waits {
        drop(one.await.unwrap());
    }
    assert_eq!(admit.metrics.waiting.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn who_waits_with_a_long_head_takes_more() {
    let admit = waiting(4, 4);
    let caller = person("ada");
    let held = [
        ask(&admit, "ada", PODS, Life::Unary, 0).await.unwrap(),
        ask(&admit, "ada", PODS, Life::Unary, 0).await.unwrap(),
    ];
    let asked = asked(PODS);
    let (head, ()) = Request::get(format!("/{}", "x".repeat(30 << 10)))
        .body(())
        .unwrap()
        .into_parts();
    let long = Admission {
        head: &head,
        ..unary(&caller, &asked)
    };
    let refused = admit.checks(&long).now_or_never();
    assert_eq!(refused.unwrap().unwrap_err(), Bound::Queue);
    drop(held);
    assert!(admit.checks(&long).await.is_ok(), "who need not wait takes nothing");
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_room_at_a_member_keeps_no_place_from_others() {
    let (admit, east) = (admit(2_000), Room::new("east".into()));
    let ask = async |user: &str, room: Option<&Room>| {
        let (caller, asked) = (person(user), asked(PODS));
        let admission = Admission {
            room,
            ..unary(&caller, &asked)
        };
        admit.checks(&admission).await
    };
    let mut held = Vec::new();
    for user in 0..3 {
        while let Some(admitted) = ask(&user.to_string(), Some(&east)).now_or_never() {
            held.push(admitted.unwrap());
        }
    }
    assert_eq!(held.len(), 1536 - 1536 / 8, "but for what is kept");
    let mut waits = Box::pin(ask("4", Some(&east)));
    for _ in 0..192 {
        held.push((&mut waits).now_or_never().expect("it was kept for such").unwrap());
        waits = Box::pin(ask("4", Some(&east)));
    }
    assert!((&mut waits).now_or_never().is_none(), "there is no room");
    assert_eq!(admit.shared.requests.held(), 1536, "and it takes nothing meanwhile");
    ask("4", None).await.expect("others' members are another matter");
    held.truncate(1535);
    held.remove(0);
    waits.await.expect("its turn");
}

#[tokio::test(start_paused = true)]
async fn who_has_much_waiting_at_a_slow_member_goes_on_at_others() {
    let admit = admit(2_000);
    let [east, west] = ["east", "west"].map(|cluster| Room::new(cluster.into()));
    let full = [("a", 512), ("b", 512), ("c", 320)].map(|(tenant, units)| east.permits.try_take(&tenant.into(), units));
    assert!(
        full.iter().all(Option::is_some),
        "nothing of it is left to who has some"
    );
    let (caller, asked) = (person("c"), asked(PODS));
    let ask = async |room| {
        let admission = Admission {
            room: Some(room),
            ..unary(&caller, &asked)
        };
        admit.checks(&admission).await
    };
    let _rest = east.permits.try_take(&caller.tenant(), 192);
    let mut waits: Vec<_> = (0..256).map(|_| Box::pin(ask(&east))).collect();
    assert!(waits.iter_mut().all(|one| one.now_or_never().is_none()));
    let over = ask(&east).now_or_never().expect("it is refused at once");
    assert_eq!(over.unwrap_err(), Bound::Caller);
    let served = (0..256).map(|_| ask(&west).now_or_never().expect("no wait").unwrap());
    let served: Vec<_> = served.collect();
    assert!(ask(&west).now_or_never().is_none(), "its bulkhead is full now");
    drop((full, served));
    for one in waits {
        one.await.expect("its turn");
    }
}
