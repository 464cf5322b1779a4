//! The shard changed under a running watch: members join and leave, namespaces move, selectors change.
//!
//! What a leg no longer has is told only when every leg to which just that may have moved is through with its state: then it
//! was never gone. A leg that has the same as before, asked for in another way, is no such leg. Legs of a union of names of which it
//! is not exactly known what the client holds cannot change.

use std::sync::Arc;

use super::change::Way;
use super::known::KnownObject;
use super::leg::Leg;
use super::output::Output;
use super::pending::PendingDelete;
use super::state::{LegState, ResyncCause};
use super::{Act, Expiry, Start, WatchLeg, WatchMerge};
use crate::cursor::{Cursor, Slot, Universe};
use crate::filter::NamespaceFilter;

/// A leg of the plan before.
struct Old {
    leg: Leg,
    /// Its known objects were exactly what the client holds.
    exact: bool,
    position: Slot,
    /// Something that another leg had comes here.
    takes_over: bool,
}

impl Old {
    /// Whether the client may hold objects of this leg.
    fn is_held(&self) -> bool {
        self.leg.state.is_dirty() || self.position.version().is_some()
    }

    /// None of the member's objects were the caller's, and all is told of those that were before.
    fn had_nothing(&self) -> bool {
        let nothing = self.leg.share.as_ref().is_some_and(NamespaceFilter::is_nothing);
        nothing && self.leg.state.is_live() && self.leg.change.is_none()
    }
}

/// What a leg of the plan before had, and has not told of having lost.
struct Had {
    cluster: Arc<str>,
    filters: [Option<NamespaceFilter>; 2],
}

impl Had {
    fn of(leg: &Leg) -> Self {
        let owed = leg.before.as_deref().filter(|_| leg.is_owed());
        Self {
            cluster: leg.cluster.clone(),
            filters: [leg.owned().cloned(), owed.or(leg.owned()).cloned()],
        }
    }

    /// Whether some of it comes to the other leg under `spec`.
    fn loses_to(&self, leg: &Leg, spec: &WatchLeg) -> bool {
        let (Some(before), Some(after)) = (&leg.share, &spec.share) else {
            return true;
        };
        let had = |had: &Option<NamespaceFilter>| had.as_ref().is_none_or(|had| after.shares_beyond(before, had));
        self.cluster != leg.cluster && self.filters.iter().any(had)
    }
}

impl WatchMerge {
    /// The plan changed: from now on indexes of legs are those of `legs` (told apart by `cluster` and `uid_hash`) and slots
    /// those of `universe`. Legs that no act names keep their streams. Synthesized events may be in `out`.
    pub fn replan(&mut self, universe: &Universe, legs: Vec<WatchLeg>, out: &mut Output) -> Vec<Act> {
        let before = self.legs.cursor.clone();
        let recovers = (0..self.legs.all.len()).any(|leg| self.is_in_order(leg, self.legs[leg].state));
        let mut old = self.take_legs(universe);
        self.view.change(&before, &self.legs.cursor);
        self.sent.renumber();
        let new_slot = |slot: usize| {
            let old = old.iter().flatten().find(|old| old.leg.slot == slot)?;
            Some(legs.iter().find(|new| old.leg.is(new))?.slot)
        };
        self.barrier.renumber(new_slot);
        for delete in self.deletes.values_mut() {
            delete.slot = delete.slot.and_then(new_slot);
        }
        let members = old.iter().flatten().map(|old| (&old.leg.cluster, old.leg.uid_hash));
        if self.legs.unique && !members.eq(legs.iter().map(|leg| (&leg.cluster, leg.uid_hash))) {
            // Who wins a name may be another one now, and of names that several have the client may hold any.
            let why = "the members of a union of names changed".to_owned();
            self.acts.expire(Expiry::Changed, why);
        }
        if !self.order.is_empty() || (recovers && legs.len() != 1) {
            let why = "the shard changed while what its only member has was compared".to_owned();
            self.acts.expire(Expiry::Changed, why);
        }
        let names = self.legs.unique && legs.len() > 1;
        let had: Vec<Had> = old.iter().flatten().map(|old| Had::of(&old.leg)).collect();
        for spec in legs {
            let same = |old: &&mut Option<Old>| old.as_ref().is_some_and(|old| old.leg.is(&spec));
            match old.iter_mut().find(same).and_then(Option::take) {
                Some(mut kept) => {
                    kept.takes_over = had.iter().any(|had| had.loses_to(&kept.leg, &spec));
                    self.carry(kept, spec, names);
                }
                None => self.join(spec, names),
            }
        }
        for old in old.into_iter().flatten() {
            self.leave(old);
        }
        self.bookmarks.due = true;
        self.bookmarks.moved = true;
        self.proceed(out);
        self.acts.drain()
    }

    fn take_legs(&mut self, universe: &Universe) -> Vec<Option<Old>> {
        let known: Vec<(bool, Slot)> = (0..self.legs.all.len())
            .map(|leg| (self.legs.exact(leg), self.legs.position(leg)))
            .collect();
        // Positions of members that are not asked stay.
        let unasked = |cursor: Cursor, leg: &Leg| cursor.with(leg.slot, Slot::Unasked);
        let others = self.legs.all.iter().fold(self.legs.cursor.clone(), unasked);
        self.legs.cursor = others.renewed(universe);
        let legs = std::mem::take(&mut self.legs.all).into_iter().zip(known);
        let old = |(leg, (exact, position))| Old {
            leg,
            exact,
            position,
            takes_over: false,
        };
        legs.map(|leg| Some(old(leg))).collect()
    }

    fn join(&mut self, spec: WatchLeg, names: bool) {
        let spec = WatchLeg {
            start: Start::Sync,
            ..spec
        };
        self.view.forget();
        // Whatever is known of the member is of other collections.
        self.legs.cursor = self.legs.cursor.clone().with(spec.slot, Slot::Unasked);
        let leg = self.legs.admit(spec, names);
        leg.state.replan();
        let start = leg.start;
        self.acts.restart(self.legs.all.len() - 1, start);
    }

    fn carry(&mut self, old: Old, spec: WatchLeg, names: bool) {
        let held = old.is_held();
        let Old {
            mut leg,
            exact,
            position,
            takes_over,
        } = old;
        let changed = leg.filter != spec.filter || leg.request_hash != spec.request_hash;
        let same_share = leg.shares_as(&spec);
        let way = leg.way_to(&spec);
        if self.older_view && leg.may_be_said_to_hold(&spec) {
            let why = format!("what is asked of member {} changed", leg.cluster);
            self.acts.expire(Expiry::Changed, why);
        }
        let before = leg.adopt(spec);
        self.legs.cursor.set(leg.slot, position);
        if names && !held && leg.known.is_none() {
            leg.known = Some(Box::new(self.legs.nothing_known()));
        }
        if changed && held && !same_share && self.barrier.is_closed() {
            self.too_early();
        }
        let counted = names && leg.state != LegState::Inventory;
        let cluster = leg.cluster.clone();
        let index = self.legs.all.len();
        self.legs.all.push(leg);
        if self.acts.expired {
            return;
        }
        let cause = if same_share {
            ResyncCause::Asked
        } else {
            ResyncCause::Replanned
        };
        let start = match (changed, held) {
            (false, _) => return,
            _ if counted && held && !exact => None,
            (true, false) => Some(self.begin_anew(index, same_share)),
            (true, true) => match (way, position) {
                (Way::Gains | Way::Loses, Slot::At(at)) if !same_share && (exact || self.legs.can_list()) => {
                    self.legs[index].takes_over = takes_over;
                    Some(self.change_share(index, before, (way, exact, at)))
                }
                _ if exact => Some(self.legs[index].begin_whole_resync(cause)),
                _ => self.list(index, before, cause),
            },
        };
        if let Some(start) = start {
            self.acts.restart(index, start);
        } else {
            let why = format!("what is asked of member {cluster} changed");
            self.acts.expire(Expiry::Changed, why);
        }
    }

    /// Tells a leg of its new share from where its stream stands.
    fn change_share(
        &mut self,
        index: usize,
        held: Option<NamespaceFilter>,
        (way, exact, at): (Way, bool, u64),
    ) -> Start {
        let nothing = self.legs.nothing_known();
        if way == Way::Loses && !exact {
            self.legs[index].begin_leaving(held, nothing);
            return Start::Exact(at);
        }
        if way == Way::Loses {
            let leg = &mut self.legs[index];
            let owned = leg.owned().cloned();
            let left = leg.known.as_mut().map(|known| {
                known.extract(|key| {
                    let (namespace, name) = key.split_once('/').unwrap_or_default();
                    owned.as_ref().is_some_and(|owned| !owned.admits_key(namespace, name))
                })
            });
            self.leave_behind(index, left.unwrap_or_default(), at);
        }
        self.go_on_with(index, held, (exact, at))
    }

    /// These have left a leg's share, as of where its stream stands.
    pub(super) fn leave_behind(&mut self, index: usize, left: Vec<(Box<str>, KnownObject)>, at: u64) {
        for (key, object) in left {
            let delete = PendingDelete::of(object, at, &self.legs[index]);
            // Of an older view the client may hold it or not: if it comes back it is told.
            let client_version = if self.older_view { 0 } else { delete.client_version };
            let delete = PendingDelete {
                client_version,
                ..delete
            };
            self.delete_later(key, delete);
        }
    }

    /// What came to a leg is read, if anything did, and its stream goes on.
    pub(super) fn go_on_with(
        &mut self,
        index: usize,
        held: Option<NamespaceFilter>,
        (exact, at): (bool, u64),
    ) -> Start {
        let nothing = self.legs.nothing_known();
        let leg = &mut self.legs[index];
        if leg.has_gained(held.as_ref()) {
            return leg.begin_entering(held, (exact, at), nothing);
        }
        leg.stream.reset();
        Start::At(at)
    }

    /// Asks a leg of which the client holds nothing as its new plan has it.
    fn begin_anew(&mut self, index: usize, same_share: bool) -> Start {
        self.forget(index);
        let leg = &mut self.legs[index];
        leg.stream.reset();
        if !same_share {
            leg.state.replan();
        }
        leg.start
    }

    /// What leaves cannot be told before the end of the initial events, and a client that resumed from there would keep it.
    fn too_early(&mut self) {
        let why = "the shard changed in the middle of the initial events".to_owned();
        self.acts.expire(Expiry::Changed, why);
    }

    fn leave(&mut self, mut old: Old) {
        self.view.forget();
        if !old.is_held() || old.had_nothing() {
            return;
        }
        if self.barrier.is_closed() {
            self.too_early();
        } else if !old.exact {
            let why = format!("member {} left", old.leg.cluster);
            self.acts.expire(Expiry::Changed, why);
            return;
        }
        let objects = old.leg.known.as_mut().map(|known| known.drain());
        for (key, object) in objects.into_iter().flatten() {
            self.deletes.insert(key, PendingDelete::left(object, &old.leg));
        }
    }
}
