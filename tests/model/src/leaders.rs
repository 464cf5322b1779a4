//! A model of its own: two replicas of the hub, of which each may believe that it leads. One is frozen for any time, wakes, and goes on
//! where it was, as its clock says that no time has passed.
//!
//! ```text
//! a replica   root := its term, if that is higher ─► reads the pair ─► writes the pair, if it is as it was read ─► looks at the root ─► tells
//! routers     take what a hub of their highest term or a higher one tells, store it with its term, acknowledge to that hub
//! ```
//!
//! The Lease does not occur: it says when a replica tries to lead, and any time will do. What one release has gathered, a replica
//! keeps to itself: the next one hears all routers anew. How a write is fenced at the member is the other model's subject.
//!
//! What an earlier replica wrote after the later one had read is written over, or read by the one after that: nobody was told of it.

use stateright::{Model, Property};

/// Replicas, and routers.
pub(crate) const TWO: usize = 2;

/// All routers that let somebody write let the same shard write.
pub const ONE_LEADS: &str = "routers of two leaders let one owner write";
/// A pair that nobody has is no way to have one owner.
pub const MOVES: &str = "a pair is handed over by the second leader";

/// A protocol of leaders that leaves something out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeadersFlaw {
    /// Routers take what a hub of a lower term tells.
    TermIgnored,
    /// A router that was started anew does not know the highest term any more.
    TermForgotten,
    /// A replica tells what it has written without a look at the root.
    TellsUnconfirmed,
    /// A replica reads the pair, and raises the term then.
    ReadsBeforeItRaises,
    /// A write does not ask whether the pair is as it was read.
    WritesBlindly,
    /// Acknowledgements that another replica has heard count.
    AcksOfAnother,
}

/// The model: so many terms, moves, freezes and restarts of routers.
#[derive(Clone, Copy, Debug)]
pub struct Leaders {
    /// How often some replica begins to lead after the first.
    pub takeovers: u8,
    /// How often a release begins.
    pub moves: u8,
    /// How often a router is started anew.
    pub restarts: u8,
    /// What the protocol leaves out, if anything.
    pub flaw: Option<LeadersFlaw>,
}

/// Who has the pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pair {
    /// Counts grants.
    pub epoch: u8,
    /// Whether it is being taken back.
    pub releasing: bool,
    /// One of two shards.
    pub owner: bool,
}

/// One replica, which runs whenever the search lets it: frozen is who has no turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Replica {
    /// The term of a hub that leads; 0: it follows.
    pub term: u8,
    /// The pair as the hub goes by it and tells it; none: it has not read.
    pub told: Option<Pair>,
    /// The version of the pair as it was read or written.
    pub version: u8,
    /// Written, and not yet told.
    pub written: Option<Pair>,
    /// Routers that have acknowledged what it tells, to it.
    pub acks: [bool; TWO],
}

/// One router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Listener {
    /// The pair as a router serves by it, and has it on disk.
    pub view: Pair,
    /// The highest term that it has heard.
    pub term: u8,
}

/// The whole of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Leading {
    /// The ledger's root.
    pub root: u8,
    /// The pair in the ledger.
    pub stored: Pair,
    /// Counts its writes.
    pub version: u8,
    /// The replicas.
    pub replicas: [Replica; TWO],
    /// The routers.
    pub routers: [Listener; TWO],
    /// Terms to come.
    pub takeovers: u8,
    /// Releases to come.
    pub moves: u8,
    /// Restarts to come.
    pub restarts: u8,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeadersAction {
    /// A replica that does not lead raises the root's term.
    Raise(usize),
    /// A hub reads the pair.
    Read(usize),
    /// A hub writes the pair.
    Write(usize, Pair),
    /// It looks whether the root has its term still.
    Confirm(usize),
    /// It tells a router what it goes by, and hears the acknowledgement.
    Tell(usize, usize),
    /// A hub ends, and follows from then on.
    End(usize),
    /// A router is started anew.
    Restart(usize),
}

impl Leaders {
    fn has(self, flaw: LeadersFlaw) -> bool {
        self.flaw == Some(flaw)
    }

    fn writes(self, state: &Leading, replica: usize, actions: &mut Vec<LeadersAction>) {
        let one = state.replicas[replica];
        let Some(told) = one.told.filter(|_| one.written.is_none()) else {
            return;
        };
        if !told.releasing {
            let release = Pair {
                releasing: true,
                ..told
            };
            actions.extend((state.moves > 0).then_some(LeadersAction::Write(replica, release)));
            return;
        }
        let mut heard = one.acks;
        if self.has(LeadersFlaw::AcksOfAnother) {
            let others = state.replicas[1 - replica].acks;
            (0..TWO).for_each(|router| heard[router] |= others[router]);
        }
        if heard == [true; TWO] {
            let grants = [false, true].map(|owner| Pair {
                epoch: told.epoch + 1,
                releasing: false,
                owner,
            });
            actions.extend(grants.map(|grant| LeadersAction::Write(replica, grant)));
        }
    }

    fn write(self, state: &mut Leading, replica: usize, pair: Pair) {
        let is_as_read = state.replicas[replica].version == state.version || self.has(LeadersFlaw::WritesBlindly);
        let leads = state.root == state.replicas[replica].term;
        if !is_as_read && !leads {
            state.replicas[replica] = Replica::FOLLOWS;
            return;
        }
        // By an earlier replica, if it is not as it was read: it is written over.
        state.moves -= u8::from(pair.releasing);
        state.stored = pair;
        state.version += 1;
        let one = &mut state.replicas[replica];
        one.version = state.version;
        one.written = Some(pair);
        if self.has(LeadersFlaw::TellsUnconfirmed) {
            one.begin_to_tell();
        }
    }

    fn tell(self, state: &mut Leading, (replica, router): (usize, usize)) {
        let one = &mut state.replicas[replica];
        let Some(told) = one.told else { return };
        let listener = &mut state.routers[router];
        if one.term < listener.term && !self.has(LeadersFlaw::TermIgnored) {
            return;
        }
        listener.view = told;
        listener.term = listener.term.max(one.term);
        one.acks[router] = true;
    }
}

impl Replica {
    const FOLLOWS: Self = Self {
        term: 0,
        told: None,
        version: 0,
        written: None,
        acks: [false; TWO],
    };

    fn begin_to_tell(&mut self) {
        self.told = self.written.take();
        self.acks = [false; TWO];
    }
}

impl Model for Leaders {
    type State = Leading;
    type Action = LeadersAction;

    fn init_states(&self) -> Vec<Leading> {
        let first = Pair {
            epoch: 1,
            releasing: false,
            owner: false,
        };
        let leads = Replica {
            term: 1,
            told: Some(first),
            ..Replica::FOLLOWS
        };
        vec![Leading {
            root: 1,
            stored: first,
            version: 0,
            replicas: [leads, Replica::FOLLOWS],
            routers: [Listener { view: first, term: 1 }; TWO],
            takeovers: self.takeovers,
            moves: self.moves,
            restarts: self.restarts,
        }]
    }

    fn actions(&self, state: &Leading, actions: &mut Vec<LeadersAction>) {
        for (index, one) in state.replicas.iter().enumerate() {
            let has_read = self.has(LeadersFlaw::ReadsBeforeItRaises) && one.told.is_some();
            if one.term == 0 && state.takeovers > 0 && (has_read || !self.has(LeadersFlaw::ReadsBeforeItRaises)) {
                actions.push(LeadersAction::Raise(index));
            }
            let reads_now = (one.term == 0) == self.has(LeadersFlaw::ReadsBeforeItRaises);
            if one.told.is_none() && one.written.is_none() && reads_now {
                actions.push(LeadersAction::Read(index));
            }
            if one.term == 0 {
                continue;
            }
            self.writes(state, index, actions);
            if one.written.is_some() {
                actions.push(LeadersAction::Confirm(index));
            }
            if one.told.is_some() {
                actions.extend((0..TWO).map(|router| LeadersAction::Tell(index, router)));
            }
            actions.push(LeadersAction::End(index));
        }
        if state.restarts > 0 {
            actions.extend((0..TWO).map(LeadersAction::Restart));
        }
    }

    fn next_state(&self, last: &Leading, action: LeadersAction) -> Option<Leading> {
        let mut state = last.clone();
        match action {
            LeadersAction::Raise(replica) => {
                state.takeovers -= 1;
                state.root += 1;
                state.replicas[replica].term = state.root;
            }
            LeadersAction::Read(replica) => {
                state.replicas[replica].told = Some(state.stored);
                state.replicas[replica].version = state.version;
            }
            LeadersAction::Write(replica, pair) => self.write(&mut state, replica, pair),
            LeadersAction::Confirm(replica) if state.root == state.replicas[replica].term => {
                state.replicas[replica].begin_to_tell();
            }
            LeadersAction::Confirm(replica) | LeadersAction::End(replica) => state.replicas[replica] = Replica::FOLLOWS,
            LeadersAction::Tell(replica, router) => self.tell(&mut state, (replica, router)),
            LeadersAction::Restart(router) => {
                state.restarts -= 1;
                if self.has(LeadersFlaw::TermForgotten) {
                    state.routers[router].term = 0;
                }
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_LEADS, |_, state: &Leading| {
                let mut writing = state.routers.iter().filter(|router| !router.view.releasing);
                let first = writing.next().map(|router| router.view.owner);
                writing.all(|router| Some(router.view.owner) == first)
            }),
            Property::sometimes(MOVES, |_, state: &Leading| {
                let moved = |router: &Listener| router.term > 1 && router.view.owner && router.view.epoch > 1;
                state.routers.iter().all(moved)
            }),
        ]
    }
}
