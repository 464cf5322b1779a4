//! Which pairs their members fence off: where writes say their epoch, a write of a former owner that arrives late is refused.
//!
//! A pair is *fenced* once its namespace's annotation is at its epoch, and every API server of the member goes by it; from then
//! on its writes say their epoch. One that is being released is *closed* for the epoch after: only then can it be another's
//! (`docs/semantics.md#handover`). Where its member will not close it, as `distribute` finds out, it goes the way of those that
//! are not fenced, and nothing is promised of it. Callers: `compile` moves the ledger on, `agent_config` gives the orders, `status`
//! asks what hinders.

use std::collections::{BTreeMap, BTreeSet};

use portolan_crds::ShardName;
use portolan_crds::labels::system_namespace;
use portolan_crds::ledger::PairFence;
use portolan_crds::policy::OPEN_EPOCHS_MAX;
use portolan_wire::protocol::MAX_FENCES;
use portolan_wire::v1;

use super::ledger::{Entry, Fields, Ledger, Others, Released, each};
use crate::facts::{Facts, Namespace};

impl Entry {
    /// Whether writes of its owner say their epoch.
    pub(crate) fn is_fenced(&self) -> bool {
        self.owner.is_some() && self.fence.epoch == self.owner_count
    }

    /// The highest epoch that it has, or that is kept for who comes next.
    pub(super) fn highest_epoch(&self) -> u64 {
        self.owner_count
            .max(self.fence.epoch)
            .max(self.closing.unwrap_or_default())
    }

    /// After all that it had, that the member goes by (in order), and that `others` have.
    pub(super) fn next_epoch(&self, annotated: &[u64], others: u64) -> u64 {
        let annotated = annotated.last().copied().unwrap_or_default();
        self.highest_epoch().max(annotated).max(others) + 1
    }

    /// The epoch of another owner begins: the one that was kept for it, if the pair was closed. The member goes by `annotated` already,
    /// which may be of an earlier ledger.
    pub(super) fn begin_epoch(&mut self, annotated: &[u64], others: u64) {
        let kept = Some(self.fence.epoch).filter(|epoch| *epoch > self.owner_count);
        self.owner_count = kept.unwrap_or_else(|| self.next_epoch(annotated, others));
        if !kept.is_some_and(|kept| annotated.contains(&kept)) {
            self.fence = PairFence::default();
        }
    }

    /// The member is to refuse what still arrives of its owner.
    pub(super) fn close(&mut self, annotated: &[u64], others: u64) {
        if self.closing.is_none() {
            self.closing = Some(self.next_epoch(annotated, others));
        }
    }

    /// Whether the pair that is being released is nobody's by now; moves its fence on, as far as it is. `others`: the highest epoch that
    /// another operator has.
    pub(super) fn let_go(
        &mut self,
        facts: &Facts,
        released: &Released,
        (cluster, namespace, others): (&str, &str, u64),
    ) -> bool {
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
        if forced || released.let_go.get(shard).is_some_and(|run| since <= *run) {
            let known = facts.inventory(cluster).and_then(|all| all.get(namespace));
            self.close(known.map_or(&[], |known| &known.epochs), others);
        }
        match self.closing.filter(|_| released.over.contains(&pair)) {
            Some(next) => {
                self.fence.epoch = next;
                true
            }
            None => false,
        }
    }

    /// Moves the fence of a pair that has an owner on.
    fn move_fence(
        &mut self,
        facts: &Facts,
        released: &Released,
        (cluster, namespace, others): (&str, &str, &Others),
        run: u64,
    ) {
        let (can, most) = (facts.can_fence(cluster), most_open(facts, cluster));
        let known = facts.inventory(cluster).and_then(|all| all.get(namespace));
        if self.releasing_since.is_some() {
            // It was made anew, and while nobody knew of it writes to it may have said nothing.
            let is_anew = known.is_some_and(|known| known.epochs.is_empty());
            self.fence.whole &= !is_anew;
            self.become_whole(is_anew, released, run);
            return;
        }
        if self.is_fenced() && known.is_none() && facts.inventory(cluster).is_some() {
            // One that is made has no annotation, and would take no write that says an epoch.
            self.owner_count = self.next_epoch(&[], others.highest_epoch(namespace));
            (self.fence, self.saying_since) = (PairFence::default(), None);
        }
        let annotated = known.map_or(&[][..], |known| &known.epochs);
        if can == Some(true) && !annotated.contains(&self.owner_count) {
            // Of a ledger that was lost: nobody here has it.
            let last = annotated.last().copied().unwrap_or_default();
            let is_of_nobody = last > self.highest_epoch().max(others.highest_epoch(namespace));
            if is_of_nobody || self.has_room(annotated, others, (most, namespace)) {
                self.owner_count = self.next_epoch(annotated, others.highest_epoch(namespace));
            }
        }
        // By policies that compare one epoch, of several none is admitted.
        let elsewhere = known.is_some() && (!annotated.contains(&self.owner_count) || annotated.len() > most);
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

    /// Whether the member takes one epoch more, but not this pair's, since it goes by a later one of another operator: it was told of that
    /// while it took none of this.
    fn has_room(&self, annotated: &[u64], others: &Others, (most, namespace): (usize, &str)) -> bool {
        let is_passed = annotated.last().is_some_and(|last| *last > self.owner_count);
        let open = || {
            let open = others.entries(namespace).filter(|entry| entry.owner.is_some());
            let open = open.filter_map(|entry| entry.open_epoch(annotated));
            open.filter(|epoch| can_be_set(*epoch, annotated, most)).count()
        };
        is_passed && !self.is_fenced() && open() < most
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
                let held = self.all_of(cluster, namespace).find(|(_, entry)| is_held(entry));
                if let Some(operator) = held.map(|(operator, _)| operator.clone()) {
                    let others = self.others((&operator, cluster)).highest_epoch(namespace);
                    self.change((&operator, cluster), |entries| {
                        if let Some(entry) = entries.get_mut(namespace) {
                            entry.owner_count = entry.next_epoch(&[], others);
                            entry.fence.whole = false;
                        }
                    });
                }
            }
        }
    }

    /// Writes say their epoch where the member goes by it, and say none where it does not any more: its right was taken, or the
    /// Namespace was made anew and has no annotation yet. Where the member goes by a later epoch, as after the ledger was lost, a
    /// later one begins. Of the `judged` fields.
    ///
    /// A router says no epoch before it has heard that it is to: once all have heard it, what says none has ended.
    pub(super) fn fence(&mut self, facts: &Facts, released: &Released, (run, judged): (u64, &Fields)) {
        for field in each(judged) {
            let others = self.others(field);
            self.change(field, |entries| {
                for (namespace, entry) in entries.iter_mut().filter(|(_, entry)| entry.owner.is_some()) {
                    let of = (field.1, namespace.as_str(), &others);
                    entry.move_fence(facts, released, of, run);
                }
            });
        }
    }
}

/// What the agent of `cluster` is to fence: for each namespace all epochs that are to be open there. Of more than there may be at a time those
/// of each author in turn, first what others wait for.
pub(super) fn orders(facts: &Facts, ledger: &Ledger, cluster: &str) -> Vec<v1::FenceOrder> {
    let can = facts.can_fence(cluster);
    let mut pairs = ledger.shared_in(cluster);
    if can == Some(false) || !pairs.any(|(_, pairs)| pairs.may_want_fences()) {
        return Vec::new();
    }
    let of_namespace = |namespace| Open::of(facts, ledger, (cluster, namespace));
    let wants =
        |namespace: &str, entry: &Entry| can == Some(true) && !system_namespace(namespace) && entry.wants_fence();
    // Of each author what others wait for, in order, and then the rest.
    let mut asked = BTreeMap::<&str, (BTreeSet<&str>, BTreeSet<&str>)>::new();
    let mut lagging = BTreeMap::<&str, Vec<u64>>::new();
    for (namespace, entry) in ledger.in_cluster(cluster) {
        let Some(author) = entry.owner.as_ref().map(ShardName::namespace) else {
            continue;
        };
        if entry.closing.is_some() {
            asked.entry(author).or_default().0.insert(namespace);
        } else if wants(namespace, entry) {
            let to_open = lagging
                .entry(namespace)
                .or_insert_with(|| of_namespace(namespace).lagging());
            if to_open.contains(&entry.owner_count) {
                asked.entry(author).or_default().1.insert(namespace);
            }
        }
    }
    let asked = asked.into_values();
    let asked = asked.map(|(closing, open)| closing.into_iter().chain(open).collect());
    let ordered = in_turns(&asked.collect::<Vec<_>>(), MAX_FENCES).into_iter();
    let orders = ordered.filter_map(|namespace| of_namespace(namespace).order(namespace));
    let mut orders: Vec<_> = orders.collect();
    orders.sort_by(|a, b| a.namespace.cmp(&b.namespace));
    orders
}

/// The first of each queue, then the second of each, and so on, each once: nobody waits for all that another asks for.
fn in_turns<'a>(queues: &[Vec<&'a str>], most: usize) -> BTreeSet<&'a str> {
    let longest = queues.iter().map(Vec::len).max().unwrap_or_default();
    let turns = (0..longest).flat_map(|turn| queues.iter().filter_map(move |queue| queue.get(turn)));
    let mut taken = BTreeSet::new();
    for asked in turns {
        if taken.len() == most {
            break;
        }
        taken.insert(*asked);
    }
    taken
}

/// What is to be open in one namespace.
struct Open<'a> {
    known: Option<&'a Namespace>,
    /// Of each operator.
    entries: Vec<&'a Entry>,
    /// How many epochs the member takes.
    most: usize,
}

/// Why the member does not fence an operator's handovers of a namespace off, though it fences others'.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Crowded {
    /// It compares one epoch, by the policies of a release before there were operators.
    TakesOne,
    /// [`OPEN_EPOCHS_MAX`] others were there first.
    Full,
}

impl<'a> Open<'a> {
    fn of(facts: &'a Facts, ledger: &'a Ledger, (cluster, namespace): (&str, &str)) -> Self {
        Self {
            known: facts.inventory(cluster).and_then(|all| all.get(namespace)),
            entries: ledger.all_of(cluster, namespace).map(|(_, entry)| entry).collect(),
            most: most_open(facts, cluster),
        }
    }

    fn annotated(&self) -> &[u64] {
        self.known.map_or(&[], |known| &known.epochs)
    }

    /// The epochs that are to be open, in order, with their entries: where the member takes no more, those that it fences already, then
    /// those of the operators that have been there longest.
    fn chosen(&self) -> Vec<(u64, &'a Entry)> {
        let (annotated, most) = (self.annotated(), self.most);
        let open = self.entries.iter().filter_map(|entry| {
            let epoch = entry.open_epoch(annotated)?;
            can_be_set(epoch, annotated, most).then_some((epoch, *entry))
        });
        let mut open: Vec<_> = open.collect();
        if open.len() > most {
            open.sort_by_key(|(_, entry)| (entry.owner.is_none(), !entry.has_fence(), entry.view_revision));
            open.truncate(most);
        }
        open.sort_unstable_by_key(|(epoch, _)| *epoch);
        open
    }

    /// The epochs of those that are not fenced yet, if the member may be told for their sake: what it goes by is not beyond what is to be
    /// open.
    fn lagging(&self) -> Vec<u64> {
        let beyond = self.annotated().last().copied().unwrap_or_default();
        let is_there = self.known.is_some_and(|known| !known.terminating);
        let chosen = if is_there { self.chosen() } else { Vec::new() };
        if chosen.last().is_none_or(|(highest, _)| beyond > *highest) {
            return Vec::new();
        }
        let wanting = chosen.into_iter().filter(|(_, entry)| entry.wants_fence());
        wanting.map(|(epoch, _)| epoch).collect()
    }

    /// `None`: nothing is to be open.
    fn order(&self, namespace: &str) -> Option<v1::FenceOrder> {
        let open: Vec<_> = self.chosen().into_iter().map(|(epoch, _)| epoch).collect();
        let epoch = *open.last()?;
        Some(v1::FenceOrder {
            namespace: namespace.to_owned(),
            epoch,
            open: if open.len() > 1 { open } else { Vec::new() },
        })
    }
}

/// How many epochs of a namespace the member takes.
fn most_open(facts: &Facts, cluster: &str) -> usize {
    if facts.fences_lists(cluster) {
        OPEN_EPOCHS_MAX
    } else {
        1
    }
}

/// Whether the annotation can say the epoch: it grows, so that none which is over ever counts again. Where it says one at a `most`, that is
/// its highest.
fn can_be_set(epoch: u64, annotated: &[u64], most: usize) -> bool {
    let beyond = annotated.last().copied().unwrap_or_default();
    epoch >= beyond || most > 1 && annotated.contains(&epoch)
}

/// Why the pair of this `entry` has no fence while others of its namespace have; `None`: they are not why.
pub(crate) fn crowded(facts: &Facts, ledger: &Ledger, pair: (&str, &str), entry: &Entry) -> Option<Crowded> {
    let (cluster, namespace) = pair;
    if facts.can_fence(cluster) != Some(true)
        || system_namespace(namespace)
        || entry.owner.is_none()
        || entry.is_fenced()
    {
        return None;
    }
    let open = Open::of(facts, ledger, pair);
    let chosen = open.chosen();
    let is_chosen = chosen.iter().any(|(_, chosen)| std::ptr::eq(*chosen, entry));
    match open.most {
        most if is_chosen || chosen.len() < most => None,
        1 => Some(Crowded::TakesOne),
        _ => Some(Crowded::Full),
    }
}

impl Entry {
    /// The epoch of which the member is to take writes; `None`: of none. `annotated`: what it goes by.
    fn open_epoch(&self, annotated: &[u64]) -> Option<u64> {
        if self.owner.is_none() {
            // Kept for who comes next.
            return Some(self.fence.epoch).filter(|epoch| *epoch > self.owner_count && annotated.contains(epoch));
        }
        let is_open = self.releasing_since.is_none() || self.is_fenced() || annotated.contains(&self.owner_count);
        self.closing.or_else(|| is_open.then_some(self.owner_count))
    }

    /// Whether it is granted, and its writes say no epoch.
    fn wants_fence(&self) -> bool {
        self.owner.is_some() && self.releasing_since.is_none() && !self.is_fenced()
    }

    /// Whether its member fences off what is its owner's, or does so for who comes next.
    fn has_fence(&self) -> bool {
        self.is_fenced() || self.closing.is_some()
    }
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
