//! Many members' watch streams → one stream that a client takes for one API server's.
//!
//! Bytes of any cut come in per leg, whole frames and bookmarks with the merged cursor go out; what the machine wants done
//! to a leg is an [`Act`]. It knows no sockets, no clocks and no HTTP: `fanout` of the router connects the legs, waits where
//! waiting is due and writes what is in [`Output`]. What an event says beyond type, version and key is never read.
//!
//! # Inside
//! A `Leg` is in one `LegState` and holds, within a budget, the keys that the client has of its member. Each frame of it is
//! read as far as its metadata and means something by that state (`frame`). What is not sent on at once waits: for the end
//! of all legs' initial events behind the `Barrier`, as a pending deletion that may turn out to be a move, as the next
//! bookmark (`pending`). `Sent` knows which cursor each version that was sent stands for.
//!
//! ```
//! use portolan_merge::cursor::{Cursor, Slot, Universe};
//! use portolan_merge::watch::{Output, Start, WatchFormat, WatchLeg, WatchMerge, WatchSpec};
//!
//! let universe = Universe::new("shard", ["uid-of-east".to_owned()]);
//! let leg = WatchLeg {
//!     cluster: "east".into(),
//!     uid_hash: 1,
//!     slot: 0,
//!     filter: None,
//!     share: None,
//!     request_hash: 0,
//!     selector_hash: 0,
//!     start: Start::At(7),
//! };
//! let mut merge = WatchMerge::new(WatchSpec {
//!     format: WatchFormat::Json,
//!     bookmarks: true,
//!     initial_events: false,
//!     cursor: Cursor::new(&universe),
//!     legs: vec![leg],
//!     unique: false,
//!     cluster_column: false,
//!     known_objects: None,
//! });
//! let mut out = Output::default();
//! let object = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","resourceVersion":"9"}}"#;
//! let event = format!("{{\"type\":\"ADDED\",\"object\":{object}}}\n");
//! let act = merge.push(0, event.clone().into(), &mut out)?;
//! assert_eq!(act, None, "the leg's stream goes on");
//! merge.flush(&mut out);
//! assert_eq!(out.pop().unwrap(), event, "members' frames are sent as they came");
//! assert!(out.pop().unwrap().starts_with(b"{\"type\":\"BOOKMARK\""), "with the merged cursor");
//! assert_eq!(merge.cursor().slot(0), Slot::At(9));
//! # Ok::<(), portolan_merge::watch::WatchError>(())
//! ```

use bytes::Bytes;

use crate::cursor::Cursor;

mod barrier;
mod bookmark;
mod budget;
mod came;
mod change;
mod compose;
mod decoder;
mod emitter;
mod event;
mod frame;
mod known;
mod leg;
mod legs;
mod listing;
mod order;
mod output;
mod pending;
mod replan;
mod resync;
mod sent;
mod spans;
mod spec;
mod state;
mod table;
mod view;

use barrier::Barrier;
use emitter::Emitter;
use legs::Legs;
use order::Order;
use pending::{Acts, NextBookmark, PendingDeletes};
use state::LegState;
use view::View;

pub use budget::Budget;
pub use came::{Came, CameFault};
pub use listing::{Listing, ListingFault};
pub use output::Output;
pub use sent::Sent;
pub(crate) use sent::{KEPT, Position};
pub(crate) use spans::Spans;
pub use spec::{Act, Expiry, LARGEST_FRAME, LegView, Start, WatchError, WatchFault, WatchFormat, WatchLeg, WatchSpec};

/// One merged watch.
pub struct WatchMerge {
    legs: Legs,
    barrier: Barrier,
    deletes: PendingDeletes,
    bookmarks: NextBookmark,
    acts: Acts,
    emitter: Emitter,
    sent: Sent,
    order: Order,
    view: View,
    /// What its legs had at the beginning is more than the client may hold: what came and went since may be in it.
    older_view: bool,
    /// The client cannot read a DELETED of metadata alone.
    whole_objects: bool,
    /// So it was not told of something that has left.
    untold: bool,
    /// The key of the frame under way, written anew for each, so that no event allocates one.
    key: String,
}

/// How much was put out so far; for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Events of members' objects, synthesized ones included.
    pub events: u64,
    /// Bookmarks with the merged cursor.
    pub bookmarks: u64,
}

impl WatchMerge {
    /// A merged watch of these legs. Nothing happens before legs are connected: ask [`WatchMerge::start`] how.
    pub fn new(spec: WatchSpec) -> Self {
        let mut merge = Self {
            legs: Legs::new(spec.cursor, spec.unique, spec.known_objects),
            barrier: Barrier::new(spec.initial_events),
            deletes: PendingDeletes::new(),
            bookmarks: NextBookmark::new(spec.bookmarks),
            acts: Acts::default(),
            emitter: Emitter::new(spec.format, spec.cluster_column),
            sent: Sent::default(),
            order: Order::default(),
            view: View::default(),
            older_view: false,
            whole_objects: false,
            untold: false,
            key: String::new(),
        };
        let names = spec.unique && spec.legs.len() > 1;
        for leg in spec.legs {
            merge.legs.admit(leg, names);
        }
        merge.rebase();
        merge
    }

    /// The client of a Table wants its rows without their objects; members must send the objects' metadata all the same.
    #[must_use]
    pub fn hiding_objects(mut self) -> Self {
        self.emitter.hide_objects();
        self
    }

    /// The client may go on from any object's version, here or elsewhere: it is told the only member's history in order, also
    /// where the member has forgotten it and its state is told instead.
    #[must_use]
    pub fn in_order(mut self) -> Self {
        self.order.keep();
        self
    }

    /// The first plan is of an older view of the shard, as far as that is known: namespaces that came and went since may be
    /// in it, of which the client holds nothing.
    #[must_use]
    pub fn of_older_view(mut self) -> Self {
        self.older_view = true;
        self
    }

    /// The client reads whole objects only: what has left, and no member has told of, is told by a 410
    /// ([`WatchMerge::expire_untold`]) and not by its metadata.
    #[must_use]
    pub fn of_whole_objects(mut self) -> Self {
        self.whole_objects = true;
        self
    }

    /// What may be held of large frames that are not whole yet, and of what is told in order. Without it each leg may hold one
    /// of [`LARGEST_FRAME`].
    #[must_use]
    pub fn bounded(mut self, frames: Budget) -> Self {
        self.order.bound(frames.clone());
        self.legs.bound_frames(frames);
        self
    }

    /// Notes what is sent there, where [`crate::resume::Resume`] sees it; to be called before anything is read.
    #[must_use]
    pub fn recorded(mut self, sent: Sent) -> Self {
        self.sent = sent;
        self.rebase();
        self
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

    /// Takes bytes of a leg, in any cut. What follows an act for the same leg in these bytes is dropped. After it, also ask
    /// [`WatchMerge::next_act`]: frames of other legs that were kept may be handled now.
    pub fn push(&mut self, leg: usize, chunk: Bytes, out: &mut Output) -> Result<Option<Act>, WatchError> {
        if self.acts.restarts(leg) {
            // Nobody has asked for the acts yet: these bytes are of the stream that is to be dropped.
            return Ok(self.next_act());
        }
        let stream = &mut self.legs[leg].stream;
        stream.up = true;
        stream.buffer(chunk);
        let chunk = std::mem::take(&mut stream.buffered);
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
        self.acts.pop()
    }

    /// The leg's stream ended or broke, or never began: what is due now.
    pub fn lost(&mut self, leg: usize) -> Act {
        if self.legs[leg].state == LegState::Inventory {
            // The others need not wait for one that cannot be reached.
            self.legs[leg].given_up = true;
        }
        self.restart(leg, None)
    }

    /// Whether not to read this leg now: it waits for the others' initial events. What is pushed all the same is kept.
    pub fn paused(&self, leg: usize) -> bool {
        let this = &self.legs[leg];
        self.barrier.holds(this) || (this.state.is_live() && self.legs.awaits_names())
    }

    /// Do not wait for this leg's initial events any longer; `Expired` if the client already has some of them.
    pub fn give_up(&mut self, leg: usize, out: &mut Output) -> Option<Act> {
        self.legs[leg].given_up = true;
        if self.barrier.is_closed() && self.legs[leg].state.is_dirty() {
            let cluster = &self.legs[leg].cluster;
            let why = format!("member {cluster} stopped in the middle of its initial events");
            self.acts.expire(Expiry::Member, why);
        }
        self.proceed(out);
        self.next_act()
    }

    /// The leg's member does not serve the kind: nobody waits for it. A client that goes on with a union of names from when
    /// it was served must list: what it holds of it cannot be counted in, and nothing of the others is told before that.
    pub fn absent(&mut self, leg: usize, out: &mut Output) -> Option<Act> {
        if self.legs[leg].state == LegState::Inventory {
            let cluster = &self.legs[leg].cluster;
            let why = format!("member {cluster} does not serve the kind any more");
            self.acts.expire(Expiry::Member, why);
            return self.next_act();
        }
        self.give_up(leg, out)
    }

    /// Whether something has left that the client cannot be told by an event: of an object's metadata alone, where it reads whole ones.
    /// Until it lists, no bookmark says where it stands.
    pub fn has_untold(&self) -> bool {
        self.untold
    }

    /// Ends the stream so that the client lists, if there is anything it could not be told of; to be called when a list can be had.
    pub fn expire_untold(&mut self) {
        if self.untold {
            let why = "what has left can only be told by its metadata, which this client may not read".to_owned();
            self.acts.expire(Expiry::Metadata, why);
        }
    }

    /// Nothing more is to be read at the moment: writes a bookmark, if one is due and the client allows them.
    pub fn flush(&mut self, out: &mut Output) {
        self.read_buffered(out);
        if self.bookmarks.due {
            self.bookmark(out);
        }
    }

    /// The planned end: writes a bookmark, unless the last one says the same. Before the first word of any member there is none: of
    /// what type it would have to be is not known.
    pub fn close(&mut self, out: &mut Output) {
        if self.bookmarks.due || self.bookmarks.moved {
            self.bookmark(out);
        }
    }

    /// Where the client stands when it has read all that was put out. Not a place to resume from while initial events are
    /// under way: [`WatchMerge::sent`] knows.
    pub fn cursor(&self) -> &Cursor {
        &self.legs.cursor
    }

    /// How far a leg is.
    pub fn leg_state(&self, leg: usize) -> LegView {
        let this = &self.legs[leg];
        LegView {
            slot: self.legs.position(leg),
            seen: this.seen,
            synced: this.state.is_live(),
            known_objects: this.known.as_ref().map(|known| known.len()),
        }
    }

    /// Events left out since this was asked last: of objects that the leg's member was not asked for, and sent all the same.
    pub fn take_foreign(&mut self, leg: usize) -> u64 {
        std::mem::take(&mut self.legs[leg].foreign)
    }

    /// What was put out so far.
    pub fn counts(&self) -> Counts {
        self.emitter.counts
    }

    /// What was sent of late, for [`crate::resume::Resume`].
    pub fn sent(&self) -> &Sent {
        &self.sent
    }
}

#[cfg(test)]
mod tests;
