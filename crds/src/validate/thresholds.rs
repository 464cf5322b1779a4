//! When a breaker opens and for how long: the same words in a MemberCluster and in a CircuitBreaker.

use std::time::Duration as StdDuration;

use super::Problems;
use crate::duration::Duration;

/// Longest time a breaker may look back or stay open.
const BREAKER_TIME_MAX: StdDuration = StdDuration::from_hours(24);

/// As they are written; what is absent is as the router has it.
pub(super) struct Thresholds<'a> {
    pub(super) consecutive_failures: Option<i64>,
    pub(super) failure_ratio: Option<f64>,
    pub(super) min_requests: Option<i64>,
    pub(super) window: Option<&'a Duration>,
    pub(super) open_for: Option<&'a Duration>,
    pub(super) max_open_for: Option<&'a Duration>,
}

impl Thresholds<'_> {
    /// `field`: the path of the object that has them.
    pub(super) fn check(&self, problems: &mut Problems, field: &str) {
        if let Some(failures) = self.consecutive_failures {
            problems.within(&format!("{field}.consecutiveFailures"), failures, 1..=100_000);
        }
        if let Some(requests) = self.min_requests {
            problems.within(&format!("{field}.minRequests"), requests, 1..=1_000_000);
        }
        // NaN is in no range.
        if let Some(ratio) = self.failure_ratio.filter(|ratio| !(0.001..=1.0).contains(ratio)) {
            problems.invalid(
                format!("{field}.failureRatio"),
                format!("{ratio} must be from 0.001 to 1"),
            );
        }
        check_time(problems, &format!("{field}.window"), self.window);
        let open = check_time(problems, &format!("{field}.openFor"), self.open_for);
        let most = check_time(problems, &format!("{field}.maxOpenFor"), self.max_open_for);
        if open.zip(most).is_some_and(|(open, most)| most < open) {
            problems.invalid(
                format!("{field}.maxOpenFor"),
                "must not be shorter than openFor, which grows to it",
            );
        }
    }
}

/// A time that a breaker knows; `None`, and a problem, for one that is none.
pub(super) fn check_time(problems: &mut Problems, field: &str, time: Option<&Duration>) -> Option<StdDuration> {
    match time?.parse() {
        Ok(time) if !time.is_zero() && time <= BREAKER_TIME_MAX => Some(time),
        Ok(_) => {
            problems.invalid(field, "must be longer than nothing and at most 24h");
            None
        }
        Err(error) => {
            problems.invalid(field, error);
            None
        }
    }
}
