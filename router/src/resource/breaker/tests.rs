//! Laws of the breaker, by example and by random histories.

mod askers;

use std::time::Instant;

use proptest::prelude::*;

use super::core::{Admission, Core, Ticket};
use super::*;

fn settings() -> Settings {
    Settings::default()
}

fn pass(core: &mut Core, now: Instant, lease: bool) -> Ticket {
    match core.admit(now, lease).0 {
        Admission::Pass(ticket) => ticket,
        Admission::Refuse { .. } => panic!("refused"),
    }
}

fn refused(core: &mut Core, now: Instant, lease: bool) -> bool {
    matches!(core.admit(now, lease).0, Admission::Refuse { .. })
}

/// A breaker opened by failures in a row at `now`.
fn opened(now: Instant) -> Core {
    let mut core = Core::new(settings());
    for _ in 0..CONSECUTIVE_FAILURES {
        let ticket = pass(&mut core, now, false);
        core.record(ticket, Outcome::Failure, now, 1.0);
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
            let ticket = pass(&mut core, now, false);
            assert_eq!(core.record(ticket, Outcome::Failure, now, 0.0), None, "round {round}");
        }
        let ticket = pass(&mut core, now, false);
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
        let ticket = pass(&mut core, now, false);
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
        let ticket = pass(&mut core, now, false);
        core.record(ticket, outcome, now, 0.0);
    }
    assert_eq!(core.state(), State::Closed);
}

#[test]
fn neutral_outcomes_change_nothing() {
    let now = Instant::now();
    let mut core = Core::new(settings());
    for _ in 0..1000 {
        let ticket = pass(&mut core, now, false);
        assert_eq!(core.record(ticket, Outcome::Neutral, now, 0.0), None);
    }
    assert_eq!(core.state(), State::Closed);
}

#[test]
fn half_open_lets_one_probe_decide() {
    let now = Instant::now();
    let mut core = opened(now);
    assert!(refused(&mut core, now + OPEN_FOR / 2, false));
    let later = now + OPEN_FOR;
    let probe = pass(&mut core, later, false);
    assert_eq!(core.state(), State::HalfOpen);
    assert!(refused(&mut core, later, false), "a second probe");
    let transition = core.record(probe, Outcome::Success, later, 0.0).unwrap();
    assert_eq!((transition.from, transition.to), (State::HalfOpen, State::Closed));
    pass(&mut core, later, false);
}

#[test]
fn a_probe_that_is_given_up_frees_its_place() {
    let now = Instant::now();
    let mut core = opened(now);
    let later = now + OPEN_FOR;
    let probe = pass(&mut core, later, false);
    assert_eq!(core.record(probe, Outcome::Neutral, later, 0.0), None);
    pass(&mut core, later, false);
}

#[test]
fn open_time_grows_to_its_maximum_and_starts_over_after_a_quiet_time() {
    let mut now = Instant::now();
    let mut core = opened(now);
    for expected in [5, 10, 20, 40, 60, 60] {
        let wait = Duration::from_secs(expected);
        assert!(
            refused(&mut core, now + wait.saturating_sub(Duration::from_millis(1)), false),
            "{wait:?}"
        );
        now += wait;
        let probe = pass(&mut core, now, false);
        core.record(probe, Outcome::Failure, now, 1.0);
        assert_eq!(core.state(), State::Open);
    }
    now += MAX_OPEN_FOR;
    let probe = pass(&mut core, now, false);
    core.record(probe, Outcome::Success, now, 1.0);
    now += MAX_OPEN_FOR;
    for _ in 0..CONSECUTIVE_FAILURES {
        let ticket = pass(&mut core, now, false);
        core.record(ticket, Outcome::Failure, now, 1.0);
    }
    pass(&mut core, now + OPEN_FOR, false);
}

#[test]
fn leases_have_their_own_probe_and_need_not_wait_out_the_open_time() {
    let now = Instant::now();
    let mut core = opened(now);
    assert!(refused(&mut core, now + Duration::from_secs(1), true));
    let probe = pass(&mut core, now + LEASE_PROBE_EVERY, true);
    assert!(refused(&mut core, now + LEASE_PROBE_EVERY, true), "one at a time");
    assert_eq!(core.record(probe, Outcome::Failure, now + LEASE_PROBE_EVERY, 0.0), None);
    assert_eq!(core.state(), State::Open);
    let probe = pass(&mut core, now + 2 * LEASE_PROBE_EVERY, true);
    core.record(probe, Outcome::Success, now + 2 * LEASE_PROBE_EVERY, 0.0);
    assert_eq!(core.state(), State::Closed);

    let mut core = opened(now);
    let slow = pass(&mut core, now + OPEN_FOR, false);
    let lease = pass(&mut core, now + OPEN_FOR, true);
    core.record(lease, Outcome::Success, now + OPEN_FOR, 0.0);
    assert_eq!(core.state(), State::Closed);
    assert_eq!(
        core.record(slow, Outcome::Failure, now + OPEN_FOR, 0.0),
        None,
        "of an earlier state"
    );
}

#[test]
fn a_breaker_that_waits_for_a_probe_closes_when_the_member_answers_others() {
    let now = Instant::now();
    let mut core = opened(now);
    assert_eq!(core.recover(now + OPEN_FOR / 2), None, "its time is not over");
    assert_eq!(core.recover(now + OPEN_FOR).unwrap().to, State::Closed);
    assert_eq!(core.recover(now + OPEN_FOR), None);

    let mut core = opened(now);
    let probe = pass(&mut core, now + OPEN_FOR, false);
    assert_eq!(core.recover(now + OPEN_FOR), None, "the probe will tell");
    core.record(probe, Outcome::Neutral, now + OPEN_FOR, 0.0);
    assert_eq!(core.recover(now + OPEN_FOR).unwrap().to, State::Closed);
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
    breaker.admit(None, false).unwrap().record(Outcome::Failure);
    assert_eq!(
        (breaker.report().state, breaker.report().reason.as_str()),
        (State::Open, "a failure")
    );
    drop(breaker.admit(None, false).unwrap());
    assert_eq!(breaker.report().state, State::HalfOpen);
    breaker.admit(None, false).unwrap().record(Outcome::Success);
    assert_eq!(
        (breaker.report().state, breaker.report().transitions),
        (State::Closed, 3)
    );
    assert_eq!(*changes.borrow(), 3);
}

#[derive(Debug, Clone)]
enum Step {
    Admit { lease: bool },
    Record { which: usize, outcome: u8 },
    Wait { millis: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => any::<bool>().prop_map(|lease| Step::Admit { lease }),
        4 => (any::<usize>(), 0_u8..3).prop_map(|(which, outcome)| Step::Record { which, outcome }),
        1 => (0_u64..20_000).prop_map(|millis| Step::Wait { millis }),
    ];
    proptest::collection::vec(step, 0..300)
}

proptest! {
    /// Whatever happens: never more than one probe of a kind in flight outside of closed, refusals never exceed the
    /// maximum, and once the open time is over and nothing is in flight, the next request passes.
    #[test]
    fn never_stuck_and_never_a_crowd(history in steps(), jitter in 0.0_f64..=1.0) {
        let mut now = Instant::now();
        let mut core = Core::new(settings());
        let mut held: Vec<Ticket> = Vec::new();
        for step in history {
            match step {
                Step::Admit { lease } => {
                    let before = core.state();
                    match core.admit(now, lease).0 {
                        Admission::Pass(ticket) => held.push(ticket),
                        Admission::Refuse { retry_in } => {
                            prop_assert!(before != State::Closed);
                            prop_assert!(retry_in <= MAX_OPEN_FOR);
                        }
                    }
                }
                Step::Record { which, outcome } if !held.is_empty() => {
                    let ticket = held.swap_remove(which % held.len());
                    let outcome = [Outcome::Success, Outcome::Failure, Outcome::Neutral][usize::from(outcome)];
                    let before = core.state();
                    let transition = core.record(ticket, outcome, now, jitter);
                    if outcome == Outcome::Neutral {
                        prop_assert_eq!(transition, None);
                    }
                    if before == State::Open && core.state() == State::Closed {
                        prop_assert_eq!(outcome, Outcome::Success);
                    }
                }
                Step::Record { .. } => {}
                Step::Wait { millis } => now += Duration::from_millis(millis),
            }
        }
        for ticket in held {
            core.record(ticket, Outcome::Neutral, now, jitter);
        }
        prop_assert!(matches!(core.admit(now + MAX_OPEN_FOR, false).0, Admission::Pass(_)));
    }

    /// While it is open, no ordinary request passes before its time.
    #[test]
    fn open_means_no(waits in proptest::collection::vec(0_u64..400, 0..20)) {
        let start = Instant::now();
        let mut core = opened(start);
        let mut now = start;
        for wait in waits {
            now += Duration::from_millis(wait);
            if now < start + OPEN_FOR {
                prop_assert!(refused(&mut core, now, false));
            }
        }
    }
}
