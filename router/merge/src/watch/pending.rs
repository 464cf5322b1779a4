//! What waits to be done or told: deletions that may turn out to be moves, the next bookmark, and acts for the outside.

use std::collections::{BTreeMap, VecDeque};

use super::known::{KnownObject, Uid};
use super::leg::Leg;
use super::{Act, Expiry, Start};

/// In a large flush there is a bookmark after so many events …
const EVENTS: u32 = 64;
/// … or bytes.
const BYTES: usize = 16 * 1024;

/// Objects by `namespace/name` that the client still holds, but the leg that it has them of does not: they may yet turn up
/// in another leg, or may not be told as deleted before the marker.
pub(super) type PendingDeletes = BTreeMap<Box<str>, PendingDelete>;

/// One of [`PendingDeletes`].
pub(super) struct PendingDelete {
    pub(super) uid: Uid,
    /// The incarnation of its member, whose versions say nothing of another one's.
    pub(super) incarnation: u64,
    /// What the client holds of it; 0: not known.
    pub(super) client_version: u64,
    /// What the DELETED is to say.
    pub(super) version: u64,
    /// `None`: its member left.
    pub(super) slot: Option<usize>,
}

impl PendingDelete {
    pub(super) fn of(object: KnownObject, version: u64, leg: &Leg) -> Self {
        Self {
            client_version: object.client_version(),
            uid: object.uid,
            incarnation: leg.uid_hash,
            version,
            slot: Some(leg.slot),
        }
    }

    /// Its member left.
    pub(super) fn left(object: KnownObject, leg: &Leg) -> Self {
        let version = object.version;
        Self {
            slot: None,
            ..Self::of(object, version, leg)
        }
    }

    /// Which version of this object of the leg's the client holds; 0: not known. `None`: it holds another object.
    pub(super) fn held(&self, uid: &Uid, leg: &Leg) -> Option<u64> {
        let version = if self.incarnation == leg.uid_hash {
            self.client_version
        } else {
            0
        };
        (self.uid == *uid).then_some(version)
    }
}

/// When the next bookmark is worth sending.
#[derive(Default)]
pub(super) struct NextBookmark {
    /// The client takes bookmarks.
    pub(super) allowed: bool,
    /// Something was sent, or enough members said where they are: the next pause is worth one.
    pub(super) due: bool,
    /// The cursor is not what the last one said.
    pub(super) moved: bool,
    /// Sent since the last one.
    events: u32,
    bytes: usize,
}

impl NextBookmark {
    pub(super) fn new(allowed: bool) -> Self {
        Self {
            allowed,
            ..Self::default()
        }
    }

    /// An event was sent. Whether so much was that a bookmark does not wait for a pause.
    pub(super) fn after_event(&mut self, bytes: usize) -> bool {
        self.due = true;
        self.events += 1;
        self.bytes += bytes;
        self.allowed && (self.events >= EVENTS || self.bytes >= BYTES)
    }

    /// One is tried now: whether it can be written or not, the next large flush counts anew.
    pub(super) fn tried(&mut self) {
        self.events = 0;
        self.bytes = 0;
    }

    /// One was sent.
    pub(super) fn sent(&mut self) {
        self.due = false;
        self.moved = false;
    }
}

/// What is to be done outside, in order.
#[derive(Default)]
pub(super) struct Acts {
    queue: VecDeque<Act>,
    /// The watch is to end with a 410: nothing more is read.
    pub(super) expired: bool,
}

impl Acts {
    pub(super) fn push(&mut self, act: Act) {
        self.expired |= matches!(act, Act::Expired { .. });
        self.queue.push_back(act);
    }

    pub(super) fn restart(&mut self, leg: usize, start: Start) {
        self.push(Act::Restart { leg, start });
    }

    pub(super) fn expire(&mut self, cause: Expiry, why: String) {
        self.push(Act::Expired { cause, why });
    }

    pub(super) fn pop(&mut self) -> Option<Act> {
        self.queue.pop_front()
    }

    pub(super) fn drain(&mut self) -> Vec<Act> {
        self.queue.drain(..).collect()
    }

    /// Whether the leg's stream is to be dropped: nobody has asked for the acts yet.
    pub(super) fn restarts(&self, leg: usize) -> bool {
        let restarts = |act: &Act| matches!(act, Act::Restart { leg: other, .. } if *other == leg);
        self.queue.iter().any(restarts)
    }
}
