//! What became of a leg: lost, refused, through with its state, and what then has left.

use super::compose::Stub;
use super::event::Refusal;
use super::known::KnownObject;
use super::leg::{Leg, Phase};
use super::output::Output;
use super::{Act, PendingDelete, Start, WatchMerge};
use crate::cursor::Slot;

impl WatchMerge {
    /// How a leg goes on after its stream ended, or refused it.
    pub(super) fn begin_again(&mut self, leg: usize, refusal: Option<&Refusal>) -> Act {
        let expired = refusal.is_some_and(Refusal::expired);
        let position = self.cursor.slot(self.legs[leg].slot);
        let exact = self.exact(leg);
        let this = &mut self.legs[leg];
        this.cut();
        let start = match (this.phase, position) {
            (Phase::Live, Slot::At(version)) if !expired => Some(Start::At(version)),
            (Phase::Initial | Phase::Inventory, _) if !this.dirty => {
                self.forget(leg);
                Some(self.legs[leg].start)
            }
            _ => exact.then(|| this.compare()),
        };
        if let Some(start) = start {
            return Act::Restart { leg, start };
        }
        let cluster = &self.legs[leg].cluster;
        let why = match refusal {
            Some(refusal) => format!("member {cluster}: {}", refusal.message),
            None => format!("member {cluster} was lost in the middle of its initial events"),
        };
        self.expired = true;
        Act::Expired { why }
    }

    /// Nothing was told of it: the next attempt begins at nothing too. What was wanted of it has left unless that finds it:
    /// the client holds another leg's object under the name, which is gone.
    pub(super) fn forget(&mut self, leg: usize) {
        let this = &mut self.legs[leg];
        this.again = false;
        let version = this.seen;
        let forgotten = this.known.as_mut().map(|known| known.drain());
        for (key, held) in forgotten.into_iter().flatten() {
            if held.wanted {
                self.key.clear();
                self.key.push_str(&key);
                self.defer_delete(leg, held, version);
            }
        }
    }

    pub(super) fn expire(&mut self, why: String) {
        self.expired = true;
        self.acts.push_back(Act::Expired { why });
    }

    pub(super) fn went_back(&mut self, leg: usize, version: u64, at: u64) {
        let cluster = &self.legs[leg].cluster;
        self.expire(format!("member {cluster} went back from version {at} to {version}"));
    }

    /// The known is exactly what the client holds.
    pub(super) fn exact(&self, leg: usize) -> bool {
        let this = &self.legs[leg];
        let replayed = match self.cursor.slot(this.slot) {
            Slot::At(version) => version >= this.exact_from,
            Slot::Unasked | Slot::Sync => this.exact_from == 0,
        };
        this.known.is_some() && this.phase != Phase::Inventory && replayed
    }

    pub(super) fn over_budget(&mut self, leg: usize) {
        self.legs[leg].known = None;
        // Who has a name must be known; and what left another leg may be here, and cannot be told from what is gone.
        let needed = (self.unique && self.legs.len() > 1)
            || !self.pending_deletes.is_empty()
            || self.legs.iter().any(|leg| leg.moving && leg.phase == Phase::Resync);
        if needed || self.legs[leg].phase == Phase::Resync {
            let why = format!("no memory left to tell what is in member {}", self.legs[leg].cluster);
            self.expire(why);
        }
    }

    /// A leg told all that is there, as of `version` (0: not known yet).
    pub(super) fn settle(&mut self, leg: usize, version: u64, out: &mut Output) {
        let this = &mut self.legs[leg];
        let position = self.cursor.slot(this.slot);
        if let Slot::At(at) = position
            && version < at
        {
            self.went_back(leg, version, at);
            return;
        }
        let before = std::mem::replace(&mut this.phase, Phase::Live);
        let slot = this.slot;
        if let (Phase::Inventory, Slot::At(at)) = (before, position) {
            this.exact_from = version;
            this.cut();
            let start = Start::At(at);
            self.acts.push_back(Act::Restart { leg, start });
            self.reclaim(leg);
            self.proceed(out);
            return;
        }
        this.dirty = false;
        this.moving = false;
        this.changed = false;
        if version > 0 {
            self.advance(slot, version);
            self.sent.progress(slot, version);
        }
        if before == Phase::Resync {
            self.miss(leg, version);
        }
        self.due = true;
        self.look_again(leg);
        self.proceed(out);
    }

    /// What a comparison did not find has left.
    fn miss(&mut self, leg: usize, version: u64) {
        let missed = self.legs[leg].known.as_mut().map(|known| known.sweep());
        for (key, held) in missed.into_iter().flatten() {
            self.key.clear();
            self.key.push_str(&key);
            if !self.shadowed(leg) && !self.hand_over(leg) {
                self.defer_delete(leg, held, version);
            }
        }
    }

    /// Opens the barrier if all are through, tells what has left if it may be told, reads on where legs were held.
    pub(super) fn proceed(&mut self, out: &mut Output) {
        if self.expired {
            return;
        }
        if self.barrier && self.legs.iter().all(|leg| leg.phase == Phase::Live || leg.given_up) {
            self.open(out);
        }
        self.release(out);
        self.moving = self.legs.iter().any(|leg| leg.moving);
        if !self.counting() {
            self.provisional.clear();
        }
        self.rebase();
        self.wake(out);
    }

    fn open(&mut self, out: &mut Output) {
        if self.kind.is_none() {
            // Nobody has answered at all, so nobody knows what a bookmark looks like: the first to come is waited for.
            for leg in &mut self.legs {
                leg.given_up = false;
            }
            return;
        }
        self.mark_end(out);
        self.barrier = false;
    }

    /// The object under the written key has left this leg.
    pub(super) fn defer_delete(&mut self, leg: usize, held: KnownObject, version: u64) {
        let slot = Some(self.legs[leg].slot);
        self.sent.poison();
        let pending_deletes = PendingDelete {
            known: held.known(),
            uid: held.uid,
            version,
            slot,
        };
        self.pending_deletes.insert(self.key.as_str().into(), pending_deletes);
    }

    fn release(&mut self, out: &mut Output) {
        if self.pending_deletes.is_empty() || self.barrier || self.counting() || self.legs.iter().any(|leg| leg.moving)
        {
            return;
        }
        // One by one: as long as some are left, no bookmark is safe.
        while let Some((key, pending_deletes)) = self.pending_deletes.pop_first() {
            match self.legs.iter().position(|leg| leg.has(&key)) {
                None => self.tell_deleted(&key, &pending_deletes, out),
                Some(leg) if self.unique => self.want(leg, &key),
                Some(_) => {}
            }
        }
    }

    fn tell_deleted(&mut self, key: &str, pending_deletes: &PendingDelete, out: &mut Output) {
        let (Some(kind), Some((namespace, name))) = (&self.kind, key.split_once('/')) else {
            return;
        };
        let stub = Stub {
            namespace,
            name,
            uid: &pending_deletes.uid.text(),
            version: &pending_deletes.version.to_string(),
            initial_events_end: false,
        };
        let event = kind.event("DELETED", stub, self.columns.stub(name));
        let length = event.len();
        out.push(event);
        // Several may leave at one version, and the client may read only some of them.
        self.sent.note(
            pending_deletes.slot.unwrap_or(usize::MAX),
            pending_deletes.version,
            false,
        );
        self.count(length, out);
    }

    /// The client holds this leg's object under the written key from now on, and no other's.
    pub(super) fn supersede(&mut self, leg: usize) {
        if self.unique {
            // Who tells before an earlier leg's names are known may tell what is not to be seen.
            if self.legs[..leg].iter().any(|earlier| earlier.phase == Phase::Inventory) {
                self.provisional.insert(self.key.as_str().into());
                self.sent.poison();
            }
            for (index, other) in self.legs.iter_mut().enumerate() {
                if let Some(known) = &mut other.known {
                    known.tell(&self.key, index == leg);
                }
            }
        } else if self.moving && self.legs[leg].known.is_some() {
            let others = self.legs.iter_mut().enumerate().filter(|(index, _)| *index != leg);
            for known in others.filter_map(|(_, other)| other.known.as_mut()) {
                known.remove(&self.key);
            }
        }
    }

    /// Some member's names are not known yet.
    pub(super) fn counting(&self) -> bool {
        self.unique && self.legs.iter().any(|leg| leg.phase == Phase::Inventory)
    }

    /// An earlier leg has the written name: this one's is not shown.
    pub(super) fn shadowed(&self, leg: usize) -> bool {
        self.unique && self.legs[..leg].iter().any(|earlier| earlier.has(&self.key))
    }

    /// A later leg has the written name that this one had: its object is shown from now on, as soon as it is told again.
    /// As long as some member's names are not known the name only departs: who has it then is seen when it is released.
    pub(super) fn hand_over(&mut self, leg: usize) -> bool {
        if !self.unique {
            return false;
        }
        let held = |later: usize| {
            let known = self.legs[later].known.as_ref()?;
            let held = known.get(&self.key)?;
            Some((later, held.told && !held.wanted))
        };
        let Some((later, told)) = (leg + 1..self.legs.len()).find_map(held) else {
            return false;
        };
        if told {
            // The deletion comes late: the client has the other object already.
            return true;
        }
        if self.counting() {
            return false;
        }
        let key = std::mem::take(&mut self.key);
        self.want(later, &key);
        self.key = key;
        true
    }

    /// The client holds another member's object under this name: this leg's is to be told again.
    fn want(&mut self, leg: usize, key: &str) {
        if let Some(known) = &mut self.legs[leg].known {
            known.want(key);
        }
        self.legs[leg].again = true;
        self.sent.poison();
        self.look_again(leg);
    }

    /// A leg that nobody had waited for is counted in: names that later legs were shown under meanwhile are its own.
    fn reclaim(&mut self, leg: usize) {
        let taken: Vec<Box<str>> = self
            .provisional
            .iter()
            .filter(|key| self.legs[leg].has(key))
            .cloned()
            .collect();
        for key in taken {
            self.want(leg, &key);
        }
    }

    /// Asks a leg for its objects once more if some of them were passed over and are wanted now.
    pub(super) fn look_again(&mut self, leg: usize) {
        if !self.legs[leg].again || self.legs[leg].phase != Phase::Live || !self.exact(leg) {
            return;
        }
        let this: &mut Leg = &mut self.legs[leg];
        this.again = false;
        this.moving = true;
        this.cut();
        let start = this.compare();
        self.acts.push_back(Act::Restart { leg, start });
    }
}
