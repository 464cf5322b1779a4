//! How much of a member's traffic may be retries: a tenth, so that retries never double the load of a member in trouble.

use std::sync::atomic::{AtomicU32, Ordering};

/// Attempts of one request, the first included.
pub(crate) const MAX_ATTEMPTS: u32 = 3;
/// Retries in hand at first, and at most.
const MOST: u32 = 20;
/// Requests that earn one retry.
const PRICE: u32 = 10;

/// Retries that one member may still get.
#[derive(Debug)]
pub(crate) struct RetryBudget {
    /// In tenths of a retry. An atomic: every request adds to it, and an inexact sum harms nobody.
    tenths: AtomicU32,
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self {
            tenths: AtomicU32::new(MOST * PRICE),
        }
    }
}

impl RetryBudget {
    /// A first attempt.
    pub(crate) fn earn(&self) {
        let _ = self
            .tenths
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |tenths| {
                (tenths < MOST * PRICE).then_some(tenths + 1)
            });
    }

    /// Whether there is a retry left; takes it.
    pub(crate) fn spend(&self) -> bool {
        let spend = |tenths: u32| tenths.checked_sub(PRICE);
        self.tenths
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_spent_and_earned_again() {
        let budget = RetryBudget::default();
        let at_once = std::iter::repeat_with(|| budget.spend())
            .take_while(|&spent| spent)
            .count();
        assert_eq!(at_once, 20);
        for _ in 0..PRICE - 1 {
            budget.earn();
        }
        assert!(!budget.spend());
        budget.earn();
        assert!(budget.spend());
        for _ in 0..10_000 {
            budget.earn();
        }
        let saved = std::iter::repeat_with(|| budget.spend())
            .take_while(|&spent| spent)
            .count();
        assert_eq!(saved, 20, "no more than the most is saved up");
    }
}
