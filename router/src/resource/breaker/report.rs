//! What a breaker tells of itself: to metrics and the hub, to who is refused, and to who tells it an outcome.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use super::why::{State, Transition};

/// What metrics, the hub and `/configz` are told of a breaker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) state: State,
    /// Why it is in this state; empty until the first transition.
    pub(crate) reason: String,
    pub(crate) since: SystemTime,
    /// Counts transitions, by the word for why.
    pub(crate) transitions: BTreeMap<&'static str, u64>,
}

/// Refused by an open breaker: nothing was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) retry_in: Duration,
    pub(crate) state: State,
    /// Why it is in this state.
    pub(crate) reason: String,
}

/// What an outcome changed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Change {
    pub(crate) transition: Transition,
    /// Of the caller's own breaker, not of the one for all.
    pub(crate) of_caller: bool,
}

impl Refused {
    /// By a caller's own breaker.
    pub(super) fn alone(retry_in: Duration) -> Self {
        Self {
            retry_in,
            state: State::Open,
            reason: "for this caller alone, whose requests failed".to_owned(),
        }
    }
}
