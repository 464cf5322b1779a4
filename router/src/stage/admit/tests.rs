//! Bounds by themselves, without sockets; what they are worth to others is tested at the `edge`.

mod arriving;
mod waiting;

use std::sync::LazyLock;
use std::time::Duration;

use futures::FutureExt as _;
use http::request::Parts;
use http::{HeaderMap, Method, Request};

use super::*;
use crate::resource::policies::tests as policies;
use crate::value::classify::{ApiRequest, classify};
use crate::value::snapshot::CallerView;

#[tokio::test]
async fn lists_are_shed_before_watches_before_single_requests_and_leases_never() {
    let load = Load::default();
    let admit = Admit::new(Limits::default(), load.clone(), AdmitMetrics::default());
    let watch = format!("{PODS}?watch=true");
    let one = format!("{PODS}/one");
    let asked = [
        (PODS, Life::Unary),
        (&watch, Life::of_fan(true)),
        (&one, Life::Unary),
        (LEASE, Life::Unary),
    ];
    for (in_use, served) in [
        (0.5, [true, true, true, true]),
        (0.82, [false, true, true, true]),
        (0.9, [false, false, true, true]),
        (1.1, [false, false, false, true]),
    ] {
        load.set_memory(in_use);
        for ((path, life), served) in asked.into_iter().zip(served) {
            let admission = Admission {
                caller: &person("ada"),
                asked: &self::asked(path),
                life,
                head: no_head(),
                bytes: 0,
                room: None,
                deadline: Instant::now() + Duration::from_secs(1),
                kept: None,
                judging: None,
            };
            match admit.admit(&admission).await {
                Ok(_) => assert!(served, "{path} at {in_use}"),
                Err(fault) => {
                    assert!(!served, "{path} at {in_use}: {fault}");
                    assert!(
                        fault.retry_after_seconds().is_some() && fault.to_string().contains("memory"),
                        "{fault}"
                    );
                }
            }
        }
    }
}

/// Whichever connection it comes over, a caller has what it may have once; it is kept while a connection has it.
#[tokio::test]
async fn what_a_connection_keeps_is_the_callers_over_all_of_them() {
    let admit = admit(4);
    let (ada, bob, asked) = (person("ada"), person("bob"), asked(PODS));
    let [one, other] = [(); 2].map(|()| KeptBounds::default());
    let admission = |caller, kept| Admission {
        deadline: Instant::now(),
        kept,
        ..unary(caller, &asked)
    };
    let first = admit.admit(&admission(&ada, Some(&one))).await.unwrap();
    let second = admit.admit(&admission(&ada, Some(&other))).await.unwrap();
    for kept in [Some(&one), Some(&other), None] {
        assert!(admit.admit(&admission(&ada, kept)).await.is_err(), "half of four");
    }
    assert!(
        admit.admit(&admission(&bob, Some(&one))).await.is_ok(),
        "a connection of several callers"
    );
    drop(first);
    assert!(admit.admit(&admission(&ada, Some(&one))).await.is_ok());
    drop(second);
    assert_eq!(admit.callers.len(), 1);
    drop((one, other));
    assert_eq!(admit.callers.len(), 0);
}

/// A request that policies judge, with a minute to wait.
fn judged<'a>(
    world: &'a policies::World,
    (caller, view): (&'a Caller, &'a CallerView),
    asked: &'a ApiRequest,
) -> Admission<'a> {
    let judging = Judging {
        view,
        asked: crate::decision::policy::asked(asked, &["east"], false),
        generation: 1,
    };
    Admission {
        deadline: Instant::now() + Duration::from_mins(1),
        judging: Some((&world.policies, judging)),
        ..unary(caller, asked)
    }
}

/// Who is over a limit waits in no queue; but what is shed anyway takes none of its tokens.
#[tokio::test]
async fn limits_come_after_shedding_and_before_everything_else() {
    let world = policies::World::new(&[policies::limit("all", "LimiterOnly", 1, 1)]);
    let load = Load::default();
    let admit = Admit::new(Limits::default(), load.clone(), AdmitMetrics::default());
    let (view, asked) = (world.view("1"), asked(PODS));
    let caller = Caller::Pod(view.clone());
    let admission = judged(&world, (&caller, &view), &asked);
    load.set_memory(1.1);
    for _ in 0..3 {
        let shed = admit.admit(&admission).await;
        assert!(matches!(shed, Err(Fault::TooManyRequests { .. })), "{shed:?}");
    }
    // Another one: what sheds does so for a while.
    let calm = Admit::new(Limits::default(), Load::default(), AdmitMetrics::default());
    assert!(calm.admit(&admission).await.is_ok());
    assert!(matches!(calm.admit(&admission).await, Err(Fault::Policy(_))));
}

/// Who is refused by what comes after limits, or whose client goes while it waits for that, takes none of their tokens.
#[tokio::test]
async fn what_goes_no_further_gives_its_tokens_back() {
    let world = policies::World::new(&[policies::limit("all", "LimiterOnly", 3, 0)]);
    let admit = admit(4);
    let (view, asked) = (world.view("1"), asked(PODS));
    let caller = Caller::Pod(view.clone());
    let admission = judged(&world, (&caller, &view), &asked);
    let held = [
        admit.admit(&admission).await.unwrap(),
        admit.admit(&admission).await.unwrap(),
    ];
    for _ in 0..5 {
        let mut waits = Box::pin(admit.admit(&admission));
        assert!((&mut waits).now_or_never().is_none());
        let refused = admit.admit(&admission).await;
        assert!(
            matches!(refused, Err(Fault::Policy(_))),
            "one that waits has taken its own"
        );
    }
    let late = Admission {
        deadline: Instant::now(),
        ..admission
    };
    for _ in 0..5 {
        let refused = admit.admit(&late).await;
        assert!(matches!(refused, Err(Fault::TooManyRequests { .. })), "{refused:?}");
    }
    drop(held);
    assert!(admit.admit(&late).await.is_ok());
    assert!(matches!(admit.admit(&late).await, Err(Fault::Policy(_))));
}

#[tokio::test]
async fn a_late_router_sheds_from_who_has_many_streams_too() {
    let load = Load::default();
    let admit = Admit::new(Limits::default(), load.clone(), AdmitMetrics::default());
    let mut streams = Vec::new();
    for user in ["many", "many", "many", "few"] {
        let watch = format!("{PODS}?watch=true");
        streams.push(ask(&admit, user, &watch, Life::of_fan(true), 0).await.unwrap());
    }
    load.set_late(Duration::from_millis(900));
    for (user, served) in [("many", false), ("few", true), ("nobody yet", true)] {
        assert_eq!(is_served(&admit, user).await, served, "{user}");
    }
}

#[tokio::test]
async fn whose_streams_are_like_the_others_pays_for_nobodys_flood() {
    let load = Load::default();
    let admit = Admit::new(Limits::default(), load.clone(), AdmitMetrics::default());
    let mut held = Vec::new();
    for user in ["floods", "quiet", "other"] {
        let watch = format!("{PODS}?watch=true");
        held.push(ask(&admit, user, &watch, Life::of_fan(true), 0).await.unwrap());
    }
    for user in ["floods", "floods", "floods", "quiet"] {
        held.push(ask(&admit, user, PODS, Life::Unary, 0).await.unwrap());
    }
    load.set_late(Duration::from_millis(900));
    for (user, served) in [("floods", false), ("quiet", true), ("other", true)] {
        assert_eq!(is_served(&admit, user).await, served, "{user}");
    }
}

/// Whether one more request of the user's is not shed.
async fn is_served(admit: &Admit, user: &str) -> bool {
    let (caller, asked) = (person(user), asked(PODS));
    admit.admit(&unary(&caller, &asked)).await.is_ok()
}

fn admit(requests: usize) -> Arc<Admit> {
    waiting(requests, 1_000)
}

/// Where so many requests of known callers may wait, as small as they can be, and as many of others.
fn waiting(requests: usize, waiters: usize) -> Arc<Admit> {
    let limits = Limits {
        requests,
        streams: 4,
        waiting: 2 * waiters * Waiting::of_head(0).memory(),
    };
    Admit::new(limits, Load::default(), AdmitMetrics::default())
}

fn person(user: &str) -> Caller {
    Caller::Person {
        user: user.to_owned(),
        groups: Vec::new(),
    }
}

fn asked(path: &str) -> ApiRequest {
    classify(&Method::GET, &path.parse().unwrap(), &HeaderMap::new()).unwrap()
}

/// Of a request that takes nothing but itself.
fn no_head() -> &'static Parts {
    static HEAD: LazyLock<Parts> = LazyLock::new(|| {
        let mut head = Request::new(()).into_parts().0;
        // An authority alone has no path.
        head.uri = http::Uri::from_static("nowhere");
        head
    });
    &HEAD
}

/// A request with a second to wait, that nobody judges.
fn unary<'a>(caller: &'a Caller, asked: &'a ApiRequest) -> Admission<'a> {
    Admission {
        caller,
        asked,
        life: Life::Unary,
        head: no_head(),
        bytes: 0,
        room: None,
        deadline: Instant::now() + Duration::from_secs(1),
        kept: None,
        judging: None,
    }
}

async fn ask(admit: &Admit, user: &str, path: &str, life: Life, bytes: u32) -> Result<Admitted, Bound> {
    let (caller, asked) = (person(user), asked(path));
    let admission = Admission {
        life,
        bytes,
        ..unary(&caller, &asked)
    };
    admit.checks(&admission).await
}

const PODS: &str = "/api/v1/namespaces/ns/pods";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/leader";

#[tokio::test(start_paused = true)]
async fn one_caller_takes_half_and_waits_for_the_rest() {
    let admit = admit(8);
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(ask(&admit, "ada", PODS, Life::Unary, 0).await.unwrap());
    }
    let begun = Instant::now();
    assert_eq!(ask(&admit, "ada", PODS, Life::Unary, 0).await.unwrap_err(), Bound::Time);
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "it waits no longer than its deadline"
    );
    for _ in 0..3 {
        held.push(ask(&admit, "grace", PODS, Life::Unary, 0).await.unwrap());
    }
    let fourth = ask(&admit, "grace", PODS, Life::Unary, 0).await;
    assert_eq!(
        fourth.unwrap_err(),
        Bound::Time,
        "the last place is kept for who has none"
    );
    held.push(ask(&admit, "joan", PODS, Life::Unary, 0).await.unwrap());
    let waited = ask(&admit, "alan", PODS, Life::Unary, 0).await;
    assert_eq!(waited.unwrap_err(), Bound::Time);
    for user in ["ada", "joan"] {
        held.push(ask(&admit, user, LEASE, Life::Unary, 100).await.unwrap());
    }
    drop(held);
    assert_eq!(admit.callers.len(), 0, "nothing is kept of callers without requests");
}

#[tokio::test(start_paused = true)]
async fn bytes_are_the_callers_own_and_what_waits_unread_is_bounded() {
    const LARGE: u32 = 8 << 20;
    let admit = admit(1_000);
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(ask(&admit, "ada", PODS, Life::Unary, LARGE).await.unwrap());
    }
    let mut waiting: Vec<_> = (0..8)
        .map(|_| Box::pin(ask(&admit, "ada", PODS, Life::Unary, LARGE)))
        .collect();
    assert!(waiting.iter_mut().all(|one| one.now_or_never().is_none()));
    let refused = ask(&admit, "ada", PODS, Life::Unary, 1).await;
    assert_eq!(refused.unwrap_err(), Bound::Bytes);
    ask(&admit, "ada", PODS, Life::Unary, 0)
        .await
        .expect("a read has no bytes");
    ask(&admit, "ada", LEASE, Life::Unary, 1_000)
        .await
        .expect("a Lease waits for none");
    ask(&admit, "grace", PODS, Life::Unary, LARGE)
        .await
        .expect("others have their own");
    drop(held.pop());
    let first = waiting.remove(0);
    first.await.expect("in order");
}

#[tokio::test(start_paused = true)]
async fn a_body_takes_what_it_is_long_once_it_is_gathered() {
    const UNKNOWN: u32 = 8 << 20;
    let admit = admit(1_000);
    let mut first = ask(&admit, "ada", PODS, Life::Unary, UNKNOWN).await.unwrap();
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(ask(&admit, "ada", PODS, Life::Unary, UNKNOWN).await.unwrap());
    }
    let mut waits = Box::pin(ask(&admit, "ada", PODS, Life::Unary, UNKNOWN));
    assert!((&mut waits).now_or_never().is_none());
    first.asked(&Body::from(bytes::Bytes::from_static(b"{}")));
    assert!((&mut waits).now_or_never().is_none(), "two bytes are still there");
    first.asked(&Body::Empty);
    waits.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_bodies_of_all_callers_are_bounded() {
    const LARGE: u32 = 8 << 20;
    let admit = admit(1_000);
    let mut held = Vec::new();
    for number in 0..32 {
        let user = (number / 4).to_string();
        held.push(ask(&admit, &user, PODS, Life::Unary, LARGE).await.unwrap());
    }
    let late = ask(&admit, "ada", PODS, Life::Unary, 1).await;
    assert_eq!(late.unwrap_err(), Bound::Time);
    ask(&admit, "ada", PODS, Life::Unary, 0)
        .await
        .expect("a read has no bytes");
    drop(held.pop());
    ask(&admit, "ada", PODS, Life::Unary, LARGE).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_caller_takes_three_quarters_of_what_may_wait_whatever_for() {
    let admit = waiting(40, 16);
    let _all = ask(&admit, "ada", PODS, Life::Unary, 32 << 20).await.unwrap();
    let _unary = futures::future::join_all((0..19).map(|_| ask(&admit, "ada", PODS, Life::Unary, 0))).await;
    let bytes = |number| u32::from(number < 6);
    let mut waiting: Vec<_> = (0..12)
        .map(|number| Box::pin(ask(&admit, "ada", PODS, Life::Unary, bytes(number))))
        .collect();
    assert!(waiting.iter_mut().all(|one| one.now_or_never().is_none()));
    let refused = ask(&admit, "ada", PODS, Life::Unary, 1).now_or_never();
    assert_eq!(refused.expect("not let wait").unwrap_err(), Bound::Caller);
    waiting.pop();
    let again = ask(&admit, "ada", PODS, Life::Unary, 1).now_or_never();
    assert!(again.is_none(), "one who went left its place");
}

#[tokio::test(start_paused = true)]
async fn requests_that_wait_are_bounded_over_all_callers() {
    let admit = waiting(8, 8);
    let mut held = Vec::new();
    for user in ["ada", "grace", "joan", "mary", "rosa"] {
        held.push(ask(&admit, user, PODS, Life::Unary, 32 << 20).await.unwrap());
    }
    // The last place is kept for who has none.
    let mut waiting: Vec<_> = ["ada", "ada", "grace", "grace", "joan", "joan", "mary"]
        .into_iter()
        .map(|user| Box::pin(ask(&admit, user, PODS, Life::Unary, 1)))
        .collect();
    assert!(waiting.iter_mut().all(|one| one.now_or_never().is_none()));
    let mut last = Box::pin(ask(&admit, "rosa", PODS, Life::Unary, 1));
    let refused = ask(&admit, "mary", PODS, Life::Unary, 1).now_or_never();
    assert_eq!(refused.unwrap().unwrap_err(), Bound::Queue);
    assert!((&mut last).now_or_never().is_none(), "it waits");
    let refused = ask(&admit, "rosa", PODS, Life::Unary, 1).now_or_never();
    assert_eq!(refused.unwrap().unwrap_err(), Bound::Queue);
}

#[tokio::test(start_paused = true)]
async fn streams_are_counted_apart_and_hold_a_request_while_they_ask() {
    let admit = waiting(2, 0);
    let stream = Life::of_one(true);
    let mut exec = ask(&admit, "ada", PODS, stream, 0).await.unwrap();
    assert_eq!(
        ask(&admit, "ada", PODS, Life::Unary, 0).await.unwrap_err(),
        Bound::Queue
    );
    exec.asked(&Body::from(bytes::Bytes::from_static(b"{}")));
    let full = ask(&admit, "ada", PODS, Life::Unary, 0).await;
    assert_eq!(full.unwrap_err(), Bound::Queue, "what was gathered is still here");
    exec.asked(&Body::Empty);
    let _unary = ask(&admit, "ada", PODS, Life::Unary, 0).await.unwrap();
    let _watch = ask(&admit, "ada", PODS, Life::of_fan(true), 0).await.unwrap();
    let over = ask(&admit, "ada", PODS, Life::of_fan(true), 0).await;
    assert_eq!(over.unwrap_err(), Bound::CallerStreams);
    ask(&admit, "grace", PODS, Life::of_fan(true), 0).await.unwrap();
}
