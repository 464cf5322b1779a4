//! Breakers that people hold.

use std::time::SystemTime;

use super::super::{ByHand, Held};
use super::*;

fn held(open: bool, lasts: Duration) -> ByHand {
    ByHand {
        held: Some(Held {
            open,
            reason: "opened by hand, by ada: repairs".into(),
            until: SystemTime::now() + lasts,
        }),
        reset: None,
    }
}

fn reset(since: i64) -> ByHand {
    ByHand {
        held: None,
        reset: Some((since, "reset by hand".into())),
    }
}

fn breaker() -> std::sync::Arc<Breaker> {
    Breaker::new(settings(), tokio::sync::watch::Sender::new(0))
}

fn fails(breaker: &std::sync::Arc<Breaker>) {
    for _ in 0..CONSECUTIVE_FAILURES {
        breaker.admit(None, Probe::Telling).unwrap().record(Outcome::Failure);
    }
}

#[test]
fn one_that_is_held_open_passes_renewals_alone_and_no_success_closes_it() {
    let breaker = breaker();
    let before = breaker.admit(None, Probe::Telling).unwrap();
    breaker.by_hand(held(true, Duration::from_mins(1)));
    let refused = breaker.admit(None, Probe::Telling).unwrap_err();
    assert_eq!(refused.reason, "opened by hand, by ada: repairs");
    assert!(refused.retry_in <= Duration::from_secs(30), "{refused:?}");
    assert!(breaker.admit(None, Probe::Lease).is_ok());
    before.record(Outcome::Success);
    assert_eq!(
        (
            breaker.recover(true),
            breaker.readyz(Readyz::Ready, Duration::ZERO),
            breaker.wants_readyz()
        ),
        (None, None, false)
    );
    assert_eq!(breaker.report().state, State::Open);
    breaker.by_hand(ByHand::default());
    assert_eq!(
        (breaker.report().state, breaker.report().transitions["by-hand-over"]),
        (State::Closed, 1)
    );
    breaker.admit(None, Probe::Telling).unwrap();
}

#[test]
fn one_that_is_held_closed_is_opened_by_nothing() {
    let breaker = breaker();
    fails(&breaker);
    assert_eq!(breaker.report().state, State::Open);
    let closed = held(false, Duration::from_mins(1));
    breaker.by_hand(closed.clone());
    fails(&breaker);
    assert_eq!(breaker.unreachable(), None);
    assert_eq!(breaker.report().state, State::Closed);
    let told = breaker.report().transitions;
    breaker.by_hand(closed);
    assert_eq!(breaker.report().transitions, told, "told again it is no news");
    breaker.by_hand(ByHand::default());
    fails(&breaker);
    assert_eq!(breaker.report().state, State::Open, "its own again");
}

#[test]
fn what_is_held_ends_by_itself() {
    let breaker = breaker();
    breaker.by_hand(held(true, Duration::from_millis(20)));
    assert_eq!(breaker.report().state, State::Open);
    std::thread::sleep(Duration::from_millis(25));
    breaker.admit(None, Probe::Telling).unwrap();
    assert_eq!(breaker.report().reason, "what was set by hand is over");
    breaker.by_hand(held(true, Duration::ZERO));
    assert_eq!(breaker.report().state, State::Closed, "it was over when it came");
}

#[test]
fn a_reset_is_carried_out_once() {
    let breaker = breaker();
    breaker.by_hand(reset(7));
    fails(&breaker);
    breaker.by_hand(reset(7));
    assert_eq!(breaker.report().state, State::Open, "an old one");
    breaker.by_hand(reset(8));
    assert_eq!(breaker.report().state, State::Closed);
    for _ in 1..CONSECUTIVE_FAILURES {
        breaker.admit(None, Probe::Telling).unwrap().record(Outcome::Failure);
    }
    assert_eq!(breaker.report().state, State::Closed, "what was counted is forgotten");
    breaker.by_hand(held(true, Duration::from_mins(1)));
    breaker.by_hand(reset(9));
    assert_eq!(breaker.report().state, State::Closed);
}
