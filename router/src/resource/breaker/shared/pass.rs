//! The right to send one request to a member, given by its breaker: told how that ended, in every case.
//!
//! Called by `dispatch`, which has it from [`Breaker::admit`].

use std::sync::Arc;

use super::super::beside::BesidePass;
use super::super::core::{Outcome, Probe, Ticket};
use super::super::pace::{Size, Took};
use super::super::report::Change;
use super::super::why::Transition;
use super::Breaker;
use crate::value::snapshot::Caller;

/// The right to send one request to the member.
#[derive(Debug)]
pub(crate) struct Pass {
    breaker: Arc<Breaker>,
    /// Of the breaker for all; `None` where that does not concern the caller.
    pub(super) ticket: Option<Ticket>,
    /// Of the caller's own, if it has one.
    pub(super) own: Option<Ticket>,
    /// What letting it through changed.
    pub(super) began: Option<Transition>,
    /// Until the head of the answer, if that says something of the member.
    pub(super) took: Option<(Took, Size)>,
    pub(super) caller: Option<Caller>,
    /// Of the caller.
    pub(super) tenant: Option<Arc<str>>,
    pub(super) probe: Probe,
    /// The state in which it is counted as one that lags and waits.
    pub(super) waits: Option<u64>,
    /// Of breakers beside this one: they are told the same.
    pub(super) beside: Vec<BesidePass>,
    pub(super) told: bool,
}

impl Pass {
    pub(super) fn new(breaker: Arc<Breaker>, caller: Option<&Caller>, probe: Probe) -> Self {
        Self {
            breaker,
            ticket: None,
            own: None,
            began: None,
            took: None,
            caller: caller.cloned(),
            tenant: caller.map(Caller::tenant),
            probe,
            waits: None,
            beside: Vec::new(),
            told: false,
        }
    }

    /// What letting it through changed: it may be the one that decides.
    pub(crate) fn began(&mut self) -> Option<Transition> {
        self.began.take()
    }

    /// Tells these the same outcome.
    pub(crate) fn beside(&mut self, passes: Vec<BesidePass>) {
        self.beside = passes;
    }

    /// How long the head of its answer took.
    pub(crate) fn took(&mut self, took: Took, size: Size) {
        self.took = Some((took, size));
    }

    /// It has waited for so long, and waits on; returns what that changed.
    pub(crate) fn waits(&mut self, waited: Took) -> Option<Transition> {
        let breaker = self.breaker.clone();
        breaker.waits(self, waited)
    }

    /// Tells how the request ended; returns what that changed.
    pub(crate) fn record(mut self, outcome: Outcome) -> Option<Change> {
        self.told = true;
        for beside in self.beside.drain(..) {
            beside.record(outcome);
        }
        let breaker = self.breaker.clone();
        breaker.record(&mut self, outcome)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        // The request was given up before it had an outcome: a probe's place must not stay taken.
        if !self.told {
            let breaker = self.breaker.clone();
            breaker.record(self, Outcome::Neutral);
        }
    }
}
