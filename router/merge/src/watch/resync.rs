//! What became of a leg: lost, refused, through with its state, and what then has left.

use super::event::Refusal;
use super::output::Output;
use super::pending::PendingDelete;
use super::state::{LegState, ResyncCause};
use super::{Act, Expiry, Start, WatchMerge};
use crate::cursor::Slot;

impl WatchMerge {
    /// How a leg goes on after its stream ended, or its member refused it.
    pub(super) fn restart(&mut self, leg: usize, refusal: Option<&Refusal>) -> Act {
        let expired = refusal.is_some_and(Refusal::expired);
        let position = self.legs.position(leg);
        let exact = self.legs.exact(leg);
        let several = self.legs.all.len() != 1;
        let this = &mut self.legs[leg];
        this.stream.reset();
        let start = match (this.state, position) {
            // Counted as told, and not told: what it has now cannot be compared with that.
            _ if !self.order.is_empty() => None,
            // Elsewhere the versions that were told may still be taken for an only member's.
            (LegState::Live, _) if self.order.is_kept() && several && expired => None,
            (LegState::Live, Slot::At(version)) if !expired => Some(Start::At(version)),
            (LegState::Listing { .. }, Slot::At(version)) if !expired => Some(Start::Exact(version)),
            (LegState::Listing { .. }, _) => None,
            (LegState::Initial { dirty: false, .. } | LegState::Inventory, _) => {
                let start = this.start;
                self.forget(leg);
                Some(start)
            }
            (LegState::Resync { .. }, Slot::At(at)) if this.is_entering() => {
                if let Some(change) = this.change.as_mut().filter(|_| expired) {
                    change.exactly = false;
                }
                Some(this.enter(ResyncCause::Recovery, at))
            }
            _ if exact => Some(this.begin_whole_resync(ResyncCause::Recovery)),
            (LegState::Live, _) => {
                let held = this.owned().cloned();
                self.list(leg, held, ResyncCause::Recovery)
            }
            _ => None,
        };
        if let Some(start) = start {
            return Act::Restart { leg, start };
        }
        let cluster = &self.legs[leg].cluster;
        let why = match refusal {
            Some(refusal) => format!("member {cluster}: {}", refusal.message),
            None => format!("member {cluster} was lost in the middle of its initial events"),
        };
        let cause = match refusal {
            Some(_) if !self.legs.keeps_memory() => Expiry::Memory,
            Some(_) if expired => Expiry::Compacted,
            _ => Expiry::Member,
        };
        self.acts.expired = true;
        Act::Expired { cause, why }
    }

    /// Nothing was told of it: the next attempt begins at nothing too. What was to be sent again has left unless that finds
    /// it: the client holds another leg's object under the name, which is gone.
    pub(super) fn forget(&mut self, leg: usize) {
        let this = &mut self.legs[leg];
        this.resend = false;
        let forgotten = this.known.as_mut().map(|known| known.drain());
        for (key, object) in forgotten.into_iter().flatten().filter(|(_, object)| object.stale) {
            let this = &self.legs[leg];
            self.delete_later(key, PendingDelete::of(object, this.seen, this));
        }
    }

    /// Whether a member says less than the client has of it: its history is another one, and the watch expires.
    pub(super) fn went_back(&mut self, leg: usize, version: u64) -> bool {
        let at = self.legs.position(leg).version().filter(|at| version < *at);
        if let Some(at) = at {
            self.expire_back(leg, version, at);
        }
        at.is_some()
    }

    pub(super) fn expire_back(&mut self, leg: usize, version: u64, at: u64) {
        let cluster = &self.legs[leg].cluster;
        let why = format!("member {cluster} went back from version {at} to {version}");
        self.acts.expire(Expiry::Member, why);
    }

    /// No memory is left for what the client holds of this leg.
    pub(super) fn over_budget(&mut self, leg: usize) {
        self.legs[leg].known = None;
        // Who has a name must be known; and what left another leg may be here, and cannot be told from what is gone.
        let union = self.legs.unique && self.legs.all.len() > 1;
        let handing_over = !self.deletes.is_empty() || self.legs.is_handing_over();
        if union || handing_over || self.legs[leg].state.is_resync() || self.legs[leg].knows_partly() {
            self.out_of_memory(leg);
        }
    }

    /// A leg told all that is there, as of `version` (0: not known yet).
    pub(super) fn synced(&mut self, leg: usize, version: u64, out: &mut Output) {
        if self.went_back(leg, version) {
            return;
        }
        let position = self.legs.position(leg);
        let this = &mut self.legs[leg];
        let before = this.state.complete();
        if let (LegState::Inventory, Slot::At(at)) = (before, position) {
            this.exact_from = version;
            this.stream.reset();
            self.acts.restart(leg, Start::At(at));
            for key in self.legs.taken_from(leg) {
                self.resend(leg, &key);
            }
        } else if before.is_resync() && self.legs[leg].is_entering() {
            self.entered(leg, version);
        } else {
            if self.is_in_order(leg, before) {
                // Behind what is told next, so that a client that reads no more than this misses nothing of that.
                self.delete_unseen(leg, position.version().unwrap_or(version));
                self.emit_deletes(out);
                if self.acts.expired {
                    return;
                }
                self.emit_held(leg, out);
            }
            if version > 0 {
                self.advance(leg, version);
            }
            if before.is_resync() {
                self.delete_unseen(leg, version);
            }
            self.bookmarks.due = true;
            self.resend_if_due(leg);
        }
        self.proceed(out);
    }

    /// Whether what a leg tells in this state waits until it is through, to be told in order.
    pub(super) fn is_in_order(&self, leg: usize, state: LegState) -> bool {
        let recovers = matches!(
            state,
            LegState::Resync {
                cause: ResyncCause::Recovery,
                ..
            }
        );
        self.order.is_kept() && recovers && self.legs.all.len() == 1 && !self.legs[leg].is_entering()
    }

    /// What a resync did not find has left.
    pub(super) fn delete_unseen(&mut self, leg: usize, version: u64) {
        for (key, object) in self.legs[leg].sweep() {
            if !self.taken_over(leg, &key) {
                self.delete_later(key, PendingDelete::of(object, version, &self.legs[leg]));
            }
        }
    }

    /// Opens the barrier if all are through, tells what has left if it may be told, reads on where legs were paused.
    pub(super) fn proceed(&mut self, out: &mut Output) {
        if self.acts.expired {
            return;
        }
        if self.barrier.is_reached(&self.legs) {
            self.open_barrier(out);
        }
        self.emit_deletes(out);
        self.legs.refresh(&self.deletes);
        if self.deletes.is_empty() && !self.legs.are_owed() && self.view.catch_up() {
            self.older_view = false;
            self.bookmarks.due = true;
            self.bookmarks.moved = true;
        }
        self.rebase();
        self.read_buffered(out);
    }

    pub(super) fn delete_later(&mut self, key: Box<str>, delete: PendingDelete) {
        self.sent.poison();
        self.deletes.insert(key, delete);
    }

    /// Tells what has left and is in no leg, once it can be nowhere and may be told. Of what type it is a member must have
    /// said.
    fn emit_deletes(&mut self, out: &mut Output) {
        let early = self.barrier.is_closed() || !self.emitter.knows_type() || self.legs.names_unknown();
        let untold = !early && self.whole_objects && !self.emitter.tells_metadata();
        let gone = |key: &str| !self.legs.awaits(key) && self.legs.holder(key).is_none();
        self.untold = untold && self.deletes.keys().any(|key| gone(key));
        if self.untold && self.order.is_kept() {
            // An only member's version stands for itself, wherever the client comes with it: nothing may be told behind it.
            self.expire_untold();
        }
        if early || self.untold {
            // They stay: no version behind what was not told is a place to resume from.
            return;
        }
        let told = self.deletes.keys().filter(|key| !self.legs.awaits(key));
        // One by one: as long as some are left, no bookmark is safe.
        for key in told.cloned().collect::<Vec<_>>() {
            let Some(delete) = self.deletes.remove(&key) else {
                continue;
            };
            match self.legs.holder(&key) {
                None => self.emit_deleted(&key, &delete, out),
                Some(leg) if self.legs.unique => self.resend(leg, &key),
                Some(_) => {}
            }
        }
    }

    fn emit_deleted(&mut self, key: &str, delete: &PendingDelete, out: &mut Output) {
        let Some(length) = self.emitter.deleted(key, delete, out) else {
            return;
        };
        // Several may leave at one version, and the client may read only some of them.
        let slot = delete.slot.unwrap_or(usize::MAX);
        self.sent.note(slot, delete.version, false);
        self.count(length, out);
    }

    /// Whether another leg's object is shown under a name that this one had: an earlier leg has it; or a later one, whose
    /// object is shown from now on, as soon as it is told again. As long as some member's names are not known the name only
    /// leaves: who has it then is seen when deletions are told.
    pub(super) fn taken_over(&mut self, leg: usize, key: &str) -> bool {
        if self.legs.shadowed(leg, key) {
            return true;
        }
        match self.legs.next_holder(leg, key) {
            None => false,
            // The deletion comes late: the client has the other object already.
            Some((_, true)) => true,
            Some((later, false)) => {
                let names_known = !self.legs.names_unknown();
                if names_known {
                    self.resend(later, key);
                }
                names_known
            }
        }
    }

    /// The client holds another member's object under this name: this leg's is to be sent again.
    pub(super) fn resend(&mut self, leg: usize, key: &str) {
        if let Some(known) = &mut self.legs[leg].known {
            known.mark_stale(key);
        }
        self.legs[leg].resend = true;
        self.sent.poison();
        self.resend_if_due(leg);
    }

    /// Asks a live leg for its objects once more if some of them were passed over and are to be sent now.
    pub(super) fn resend_if_due(&mut self, leg: usize) {
        let this = &self.legs[leg];
        if this.resend && this.state.is_live() && self.legs.exact(leg) {
            let this = &mut self.legs[leg];
            this.resend = false;
            let start = this.begin_resync(ResyncCause::Handover);
            self.acts.restart(leg, start);
        }
    }
}
