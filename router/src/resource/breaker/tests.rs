//! Laws of the breaker, by example and by random histories.

mod askers;
mod by_hand;
mod history;

use std::time::Instant;

use super::core::{Admission, Core, Ticket};
use super::lag::Lag;
use super::*;

const PROBES: [Probe; 5] = [
    Probe::Telling,
    Probe::Write,
    Probe::Doubtful,
    Probe::Lease,
    Probe::OtherLease,
];

fn settings() -> Settings {
    Settings::default()
}

fn pass(core: &mut Core, now: Instant, probe: Probe) -> Ticket {
    match core.admit(now, probe).0 {
        Admission::Pass(ticket) => ticket,
        Admission::Refuse { .. } => panic!("refused"),
    }
}

fn refused(core: &mut Core, now: Instant, probe: Probe) -> bool {
    matches!(core.admit(now, probe).0, Admission::Refuse { .. })
}

/// An answer that lags, or does not, where nobody doubts whose fault that is.
fn paced(core: &mut Core, lags: bool, now: Instant) -> Option<Transition> {
    opens(core.paced(lags, now, 1.0, || true))
}

fn opens(lag: Lag) -> Option<Transition> {
    match lag {
        Lag::Opens(transition) => Some(transition),
        Lag::No | Lag::Unsure => None,
    }
}

/// A breaker opened by answers that lag; and when it was.
fn opened_for_lag(now: Instant) -> (Core, Instant) {
    let (mut core, mut at) = (Core::new(settings()), now);
    while core.state() == State::Closed {
        paced(&mut core, true, at);
        at += Duration::from_millis(100);
    }
    (core, at)
}

/// A breaker opened by failures in a row at `now`.
fn opened(now: Instant) -> Core {
    opened_by(Outcome::Failure, now)
}

fn opened_by(outcome: Outcome, now: Instant) -> Core {
    let mut core = Core::new(settings());
    for _ in 0..CONSECUTIVE_FAILURES {
        let ticket = pass(&mut core, now, Probe::Telling);
        core.record(ticket, outcome, now, 1.0);
    }
    assert_eq!(core.state(), State::Open);
    core
}

#[test]
fn failures_in_a_row_open_it_and_a_success_between_does_not() {
    let now = Instant::now();
    let mut core = Core::new(settings());
    for round in 0..4 {
        for _ in 0..CONSECUTIVE_FAILURES - 1 {
            let ticket = pass(&mut core, now, Probe::Telling);
            assert_eq!(core.record(ticket, Outcome::Failure, now, 0.0), None, "round {round}");
        }
        let ticket = pass(&mut core, now, Probe::Telling);
        core.record(ticket, Outcome::Success, now, 0.0);
        if round == 2 {
            break; // three rounds are 12 failures of 15 requests: under the minimum volume
        }
    }
    assert_eq!(core.state(), State::Closed);
    opened(now);
}

#[test]
fn ratio_opens_it_at_volume_only() {
    let now = Instant::now();
    let mut core = Core::new(settings());
    let mut transition = None;
    for request in 0..MIN_REQUESTS {
        assert_eq!(core.state(), State::Closed, "after {request}");
        let outcome = if request % 2 == 0 {
            Outcome::Success
        } else {
            Outcome::Failure
        };
        let ticket = pass(&mut core, now, Probe::Telling);
        transition = core.record(ticket, outcome, now, 0.0);
    }
    let why = transition.unwrap().why.to_string();
    assert_eq!(why, "10 of 20 requests failed");
}

#[test]
fn window_forgets() {
    let mut now = Instant::now();
    let mut core = Core::new(settings());
    for request in 0..200 {
        // One request a second: never twenty within ten seconds.
        now += Duration::from_secs(1);
        let outcome = if request % 2 == 0 {
            Outcome::Success
        } else {
            Outcome::Failure
        };
        let ticket = pass(&mut core, now, Probe::Telling);
        core.record(ticket, outcome, now, 0.0);
    }
    assert_eq!(core.state(), State::Closed);
}

#[test]
fn neutral_outcomes_change_nothing() {
    let now = Instant::now();
    let mut core = Core::new(settings());
    for _ in 0..1000 {
        let ticket = pass(&mut core, now, Probe::Telling);
        assert_eq!(core.record(ticket, Outcome::Neutral, now, 0.0), None);
    }
    assert_eq!(core.state(), State::Closed);
}

#[test]
fn half_open_lets_one_probe_decide() {
    let now = Instant::now();
    let mut core = opened(now);
    assert!(refused(&mut core, now + OPEN_FOR / 2, Probe::Telling));
    let later = now + OPEN_FOR;
    let probe = pass(&mut core, later, Probe::Telling);
    assert_eq!(core.state(), State::HalfOpen);
    assert!(refused(&mut core, later, Probe::Telling), "a second probe");
    let transition = core.record(probe, Outcome::Success, later, 0.0).unwrap();
    assert_eq!((transition.from, transition.to), (State::HalfOpen, State::Closed));
    pass(&mut core, later, Probe::Telling);
}

#[test]
fn what_may_hang_by_who_asks_keeps_nobody_from_telling() {
    let now = Instant::now();
    let mut core = opened(now);
    let later = now + OPEN_FOR;
    let hanging = pass(&mut core, later, Probe::Doubtful);
    assert!(refused(&mut core, later, Probe::Doubtful), "one at a time");
    let probe = pass(&mut core, later, Probe::Telling);
    core.record(probe, Outcome::Success, later, 0.0);
    assert_eq!(core.state(), State::Closed);
    assert_eq!(core.record(hanging, Outcome::TimedOut, later, 0.0), None);
    let mut core = opened(now);
    pass(&mut core, later, Probe::Doubtful);
    let write = pass(&mut core, later, Probe::Write);
    assert!(refused(&mut core, later, Probe::Write), "one write at a time");
    core.record(write, Outcome::Success, later, 0.0);
    assert_eq!(core.state(), State::Closed, "nor writes");
    let mut core = opened(now);
    pass(&mut core, later, Probe::Doubtful);
    assert_eq!(core.recover(later, false).unwrap().to, State::Closed, "nor others");
    let mut core = opened(now);
    let probe = pass(&mut core, later, Probe::Doubtful);
    assert_eq!(
        core.record(probe, Outcome::Success, later, 0.0).unwrap().to,
        State::Closed
    );
}

#[test]
fn a_probe_that_hangs_is_waited_for_two_seconds() {
    let now = Instant::now();
    for kind in PROBES {
        let mut core = opened(now);
        let (began, next) = (now + OPEN_FOR, now + OPEN_FOR + PROBE_ALONE);
        let hanging = pass(&mut core, began, kind);
        assert!(refused(&mut core, began + PROBE_ALONE / 2, kind));
        let second = pass(&mut core, next, kind);
        assert_eq!(core.record(hanging, Outcome::Neutral, next, 0.0), None);
        assert!(refused(&mut core, next, kind), "its end frees no other's place");
        core.record(second, Outcome::Success, next, 0.0).unwrap();
    }
}

#[test]
fn a_probe_that_is_given_up_frees_its_place() {
    let now = Instant::now();
    let mut core = opened(now);
    let later = now + OPEN_FOR;
    let probe = pass(&mut core, later, Probe::Telling);
    assert_eq!(core.record(probe, Outcome::Neutral, later, 0.0), None);
    pass(&mut core, later, Probe::Telling);
}

#[test]
fn open_time_grows_to_its_maximum_and_starts_over_after_a_quiet_time() {
    let mut now = Instant::now();
    let mut core = opened(now);
    for expected in [5, 10, 20, 40, 60, 60] {
        let wait = Duration::from_secs(expected);
        assert!(
            refused(
                &mut core,
                now + wait.saturating_sub(Duration::from_millis(1)),
                Probe::Telling
            ),
            "{wait:?}"
        );
        now += wait;
        let probe = pass(&mut core, now, Probe::Telling);
        core.record(probe, Outcome::Failure, now, 1.0);
        assert_eq!(core.state(), State::Open);
    }
    now += MAX_OPEN_FOR;
    let probe = pass(&mut core, now, Probe::Telling);
    core.record(probe, Outcome::Success, now, 1.0);
    now += MAX_OPEN_FOR;
    for _ in 0..CONSECUTIVE_FAILURES {
        let ticket = pass(&mut core, now, Probe::Telling);
        core.record(ticket, Outcome::Failure, now, 1.0);
    }
    pass(&mut core, now + OPEN_FOR, Probe::Telling);
}

#[test]
fn leases_have_their_own_probe_and_need_not_wait_out_the_open_time() {
    let now = Instant::now();
    let mut core = opened(now);
    assert!(refused(&mut core, now + Duration::from_secs(1), Probe::Lease));
    let probe = pass(&mut core, now + LEASE_PROBE_EVERY, Probe::Lease);
    assert!(
        refused(&mut core, now + LEASE_PROBE_EVERY, Probe::Lease),
        "one at a time"
    );
    assert_eq!(core.record(probe, Outcome::Failure, now + LEASE_PROBE_EVERY, 0.0), None);
    assert_eq!(core.state(), State::Open);
    let probe = pass(&mut core, now + 2 * LEASE_PROBE_EVERY, Probe::Lease);
    core.record(probe, Outcome::Success, now + 2 * LEASE_PROBE_EVERY, 0.0);
    assert_eq!(core.state(), State::Closed);

    let mut core = opened(now);
    let slow = pass(&mut core, now + OPEN_FOR, Probe::Telling);
    let lease = pass(&mut core, now + OPEN_FOR, Probe::Lease);
    core.record(lease, Outcome::Success, now + OPEN_FOR, 0.0);
    assert_eq!(core.state(), State::Closed);
    assert_eq!(
        core.record(slow, Outcome::Failure, now + OPEN_FOR, 0.0),
        None,
        "of an earlier state"
    );
}

#[test]
fn leases_that_are_no_elections_take_no_turn_of_those_that_are() {
    let now = Instant::now();
    let mut core = opened(now);
    let due = now + LEASE_PROBE_EVERY;
    assert!(refused(&mut core, now, Probe::OtherLease));
    let other = pass(&mut core, due, Probe::OtherLease);
    assert!(refused(&mut core, due, Probe::OtherLease), "one at a time");
    pass(&mut core, due, Probe::Lease);
    core.record(other, Outcome::Success, due, 0.0).unwrap();
    let mut core = opened(now);
    pass(&mut core, now + OPEN_FOR, Probe::OtherLease);
    pass(&mut core, now + OPEN_FOR, Probe::Lease);
    pass(&mut core, now + OPEN_FOR, Probe::Write);
}

/// A member that is slow, or whose lists hang, renews leases all the same.
#[test]
fn an_answered_renewal_says_nothing_of_what_is_slow() {
    let now = Instant::now();
    let (slower, at) = opened_for_lag(now);
    let hangs = opened_by(Outcome::TimedOut, now);
    for (mut core, opened, for_reads) in [(slower, at, true), (hangs, now, false)] {
        let soon = opened + LEASE_PROBE_EVERY;
        let renewals = [(); 9].map(|()| pass(&mut core, soon, Probe::Lease));
        assert_eq!(core.refuses(soon, Probe::Lease), None);
        for renewal in renewals {
            assert_eq!(core.record(renewal, Outcome::Success, soon, 0.0), None);
        }
        let other = pass(&mut core, soon, Probe::OtherLease);
        let second = refused(&mut core, soon, Probe::OtherLease);
        assert!(second != for_reads, "anybody may write them");
        assert_eq!(core.record(other, Outcome::Success, soon, 0.0), None);
        assert!(refused(&mut core, soon, Probe::Telling));
        let late = pass(&mut core, soon, Probe::Lease);
        core.record(late, Outcome::Success, opened + OPEN_FOR, 0.0).unwrap();
        assert_eq!(core.state(), State::Closed, "its open time is over");
    }
    // What was not known to be gone.
    let mut core = opened_by(Outcome::TimedOut, now);
    let renewal = pass(&mut core, now, Probe::Lease);
    core.unreachable(now, 1.0);
    assert!(refused(&mut core, now, Probe::Lease));
    core.record(renewal, Outcome::Success, now, 0.0).unwrap();
    assert_eq!(core.state(), State::Closed);
}

#[test]
fn a_breaker_that_waits_for_a_probe_closes_when_the_member_answers_others() {
    let now = Instant::now();
    let mut core = opened(now);
    assert_eq!(core.recover(now + OPEN_FOR / 2, true), None, "its time is not over");
    assert_eq!(core.recover(now + OPEN_FOR, false).unwrap().to, State::Closed);
    assert_eq!(core.recover(now + OPEN_FOR, true), None);

    let mut core = opened(now);
    let probe = pass(&mut core, now + OPEN_FOR, Probe::Telling);
    assert_eq!(core.recover(now + OPEN_FOR, true), None, "the probe will tell");
    core.record(probe, Outcome::Neutral, now + OPEN_FOR, 0.0);
    assert_eq!(core.recover(now + OPEN_FOR, true).unwrap().to, State::Closed);

    let mut core = opened_by(Outcome::TimedOut, now);
    assert_eq!(
        core.recover(now + OPEN_FOR, false),
        None,
        "time-outs are its own kind's"
    );
    assert_eq!(core.recover(now + OPEN_FOR, true).unwrap().to, State::Closed);
}

#[test]
fn a_member_that_is_ready_ends_the_open_time_of_what_failed_and_not_of_what_was_slow() {
    let now = Instant::now();
    for outcome in [Outcome::Failure, Outcome::Unreachable] {
        for (found, why) in [
            (Readyz::Ready, Some("readyz")),
            (Readyz::Forbidden, Some("readyz-forbidden")),
            (Readyz::NotReady, None),
            (Readyz::Unreachable, None),
        ] {
            let mut core = opened_by(outcome, now);
            assert!(core.wants_readyz());
            let word = core.readyz(found).map(|transition| transition.why.word());
            assert_eq!(word, why, "{outcome:?} {found:?}");
            assert_eq!(refused(&mut core, now, Probe::Telling), why.is_none());
            assert!(refused(&mut core, now, Probe::Telling), "one request, not two");
        }
    }
    let mut core = opened_by(Outcome::TimedOut, now);
    assert!(!core.wants_readyz());
    assert_eq!(core.readyz(Readyz::Ready), None);
    assert!(refused(&mut core, now, Probe::Telling));
    assert_eq!(core.unreachable(now, 1.0), None, "open already");
    assert!(core.wants_readyz(), "but now it is known why nothing came");
}

/// A member that flaps would be away for all of an open time that has grown by it.
#[test]
fn a_way_that_broke_again_leaves_the_readyz_its_worth() {
    let now = Instant::now();
    let mut core = opened_by(Outcome::Unreachable, now);
    for _ in 0..10 {
        core.readyz(Readyz::Ready).unwrap();
        let probe = pass(&mut core, now, Probe::Telling);
        core.record(probe, Outcome::Unreachable, now, 1.0);
        assert!(
            refused(&mut core, now + OPEN_FOR, Probe::Telling),
            "open for longer by now"
        );
        assert!(core.wants_readyz());
    }
    core.readyz(Readyz::Ready).unwrap();
    let probe = pass(&mut core, now, Probe::Telling);
    core.record(probe, Outcome::Success, now, 1.0);
    assert_eq!(core.state(), State::Closed);
}

#[test]
fn a_readyz_that_was_wrong_counts_for_nothing_until_the_open_time_is_over() {
    let now = Instant::now();
    let mut core = opened(now);
    core.readyz(Readyz::Ready).unwrap();
    let probe = pass(&mut core, now, Probe::Telling);
    core.record(probe, Outcome::Failure, now, 1.0);
    assert_eq!((core.state(), core.wants_readyz()), (State::Open, false));
    assert_eq!(core.readyz(Readyz::Ready), None);
    let over = now + OPEN_FOR * 2;
    let probe = pass(&mut core, over, Probe::Telling);
    core.record(probe, Outcome::Failure, over, 1.0);
    assert!(core.wants_readyz());
}

#[test]
fn a_member_that_is_gone_opens_whatever_was_asked() {
    let now = Instant::now();
    let mut core = Core::new(settings());
    let before = pass(&mut core, now, Probe::Telling);
    assert_eq!(core.unreachable(now, 1.0).unwrap().why.word(), "unreachable");
    assert!(refused(&mut core, now, Probe::Telling));
    assert_eq!(
        core.record(before, Outcome::Success, now, 1.0),
        None,
        "of an earlier state"
    );
    assert!(core.wants_readyz());
    core.readyz(Readyz::Ready).unwrap();
    let probe = pass(&mut core, now, Probe::Telling);
    assert_eq!(core.unreachable(now, 1.0).unwrap().from, State::HalfOpen);
    assert_eq!(core.record(probe, Outcome::Success, now, 1.0), None);
    assert_eq!(core.state(), State::Open);
}

#[test]
fn a_dropped_pass_is_neutral_and_reports_follow() {
    let changes = tokio::sync::watch::Sender::new(0);
    let once = Settings {
        consecutive_failures: 1,
        open_for: Duration::ZERO,
        ..settings()
    };
    let breaker = Breaker::new(once, changes.clone());
    breaker.admit(None, Probe::Telling).unwrap().record(Outcome::Failure);
    assert_eq!(
        (breaker.report().state, breaker.report().reason.as_str()),
        (State::Open, "a failure")
    );
    let mut probe = breaker.admit(None, Probe::Telling).unwrap();
    assert_eq!(probe.began().unwrap().why.word(), "open-time-over");
    drop(probe);
    assert_eq!(breaker.report().state, State::HalfOpen);
    breaker.admit(None, Probe::Telling).unwrap().record(Outcome::Success);
    assert_eq!(
        (breaker.report().state, breaker.report().transitions.values().sum()),
        (State::Closed, 3_u64)
    );
    assert_eq!(*changes.borrow(), 3);
}

/// Ten answers a second, of which `lags` says which lag, for 30 s: when it opens.
fn opens_for_lag(lags: impl Fn(u32) -> bool) -> Option<Duration> {
    let start = Instant::now();
    let mut core = Core::new(settings());
    (0..300).find_map(|number| {
        let now = start + Duration::from_millis(100) * number;
        let transition = paced(&mut core, lags(number), now)?;
        assert_eq!(
            (transition.to, transition.why.word()),
            (State::Open, "slower-than-itself")
        );
        assert!(!core.wants_readyz(), "that it is ready says nothing of its pace");
        Some(now - start)
    })
}

/// Ten callers, who ask again when they are answered, five seconds later: two answers a second, all of which lag.
#[test]
fn what_still_waits_counts_where_there_are_few_answers() {
    let start = Instant::now();
    let mut core = Core::new(settings());
    let opened = (0..).find_map(|round| {
        let asked = start + Duration::from_secs(5) * round;
        let (waited, answered) = (asked + Duration::from_secs(2), asked + Duration::from_secs(5));
        let mut waiting = Vec::new();
        for _ in 0..9 {
            let (state, lag) = core.waits(waited, 1.0, || true);
            waiting.push(state);
            if let Some(transition) = opens(lag) {
                return Some((waited, transition));
            }
        }
        waiting.into_iter().find_map(|state| {
            core.waits_no_more(state);
            paced(&mut core, true, answered).map(|transition| (answered, transition))
        })
    });
    let (opened, transition) = opened.unwrap();
    assert_eq!(transition.why.word(), "slower-than-itself");
    assert!(opened - start < Duration::from_secs(20), "{:?}", opened - start);
    let mut answers = Core::new(settings());
    for number in 0..90 {
        paced(&mut answers, true, start + Duration::from_secs(5) * (number / 9));
    }
    assert_eq!(answers.state(), State::Closed, "answers alone are too few");
    let mut few = Core::new(settings());
    for at in 0..60 {
        few.waits(start + Duration::from_secs(at) / 4, 1.0, || true);
    }
    assert_eq!(few.state(), State::Open, "and if none is answered at all");
    let mut none = Core::new(settings());
    for at in 0..60 {
        let now = start + Duration::from_secs(at);
        let (state, lag) = none.waits(now, 1.0, || true);
        assert_eq!(lag, Lag::No);
        none.waits_no_more(state);
        paced(&mut none, false, now);
    }
}

#[test]
fn a_member_far_behind_its_own_pace_opens_and_one_that_pauses_does_not() {
    let opened = opens_for_lag(|_| true).unwrap();
    assert!(opened < Duration::from_secs(30), "{opened:?}");
    assert!(opens_for_lag(|number| number % 2 == 0).is_some());
    assert_eq!(opens_for_lag(|number| number % 100 == 0), None);
    assert_eq!(opens_for_lag(|number| number % 3 == 0), None);
    assert_eq!(
        opens_for_lag(|number| (100..140).contains(&number)),
        None,
        "a pause of 4 s"
    );
}

#[test]
fn open_for_slowness_it_is_open_for_reads_alone() {
    let (mut core, opened) = opened_for_lag(Instant::now());
    let without_pace = [Probe::Write, Probe::Doubtful, Probe::Lease, Probe::OtherLease];
    let over = opened + MAX_OPEN_FOR;
    for (at, state) in [(opened, State::Open), (over, State::HalfOpen)] {
        let mut probe = None;
        if state == State::HalfOpen {
            probe = Some(pass(&mut core, at, Probe::Telling));
        }
        assert!(core.state() == state && refused(&mut core, at, Probe::Telling));
        for kind in without_pace {
            assert_eq!(core.refuses(at, kind), None, "{kind:?}");
            let passed: Vec<_> = (0..CONSECUTIVE_FAILURES).map(|_| pass(&mut core, at, kind)).collect();
            for ticket in passed {
                assert_eq!(core.record(ticket, Outcome::Neutral, at, 1.0), None, "{kind:?}");
            }
        }
        let failed = probe.and_then(|probe| core.record(probe, Outcome::Failure, at, 1.0));
        assert_eq!(failed.is_some(), state == State::HalfOpen);
    }
    assert_eq!(core.state(), State::Open);
    assert!(
        refused(&mut core, over, Probe::Write),
        "it fails now, which concerns all"
    );
    let (mut gone, opened) = opened_for_lag(Instant::now());
    gone.unreachable(opened, 1.0);
    assert!(refused(&mut gone, opened, Probe::Write), "there is no way to it");
}

#[test]
fn who_is_not_sure_opens_nothing_and_asks() {
    let (mut core, mut now) = (Core::new(settings()), Instant::now());
    let mut asked = 0;
    for _ in 0..300 {
        now += Duration::from_millis(100);
        asked += u32::from(core.paced(true, now, 1.0, || false) == Lag::Unsure);
    }
    assert_eq!(core.state(), State::Closed);
    assert!(asked > 200, "{asked}");
    assert!(paced(&mut core, true, now).is_some());
}
