//! The legs of a merged watch together: where the client stands on each, and who of them has a name.

use std::collections::BTreeSet;
use std::ops::{Index, IndexMut};

use super::budget::Budget;
use super::decoder::FrameDecoder;
use super::known::KnownObjects;
use super::leg::Leg;
use super::pending::PendingDeletes;
use super::state::LegState;
use super::{Start, WatchLeg};
use crate::cursor::{Cursor, Slot};

/// All legs, in the order in which names are theirs.
pub(super) struct Legs {
    pub(super) all: Vec<Leg>,
    /// Where the client stands when it has read all that was put out.
    pub(super) cursor: Cursor,
    /// One name once: the earlier leg wins.
    pub(super) unique: bool,
    /// Some leg may receive what left others: objects may turn up in another leg than before.
    receiving: bool,
    /// In a union of names: what was emitted of a leg while an earlier one's names were not known.
    provisional: BTreeSet<Box<str>>,
    /// What all known objects may take; `None` in a union of names: no bound, else they are not kept.
    memory: Option<Budget>,
    /// What large frames that are not whole may take; `None`: no common bound.
    frames: Option<Budget>,
}

impl Index<usize> for Legs {
    type Output = Leg;

    fn index(&self, leg: usize) -> &Leg {
        &self.all[leg]
    }
}

impl IndexMut<usize> for Legs {
    fn index_mut(&mut self, leg: usize) -> &mut Leg {
        &mut self.all[leg]
    }
}

impl Legs {
    /// None yet.
    pub(super) fn new(cursor: Cursor, unique: bool, memory: Option<Budget>) -> Self {
        Self {
            all: Vec::new(),
            cursor,
            unique,
            receiving: false,
            provisional: BTreeSet::new(),
            memory,
            frames: None,
        }
    }

    pub(super) fn bound_frames(&mut self, frames: Budget) {
        for leg in &mut self.all {
            leg.stream.decoder = FrameDecoder::new(Some(frames.clone()));
        }
        self.frames = Some(frames);
    }

    /// Adds a leg. `names`: it is one of several that have each name once.
    pub(super) fn admit(&mut self, spec: WatchLeg, names: bool) -> &mut Leg {
        let position = match spec.start {
            Start::At(version) | Start::Exact(version) | Start::Came(version) => Slot::At(version),
            Start::Any | Start::Recent | Start::Sync => Slot::Sync,
        };
        self.cursor.set(spec.slot, position);
        let mut leg = Leg::new(spec, self.frames.clone());
        if names && leg.state.is_live() {
            leg.state = LegState::Inventory;
            leg.start = Start::Sync;
        }
        if !leg.state.is_live() && (names || self.memory.is_some()) {
            leg.known = Some(Box::new(self.nothing_known()));
        }
        self.all.push_mut(leg)
    }

    /// What is known of a leg of which the client holds nothing.
    pub(super) fn nothing_known(&self) -> KnownObjects {
        KnownObjects::new(self.memory.clone())
    }

    pub(super) fn position(&self, leg: usize) -> Slot {
        self.cursor.slot(self.all[leg].slot)
    }

    /// The known objects are exactly what the client holds.
    pub(super) fn exact(&self, leg: usize) -> bool {
        let this = &self.all[leg];
        let replayed = self.position(leg).version().unwrap_or(0) >= this.exact_from;
        let whole = this.state != LegState::Inventory && !this.state.is_listing() && !this.knows_partly();
        this.known.is_some() && whole && replayed
    }

    /// Of a leg without a marker: whether what comes with all up to `version` before it can only come behind what was there,
    /// which is all ADDED. Not if the client has more: the member's cache was behind when it began to tell.
    pub(super) fn follows(&self, leg: usize, version: u64) -> bool {
        let this = &self.all[leg];
        let read_before = matches!(this.state, LegState::Resync { caught_up, .. } if version < caught_up);
        let behind = self.position(leg).version().is_some_and(|at| version < at);
        this.ends_unmarked() && !behind && !read_before
    }

    /// In a union: some member's names are not known yet.
    pub(super) fn names_unknown(&self) -> bool {
        self.unique && self.all.iter().any(|leg| leg.state == LegState::Inventory)
    }

    /// In a union: some member's names are not known yet and are waited for.
    pub(super) fn awaits_names(&self) -> bool {
        let awaited = |leg: &Leg| leg.state == LegState::Inventory && !leg.given_up;
        self.unique && self.all.iter().any(awaited)
    }

    /// Some leg that the client has objects of may receive what left others.
    pub(super) fn is_handing_over(&self) -> bool {
        self.all.iter().any(|leg| leg.state.is_resync() && leg.state.receives())
    }

    /// Whether an object that left some leg may turn up in another, in a union of names in any.
    pub(super) fn awaits(&self, key: &str) -> bool {
        self.all
            .iter()
            .any(|leg| leg.awaits(key) || (self.unique && leg.state.receives()))
    }

    /// Some leg may receive what left others.
    pub(super) fn is_receiving(&self) -> bool {
        self.all.iter().any(|leg| leg.state.receives())
    }

    /// The cursor says all of what the client holds, and of which member, but for what a change of the shard owes it.
    pub(super) fn are_told(&self) -> bool {
        let untold = |leg: usize| self.all[leg].is_untold(self.position(leg).version().unwrap_or(0));
        self.provisional.is_empty() && !(self.unique && self.is_handing_over()) && !(0..self.all.len()).any(untold)
    }

    /// Some leg has not told all of a change of the shard.
    pub(super) fn are_owed(&self) -> bool {
        self.all.iter().any(Leg::is_owed)
    }

    /// Whether keys may be kept of any leg.
    pub(super) fn keeps_memory(&self) -> bool {
        self.memory.is_some()
    }

    #[cfg(test)]
    pub(super) fn keep_memory(&mut self, memory: Budget) {
        self.memory = Some(memory);
    }

    /// After legs have changed their states. `deletes`: what waits may be about what came elsewhere.
    pub(super) fn refresh(&mut self, deletes: &PendingDeletes) {
        self.receiving = self.is_receiving();
        self.settle_changes(deletes);
        if deletes.is_empty() && !self.receiving {
            (0..self.all.len()).for_each(|leg| self.give_way(leg));
        }
        if !self.names_unknown() {
            self.provisional.clear();
        }
    }

    /// Whether an earlier leg has the name: this one's object is not shown.
    pub(super) fn shadowed(&self, leg: usize, key: &str) -> bool {
        self.unique && self.all[..leg].iter().any(|earlier| earlier.has(key))
    }

    /// The leg whose object is shown under this name.
    pub(super) fn holder(&self, key: &str) -> Option<usize> {
        self.all.iter().position(|leg| leg.has(key))
    }

    /// In a union, the leg behind this one that has the name too, and whether the client holds its object already.
    pub(super) fn next_holder(&self, leg: usize, key: &str) -> Option<(usize, bool)> {
        if !self.unique {
            return None;
        }
        (leg + 1..self.all.len()).find_map(|later| {
            let object = self.all[later].known.as_ref()?.get(key)?;
            Some((later, object.emitted && !object.stale))
        })
    }

    /// The client holds this leg's object under the name from now on, and no other's. False if that may be wrong: an
    /// earlier leg's names are not known, so what was emitted may be not to be seen.
    #[must_use]
    pub(super) fn supersede(&mut self, leg: usize, key: &str) -> bool {
        if self.unique {
            let early = self.all[..leg]
                .iter()
                .any(|earlier| earlier.state == LegState::Inventory);
            if early {
                self.provisional.insert(key.into());
            }
            for (index, other) in self.all.iter_mut().enumerate() {
                if let Some(known) = &mut other.known {
                    known.set_emitted(key, index == leg);
                }
            }
            return !early;
        }
        if self.receiving && self.all[leg].known.is_some() {
            let others = self.all.iter_mut().enumerate().filter(|(index, _)| *index != leg);
            for (_, other) in others {
                if other.state.is_listing() {
                    other.bar(key);
                } else if let Some(known) = &mut other.known {
                    known.remove(key);
                }
            }
        }
        true
    }

    /// The names that later legs were shown under although they are this one's.
    pub(super) fn taken_from(&self, leg: usize) -> Vec<Box<str>> {
        let names = self.provisional.iter().filter(|key| self.all[leg].has(key));
        names.cloned().collect()
    }

    /// Whether the stream has come to where what came was told.
    pub(super) fn has_arrived(&self, leg: usize) -> bool {
        let this = &self.all[leg];
        let at = self.position(leg).version().unwrap_or(0);
        let through = this
            .change
            .as_ref()
            .is_some_and(|change| change.entering && change.until <= at);
        this.state.is_live() && through
    }

    /// Whether it may be listed what the client holds: names of a union are known otherwise.
    pub(super) fn can_list(&self) -> bool {
        self.keeps_memory() && !(self.unique && self.all.len() > 1)
    }

    /// Changes that are over, once no deletion can be about what came.
    fn settle_changes(&mut self, deletes: &PendingDeletes) {
        for leg in 0..self.all.len() {
            let wanted = || self.is_wanted(leg) || deletes.keys().any(|key| self.all[leg].has(key));
            if self.has_arrived(leg) && !wanted() {
                let this = &mut self.all[leg];
                if this.change.take().is_some_and(|change| change.partial) {
                    this.known = None;
                }
            }
        }
    }

    /// Whether another leg may yet be found to have lost what came to this one.
    fn is_wanted(&self, leg: usize) -> bool {
        let this = &self.all[leg];
        let held = this.change.as_ref().and_then(|change| change.held.as_ref());
        let (Some(owned), Some(held)) = (this.owned(), held) else {
            return self.receiving;
        };
        let loses = |other: &Leg| {
            let before = other.before.as_deref();
            other.is_owed() && before.is_none_or(|before| owned.shares_beyond(held, before))
        };
        let mut others = self.all.iter().enumerate();
        // Who has told what came to it has told what it lost before that.
        others.any(|(index, other)| index != leg && loses(other) && !self.has_arrived(index))
    }

    /// What a live leg's member can list again is not kept where others may need the room to be mended.
    fn give_way(&mut self, leg: usize) {
        let scarce = self.memory.as_ref().is_some_and(Budget::is_half_used);
        let union = self.unique && self.all.len() > 1;
        let this = &mut self.all[leg];
        if scarce && this.state.is_live() && this.change.is_none() && !union {
            this.known = None;
        }
    }

    /// As objects come that nobody waits for.
    pub(super) fn grow(&mut self, leg: usize) {
        if !self.receiving {
            self.give_way(leg);
        }
    }
}
