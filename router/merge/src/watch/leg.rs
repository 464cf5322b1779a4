//! One member's part in a merged watch: what it is in the middle of, and what the client holds of it.

use std::sync::Arc;

use bytes::Bytes;

use super::decoder::FrameDecoder;
use super::known::KnownObjects;
use super::table::LegColumns;
use super::{Start, WatchLeg};
use crate::filter::NamespaceFilter;
use crate::object_meta::ObjectMeta;

/// What the frames of a leg mean at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// What is there, as ADDED; the client has nothing of it. Ends at the marker; of a member that sends none, at a bookmark
    /// or anything but ADDED, and so do the two below.
    Initial,
    /// What happens.
    Live,
    /// What is there, to be compared with the known. Ends at the marker.
    Resync,
    /// What is there, for the known alone; the client has been told of it in an earlier stream. Ends at the marker, then
    /// the leg is asked again, from where the client stands.
    Inventory,
}

/// State of one leg. A few hundred bytes: there are thousands.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "facts that do not exclude each other")]
pub(super) struct Leg {
    pub(super) cluster: Arc<str>,
    pub(super) uid_hash: u64,
    pub(super) slot: usize,
    pub(super) filter: Option<NamespaceFilter>,
    pub(super) request_hash: u64,
    pub(super) start: Start,
    pub(super) phase: Phase,
    pub(super) split: FrameDecoder,
    /// Bytes behind the marker of a leg that waits for the others.
    pub(super) held: Bytes,
    /// Exactly what the client holds of it, or nothing is known.
    pub(super) known: Option<Box<KnownObjects>>,
    /// From this version on the known is exact: what was counted in is replayed until then.
    pub(super) exact_from: u64,
    /// The highest version read.
    pub(super) seen: u64,
    /// The highest version that had been read when its comparison began: until then its member only catches up.
    pub(super) caught_up: u64,
    /// Its last bookmark since then that said less.
    pub(super) below: u64,
    /// The client holds some of its objects, but no position says which.
    pub(super) dirty: bool,
    /// Came or changed with the plan and is not through yet: what left other legs may turn up here.
    pub(super) moving: bool,
    /// It is asked for other objects than those that its known is of.
    pub(super) changed: bool,
    /// Objects have to be sent again that were passed over for another leg's.
    pub(super) again: bool,
    /// Its member sends no marker: it was asked without watch-list.
    pub(super) without_watch_list: bool,
    /// Nobody waits for its initial events any longer.
    pub(super) given_up: bool,
    /// Bytes came since it was connected last.
    pub(super) up: bool,
    /// It sent a bookmark since our last.
    pub(super) marked: bool,
    /// The marker said version 1 of it: no bookmark says less.
    pub(super) early: bool,
    pub(super) columns: LegColumns,
}

impl Leg {
    pub(super) fn new(leg: WatchLeg) -> Self {
        let phase = match leg.start {
            Start::At(_) => Phase::Live,
            Start::Any | Start::Recent | Start::Sync => Phase::Initial,
        };
        Self {
            cluster: leg.cluster,
            uid_hash: leg.uid_hash,
            slot: leg.slot,
            filter: leg.filter,
            request_hash: leg.request_hash,
            start: leg.start,
            phase,
            split: FrameDecoder::default(),
            held: Bytes::new(),
            known: None,
            exact_from: 0,
            seen: 0,
            caught_up: 0,
            below: 0,
            dirty: false,
            moving: false,
            changed: false,
            again: false,
            without_watch_list: false,
            given_up: false,
            up: false,
            marked: false,
            early: false,
            columns: LegColumns::default(),
        }
    }

    /// Whether it is this member's leg.
    pub(super) fn is(&self, spec: &WatchLeg) -> bool {
        self.cluster == spec.cluster && self.uid_hash == spec.uid_hash
    }

    pub(super) fn admits(&self, meta: &ObjectMeta<'_>) -> bool {
        self.filter
            .as_ref()
            .is_none_or(|filter| filter.admits(if filter.by_name() { &meta.name } else { &meta.namespace }))
    }

    /// Nothing of its stream counts any more; what comes next is of another one.
    pub(super) fn cut(&mut self) {
        self.split.reset();
        self.held = Bytes::new();
        self.up = false;
        self.below = 0;
        self.columns.reset();
    }

    /// From now on its frames tell what is there, to be compared with the known.
    pub(super) fn compare(&mut self) -> Start {
        if let Some(known) = &mut self.known {
            known.begin();
        }
        self.phase = Phase::Resync;
        self.caught_up = self.seen;
        Start::Sync
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.known.as_ref().is_some_and(|known| known.has(key))
    }
}
