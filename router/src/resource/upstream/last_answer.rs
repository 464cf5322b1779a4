//! When a member answered callers last, and when the hub is to be told.
//!
//! What is told is an upper bound that holds for a while, so that a busy member costs one report in seconds. Caller:
//! `upstream`.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::watch;

/// What is told holds for so long after the last answer that was known then.
const HOLDS_SECONDS: i64 = 2;

/// Of one member, in seconds of Unix time.
#[derive(Debug)]
pub(super) struct LastAnswer {
    // Atomics: written with every answer.
    at: AtomicI64,
    told: AtomicI64,
    /// Bumped when an answer came later than what was told holds.
    changes: watch::Sender<u64>,
}

impl LastAnswer {
    pub(super) fn now(changes: watch::Sender<u64>) -> Self {
        let now = unix_seconds();
        Self {
            at: now.into(),
            told: now.into(),
            changes,
        }
    }

    pub(super) fn answered(&self) {
        let now = unix_seconds();
        self.at.fetch_max(now, Ordering::Relaxed);
        let told = self.told.load(Ordering::Relaxed);
        let is_first = || {
            self.told
                .compare_exchange(told, now, Ordering::Relaxed, Ordering::Relaxed)
        };
        if now > told + HOLDS_SECONDS && is_first().is_ok() {
            self.changes.send_modify(|count| *count += 1);
        }
    }

    pub(super) fn at(&self) -> i64 {
        self.at.load(Ordering::Relaxed)
    }

    /// For the hub.
    pub(super) fn until(&self) -> i64 {
        let at = self.at();
        self.told.store(at, Ordering::Relaxed);
        at + HOLDS_SECONDS
    }
}

fn unix_seconds() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}
