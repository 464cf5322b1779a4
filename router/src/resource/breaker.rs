//! One circuit breaker: a state machine that is told the time and the outcome of requests, and reads neither clock nor
//! network itself.
//!
//! There is one per member cluster and traffic class, so that a member whose watches hang still answers its unary
//! requests; within it those callers whose own requests alone fail have one for themselves (`askers`). [`Breaker`] is the
//! shared handle that `dispatch` asks and tells; `core` holds the rules. Not here: what counts as a failure (the table in
//! `dispatch::outcome`), the router's own look at `/readyz` (`upstream::readyz`), and rate limits.

mod askers;
mod beside;
mod by_hand;
mod core;
mod lag;
mod pace;
mod report;
mod shared;
mod why;
mod window;

use std::time::Duration;

pub(crate) use self::beside::{Beside, BesidePass};
pub(crate) use self::by_hand::{ByHand, Held};
pub(crate) use self::core::{Outcome, Probe, Readyz};
pub(crate) use self::pace::{Size, Took};
pub(crate) use self::report::{Change, Refused, Report};
pub(crate) use self::shared::{Breaker, Pass};
pub(crate) use self::why::{State, Transition};

/// Failures in a row that open the breaker.
pub(crate) const CONSECUTIVE_FAILURES: u32 = 5;
/// Share of failures within the window that opens it.
pub(crate) const FAILURE_RATIO: f64 = 0.5;
/// Requests within the window below which the ratio says nothing.
pub(crate) const MIN_REQUESTS: u32 = 20;
/// How far back the ratio looks.
pub(crate) const WINDOW: Duration = Duration::from_secs(10);
/// First open time; doubles from one opening to the next.
pub(crate) const OPEN_FOR: Duration = Duration::from_secs(5);
/// Open time that no growth exceeds. A member that is back is noticed after at most this long.
pub(crate) const MAX_OPEN_FOR: Duration = Duration::from_mins(1);
/// An open breaker lets one lease request through this often: client-go renews every 2 s and gives up leadership
/// after 10 s, so waiting out a long open time would cost leases of a member that is long back.
pub(crate) const LEASE_PROBE_EVERY: Duration = Duration::from_secs(2);
/// A probe keeps others of its kind waiting for so long. Most are answered by then, and what hangs may hang by who asked.
pub(crate) const PROBE_ALONE: Duration = Duration::from_secs(2);

/// Time to the head of an answer below which no read of one object or of a document is slow, whatever the member took minutes ago.
pub(crate) const SLOW_UNARY: Duration = Duration::from_millis(500);
/// The same of a list, and of the start of a watch.
pub(crate) const SLOW_LIST: Duration = Duration::from_secs(2);

/// Thresholds of one breaker: the defaults, overridden per member by `MemberCluster.spec.breaker`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Settings {
    pub(crate) consecutive_failures: u32,
    /// 0 to 1.
    pub(crate) failure_ratio: f64,
    pub(crate) min_requests: u32,
    pub(crate) window: Duration,
    pub(crate) open_for: Duration,
    pub(crate) max_open_for: Duration,
    /// Of the class of traffic: an answer that came sooner does not lag.
    pub(crate) slow: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            consecutive_failures: CONSECUTIVE_FAILURES,
            failure_ratio: FAILURE_RATIO,
            min_requests: MIN_REQUESTS,
            window: WINDOW,
            open_for: OPEN_FOR,
            max_open_for: MAX_OPEN_FOR,
            slow: SLOW_UNARY,
        }
    }
}

#[cfg(test)]
mod tests;
