//! One member's part in a merged watch: its stream, what its frames mean, and what the client holds of it.

use std::sync::Arc;

use bytes::Bytes;

use super::budget::Budget;
use super::change::{ShareChange, Way};
use super::decoder::FrameDecoder;
use super::known::{KnownObject, KnownObjects};
use super::state::{LegState, ResyncCause};
use super::table::LegColumns;
use super::{Start, WatchLeg};
use crate::filter::NamespaceFilter;

/// State of one leg. A few hundred bytes: there are thousands.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is true or not whatever the others are"
)]
pub(super) struct Leg {
    pub(super) cluster: Arc<str>,
    pub(super) uid_hash: u64,
    pub(super) slot: usize,
    pub(super) filter: Option<NamespaceFilter>,
    pub(super) share: Option<NamespaceFilter>,
    pub(super) request_hash: u64,
    pub(super) selector_hash: u64,
    /// From another share on the way to this one.
    pub(super) change: Option<Box<ShareChange>>,
    /// Whose objects were the caller's before the leg began to receive what left others; `None`: nobody's, or not known.
    pub(super) before: Option<Box<NamespaceFilter>>,
    pub(super) start: Start,
    pub(super) state: LegState,
    pub(super) stream: LegStream,
    /// Exactly what the client holds of it, or nothing is known.
    pub(super) known: Option<Box<KnownObjects>>,
    /// From this version on `known` is exact: what an inventory counted in is replayed until then.
    pub(super) exact_from: u64,
    /// The highest resourceVersion read of this member.
    pub(super) seen: u64,
    /// What came to it was another leg's: whether that is there now, a list of what was there where its stream stands does not
    /// tell.
    pub(super) takes_over: bool,
    /// Objects have to be sent again that were passed over for another leg's.
    pub(super) resend: bool,
    /// Its member sends no marker: it is asked without watch-list.
    pub(super) without_watch_list: bool,
    /// Nobody waits for its initial events any longer.
    pub(super) given_up: bool,
    /// Events of objects that its member was not asked for.
    pub(super) foreign: u64,
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
            share: spec.share,
            request_hash: spec.request_hash,
            selector_hash: spec.selector_hash,
            change: None,
            before: None,
            start: spec.start,
            state: LegState::starting(spec.start),
            stream: LegStream {
                decoder: FrameDecoder::new(frames),
                ..LegStream::default()
            },
            known: None,
            exact_from: 0,
            seen: 0,
            takes_over: false,
            resend: false,
            without_watch_list: false,
            given_up: false,
            foreign: 0,
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

    /// Whose objects are the caller's, whoever sorts them out; `None`: all that are asked for.
    pub(super) fn owned(&self) -> Option<&NamespaceFilter> {
        self.filter.as_ref().or(self.share.as_ref())
    }

    /// Asks from now on as the new plan has it. Whose objects were the caller's before.
    pub(super) fn adopt(&mut self, spec: WatchLeg) -> Option<NamespaceFilter> {
        let before = self.owned().cloned();
        if !self.state.receives() {
            self.before = before.clone().map(Box::new);
        }
        self.slot = spec.slot;
        self.filter = spec.filter;
        self.share = spec.share;
        self.request_hash = spec.request_hash;
        self.selector_hash = spec.selector_hash;
        before
    }

    /// As [`Leg::begin_resync`], of all that is the caller's.
    pub(super) fn begin_whole_resync(&mut self, cause: ResyncCause) -> Start {
        let entered = self.entered();
        self.change = None;
        let start = self.begin_resync(cause);
        self.state.note_entered(entered);
        start
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
            LegState::Live | LegState::Listing { .. } => false,
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

    /// What came with the share is told, or was and is told again by the stream that goes on from before.
    pub(super) fn is_entering(&self) -> bool {
        self.change.as_ref().is_some_and(|change| change.entering)
    }

    /// Whether what came is told as of where the stream stands, if it is on the way.
    fn entered(&self) -> Option<bool> {
        let change = self.change.as_ref().filter(|change| change.entering);
        change.map(|change| change.exactly)
    }

    /// The known objects are not all that the client holds.
    pub(super) fn knows_partly(&self) -> bool {
        self.change.as_ref().is_some_and(|change| change.partial)
    }

    /// Whether an object that left another leg may turn up here.
    pub(super) fn awaits(&self, key: &str) -> bool {
        let (namespace, name) = key.split_once('/').unwrap_or_default();
        let admits = |filter: &NamespaceFilter| filter.admits_key(namespace, name);
        self.state.receives() && self.owned().is_none_or(admits) && !self.before.as_deref().is_some_and(admits)
    }

    /// Whether under `spec` the same is the caller's as before.
    pub(super) fn shares_as(&self, spec: &WatchLeg) -> bool {
        self.share == spec.share && self.selector_hash == spec.selector_hash
    }

    /// How the leg can be told of its share under `spec` from where its stream stands, asked in the same way.
    pub(super) fn way_to(&self, spec: &WatchLeg) -> Way {
        let (Some(before), Some(after)) = (&self.share, &spec.share) else {
            return Way::Whole;
        };
        let same = self.selector_hash == spec.selector_hash && self.filter.is_some() == spec.filter.is_some();
        let settled = self.state.is_live() && self.change.is_none();
        let entering = self.is_entering() && (self.state.is_live() || self.state.is_resync());
        let gains = before.beyond(after).is_some_and(|left| left.is_empty());
        match (same, gains) {
            (true, true) if settled || entering => Way::Gains,
            (true, false) if settled => Way::Loses,
            _ => Way::Whole,
        }
    }

    /// Whether the client may be taken to hold what came back under `spec`, while what it held of an older view is being
    /// compared.
    pub(super) fn may_be_said_to_hold(&self, spec: &WatchLeg) -> bool {
        let (Some(before), Some(after)) = (&self.share, &spec.share) else {
            return false;
        };
        if !self.state.is_resync() || self.is_entering() {
            return false;
        }
        let back = |namespace: &str| after.admits(namespace) && !before.admits(namespace);
        let held = self.change.as_ref().and_then(|change| change.held.as_ref());
        let listed = held.is_some_and(|held| after.shares_beyond(before, held));
        let known = self.known.as_ref().is_some_and(|known| known.any_namespace(back));
        listed || known
    }

    /// Reads what came alone. `at`: where its stream stands.
    pub(super) fn begin_entering(
        &mut self,
        held: Option<NamespaceFilter>,
        (exact, at): (bool, u64),
        nothing: KnownObjects,
    ) -> Start {
        let change = self
            .change
            .get_or_insert_with(|| Box::new(ShareChange::of(held, true, !exact)));
        change.until = 0;
        change.exactly &= !self.takes_over;
        self.known.get_or_insert_with(|| Box::new(nothing));
        self.enter(ResyncCause::Replanned, at)
    }

    /// Reads what came, once more.
    pub(super) fn enter(&mut self, cause: ResyncCause, at: u64) -> Start {
        let otherwise = self.begin_resync(cause);
        let exactly = self.change.as_ref().is_some_and(|change| change.exactly);
        if exactly { Start::Came(at) } else { otherwise }
    }

    /// Whether anything came with the share that is told.
    pub(super) fn has_gained(&self, held: Option<&NamespaceFilter>) -> bool {
        let (Some(owned), Some(held)) = (self.owned(), held) else {
            return true;
        };
        owned.beyond(held).is_none_or(|came| !came.is_empty())
    }

    /// The client may hold more of it than its position says, or less.
    pub(super) fn is_untold(&self, at: u64) -> bool {
        let untold = match &self.change {
            // As of where the stream stands there is nothing more to it than to tell it again.
            Some(change) if change.entering => !(change.exactly || (1..=at).contains(&change.until)),
            _ => self.state.is_dirty(),
        };
        untold || self.resend
    }

    /// It is on its way to another share, or may receive what left others.
    pub(super) fn is_owed(&self) -> bool {
        let changes = self
            .change
            .as_ref()
            .is_some_and(|change| change.entering || change.leaving);
        changes || (self.state.is_resync() && self.state.receives())
    }

    /// Has what left of its share listed.
    pub(super) fn begin_leaving(&mut self, held: Option<NamespaceFilter>, nothing: KnownObjects) {
        self.begin_listing(held, ResyncCause::Replanned, nothing);
        if let Some(change) = &mut self.change {
            change.leaving = true;
        }
    }

    /// Has what the client holds listed; what is known of what came is kept. `held`: whose it is, if the share has just
    /// changed.
    pub(super) fn begin_listing(&mut self, held: Option<NamespaceFilter>, cause: ResyncCause, nothing: KnownObjects) {
        self.stream.reset();
        let entered = self.entered();
        let change = self
            .change
            .get_or_insert_with(|| Box::new(ShareChange::of(held, false, true)));
        change.entering = false;
        change.leaving = false;
        self.known.get_or_insert_with(|| Box::new(nothing));
        self.state.begin_listing(cause);
        self.state.note_entered(entered);
    }

    /// What is being listed may have this name, which is another leg's by now.
    pub(super) fn bar(&mut self, key: &str) {
        let barred = self.known.as_mut().is_some_and(|known| known.bar(key));
        if let Some(change) = &mut self.change {
            change.starved |= !barred;
        }
    }

    /// The known objects that a comparison with what came alone did not find.
    pub(super) fn sweep(&mut self) -> Vec<(Box<str>, KnownObject)> {
        let entering = self.change.as_ref().filter(|change| change.entering);
        let read = |key: &str| entering.is_none_or(|change| change.key_came(key));
        self.known.as_mut().map(|known| known.sweep(read)).unwrap_or_default()
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
