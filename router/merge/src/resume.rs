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

/// What is known of forgotten streams is kept apart for so many groups of callers, and within each for so many of requests:
/// 512 KiB. No caller makes others list anew but those of its group.
const GROUPS: u64 = 64;
/// How long it is kept, at least: until then a client may come back whose stream was forgotten.
const FORGOTTEN_FOR: Duration = Duration::from_hours(1);
/// So many streams of one caller and request are looked through for a version; of more none is told from the others.
const LOOKED_THROUGH: usize = 64;

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
    /// One caller takes at most one part in so many, so that none makes the streams of all others forgotten.
    pub callers: usize,
}

impl Default for ResumeBounds {
    /// Five minutes are longer than any client backs off; 2,000 informers of one router that all lost their streams at once, 12 MiB.
    fn default() -> Self {
        Self {
            keep: Duration::from_mins(5),
            streams: 4_000,
            positions: 512 * 1024,
            ring: KEPT,
            callers: 8,
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

/// Whose a stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whose {
    /// The caller.
    pub caller: Binding,
    /// The caller and what it asks for.
    pub request: Binding,
}

impl Whose {
    /// Where it is kept what was forgotten of such streams.
    fn group(self) -> u64 {
        (self.caller.key() % GROUPS) * GROUPS + self.request.key() % GROUPS
    }
}

/// A client that comes with the version of the last object it has read.
#[derive(Clone, Copy, Debug)]
pub struct Comeback<'a> {
    /// By this the streams that it may have read are told from all others.
    pub whose: Whose,
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
    /// Streams that ended, and when, oldest first; some of them may be forgotten by now.
    ended: VecDeque<(Duration, u64)>,
    /// How much is remembered of streams that ended.
    kept: Kept,
    /// The same, by caller.
    callers: HashMap<u64, Caller>,
    forgotten: Forgotten,
}

#[derive(Debug)]
struct Record {
    whose: Whose,
    sent: Sent,
    /// A client went on from it: it is asked what it may have sent, and answers nobody else.
    served: bool,
    /// Once it ended: its positions.
    ended: Option<usize>,
}

/// How much is remembered of streams that ended.
#[derive(Clone, Copy, Debug, Default)]
struct Kept {
    streams: usize,
    positions: usize,
}

impl Kept {
    fn add(&mut self, positions: usize) {
        self.streams += 1;
        self.positions += positions;
    }

    fn drop_one(&mut self, positions: usize) {
        self.streams -= 1;
        self.positions -= positions;
    }

    /// Whether it is more than this part of what may be remembered.
    fn exceeds(self, bounds: &ResumeBounds, part: usize) -> bool {
        self.streams > (bounds.streams / part).max(1) || self.positions > (bounds.positions / part).max(1)
    }
}

#[derive(Debug, Default)]
struct Caller {
    /// Its streams that ended, oldest first; some may be forgotten by now.
    ended: VecDeque<u64>,
    kept: Kept,
}

/// What forgotten streams may have sent, by group: of this hour and of the one before.
#[derive(Debug, Default)]
struct Forgotten {
    since: Duration,
    now: HashMap<u64, Spans>,
    before: HashMap<u64, Spans>,
}

impl Forgotten {
    fn turn(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.since);
        if passed >= FORGOTTEN_FOR {
            self.before = std::mem::take(&mut self.now);
            self.since = now;
        }
        if passed >= 2 * FORGOTTEN_FOR {
            self.before.clear();
        }
    }

    fn has(&self, whose: Whose, version: u64) -> bool {
        let both = [&self.now, &self.before];
        let mut groups = both.iter().filter_map(|groups| groups.get(&whose.group()));
        groups.any(|versions| versions.has(version))
    }

    fn add(&mut self, whose: Whose, versions: &Spans) {
        self.now.entry(whose.group()).or_default().unite(versions);
    }
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
            kept: Kept::default(),
            callers: HashMap::new(),
            forgotten: Forgotten::default(),
        }
    }

    /// A stream of this caller and request begins, not from an object's version. To be called before its first byte.
    pub fn begin(&mut self, whose: Whose) -> Stream {
        self.add(whose, Sent::keeping(self.bounds.ring))
    }

    /// Where a client stands that comes at `now` (since any fixed moment, never backwards).
    pub fn find(&mut self, now: Duration, comes: Comeback<'_>) -> Resumed {
        self.forget_old(now);
        let version = comes.version;
        let known = self.known.get(&comes.whose.request.key());
        let known = known.map(Vec::as_slice).unwrap_or_default();
        let many = known.len() > LOOKED_THROUGH;
        if many || comes.alone < self.bounds.keep || self.forgotten.has(comes.whose, version) {
            return Resumed::Gone;
        }
        let mut found: Option<Cursor> = None;
        let mut serves = None;
        for id in known {
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
        Resumed::At(cursor, self.add(comes.whose, sent))
    }

    /// The stream ended at `now` (since any fixed moment, never backwards), or did not come about.
    pub fn end(&mut self, now: Duration, stream: Stream) {
        self.forget_old(now);
        if stream.sent.is_nothing() {
            // Nobody can come back with it.
            self.remove(stream.id);
            return;
        }
        let Some(record) = self.streams.get_mut(&stream.id) else {
            return;
        };
        let positions = record.sent.settle();
        record.ended = Some(positions);
        let of = record.whose.caller.key();
        self.kept.add(positions);
        self.ended.push_back((now, stream.id));
        let caller = self.callers.entry(of).or_default();
        caller.kept.add(positions);
        caller.ended.push_back(stream.id);
        while self
            .callers
            .get(&of)
            .is_some_and(|caller| caller.kept.exceeds(&self.bounds, self.bounds.callers))
        {
            self.forget_oldest_of(of);
        }
        while self.kept.exceeds(&self.bounds, 1) {
            self.forget_oldest();
        }
        if self.ended.len() > 2 * self.bounds.streams {
            let streams = &self.streams;
            self.ended.retain(|(_, id)| streams.contains_key(id));
        }
    }

    /// How many streams are remembered that ended.
    pub fn len(&self) -> usize {
        self.kept.streams
    }

    /// Whether no stream is remembered that ended.
    pub fn is_empty(&self) -> bool {
        self.kept.streams == 0
    }

    /// How many positions of streams that ended are remembered.
    pub fn positions(&self) -> usize {
        self.kept.positions
    }

    fn add(&mut self, whose: Whose, sent: Sent) -> Stream {
        let id = self.next;
        self.next += 1;
        self.known.entry(whose.request.key()).or_default().push(id);
        let record = Record {
            whose,
            sent: sent.clone(),
            served: false,
            ended: None,
        };
        self.streams.insert(id, record);
        Stream { id, sent }
    }

    fn forget_old(&mut self, now: Duration) {
        self.forgotten.turn(now);
        let keep = self.bounds.keep;
        let old = |(at, _): &(Duration, u64)| now.saturating_sub(*at) >= keep;
        while self.ended.front().is_some_and(old) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((_, id)) = self.ended.pop_front() {
            self.forget(id);
        }
    }

    fn forget_oldest_of(&mut self, caller: u64) {
        let oldest = self
            .callers
            .get_mut(&caller)
            .and_then(|caller| caller.ended.pop_front());
        if let Some(id) = oldest {
            self.forget(id);
        }
    }

    /// Whoever comes back to a stream that is not known any more must not be taken for another's client. Of one that was
    /// gone on from nobody comes back.
    fn forget(&mut self, id: u64) {
        if let Some(record) = self.remove(id)
            && !record.served
        {
            self.forgotten.add(record.whose, &record.sent.versions());
        }
    }

    fn remove(&mut self, id: u64) -> Option<Record> {
        let record = self.streams.remove(&id)?;
        if let Some(positions) = record.ended {
            self.kept.drop_one(positions);
            self.leave(record.whose.caller.key(), id, positions);
        }
        let key = record.whose.request.key();
        if let Some(known) = self.known.get_mut(&key) {
            known.retain(|held| *held != id);
            if known.is_empty() {
                self.known.remove(&key);
            }
        }
        Some(record)
    }

    /// A caller's stream that ended is not remembered any more: mostly its oldest.
    fn leave(&mut self, of: u64, id: u64, positions: usize) {
        let Some(caller) = self.callers.get_mut(&of) else {
            return;
        };
        caller.kept.drop_one(positions);
        if let Some(at) = caller.ended.iter().position(|held| *held == id) {
            caller.ended.remove(at);
        }
        if caller.kept.streams == 0 {
            self.callers.remove(&of);
        }
    }
}

#[cfg(test)]
mod tests;
