//! Whose failures open what: several shards behind one breaker.

use std::sync::Arc;

use portolan_wire::v1;

use super::*;
use crate::value::snapshot::told::{self, upsert};
use crate::value::snapshot::{Caller, Snapshot};

/// Replica `pod` of the operator of shard `ops/<shard>`.
fn caller(shard: &str, pod: &str) -> Caller {
    let config = format!("ops/{shard}");
    let view = told::CallerView {
        created_unix_seconds: None,
        writes_closed: None,
        policies: Vec::new(),
        home_cluster: "east".into(),
        pod_uid: pod.into(),
        namespace: "ops".into(),
        pod: pod.into(),
        service_account: shard.into(),
        shards: vec![config],
        shard: Some(told::Shard {
            rules: v1::Shard {
                primary_cluster: "east".into(),
                label_prefix: "ctrlmesh.kusionstack.io/".into(),
                ..v1::Shard::default()
            },
            members: vec![told::MemberGrant {
                cluster: "east".into(),
                all_namespaces: true,
                ..told::MemberGrant::default()
            }],
        }),
    };
    let snapshot = upsert(&Snapshot::default(), "1", view.bodies()).snapshot;
    Caller::Pod(snapshot.callers.values().next().unwrap().clone())
}

fn person() -> Caller {
    named("ada")
}

fn named(user: &str) -> Caller {
    Caller::Person {
        user: user.to_owned(),
        groups: Vec::new(),
    }
}

fn breaker() -> Arc<Breaker> {
    let settings = Settings {
        consecutive_failures: 3,
        ..settings()
    };
    Breaker::new(settings, tokio::sync::watch::Sender::new(0))
}

/// One request of the caller's that ends so; whether it was let through.
fn ask(breaker: &Arc<Breaker>, caller: &Caller, outcome: Outcome) -> bool {
    ask_as(breaker, (caller, Probe::Telling), outcome)
}

fn ask_as(breaker: &Arc<Breaker>, (caller, probe): (&Caller, Probe), outcome: Outcome) -> bool {
    let pass = breaker.admit(Some(caller), probe);
    pass.map(|pass| pass.record(outcome)).is_ok()
}

#[test]
fn a_callers_own_failures_open_a_breaker_for_it_alone() {
    let breaker = breaker();
    let (mallory, sister, bob) = (caller("green", "m"), caller("green", "s"), caller("blue", "b"));
    for _ in 0..3 {
        assert!(ask(&breaker, &bob, Outcome::Success));
        assert!(ask(&breaker, &mallory, Outcome::Failure));
    }
    let refused = breaker.admit(Some(&mallory), Probe::Telling).unwrap_err();
    assert!(refused.reason.contains("this caller alone"), "{refused:?}");
    assert_eq!(breaker.refused_callers().len(), 1);
    assert_eq!(breaker.report().state, State::Closed);
    for other in [&bob, &sister, &person()] {
        assert!(ask(&breaker, other, Outcome::Success));
    }
    assert!(breaker.admit(None, Probe::Telling).is_ok(), "the router's own");
    assert!(
        breaker.admit(Some(&mallory), Probe::Lease).is_err(),
        "its lease has a probe in a while"
    );
}

#[test]
fn half_of_the_shards_see_it_or_nobody_gets_through() {
    let (green, blue, red) = (caller("green", "g"), caller("blue", "b"), caller("red", "r"));
    let seen = breaker();
    assert!(ask(&seen, &red, Outcome::Success));
    assert!(ask(&seen, &green, Outcome::Failure));
    assert!(ask(&seen, &green, Outcome::Failure));
    for _ in 0..3 {
        assert_eq!(seen.report().state, State::Closed);
        assert!(ask(&seen, &blue, Outcome::Slow));
    }
    assert!(!ask(&seen, &red, Outcome::Success), "two of three");
    let unreachable = breaker();
    for caller in [&green, &blue, &green] {
        assert!(ask(&unreachable, caller, Outcome::Unreachable));
    }
    assert!(!ask(&unreachable, &red, Outcome::Success));
    assert!(unreachable.admit(None, Probe::Telling).is_err());
    assert!(unreachable.refused_callers().is_empty());
}

/// One who writes has its own webhooks, in as many shards as it has.
#[test]
fn writes_that_hang_open_it_for_nobody_else() {
    let (one, two, bob) = (caller("green", "g"), caller("blue", "b"), caller("red", "r"));
    for second in [&two, &person()] {
        for probe in [Probe::Write, Probe::Doubtful, Probe::Lease, Probe::OtherLease] {
            for silent in [Outcome::TimedOut, Outcome::Slow] {
                let breaker = breaker();
                for _ in 0..9 {
                    ask_as(&breaker, (&one, probe), silent);
                    ask_as(&breaker, (second, probe), silent);
                }
                assert_eq!(breaker.report().state, State::Closed, "{probe:?} {silent:?}");
                // Nor are they half of the shards that see one read of somebody's fail.
                for _ in 0..9 {
                    ask(&breaker, &caller("grey", "y"), silent);
                }
                assert_eq!(breaker.report().state, State::Closed, "{probe:?} {silent:?}");
                assert!(ask(&breaker, &bob, Outcome::Success));
                let own = breaker.refused_callers().len();
                assert_eq!(own > 1, silent == Outcome::TimedOut, "each has its own: {own}");
            }
        }
    }
}

#[test]
fn people_are_one_tenant_each() {
    let breaker = breaker();
    for user in ["ada", "grace", "mary"] {
        assert!(ask(&breaker, &named(user), Outcome::Success));
    }
    let green = caller("green", "g");
    for _ in 0..9 {
        ask(&breaker, &green, Outcome::Failure);
        ask(&breaker, &named("eve"), Outcome::Slow);
    }
    assert_eq!(breaker.report().state, State::Closed, "two of five");
    let alone = self::breaker();
    for _ in 0..3 {
        assert!(ask(&alone, &named("eve"), Outcome::Slow), "nobody else is there");
    }
    assert!(!ask(&alone, &named("eve"), Outcome::Success));
    assert!(ask(&alone, &named("ada"), Outcome::Success));
}

#[test]
fn what_only_one_shard_knows_keeps_no_other_out() {
    let breaker = breaker();
    let (mallory, bob) = (caller("green", "m"), caller("blue", "b"));
    for _ in 0..3 {
        assert!(ask(&breaker, &mallory, Outcome::Slow), "nobody else is there");
    }
    assert_eq!(breaker.report().state, State::Open);
    assert!(!ask(&breaker, &mallory, Outcome::Success));
    // The first request of another finds out, and so do many at once.
    let at_once: Vec<_> = (0..9)
        .map(|_| breaker.admit(Some(&bob), Probe::Telling).unwrap())
        .collect();
    for pass in at_once {
        pass.record(Outcome::Success);
    }
    assert_eq!(breaker.report().state, State::Closed);
    for _ in 0..9 {
        assert!(ask(&breaker, &mallory, Outcome::Slow), "slow speaks against no caller");
    }
    assert_eq!(breaker.report().state, State::Closed, "one of two");
    let agreed = self::breaker();
    for _ in 0..3 {
        ask(&agreed, &mallory, Outcome::Failure);
    }
    assert!(ask(&agreed, &bob, Outcome::Unreachable));
    assert!(!ask(&agreed, &bob, Outcome::Success), "now it is known of two");
}

#[test]
fn what_the_member_says_of_itself_does_not_make_it_everybodys() {
    let breaker = breaker();
    let (mallory, bob) = (caller("green", "m"), caller("blue", "b"));
    for _ in 0..3 {
        assert!(ask(&breaker, &mallory, Outcome::Failure), "nobody else is there");
    }
    assert_eq!(
        breaker.readyz(Readyz::Ready, Duration::ZERO).unwrap().to,
        State::HalfOpen
    );
    let _probe = breaker.admit(Some(&mallory), Probe::Telling).unwrap();
    let _others: Vec<_> = (0..9)
        .map(|_| breaker.admit(Some(&bob), Probe::Telling).unwrap())
        .collect();
    let gone = self::breaker();
    for _ in 0..3 {
        ask(&gone, &mallory, Outcome::Failure);
    }
    gone.readyz(Readyz::Ready, Duration::ZERO).unwrap();
    gone.unreachable().unwrap();
    assert!(!ask(&gone, &bob, Outcome::Success), "nobody gets through");
}

#[test]
fn callers_that_are_gone_are_forgotten() {
    let now = Instant::now();
    let breaker = breaker();
    let mallory = caller("green", "m");
    assert!(ask(&breaker, &caller("blue", "b"), Outcome::Success));
    for _ in 0..3 {
        assert!(ask(&breaker, &mallory, Outcome::Failure));
    }
    assert_eq!(breaker.refused_callers().len(), 1);
    let mut own = opened(now);
    assert!(!own.is_quiet(now + OPEN_FOR), "it may come again");
    assert!(own.is_quiet(now + OPEN_FOR + MAX_OPEN_FOR));
}

#[test]
fn answers_to_one_do_not_keep_those_waiting_whom_the_member_fails() {
    let breaker = breaker();
    let (quick, blue, red) = (caller("green", "g"), caller("blue", "b"), caller("red", "r"));
    for _ in 0..4 {
        assert!(ask(&breaker, &quick, Outcome::Success));
        ask(&breaker, &blue, Outcome::TimedOut);
        assert!(ask(&breaker, &quick, Outcome::Success));
        ask(&breaker, &red, Outcome::TimedOut);
    }
    assert_eq!(breaker.report().state, State::Closed);
    for waiting in [&blue, &red] {
        assert!(!ask(&breaker, waiting, Outcome::Success), "it is told at once");
    }
    assert!(ask(&breaker, &quick, Outcome::Success));
    let agreed = self::breaker();
    assert!(ask(&agreed, &quick, Outcome::Success));
    for asking in [&blue, &blue, &red, &blue] {
        assert!(ask(&agreed, asking, Outcome::TimedOut));
    }
    assert_eq!(agreed.refused_callers().len(), 1);
    assert!(ask(&agreed, &red, Outcome::TimedOut));
    assert_eq!(agreed.report().state, State::Open);
    assert!(
        agreed.refused_callers().is_empty(),
        "all are refused, nobody for longer"
    );
}

/// What lags, and is slow.
const LONG: Duration = Duration::from_millis(20);

/// How long this router itself takes for a look at `/readyz`, and how late its timers are.
#[derive(Clone, Copy, Default)]
struct Own {
    look: Duration,
    late: Duration,
}

/// A window of requests of these callers, of which those of the first `lagging` take long.
async fn window_of(callers: &[Caller], lagging: usize, own: Own) -> Report {
    let settings = Settings {
        window: Duration::from_millis(100),
        min_requests: 4,
        slow: LONG,
        ..settings()
    };
    let breaker = Breaker::new(settings, tokio::sync::watch::Sender::new(0));
    breaker.learn(Duration::from_millis(1));
    let end = Instant::now() + Duration::from_millis(300);
    while Instant::now() < end && breaker.report().state == State::Closed {
        for (index, caller) in callers.iter().enumerate() {
            let Ok(mut pass) = breaker.admit(Some(caller), Probe::Telling) else {
                break;
            };
            let time = if index < lagging {
                LONG
            } else {
                Duration::from_millis(1)
            };
            pass.took(Took { time, late: own.late }, Size::Small);
            pass.record(Outcome::Success);
        }
        if breaker.wants_readyz() {
            breaker.readyz(Readyz::Ready, own.look);
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    breaker.report()
}

#[tokio::test]
async fn those_who_still_wait_show_a_slow_member() {
    let settings = Settings {
        window: Duration::from_millis(100),
        min_requests: 4,
        slow: LONG,
        ..settings()
    };
    let breaker = Breaker::new(settings, tokio::sync::watch::Sender::new(0));
    let took = |time| Took {
        time,
        late: Duration::ZERO,
    };
    let long = took(LONG);
    let (green, blue) = (caller("green", "g"), caller("blue", "b"));
    let mut early = breaker.admit(Some(&green), Probe::Telling).unwrap();
    assert_eq!(early.waits(long), None, "no pace is known");
    breaker.learn(Duration::from_millis(1));
    let mut waiting: Vec<_> = [&green, &blue, &green, &blue, &green]
        .map(|caller| breaker.admit(Some(caller), Probe::Telling).unwrap())
        .into();
    let mut last = waiting.pop().unwrap();
    for pass in &mut waiting {
        assert_eq!(
            (pass.waits(took(Duration::from_millis(19))), pass.waits(long)),
            (None, None)
        );
    }
    tokio::time::sleep(settings.window * 2).await;
    // Those who went away wait no more.
    waiting.truncate(1);
    assert_eq!(last.waits(long), None);
    assert_eq!(early.waits(long), None);
    tokio::time::sleep(settings.window / 2).await;
    let mut more: Vec<_> = [&green, &blue]
        .map(|caller| breaker.admit(Some(caller), Probe::Telling).unwrap())
        .into();
    assert!(
        more.iter_mut().all(|pass| pass.waits(long).is_none()),
        "four now, but not for long"
    );
    tokio::time::sleep(settings.window / 2).await;
    let mut once_more = breaker.admit(Some(&green), Probe::Telling).unwrap();
    let transition = once_more.waits(long).unwrap();
    assert_eq!(
        (transition.to, transition.why.word()),
        (State::Open, "slower-than-itself")
    );
}

#[tokio::test]
async fn a_slow_member_is_one_that_half_of_the_shards_find_slow() {
    let callers = [caller("green", "g"), caller("blue", "b"), caller("red", "r")];
    let window_of = async |count, lagging| window_of(&callers[..count], lagging, Own::default()).await;
    let report = window_of(3, 2).await;
    assert!(report.reason.contains("several times as long"), "{report:?}");
    assert_eq!(window_of(3, 1).await.state, State::Closed, "one of three");
    assert_eq!(window_of(3, 0).await.state, State::Closed);
}

#[tokio::test]
async fn one_shard_alone_finds_a_member_slow_that_is_slow_to_say_it_is_ready() {
    let alone = [caller("green", "g")];
    for (look, state) in [(LONG / 2, State::Closed), (LONG, State::Open)] {
        let own = Own { look, ..Own::default() };
        assert_eq!(window_of(&alone, 1, own).await.state, state, "{look:?}");
    }
}

#[tokio::test]
async fn a_router_that_is_late_itself_finds_nobody_slow() {
    let callers = [caller("green", "g"), caller("blue", "b")];
    for (late, state) in [(LONG / 10, State::Open), (LONG / 9, State::Closed)] {
        let own = Own { late, ..Own::default() };
        assert_eq!(window_of(&callers, 2, own).await.state, state, "{late:?}");
    }
}
