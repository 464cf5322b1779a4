//! What follows from what a router is and has said: whether its word counts, and whom it may serve. Methods of [`RouterState`] alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_crds::ShardName;
use portolan_wire::protocol::UNDER_WAY_FOR;
use portolan_wire::subscription::Subscription;
use tokio::time::Instant;

use super::{Held, LedgerPosition, Renewals, RouterState};
use crate::compile::Ref;
use crate::facts::{PROCESS_ENDED, PairEpoch};

/// Longest name of a process that the status of a Router has room for, in bytes.
const PROCESS_MAX: usize = 128;

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
            is_new: false,
            ended: false,
            gone: false,
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

    /// It serves nobody any more, and every write is answered. `gone`: nor does what it leaves behind serve anybody, so that nothing
    /// waits for it. Whether that counts: not while another process of its name may serve by a copy of its folder.
    pub(crate) fn end(&mut self, gone: bool) -> bool {
        let counts = gone && !self.is_doubted();
        self.ended = true;
        if counts {
            self.gone = true;
            self.held = Held::default();
            self.offered.clear();
            self.locks.clear();
            self.rejected.clear();
            self.acked_run = u64::MAX;
        }
        counts
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
        // A router that calls itself so may not pass for one that the hub has seen end.
        let is_told = (1..=PROCESS_MAX).contains(&self.process.len()) && self.process != PROCESS_ENDED;
        Some(&*self.process).filter(|_| is_told && !self.is_doubted())
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
