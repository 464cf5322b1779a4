//! Another operator that has the same namespace of the same member: what of it can meet the handovers that are modelled. They share the
//! counter of epochs, the annotation, the agent and what it says. Its shards, its routers' acknowledgements and its wait for answers
//! are as those of the modelled one, so they are no more than a condition here. It hands the namespace over once, and one write of it
//! is sent at any time, which nobody waits for and which may arrive at any time after.

use crate::protocol::{Flaw, Handover};
use crate::state::State;
use crate::step::Action;

/// The other operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Another {
    /// Of its last grant.
    pub epoch: u8,
    /// The epoch that the member is to open in its place; 0: its owner has not let go of it.
    pub closing: u8,
    /// It has handed the namespace over.
    pub has_moved: bool,
    /// Its write.
    pub write: Sent,
}

/// How far the other operator's write is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Sent {
    /// Not sent.
    Not,
    /// It is on its way, and says this epoch.
    Under(u8),
    /// The member has admitted it.
    Admitted(u8),
    /// It has committed, or was refused.
    Over,
}

impl Another {
    pub(crate) fn new(epoch: u8) -> Self {
        Self {
            epoch,
            closing: 0,
            has_moved: false,
            write: Sent::Not,
        }
    }

    /// It has handed over, and no write of it is open.
    pub(crate) fn has_ended(self) -> bool {
        self.has_moved && matches!(self.write, Sent::Not | Sent::Over)
    }

    /// The highest epoch that it has, or that is kept for it.
    pub(crate) fn highest(self) -> u8 {
        self.epoch.max(self.closing)
    }

    /// Whether the hub would be told that no write of its owner is open.
    pub(crate) fn is_answered(self) -> bool {
        self.closing != 0 && !matches!(self.write, Sent::Admitted(_))
    }

    pub(crate) fn progress(self) -> u32 {
        let write = match self.write {
            Sent::Not => 0,
            Sent::Under(_) => 1,
            Sent::Admitted(_) => 2,
            Sent::Over => 3,
        };
        let step = if self.has_moved {
            2
        } else {
            u32::from(self.closing != 0)
        };
        // An order of it drops what was probed.
        20 * step + write
    }
}

/// What the other operator's programs do by themselves.
pub(crate) fn steps(state: &State, actions: &mut Vec<Action>) {
    let Some(another) = state.another else { return };
    if !another.has_moved && another.closing == 0 {
        actions.push(Action::CloseAnothers);
    }
    let is_fenced = state.fenced.iter().any(|list| list.says(another.closing));
    if another.is_answered() && is_fenced {
        actions.push(Action::GrantAnothers);
    }
    match another.write {
        Sent::Under(_) => {
            let servers = state.servers().iter().enumerate();
            let servers = servers.filter(|(_, server)| server.is_there);
            actions.extend(servers.map(|(server, _)| Action::ArriveAnothers(server)));
        }
        Sent::Admitted(_) => actions.push(Action::CommitAnothers),
        Sent::Not | Sent::Over => {}
    }
}

/// What its callers may do, or not.
pub(crate) fn writes(state: &State, actions: &mut Vec<Action>) {
    let may = |another: Another| another.write == Sent::Not && another.closing == 0;
    if state.another.is_some_and(may) {
        actions.push(Action::SendAnothers);
    }
}

impl Handover {
    pub(crate) fn apply_another(&self, next: &mut State, action: Action) {
        let drawn = self.next_epoch_of_another(next);
        let Some(another) = &mut next.another else { return };
        match action {
            Action::CloseAnothers => {
                another.closing = drawn;
                self.order(next, |flawed| flawed.ours = 0);
            }
            Action::GrantAnothers => {
                (another.epoch, another.closing) = (another.closing, 0);
                another.has_moved = true;
            }
            Action::SendAnothers => another.write = Sent::Under(another.epoch),
            Action::ArriveAnothers(server) => {
                let Sent::Under(epoch) = another.write else { return };
                let is_admitted = next.servers[server].sees.says(epoch);
                let is_owners = another.epoch == epoch && another.closing == 0;
                another.write = if is_admitted { Sent::Admitted(epoch) } else { Sent::Over };
                next.admitted_late |= is_admitted && another.epoch > epoch;
                next.refused |= is_owners && !is_admitted;
            }
            Action::CommitAnothers => {
                let Sent::Admitted(epoch) = another.write else { return };
                another.write = Sent::Over;
                next.committed_late |= another.epoch > epoch;
            }
            _ => {}
        }
    }

    /// After all that any operator has, or that is kept for one.
    pub(crate) fn next_epoch(&self, state: &State) -> u8 {
        let others = state.another.filter(|_| !self.has(Flaw::EpochsByOperator));
        let others = others.map_or(0, Another::highest);
        state.hub.epoch.max(state.closing).max(others) + 1
    }

    fn next_epoch_of_another(&self, state: &State) -> u8 {
        if self.has(Flaw::EpochsByOperator) {
            return state.another.map_or(0, Another::highest) + 1;
        }
        self.next_epoch(state)
    }
}
