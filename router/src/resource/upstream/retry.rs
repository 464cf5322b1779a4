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
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever order requests and retries come in: no more retries than were in hand at first and a tenth of the
        /// requests, and never more than can be saved up since it was fullest.
        #[test]
        fn never_overspent_under_any_schedule(schedule in proptest::collection::vec(any::<bool>(), 0..3_000)) {
            let budget = RetryBudget::default();
            let (mut tenths, mut least) = (0_i64, 0_i64);
            for spends in schedule {
                if spends && budget.spend() {
                    tenths -= i64::from(PRICE);
                } else if !spends {
                    budget.earn();
                    tenths += 1;
                }
                // How far below its highest it may fall is what can be saved up.
                least = least.max(tenths);
                prop_assert!(least - tenths <= i64::from(MOST * PRICE), "overspent");
                prop_assert!(tenths >= -i64::from(MOST * PRICE), "overspent from the start");
            }
            let left = budget.tenths.load(Ordering::Relaxed);
            let more = std::iter::repeat_with(|| budget.spend()).take_while(|&spent| spent).count();
            prop_assert_eq!(more, (left / PRICE) as usize);
        }
    }

    #[test]
    fn never_overspent_by_many_at_once() {
        let budget = RetryBudget::default();
        let spent = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..1_000 {
                        budget.earn();
                        spent.fetch_add(u32::from(budget.spend()), Ordering::Relaxed);
                    }
                });
            }
        });
        assert!(spent.into_inner() <= MOST + 8_000 / PRICE);
    }

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
