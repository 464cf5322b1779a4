//! What a merged watch is made of, and the words in which it speaks to the side that does its IO.

use std::sync::Arc;

use super::budget::Budget;
use crate::cursor::{Cursor, Slot};
use crate::filter::NamespaceFilter;

/// The largest frame of a member, 16 MiB: etcd refuses objects of 1.5 MiB, servers may be set higher.
pub const LARGEST_FRAME: usize = 16 * 1024 * 1024;

/// The encoding of the client's stream and of all members' streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchFormat {
    /// One JSON event per line.
    Json,
    /// Four bytes of length before each event.
    Protobuf,
    /// JSON events that carry Tables. Members must be asked for `includeObject=Metadata` or `Object`.
    Table,
}

/// What a [`WatchMerge`](super::WatchMerge) is made of.
#[expect(clippy::struct_excessive_bools, reason = "what the client asked for, each by itself")]
pub struct WatchSpec {
    /// The encoding of the client's stream and of every leg's.
    pub format: WatchFormat,
    /// The client allows bookmarks. Legs are asked for them always.
    pub bookmarks: bool,
    /// Watch-list: the client waits for the end of the initial events.
    pub initial_events: bool,
    /// Where the client stands; slots of members that are not asked are kept as they are.
    pub cursor: Cursor,
    /// The legs, in `clusters[]` order; for unions of cluster-scoped kinds the primary first.
    pub legs: Vec<WatchLeg>,
    /// A union of names (cluster-scoped kinds): one name once, the earlier leg wins.
    pub unique: bool,
    /// Tables get a column that names the member.
    pub cluster_column: bool,
    /// What may be remembered of keys, to resync a leg after its member's 410 without the client: `None`: nothing. A union of names cannot
    /// do without: it expires when this is used up, and `None` sets it no bound.
    pub known_objects: Option<Budget>,
}

/// One member's part in a merged watch.
#[derive(Clone, Debug)]
pub struct WatchLeg {
    /// The member's name, for errors and the CLUSTER column.
    pub cluster: Arc<str>,
    /// A hash of the member's UID: another cluster may get its name, and has nothing of what it had.
    pub uid_hash: u64,
    /// The member's slot in the cursor's universe.
    pub slot: usize,
    /// Which namespaces are the caller's; `None`: all that the member sends.
    pub filter: Option<NamespaceFilter>,
    /// Which namespaces are the caller's, whether the router sorts them out or the member does; nothing else passes. `None`: all.
    pub share: Option<NamespaceFilter>,
    /// A hash of what else the member is asked (selectors, path): [`super::WatchMerge::replan`] tells a change by it.
    pub request_hash: u64,
    /// A hash of what of that is not about namespaces.
    pub selector_hash: u64,
    /// Where the leg begins, as the client's request has it.
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
    /// `sendInitialEvents=true&resourceVersionMatch=NotOlderThan` without a version: consistent, until the marker. Of members
    /// that refuse it the core must know ([`super::WatchMerge::disable_watch_list`]).
    Sync,
    /// No watch: a LIST of metadata with `resourceVersionMatch=Exact` at this version, asked as the plan before had it if
    /// the plan has just changed, for [`super::WatchMerge::listed`].
    Exact(u64),
    /// No watch either: a LIST of whole objects with `resourceVersionMatch=Exact` at this version, to be pushed as the events
    /// that [`super::Came`] makes of it. Of members that do not list so the core must know
    /// ([`super::WatchMerge::reads_what_came_by_watching`]).
    Came(u64),
}

/// What the side that does the IO is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Drop what is left of this leg's stream, wait as back-off says, connect again from there.
    Restart {
        /// Index of the leg.
        leg: usize,
        /// From where the member is to send.
        start: Start,
    },
    /// One in-stream `410 Expired`, then the end: only the client's own relist helps.
    Expired {
        /// For metrics.
        cause: Expiry,
        /// The message of the Status; names the member.
        why: String,
    },
}

/// Why only the client's own relist helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// The member has compacted what the client goes on from.
    Compacted,
    /// No memory is left for keys, or none is to be used.
    Memory,
    /// The shard changed in a way that this stream cannot follow.
    Changed,
    /// What has left is known by its metadata alone, and the client reads whole objects only.
    Metadata,
    /// The member is not what it was: it went back, serves the kind no more, or stopped in the middle.
    Member,
}

/// A member that does not speak as an API server does. Treat as [`super::WatchMerge::lost`], and count it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("member {cluster}: {fault}")]
pub struct WatchError {
    /// The member whose stream it is.
    pub cluster: Arc<str>,
    /// What is wrong with the stream.
    pub fault: WatchFault,
}

/// What is wrong with a member's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchFault {
    /// Above [`LARGEST_FRAME`], or above what all watches together may hold of unfinished frames.
    #[error("an event of more than {LARGEST_FRAME} bytes, or too many large ones at once")]
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
    /// The leg's position in the client's cursor.
    pub slot: Slot,
    /// The highest version that was read of the leg; the fence waits for this.
    pub seen: u64,
    /// The leg's initial events are over and it is not being resynced.
    pub synced: bool,
    /// Keys remembered of the objects that the client holds of it; `None`: none are (any more).
    pub known_objects: Option<usize>,
}
