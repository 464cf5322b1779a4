//! Another operator that has the same namespace of the same member: what of it can meet the handovers that are modelled. They share the
//! counter of epochs, the annotation, the agent and what it says. Its shards, its routers' acknowledgements and its wait for answers
//! are as those of the modelled one, so they are no more than a condition here. It hands the namespace over once, and one write of it
//! is sent at any time, which nobody waits for and which may arrive at any time after.

use crate::protocol::{Flaw, Handover};
use crate::state::{Another, Sent, State};
use crate::step::Action;

impl Handover {
    pub(crate) fn apply_another(&self, next: &mut State, action: Action) {
        let drawn = self.next_epoch_of_another(next);
        let Some(another) = &mut next.another else { return };
        match action {
            Action::CloseAnothers => {
                another.closing = drawn;
                another.has_let_go = true;
                self.order(next, |flawed| flawed.ours = 0);
            }
            Action::GrantAnothers => {
                (another.epoch, another.closing) = (another.closing, 0);
                (another.has_moved, another.has_let_go) = (true, false);
            }
            Action::SendAnothers => another.write = Sent::Under(another.epoch),
            Action::ArriveAnothers(server) => {
                let Sent::Under(epoch) = another.write else { return };
                let is_admitted = next.servers[server].sees.says(epoch);
                let is_owners = another.epoch == epoch && !another.has_let_go;
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
