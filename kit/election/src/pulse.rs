//! Whether this process may speak as the one that works: not in the moment in which it wakes from a sleep that it did not notice.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Beats whenever the program finds that it leads. Clones are the same; the default one never stops.
#[derive(Debug, Clone, Default)]
pub struct Pulse(Option<Beats>);

#[derive(Debug, Clone)]
struct Beats {
    last: Arc<Mutex<Instant>>,
    fresh_for: Duration,
}

impl Pulse {
    /// One that has stopped. Who has not looked for `fresh_for` whether it leads may have slept, while its Lease ran out.
    pub fn stopped(fresh_for: Duration) -> Self {
        let long_ago = Instant::now().checked_sub(fresh_for);
        let beats = |then| Beats {
            last: Arc::new(Mutex::new(then)),
            fresh_for,
        };
        Self(long_ago.map(beats))
    }

    /// This process leads: it was told so after `then`.
    pub fn beat(&self, then: Instant) {
        if let Some(beats) = &self.0 {
            *beats.last.lock() = then;
        }
    }

    /// It was looked, and nobody answered: as before, for whoever has not slept. How long that may go on is the program's to say.
    pub(crate) fn goes_on(&self) {
        // A process that sleeps between the look and the beat does not gain the time of its sleep.
        let now = Instant::now();
        if self.is_fresh() {
            self.beat(now);
        }
    }

    /// Whether anybody may be told anything.
    pub fn is_fresh(&self) -> bool {
        let is_fresh = |beats: &Beats| beats.last.lock().elapsed() < beats.fresh_for;
        self.0.as_ref().is_none_or(is_fresh)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRESH_FOR: Duration = Duration::from_millis(2500);

    #[tokio::test(start_paused = true)]
    async fn who_has_slept_is_silent_until_it_is_told_that_it_leads() {
        let pulse = Pulse::stopped(FRESH_FOR);
        assert!(!pulse.is_fresh() && Pulse::default().is_fresh());
        pulse.beat(Instant::now());
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_secs(2)).await;
            assert!(pulse.is_fresh());
            pulse.goes_on();
        }
        tokio::time::sleep(FRESH_FOR).await;
        pulse.goes_on();
        assert!(!pulse.is_fresh());
        pulse.beat(Instant::now());
        assert!(pulse.is_fresh());
    }
}
