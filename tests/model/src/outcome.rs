//! What a step does. A part of the protocol that a flaw leaves out is a line that asks for the flaw.

use crate::list::{List, Lists};
use crate::protocol::{Flaw, Handover};
use crate::state::{Grant, State, Timer, Write};
use crate::step::Action;

impl Handover {
    /// The state after an action that is possible in `state`.
    pub(crate) fn apply(&self, state: &State, action: Action) -> State {
        let mut next = state.clone();
        match action {
            Action::Release
            | Action::HearAck(_)
            | Action::HearAnswered(_)
            | Action::Order
            | Action::HearFenced
            | Action::TimerEnds
            | Action::Grant(_)
            | Action::Store
            | Action::TakeBack => self.apply_hub(&mut next, action),
            Action::Hear(..) | Action::Persist(_) | Action::Ack(..) | Action::Answer(..) => {
                apply_router(&mut next, action);
            }
            Action::Patch(_) | Action::SetAnnotation(_) | Action::CatchUp(_) | Action::Probe(_) | Action::Fenced => {
                apply_agent(&mut next, action);
            }
            Action::Send(_) | Action::Arrive(..) | Action::Commit(_) => self.apply_write(&mut next, action),
            Action::CloseAnothers
            | Action::GrantAnothers
            | Action::SendAnothers
            | Action::ArriveAnothers(_)
            | Action::CommitAnothers => self.apply_another(&mut next, action),
            Action::GiveUp => {}
            _ => self.apply_fault(&mut next, action),
        }
        if action == Action::GiveUp {
            next.is_given_up = true;
            next.faults_left -= u8::from(!state.agent_ended);
        }
        next.stood_still |= self.flaw.is_none() && next.progress() <= state.progress();
        next
    }

    fn apply_hub(&self, next: &mut State, action: Action) {
        match action {
            Action::Release => {
                next.ledger.releasing = true;
                next.hub = next.ledger;
                next.told |= next.hub.bit();
                forget_what_was_heard(next);
            }
            Action::HearAck(router) => {
                next.routers[router].ack_is_heard = true;
                if self.has(Flaw::WaitsFromTheAcks) && self.is_released(next) {
                    begin_to_wait(next);
                }
            }
            Action::HearAnswered(router) => next.routers[router].answered_is_heard = true,
            Action::Order => {
                next.closing = self.next_epoch(next);
                self.order(next, |flawed| flawed.theirs = 0);
            }
            Action::HearFenced => {
                next.fence_is_heard = true;
                if !self.has(Flaw::WaitsFromTheAcks) {
                    begin_to_wait(next);
                }
            }
            Action::TimerEnds => next.timer = Timer::Over,
            Action::Grant(owner) => {
                next.hub = Grant {
                    epoch: self.promise(next),
                    releasing: false,
                    owner,
                };
                next.told |= next.hub.bit();
                if !self.has(Flaw::GrantsBeforeLedger) {
                    store_grant(next);
                }
            }
            Action::Store => store_grant(next),
            Action::TakeBack => {
                next.ledger.releasing = false;
                next.hub = next.ledger;
                next.closing = 0;
                // As a later message of the same epoch: those who let go of it write again.
                let granted = next.hub;
                for router in next.routers_mut() {
                    router.view = router.view.min(granted);
                }
                forget_what_was_heard(next);
            }
            _ => {}
        }
    }

    /// The epoch that begins: the one that was kept for it, if the pair was closed. What of it is promised, and whether its writes say it.
    fn promise(&self, next: &mut State) -> u8 {
        let was_fenced = next.unfenced & 1 << next.hub.epoch == 0 && !next.is_given_up;
        let kept = Some(next.closing).filter(|kept| *kept != 0 && was_fenced);
        let epoch = kept.unwrap_or_else(|| self.next_epoch(next));
        if was_fenced || self.has(Flaw::ClaimsWhatItGaveUp) {
            next.promised = epoch;
        }
        if !was_fenced {
            next.unfenced |= 1 << epoch;
        }
        epoch
    }

    /// The agent is told all that is to be open in the namespace, as the ledger has it. `flawed`: what a flaw makes of it.
    pub(crate) fn order(&self, next: &mut State, flawed: impl FnOnce(&mut List)) {
        let mut open = next.to_be_open();
        if self.has(Flaw::ClosesAnothers) {
            flawed(&mut open);
        }
        next.orders.insert(open);
        forget_what_was_probed(next);
    }

    fn apply_write(&self, next: &mut State, action: Action) {
        let is_past = |state: &State, write: Write| {
            // As one that says nothing it was sent while its router's grant was the last, or nothing is promised of it.
            state.hub.epoch > write.epoch && state.promised > write.epoch && !write.is_bare
        };
        match action {
            Action::Send(router) => {
                next.writes_left -= 1;
                let epoch = next.routers[router].view.epoch;
                let write = Write {
                    epoch,
                    is_bare: next.unfenced & 1 << epoch != 0,
                    awaited_by: u8::try_from(router).ok(),
                    is_admitted: false,
                    is_waited_for: false,
                };
                if let Some(room) = next.writes.iter_mut().find(|room| room.is_none()) {
                    *room = Some(write);
                }
            }
            Action::Arrive(index, server) => {
                let Some(mut write) = next.writes[index] else { return };
                let sees = next.servers[server].sees;
                if sees.is_none() && !write.is_bare && self.is_sent_again(next, write) {
                    next.admitted_late |= is_past(next, write);
                    write.is_bare = true;
                    next.writes[index] = Some(write);
                    return;
                }
                let passes =
                    write.is_bare || self.has(Flaw::BareWrites) || sees.is_none() && self.has(Flaw::PassesUnannotated);
                write.is_admitted = passes || sees.says(write.epoch);
                next.admitted_late |= write.is_admitted && is_past(next, write);
                let is_owners = next.hub.epoch == write.epoch && !next.hub.releasing;
                // Of one whose connection broke nobody hears the refusal.
                let is_heard = write.awaited_by.is_some() || !sees.is_none();
                next.refused |= is_owners && !write.is_admitted && is_heard;
                next.writes[index] = write.is_admitted.then_some(write);
            }
            Action::Commit(index) => {
                let Some(write) = next.writes[index].take() else { return };
                next.committed_late |= is_past(next, write);
            }
            _ => {}
        }
    }

    /// The router hears the refusal, and sends the write again without its epoch as long as it may write there at all.
    fn is_sent_again(&self, state: &State, write: Write) -> bool {
        let Some(router) = write.awaited_by.map(|router| state.routers[usize::from(router)]) else {
            return false;
        };
        let may_write = !router.view.releasing && router.view.epoch == write.epoch;
        may_write || self.has(Flaw::RetriesBlindly)
    }

    fn apply_fault(&self, next: &mut State, action: Action) {
        next.faults_left -= 1;
        match action {
            Action::Break(write) => break_off(next, write),
            Action::RestartRouter(index) | Action::StopRouter(index) | Action::EndRouter(index) => {
                let open: Vec<_> = next.open_writes().map(|(write, _)| write).collect();
                for write in open {
                    let awaited_by = next.writes[write].and_then(|write| write.awaited_by);
                    if awaited_by == u8::try_from(index).ok() {
                        break_off(next, write);
                    }
                }
                let router = &mut next.routers[index];
                router.ended = matches!(action, Action::EndRouter(_));
                router.view = router.file;
                router.knows_all = matches!(action, Action::StopRouter(_));
                router.lost_one = false;
            }
            Action::RestartHub => {
                next.hub = next.ledger;
                // They are in no ledger, and are drawn anew.
                next.closing = 0;
                if let Some(another) = &mut next.another {
                    another.closing = 0;
                }
                forget_what_was_heard(next);
            }
            Action::RestartAgent => forget_what_was_probed(next),
            Action::EndAgent => next.agent_ended = true,
            Action::MakeAnew => {
                // A patch of before is of another Namespace. The agent is told again of what is to be.
                next.annotation = List::NONE;
                next.patches = Lists::default();
                // A hub that was started anew orders nothing of what it releases before it closes that.
                let waits = next.hub.releasing && next.closing == 0;
                next.orders = if waits {
                    Lists::default()
                } else {
                    Lists::of(next.to_be_open())
                };
                forget_what_was_probed(next);
            }
            Action::RestartServer(server) => next.servers[server].sees = next.annotation,
            Action::StartServer(server) => {
                let server = &mut next.servers[server];
                (server.is_there, server.sees) = (true, next.annotation);
            }
            Action::JumpClock if self.has(Flaw::WallClock) && next.timer == Timer::Runs => next.timer = Timer::Over,
            Action::Tamper(epoch) => next.annotation.ours = epoch,
            _ => {}
        }
    }
}

fn apply_router(next: &mut State, action: Action) {
    match action {
        Action::Hear(index, grant) => {
            let router = &mut next.routers[index];
            router.view = grant;
            if !grant.releasing {
                (router.knows_all, router.lost_one) = (true, false);
            }
        }
        Action::Persist(index) => next.routers[index].file = next.routers[index].view,
        Action::Ack(index, epoch) => next.routers[index].acks |= 1 << epoch,
        Action::Answer(index, epoch) => next.routers[index].answered |= 1 << epoch,
        _ => {}
    }
}

fn apply_agent(next: &mut State, action: Action) {
    match action {
        Action::Patch(list) => {
            next.patches.insert(list);
            for server in next.servers_mut() {
                server.was_counted = server.is_there;
            }
        }
        Action::SetAnnotation(list) => next.annotation = list,
        Action::CatchUp(server) => next.servers[server].sees = next.annotation,
        Action::Probe(server) => next.servers[server].is_probed = true,
        Action::Fenced => {
            if let Some(list) = next.orders.newest() {
                next.fenced.insert(list);
            }
        }
        _ => {}
    }
}

/// The hub stores what it has granted. What was kept for it is begun.
fn store_grant(next: &mut State) {
    next.ledger = next.hub;
    next.closing = 0;
    next.moves_left -= 1;
    forget_what_was_heard(next);
}

/// The agent looks at all API servers anew.
fn forget_what_was_probed(next: &mut State) {
    for server in next.servers_mut() {
        server.is_probed = false;
    }
}

/// The router of a write hears no answer, and the write goes on.
fn break_off(next: &mut State, index: usize) {
    let Some(write) = &mut next.writes[index] else { return };
    let Some(router) = write.awaited_by.take() else { return };
    next.routers[usize::from(router)].lost_one = true;
}

/// What was admitted by now commits before the wait is over.
fn begin_to_wait(next: &mut State) {
    next.timer = Timer::Runs;
    for write in next.writes.iter_mut().flatten() {
        write.is_waited_for |= write.is_admitted;
    }
}

/// What the hub keeps in memory, of one release.
fn forget_what_was_heard(next: &mut State) {
    next.timer = Timer::Off;
    next.fence_is_heard = false;
    next.is_given_up = false;
    for router in next.routers_mut() {
        (router.ack_is_heard, router.answered_is_heard) = (false, false);
    }
    for write in next.writes.iter_mut().flatten() {
        write.is_waited_for = false;
    }
}
