//! Exponential backoff with full jitter, for every loop that talks to something that can be down.
//!
//! Full jitter (a uniform draw between zero and the exponential ceiling) spreads a fleet best after a common
//! outage. Not a retry policy: whether to try again is the caller's decision. Callers: watch and stream loops
//! of hub, router and agent, the TLS file watcher, the span exporter.

use std::error::Error;
use std::time::Duration;

use rand::{Rng, RngExt};
use tokio::time::Instant;

use crate::Chain;

/// Ceiling of the first wait.
pub const DEFAULT_BASE: Duration = Duration::from_millis(200);
/// Ceiling that no wait exceeds.
pub const DEFAULT_MAX: Duration = Duration::from_secs(30);

/// State of one retry loop. Not shared: one per loop.
#[derive(Debug, Clone)]
pub struct Backoff {
    base: Duration,
    max: Duration,
    attempt: u32,
    last_wait_ended: Option<Instant>,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::new(DEFAULT_BASE, DEFAULT_MAX)
    }
}

impl Backoff {
    /// Starts at `base`, doubles up to `max`; an attempt that holds for longer than `max` counts as stable.
    pub fn new(base: Duration, max: Duration) -> Self {
        Self {
            base,
            max,
            attempt: 0,
            last_wait_ended: None,
        }
    }

    /// The next wait: uniform in `0..=ceiling`, and the ceiling grows. Reads no clock.
    pub fn next(&mut self, rng: &mut impl Rng) -> Duration {
        let ceiling = self.ceiling();
        self.attempt = self.attempt.saturating_add(1);
        rng.random_range(Duration::ZERO..=ceiling)
    }

    /// Waits for [`Self::next`]. Starts over by itself when the attempt since the last wait was stable.
    /// Safe to cancel: the attempt stays counted.
    pub async fn sleep(&mut self) {
        if self.last_wait_ended.is_some_and(|ended| ended.elapsed() >= self.max) {
            self.reset();
        }
        let wait = self.next(&mut rand::rng());
        tokio::time::sleep(wait).await;
        self.last_wait_ended = Some(Instant::now());
    }

    /// Starts over at `base`: the thing retried is known to be well.
    pub fn reset(&mut self) {
        self.attempt = 0;
        self.last_wait_ended = None;
    }

    /// Waits drawn since the start or the last reset.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    fn ceiling(&self) -> Duration {
        let doubled = 2_u32.checked_pow(self.attempt).unwrap_or(u32::MAX);
        self.base.saturating_mul(doubled).min(self.max)
    }
}

/// Tries at the default pace until it works; each failure is warned of: "cannot `what` yet".
pub async fn until_ok<T, E: Error + 'static, F>(what: &str, attempt: impl Fn() -> F) -> T
where
    F: Future<Output = Result<T, E>>,
{
    let mut backoff = Backoff::default();
    loop {
        match attempt().await {
            Ok(done) => return done,
            Err(error) => tracing::warn!(error = %Chain(&error), "cannot {what} yet"),
        }
        backoff.sleep().await;
    }
}

/// Up to a quarter later, so that a fleet that waits for one thing does not come in step.
pub fn jittered(wait: Duration) -> Duration {
    wait.mul_f64(rand::random_range(1.0..1.25))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    #[test]
    fn stays_under_the_growing_ceiling_and_is_spread() {
        let mut largest = [Duration::ZERO; 12];
        for seed in 0..200 {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
            for (attempt, seen) in largest.iter_mut().enumerate() {
                let ceiling = Duration::from_millis(100 * (1 << attempt)).min(Duration::from_secs(10));
                let wait = backoff.next(&mut rng);
                assert!(wait <= ceiling, "attempt {attempt}: {wait:?} over {ceiling:?}");
                *seen = wait.max(*seen);
            }
        }
        assert!(
            largest[0] > Duration::from_millis(80) && largest[11] > Duration::from_secs(8),
            "{largest:?}"
        );
    }

    #[test]
    fn never_overflows() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
        backoff.attempt = u32::MAX;
        assert!(backoff.next(&mut StdRng::seed_from_u64(1)) <= Duration::from_secs(5));
        assert_eq!(backoff.attempt(), u32::MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stable_period_starts_over_and_a_short_one_does_not() {
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
        for _ in 0..5 {
            backoff.sleep().await;
        }
        assert_eq!(backoff.attempt(), 5);
        tokio::time::sleep(Duration::from_millis(900)).await;
        backoff.sleep().await;
        assert_eq!(backoff.attempt(), 6);
        tokio::time::sleep(Duration::from_secs(1)).await;
        backoff.sleep().await;
        assert_eq!(backoff.attempt(), 1);
    }
}
