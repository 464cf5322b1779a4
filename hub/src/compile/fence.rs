//! Which pairs their members fence off: where writes say their epoch, a write of a former owner that arrives late is refused.
//!
//! A pair is *fenced* once its namespace's annotation is at its epoch, and every API server of the member goes by it; from then
//! on its writes say their epoch. One that is being released is *closed* for the epoch after: only then can it be another's
//! (`docs/semantics.md#handover`). Where its member will not close it, as `distribute` finds out, it goes the way of those that
//! are not fenced, and nothing is promised of it. Callers: `compile` moves the ledger on, `agent_config` gives the orders, `status`
//! asks what hinders.

use portolan_crds::labels::system_namespace;
use portolan_crds::ledger::PairFence;
use portolan_wire::protocol::MAX_FENCES;
use portolan_wire::v1;

use super::ledger::{Clusters, Entry, Ledger, Released};
use crate::facts::Facts;

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

    /// Whether the pair that is being released is nobody's by now; moves its fence on, as far as it is.
    pub(super) fn let_go(&mut self, facts: &Facts, released: &Released, (cluster, namespace): (&str, &str)) -> bool {
        let (Some(since), Some(shard)) = (self.releasing_since, &self.owner) else {
            return false;
        };
        let pair = (cluster.to_owned(), namespace.to_owned(), self.owner_count);
        // Routers that do not answer are not waited for. Their writes are fenced off as anybody's.
        let forced = facts.is_forced(shard, &pair);
        let fences = facts.can_fence(cluster) != Some(false)
            && released.saying_epochs.contains(shard)
            && !released.given_up.contains(&pair);
        if !self.is_fenced() || !fences {
            return forced || since <= released.of(shard);
        }
        self.closing |= forced || released.let_go.get(shard).is_some_and(|run| since <= *run);
        if !self.closing || !released.over.contains(&pair) {
            return false;
        }
        self.fence = PairFence {
            epoch: self.owner_count + 1,
            whole: self.fence.whole,
        };
        true
    }

    /// Moves the fence of a pair that has an owner on.
    fn move_fence(&mut self, facts: &Facts, released: &Released, (cluster, namespace, run): (&str, &str, u64)) {
        let can = facts.can_fence(cluster);
        let known = facts.inventory(cluster).and_then(|all| all.get(namespace));
        if self.releasing_since.is_some() {
            // It was made anew, and while nobody knew of it writes to it may have said nothing.
            let is_anew = known.is_some_and(|known| known.epoch.is_none());
            self.fence.whole &= !is_anew;
            self.become_whole(is_anew, released, run);
            return;
        }
        if self.is_fenced() && known.is_none() && facts.inventory(cluster).is_some() {
            // One that is made has no annotation, and would take no write that says an epoch.
            self.owner_count += 1;
            (self.fence, self.saying_since) = (PairFence::default(), None);
        }
        let beyond = known
            .and_then(|known| known.epoch)
            .filter(|epoch| *epoch > self.owner_count);
        if let Some(beyond) = beyond.filter(|_| can == Some(true)) {
            self.owner_count = beyond + 1;
        }
        let elsewhere = known.is_some_and(|known| known.epoch != Some(self.owner_count));
        if self.is_fenced() && (can == Some(false) || elsewhere) {
            self.fence = PairFence::default();
        } else if !self.is_fenced() && can == Some(true) && !elsewhere {
            let there = known.is_some() && facts.is_fenced(cluster, namespace, self.owner_count);
            if there {
                self.fence.epoch = self.owner_count;
                self.fence.whole = false;
            }
        }
        self.become_whole(false, released, run);
    }

    /// Makes the fence whole once every router has heard that writes are to say their epoch, those that said none until then, too. `is_anew`: they may
    /// say none again.
    fn become_whole(&mut self, is_anew: bool, released: &Released, run: u64) {
        if !self.is_fenced() || self.fence.whole || is_anew {
            self.saying_since = None;
            return;
        }
        let since = *self.saying_since.get_or_insert(run);
        if since < run && since <= released.by_all {
            (self.fence.whole, self.saying_since) = (true, None);
        }
    }
}

impl Ledger {
    /// Whoever forces a release before it has begun forces nothing: what is held begins a later epoch than is named.
    pub(super) fn outdate_forced(&mut self, facts: &Facts) {
        let named = facts.shards.iter().filter_map(|(shard, object)| {
            let forced = object.forced.as_ref()?.as_ref().ok()?;
            Some((shard, forced))
        });
        for (shard, forced) in named {
            for (cluster, namespace, epoch) in &forced.pairs {
                let is_held = |entry: &Entry| {
                    entry.owner.as_ref() == Some(shard)
                        && entry.releasing_since.is_none()
                        && entry.owner_count == *epoch
                };
                if self.get(cluster, namespace).is_some_and(is_held) {
                    self.change(cluster, |entries| {
                        if let Some(entry) = entries.get_mut(namespace) {
                            entry.owner_count += 1;
                            entry.fence.whole = false;
                        }
                    });
                }
            }
        }
    }

    /// Writes say their epoch where the member goes by it, and say none where it does not any more: its right was taken, or the
    /// Namespace was made anew and has no annotation yet. Where the member goes by a later epoch, as after the ledger was lost, a
    /// later one begins. Of the `judged` clusters.
    ///
    /// A router says no epoch before it has heard that it is to: once all have heard it, what says none has ended.
    pub(super) fn fence(&mut self, facts: &Facts, released: &Released, (run, judged): (u64, &Clusters)) {
        for cluster in judged {
            self.change(cluster, |entries| {
                for (namespace, entry) in entries.iter_mut().filter(|(_, entry)| entry.owner.is_some()) {
                    entry.move_fence(facts, released, (cluster, namespace, run));
                }
            });
        }
    }
}

/// What the agent of `cluster` is to fence, first what others wait for.
pub(super) fn orders(facts: &Facts, ledger: &Ledger, cluster: &str) -> Vec<v1::FenceOrder> {
    let can = facts.can_fence(cluster);
    let may_be_open = ledger.shared(cluster).is_some_and(|pairs| pairs.may_want_fences());
    if can == Some(false) || !may_be_open {
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
    let mut orders: Vec<_> = closing.chain(open).take(MAX_FENCES).collect();
    orders.sort_by(|a, b| a.namespace.cmp(&b.namespace));
    orders
}

/// Why the member does not fence the namespace off, as far as is known; `None`: nothing hinders.
pub(crate) fn hindrance(facts: &Facts, cluster: &str, namespace: &str) -> Option<String> {
    let is_accepted = facts.members.get(cluster).is_some_and(|member| member.accept);
    let agent = facts.agents.get(cluster).filter(|agent| agent.connected);
    let known = facts.inventory(cluster).and_then(|all| all.get(namespace));
    if !is_accepted {
        return Some("the member is not accepted, or is gone".to_owned());
    }
    if facts.can_fence(cluster) == Some(false) {
        let what = "the member does not let routers say the epoch of a write: run portolanctl join again, on Kubernetes 1.30 or later";
        return Some(what.to_owned());
    }
    if known.is_some_and(|known| known.terminating) {
        return Some("the namespace is being deleted".to_owned());
    }
    let Some(agent) = agent else {
        return Some("its agent is not connected".to_owned());
    };
    if agent.is_unready() {
        return Some("its API server is not ready".to_owned());
    }
    let told = agent.fences.get(namespace);
    let told = told.filter(|state| !state.closed && !state.message.is_empty());
    told.map(|state| state.message.clone())
}
