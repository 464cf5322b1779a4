//! One router: what it can do, what it holds, and what it has said.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_crds::ShardName;
use portolan_wire::protocol::UNDER_WAY_FOR;
use portolan_wire::subscription::Subscription;
use tokio::time::Instant;

use super::{Copies, Held, LedgerPosition, LockStanding, Renewals, Reported, RuleReport};
use crate::compile::Ref;
use crate::facts::PairEpoch;

/// One router.
#[derive(Debug, Clone)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "what it can do and what it has said, each apart from the others"
)]
pub(crate) struct RouterState {
    pub(crate) epoch: u64,
    pub(crate) version: String,
    /// Whether it reads cursors of format 2.
    pub(crate) reads_views: bool,
    /// Whether its writes say their epoch, where the grant is fenced.
    pub(crate) says_epochs: bool,
    /// Pairs that are being released and of which no write of it is open.
    pub(crate) answered: BTreeSet<PairEpoch>,
    /// Whether it hands leader locks over.
    pub(crate) hands_locks_over: bool,
    /// How far each handover of a leader lock is in it.
    pub(crate) locks: BTreeMap<ShardName, LockStanding>,
    /// Which locks callers may hold, as it tells.
    pub(crate) renewals: Renewals,
    /// Whether it serves policies.
    pub(crate) serves_policies: bool,
    /// Whether it knows that a namespace has an owner of each operator.
    pub(crate) knows_operators: bool,
    /// What the router is told.
    pub(crate) subscription: Subscription,
    /// Another one with each start of the router; empty: it is of a release that does not tell.
    pub(crate) process: String,
    /// It says that every write of earlier processes is answered.
    pub(crate) earlier_answered: bool,
    /// The hub that led before has noted that it believes this process.
    pub(crate) is_noted: bool,
    /// It serves nobody any more, and every write of it and of earlier processes is answered.
    pub(crate) ended: bool,
    /// Until then writes may be open of which it does not know, of another process of its name.
    pub(crate) doubted_until: Option<Instant>,
    /// When one of its name left that had another memory.
    pub(crate) replaces: Option<Instant>,
    /// `None` while connected.
    pub(crate) left: Option<Instant>,
    pub(crate) held: Held,
    /// Shards of which the transaction under way, or the last one that was not answered, tells the rules or grants namespaces.
    pub(crate) offered: BTreeSet<ShardName>,
    /// Refused version and reason, until a later version is taken.
    pub(crate) rejected: BTreeMap<Ref, (String, String)>,
    /// The last compile run whose outcome it serves whole.
    pub(crate) acked_run: u64,
    /// It cannot write its state file: what it was told since it acknowledged last is in force there, and a restart would undo it.
    pub(crate) unsaved: bool,
    /// What the router had seen of the ledger when its stream began.
    pub(crate) seen: LedgerPosition,
    /// Shared: statuses are made of copies.
    pub(crate) reported: Arc<Reported>,
    /// When this stream began.
    pub(crate) came: Instant,
    /// When it reported last on this stream.
    pub(crate) heard: Option<Instant>,
    /// When it told last on this stream how rules of policies stand.
    pub(crate) told_rules: Option<Instant>,
    /// How rules of policies stand in it, as it reported last: on this stream, or on one before.
    pub(crate) rules: Arc<RuleReport>,
    /// Copies of replicated kinds that are not what the primary has, as it reported last: on this stream, or on one before of the same
    /// process.
    pub(crate) copies: Arc<BTreeMap<ShardName, Copies>>,
}

impl RouterState {
    /// A gateway whose stream begins, and that holds this.
    pub(crate) fn new(epoch: u64, held: BTreeMap<Ref, String>) -> Self {
        Self {
            epoch,
            version: String::new(),
            reads_views: true,
            says_epochs: true,
            answered: BTreeSet::new(),
            hands_locks_over: true,
            locks: BTreeMap::new(),
            renewals: Renewals::default(),
            serves_policies: true,
            knows_operators: true,
            subscription: Subscription::Everything,
            process: String::new(),
            earlier_answered: false,
            is_noted: false,
            ended: false,
            doubted_until: None,
            replaces: None,
            left: None,
            held: held.into(),
            offered: BTreeSet::new(),
            rejected: BTreeMap::new(),
            acked_run: 0,
            unsaved: false,
            seen: LedgerPosition::default(),
            reported: Arc::default(),
            came: Instant::now(),
            heard: None,
            told_rules: None,
            rules: Arc::default(),
            copies: Arc::default(),
        }
    }

    /// Follows `earlier` of the same name. A new process that knows nothing of it, or that says that all of it is over, knows only of
    /// the processes with its own state folder: there was one with another, or the folder is a copy of before.
    pub(super) fn follow(&mut self, earlier: &Self) {
        // One that holds nothing is another program, or was told nothing yet.
        self.replaces = if self.held.is_empty() {
            earlier.left
        } else {
            earlier.replaces
        };
        // Until it says otherwise.
        self.rules = earlier.rules.clone();
        self.doubted_until = earlier.doubted_until;
        self.locks = self.locks_known_of(earlier);
        let is_same = !self.process.is_empty() && self.process == earlier.process;
        self.renewals.follow(earlier, is_same);
        if is_same {
            self.copies = earlier.copies.clone();
        }
        if !is_same && !earlier.ended && self.earlier_answered {
            self.doubted_until = Some(Instant::now() + UNDER_WAY_FOR);
        }
    }

    /// Begins where an earlier hub knew routers, perhaps of this name. What it had noted of this process holds.
    pub(super) fn begin_unknown(&mut self) {
        let now = Instant::now();
        self.replaces = Some(now);
        if self.earlier_answered && !self.is_noted {
            self.doubted_until = Some(now + UNDER_WAY_FOR);
        }
    }

    fn is_doubted(&self) -> bool {
        self.doubted_until.is_some_and(|until| Instant::now() < until)
    }

    /// The process, for the next hub, if it is believed about writes of earlier ones.
    pub(crate) fn believed_process(&self) -> Option<&str> {
        Some(&*self.process).filter(|process| !process.is_empty() && !self.is_doubted())
    }

    /// Whether no write of it to the pair is open, nor one of an earlier process of its name.
    pub(super) fn is_answered(&self, pair: &PairEpoch) -> bool {
        let is_known = self.ended || self.left.is_none() && self.answered.contains(pair);
        is_known && !self.is_doubted()
    }

    /// Whether both may serve the same caller. Of which shard a Pod is a caller does not count: that changes.
    pub(super) fn shares_callers(&self, other: &Self) -> bool {
        match (&self.subscription, &other.subscription) {
            (Subscription::Shards(ours), Subscription::Shards(theirs)) => !ours.is_disjoint(theirs),
            (Subscription::Caller(ours), Subscription::Caller(theirs)) => ours == theirs,
            _ => true,
        }
    }

    /// Whether callers of `shard` may act on its namespaces by this router: a gateway counts for all shards, any other for
    /// those of which it holds something or is being sent something.
    pub(crate) fn may_serve(&self, shard: &ShardName) -> bool {
        self.subscription == Subscription::Everything
            || self.offered.contains(shard)
            || self.held.common().keys().any(|name| name.owner() == Some(shard))
    }
}
