//! How much there is of everything, and what the protocol leaves out.

use crate::list::List;

/// Most routers, API servers and writes of a scope.
pub const MAX: usize = 3;

/// How much there is of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Routers, all of which may serve both shards.
    pub routers: usize,
    /// API servers of the member that serve from the beginning.
    pub servers: usize,
    /// API servers that may come later, each as one fault.
    pub servers_later: usize,
    /// Writes of callers.
    pub writes: u8,
    /// How often the pair is to change hands.
    pub moves: u8,
    /// Whether the agent may end for good, or be given up, and the Namespace may be made anew, each as one fault.
    pub fence_may_go: bool,
    /// Whether another operator has the namespace too, hands it over once, and writes once.
    pub another: bool,
    /// Restarts, ends of Pods, connections that break and jumps of the clock, together.
    pub faults: u8,
}

/// A protocol that leaves something out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The pair is granted once the release is acknowledged, and members are told nothing.
    NoFence,
    /// The pair is granted once the annotation is set.
    NoProbe,
    /// The pair is granted once one API server refuses the old epoch.
    ProbesOneServer,
    /// The agent probes the API servers that there were as it set out.
    CountsServersOnce,
    /// Writes do not carry their epoch.
    BareWrites,
    /// Routers acknowledge a release as they hear of it, and then stop writing.
    AcksBeforeItStops,
    /// Routers acknowledge a release that is not on disk.
    AcksBeforeDisk,
    /// Routers write by a grant that is not on disk, so that after a restart they take it for a new one.
    WritesBeforeDisk,
    /// An acknowledgement does not say of which release it is.
    AcksAnyRelease,
    /// Writes that are open do not hold the grant up.
    GrantsOverOpenWrites,
    /// A write whose connection broke counts as answered.
    BrokenIsAnswered,
    /// A router that was started anew says that all is answered, of what it does not know.
    RestartedIsAnswered,
    /// A router that ends says that all is answered, whatever is open.
    EndsOverOpenWrites,
    /// The wait for writes that were admitted begins with the acknowledgements, before the fence is closed.
    WaitsFromTheAcks,
    /// The wait for writes that were admitted is measured by a clock that jumps.
    WallClock,
    /// Others than the agent may set the annotation.
    AnnotationOfAll,
    /// The agent sets the annotation whatever it was, so that a late patch of an earlier move takes it back.
    AnnotationFalls,
    /// A release that has begun is taken back, and the owner goes on by its old epoch.
    TakesBack,
    /// The grant is told before it is in the ledger.
    GrantsBeforeLedger,
    /// The pair is granted although some router has not acknowledged the release: it is thought to be gone.
    ForgetsRouters,
    /// A handover waits for an agent that is gone.
    WaitsForAgents,
    /// What was granted without a fence, as its agent was given up, is said to be fenced.
    ClaimsWhatItGaveUp,
    /// The policy lets writes pass to a namespace that has no annotation.
    PassesUnannotated,
    /// A write that was refused as the namespace has no annotation is sent again without its epoch, whoever has it by now.
    RetriesBlindly,
    /// Each operator counts epochs for itself.
    EpochsByOperator,
    /// What routers or the agent say of one operator's handover is taken for the other's.
    AnswersOfAnother,
    /// An operator's epoch counts as closed where the next one is open, though it may be open itself: the next one was kept for the other
    /// operator until the hub was started anew.
    OpenIsClosed,
    /// Closing an operator's epoch sets a list in which the other's is not.
    ClosesAnothers,
    /// The compare and set asks for the highest epoch of a list alone, so that a late one takes back what the other operator has opened
    /// since.
    ListFalls,
}

/// The model of one pair of one operator.
#[derive(Clone, Copy, Debug)]
pub struct Handover {
    /// How much there is of everything.
    pub scope: Scope,
    /// What the protocol leaves out, if anything.
    pub flaw: Option<Flaw>,
}

impl Handover {
    pub(crate) fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// Whether by this list, which all API servers go by, the epoch is closed for the `next` one.
    pub(crate) fn is_closed(&self, list: List, (epoch, next): (u8, u8)) -> bool {
        // Where operators count for themselves, another's may be the same.
        let is_open = list.says(epoch) && !self.has(Flaw::EpochsByOperator);
        list.says(next) && (!is_open || self.has(Flaw::OpenIsClosed))
    }

    /// The highest epoch that there can be.
    pub(crate) fn last_epoch(&self) -> u8 {
        // Who is granted what was given up begins an epoch after the one that was kept.
        let a_move = 1 + u8::from(self.scope.fence_may_go);
        // What was kept is drawn anew by a hub that was started anew, above what the other operator was granted meanwhile.
        let of_another = u8::from(self.scope.another) * (2 + self.scope.faults);
        1 + self.scope.moves * a_move + of_another
    }
}
