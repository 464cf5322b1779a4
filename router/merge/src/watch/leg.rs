//! One member's part in a merged watch: its stream, what its frames mean, and what the client holds of it.

use std::sync::Arc;

use bytes::Bytes;

use super::budget::Budget;
use super::decoder::FrameDecoder;
use super::known::{KnownObject, KnownObjects};
use super::state::{LegState, ResyncCause};
use super::table::LegColumns;
use super::{Start, WatchLeg};
use crate::filter::NamespaceFilter;

/// State of one leg. A few hundred bytes: there are thousands.
#[derive(Debug)]
pub(super) struct Leg {
    pub(super) cluster: Arc<str>,
    pub(super) uid_hash: u64,
    pub(super) slot: usize,
    pub(super) filter: Option<NamespaceFilter>,
    pub(super) request_hash: u64,
    pub(super) start: Start,
    pub(super) state: LegState,
    pub(super) stream: LegStream,
    /// Exactly what the client holds of it, or nothing is known.
    pub(super) known: Option<Box<KnownObjects>>,
    /// From this version on `known` is exact: what an inventory counted in is replayed until then.
    pub(super) exact_from: u64,
    /// The highest resourceVersion read of this member.
    pub(super) seen: u64,
    /// Objects have to be sent again that were passed over for another leg's.
    pub(super) resend: bool,
    /// Its member sends no marker: it is asked without watch-list.
    pub(super) without_watch_list: bool,
    /// Nobody waits for its initial events any longer.
    pub(super) given_up: bool,
}

/// The connection that a leg's bytes come from.
#[derive(Debug, Default)]
pub(super) struct LegStream {
    pub(super) decoder: FrameDecoder,
    /// Bytes behind the marker of a leg that waits for the others.
    pub(super) buffered: Bytes,
    pub(super) columns: LegColumns,
    /// Bytes came since it was connected last.
    pub(super) up: bool,
    /// It sent a bookmark since our last, on this connection or an earlier one.
    pub(super) bookmarked: bool,
    /// During a resync: its last bookmark that said less than was read before.
    pub(super) below: u64,
}

impl Leg {
    pub(super) fn new(spec: WatchLeg, frames: Option<Budget>) -> Self {
        Self {
            cluster: spec.cluster,
            uid_hash: spec.uid_hash,
            slot: spec.slot,
            filter: spec.filter,
            request_hash: spec.request_hash,
            start: spec.start,
            state: LegState::starting(spec.start),
            stream: LegStream {
                decoder: FrameDecoder::new(frames),
                ..LegStream::default()
            },
            known: None,
            exact_from: 0,
            seen: 0,
            resend: false,
            without_watch_list: false,
            given_up: false,
        }
    }

    /// Whether this is the leg of the member that `spec` names.
    pub(super) fn is(&self, spec: &WatchLeg) -> bool {
        self.cluster == spec.cluster && self.uid_hash == spec.uid_hash
    }

    /// Nobody waits for its initial events: it is through with them, or was given up.
    pub(super) fn is_through(&self) -> bool {
        self.state.is_live() || self.given_up
    }

    /// Drops its stream: from the next on its frames tell what is there, to be compared with the known objects.
    pub(super) fn begin_resync(&mut self, cause: ResyncCause) -> Start {
        self.stream.reset();
        if let Some(known) = &mut self.known {
            known.begin_pass();
        }
        self.state.begin_resync(cause, self.seen);
        Start::Sync
    }

    /// Whether the member's state ends without a marker.
    pub(super) fn ends_unmarked(&self) -> bool {
        match self.state {
            LegState::Live => false,
            LegState::Initial { .. } => self.without_watch_list || self.start != Start::Sync,
            LegState::Inventory | LegState::Resync { .. } => self.without_watch_list,
        }
    }

    /// Takes an object out of the known ones.
    pub(super) fn forget(&mut self, key: &str) -> Option<KnownObject> {
        self.known.as_mut()?.remove(key)
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.known.as_ref().is_some_and(|known| known.has(key))
    }
}

impl LegStream {
    /// Nothing of the stream counts any more; what comes next is of another one.
    pub(super) fn reset(&mut self) {
        self.decoder.reset();
        self.buffered = Bytes::new();
        self.columns.reset();
        self.up = false;
        self.below = 0;
    }

    /// Keeps bytes behind those that are kept already: a leg may be no longer paused before it is read on.
    pub(super) fn buffer(&mut self, rest: Bytes) {
        self.buffered = if self.buffered.is_empty() {
            rest
        } else {
            [&self.buffered[..], &rest].concat().into()
        };
    }
}
