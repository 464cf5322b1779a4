//! Requests of the last while that lag behind the member's own pace, answered or still waiting: when they are enough. Pure.
//! What lags is `pace`'s to say. Caller: `core`.

use std::time::Instant;

use super::Settings;
use super::why::Transition;
use super::window::Window;

/// What comes of requests that lag.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Lag {
    /// Nothing.
    No,
    /// They would open the breaker, if it were sure that it is the member who is slow.
    Unsure,
    Opens(Transition),
}

/// Of one breaker, in one state.
#[derive(Debug, Clone, Default)]
pub(super) struct Lags {
    /// Answers, and those that lag.
    answers: Window,
    /// Requests that lag and have no answer yet.
    waiting: u32,
    /// Since when at least half of them do.
    since: Option<Instant>,
}

impl Lags {
    pub(super) fn answered(&mut self, lags: bool, now: Instant, settings: &Settings) {
        self.answers.count(now, settings.window, lags);
    }

    pub(super) fn waits(&mut self) {
        self.waiting = self.waiting.saturating_add(1);
    }

    pub(super) fn waits_no_more(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
    }

    /// How many lag, of how many, if that is at least half at volume.
    pub(super) fn many(&mut self, now: Instant, settings: &Settings) -> Option<(u32, u32)> {
        let (answered, slow) = self.answers.totals(now, settings.window);
        let (requests, slow) = (answered.saturating_add(self.waiting), slow.saturating_add(self.waiting));
        // Answers of those who wait together come together: half of the volume is enough to go on.
        let least = if self.since.is_some() {
            settings.min_requests.div_ceil(2)
        } else {
            settings.min_requests
        };
        if requests < least.max(1) || slow.saturating_mul(2) < requests {
            self.since = None;
            return None;
        }
        Some((slow, requests))
    }

    /// The same, if that has gone on for half of the window: a pause is no failure.
    pub(super) fn go_on(&mut self, now: Instant, settings: &Settings) -> Option<(u32, u32)> {
        let many = self.many(now, settings)?;
        let since = *self.since.get_or_insert(now);
        (now.saturating_duration_since(since) >= settings.window / 2).then_some(many)
    }
}
