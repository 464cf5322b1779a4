//! A breaker beside the member's own: of one caller, for one member, as a CircuitBreaker wants it.
//!
//! The same rules as those of a member (`core`), told the same outcomes, and nothing of what makes those fair among
//! callers. Half-open it lets one request through, whatever that is. Owner: `policies`; asked and told by `dispatch`, whose
//! [`super::Pass`] carries it.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use portolan_crds::PolicyReason;
use tokio::sync::watch;

use super::Settings;
use super::core::{Admission, Core, Outcome, Probe, Ticket};
use super::why::{State, Transition, Why};

/// One breaker, shared by the requests of one caller to one member.
#[derive(Debug)]
pub(crate) struct Beside {
    /// A mutex: held for some comparisons, never across an await.
    inner: Mutex<Inner>,
    /// Counts the transitions of all of them. A watch: who reports wants the latest states, once.
    changes: watch::Sender<u64>,
}

#[derive(Debug)]
struct Inner {
    core: Core,
    /// Why it is in its state, and since when; `None`: it was never opened.
    changed: Option<(PolicyReason, SystemTime)>,
}

/// The right to send one request, as far as this breaker is concerned. Dropped untold, its outcome is neutral.
#[derive(Debug)]
pub(crate) struct BesidePass {
    breaker: Arc<Beside>,
    /// `None`: told.
    ticket: Option<Ticket>,
}

/// How it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BesideReport {
    pub(crate) state: State,
    /// Why it is in its state, and since when; `None`: it was never opened.
    pub(crate) changed: Option<(PolicyReason, SystemTime)>,
}

impl Beside {
    /// Closed.
    pub(crate) fn new(settings: Settings, changes: watch::Sender<u64>) -> Arc<Self> {
        Arc::new(Self {
            inner: Mutex::new(Inner {
                core: Core::new(settings),
                changed: None,
            }),
            changes,
        })
    }

    /// Asks to send one request; an error says how long it is refused.
    pub(crate) fn admit(self: &Arc<Self>) -> Result<BesidePass, Duration> {
        let mut inner = self.inner.lock();
        // One place for all: whatever comes first tells.
        let (admission, transition) = inner.core.admit(Instant::now(), Probe::Telling);
        self.publish(&mut inner, transition);
        match admission {
            Admission::Pass(ticket) => Ok(BesidePass {
                breaker: self.clone(),
                ticket: Some(ticket),
            }),
            Admission::Refuse { retry_in } => Err(retry_in),
        }
    }

    /// How long it would refuse a request, as it is open; `None`: one may ask. Nothing is taken.
    pub(crate) fn would_refuse(&self) -> Option<Duration> {
        self.inner.lock().core.refuses(Instant::now(), Probe::Telling)
    }

    /// By hand: closed, with nothing counted.
    pub(crate) fn close(&self) {
        let mut inner = self.inner.lock();
        let was = inner.core.state();
        inner.core.forget();
        if was != State::Closed {
            inner.changed = Some((PolicyReason::ClosedByHand, SystemTime::now()));
            self.changes.send_modify(|count| *count += 1);
        }
    }

    pub(crate) fn report(&self) -> BesideReport {
        let inner = self.inner.lock();
        BesideReport {
            state: inner.core.state(),
            changed: inner.changed,
        }
    }

    fn record(&self, ticket: Ticket, outcome: Outcome) {
        let mut inner = self.inner.lock();
        let transition = inner.core.record(ticket, outcome, Instant::now(), rand::random());
        self.publish(&mut inner, transition);
    }

    /// Under the lock, so that what is told comes in the order of the transitions.
    fn publish(&self, inner: &mut Inner, transition: Option<Transition>) {
        let Some(Transition { why, .. }) = transition else {
            return;
        };
        let before = inner.changed.map(|(reason, _)| reason);
        let reason = match why {
            Why::Ratio { .. } => PolicyReason::FailureRatio,
            Why::OpenTimeOver => PolicyReason::Probing,
            Why::ProbeSucceeded => PolicyReason::Recovered,
            // It is open for what it was before, if that is still said.
            Why::ProbeFailed => before
                .filter(|before| *before == PolicyReason::FailureRatio)
                .unwrap_or(PolicyReason::ConsecutiveFailures),
            _ => PolicyReason::ConsecutiveFailures,
        };
        inner.changed = Some((reason, SystemTime::now()));
        self.changes.send_modify(|count| *count += 1);
    }
}

impl BesidePass {
    /// Tells how the request ended.
    pub(super) fn record(mut self, outcome: Outcome) {
        if let Some(ticket) = self.ticket.take() {
            self.breaker.record(ticket, outcome);
        }
    }
}

#[cfg(test)]
impl BesidePass {
    /// As [`super::Pass`] does.
    pub(crate) fn told(self, outcome: Outcome) {
        self.record(outcome);
    }
}

impl Drop for BesidePass {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.breaker.record(ticket, Outcome::Neutral);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings {
            consecutive_failures: 2,
            open_for: Duration::from_hours(1),
            max_open_for: Duration::from_hours(1),
            ..Settings::default()
        }
    }

    #[test]
    fn failures_open_it_and_a_hand_closes_it() {
        let changes = watch::Sender::new(0);
        let breaker = Beside::new(settings(), changes.clone());
        for outcome in [Outcome::Failure, Outcome::Success, Outcome::Failure, Outcome::TimedOut] {
            breaker.admit().unwrap().record(outcome);
        }
        assert_eq!(breaker.report().state, State::Open);
        assert_eq!(breaker.report().changed.unwrap().0, PolicyReason::ConsecutiveFailures);
        assert!(breaker.admit().is_err() && breaker.would_refuse().is_some());
        breaker.close();
        assert_eq!(breaker.report().state, State::Closed);
        assert_eq!(breaker.report().changed.unwrap().0, PolicyReason::ClosedByHand);
        assert_eq!(*changes.subscribe().borrow(), 2);
        breaker.admit().unwrap().record(Outcome::Failure);
        assert_eq!(breaker.report().state, State::Closed, "what was counted is forgotten");
    }

    #[test]
    fn half_open_it_lets_one_through_and_a_pass_that_is_dropped_leaves_its_place() {
        let quick = Settings {
            open_for: Duration::ZERO,
            max_open_for: Duration::ZERO,
            ..settings()
        };
        let breaker = Beside::new(quick, watch::Sender::new(0));
        for _ in 0..2 {
            breaker.admit().unwrap().record(Outcome::Failure);
        }
        let probe = breaker.admit().unwrap();
        assert_eq!(breaker.report().changed.unwrap().0, PolicyReason::Probing);
        assert!(breaker.admit().is_err());
        drop(probe);
        breaker.admit().unwrap().record(Outcome::Success);
        assert_eq!(breaker.report().state, State::Closed);
        assert_eq!(breaker.report().changed.unwrap().0, PolicyReason::Recovered);
    }
}
