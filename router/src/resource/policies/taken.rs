//! Tokens that a request took and that it gives back unless it goes on: when a later check refuses it, or its client is gone
//! before. Late, less comes back: meanwhile others may have had what came in its place.
//!
//! It names the rules that it was judged by: by the time that it ends others may be in force, which gave it nothing.

use std::sync::Arc;

use parking_lot::Mutex;

use super::Policies;
use super::caller::CallerRules;
use crate::decision::policy::Passed;
use crate::value::policy::{Asked, CallerPolicies};

/// What one request took. Dropped, it is given back.
#[must_use = "what is taken is given back when this is dropped"]
pub(crate) struct Taken<'a> {
    policies: &'a Policies,
    asked: &'a Asked<'a>,
    /// `None`: nothing, or it is kept.
    by: Option<JudgedBy>,
}

/// The rules that a request was judged by.
pub(super) struct JudgedBy {
    /// Their state.
    pub(super) caller: Arc<Mutex<CallerRules>>,
    pub(super) of: Arc<CallerPolicies>,
    /// The generation is of the snapshot that they are of.
    pub(super) passed: Passed,
}

impl<'a> Taken<'a> {
    pub(super) fn new(policies: &'a Policies, asked: &'a Asked<'a>, by: Option<JudgedBy>) -> Self {
        Self { policies, asked, by }
    }

    /// The request goes on: nothing of it comes back.
    pub(crate) fn keep(mut self) {
        self.by = None;
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Some(by) = self.by.take() {
            let Policies { shared, clock, .. } = self.policies;
            let mut caller = by.caller.lock();
            caller.give_back((&by.of, by.passed), self.asked, shared, clock.now());
        }
    }
}
