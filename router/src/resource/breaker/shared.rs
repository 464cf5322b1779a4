//! The handle on one breaker that requests share: a lock around the rules, the clock, and what others see of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::Settings;
use super::core::{Admission, Core, Outcome, State, Ticket, Transition};

/// What metrics, the hub and `/configz` are told of a breaker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) state: State,
    /// Why it is in this state; empty until the first transition.
    pub(crate) reason: String,
    pub(crate) since: SystemTime,
    /// Counts transitions.
    pub(crate) transitions: u64,
}

/// Refused by an open breaker: nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) retry_in: Duration,
}

/// One breaker, shared by all requests of its member and class.
#[derive(Debug)]
pub(crate) struct Breaker {
    /// A mutex: held for some comparisons, never across an await.
    inner: Mutex<Inner>,
    /// So that the usual state is known without the lock. Behind it by a moment at most.
    closed: AtomicBool,
    /// Counts the transitions of all breakers. A watch: those who report want the latest states, once.
    changes: watch::Sender<u64>,
}

#[derive(Debug)]
struct Inner {
    core: Core,
    report: Report,
}

impl Breaker {
    /// Closed. `changes` is bumped at each transition; share one among all breakers that are reported together.
    pub(crate) fn new(settings: Settings, changes: watch::Sender<u64>) -> Arc<Self> {
        let report = Report {
            state: State::Closed,
            reason: String::new(),
            since: SystemTime::now(),
            transitions: 0,
        };
        Arc::new(Self {
            inner: Mutex::new(Inner {
                core: Core::new(settings),
                report,
            }),
            closed: AtomicBool::new(true),
            changes,
        })
    }

    /// New thresholds; state and counts stay.
    pub(crate) fn configure(&self, settings: Settings) {
        self.inner.lock().core.configure(settings);
    }

    /// Asks to send one request. The outcome of the pass must be told; dropped untold, it is neutral.
    pub(crate) fn admit(self: &Arc<Self>, lease: bool) -> Result<Pass, Refused> {
        let mut inner = self.inner.lock();
        let (admission, transition) = inner.core.admit(Instant::now(), lease);
        self.publish(&mut inner, transition.as_ref());
        match admission {
            Admission::Pass(ticket) => Ok(Pass {
                breaker: self.clone(),
                ticket: Some(ticket),
            }),
            Admission::Refuse { retry_in } => Err(Refused { retry_in }),
        }
    }

    /// The member answered other traffic: closes if it only waits for a probe. Costs nothing while closed.
    pub(crate) fn recover(&self) -> Option<Transition> {
        if self.closed.load(Ordering::Relaxed) {
            return None;
        }
        let mut inner = self.inner.lock();
        let transition = inner.core.recover(Instant::now());
        self.publish(&mut inner, transition.as_ref());
        transition
    }

    pub(crate) fn report(&self) -> Report {
        self.inner.lock().report.clone()
    }

    fn record(&self, ticket: Ticket, outcome: Outcome) -> Option<Transition> {
        let mut inner = self.inner.lock();
        let transition = inner.core.record(ticket, outcome, Instant::now(), rand::random());
        self.publish(&mut inner, transition.as_ref());
        transition
    }

    /// Under the lock, so that reports come in the order of the transitions.
    fn publish(&self, inner: &mut Inner, transition: Option<&Transition>) {
        let Some(transition) = transition else { return };
        inner.report = Report {
            state: transition.to,
            reason: transition.why.to_string(),
            since: SystemTime::now(),
            transitions: inner.report.transitions + 1,
        };
        self.closed.store(transition.to == State::Closed, Ordering::Relaxed);
        self.changes.send_modify(|count| *count += 1);
    }
}

/// The right to send one request to the member.
#[derive(Debug)]
pub(crate) struct Pass {
    breaker: Arc<Breaker>,
    ticket: Option<Ticket>,
}

impl Pass {
    /// Tells how the request ended; returns what that changed.
    pub(crate) fn record(mut self, outcome: Outcome) -> Option<Transition> {
        self.ticket
            .take()
            .and_then(|ticket| self.breaker.record(ticket, outcome))
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        // The request was given up before it had an outcome: a probe's place must not stay taken.
        if let Some(ticket) = self.ticket.take() {
            self.breaker.record(ticket, Outcome::Neutral);
        }
    }
}
