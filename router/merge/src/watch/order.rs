//! What a comparison with a member's state finds, in the order in which the member had it.
//!
//! Who may go on from any object's version must not be told a later one before an earlier. A state is told by name: what is
//! new in it is held until it is through, then told by version, behind what has left.

use bytes::Bytes;

use super::budget::Budget;

/// What one watch may hold, in bytes: what a member wrote while nobody could read it is less, or not worth waiting for.
const MOST: usize = 1024 * 1024;

/// A member's event as it came.
pub(super) struct Held {
    pub(super) version: u64,
    pub(super) frame: Bytes,
    /// What the client is told instead, if that is something else.
    pub(super) event_type: Option<&'static str>,
}

/// Events of a state that is being read, if they are to be told in order.
#[derive(Default)]
pub(super) struct Order {
    kept: bool,
    events: Vec<Held>,
    bytes: usize,
    /// What all watches share; `None`: no common bound.
    budget: Option<Budget>,
}

impl Order {
    /// Whether the client is told everything in order.
    pub(super) fn is_kept(&self) -> bool {
        self.kept
    }

    pub(super) fn keep(&mut self) {
        self.kept = true;
    }

    pub(super) fn bound(&mut self, budget: Budget) {
        self.budget = Some(budget);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Holds an event. False if there is no room for it: the half of what all share that large frames may yet need is
    /// nobody's to hold.
    #[must_use]
    pub(super) fn hold(&mut self, version: u64, frame: &[u8], event_type: Option<&'static str>) -> bool {
        let bytes = frame.len();
        let takes = |budget: &Budget| !budget.is_half_used() && budget.take(bytes);
        let fits = self.bytes + bytes <= MOST && self.budget.as_ref().is_none_or(takes);
        if fits {
            self.bytes += bytes;
            self.events.push(Held {
                version,
                // A copy: a slice would keep all of the member's chunk.
                frame: Bytes::copy_from_slice(frame),
                event_type,
            });
        }
        fits
    }

    /// All that is held, the earliest first.
    pub(super) fn take(&mut self) -> Vec<Held> {
        self.give_back();
        let mut events = std::mem::take(&mut self.events);
        events.sort_by_key(|held| held.version);
        events
    }

    fn give_back(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        if let Some(budget) = &self.budget {
            budget.give(bytes);
        }
    }
}

impl Drop for Order {
    fn drop(&mut self) {
        self.give_back();
    }
}
