//! Requests of the last while, and those among them that count. Pure. Caller: `core`.

use std::time::{Duration, Instant};

/// Parts of the sliding window; a failure is forgotten within a tenth of the window of its due time.
const SLOTS: usize = 10;

/// Requests and failures of the last `window`, in [`SLOTS`] parts that are cleared as time passes.
#[derive(Debug, Clone, Default)]
pub(super) struct Window {
    slots: [(u32, u32); SLOTS],
    /// Start of the current slot.
    since: Option<Instant>,
    current: usize,
}

impl Window {
    pub(super) fn count(&mut self, now: Instant, window: Duration, failed: bool) {
        self.advance(now, window);
        let (requests, failures) = &mut self.slots[self.current];
        *requests = requests.saturating_add(1);
        *failures = failures.saturating_add(u32::from(failed));
    }

    pub(super) fn totals(&mut self, now: Instant, window: Duration) -> (u32, u32) {
        self.advance(now, window);
        self.slots.iter().fold((0, 0), |(requests, failures), slot| {
            (slot.0.saturating_add(requests), slot.1.saturating_add(failures))
        })
    }

    fn advance(&mut self, now: Instant, window: Duration) {
        let width = (window / u32::try_from(SLOTS).unwrap_or(1)).max(Duration::from_millis(1));
        let since = *self.since.get_or_insert(now);
        let elapsed = now.saturating_duration_since(since);
        let steps = elapsed.as_nanos() / width.as_nanos();
        if steps == 0 {
            return;
        }
        if steps >= SLOTS as u128 {
            *self = Self {
                since: Some(now),
                ..Self::default()
            };
            return;
        }
        let steps = u32::try_from(steps).unwrap_or(0);
        for _ in 0..steps {
            self.current = (self.current + 1) % SLOTS;
            self.slots[self.current] = (0, 0);
        }
        self.since = Some(since + width * steps);
    }
}
