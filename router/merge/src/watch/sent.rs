//! The raw versions of what was sent last, so that a client which resumes from an event's object goes on instead of relisting.
//!
//! Clients take the version of the last *object* they read as their position, also when a bookmark was cut off behind it.
//! The ring knows which cursor each of those versions stands for, and of what fell out of it that it was there. The stream
//! that writes it shares it with [`crate::resume`], which asks streams that are open as well as those that ended.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::spans::Spans;
use crate::cursor::{Cursor, Slot};

/// Events that can be resumed from: what may be under way to a client at any time and the bookmarks between, 4 KiB.
pub(crate) const KEPT: usize = 256;

/// What one stream has sent. Clones share it: the stream writes, whoever remembers it reads. A mutex, because a client may
/// come back while its old stream goes on; held for one entry or one look.
#[derive(Clone, Debug)]
pub struct Sent(Arc<Mutex<Ring>>);

/// Where a client stands on a stream that comes back with an object's version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// The stream sent no object of this version.
    Never,
    /// The version stands for this.
    At(Cursor),
    /// The stream may have sent it, and what it means there cannot be told.
    Unclear,
}

impl Default for Sent {
    fn default() -> Self {
        Self::keeping(KEPT)
    }
}

impl Sent {
    /// Nothing sent yet, with room for so many positions.
    pub(crate) fn keeping(kept: usize) -> Self {
        Self(Arc::new(Mutex::new(Ring::new(kept))))
    }

    /// Of a client that comes with this version and stands at `cursor`.
    pub(crate) fn of_resumed(kept: usize, version: u64, cursor: Cursor) -> Self {
        let mut ring = Ring::new(kept);
        ring.origin = Some((version, cursor));
        Self(Arc::new(Mutex::new(ring)))
    }

    /// The cursor of a client whose last event was an object with this version; `None` if that cannot be told.
    pub fn resume(&self, version: u64) -> Option<Cursor> {
        match self.position(version) {
            Position::At(cursor) => Some(cursor),
            Position::Never | Position::Unclear => None,
        }
    }

    /// Where a client stands whose last event was an object with this version.
    pub(crate) fn position(&self, version: u64) -> Position {
        self.0.lock().position(version)
    }

    /// The stream ended: drops what no answer can come of. How many positions are left.
    pub(crate) fn settle(&self) -> usize {
        self.0.lock().settle()
    }

    /// Whether no client can come back with a version of this stream.
    pub(crate) fn is_nothing(&self) -> bool {
        self.0.lock().is_nothing()
    }

    /// All versions that a client may have read here.
    pub(crate) fn versions(&self) -> Spans {
        self.0.lock().versions()
    }

    /// Every (slot, version) that can be resumed from, oldest first.
    pub fn entries(&self) -> Vec<(usize, u64)> {
        self.0.lock().resumable()
    }

    pub(super) fn note(&self, slot: usize, version: u64, advances: bool) {
        self.0.lock().note(slot, version, advances);
    }

    pub(super) fn progress(&self, slot: usize, version: u64) {
        self.0.lock().progress(slot, version);
    }

    pub(crate) fn poison(&self) {
        self.0.lock().poison();
    }

    pub(crate) fn rebase(&self, cursor: &Cursor) {
        self.0.lock().rebase(cursor);
    }

    pub(crate) fn renumber(&self) {
        self.0.lock().renumber();
    }

    /// The stream stands at `base` and sends these, for tests of those who keep rings.
    #[cfg(test)]
    pub(crate) fn fill(&self, base: &Cursor, events: &[(usize, u64)]) {
        self.rebase(base);
        for (slot, version) in events {
            self.note(*slot, *version, true);
        }
    }
}

/// A ring of the last sent versions over a base cursor.
#[derive(Debug)]
struct Ring {
    /// How many entries it holds.
    kept: usize,
    /// Where a client stands before the first entry; `None` while no position can be told (initial events under way).
    base: Option<Cursor>,
    entries: VecDeque<Entry>,
    /// The event that was sent last.
    last: Option<Entry>,
    /// Versions of objects that fell out of the ring.
    dropped: Spans,
    /// The object's version that the client began this stream with, and what it stood for: if it comes with that again, it
    /// may have read nothing.
    origin: Option<(u64, Cursor)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    version: u64,
    slot: u32,
    /// With it, all of its member up to this version had been sent.
    advances: bool,
    /// The client has seen it. Else only the member went on: a bookmark, or an event that is not the caller's.
    object: bool,
    /// It was sent while no position could be told.
    blind: bool,
}

impl Entry {
    /// The member went on to this version.
    fn progress(slot: usize, version: u64) -> Self {
        Self {
            version,
            slot: u32::try_from(slot).unwrap_or(u32::MAX),
            advances: true,
            object: false,
            blind: false,
        }
    }
}

impl Ring {
    fn new(kept: usize) -> Self {
        Self {
            kept,
            base: None,
            entries: VecDeque::new(),
            last: None,
            dropped: Spans::default(),
            origin: None,
        }
    }

    fn position(&self, version: u64) -> Position {
        let forgotten = self.dropped.has(version);
        let origin = self.origin.as_ref().filter(|(began_with, _)| *began_with == version);
        let mut cursor = self.base.clone();
        let mut found: Option<(u32, Option<Cursor>)> = None;
        for entry in &self.entries {
            if let (true, Some(cursor)) = (entry.advances, &mut cursor) {
                cursor.set(entry.slot as usize, Slot::At(entry.version));
            }
            if entry.object && entry.version == version {
                // Two members use the same numbers, or one number stands for several events: which is meant cannot be told.
                if entry.blind || found.as_ref().is_some_and(|(slot, _)| *slot != entry.slot) {
                    return Position::Unclear;
                }
                found = Some((entry.slot, cursor.clone()));
            }
        }
        match (found, origin, forgotten) {
            (None, None, false) => Position::Never,
            (None, Some((_, cursor)), false) => Position::At(cursor.clone()),
            (Some((_, Some(cursor))), None, false) => Position::At(cursor),
            _ => Position::Unclear,
        }
    }

    fn settle(&mut self) -> usize {
        if self.base.is_none() {
            // No position can be told for any of them; that they were sent can.
            let versions = self.entries.drain(..).map(|entry| entry.version);
            versions.for_each(|version| self.dropped.insert(version));
        }
        let objects = self.entries.iter().filter(|entry| entry.object).count();
        objects + usize::from(self.origin.is_some())
    }

    fn is_nothing(&self) -> bool {
        self.origin.is_none() && self.dropped.is_empty() && !self.entries.iter().any(|entry| entry.object)
    }

    fn versions(&self) -> Spans {
        let mut versions = self.dropped.clone();
        let objects = self.entries.iter().filter(|entry| entry.object);
        let sent = objects.map(|entry| entry.version);
        let began_with = self.origin.as_ref().map(|(version, _)| *version);
        sent.chain(began_with).for_each(|version| versions.insert(version));
        versions
    }

    fn resumable(&self) -> Vec<(usize, u64)> {
        let told = |entry: &&Entry| entry.object && !entry.blind && self.base.is_some();
        let entries = self.entries.iter().filter(told);
        entries.map(|entry| (entry.slot as usize, entry.version)).collect()
    }

    /// Notes an event that the client gets. `advances`: its member is at this version now.
    fn note(&mut self, slot: usize, version: u64, advances: bool) {
        let entry = Entry {
            advances: advances && self.base.is_some(),
            object: true,
            blind: self.base.is_none(),
            ..Entry::progress(slot, version)
        };
        self.last = Some(entry);
        let told = |last: &&mut Entry| !last.object && advances && (last.slot, last.version) == (entry.slot, version);
        match self.entries.back_mut().filter(told) {
            Some(last) => *last = entry,
            None => self.put(entry),
        }
    }

    /// A member went on and the client was told nothing: the next bookmark says so, and no position after it says less.
    fn progress(&mut self, slot: usize, version: u64) {
        if self.base.is_none() {
            return;
        }
        let entry = Entry::progress(slot, version);
        // One entry per member between two events, however long nothing happens.
        let since = self.entries.iter_mut().rev().take_while(|entry| !entry.object);
        match since.into_iter().find(|held| held.slot == entry.slot) {
            Some(held) => *held = entry,
            None => self.put(entry),
        }
    }

    fn put(&mut self, entry: Entry) {
        if self.entries.len() >= self.kept
            && let Some(oldest) = self.entries.pop_front()
        {
            if oldest.object {
                self.dropped.insert(oldest.version);
            }
            if let (true, Some(base)) = (oldest.advances, &mut self.base) {
                base.set(oldest.slot as usize, Slot::At(oldest.version));
            }
        }
        self.entries.push_back(entry);
    }

    /// From now on no position can be told, nor for what is in the ring: parts of a member's state are under way. What was
    /// sent is kept all the same: a number that is sent again says no more than it did.
    fn poison(&mut self) {
        if self.base.take().is_none() {
            return;
        }
        self.entries.retain(|entry| entry.object);
        for entry in &mut self.entries {
            entry.advances = false;
            entry.blind = true;
        }
    }

    /// The client stands at `cursor`, and what was sent last means just that.
    fn rebase(&mut self, cursor: &Cursor) {
        if self.base.is_some() {
            return;
        }
        self.base = Some(cursor.clone());
        let Some(last) = self.last else { return };
        // While there is no base there are only events in the ring.
        self.entries.pop_back();
        self.put(Entry {
            advances: false,
            blind: false,
            ..last
        });
    }

    /// After a replan slots mean other members: nothing in the ring can be resumed from.
    fn renumber(&mut self) {
        self.poison();
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cursor::Universe;

    fn start() -> (Universe, Cursor) {
        let universe = Universe::new("s", ["a".to_owned(), "b".to_owned()]);
        let mut cursor = Cursor::new(&universe);
        cursor.set(0, Slot::At(10));
        cursor.set(1, Slot::At(1000));
        (universe, cursor)
    }

    #[test]
    fn a_version_means_the_cursor_it_was_sent_at() {
        let (_, cursor) = start();
        let sent = Sent::default();
        assert_eq!(sent.resume(11), None);
        sent.rebase(&cursor);
        sent.note(0, 11, true);
        sent.note(1, 1001, true);
        sent.note(0, 12, true);
        assert_eq!(sent.resume(11).unwrap().slots(), [Slot::At(11), Slot::At(1000)]);
        assert_eq!(sent.resume(1001).unwrap().slots(), [Slot::At(11), Slot::At(1001)]);
        assert_eq!(sent.resume(12).unwrap().slots(), [Slot::At(12), Slot::At(1001)]);
        assert_eq!(sent.resume(13), None);
        sent.note(1, 12, false);
        assert_eq!(sent.resume(12), None, "which member is meant?");
    }

    #[test]
    fn a_position_never_says_less_than_a_bookmark_before_it() {
        let (_, cursor) = start();
        let sent = Sent::default();
        sent.rebase(&cursor);
        sent.note(0, 11, true);
        sent.progress(1, 1500);
        sent.progress(0, 20);
        sent.progress(1, 2000);
        assert_eq!(sent.0.lock().entries.len(), 3);
        assert_eq!(sent.resume(2000), None, "nobody has seen an object of this version");
        sent.note(0, 21, true);
        assert_eq!(sent.resume(21).unwrap().slots(), [Slot::At(21), Slot::At(2000)]);
        assert_eq!(sent.resume(11).unwrap().slots(), [Slot::At(11), Slot::At(1000)]);
    }

    #[test]
    fn what_falls_out_of_the_ring_moves_its_base() {
        let (_, cursor) = start();
        let sent = Sent::default();
        sent.rebase(&cursor);
        sent.note(1, 1001, true);
        for version in 11..=1_000_u64 {
            sent.note(0, version, true);
        }
        assert_eq!(sent.0.lock().entries.len(), KEPT);
        assert_eq!(sent.position(11), Position::Unclear);
        assert_eq!(sent.position(1001), Position::Unclear);
        assert_eq!(sent.position(10), Position::Never);
        assert_eq!(sent.resume(999).unwrap().slots(), [Slot::At(999), Slot::At(1001)]);
    }

    #[test]
    fn a_number_that_was_sent_twice_in_the_blind_means_nothing() {
        let (_, cursor) = start();
        for (first, second) in [((0, 7), (0, 7)), ((1, 7), (0, 7))] {
            let sent = Sent::default();
            sent.note(first.0, first.1, false);
            sent.note(second.0, second.1, false);
            sent.rebase(&cursor);
            assert_eq!(sent.resume(7), None, "of both, or of the first alone?");
        }
        let sent = Sent::default();
        sent.note(1, 11, false);
        sent.note(1, 5, false);
        sent.rebase(&cursor);
        sent.note(0, 11, true);
        assert_eq!(sent.resume(11), None, "the other member's was sent in the blind");
        sent.poison();
        sent.rebase(&cursor);
        sent.note(0, 12, true);
        assert_eq!(sent.resume(12).unwrap().slots(), [Slot::At(12), Slot::At(1000)]);
        assert_eq!((sent.entries().len(), sent.0.lock().entries.len()), (2, 4));
    }

    #[test]
    fn who_comes_again_with_what_it_began_with_may_have_read_nothing() {
        let (_, cursor) = start();
        let sent = Sent::of_resumed(KEPT, 1000, cursor.clone());
        sent.rebase(&cursor);
        sent.note(0, 11, true);
        assert_eq!(sent.resume(1000), Some(cursor), "it has read nothing");
        sent.note(0, 1000, true);
        assert!(
            sent.position(1000) == Position::Unclear,
            "this one's, or the other member's of before?"
        );
        assert!(sent.resume(11).is_some());
    }

    #[test]
    fn what_it_began_with_is_forgotten_with_an_event_of_the_same_number() {
        let (_, cursor) = start();
        let sent = Sent::of_resumed(KEPT, 1000, cursor.clone());
        sent.rebase(&cursor);
        sent.note(0, 1000, true);
        for version in 1001..=2000_u64 {
            sent.note(0, version, true);
        }
        assert_eq!(sent.resume(1000), None, "it may have read the member's own 1000");
    }

    #[test]
    fn initial_events_mean_nothing_but_for_the_last() {
        let (_, cursor) = start();
        let sent = Sent::default();
        sent.note(0, 7, true);
        sent.note(0, 5, true);
        assert_eq!(sent.resume(7), None);
        sent.rebase(&cursor);
        assert_eq!(sent.resume(7), None);
        assert_eq!(sent.resume(5), Some(cursor));
    }
}
