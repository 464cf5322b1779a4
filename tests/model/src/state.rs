//! The state of the whole system. Routers and API servers are alike, so their order does not matter: it is sorted away.

use crate::list::{EPOCHS, List, Lists};
use crate::protocol::{Flaw, Handover, MAX};

/// What the ledger says of the pair, and routers hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Grant {
    /// Epoch of the grant: grants of all operators are counted together, from 1.
    pub epoch: u8,
    /// Whether it is being taken back.
    pub releasing: bool,
    /// The owner: one of two shards.
    pub owner: bool,
}

impl Grant {
    pub(crate) fn is_newer_than(self, other: Self) -> bool {
        (self.epoch, self.releasing) > (other.epoch, other.releasing)
    }

    /// Its bit in a set of messages.
    pub(crate) fn bit(self) -> u32 {
        1 << (u32::from(self.epoch) * 4 + u32::from(self.releasing) * 2 + u32::from(self.owner))
    }
}

/// One router.
#[allow(clippy::struct_excessive_bools, reason = "facts that may be true with any other")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Router {
    /// What it serves by.
    pub view: Grant,
    /// What its state file says.
    pub file: Grant,
    /// The process that runs was there when the grant came, so it knows of all writes by it.
    pub knows_all: bool,
    /// The outcome of some write by the grant is unknown.
    pub lost_one: bool,
    /// Its Pod has ended.
    pub ended: bool,
    /// Epochs of releases that it has acknowledged: messages to the hub.
    pub acks: u8,
    /// Epochs of which it has said that no write is open: messages to the hub.
    pub answered: u8,
    /// The hub has read the acknowledgement of the release under way.
    pub ack_is_heard: bool,
    /// The hub has read that no write of it is open.
    pub answered_is_heard: bool,
}

/// One API server of the member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Server {
    /// It serves.
    pub is_there: bool,
    /// It was there when the agent last set out to close the fence.
    pub was_counted: bool,
    /// The annotation as its admission sees it.
    pub sees: List,
    /// The agent has seen it go by the list that was ordered last.
    pub is_probed: bool,
}

/// A write of a caller that is open at the member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Write {
    /// The epoch that it carries.
    pub epoch: u8,
    /// The router that waits for the answer; `None`: it knows nothing of it any more.
    pub awaited_by: Option<u8>,
    /// It does not say its epoch.
    pub is_bare: bool,
    /// Admission let it pass: it commits.
    pub is_admitted: bool,
    /// It was admitted before the hub began to wait.
    pub is_waited_for: bool,
}

/// The other operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Another {
    /// Of its last grant.
    pub epoch: u8,
    /// Of the hub: the epoch that the member is to open in its place; 0: its owner has not let go of it, as far as the hub knows.
    pub closing: u8,
    /// Its owner writes no more.
    pub has_let_go: bool,
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
            has_let_go: false,
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

/// The hub's wait for writes that were admitted: the member's request time-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Timer {
    /// Not begun.
    Off,
    /// Running.
    Runs,
    /// Over: what was admitted when it began has committed.
    Over,
}

/// The state of the system.
#[allow(clippy::struct_excessive_bools, reason = "facts that may be true with any other")]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The ledger.
    pub ledger: Grant,
    /// What the hub goes by: the ledger, but for a flaw.
    pub hub: Grant,
    /// Of the hub: the epoch that the member is to open in place of the one that is being released; 0: it has not begun to close that.
    pub closing: u8,
    /// How often the pair is still to change hands.
    pub moves_left: u8,
    /// The other operator that has the namespace.
    pub another: Option<Another>,
    /// The hub's wait for writes.
    pub timer: Timer,
    /// The hub has read that the fence is closed for the epoch to come.
    pub fence_is_heard: bool,
    /// The hub waits no longer for the fence to be closed for the epoch to come.
    pub is_given_up: bool,
    /// The last epoch that was granted with the fence closed: of writes of earlier ones it is promised that none is admitted.
    pub promised: u8,
    /// Epochs that were granted without a fence: their writes do not say them.
    pub unfenced: u8,
    /// The agent is gone for good.
    pub agent_ended: bool,
    /// Messages of the hub to routers.
    pub told: u32,
    /// Messages of the hub to the agent: what is to be open.
    pub orders: Lists,
    /// Patches of the annotation that the agent has sent.
    pub patches: Lists,
    /// Messages of the agent to the hub: all API servers go by these.
    pub fenced: Lists,
    /// The annotation as it is in etcd; none: the Namespace was made anew.
    pub annotation: List,
    /// As many as the scope says; the others never change.
    pub routers: [Router; MAX],
    /// As many as the scope says; the others never change.
    pub servers: [Server; MAX],
    /// Open writes, first those that there are.
    pub writes: [Option<Write>; MAX],
    /// Writes that may still begin.
    pub writes_left: u8,
    /// Faults that may still come.
    pub faults_left: u8,
    /// A write of a former owner was admitted after the grant.
    pub admitted_late: bool,
    /// A write of a former owner was committed after the grant.
    pub committed_late: bool,
    /// A write of the owner was refused.
    pub refused: bool,
    /// Some step was none.
    pub stood_still: bool,
    size: (u8, u8),
}

/// Panics if the scope has more than a state can tell apart.
fn check(model: &Handover) {
    let scope = &model.scope;
    assert!(
        model.last_epoch() < EPOCHS,
        "{scope:?}: sets of lists have no room for so many epochs"
    );
    assert!(
        !scope.another || !scope.fence_may_go,
        "{scope:?}: beside another operator no fence goes"
    );
}

impl State {
    pub(crate) fn new(model: &Handover) -> Self {
        let scope = &model.scope;
        check(model);
        let another = scope
            .another
            .then(|| Another::new(if model.has(Flaw::EpochsByOperator) { 1 } else { 2 }));
        let open = List {
            ours: 1,
            theirs: another.map_or(0, |another| another.epoch),
        };
        let first = Grant {
            epoch: 1,
            releasing: false,
            owner: false,
        };
        let router = Router {
            view: first,
            file: first,
            knows_all: true,
            lost_one: false,
            ended: false,
            acks: 0,
            answered: 0,
            ack_is_heard: false,
            answered_is_heard: false,
        };
        let server = |index: usize| Server {
            is_there: index < scope.servers,
            was_counted: false,
            sees: open,
            is_probed: false,
        };
        let count = |count: usize| u8::try_from(count.min(MAX)).unwrap_or(u8::MAX);
        Self {
            ledger: first,
            hub: first,
            closing: 0,
            moves_left: scope.moves,
            another,
            timer: Timer::Off,
            fence_is_heard: false,
            is_given_up: false,
            promised: 1,
            unfenced: 0,
            agent_ended: false,
            told: first.bit(),
            orders: Lists::default(),
            patches: Lists::default(),
            fenced: Lists::default(),
            annotation: open,
            routers: [router; MAX],
            servers: [0, 1, 2].map(server),
            writes: [None; MAX],
            writes_left: scope.writes,
            faults_left: scope.faults,
            admitted_late: false,
            committed_late: false,
            refused: false,
            stood_still: false,
            size: (count(scope.routers), count(scope.servers + scope.servers_later)),
        }
    }

    /// The list of the epochs that are to be open, as the ledger has it.
    pub(crate) fn to_be_open(&self) -> List {
        let of = |epoch: u8, closing: u8| if closing == 0 { epoch } else { closing };
        List {
            ours: of(self.hub.epoch, self.closing),
            theirs: self.another.map_or(0, |another| of(another.epoch, another.closing)),
        }
    }

    /// The routers that there are.
    pub fn routers(&self) -> &[Router] {
        &self.routers[..usize::from(self.size.0)]
    }

    /// The API servers that there are, or will be.
    pub fn servers(&self) -> &[Server] {
        &self.servers[..usize::from(self.size.1)]
    }

    pub(crate) fn servers_mut(&mut self) -> &mut [Server] {
        &mut self.servers[..usize::from(self.size.1)]
    }

    pub(crate) fn routers_mut(&mut self) -> &mut [Router] {
        &mut self.routers[..usize::from(self.size.0)]
    }

    /// The writes that are open.
    pub fn open_writes(&self) -> impl Iterator<Item = (usize, Write)> {
        let writes = self.writes.iter().enumerate();
        writes.filter_map(|(index, write)| write.map(|write| (index, write)))
    }

    /// The same state, with alike things in order: who they are does not matter.
    pub(crate) fn in_order(mut self) -> Self {
        self.servers_mut().sort_unstable();
        let mut order = [0_u8, 1, 2];
        let count = self.routers().len();
        order[..count].sort_by_key(|index| self.routers[usize::from(*index)]);
        if !order.is_sorted() {
            self.routers = order.map(|index| self.routers[usize::from(index)]);
            for write in self.writes.iter_mut().flatten() {
                let now = |was: u8| order.iter().position(|index| *index == was);
                let router = write.awaited_by.and_then(now);
                write.awaited_by = router.and_then(|index| u8::try_from(index).ok());
            }
        }
        self.writes.sort_unstable_by_key(|write| (write.is_none(), *write));
        self
    }

    /// Grows with each step of a protocol that leaves nothing out: there is no run without an end.
    pub fn progress(&self) -> u32 {
        let grant = |grant: Grant| u32::from(grant.epoch) * 2 + u32::from(grant.releasing);
        let router = |router: &Router| {
            let messages = router.acks.count_ones() + router.answered.count_ones();
            grant(router.view) + grant(router.file) + messages + u32::from(router.ended)
        };
        let routers: u32 = self.routers().iter().map(router).sum();
        let heard = self
            .routers()
            .iter()
            .map(|router| u32::from(router.ack_is_heard) + u32::from(router.answered_is_heard));
        let heard =
            heard.sum::<u32>() + u32::from(self.fence_is_heard) + u32::from(self.is_given_up) + self.timer as u32;
        let probed = self.servers().iter().filter(|server| server.is_probed).count();
        let probed = u32::try_from(probed).unwrap_or(0);
        let is_up = |server: &Server| server.sees == self.annotation;
        let seen = |server: &Server| 10 * u32::from(is_up(server)) + u32::from(server.was_counted);
        let seen: u32 = self.servers().iter().map(seen).sum();
        // One that is admitted has come further than one that is under way, and one that is over furthest.
        let open = self.open_writes().map(|(_, write)| {
            4 - u32::from(write.is_admitted) - u32::from(write.awaited_by.is_none()) - u32::from(write.is_bare)
        });
        let writes = 5 * u32::from(self.writes_left) + open.sum::<u32>();
        let member = 40 * u32::from(self.annotation.sum()) + seen + self.patches.len() + self.fenced.len();
        let within = routers + heard + probed + member + self.told.count_ones();
        // What a release has gathered is dropped by the grant, what was probed by the next order, and a restart drops more.
        let is_closing = u32::from(self.closing != 0);
        let steps = 20 * (grant(self.ledger) + grant(self.hub) + self.orders.len() + is_closing);
        let another = self.another.map_or(0, Another::progress);
        within + steps + another + 100 - writes + 1000 * (100 - u32::from(self.faults_left))
    }
}
