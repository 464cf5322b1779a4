//! Whether this process may speak as the hub: not in the moment in which it wakes from a sleep that it did not notice.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// A hub that has not looked for this long whether it leads may have slept, while its Lease ran out.
const FRESH_FOR: Duration = Duration::from_millis(2500);

/// Beats whenever the hub finds that it leads. Clones are the same; the default one never stops.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pulse(Option<Arc<Mutex<Instant>>>);

impl Pulse {
    /// One that has stopped.
    pub(crate) fn stopped() -> Self {
        let long_ago = Instant::now().checked_sub(FRESH_FOR);
        Self(long_ago.map(|then| Arc::new(Mutex::new(then))))
    }

    /// This hub leads: it was told so after `then`.
    pub(crate) fn beat(&self, then: Instant) {
        if let Some(last) = &self.0 {
            *last.lock() = then;
        }
    }

    /// It was looked, and nobody answered: as before, for whoever has not slept. How long that may go on is `distribute`'s to say.
    pub(super) fn goes_on(&self) {
        // A process that sleeps between the look and the beat does not gain the time of its sleep.
        let now = Instant::now();
        if self.is_fresh() {
            self.beat(now);
        }
    }

    /// Whether anybody may be told anything.
    pub(crate) fn is_fresh(&self) -> bool {
        self.0.as_ref().is_none_or(|last| last.lock().elapsed() < FRESH_FOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_has_slept_is_silent_until_it_is_told_that_it_leads() {
        let pulse = Pulse::stopped();
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
