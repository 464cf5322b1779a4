//! What each frame of a leg means for the client, by what the leg is in the middle of.

use bytes::Bytes;

use super::compose::Type;
use super::decoder::FrameBytes;
use super::event::{Event, EventType, around, refusal};
use super::known::{KnownObject, Uid, write_key};
use super::leg::Phase;
use super::output::Output;
use super::{Start, WatchFault, WatchFormat, WatchMerge};
use crate::cursor::Slot;

/// A frame where it stands, and what was read of it.
struct Frame<'a> {
    chunk: &'a Bytes,
    from: usize,
    to: usize,
    event: Event<'a>,
}

impl WatchMerge {
    /// All frames of a leg's bytes, as far as it may be read now.
    pub(super) fn read(&mut self, leg: usize, chunk: Bytes, out: &mut Output) -> Result<(), WatchFault> {
        let mut at = 0;
        // A restart of the leg ends it: `cut` takes it down.
        while self.legs[leg].up && !self.expired {
            if self.paused(leg) {
                self.hold(leg, chunk.slice(at..));
                break;
            }
            match self.legs[leg].split.next(self.format, &chunk, &mut at)? {
                None => break,
                Some(FrameBytes::Within(from, to)) => self.judge(leg, &chunk, (from, to), out)?,
                Some(FrameBytes::Gathered(frame)) => self.judge(leg, &frame, (0, frame.len()), out)?,
            }
        }
        Ok(())
    }

    /// Behind what is held already: a leg may be no longer paused before it is read on.
    pub(super) fn hold(&mut self, leg: usize, rest: Bytes) {
        let held = &mut self.legs[leg].held;
        *held = if held.is_empty() {
            rest
        } else {
            [&held[..], &rest].concat().into()
        };
    }

    /// Reads on where legs were paused and are no longer.
    pub(super) fn wake(&mut self, out: &mut Output) {
        for leg in 0..self.legs.len() {
            if self.legs[leg].held.is_empty() || self.paused(leg) {
                continue;
            }
            let held = std::mem::take(&mut self.legs[leg].held);
            if self.read(leg, held, out).is_err() {
                let act = self.lost(leg);
                self.acts.push_back(act);
            }
        }
    }

    fn judge(
        &mut self,
        leg: usize,
        chunk: &Bytes,
        (from, to): (usize, usize),
        out: &mut Output,
    ) -> Result<(), WatchFault> {
        let Some(event) = Event::read(self.format, &chunk[from..to])? else {
            return Ok(());
        };
        if event.kind == EventType::Error {
            let (start, end) = event.object;
            let refusal = refusal(self.format, &chunk[from + start..from + end]);
            let act = self.begin_again(leg, Some(&refusal));
            self.acts.push_back(act);
            return Ok(());
        }
        self.learn(&event);
        let this = &mut self.legs[leg];
        this.seen = this.seen.max(event.version);
        let frame = Frame { chunk, from, to, event };
        if frame.event.kind == EventType::Bookmark {
            self.bookmark(leg, &frame, out);
            return Ok(());
        }
        let admitted = this.admits(&frame.event.meta);
        let before = frame.event.version.saturating_sub(1);
        if frame.event.kind != EventType::Added && self.follows(leg, before) {
            self.settle(leg, before, out);
            if !self.legs[leg].up || self.expired {
                // Asked again from elsewhere: there it comes once more.
                return Ok(());
            }
        }
        match (self.legs[leg].phase, admitted) {
            (Phase::Live, _) => self.live(leg, &frame, admitted, out),
            (_, false) => self.overlook(leg, &frame),
            (Phase::Initial, true) => self.initial(leg, &frame, out),
            (Phase::Resync, true) => self.resync(leg, &frame, out),
            (Phase::Inventory, true) => self.count_in(leg, &frame),
        }
        Ok(())
    }

    fn learn(&mut self, event: &Event<'_>) {
        if self.kind.is_none() && !event.meta.kind.is_empty() {
            self.kind = Some(Type {
                format: self.format,
                kind: (*event.meta.kind).into(),
                api_version: (*event.meta.api_version).into(),
            });
        }
    }

    /// Of a leg without a marker: whether what comes with all up to `version` before it can only come behind what was there,
    /// which is all ADDED. Not if the client has more: the member's cache was behind when it began to tell.
    fn follows(&self, leg: usize, version: u64) -> bool {
        let this = &self.legs[leg];
        let unmarked = this.without_watch_list || (this.phase == Phase::Initial && this.start != Start::Sync);
        let behind = matches!(self.cursor.slot(this.slot), Slot::At(at) if version < at) || version < this.caught_up;
        unmarked && this.phase != Phase::Live && !behind
    }

    fn bookmark(&mut self, leg: usize, frame: &Frame<'_>, out: &mut Output) {
        self.overlook(leg, frame);
        let version = frame.event.version;
        if self.legs[leg].phase == Phase::Live {
            self.told(leg, version);
        } else if frame.event.meta.initial_events_end || self.follows(leg, version) {
            self.settle(leg, version, out);
        } else {
            self.is_behind(leg, version);
        }
    }

    /// A leg without a marker has said that it is not yet where it was. One whose cache catches up is there by its next
    /// bookmark; one that goes on and stays behind has another past, and would be waited for for ever.
    fn is_behind(&mut self, leg: usize, version: u64) {
        let this = &mut self.legs[leg];
        let before = std::mem::replace(&mut this.below, version);
        if this.without_watch_list && (1..version).contains(&before) {
            let seen = this.seen;
            self.went_back(leg, version, seen);
        }
    }

    /// A frame that the client does not get: only a Table's columns may be in it.
    fn overlook(&mut self, leg: usize, frame: &Frame<'_>) {
        if self.format == WatchFormat::Table {
            let bytes = &frame.chunk[frame.from..frame.to];
            self.columns.read(&mut self.legs[leg].columns, bytes);
        }
    }

    /// An earlier leg has the name: what the client may have of this leg's object is out of date now.
    fn pass_over(&mut self, leg: usize, frame: &Frame<'_>) {
        if let Some(known) = &mut self.legs[leg].known
            && known.get(&self.key).is_some_and(|held| held.told)
        {
            known.want(&self.key);
        }
        self.overlook(leg, frame);
    }

    fn live(&mut self, leg: usize, frame: &Frame<'_>, admitted: bool, out: &mut Output) {
        let slot = self.legs[leg].slot;
        let version = frame.event.version;
        if let Slot::At(at) = self.cursor.slot(slot)
            && version < at
        {
            self.went_back(leg, version, at);
            return;
        }
        // Before it moves: an event up to there is of the time that the known has behind it.
        let exact = self.exact(leg);
        self.advance(slot, version);
        self.sent.progress(slot, version);
        if !admitted {
            self.overlook(leg, frame);
        } else if frame.event.kind == EventType::Deleted {
            self.live_deleted(leg, frame, exact, out);
        } else {
            self.keep(leg, frame);
            if self.shadowed(leg) {
                self.pass_over(leg, frame);
            } else {
                self.pending_deletes.remove(self.key.as_str());
                self.send(leg, frame, None, out);
            }
        }
        self.look_again(leg);
    }

    fn live_deleted(&mut self, leg: usize, frame: &Frame<'_>, exact: bool, out: &mut Output) {
        write_key(&mut self.key, &frame.event.meta);
        let known = self.legs[leg].known.as_mut();
        let unsure = known.is_none() || !exact;
        let held = known.and_then(|known| known.remove(&self.key));
        if !(unsure || held.is_some()) || self.shadowed(leg) || self.hand_over(leg) {
            self.overlook(leg, frame);
            return;
        }
        self.gone(leg, frame, held, out);
    }

    /// The client is told, now or when it may be. `held`: what the leg's known knew of it.
    fn gone(&mut self, leg: usize, frame: &Frame<'_>, held: Option<KnownObject>, out: &mut Output) {
        if self.barrier || self.counting() {
            self.overlook(leg, frame);
            let uid = Uid::of(&frame.event.meta.uid);
            // Asked again, the leg may begin with it once more: the client has it already.
            let known = held.filter(|held| held.uid == uid).map_or(0, |held| held.known());
            let held = KnownObject {
                uid,
                version: known,
                pass: 0,
                told: true,
                wanted: false,
            };
            self.defer_delete(leg, held, frame.event.version);
            return;
        }
        self.pending_deletes.remove(self.key.as_str());
        if self.legs[leg].phase != Phase::Live {
            // Told before its turn: whoever resumes from where the leg is would be told again.
            self.unsettle(leg);
        }
        self.send(leg, frame, None, out);
    }

    fn initial(&mut self, leg: usize, frame: &Frame<'_>, out: &mut Output) {
        if frame.event.kind == EventType::Deleted {
            write_key(&mut self.key, &frame.event.meta);
            let known = self.legs[leg].known.as_mut();
            let held = known.and_then(|known| known.remove(&self.key));
            if !self.shadowed(leg) && !self.hand_over(leg) {
                self.gone(leg, frame, held, out);
            }
            return;
        }
        self.keep(leg, frame);
        self.tell(leg, frame, None, out);
    }

    /// The version that the client holds of an object, if not what was on its way out is back. Of several objects of one
    /// name it holds the one that left, whatever its leg says.
    fn take_back(&mut self, uid: &str, held: Option<u64>) -> Option<u64> {
        let Some(left) = self.pending_deletes.remove(self.key.as_str()) else {
            return held;
        };
        let known = (left.uid == Uid::of(uid)).then_some(left.known);
        if self.unique { known } else { held.or(known) }
    }

    /// Of what is there, the client gets what it does not hold. `held`: what its leg says that it holds.
    fn tell(&mut self, leg: usize, frame: &Frame<'_>, held: Option<u64>, out: &mut Output) {
        if self.shadowed(leg) {
            self.pass_over(leg, frame);
            return;
        }
        let known = self.take_back(&frame.event.meta.uid, held);
        if known.is_some_and(|known| known >= frame.event.version) {
            if self.legs[leg].phase == Phase::Initial {
                // It came here from another leg: the client holds it of this one now.
                self.unsettle(leg);
            }
            self.overlook(leg, frame);
            return;
        }
        self.unsettle(leg);
        let known = known.is_some_and(|known| known != 0);
        let kind = (known && frame.event.kind == EventType::Added).then_some("MODIFIED");
        self.send(leg, frame, kind, out);
    }

    /// Until the leg is through, no position says what the client holds of it.
    fn unsettle(&mut self, leg: usize) {
        self.legs[leg].dirty = true;
        self.sent.poison();
    }

    fn resync(&mut self, leg: usize, frame: &Frame<'_>, out: &mut Output) {
        write_key(&mut self.key, &frame.event.meta);
        let this = &mut self.legs[leg];
        let up_to = match self.cursor.slot(this.slot) {
            Slot::At(version) if !this.changed => version,
            _ => 0,
        };
        let Some(known) = &mut this.known else {
            return;
        };
        let held = known.get(&self.key);
        let told = held.map_or(up_to, |held| held.version.saturating_sub(1));
        if frame.event.version <= told {
            // Its cache is behind what was told before, and catches up before the marker.
            self.overlook(leg, frame);
            return;
        }
        if frame.event.kind == EventType::Deleted {
            let held = known.remove(&self.key);
            if held.is_some() && !self.shadowed(leg) && !self.hand_over(leg) {
                self.gone(leg, frame, held, out);
            }
            return;
        }
        let uid = Uid::of(&frame.event.meta.uid);
        let held = held.filter(|held| held.uid == uid).map(KnownObject::known);
        if !known.set(&self.key, &frame.event.meta.uid, frame.event.version) {
            self.over_budget(leg);
            return;
        }
        self.tell(leg, frame, held, out);
    }

    fn count_in(&mut self, leg: usize, frame: &Frame<'_>) {
        if frame.event.kind == EventType::Deleted {
            write_key(&mut self.key, &frame.event.meta);
            if let Some(known) = &mut self.legs[leg].known {
                known.remove(&self.key);
            }
        } else {
            self.keep(leg, frame);
        }
        self.overlook(leg, frame);
    }

    /// Into the known, as far as there is one; the key stays written.
    fn keep(&mut self, leg: usize, frame: &Frame<'_>) {
        if self.legs[leg].known.is_none() && self.pending_deletes.is_empty() {
            return;
        }
        let meta = &frame.event.meta;
        write_key(&mut self.key, meta);
        if let Some(known) = &mut self.legs[leg].known
            && !known.set(&self.key, &meta.uid, frame.event.version)
        {
            self.over_budget(leg);
        }
    }

    /// Out to the client, as it came unless it is to be another event or another Table.
    fn send(&mut self, leg: usize, frame: &Frame<'_>, kind: Option<&'static str>, out: &mut Output) {
        let Frame { chunk, from, to, event } = frame;
        let length = to - from;
        if self.format == WatchFormat::Table {
            let this = &mut self.legs[leg];
            let aligned = self
                .columns
                .align(&mut this.columns, &this.cluster, &chunk[*from..*to], kind);
            out.push(aligned.unwrap_or_else(|| chunk.slice(*from..*to)));
        } else if let Some(kind) = kind {
            let (start, end) = event.object;
            let (before, after) = around(self.format, kind, end - start);
            out.push(before);
            out.forward(chunk, from + start, from + end);
            if !after.is_empty() {
                out.push(after);
            }
        } else {
            out.forward(chunk, *from, *to);
        }
        if frame.event.kind != EventType::Deleted {
            self.supersede(leg);
        }
        let (slot, phase) = (self.legs[leg].slot, self.legs[leg].phase);
        self.sent.note(slot, event.version, phase == Phase::Live);
        self.count(length, out);
    }
}
