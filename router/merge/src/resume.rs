//! Where clients stand that come back with the version of an object instead of a cursor.
//!
//! Clients that never ask for bookmarks, and those whose last bookmark was cut off, resume from the version of the last
//! object they read, which is one member's and says nothing of the others. The router knows what its streams sent, those
//! that are open (their client may be gone unnoticed) and for some minutes those that ended. It answers only where it must
//! be right: all streams of the caller that may have sent the version agree, none of them was forgotten, and no other router
//! can have sent it. Each stream answers once. Time is handed in; the router's `fanout` calls it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use crate::cursor::{Cursor, Universe};
use crate::token::Binding;
use crate::watch::{KEPT, Position, Sent, Spans};

/// What is known of forgotten streams is kept apart for so many groups of callers and requests; 128 KiB.
const GROUPS: u64 = 1024;

/// Bounds of [`Resume`].
#[derive(Clone, Copy, Debug)]
pub struct ResumeBounds {
    /// How long an ended stream is remembered; no client stays away for longer and then resumes.
    pub keep: Duration,
    /// How many ended streams are remembered.
    pub streams: usize,
    /// How many positions of ended streams are remembered; what bounds the bytes, some 24 for each.
    pub positions: usize,
    /// How many positions each stream knows.
    pub ring: usize,
}

impl Default for ResumeBounds {
    /// Five minutes are longer than any client backs off; 2,000 informers of one router that all lost their streams at once, 12 MiB.
    fn default() -> Self {
        Self {
            keep: Duration::from_mins(5),
            streams: 4_000,
            positions: 512 * 1024,
            ring: KEPT,
        }
    }
}

/// A stream that may be resumed from, from before its first byte until [`Resume::end`].
#[derive(Debug)]
pub struct Stream {
    id: u64,
    sent: Sent,
}

impl Stream {
    /// For [`crate::watch::WatchMerge::recorded`].
    pub fn sent(&self) -> Sent {
        self.sent.clone()
    }
}

/// A client that comes with the version of the last object it has read.
#[derive(Clone, Copy, Debug)]
pub struct Comeback<'a> {
    /// Whose it is, and what it asks for: by this the streams that it may have read are told from all others.
    pub binding: Binding,
    /// The object's version.
    pub version: u64,
    /// What its cursors speak of now.
    pub universe: &'a Universe,
    /// For how long no other router, nor this one before it was started, can have served it.
    pub alone: Duration,
}

/// Where a client stands that comes with an object's version.
#[derive(Debug)]
pub enum Resumed {
    /// Here, and it goes on with this stream.
    At(Cursor, Stream),
    /// It may have been sent the version, and what that stands for cannot be told: 410.
    Gone,
    /// No stream of this caller and request sent it.
    Unknown,
}

/// The streams of one router.
#[derive(Debug)]
pub struct Resume {
    bounds: ResumeBounds,
    next: u64,
    streams: BTreeMap<u64, Record>,
    /// The streams of each caller and request.
    known: HashMap<u64, Vec<u64>>,
    /// Streams that ended, and when, oldest first.
    ended: VecDeque<(Duration, u64)>,
    /// Positions of streams that ended.
    positions: usize,
    /// What forgotten streams may have sent, by group.
    forgotten: HashMap<u64, Spans>,
}

#[derive(Debug)]
struct Record {
    key: u64,
    sent: Sent,
    /// A client went on from it: it is asked what it may have sent, and answers nobody else.
    served: bool,
    /// Once it ended.
    positions: usize,
}

impl Resume {
    /// A memory of no streams yet.
    pub fn new(bounds: ResumeBounds) -> Self {
        Self {
            bounds,
            next: 0,
            streams: BTreeMap::new(),
            known: HashMap::new(),
            ended: VecDeque::new(),
            positions: 0,
            forgotten: HashMap::new(),
        }
    }

    /// A stream of this caller and request begins, not from an object's version. To be called before its first byte.
    pub fn begin(&mut self, binding: Binding) -> Stream {
        self.add(binding, Sent::keeping(self.bounds.ring))
    }

    /// Where a client stands that comes at `now` (since any fixed moment, never backwards).
    pub fn find(&mut self, now: Duration, comes: Comeback<'_>) -> Resumed {
        self.forget_old(now);
        let (key, version) = (comes.binding.key(), comes.version);
        let forgotten = self.forgotten.get(&(key % GROUPS));
        if comes.alone < self.bounds.keep || forgotten.is_some_and(|versions| versions.has(version)) {
            return Resumed::Gone;
        }
        let mut found: Option<Cursor> = None;
        let mut serves = None;
        for id in self.known.get(&key).into_iter().flatten() {
            let Some(record) = self.streams.get(id) else { continue };
            match record.sent.position(version) {
                Position::Never => {}
                Position::Unclear => return Resumed::Gone,
                Position::At(cursor) if found.as_ref().is_some_and(|found| *found != cursor) => return Resumed::Gone,
                Position::At(cursor) => {
                    found = Some(cursor);
                    serves = serves.or((!record.served).then_some(*id));
                }
            }
        }
        let Some(cursor) = found else { return Resumed::Unknown };
        let Some(record) = serves.and_then(|id| self.streams.get_mut(&id)) else {
            return Resumed::Gone;
        };
        if !cursor.speaks_of(comes.universe) {
            return Resumed::Gone;
        }
        record.served = true;
        let sent = Sent::of_resumed(self.bounds.ring, version, cursor.clone());
        Resumed::At(cursor, self.add(comes.binding, sent))
    }

    /// The stream ended at `now` (since any fixed moment, never backwards), or did not come about.
    pub fn end(&mut self, now: Duration, stream: Stream) {
        self.forget_old(now);
        let Some(record) = self.streams.get_mut(&stream.id) else {
            return;
        };
        let positions = record.sent.settle();
        record.positions = positions;
        self.positions += positions;
        self.ended.push_back((now, stream.id));
        if stream.sent.is_nothing() {
            // Nobody can come back with it; the newest of them, so nothing else moves.
            self.ended.pop_back();
            self.remove(stream.id);
        }
        while self.ended.len() > self.bounds.streams || self.positions > self.bounds.positions {
            self.forget_oldest();
        }
    }

    /// How many streams are remembered that ended.
    pub fn len(&self) -> usize {
        self.ended.len()
    }

    /// Whether no stream is remembered that ended.
    pub fn is_empty(&self) -> bool {
        self.ended.is_empty()
    }

    /// How many positions of streams that ended are remembered.
    pub fn positions(&self) -> usize {
        self.positions
    }

    fn add(&mut self, binding: Binding, sent: Sent) -> Stream {
        let (id, key) = (self.next, binding.key());
        self.next += 1;
        self.known.entry(key).or_default().push(id);
        let record = Record {
            key,
            sent: sent.clone(),
            served: false,
            positions: 0,
        };
        self.streams.insert(id, record);
        Stream { id, sent }
    }

    fn forget_old(&mut self, now: Duration) {
        let keep = self.bounds.keep;
        let old = |(at, _): &(Duration, u64)| now.saturating_sub(*at) >= keep;
        while self.ended.front().is_some_and(old) {
            self.forget_oldest();
        }
    }

    /// Whoever comes back to a stream that is not known any more must not be taken for another's client. Of one that was
    /// gone on from nobody comes back.
    fn forget_oldest(&mut self) {
        let Some((_, id)) = self.ended.pop_front() else { return };
        if let Some(record) = self.remove(id)
            && !record.served
        {
            let versions = record.sent.versions();
            self.forgotten.entry(record.key % GROUPS).or_default().unite(&versions);
        }
    }

    fn remove(&mut self, id: u64) -> Option<Record> {
        let record = self.streams.remove(&id)?;
        self.positions -= record.positions;
        if let Some(known) = self.known.get_mut(&record.key) {
            known.retain(|held| *held != id);
            if known.is_empty() {
                self.known.remove(&record.key);
            }
        }
        Some(record)
    }
}

#[cfg(test)]
mod tests;
