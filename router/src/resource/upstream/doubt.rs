//! Whether a member is there at all: raised when nothing comes from it, settled by an answer or by connections that do not
//! come about.
//!
//! What a request waits for may be the member, one old connection, or the request itself. A connection of the router's own
//! tells these apart in little time, whoever asks for what. Pure. Caller: `upstream`.

use std::time::{Duration, Instant};

use crate::resource::breaker::Readyz;

/// One look at a time, and not a crowd of them where every other request takes long.
const PAUSE: Duration = Duration::from_secs(1);
/// Connections refused: a listener that restarts is back in less time than two take.
const REFUSALS: u32 = 2;

/// Of one member.
#[derive(Debug, Default)]
pub(super) struct Doubt {
    raised: Option<Raised>,
    settled: Option<Instant>,
}

#[derive(Debug)]
struct Raised {
    at: Instant,
    refused: u32,
}

/// What a look has settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Settled {
    Not,
    Answers,
    Unreachable,
}

impl Doubt {
    /// Nothing comes, or what came is that there is no way. True if that is new.
    pub(super) fn raise(&mut self, now: Instant) -> bool {
        let just = |at: Instant| now.saturating_duration_since(at) < PAUSE;
        if self.raised.is_some() || self.settled.is_some_and(just) {
            return false;
        }
        self.raised = Some(Raised { at: now, refused: 0 });
        true
    }

    /// Something came from the member.
    pub(super) fn answered(&mut self, now: Instant) {
        if self.raised.take().is_some() {
            self.settled = Some(now);
        }
    }

    /// A look that began at `began` found this; `waited`: a connection was waited for in vain, which says more than one that
    /// is refused at once.
    pub(super) fn looked(&mut self, began: Instant, found: Readyz, waited: bool, now: Instant) -> Settled {
        let Some(raised) = self.raised.as_mut().filter(|raised| raised.at <= began) else {
            return Settled::Not;
        };
        if found != Readyz::Unreachable {
            self.answered(now);
            return Settled::Answers;
        }
        raised.refused += if waited { REFUSALS } else { 1 };
        if raised.refused < REFUSALS {
            return Settled::Not;
        }
        self.answered(now);
        Settled::Unreachable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_twice_or_waited_for_once_and_nothing_came_meanwhile() {
        let now = Instant::now();
        let mut doubt = Doubt::default();
        assert_eq!(
            doubt.looked(now, Readyz::Unreachable, true, now),
            Settled::Not,
            "nobody doubts"
        );
        assert!(doubt.raise(now) && !doubt.raise(now));
        assert_eq!(doubt.looked(now, Readyz::Unreachable, false, now), Settled::Not);
        assert_eq!(doubt.looked(now, Readyz::Unreachable, false, now), Settled::Unreachable);
        assert!(!doubt.raise(now), "just settled");
        let later = now + PAUSE;
        assert!(doubt.raise(later));
        assert_eq!(
            doubt.looked(now, Readyz::Unreachable, true, later),
            Settled::Not,
            "of before"
        );
        assert_eq!(
            doubt.looked(later, Readyz::Unreachable, true, later),
            Settled::Unreachable
        );
        for found in [Readyz::Ready, Readyz::Forbidden, Readyz::NotReady] {
            let mut doubt = Doubt::default();
            assert!(doubt.raise(now));
            assert_eq!(doubt.looked(now, Readyz::Unreachable, false, now), Settled::Not);
            assert_eq!(
                doubt.looked(now, found, false, now),
                Settled::Answers,
                "{found:?}: slow, at most"
            );
        }
        let mut doubt = Doubt::default();
        assert!(doubt.raise(now));
        doubt.answered(now);
        assert_eq!(
            doubt.looked(now, Readyz::Unreachable, true, now),
            Settled::Not,
            "a request was answered"
        );
    }
}
