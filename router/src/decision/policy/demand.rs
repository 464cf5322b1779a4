//! What a limit that routers share is asked for of late, in tokens a second. Pure.
//!
//! It follows a rise at once, as a caller that comes to this router is refused until the hub has moved the share here, and
//! a fall by half in each second, so that a pause gives nothing away that is needed again.

use std::time::Duration;

/// In which what was asked before counts for half.
const HALF_LIFE: Duration = Duration::from_secs(1);
/// Between two looks: one that comes sooner says little.
const SHORTEST: Duration = Duration::from_millis(200);

/// Demand for one limit.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Demand {
    /// Tokens that had been asked for when it was looked at last.
    asked: u64,
    per_second: f64,
}

impl Demand {
    /// So many were asked for in all; it was looked at last so long ago. False: too short ago to tell.
    pub(crate) fn look(&mut self, asked: u64, passed: Duration) -> bool {
        if passed < SHORTEST {
            return false;
        }
        // A count that begins anew is one that was reset.
        let more = asked.checked_sub(self.asked).unwrap_or(asked);
        #[expect(clippy::cast_precision_loss, reason = "a rate is no count")]
        let rate = more as f64 / passed.as_secs_f64();
        let kept = 0.5_f64.powf(passed.as_secs_f64() / HALF_LIFE.as_secs_f64());
        let eased = self.per_second * kept + rate * (1.0 - kept);
        self.per_second = eased.max(rate);
        self.asked = asked;
        true
    }

    /// Thousandths of a token in a second.
    pub(crate) fn per_second_thousandths(&self) -> u64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "never negative, and a cast of floats saturates"
        )]
        let thousandths = (self.per_second * 1_000.0).round() as u64;
        thousandths
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rise_counts_at_once_and_a_fall_by_and_by() {
        let mut demand = Demand::default();
        assert!(demand.look(100, Duration::from_secs(1)));
        assert_eq!(demand.per_second_thousandths(), 100_000);
        assert!(!demand.look(1_000, Duration::from_millis(1)), "too soon");
        assert!(demand.look(100, Duration::from_secs(1)));
        assert_eq!(demand.per_second_thousandths(), 50_000);
        assert!(demand.look(100, Duration::from_mins(1)));
        assert_eq!(demand.per_second_thousandths(), 0);
        assert!(demand.look(10, Duration::from_secs(1)), "a count that began anew");
        assert_eq!(demand.per_second_thousandths(), 10_000);
    }
}
