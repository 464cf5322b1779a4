//! What people have said of one breaker, and until when. Pure. Called by `shared`; `upstream` reads it from the wire.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Of one breaker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ByHand {
    /// Until it ends by itself, nothing else opens or closes it.
    pub(crate) held: Option<Held>,
    /// The last reset, in seconds of Unix time, and why.
    pub(crate) reset: Option<(i64, Arc<str>)>,
}

/// A breaker that is held open or closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) open: bool,
    /// Who and why.
    pub(crate) reason: Arc<str>,
    pub(crate) until: SystemTime,
}

impl Held {
    /// How long it goes on; `None` once it is over.
    pub(super) fn left(&self, now: SystemTime) -> Option<Duration> {
        self.until.duration_since(now).ok().filter(|left| !left.is_zero())
    }
}
