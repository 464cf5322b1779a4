//! How fast labels are written: one pace for all sweeps together.
//!
//! Turns are handed out in order and spaced evenly, with a second's worth saved up while idle, so that a single drift is
//! repaired at once and a first sweep does not flood the member. Callers: `sweep::patch`, `uninstall`.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// Turns saved up while idle, as time.
const BURST: Duration = Duration::from_secs(1);

/// Clones share the pace.
#[derive(Debug, Clone)]
pub(crate) struct Pacer {
    interval: Duration,
    // A mutex: held for a few instructions per patch.
    next: Arc<Mutex<Instant>>,
}

impl Pacer {
    pub(crate) fn new(per_second: NonZeroU32) -> Self {
        Self {
            interval: Duration::from_secs(1) / per_second.get(),
            next: Arc::new(Mutex::new(Instant::now())),
        }
    }

    /// Waits for the next turn. A turn that is dropped while waiting is lost, not handed on.
    pub(crate) async fn turn(&self) {
        let turn = {
            let mut next = self.next.lock();
            let earliest = Instant::now().checked_sub(BURST).unwrap_or(*next);
            let turn = (*next).max(earliest);
            *next = turn + self.interval;
            turn
        };
        sleep_until(turn).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_then_the_pace() {
        let pacer = Pacer::new(NonZeroU32::new(10).unwrap());
        tokio::time::sleep(Duration::from_mins(1)).await;
        let started = Instant::now();
        for _ in 0..11 {
            pacer.turn().await;
        }
        assert!(started.elapsed() <= Duration::from_millis(2), "{:?}", started.elapsed());
        for _ in 0..20 {
            pacer.turn().await;
        }
        let took = started.elapsed();
        assert!(
            took > Duration::from_millis(1900) && took < Duration::from_millis(2200),
            "{took:?}"
        );
    }
}
