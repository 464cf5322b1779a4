//! A model of how a (cluster, namespace) pair of one operator changes hands, searched exhaustively: hub, routers, agent, the member's
//! API servers, writes that arrive late, and another operator that has the namespace too. Not the programs' code: their protocol, in as few words as it has.
//!
//! ```text
//! hub      Releasing(e) stored, told ─► all acknowledged ─► n drawn, order({n, o}) ─────────► fenced({n, o}) ─► writes over ─► Granted(n) stored, told
//! routers        stop writing, on disk, ack(e); answered(e) once no write of theirs is open        ▲
//! agent                                              annotation := {n, o} ─► every API server refuses e, admits n
//! ```
//!
//! The namespace has one counter of epochs: `n` is above all that any operator has, or that is kept for one. `o` is the other
//! operator's, if there is one: the annotation says all epochs that are open, and is set as a whole, by a compare and set that takes in
//! what is open already or above all that is. The other operator is environment: it hands over once and writes once, at any moment.
//!
//! A hub that waits no longer for the agent grants once all have acknowledged, and promises nothing of late writes; nor of those
//! that say no epoch: of grants like that, and to a Namespace that was made anew and has no annotation, by a router that may write
//! there still.
//!
//! What it takes for granted, and nothing else:
//!
//! - The ledger, a router's state file and the member's etcd keep what was written; each write to them is one step.
//! - An API server's admission sees the namespace's annotation late, by any time, but never goes back; one that starts begins
//!   with the newest. The agent can tell how many serve at the moment, and which one answered.
//! - The member's policies take lists. Beside another operator the agent is not gone for good or given up, and the Namespace stays
//!   the same: where it does not, nothing is promised of either.
//! - Nobody restores the member's etcd from a backup meanwhile.
//! - A write that was admitted commits, or is lost, within the member's request time-out. One that was not can be on its way
//!   for ever.
//! - A router whose Pod has ended sends nothing new. What it sent may be on its way.
//!
//! Messages are a set that only grows: each may be read late, again, in any order, or not before the very end, which is all
//! that loss, repetition and reordering can do. Programs restart between any two steps and come back with what they had
//! stored. Writes break off: their router then knows nothing of them, and they may arrive all the same. The clock of the hub
//! jumps.
//!
//! Each run is finite ([`State::progress`] grows with each step), so that every move ends if no run stops before.
//!
//! A [`Flaw`] is a protocol that leaves something out. Each has a counterexample, found by the search: that is how one sees
//! that the laws can fail, and what each part of the protocol is for.

mod another;
mod laws;
mod leaders;
mod list;
mod outcome;
mod protocol;
mod state;
mod step;

pub use laws::{ADMITTED, COMMITTED, ENDS, ONE_OWNER, PROGRESS, REFUSED};
pub use leaders::{Leaders, LeadersAction, LeadersFlaw, Leading, Listener, MOVES, ONE_LEADS, Pair, Replica};
pub use list::{List, Lists};
pub use protocol::{Flaw, Handover, MAX, Scope};
pub use state::{Another, Grant, Router, Sent, Server, State, Timer, Write};
pub use step::Action;

use stateright::{Model, Property};

impl Model for Handover {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.steps(state, actions);
        self.writes(state, actions);
        self.faults(state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let next = self.apply(state, action);
        Some(next.in_order())
    }

    fn properties(&self) -> Vec<Property<Self>> {
        laws::properties()
    }
}
