//! How many spans of requests that were not sampled may be kept: so many a second, and of one tenant no more than half.
//!
//! Pure; the time is an argument. A tenant that fails all the time, or makes others fail, neither fills the store nor hides
//! what happens to the others. Caller: `tail`.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

/// Tenants share these. Fixed, so that names cost no memory; the hasher's keys are random, so that nobody chooses whom it
/// meets.
const LANES: usize = 64;
/// What may be kept at once after a quiet time, in seconds of the rate: an incident begins with many.
const BURST_SECONDS: f64 = 10.0;

/// Tokens that come back with time.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    tokens: f64,
    since: Duration,
}

/// The whole budget and each lane's.
#[derive(Debug)]
pub(super) struct Budget {
    rate: f64,
    whole: Bucket,
    lanes: [Bucket; LANES],
    hasher: RandomState,
}

impl Bucket {
    fn full(rate: f64) -> Self {
        Self {
            tokens: burst(rate),
            since: Duration::ZERO,
        }
    }

    fn refill(&mut self, rate: f64, now: Duration) {
        let passed = now.saturating_sub(self.since).as_secs_f64();
        self.since = self.since.max(now);
        self.tokens = (self.tokens + passed * rate).min(burst(rate));
    }
}

/// At least one: with less, a small rate would never allow any.
fn burst(rate: f64) -> f64 {
    (rate * BURST_SECONDS).max(1.0)
}

impl Budget {
    /// `rate`: spans a second, more than 0.
    pub(super) fn new(rate: f64) -> Self {
        Self {
            rate,
            whole: Bucket::full(rate),
            lanes: [Bucket::full(rate / 2.0); LANES],
            hasher: RandomState::new(),
        }
    }

    /// Whether one of this tenant's may be kept at this time, which it then is. Times are since any fixed moment.
    pub(super) fn spend(&mut self, tenant: &str, now: Duration) -> bool {
        let lane = usize::try_from(self.hasher.hash_one(tenant) % LANES as u64).unwrap_or_default();
        let lane = &mut self.lanes[lane];
        lane.refill(self.rate / 2.0, now);
        self.whole.refill(self.rate, now);
        let allowed = lane.tokens >= 1.0 && self.whole.tokens >= 1.0;
        if allowed {
            lane.tokens -= 1.0;
            self.whole.tokens -= 1.0;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn half_is_one_tenants_and_time_gives_it_back() {
        let mut budget = Budget::new(2.0);
        let spent = |budget: &mut Budget, tenant: &str, second| {
            (0..100)
                .filter(|_| budget.spend(tenant, Duration::from_secs(second)))
                .count()
        };
        assert_eq!(spent(&mut budget, "noisy", 0), 10, "half of ten seconds' worth");
        let others = ["a", "b", "c", "d"].map(|quiet| spent(&mut budget, quiet, 0));
        assert_eq!(others.iter().sum::<usize>(), 10, "{others:?}");
        assert_eq!(spent(&mut budget, "noisy", 3), 3);
        assert_eq!(spent(&mut budget, "noisy", 2), 0, "time does not go back");
    }

    #[test]
    fn a_rate_below_one_allows_some() {
        let mut budget = Budget::new(0.01);
        let kept = (0..=1000).filter(|second| budget.spend("a", Duration::from_secs(*second)));
        assert!((4..=6).contains(&kept.count()));
    }

    proptest! {
        #[test]
        fn never_overspent(rate in 0.1..50.0_f64, asks in prop::collection::vec((0_u8..4, 0_u64..500), 1..400)) {
            let mut budget = Budget::new(rate);
            let (mut now, mut kept) = (Duration::ZERO, 0_u32);
            for (tenant, milliseconds) in asks {
                now += Duration::from_millis(milliseconds);
                kept += u32::from(budget.spend(&tenant.to_string(), now));
                prop_assert!(f64::from(kept) <= burst(rate) + rate * now.as_secs_f64() + 1e-6);
            }
        }
    }
}
