//! What can happen next. A part of the protocol that a flaw leaves out is a line that asks for the flaw.

use crate::list::List;
use crate::protocol::{Flaw, Handover};
use crate::state::{Another, Grant, Sent, State, Timer};

/// One step of somebody. Routers, API servers and writes are told by their index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// The hub stores and tells that the pair is being released.
    Release,
    /// The hub reads a router's acknowledgement.
    HearAck(usize),
    /// The hub reads that no write of a router is open.
    HearAnswered(usize),
    /// The hub orders the agent to close the fence.
    Order,
    /// The hub reads that the fence is closed.
    HearFenced,
    /// The hub waits no longer for the fence.
    GiveUp,
    /// The member's request time-out has passed since the hub began to wait.
    TimerEnds,
    /// The hub stores and tells who has the pair now.
    Grant(bool),
    /// The hub stores what it has told.
    Store,
    /// The hub takes a release back.
    TakeBack,
    /// A router reads a message of the hub.
    Hear(usize, Grant),
    /// A router stores what it goes by.
    Persist(usize),
    /// A router acknowledges the release of this epoch.
    Ack(usize, u8),
    /// A router says that no write of this epoch is open.
    Answer(usize, u8),
    /// The agent sends a patch of the annotation.
    Patch(List),
    /// The member's etcd takes the patch in.
    SetAnnotation(List),
    /// Admission of an API server sees the annotation.
    CatchUp(usize),
    /// An API server refuses the agent's probe by an epoch that is over, and admits the one by the highest that is open.
    Probe(usize),
    /// The agent says that the fence is closed.
    Fenced,
    /// A caller writes by a router.
    Send(usize),
    /// A write arrives at an API server.
    Arrive(usize, usize),
    /// A write that was admitted commits, and its router hears so.
    Commit(usize),
    /// The connection of a write breaks.
    Break(usize),
    /// A router is started anew.
    RestartRouter(usize),
    /// A router ends after its last answer, and is started anew knowing that.
    StopRouter(usize),
    /// A router's Pod ends.
    EndRouter(usize),
    /// The hub is started anew.
    RestartHub,
    /// The agent is started anew.
    RestartAgent,
    /// The agent is gone for good.
    EndAgent,
    /// Somebody deletes the Namespace and makes it anew.
    MakeAnew,
    /// An API server is started anew.
    RestartServer(usize),
    /// One more API server is started.
    StartServer(usize),
    /// The hub's wall clock jumps.
    JumpClock,
    /// Somebody else sets the annotation.
    Tamper(u8),
    /// The other operator's owner has let go, and the hub orders the agent to close its epoch.
    CloseAnothers,
    /// The hub stores and tells the other operator's next owner.
    GrantAnothers,
    /// A caller of the other operator writes.
    SendAnothers,
    /// That write arrives at an API server.
    ArriveAnothers(usize),
    /// That write was admitted, and commits.
    CommitAnothers,
}

impl Handover {
    /// What the programs do by themselves, sooner or later.
    pub(crate) fn steps(&self, state: &State, actions: &mut Vec<Action>) {
        self.hub(state, actions);
        for router in 0..state.routers().len() {
            self.router(state, router, actions);
        }
        self.agent(state, actions);
        self.steps_of_another(state, actions);
        let servers = state.servers().iter().enumerate();
        let behind = servers.filter(|(_, server)| server.is_there && server.sees != state.annotation);
        actions.extend(behind.map(|(index, _)| Action::CatchUp(index)));
        for (index, write) in state.open_writes() {
            if write.is_admitted {
                actions.push(Action::Commit(index));
            } else {
                let servers = state.servers().iter().enumerate().filter(|(_, server)| server.is_there);
                actions.extend(servers.map(|(server, _)| Action::Arrive(index, server)));
            }
        }
    }

    fn hub(&self, state: &State, actions: &mut Vec<Action>) {
        if state.hub != state.ledger {
            actions.push(Action::Store);
        }
        if !state.hub.releasing {
            if state.moves_left > 0 && state.hub == state.ledger {
                actions.push(Action::Release);
            }
            return;
        }
        let epoch = state.hub.epoch;
        for (index, router) in state.routers().iter().enumerate() {
            let of_this = if self.has(Flaw::AcksAnyRelease) {
                u8::MAX
            } else {
                1 << epoch
            };
            if !router.ack_is_heard && router.acks & of_this != 0 {
                actions.push(Action::HearAck(index));
            }
            let is_anothers = self.has(Flaw::AnswersOfAnother) && state.another.is_some_and(Another::is_answered);
            if !router.answered_is_heard && (router.answered & 1 << epoch != 0 || is_anothers) {
                actions.push(Action::HearAnswered(index));
            }
        }
        let is_fenced = state.unfenced & 1 << epoch == 0 && !self.has(Flaw::NoFence);
        if self.is_released(state) && state.closing == 0 && is_fenced {
            actions.push(Action::Order);
        }
        let anothers = state.another.filter(|_| self.has(Flaw::AnswersOfAnother));
        let anothers = anothers.map_or(0, |another| another.closing);
        let is_said = |list: List| self.is_closed(list, (epoch, state.closing)) || list.says(anothers);
        if state.closing != 0 && state.fenced.iter().any(is_said) && !state.fence_is_heard {
            actions.push(Action::HearFenced);
        }
        if state.agent_ended && may_be_given_up(state) && !self.has(Flaw::WaitsForAgents) {
            actions.push(Action::GiveUp);
        }
        let waited_for = || state.open_writes().any(|(_, write)| write.is_waited_for);
        if state.timer == Timer::Runs && !waited_for() {
            actions.push(Action::TimerEnds);
        }
        if self.may_grant(state) {
            actions.extend([Action::Grant(false), Action::Grant(true)]);
        }
        if self.has(Flaw::TakesBack) && state.closing != 0 {
            actions.push(Action::TakeBack);
        }
    }

    /// Nobody writes by the old epoch any more, but for what was sent.
    pub(crate) fn is_released(&self, state: &State) -> bool {
        let mut routers = state.routers().iter();
        self.has(Flaw::ForgetsRouters) || routers.all(|router| router.ack_is_heard || router.ended)
    }

    fn may_grant(&self, state: &State) -> bool {
        let released = self.is_released(state);
        if self.has(Flaw::NoFence) || state.is_given_up || state.unfenced & 1 << state.hub.epoch != 0 {
            return released;
        }
        let answered = state.routers().iter().all(|router| router.answered_is_heard);
        let is_over = answered || state.timer == Timer::Over || self.has(Flaw::GrantsOverOpenWrites);
        released && state.fence_is_heard && is_over
    }

    /// What the other operator's programs do by themselves.
    fn steps_of_another(&self, state: &State, actions: &mut Vec<Action>) {
        let Some(another) = state.another else { return };
        if !another.has_moved && another.closing == 0 {
            actions.push(Action::CloseAnothers);
        }
        let is_fenced = state
            .fenced
            .iter()
            .any(|list| self.is_closed(list, (another.epoch, another.closing)));
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

    fn router(&self, state: &State, index: usize, actions: &mut Vec<Action>) {
        let router = state.routers[index];
        if router.ended {
            return;
        }
        for epoch in 1..=self.last_epoch() {
            for (releasing, owner) in [(false, false), (false, true), (true, false), (true, true)] {
                let grant = Grant {
                    epoch,
                    releasing,
                    owner,
                };
                let told = state.told & grant.bit() != 0;
                if told && grant.is_newer_than(router.view) {
                    actions.push(Action::Hear(index, grant));
                }
                let acknowledges = match self.flaw {
                    Some(Flaw::AcksBeforeItStops) => told && releasing,
                    Some(Flaw::AcksBeforeDisk) => router.view == grant && releasing,
                    _ => router.file == grant && router.view == grant && releasing,
                };
                if acknowledges && router.acks & 1 << epoch == 0 {
                    actions.push(Action::Ack(index, epoch));
                }
            }
        }
        if router.file != router.view {
            actions.push(Action::Persist(index));
        }
        let epoch = router.view.epoch;
        let acknowledged = router.view.releasing && router.acks & 1 << epoch != 0;
        let awaits = state
            .open_writes()
            .any(|(_, write)| write.awaited_by == u8::try_from(index).ok());
        let knows_all = router.knows_all || self.has(Flaw::RestartedIsAnswered);
        let lost_one = router.lost_one && !self.has(Flaw::BrokenIsAnswered);
        if acknowledged && !awaits && knows_all && !lost_one && router.answered & 1 << epoch == 0 {
            actions.push(Action::Answer(index, epoch));
        }
    }

    fn agent(&self, state: &State, actions: &mut Vec<Action>) {
        let Some(newest) = state.orders.newest().filter(|_| !state.agent_ended) else {
            return;
        };
        let unsent = state.orders.iter().filter(|ordered| !state.patches.contains(*ordered));
        actions.extend(unsent.map(Action::Patch));
        let takes = |sent: &List| match self.flaw {
            _ if sent.is_same(state.annotation) => false,
            Some(Flaw::AnnotationFalls) => true,
            Some(Flaw::ListFalls) => {
                let highest = sent.highest();
                state.annotation.says(highest) || highest > state.annotation.highest()
            }
            _ => sent.grows_from(state.annotation),
        };
        actions.extend(state.patches.iter().filter(takes).map(Action::SetAnnotation));
        let is_set = state.annotation.is_same(newest) || self.has(Flaw::AnnotationFalls);
        for (index, server) in state.servers().iter().enumerate() {
            let goes_by_it = server.sees.says(newest.highest()) && !server.sees.says(newest.highest_over());
            if is_set && server.is_there && !server.is_probed && goes_by_it {
                actions.push(Action::Probe(index));
            }
        }
        let mut servers = state.servers().iter();
        let closed = match self.flaw {
            Some(Flaw::NoProbe) => state.annotation == newest,
            Some(Flaw::ProbesOneServer) => servers.any(|server| server.is_probed),
            Some(Flaw::CountsServersOnce) => is_set && servers.all(|server| server.is_probed || !server.was_counted),
            _ => servers.all(|server| server.is_probed || !server.is_there),
        };
        if closed && !state.fenced.contains(newest) {
            actions.push(Action::Fenced);
        }
    }

    /// What callers may do, or not.
    pub(crate) fn writes(&self, state: &State, actions: &mut Vec<Action>) {
        let room = state.writes_left > 0 && state.writes.iter().any(Option::is_none);
        for (index, router) in state.routers().iter().enumerate() {
            // On disk before the first write: after a restart nobody else could tell that there may have been any.
            let on_disk = router.file == router.view || self.has(Flaw::WritesBeforeDisk);
            if room && !router.ended && !router.view.releasing && on_disk {
                actions.push(Action::Send(index));
            }
        }
        writes_of_another(state, actions);
    }

    /// What should not happen.
    pub(crate) fn faults(&self, state: &State, actions: &mut Vec<Action>) {
        if state.faults_left == 0 {
            return;
        }
        for (index, router) in state.routers().iter().enumerate() {
            if !router.ended {
                actions.extend([Action::RestartRouter(index), Action::EndRouter(index)]);
            }
            let mut awaited = state.open_writes().filter_map(|(_, write)| write.awaited_by);
            let awaits = awaited.any(|waiting| usize::from(waiting) == index);
            let is_over = router.knows_all && !router.lost_one && !awaits;
            if !router.ended && (is_over || self.has(Flaw::EndsOverOpenWrites)) {
                actions.push(Action::StopRouter(index));
            }
        }
        let awaited = state.open_writes().filter(|(_, write)| write.awaited_by.is_some());
        actions.extend(awaited.map(|(index, _)| Action::Break(index)));
        actions.extend([Action::RestartHub, Action::RestartAgent, Action::JumpClock]);
        if self.scope.fence_may_go {
            actions.extend([Action::EndAgent, Action::MakeAnew]);
            // The agent is only slow.
            actions.extend(may_be_given_up(state).then_some(Action::GiveUp));
        }
        for (index, server) in state.servers().iter().enumerate() {
            let fault = if server.is_there {
                Action::RestartServer(index)
            } else {
                Action::StartServer(index)
            };
            actions.push(fault);
        }
        if self.has(Flaw::AnnotationOfAll) {
            let other = |epoch: &u8| *epoch != state.annotation.ours;
            actions.extend((1..=self.last_epoch()).filter(other).map(Action::Tamper));
        }
    }
}

/// The fence was ordered closed, and nobody has said that it is.
fn may_be_given_up(state: &State) -> bool {
    state.hub.releasing && state.closing != 0 && !state.fence_is_heard && !state.is_given_up
}

/// What its callers may do, or not.
fn writes_of_another(state: &State, actions: &mut Vec<Action>) {
    let may = |another: Another| another.write == Sent::Not && !another.has_let_go;
    if state.another.is_some_and(may) {
        actions.push(Action::SendAnothers);
    }
}
