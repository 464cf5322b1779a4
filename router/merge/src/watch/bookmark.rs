//! When a bookmark may be sent: it says "resume here and you miss nothing, and keep nothing that is gone".

use std::borrow::Cow;

use super::output::Output;
use super::{Expiry, WatchMerge};
use crate::cursor::{Cursor, Slot};

impl WatchMerge {
    /// Moves the cursor: the member is at this version, and all up to it was told.
    pub(super) fn advance(&mut self, leg: usize, version: u64) {
        let slot = self.legs[leg].slot;
        self.legs.cursor.set(slot, Slot::At(version));
        self.sent.progress(slot, version);
        self.bookmarks.moved = true;
    }

    /// An event was sent: in a large flush a bookmark follows it.
    pub(super) fn count(&mut self, bytes: usize, out: &mut Output) {
        if self.bookmarks.after_event(bytes) {
            self.bookmark(out);
        }
    }

    /// A live member's own bookmark. Ours follows when all have sent one, or one a second time: no more often than they.
    pub(super) fn bookmarked(&mut self, leg: usize, version: u64) {
        self.advance(leg, version);
        let again = std::mem::replace(&mut self.legs[leg].stream.bookmarked, true);
        let mut streams = self.legs.all.iter().map(|leg| &leg.stream);
        if again || streams.all(|stream| stream.bookmarked || !stream.up) {
            self.bookmarks.due = true;
        }
        self.resend_if_due(leg);
    }

    /// Whoever resumes from the cursor misses nothing and keeps nothing that is gone, once told what the shard's last change
    /// owes it.
    fn is_resumable(&self) -> bool {
        !self.barrier.is_closed() && self.deletes.is_empty() && self.legs.are_told()
    }

    /// Where whoever resumes misses nothing and keeps nothing that is gone. As long as a change of the shard is not told by all members,
    /// in the view before it: what it owes is told from there, and what was told of it once more.
    fn place(&self) -> Option<Cow<'_, Cursor>> {
        let cursor = &self.legs.cursor;
        match self.is_resumable() {
            false => None,
            true if !self.legs.are_owed() => Some(Cow::Borrowed(cursor)),
            true => self.view.before().map(|view| Cow::Owned(cursor.in_view_of(view))),
        }
    }

    /// From here on versions can be resumed from, if the cursor can.
    pub(super) fn rebase(&mut self) {
        if self.is_resumable() && !self.legs.are_owed() {
            self.sent.rebase(&self.legs.cursor);
        } else {
            self.sent.poison();
        }
    }

    /// Sends a bookmark, if one may be sent.
    pub(super) fn bookmark(&mut self, out: &mut Output) {
        self.bookmarks.tried();
        let Some(place) = self.place().filter(|_| !self.acts.expired) else {
            return;
        };
        if !self.bookmarks.allowed {
            self.bookmarks.due = false;
            return;
        }
        let cursor = self.barrier.no_less(&place).encode();
        if cursor.is_ok_and(|cursor| self.emitter.bookmark(&cursor, false, out)) {
            self.bookmarks.sent();
            for leg in &mut self.legs.all {
                leg.stream.bookmarked = false;
            }
        }
    }

    /// Ends the initial events, unless nobody has answered at all: then nobody knows what a bookmark looks like, and the
    /// first to come is waited for.
    pub(super) fn open_barrier(&mut self, out: &mut Output) {
        if !self.emitter.knows_type() {
            for leg in &mut self.legs.all {
                leg.given_up = false;
            }
            return;
        }
        let deletes = self.deletes.values().filter_map(|delete| delete.slot);
        let unfinished = self.legs.all.iter().filter(|leg| leg.resend || leg.state.is_resync());
        let early = deletes.chain(unfinished.map(|leg| leg.slot)).collect();
        let cursor = self.barrier.open(&self.legs.cursor, early);
        if !self.bookmarks.allowed {
            return;
        }
        match cursor.encode() {
            Ok(cursor) => {
                self.emitter.bookmark(&cursor, true, out);
            }
            // The client would wait for it for ever.
            Err(error) => {
                let why = format!("where the initial events end cannot be told: {error}");
                self.acts.expire(Expiry::Changed, why);
            }
        }
    }
}
