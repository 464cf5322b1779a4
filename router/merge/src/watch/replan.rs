//! The shard changed under a running watch: members join and leave, namespaces move, selectors change.
//!
//! What a leg no longer has is told only when every leg that came or changed is through with its state: an object may have
//! moved there, and then it was never gone. A leg whose client-held objects are not exactly known cannot be mended.

use super::known::KnownObjects;
use super::leg::{Leg, Phase};
use super::output::Output;
use super::{Act, PendingDelete, WatchLeg, WatchMerge};
use crate::cursor::{Cursor, Slot, Universe};

impl WatchMerge {
    /// The plan changed: from now on indexes of legs are those of `legs` (told apart by `cluster` and `member`) and slots those of
    /// `universe`. Legs that no act names keep their streams. Synthesized events may be in `out`.
    pub fn replan(&mut self, universe: &Universe, legs: Vec<WatchLeg>, out: &mut Output) -> Vec<Act> {
        let exact: Vec<bool> = (0..self.legs.len()).map(|leg| self.exact(leg)).collect();
        let old_cursor = std::mem::replace(&mut self.cursor, Cursor::new(universe));
        let mut old: Vec<Option<Old>> = std::mem::take(&mut self.legs)
            .into_iter()
            .zip(exact)
            .map(|(leg, exact)| {
                let position = old_cursor.slot(leg.slot);
                Some(Old { leg, exact, position })
            })
            .collect();
        self.sent.renumber();
        self.renumber(&old, &legs);
        let members = old.iter().flatten().map(|old| (&old.leg.cluster, old.leg.uid_hash));
        if self.unique && !members.eq(legs.iter().map(|leg| (&leg.cluster, leg.uid_hash))) {
            // Who wins a name may be another one now, and of names that several have the client may hold any.
            self.expire("the members of a union of names changed".to_owned());
        }
        let unique = self.unique && legs.len() > 1;
        for spec in legs {
            let kept = old
                .iter_mut()
                .find(|old| old.as_ref().is_some_and(|old| old.leg.is(&spec)))
                .and_then(Option::take);
            match kept {
                Some(kept) => self.carry(kept, spec, unique),
                None => self.join(spec, unique),
            }
        }
        for old in old.into_iter().flatten() {
            self.leave(old);
        }
        self.due = true;
        self.moved = true;
        self.proceed(out);
        self.acts.drain(..).collect()
    }

    fn renumber(&mut self, old: &[Option<Old>], legs: &[WatchLeg]) {
        let new = |slot: usize| {
            let leg = old.iter().flatten().find(|old| old.leg.slot == slot)?;
            Some(legs.iter().find(|new| leg.leg.is(new))?.slot)
        };
        for pending_deletes in self.pending_deletes.values_mut() {
            pending_deletes.slot = pending_deletes.slot.and_then(new);
        }
    }

    fn join(&mut self, spec: WatchLeg, unique: bool) {
        let spec = WatchLeg {
            start: super::Start::Sync,
            ..spec
        };
        let mut leg = self.admit(spec, unique);
        leg.moving = true;
        let start = leg.start;
        self.acts.push_back(Act::Restart {
            leg: self.legs.len(),
            start,
        });
        self.legs.push(leg);
    }

    fn carry(&mut self, old: Old, spec: WatchLeg, unique: bool) {
        let Old {
            mut leg,
            exact,
            position,
        } = old;
        let index = self.legs.len();
        let changed = leg.filter != spec.filter || leg.request_hash != spec.request_hash;
        leg.slot = spec.slot;
        leg.filter = spec.filter;
        leg.request_hash = spec.request_hash;
        self.cursor.set(leg.slot, position);
        let holds = leg.dirty || matches!(position, Slot::At(_));
        if unique && !holds && leg.known.is_none() {
            leg.known = Some(Box::new(KnownObjects::new(self.budget.clone())));
        }
        if changed && holds && self.barrier {
            self.too_early();
        }
        let counted = unique && leg.phase != Phase::Inventory;
        if (changed || counted) && holds && !exact {
            self.expire(format!("what is asked of member {} changed", leg.cluster));
        }
        self.legs.push(leg);
        if changed && !self.expired {
            self.ask_anew(index, holds);
        }
    }

    /// From its new plan, whatever it was in the middle of.
    fn ask_anew(&mut self, index: usize, holds: bool) {
        if !holds {
            self.forget(index);
        }
        let leg = &mut self.legs[index];
        leg.cut();
        leg.moving = true;
        leg.changed = true;
        let start = if holds { leg.compare() } else { leg.start };
        self.acts.push_back(Act::Restart { leg: index, start });
    }

    /// What leaves cannot be told before the end of the initial events, and a client that resumed from there would keep it.
    fn too_early(&mut self) {
        self.expire("the shard changed in the middle of the initial events".to_owned());
    }

    fn leave(&mut self, old: Old) {
        let Old {
            mut leg,
            exact,
            position,
        } = old;
        let nothing = !leg.dirty && !matches!(position, Slot::At(_));
        if nothing {
            return;
        }
        if self.barrier {
            self.too_early();
        } else if !exact {
            self.expire(format!("member {} left", leg.cluster));
            return;
        }
        let held = leg.known.as_mut().map(|known| known.drain());
        for (key, held) in held.into_iter().flatten() {
            let pending_deletes = PendingDelete {
                known: held.known(),
                uid: held.uid,
                version: held.version,
                slot: None,
            };
            self.pending_deletes.insert(key, pending_deletes);
        }
    }
}

/// A leg of the plan before.
struct Old {
    leg: Leg,
    exact: bool,
    position: Slot,
}
