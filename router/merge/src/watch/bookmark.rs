//! When a bookmark is due and when none may be sent: a bookmark says "resume here and you miss nothing".

use super::WatchMerge;
use super::compose::Stub;
use super::leg::{Leg, Phase};
use super::output::Output;
use crate::cursor::{Cursor, Slot};

/// In a large flush there is a bookmark after so many events …
const EVENTS: u32 = 64;
/// … or bytes.
const BYTES: usize = 16 * 1024;

impl WatchMerge {
    /// A member is at this version.
    pub(super) fn advance(&mut self, slot: usize, version: u64) {
        self.cursor.set(slot, Slot::At(version));
        self.moved = true;
    }

    /// Something was sent.
    pub(super) fn count(&mut self, bytes: usize, out: &mut Output) {
        self.due = true;
        self.since.events += 1;
        self.counts.events += 1;
        self.since.bytes += bytes;
        if self.bookmarks && (self.since.events >= EVENTS || self.since.bytes >= BYTES) {
            self.mark(out);
        }
    }

    /// A live member's own bookmark. Ours follows when all have sent one, or one a second time: no more often than they.
    pub(super) fn told(&mut self, leg: usize, version: u64) {
        let slot = self.legs[leg].slot;
        self.advance(slot, version);
        self.sent.progress(slot, version);
        let again = std::mem::replace(&mut self.legs[leg].marked, true);
        if again || self.legs.iter().all(|leg| leg.marked || !leg.up) {
            self.due = true;
        }
        self.look_again(leg);
    }

    /// Whoever resumes from the cursor misses nothing and keeps nothing that is gone.
    pub(super) fn safe(&self) -> bool {
        let unsettled = |leg: &Leg| leg.dirty || leg.again || (leg.moving && leg.phase == Phase::Resync);
        !self.barrier
            && self.provisional.is_empty()
            && self.pending_deletes.is_empty()
            && !self.legs.iter().any(unsettled)
    }

    /// From here on versions can be resumed from, if that is so.
    pub(super) fn rebase(&mut self) {
        if self.safe() {
            self.sent.rebase(&self.cursor);
        } else {
            self.sent.poison();
        }
    }

    /// A bookmark, if one may be sent.
    pub(super) fn mark(&mut self, out: &mut Output) {
        self.since = super::Since::default();
        if !self.safe() || self.expired {
            return;
        }
        if !self.bookmarks {
            self.due = false;
            return;
        }
        let cursor = self.at_least_early().encode();
        if self.put(cursor.ok(), false, out) {
            self.due = false;
            self.moved = false;
            for leg in &mut self.legs {
                leg.marked = false;
            }
        }
    }

    /// The end of the initial events. What has left meanwhile, or is wanted of a leg, is told after it, so whoever resumes
    /// from just here must not begin behind that: version 1 is older than all of it, or compacted and refused.
    pub(super) fn mark_end(&mut self, out: &mut Output) {
        let wanted = self
            .legs
            .iter()
            .filter(|leg| leg.again || leg.phase == Phase::Resync)
            .map(|leg| leg.slot);
        let early = self
            .pending_deletes
            .values()
            .filter_map(|pending_deletes| pending_deletes.slot)
            .chain(wanted);
        let early: Vec<usize> = early.collect();
        if !self.bookmarks {
            return;
        }
        for leg in &mut self.legs {
            leg.early |= early.contains(&leg.slot);
        }
        let early = early.into_iter();
        let cursor = early.fold(self.cursor.clone(), |cursor, slot| cursor.with(slot, Slot::At(1)));
        match cursor.encode() {
            Ok(cursor) => {
                self.put(Some(cursor), true, out);
            }
            // The client would wait for it for ever.
            Err(error) => self.expire(format!("where the initial events end cannot be told: {error}")),
        }
    }

    /// A slot for which the marker said version 1 may be back at nothing, which is less.
    fn at_least_early(&self) -> Cursor {
        let back = |leg: &&Leg| leg.early && !matches!(self.cursor.slot(leg.slot), Slot::At(_));
        let early = self.legs.iter().filter(back);
        early.fold(self.cursor.clone(), |cursor, leg| cursor.with(leg.slot, Slot::At(1)))
    }

    /// False if nothing is known of the objects' type, or the cursor is too long to be written.
    fn put(&mut self, cursor: Option<String>, initial_events_end: bool, out: &mut Output) -> bool {
        let (Some(kind), Some(version)) = (&self.kind, &cursor) else {
            return false;
        };
        let stub = Stub {
            version,
            initial_events_end,
            ..Stub::default()
        };
        out.push(kind.event("BOOKMARK", stub, self.columns.stub("")));
        self.counts.bookmarks += 1;
        true
    }
}
