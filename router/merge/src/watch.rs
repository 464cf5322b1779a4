//! Many members' watch streams → one stream that a client takes for one API server's (design 5.3).
//!
//! Bytes of any cut come in per leg, whole frames and bookmarks with the merged cursor go out; what the machine wants done
//! to a leg is an [`Act`]. It knows no sockets, no clocks and no HTTP: `fanout` of the router connects the legs, waits where
//! waiting is due and writes what is in [`Output`]. What an event says beyond type, version and key is never read.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

use crate::cursor::{Cursor, Slot};

mod bookmark;
mod compose;
mod decoder;
mod event;
mod frame;
mod known;
mod leg;
mod output;
mod replan;
mod resync;
mod sent;
mod spec;
mod table;

use compose::Type;
use decoder::FrameDecoder;
use known::{KnownObjects, Uid};
use leg::{Leg, Phase};
use table::Columns;

pub use known::Budget;
pub use output::Output;
pub use sent::Sent;
pub use spec::{Act, LARGEST_FRAME, LegView, Start, WatchError, WatchFault, WatchFormat, WatchLeg, WatchSpec};

/// One merged watch.
#[expect(clippy::struct_excessive_bools, reason = "facts that do not exclude each other")]
pub struct WatchMerge {
    format: WatchFormat,
    bookmarks: bool,
    unique: bool,
    budget: Option<Budget>,
    frames: Option<Budget>,
    cursor: Cursor,
    sent: Sent,
    legs: Vec<Leg>,
    acts: VecDeque<Act>,
    /// The client waits for the end of the initial events.
    barrier: bool,
    /// What left a leg and may yet turn up in another, or may not be told before the barrier.
    pending_deletes: BTreeMap<Box<str>, PendingDelete>,
    kind: Option<Type>,
    columns: Columns,
    /// Built anew for each key, so that no event allocates one.
    key: String,
    /// Something was sent, or enough members said where they are: the next pause is worth a bookmark.
    due: bool,
    /// The cursor is not what the last bookmark said.
    moved: bool,
    /// Legs came or changed with the plan and are not through: objects may turn up in another leg than before.
    moving: bool,
    /// In a union of names: what was told of a leg while an earlier one's names were not known.
    provisional: BTreeSet<Box<str>>,
    since: Since,
    counts: Counts,
    expired: bool,
}

/// What was put out so far; for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Of members' objects, synthesized ones included.
    pub events: u64,
    /// With the cursor.
    pub bookmarks: u64,
}

/// What was sent since the last bookmark.
#[derive(Default)]
struct Since {
    events: u32,
    bytes: usize,
}

/// An object that the client still holds, of a leg that has it no more.
struct PendingDelete {
    uid: Uid,
    /// What the client holds of it; 0: not known.
    known: u64,
    /// What the DELETED is to say.
    version: u64,
    /// `None`: its member left.
    slot: Option<usize>,
}

impl WatchMerge {
    /// Nothing happens before legs are connected: ask [`WatchMerge::start`] how.
    pub fn new(spec: WatchSpec) -> Self {
        let mut merge = Self {
            format: spec.format,
            bookmarks: spec.bookmarks,
            unique: spec.unique,
            budget: spec.known_objects,
            frames: None,
            cursor: spec.cursor,
            sent: Sent::default(),
            legs: Vec::with_capacity(spec.legs.len()),
            acts: VecDeque::new(),
            barrier: spec.initial_events,
            pending_deletes: BTreeMap::new(),
            kind: None,
            columns: Columns::new(spec.cluster_column),
            key: String::new(),
            due: false,
            moved: false,
            moving: false,
            provisional: BTreeSet::new(),
            since: Since::default(),
            counts: Counts::default(),
            expired: false,
        };
        let unique = merge.unique && spec.legs.len() > 1;
        for leg in spec.legs {
            let leg = merge.admit(leg, unique);
            merge.legs.push(leg);
        }
        merge.rebase();
        merge
    }

    fn admit(&mut self, leg: WatchLeg, unique: bool) -> Leg {
        let mut leg = Leg::new(leg);
        leg.split = FrameDecoder::new(self.frames.clone());
        self.cursor.set(
            leg.slot,
            match leg.start {
                Start::At(version) => Slot::At(version),
                Start::Any | Start::Recent | Start::Sync => Slot::Sync,
            },
        );
        if unique && leg.phase == Phase::Live {
            leg.phase = Phase::Inventory;
            leg.start = Start::Sync;
        }
        if leg.phase != Phase::Live && (unique || self.budget.is_some()) {
            leg.known = Some(Box::new(KnownObjects::new(self.budget.clone())));
        }
        leg
    }

    /// The client of a Table wants its rows without their objects; members must send the objects' metadata all the same.
    #[must_use]
    pub fn hiding_objects(mut self) -> Self {
        self.columns.hide_objects();
        self
    }

    /// What may be held of large frames that are not whole yet. Without it each leg may hold one of [`LARGEST_FRAME`].
    #[must_use]
    pub fn bounded(mut self, frames: Budget) -> Self {
        for leg in &mut self.legs {
            leg.split = FrameDecoder::new(Some(frames.clone()));
        }
        self.frames = Some(frames);
        self
    }

    /// Of a client that resumed with an object's version instead of the cursor. To be called before anything is read.
    pub fn resumed(&mut self, version: u64) {
        self.sent.begin_with(version, self.cursor.clone());
    }

    /// How to ask this leg first. Not always what the client said: a union of names begins with an inventory.
    pub fn start(&self, leg: usize) -> Start {
        self.legs[leg].start
    }

    /// The leg's member knows no watch-list and is asked without: no marker will tell where what is there ends, only a
    /// bookmark or an event behind it. Holds from then on.
    pub fn disable_watch_list(&mut self, leg: usize) {
        self.legs[leg].without_watch_list = true;
    }

    /// Whether the leg is to be asked without watch-list.
    pub fn watch_list_disabled(&self, leg: usize) -> bool {
        self.legs[leg].without_watch_list
    }

    /// Bytes of a leg, in any cut. What follows an act for the same leg in these bytes is dropped. After it, also ask
    /// [`WatchMerge::next_act`]: what was held of other legs may be judged now.
    pub fn push(&mut self, leg: usize, chunk: Bytes, out: &mut Output) -> Result<Option<Act>, WatchError> {
        let restarts = |act: &Act| matches!(act, Act::Restart { leg: other, .. } if *other == leg);
        if self.acts.iter().any(restarts) {
            // Nobody has asked for the acts yet: these bytes are of the stream that is to be dropped.
            return Ok(self.next_act());
        }
        self.legs[leg].up = true;
        self.hold(leg, chunk);
        let chunk = std::mem::take(&mut self.legs[leg].held);
        match self.read(leg, chunk, out) {
            Ok(()) => Ok(self.next_act()),
            Err(fault) => Err(WatchError {
                cluster: self.legs[leg].cluster.clone(),
                fault,
            }),
        }
    }

    /// Further acts of the last call; to be asked after `push`, `flush` and `give_up` until there are none.
    pub fn next_act(&mut self) -> Option<Act> {
        self.acts.pop_front()
    }

    /// The leg's stream ended or broke, or never began: what is due now.
    pub fn lost(&mut self, leg: usize) -> Act {
        if self.legs[leg].phase == Phase::Inventory {
            // The others need not wait for one that cannot be reached.
            self.legs[leg].given_up = true;
        }
        self.begin_again(leg, None)
    }

    /// Do not read this leg now: it waits for the others' initial events. What is pushed all the same is kept.
    pub fn paused(&self, leg: usize) -> bool {
        let this = &self.legs[leg];
        if self.barrier && (this.phase == Phase::Live || this.given_up) {
            return true;
        }
        let counting = |leg: &Leg| leg.phase == Phase::Inventory && !leg.given_up;
        self.unique && this.phase == Phase::Live && self.legs.iter().any(counting)
    }

    /// Do not wait for this leg's initial events any longer; `Expired` if the client already has some of them.
    pub fn give_up(&mut self, leg: usize, out: &mut Output) -> Option<Act> {
        self.legs[leg].given_up = true;
        if self.barrier && self.legs[leg].dirty {
            let why = format!(
                "member {} stopped in the middle of its initial events",
                self.legs[leg].cluster
            );
            self.expire(why);
        }
        self.proceed(out);
        self.next_act()
    }

    /// The leg's member does not serve the kind: nobody waits for it. A client that goes on with a union of names from when
    /// it was served must list: what it holds of it cannot be counted in, and nothing of the others is told before that.
    pub fn absent(&mut self, leg: usize, out: &mut Output) -> Option<Act> {
        if self.legs[leg].phase == Phase::Inventory {
            let cluster = &self.legs[leg].cluster;
            self.expire(format!("member {cluster} does not serve the kind any more"));
            return self.next_act();
        }
        self.give_up(leg, out)
    }

    /// Nothing more to read at the moment: a bookmark, if one is due and the client allows them.
    pub fn flush(&mut self, out: &mut Output) {
        self.wake(out);
        if self.due {
            self.mark(out);
        }
    }

    /// The planned end: a bookmark, unless the last one says the same. Before the first word of any member there is none: of
    /// what type it would have to be is not known.
    pub fn close(&mut self, out: &mut Output) {
        if self.due || self.moved {
            self.mark(out);
        }
    }

    /// Where the client stands when it has read all that was put out. Not a place to resume from while initial events are
    /// under way: [`WatchMerge::sent`] knows.
    pub fn cursor(&self) -> &Cursor {
        &self.cursor
    }

    /// How far a leg is.
    pub fn leg_state(&self, leg: usize) -> LegView {
        let leg = &self.legs[leg];
        LegView {
            slot: self.cursor.slot(leg.slot),
            seen: leg.seen,
            synced: leg.phase == Phase::Live,
            known_objects: leg.known.as_ref().map(|known| known.len()),
        }
    }

    /// What was put out so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// What was sent of late, for resume.
    pub fn sent(&self) -> &Sent {
        &self.sent
    }
}

#[cfg(test)]
mod tests;
