//! For how long no other router can have served callers of this one, as the hub tells: what may be resumed from an object's
//! version, of which no other router would know.
//!
//! Known only while the hub's stream is up: without it another router may begin at any time. Writer: `subscribe`; reader:
//! `fanout`.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// What the hub said last. A mutex: held to copy or replace it.
#[derive(Debug)]
pub(crate) struct Alone(Mutex<State>);

#[derive(Debug, Clone, Copy)]
struct State {
    /// When it was told, and for how long it had been so; zero: another router may serve them.
    told: Option<(Instant, Duration)>,
    /// When this program began, if one before it may have served callers in its name.
    after_another: Option<Instant>,
}

impl Alone {
    pub(crate) fn unknown() -> Self {
        Self(Mutex::new(State {
            told: None,
            after_another: None,
        }))
    }

    /// This program goes on for an earlier one, of which it remembers no stream.
    pub(crate) fn begin_after_another(&self) {
        self.0.lock().after_another = Some(Instant::now());
    }

    /// The hub's word.
    pub(crate) fn told(&self, lasts: Duration) {
        self.0.lock().told = Some((Instant::now(), lasts));
    }

    /// The hub's stream has ended.
    pub(crate) fn lost(&self) {
        self.0.lock().told = None;
    }

    pub(crate) fn lasts(&self) -> Duration {
        let state = *self.0.lock();
        let lasts = match state.told {
            Some((at, lasts)) if !lasts.is_zero() => lasts.saturating_add(at.elapsed()),
            _ => Duration::ZERO,
        };
        state.after_another.map_or(lasts, |began| lasts.min(began.elapsed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_alone_as_long_as_the_hub_says_so() {
        let (second, alone) = (Duration::from_secs(1), Alone::unknown());
        assert_eq!(alone.lasts(), Duration::ZERO, "the hub has not spoken");
        alone.told(Duration::MAX);
        assert_eq!(alone.lasts(), Duration::MAX);
        alone.told(second);
        tokio::time::advance(second).await;
        assert_eq!(alone.lasts(), 2 * second);
        alone.begin_after_another();
        assert_eq!(alone.lasts(), Duration::ZERO);
        tokio::time::advance(second).await;
        assert_eq!(alone.lasts(), second);
        alone.told(Duration::ZERO);
        tokio::time::advance(second).await;
        assert_eq!(alone.lasts(), Duration::ZERO, "another router is there");
        alone.told(Duration::MAX);
        alone.lost();
        assert_eq!(alone.lasts(), Duration::ZERO);
    }
}
