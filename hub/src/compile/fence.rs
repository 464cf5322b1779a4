//! Which pairs their members fence off: where writes say their epoch, a write of a former owner that arrives late is refused.
//!
//! A pair is *fenced* once its namespace's annotation is at its epoch, and every API server of the member goes by it; from then
//! on its writes say their epoch. One that is being released is *closed* for the epoch after: only then can it be another's
//! (`docs/semantics.md#handover`). Callers: `compile` moves the ledger on, `agent_config` gives the orders.

use portolan_crds::labels::system_namespace;
use portolan_crds::ledger::PairFence;
use portolan_wire::v1;

use super::ledger::{Entry, Ledger, Released};
use crate::facts::Facts;

/// Most orders at once: each takes the agent some requests. The others follow.
const ORDERS_MAX: usize = 1_000;

impl Entry {
    /// Whether writes of its owner say their epoch.
    pub(crate) fn is_fenced(&self) -> bool {
        self.owner.is_some() && self.fence.epoch == self.owner_count
    }

    /// The epoch of another owner begins. The member goes by `annotated` already, which may be of an earlier ledger.
    pub(super) fn begin_epoch(&mut self, annotated: Option<u64>) {
        let next = self.owner_count + 1;
        let is_closed = self.fence.epoch == next && annotated == Some(next);
        self.owner_count = match annotated {
            Some(annotated) if annotated >= next && self.fence.epoch != next => annotated + 1,
            _ => next,
        };
        if !is_closed {
            self.fence = PairFence::default();
        }
    }

    /// Whether the pair that is being released is nobody's by now.
    pub(super) fn is_let_go(&mut self, facts: &Facts, released: &Released, (cluster, namespace): (&str, &str)) -> bool {
        let (Some(since), Some(shard)) = (self.releasing_since, &self.owner) else {
            return false;
        };
        let fences = facts.can_fence(cluster) != Some(false) && released.saying_epochs.contains(shard);
        if !self.is_fenced() || !fences {
            return since <= released.of(shard);
        }
        self.closing |= released.let_go.get(shard).is_some_and(|run| since <= *run);
        let pair = (cluster.to_owned(), namespace.to_owned(), self.owner_count);
        if !self.closing || !released.over.contains(&pair) {
            return false;
        }
        self.fence = PairFence {
            epoch: self.owner_count + 1,
            whole: true,
        };
        true
    }
}

impl Ledger {
    /// Writes say their epoch where the member goes by it, and say none where it does not any more: its right was taken, or the
    /// Namespace was made anew and has no annotation yet.
    pub(super) fn fence(&mut self, facts: &Facts) {
        for (cluster, namespace, entry) in self.entries_mut() {
            let is_granted = entry.owner.is_some() && entry.releasing_since.is_none();
            if !is_granted {
                continue;
            }
            let can = facts.can_fence(cluster);
            let known = facts.inventory(cluster).and_then(|all| all.get(namespace));
            let elsewhere = known.is_some_and(|known| known.epoch != Some(entry.owner_count));
            if entry.is_fenced() && (can == Some(false) || elsewhere) {
                entry.fence = PairFence::default();
            } else if !entry.is_fenced() && can == Some(true) && !elsewhere {
                let there = known.is_some() && facts.is_fenced(cluster, namespace, entry.owner_count);
                if there {
                    entry.fence.epoch = entry.owner_count;
                    entry.fence.whole = false;
                }
            }
        }
    }
}

/// What the agent of `cluster` is to fence, first what others wait for.
pub(super) fn orders(facts: &Facts, ledger: &Ledger, cluster: &str) -> Vec<v1::FenceOrder> {
    let can = facts.can_fence(cluster);
    if can == Some(false) {
        return Vec::new();
    }
    let order = |namespace: &str, epoch| v1::FenceOrder {
        namespace: namespace.to_owned(),
        epoch,
    };
    let closing = ledger.in_cluster(cluster).filter(|(_, entry)| entry.closing);
    let closing = closing.map(|(namespace, entry)| order(namespace, entry.owner_count + 1));
    let inventory = facts.inventory(cluster);
    let is_open = |(namespace, entry): &(&str, &Entry)| {
        let known = inventory.and_then(|all| all.get(*namespace));
        let lags = known.is_some_and(|known| !known.terminating && known.epoch.unwrap_or(0) <= entry.owner_count);
        let is_granted = entry.owner.is_some() && entry.releasing_since.is_none();
        is_granted && !entry.is_fenced() && lags && !system_namespace(namespace)
    };
    let open = ledger.in_cluster(cluster).filter(|_| can == Some(true)).filter(is_open);
    let open = open.map(|(namespace, entry)| order(namespace, entry.owner_count));
    let mut orders: Vec<_> = closing.chain(open).take(ORDERS_MAX).collect();
    orders.sort_by(|a, b| a.namespace.cmp(&b.namespace));
    orders
}
