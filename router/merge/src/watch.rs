//! Many members' watch streams → one stream that a client takes for one API server's (design 5.3).
//!
//! Bytes of any cut come in per leg, whole frames and bookmarks with the merged cursor go out; what the machine wants done
//! to a leg is an [`Act`]. It knows no sockets, no clocks and no HTTP: `fanout` of the router connects the legs, waits where
//! waiting is due and writes what is in [`Output`]. What an event says beyond type, version and key is never read.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use crate::cursor::{Cursor, Slot};
use crate::filter::NamespaceFilter;

mod compose;
mod event;
mod judge;
mod leg;
mod mark;
mod mend;
mod output;
mod replan;
mod sent;
mod shadow;
mod split;
mod table;

use compose::Type;
use leg::{Leg, Phase};
use shadow::{Shadow, Uid};
use table::Columns;

pub use output::Output;
pub use sent::Sent;
pub use shadow::Budget;

/// The largest frame of a member: etcd refuses objects of 1.5 MiB, servers may be set higher.
pub const LARGEST_FRAME: usize = 64 * 1024 * 1024;

/// How the client and all members speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchFormat {
    /// One JSON event per line.
    Json,
    /// Four bytes of length before each event.
    Protobuf,
    /// JSON events that carry Tables. Members must be asked for `includeObject=Metadata` or `Object`.
    Table,
}

/// What one merged watch is.
pub struct WatchSpec {
    /// Of the client's stream and of every leg's.
    pub format: WatchFormat,
    /// The client allows bookmarks. Legs are asked for them always.
    pub bookmarks: bool,
    /// Watch-list: the client waits for the end of the initial events.
    pub initial_events: bool,
    /// Where the client stands; slots of members that are not asked are kept as they are.
    pub cursor: Cursor,
    /// In `clusters[]` order; for unions of cluster-scoped kinds the primary first.
    pub legs: Vec<WatchLeg>,
    /// One name once: the earlier leg wins.
    pub unique: bool,
    /// Tables get a column that names the member.
    pub cluster_column: bool,
    /// What may be remembered of keys, to mend a member's 410 without the client. `None`: nothing.
    pub shadow: Option<Budget>,
}

/// One member of it.
#[derive(Clone, Debug)]
pub struct WatchLeg {
    /// For errors and the CLUSTER column.
    pub cluster: Arc<str>,
    /// In the universe of the cursor.
    pub slot: usize,
    /// Which namespaces are the caller's; `None`: all that the member sends.
    pub filter: Option<NamespaceFilter>,
    /// A hash of what else the member is asked (selectors, path): [`WatchMerge::replan`] tells a change by it.
    pub asks: u64,
    /// Where it begins, as the client's request has it.
    pub start: Start,
}

/// From where a member is asked to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Events after this version.
    At(u64),
    /// `resourceVersion=0`: what is there as ADDED, then events. Best asked as watch-list with `resourceVersion=0`:
    /// without the marker nothing tells where what was there ends, and bookmarks are held until something else than
    /// ADDED comes.
    Any,
    /// No version and no `sendInitialEvents`: like `Any`, but consistent. Best asked like `Sync`.
    Recent,
    /// `sendInitialEvents=true&resourceVersionMatch=NotOlderThan` without a version: consistent, until the marker.
    Sync,
}

/// What is to be done outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Drop what is left of this leg's stream, wait as back-off says, connect again from there.
    Restart {
        /// Index of the leg.
        leg: usize,
        /// From where.
        start: Start,
    },
    /// One in-stream `410 Expired`, then the end: only the client's own relist can mend it.
    Expired {
        /// For the Status, names the member.
        why: String,
    },
}

/// A member that does not speak as an API server does. Treat as [`WatchMerge::lost`], and count it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("member {cluster}: {fault}")]
pub struct WatchError {
    /// Whose stream.
    pub cluster: Arc<str>,
    /// What is wrong with it.
    pub fault: WatchFault,
}

/// What is wrong with a member's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchFault {
    /// Above [`LARGEST_FRAME`].
    #[error("an event of more than {LARGEST_FRAME} bytes")]
    TooLarge,
    /// No JSON object with type and object, or no protobuf of this shape.
    #[error("what it sent is no watch event")]
    NotAnEvent,
    /// An event whose object has no decimal resourceVersion.
    #[error("an event without a resourceVersion")]
    NoVersion,
}

/// How far one leg is, for the admin server, the fence and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LegView {
    /// What the client's cursor says of it.
    pub slot: Slot,
    /// The highest version that was read of it; the fence waits for this.
    pub seen: u64,
    /// Its initial events are over and it is not being mended.
    pub synced: bool,
    /// Objects that its shadow holds; `None`: it has none (any more).
    pub shadow: Option<usize>,
}

/// One merged watch.
pub struct WatchMerge {
    format: WatchFormat,
    bookmarks: bool,
    unique: bool,
    budget: Option<Budget>,
    cursor: Cursor,
    sent: Sent,
    legs: Vec<Leg>,
    acts: VecDeque<Act>,
    /// The client waits for the end of the initial events.
    barrier: bool,
    /// What left a leg and may yet turn up in another, or may not be told before the barrier.
    departed: BTreeMap<Box<str>, Departed>,
    kind: Option<Type>,
    columns: Columns,
    /// Built anew for each key, so that no event allocates one.
    key: String,
    /// Something was sent, or enough members said where they are: the next pause is worth a bookmark.
    due: bool,
    /// The cursor is not what the last bookmark said.
    moved: bool,
    since: Since,
    expired: bool,
}

/// What was sent since the last bookmark.
#[derive(Default)]
struct Since {
    events: u32,
    bytes: usize,
}

/// An object that the client still holds, of a leg that has it no more.
struct Departed {
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
            budget: spec.shadow,
            cursor: spec.cursor,
            sent: Sent::default(),
            legs: Vec::with_capacity(spec.legs.len()),
            acts: VecDeque::new(),
            barrier: spec.initial_events,
            departed: BTreeMap::new(),
            kind: None,
            columns: Columns::new(spec.cluster_column),
            key: String::new(),
            due: false,
            moved: false,
            since: Since::default(),
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
        self.cursor.set(leg.slot, match leg.start {
            Start::At(version) => Slot::At(version),
            Start::Any | Start::Recent | Start::Sync => Slot::Sync,
        });
        if unique && leg.phase == Phase::Live {
            leg.phase = Phase::Inventory;
            leg.start = Start::Sync;
        }
        if leg.phase != Phase::Live && (unique || self.budget.is_some()) {
            // Who has a name must be known, whatever it takes; kinds without namespaces have few objects.
            let budget = if unique { None } else { self.budget.clone() };
            leg.shadow = Some(Box::new(Shadow::new(budget)));
        }
        leg
    }

    /// How to ask this leg first. Not always what the client said: a union of names begins with an inventory.
    pub fn start(&self, leg: usize) -> Start {
        self.legs[leg].start
    }

    /// Bytes of a leg, in any cut. What follows an act for the same leg in these bytes is dropped. After it, also ask
    /// [`WatchMerge::next_act`]: what was held of other legs may be judged now.
    pub fn push(&mut self, leg: usize, chunk: Bytes, out: &mut Output) -> Result<Option<Act>, WatchError> {
        self.legs[leg].up = true;
        match self.read(leg, chunk, out) {
            Ok(()) => Ok(self.next_act()),
            Err(fault) => Err(WatchError {
                cluster: self.legs[leg].cluster.clone(),
                fault,
            }),
        }
    }

    /// Further acts of the last call.
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
            let why = format!("member {} stopped in the middle of its initial events", self.legs[leg].cluster);
            self.expire(why);
        }
        self.proceed(out);
        self.next_act()
    }

    /// Nothing more to read at the moment: a bookmark, if one is due and the client allows them.
    pub fn flush(&mut self, out: &mut Output) {
        self.wake(out);
        if self.due {
            self.mark(out);
        }
    }

    /// The planned end: a bookmark if the cursor moved since the last.
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
            shadow: leg.shadow.as_ref().map(|shadow| shadow.len()),
        }
    }

    /// What was sent of late, for resume.
    pub fn sent(&self) -> &Sent {
        &self.sent
    }
}
