//! What each frame of a leg means for the client, by what the leg is in the middle of.

use std::ops::Range;

use bytes::Bytes;

use super::change::ShareChange;
use super::decoder::FrameBytes;
use super::event::{Event, EventType, refusal};
use super::known::{KnownObject, Uid, write_key};
use super::output::Output;
use super::pending::PendingDelete;
use super::state::{LegState, ResyncCause};
use super::{WatchFault, WatchMerge};

/// A frame where it stands, and what was read of it.
pub(super) struct Frame<'a> {
    pub(super) chunk: &'a Bytes,
    pub(super) range: Range<usize>,
    pub(super) event: Event<'a>,
    /// `namespace/name` of its object.
    pub(super) key: &'a str,
}

impl Frame<'_> {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.chunk[self.range.clone()]
    }
}

impl WatchMerge {
    /// All frames of a leg's bytes, as far as it may be read now.
    pub(super) fn read(&mut self, leg: usize, chunk: Bytes, out: &mut Output) -> Result<(), WatchFault> {
        let mut at = 0;
        // A restart of the leg ends it: the reset of its stream takes it down.
        while self.legs[leg].stream.up && !self.acts.expired {
            if self.paused(leg) {
                self.legs[leg].stream.buffer(chunk.slice(at..));
                break;
            }
            match self.legs[leg]
                .stream
                .decoder
                .next(self.emitter.format, &chunk, &mut at)?
            {
                None => break,
                Some(FrameBytes::Within(range)) => self.handle(leg, &chunk, range, out)?,
                Some(FrameBytes::Gathered(frame)) => self.handle(leg, &frame, 0..frame.len(), out)?,
            }
        }
        Ok(())
    }

    /// Reads on where legs were paused and are no longer.
    pub(super) fn read_buffered(&mut self, out: &mut Output) {
        for leg in 0..self.legs.all.len() {
            if self.legs[leg].stream.buffered.is_empty() || self.paused(leg) {
                continue;
            }
            let buffered = std::mem::take(&mut self.legs[leg].stream.buffered);
            if self.read(leg, buffered, out).is_err() {
                let act = self.lost(leg);
                self.acts.push(act);
            }
        }
    }

    fn handle(&mut self, leg: usize, chunk: &Bytes, range: Range<usize>, out: &mut Output) -> Result<(), WatchFault> {
        let bytes = &chunk[range.clone()];
        let Some(event) = Event::read(self.emitter.format, bytes)? else {
            return Ok(());
        };
        if event.event_type == EventType::Error {
            let refusal = refusal(self.emitter.format, &bytes[event.object]);
            let act = self.restart(leg, Some(&refusal));
            self.acts.push(act);
            return Ok(());
        }
        if self.emitter.learn_type(&event) && !self.deletes.is_empty() {
            self.proceed(out);
        }
        self.legs[leg].seen = self.legs[leg].seen.max(event.version);
        let frame = Frame {
            chunk,
            range,
            event,
            key: "",
        };
        if frame.event.event_type == EventType::Bookmark {
            self.handle_bookmark(leg, &frame, out);
            return Ok(());
        }
        let before = frame.event.version.saturating_sub(1);
        if frame.event.event_type != EventType::Added && self.legs.follows(leg, before) {
            self.synced(leg, before, out);
            if !self.legs[leg].stream.up || self.acts.expired {
                // Asked again from elsewhere: there it comes once more.
                return Ok(());
            }
        }
        let mut key = std::mem::take(&mut self.key);
        write_key(&mut key, &frame.event.meta);
        self.handle_object(leg, &Frame { key: &key, ..frame }, out);
        self.key = key;
        Ok(())
    }

    fn handle_object(&mut self, leg: usize, frame: &Frame<'_>, out: &mut Output) {
        let this = &mut self.legs[leg];
        // Also of what the member was to sort out: labels can be copied, and a member can lie.
        let admitted = this.owned().is_none_or(|owned| owned.admits_object(&frame.event.meta));
        this.foreign += u64::from(!admitted && this.filter.is_none());
        match self.legs[leg].state {
            LegState::Live => self.handle_live(leg, frame, admitted, out),
            _ if !(admitted && self.is_read(leg, frame)) => self.skip(leg, frame),
            LegState::Initial { .. } => self.handle_initial(leg, frame, out),
            LegState::Resync { cause, .. } => self.handle_resync(leg, frame, cause, out),
            LegState::Inventory => self.handle_inventory(leg, frame),
            LegState::Listing { .. } => self.skip(leg, frame),
        }
    }

    /// Where only what came with the share is read, whether this did.
    fn is_read(&self, leg: usize, frame: &Frame<'_>) -> bool {
        let change = self.legs[leg].change.as_ref();
        !self.legs[leg].is_entering() || change.is_none_or(|change| change.came(&frame.event.meta))
    }

    fn handle_bookmark(&mut self, leg: usize, frame: &Frame<'_>, out: &mut Output) {
        self.skip(leg, frame);
        let version = frame.event.version;
        if self.legs[leg].state.is_live() {
            self.bookmarked(leg, version);
            self.arrive(leg, out);
        } else if self.legs[leg].state.is_listing() {
            // Of a stream that nobody asked for.
        } else if frame.event.meta.initial_events_end || self.legs.follows(leg, version) {
            self.synced(leg, version, out);
        } else {
            self.is_behind(leg, version);
        }
    }

    /// A leg without a marker has said that it is not yet where it was. One whose cache catches up is there by its next
    /// bookmark; one that goes on and stays behind has another past, and would be waited for for ever.
    fn is_behind(&mut self, leg: usize, version: u64) {
        let this = &mut self.legs[leg];
        let before = std::mem::replace(&mut this.stream.below, version);
        if this.without_watch_list && (1..version).contains(&before) {
            let seen = this.seen;
            self.expire_back(leg, version, seen);
        }
    }

    fn handle_live(&mut self, leg: usize, frame: &Frame<'_>, admitted: bool, out: &mut Output) {
        let version = frame.event.version;
        if self.went_back(leg, version) {
            return;
        }
        // Before it moves: an event up to there is of the time that the known objects have behind them.
        let exact = self.legs.exact(leg);
        self.advance(leg, version);
        if !admitted || self.has_told(leg, frame) {
            self.skip(leg, frame);
        } else if frame.event.event_type == EventType::Deleted {
            self.handle_deleted(leg, frame, !exact, out);
        } else {
            self.remember(leg, frame);
            if !self.is_shadowed(leg, frame) {
                self.deletes.remove(frame.key);
                self.emit(leg, frame, None, out);
            }
            if self.deletes.is_empty() {
                self.legs.grow(leg);
            }
        }
        self.resend_if_due(leg);
        self.arrive(leg, out);
    }

    /// Whether the event is of what came to a leg, and was told with that. Who may have been told of it in an earlier stream hears of
    /// what is gone since.
    fn has_told(&self, leg: usize, frame: &Frame<'_>) -> bool {
        let this = &self.legs[leg];
        let told = |change: &ShareChange| change.has_told(&frame.event.meta, frame.event.version);
        let gone = frame.event.event_type == EventType::Deleted && !this.has(frame.key);
        this.change.as_deref().is_some_and(told) && !(self.older_view && gone)
    }

    fn handle_initial(&mut self, leg: usize, frame: &Frame<'_>, out: &mut Output) {
        if frame.event.event_type == EventType::Deleted {
            self.handle_deleted(leg, frame, true, out);
        } else {
            self.remember(leg, frame);
            self.emit_news(leg, frame, None, out);
        }
    }

    fn handle_resync(&mut self, leg: usize, frame: &Frame<'_>, cause: ResyncCause, out: &mut Output) {
        let told = self.legs.position(leg).version();
        let told = told.filter(|_| !cause.reads_all()).unwrap_or(0);
        let Some(known) = &mut self.legs[leg].known else {
            return;
        };
        let object = known.get(frame.key);
        if frame.event.version <= object.map_or(told, |object| object.version.saturating_sub(1)) {
            // Its cache is behind what was told before, and catches up before the marker.
            self.skip(leg, frame);
            return;
        }
        if frame.event.event_type == EventType::Deleted {
            self.handle_deleted(leg, frame, false, out);
            return;
        }
        let uid = Uid::of(&frame.event.meta.uid);
        let held = object
            .filter(|object| object.uid == uid)
            .map(KnownObject::client_version);
        if known.set(frame.key, uid, frame.event.version) {
            self.emit_news(leg, frame, held, out);
        } else {
            self.over_budget(leg);
        }
    }

    fn handle_inventory(&mut self, leg: usize, frame: &Frame<'_>) {
        if frame.event.event_type == EventType::Deleted {
            self.legs[leg].forget(frame.key);
            // What a later leg has was passed over for this one's, which its cache still had.
            if let Some((later, false)) = self.legs.next_holder(leg, frame.key)
                && self.legs[later].state != LegState::Inventory
            {
                self.resend(later, frame.key);
            }
        } else {
            self.remember(leg, frame);
        }
        self.skip(leg, frame);
    }

    /// The member's own DELETED. `unsure`: the client may hold the object although the leg does not know it.
    fn handle_deleted(&mut self, leg: usize, frame: &Frame<'_>, unsure: bool, out: &mut Output) {
        let object = self.legs[leg].forget(frame.key);
        if !(unsure || object.is_some()) || self.taken_over(leg, frame.key) {
            self.skip(leg, frame);
        } else if self.barrier.is_closed() || self.legs.names_unknown() {
            self.skip(leg, frame);
            let uid = Uid::of(&frame.event.meta.uid);
            // Asked again, the leg may begin with it once more: the client has it already.
            let same = object.filter(|object| object.uid == uid);
            let delete = PendingDelete {
                client_version: same.map_or(0, |object| object.client_version()),
                uid,
                incarnation: self.legs[leg].uid_hash,
                version: frame.event.version,
                slot: Some(self.legs[leg].slot),
            };
            self.delete_later(frame.key.into(), delete);
        } else {
            self.deletes.remove(frame.key);
            if !self.legs[leg].state.is_live() {
                // Told before its turn: whoever resumes from where the leg is would be told again.
                self.mark_dirty(leg);
            }
            self.emit(leg, frame, None, out);
        }
    }

    /// Whether an earlier leg has the name: what the client may have of this leg's object is out of date now.
    fn is_shadowed(&mut self, leg: usize, frame: &Frame<'_>) -> bool {
        let shadowed = self.legs.shadowed(leg, frame.key);
        if shadowed {
            if let Some(known) = &mut self.legs[leg].known
                && known.get(frame.key).is_some_and(|object| object.emitted)
            {
                known.mark_stale(frame.key);
            }
            self.skip(leg, frame);
        }
        shadowed
    }

    /// Of what is there, the client gets what it does not hold. `held`: the version that its leg says it holds; 0: another
    /// object of that name, or one out of date.
    fn emit_news(&mut self, leg: usize, frame: &Frame<'_>, mut held: Option<u64>, out: &mut Output) {
        if self.is_shadowed(leg, frame) {
            return;
        }
        if let Some(left) = self.deletes.remove(frame.key) {
            // It is back. Of several objects of one name the client holds the one that left, whatever this leg says.
            let back = left.held(&Uid::of(&frame.event.meta.uid), &self.legs[leg]);
            held = if self.legs.unique { back } else { held.or(back) };
        }
        if held.is_some_and(|held| held >= frame.event.version) {
            if matches!(self.legs[leg].state, LegState::Initial { .. }) {
                // It came here from another leg: the client holds it of this one now.
                self.mark_dirty(leg);
            }
            self.skip(leg, frame);
            return;
        }
        self.mark_dirty(leg);
        let holds_older = held.is_some_and(|held| held != 0);
        let modified = holds_older && frame.event.event_type == EventType::Added;
        self.emit(leg, frame, modified.then_some("MODIFIED"), out);
    }

    /// Until the leg is through, no position says what the client holds of it.
    fn mark_dirty(&mut self, leg: usize) {
        self.legs[leg].state.mark_dirty();
        self.sent.poison();
    }

    /// Into the known objects, as far as there are any.
    fn remember(&mut self, leg: usize, frame: &Frame<'_>) {
        if let Some(known) = &mut self.legs[leg].known
            && !known.set(frame.key, Uid::of(&frame.event.meta.uid), frame.event.version)
        {
            self.over_budget(leg);
        }
    }

    fn skip(&mut self, leg: usize, frame: &Frame<'_>) {
        self.emitter.skip(&mut self.legs[leg], frame);
    }

    /// Out to the client. `event_type`: another than it came with.
    fn emit(&mut self, leg: usize, frame: &Frame<'_>, event_type: Option<&'static str>, out: &mut Output) {
        if self.is_in_order(leg, self.legs[leg].state) {
            // A Table's columns come first, whichever row does.
            self.skip(leg, frame);
            if !self.order.hold(frame.event.version, frame.bytes(), event_type) {
                self.out_of_memory(leg);
            }
            return;
        }
        let this = &mut self.legs[leg];
        self.emitter.forward(this, frame, event_type, out);
        let (slot, live) = (this.slot, this.state.is_live());
        if frame.event.event_type != EventType::Deleted && !self.legs.supersede(leg, frame.key) {
            self.sent.poison();
        }
        self.sent.note(slot, frame.event.version, live);
        self.count(frame.range.len(), out);
    }

    /// Tells what was held, in the order in which it happened.
    pub(super) fn emit_held(&mut self, leg: usize, out: &mut Output) {
        for held in self.order.take() {
            let Ok(Some(event)) = Event::read(self.emitter.format, &held.frame) else {
                continue;
            };
            let frame = Frame {
                chunk: &held.frame,
                range: 0..held.frame.len(),
                event,
                key: "",
            };
            self.emitter.forward(&mut self.legs[leg], &frame, held.event_type, out);
            self.sent.note(self.legs[leg].slot, held.version, false);
        }
    }
}
