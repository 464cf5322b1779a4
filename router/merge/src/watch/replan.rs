//! The shard changed under a running watch: members join and leave, namespaces move, selectors change.
//!
//! What a leg no longer has is told only when every leg that came or changed is through with its state: an object may have
//! moved there, and then it was never gone. Legs of which it is not exactly known what the client holds cannot change.

use super::leg::Leg;
use super::output::Output;
use super::pending::PendingDelete;
use super::state::{LegState, ResyncCause};
use super::{Act, Expiry, Start, WatchLeg, WatchMerge};
use crate::cursor::{Cursor, Slot, Universe};

/// A leg of the plan before.
struct Old {
    leg: Leg,
    /// Its known objects were exactly what the client holds.
    exact: bool,
    position: Slot,
}

impl Old {
    /// Whether the client may hold objects of this leg.
    fn is_held(&self) -> bool {
        self.leg.state.is_dirty() || self.position.version().is_some()
    }
}

impl WatchMerge {
    /// The plan changed: from now on indexes of legs are those of `legs` (told apart by `cluster` and `uid_hash`) and slots
    /// those of `universe`. Legs that no act names keep their streams. Synthesized events may be in `out`.
    pub fn replan(&mut self, universe: &Universe, legs: Vec<WatchLeg>, out: &mut Output) -> Vec<Act> {
        let recovers = (0..self.legs.all.len()).any(|leg| self.is_in_order(leg, self.legs[leg].state));
        let mut old = self.take_legs(universe);
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
        for spec in legs {
            let same = |old: &&mut Option<Old>| old.as_ref().is_some_and(|old| old.leg.is(&spec));
            match old.iter_mut().find(same).and_then(Option::take) {
                Some(kept) => self.carry(kept, spec, names),
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
        legs.map(|(leg, (exact, position))| Some(Old { leg, exact, position }))
            .collect()
    }

    fn join(&mut self, spec: WatchLeg, names: bool) {
        let spec = WatchLeg {
            start: Start::Sync,
            ..spec
        };
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
        } = old;
        let changed = leg.filter != spec.filter || leg.request_hash != spec.request_hash;
        let gains = leg.only_gains(&spec) && position.version().is_some();
        if self.older_view && leg.may_be_said_to_hold(&spec) {
            let why = format!("what is asked of member {} changed", leg.cluster);
            self.acts.expire(Expiry::Changed, why);
        }
        let before = leg.adopt(spec);
        self.legs.cursor.set(leg.slot, position);
        if names && !held && leg.known.is_none() {
            leg.known = Some(Box::new(self.legs.nothing_known()));
        }
        if changed && held && self.barrier.is_closed() {
            self.too_early();
        }
        let counted = names && leg.state != LegState::Inventory;
        let cluster = leg.cluster.clone();
        let index = self.legs.all.len();
        self.legs.all.push(leg);
        if self.acts.expired {
            return;
        }
        let start = match (changed, held) {
            _ if counted && held && !exact => None,
            (false, _) => return,
            (true, false) => Some(self.begin_anew(index)),
            (true, true) if gains && (exact || self.legs.keeps_memory()) => {
                let nothing = self.legs.nothing_known();
                Some(self.legs[index].begin_entering(before, exact, nothing))
            }
            (true, true) if exact => Some(self.legs[index].begin_whole_resync(ResyncCause::Replanned)),
            (true, true) => self.list(index, before, ResyncCause::Replanned),
        };
        if let Some(start) = start {
            self.acts.restart(index, start);
        } else {
            let why = format!("what is asked of member {cluster} changed");
            self.acts.expire(Expiry::Changed, why);
        }
    }

    /// Asks a leg of which the client holds nothing as its new plan has it.
    fn begin_anew(&mut self, index: usize) -> Start {
        self.forget(index);
        let leg = &mut self.legs[index];
        leg.stream.reset();
        leg.state.replan();
        leg.start
    }

    /// What leaves cannot be told before the end of the initial events, and a client that resumed from there would keep it.
    fn too_early(&mut self) {
        let why = "the shard changed in the middle of the initial events".to_owned();
        self.acts.expire(Expiry::Changed, why);
    }

    fn leave(&mut self, mut old: Old) {
        if !old.is_held() {
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
