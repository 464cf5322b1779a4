//! Who holds which (cluster, namespace) pair, how often it changed hands, and what is on its way back.
//!
//! A pair has an owner of each operator, whose shards contend for it among themselves and with nobody else (`Contention`). For each it is
//! *granted*, *releasing* (its owner no longer wants it, but some router may still let the owner's callers
//! write) or *free*. Only a free pair can be claimed by another shard. Each change of ownership, entering or leaving,
//! takes the next *view revision*; what left is kept for a day. Callers: `arbitrate` asks, `compile` moves it on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use portolan_crds::ledger::{Departure, PairFence};
use portolan_crds::{Contention, OperatorName, ShardName, ShardingConfigSpec};

use super::held::Holders;
use super::locks::LockNews;
use crate::facts::{Facts, PairEpoch};

mod departures;
mod durable;
mod holdings;
mod pairs;
mod separate;
mod vacancies;

use departures::Departures;
pub(super) use holdings::Homes;
use holdings::Owners;
pub(super) use pairs::{Pairs, unshared, unshared_fields};
#[cfg(test)]
pub(super) use vacancies::MOST_VACANT;
pub(super) use vacancies::VACANT_FOR;

/// Claims of one run: operator → cluster → namespace → shard.
pub(super) type Claims = BTreeMap<OperatorName, BTreeMap<String, BTreeMap<String, ShardName>>>;

/// Names of clusters.
pub(super) type Clusters = BTreeSet<String>;

/// Clusters by operator: where its shards contend.
pub(super) type Fields = BTreeMap<OperatorName, Clusters>;

/// One of those.
pub(super) type Field<'a> = (&'a OperatorName, &'a str);

/// A (cluster, namespace) as an operator's shards contend for it.
pub(super) type Pair<'a> = (&'a OperatorName, &'a str, &'a str);

/// What one operator's shards have, by cluster.
pub(super) type ByCluster = BTreeMap<String, Arc<Pairs>>;

/// Pairs that have or had an owner, by operator, cluster and namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ledger {
    /// Who contends with whom.
    contention: Contention,
    /// None is empty.
    pairs: BTreeMap<OperatorName, ByCluster>,
    /// The clusters where each shard has any of `pairs`.
    owners: Arc<Owners>,
    departures: BTreeMap<String, Arc<Departures>>,
    /// The last view revision that was given.
    view_revision: u64,
    /// Routers may hold pairs that the ledger does not name, since it was adopted: nobody is given any of those until every
    /// router has been heard.
    withholding: bool,
}

/// One pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// `None`: free.
    pub(crate) owner: Option<ShardName>,
    /// The epoch of its owner: grows with each, and no two of a namespace have the same, of whatever operators.
    pub(crate) owner_count: u64,
    /// View revision at which it entered its owner's shard, or that of the last one while it is free.
    pub(crate) view_revision: u64,
    /// The run in which its owner stopped wanting it.
    pub(crate) releasing_since: Option<u64>,
    /// When its owner stopped wanting it, as far as this process knows.
    pub(crate) releasing_from: Option<Timestamp>,
    /// Whose writes the member takes.
    pub(crate) fence: PairFence,
    /// Of a fence that is not whole: the run since which writes are to say their epoch, as far as this process knows.
    pub(crate) saying_since: Option<u64>,
    /// Of one that nobody asks for: since when the member has no such namespace, as far as this process knows, though it had one.
    pub(crate) vacant_from: Option<Timestamp>,
    /// Every router has let go of it, and the member is to refuse what still arrives of its owner: the epoch of who comes next.
    pub(crate) closing: Option<u64>,
}

/// The last runs that every router has acknowledged that might still act on an earlier one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Released {
    /// The last run that all routers have acknowledged.
    pub(crate) by_all: u64,
    /// The last run that the routers which may serve a shard have acknowledged, for each shard of which something is being
    /// released.
    pub(crate) of_shard: BTreeMap<ShardName, u64>,
    /// By shard, the last run that its routers have acknowledged; what they let through just before may still be under way.
    pub(crate) let_go: BTreeMap<ShardName, u64>,
    /// Shards all of whose routers let their writes say their epoch.
    pub(crate) saying_epochs: BTreeSet<ShardName>,
    /// Pairs whose member refuses what still arrives of this epoch, and to which no write is open that it took before.
    pub(crate) over: BTreeSet<PairEpoch>,
    /// Pairs whose member will not refuse it, as far as can be told: they go the way of those that are not fenced.
    pub(crate) given_up: BTreeSet<PairEpoch>,
    /// Whether all routers hand leader locks over.
    pub(crate) locks_are_handed_over: bool,
    /// Whose leader lock routers may use that cannot be told of a handover now.
    pub(crate) away: LockUsersAway,
    /// How far the handovers of leader locks are.
    pub(crate) locks: BTreeMap<ShardName, LockNews>,
    /// Which locks callers may hold.
    pub(crate) holders: Arc<Holders>,
}

/// Shards whose leader lock routers may use that are not connected, until they come back or are forgotten.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LockUsersAway {
    /// Routers may come back of which nobody knows what they hold.
    pub(crate) unknown: bool,
    pub(crate) shards: BTreeSet<ShardName>,
}

impl LockUsersAway {
    pub(crate) fn is_of(&self, shard: &ShardName) -> bool {
        self.unknown || self.shards.contains(shard)
    }

    pub(crate) fn is_nobody(&self) -> bool {
        !self.unknown && self.shards.is_empty()
    }
}

/// What all other operators have in a cluster.
pub(super) struct Others(Vec<Arc<Pairs>>);

impl Others {
    /// The highest epoch that any of them has in the namespace, or had while this ledger knew of it.
    pub(super) fn highest_epoch(&self, namespace: &str) -> u64 {
        let entries = self.entries(namespace);
        entries.map(Entry::highest_epoch).max().unwrap_or_default()
    }

    /// The namespace as each of them has it.
    pub(super) fn entries(&self, namespace: &str) -> impl Iterator<Item = &Entry> {
        self.0.iter().filter_map(move |pairs| pairs.entries().get(namespace))
    }
}

/// Each of the fields.
pub(super) fn each(fields: &Fields) -> impl Iterator<Item = Field<'_>> {
    fields.iter().flat_map(|(operator, clusters)| {
        let clusters = clusters.iter();
        clusters.map(move |cluster| (operator, cluster.as_str()))
    })
}

impl Released {
    pub(crate) fn of(&self, shard: &ShardName) -> u64 {
        self.of_shard.get(shard).copied().unwrap_or(self.by_all)
    }
}

impl Ledger {
    /// Who contends for pairs with whom.
    pub(crate) fn contention(&self) -> Contention {
        self.contention
    }

    /// With whose shards `shard` contends under `spec`.
    pub(crate) fn operator(&self, shard: &ShardName, spec: &ShardingConfigSpec) -> OperatorName {
        self.contention.of(shard, spec)
    }

    /// One pair, as the operator's shards have it.
    pub(crate) fn get(&self, operator: &OperatorName, cluster: &str, namespace: &str) -> Option<&Entry> {
        self.shared(operator, cluster)?.entries().get(namespace)
    }

    /// One pair, as each operator's shards have it, free ones included.
    pub(crate) fn all_of(&self, cluster: &str, namespace: &str) -> impl Iterator<Item = (&OperatorName, &Entry)> {
        let pairs = self.shared_in(cluster);
        pairs.filter_map(move |(operator, pairs)| Some((operator, pairs.entries().get(namespace)?)))
    }

    /// Pairs of one cluster, free ones included, by operator and namespace.
    pub(crate) fn pairs_in(&self, cluster: &str) -> impl Iterator<Item = (&OperatorName, &str, &Entry)> {
        self.shared_in(cluster).flat_map(|(operator, pairs)| {
            let entries = pairs.entries().iter();
            entries.map(move |(namespace, entry)| (operator, namespace.as_str(), entry))
        })
    }

    /// The same without operators: each namespace once for each.
    pub(crate) fn in_cluster(&self, cluster: &str) -> impl Iterator<Item = (&str, &Entry)> {
        self.pairs_in(cluster).map(|(_, namespace, entry)| (namespace, entry))
    }

    /// An operator's pairs of one cluster as ledgers share them; `None`: it has none.
    pub(super) fn shared(&self, operator: &OperatorName, cluster: &str) -> Option<&Arc<Pairs>> {
        self.pairs.get(operator)?.get(cluster)
    }

    /// All pairs of one cluster as ledgers share them, by operator.
    pub(super) fn shared_in(&self, cluster: &str) -> impl Iterator<Item = (&OperatorName, &Arc<Pairs>)> {
        let all = self.pairs.iter();
        all.filter_map(move |(operator, all)| Some((operator, all.get(cluster)?)))
    }

    /// All clusters that have pairs, with these, by operator.
    pub(super) fn all_shared(&self) -> &BTreeMap<OperatorName, ByCluster> {
        &self.pairs
    }

    /// All that is shared, of whatever operator and cluster.
    fn all(&self) -> impl Iterator<Item = (&OperatorName, &String, &Arc<Pairs>)> {
        self.pairs.iter().flat_map(|(operator, all)| {
            let all = all.iter();
            all.map(move |(cluster, pairs)| (operator, cluster, pairs))
        })
    }

    /// The last view revision that was given to any change of ownership.
    pub(crate) fn view_revision(&self) -> u64 {
        self.view_revision
    }

    /// What left `shard` in `cluster` during the last day, by namespace: the last time each, also of what has come back.
    pub(crate) fn departures(
        &self,
        cluster: &str,
        shard: &ShardName,
    ) -> impl Iterator<Item = (&str, Departure)> + use<'_> {
        let of_shard = self
            .departures
            .get(cluster)
            .and_then(|departures| departures.by_shard.get(shard));
        let departures = of_shard.into_iter().flatten();
        let departures = departures.filter(|(namespace, _)| *namespace != departures::NOBODY);
        departures.map(|(namespace, departure)| (namespace.as_str(), *departure))
    }

    /// Clusters that something of `shard` left during the last day, also those that are gone since.
    pub(crate) fn departed_clusters(&self, shard: &ShardName) -> impl Iterator<Item = &str> {
        let of_shard = self
            .departures
            .iter()
            .filter(|(_, departures)| departures.by_shard.contains_key(shard));
        of_shard.map(|(cluster, _)| cluster.as_str())
    }

    /// What left `shard` in `cluster` is known completely after this view revision.
    pub(crate) fn departures_dropped_up_to(&self, cluster: &str, shard: &ShardName) -> u64 {
        self.departures
            .get(cluster)
            .map_or(0, |departures| departures.dropped_up_to(shard))
    }

    /// Lets an operator's pairs of a cluster be changed, also where there are none. Those that come to the same stay shared.
    pub(super) fn change(&mut self, (operator, cluster): Field<'_>, change: impl FnOnce(&mut BTreeMap<String, Entry>)) {
        let before = self.shared(operator, cluster).cloned();
        let before = before.as_deref();
        let mut entries = before.map(|pairs| pairs.entries().clone()).unwrap_or_default();
        change(&mut entries);
        if before.map_or(&BTreeMap::new(), |pairs| pairs.entries()) == &entries {
            return;
        }
        let after = Pairs::new(entries);
        let none = BTreeSet::new();
        let had = before.map_or(&none, |pairs| pairs.owners());
        if had != after.owners() {
            Arc::make_mut(&mut self.owners).change((operator, cluster), had, after.owners());
        }
        let is_empty = after.entries().is_empty();
        let all = self.pairs.entry(operator.clone()).or_default();
        if is_empty {
            all.remove(cluster);
            if all.is_empty() {
                self.pairs.remove(operator);
            }
        } else {
            all.insert(cluster.to_owned(), Arc::new(after));
        }
    }

    /// Operators and clusters with pairs of which this is so.
    pub(super) fn fields_where(&self, is: impl Fn(&Pairs) -> bool) -> Fields {
        let mut fields = Fields::new();
        for (operator, cluster, _) in self.all().filter(|(.., pairs)| is(pairs)) {
            fields.entry(operator.clone()).or_default().insert(cluster.clone());
        }
        fields
    }

    /// What every router has let go of and the member is to fence off, with its owner and the epoch of who comes next.
    pub(crate) fn closing(&self) -> impl Iterator<Item = (PairEpoch, (&ShardName, u64))> {
        let closing = self.all().filter(|(.., pairs)| pairs.is_closing);
        let entries = closing.flat_map(|(_, cluster, pairs)| {
            let entries = pairs.entries().iter();
            entries.map(move |(namespace, entry)| (cluster, namespace, entry))
        });
        entries.filter_map(|(cluster, namespace, entry)| {
            let pair = (cluster.clone(), namespace.clone(), entry.owner_count);
            Some((pair, (entry.owner.as_ref()?, entry.closing?)))
        })
    }

    /// As if every router had let go of all that is being released.
    #[cfg(test)]
    pub(crate) fn close_all(&mut self) {
        for field in each(&self.fields_where(|pairs| pairs.is_releasing)) {
            let others = self.others(field);
            self.change(field, |entries| {
                for (namespace, entry) in entries {
                    if entry.releasing_since.is_some() {
                        entry.close(&[], others.highest_epoch(namespace));
                    }
                }
            });
        }
    }

    /// The shards of which something is being released.
    pub(crate) fn releasing(&self) -> BTreeSet<ShardName> {
        let releasing = self.all().filter(|(.., pairs)| pairs.is_releasing);
        let entries = releasing.flat_map(|(.., pairs)| pairs.entries().values());
        let releasing = entries.filter(|entry| entry.releasing_since.is_some());
        releasing.filter_map(|entry| entry.owner.clone()).collect()
    }

    /// Whether anything is being released.
    pub(crate) fn is_releasing(&self) -> bool {
        self.all().any(|(.., pairs)| pairs.is_releasing)
    }

    /// Whether it is waited for routers to hear that their writes are to say their epoch.
    pub(crate) fn awaits_epochs(&self) -> bool {
        self.all().any(|(.., pairs)| pairs.awaits_epochs.is_some())
    }

    /// Whether nobody may be given what nobody is known to have.
    pub(crate) fn is_withholding(&self) -> bool {
        self.withholding
    }

    /// Clusters with pairs of any state.
    pub(crate) fn clusters(&self) -> BTreeSet<&str> {
        self.all().map(|(_, cluster, _)| cluster.as_str()).collect()
    }

    /// Where operators have pairs of any state.
    pub(super) fn fields(&self) -> impl Iterator<Item = Field<'_>> {
        self.all().map(|(operator, cluster, _)| (operator, cluster.as_str()))
    }

    /// What all other operators have in a cluster.
    pub(super) fn others(&self, (operator, cluster): Field<'_>) -> Others {
        let others = self.shared_in(cluster).filter(|(other, _)| *other != operator);
        Others(others.map(|(_, pairs)| pairs.clone()).collect())
    }

    /// Frees what was being released in a run that every router has acknowledged which may serve its shard: it leaves that.
    /// Where the member fences it off, also what was let through before must be over.
    pub(super) fn free(&mut self, facts: &Facts, released: &Released, now: Timestamp) {
        // Runs are counted from 1: who has acknowledged one has let go of all that it does not name.
        self.withholding &= released.by_all == 0;
        for field in each(&self.fields_where(|pairs| pairs.is_releasing)) {
            let (cluster, others) = (field.1, self.others(field));
            let mut left = Vec::new();
            self.change(field, |entries| {
                for (namespace, entry) in entries {
                    if entry.let_go(facts, released, (cluster, namespace, others.highest_epoch(namespace))) {
                        entry.stays();
                        entry.vacant_from = None;
                        left.extend(entry.owner.take().map(|shard| (shard, namespace.clone())));
                    }
                }
            });
            for (shard, namespace) in left {
                self.view_revision += 1;
                let departure = Departure {
                    view_revision: self.view_revision,
                    unix_seconds: now.as_second(),
                };
                let departures = self.departures.entry(cluster.to_owned()).or_default();
                Arc::make_mut(departures).add(shard, &namespace, departure);
            }
        }
    }

    /// Drops departures that are too old or too many. Of shards with a member that was not `heard` all the time since the day
    /// before none is too old: who watches them still stands in the view that it had when the member went.
    pub(super) fn drop_departures(
        &mut self,
        now: Timestamp,
        is: impl Fn(&ShardName) -> bool,
        heard: impl Fn(&str, Timestamp) -> bool,
    ) {
        let since = departures::kept_since(now);
        let owners = self.owners.clone();
        let waits = |shard: &ShardName| owners.clusters_of(shard).any(|cluster| !heard(cluster, since));
        let dropping = self.departures.values_mut();
        for departures in dropping.filter(|departures| departures.may_drop(now)) {
            let mut left = Departures::clone(departures);
            let old = Some(since).filter(|_| !left.by_shard.keys().any(waits));
            left.drop(old, &is);
            if **departures != left {
                *departures = Arc::new(left);
            }
        }
    }

    /// Moves the `judged` fields on to the claims of `run`: what is claimed is granted, what is no longer claimed is being
    /// released, unless it `keeps` it as vacant. In order, as each grant takes the next view revision.
    pub(super) fn settle(
        &mut self,
        facts: &Facts,
        (claims, judged): (&Claims, &Fields),
        keeps: impl Fn(Field<'_>, &str, &Entry) -> bool,
        (run, now): (u64, Timestamp),
    ) {
        let mut view_revision = self.view_revision;
        let none = BTreeMap::new();
        for field in each(judged) {
            let (operator, cluster) = field;
            let claimed = claims
                .get(operator)
                .and_then(|claims| claims.get(cluster))
                .unwrap_or(&none);
            let (inventory, others) = (facts.inventory(cluster), self.others(field));
            self.change(field, |entries| {
                for (namespace, shard) in claimed {
                    let known = inventory.and_then(|all| all.get(namespace));
                    let annotated = known.map_or(&[][..], |known| &known.epochs);
                    let entry = entries
                        .entry(namespace.clone())
                        .or_insert_with(|| Entry::new(view_revision));
                    let others = others.highest_epoch(namespace);
                    if entry.claim(shard, (annotated, others), view_revision + 1) {
                        view_revision += 1;
                    }
                    // Somebody asks for it, there or not; and what is not known any more begins anew.
                    entry.vacant_from = None;
                }
                let unclaimed = entries
                    .iter_mut()
                    .filter(|(namespace, _)| !claimed.contains_key(*namespace));
                for (namespace, entry) in unclaimed.filter(|(_, entry)| entry.owner.is_some()) {
                    if inventory.is_some_and(|all| all.contains_key(namespace)) {
                        entry.vacant_from = None;
                    }
                    if entry.releasing_since.is_none() && keeps(field, namespace, entry) {
                        entry.vacate(others.highest_epoch(namespace), now);
                    } else {
                        entry.release((run, now));
                    }
                }
                for namespace in vacancies::too_many(entries) {
                    if let Some(entry) = entries.get_mut(&namespace) {
                        entry.release((run, now));
                    }
                }
            });
        }
        self.view_revision = view_revision;
    }

    /// Forgets free pairs of the `judged` fields that are no more: their member is gone, or known not to have the namespace, or their
    /// operator has nothing in the member any more, whose names may be as many as an author thinks of. No view revision is behind an
    /// epoch of theirs: those of a namespace of this name begin after it.
    pub(super) fn forget(&mut self, facts: &Facts, judged: &Fields) {
        let epochs = self.all().map(|(.., pairs)| pairs.highest_epoch);
        self.skip_to(epochs.max().unwrap_or_default());
        for field in each(judged) {
            let (operator, cluster) = field;
            let inventory = facts.inventory(cluster);
            let is_member = facts.members.contains_key(cluster);
            let has_any = |pairs: &Arc<Pairs>| !pairs.owners().is_empty();
            let works_there = operator.is_everybody() || self.shared(operator, cluster).is_some_and(has_any);
            let is_there = |namespace: &String| {
                is_member && works_there && inventory.is_none_or(|all| all.contains_key(namespace))
            };
            let is_kept = |namespace: &String, entry: &Entry| entry.owner.is_some() || is_there(namespace);
            let pairs = self.shared(operator, cluster).into_iter();
            let mut entries = pairs.flat_map(|pairs| pairs.entries());
            if !entries.all(|(namespace, entry)| is_kept(namespace, entry)) {
                self.change(field, |entries| {
                    entries.retain(|namespace, entry| is_kept(namespace, entry));
                });
            }
        }
        self.departures
            .retain(|cluster, departures| facts.members.contains_key(cluster) || !departures.is_empty());
    }

    /// View revisions up to this one are not given again, as they were by a state that could not be stored whole.
    pub(crate) fn skip_to(&mut self, view_revision: u64) {
        self.view_revision = self.view_revision.max(view_revision);
    }
}

impl Entry {
    /// A pair that nobody has had. One of this name may have been forgotten, and late writes to it say its epochs: none of them is
    /// beyond `view_revision`.
    fn new(view_revision: u64) -> Self {
        Self {
            owner: None,
            owner_count: view_revision,
            view_revision: 0,
            releasing_since: None,
            releasing_from: None,
            fence: PairFence::default(),
            saying_since: None,
            vacant_from: None,
            closing: None,
        }
    }

    /// Is `shard`'s from now on; returns whether it enters that, at view revision `next`. `annotated`: the epochs that the member
    /// goes by, of which the highest never falls; `others`: the highest that another operator has.
    fn claim(&mut self, shard: &ShardName, (annotated, others): (&[u64], u64), next: u64) -> bool {
        let mut enters = false;
        match &self.owner {
            // `arbitrate` lets nobody claim what another shard holds, nor take back what another one waits for.
            Some(owner) if owner != shard => return false,
            // What was released of the epoch before may have been acknowledged, and fenced off.
            Some(_) if self.releasing_since.is_some() => {
                self.owner_count = self.closing.unwrap_or_else(|| self.next_epoch(&[], others));
            }
            Some(_) => {}
            None => {
                self.owner = Some(shard.clone());
                self.begin_epoch(annotated, others);
                self.view_revision = next;
                enters = true;
            }
        }
        self.stays();
        enters
    }

    /// Its owner stops wanting it.
    fn release(&mut self, (run, now): (u64, Timestamp)) {
        self.releasing_since.get_or_insert(run);
        self.releasing_from.get_or_insert(now);
    }

    /// Its namespace is gone, and it stays its owner's. One that is made knows nothing of the epoch before: writes to it say none.
    fn vacate(&mut self, others: u64, now: Timestamp) {
        if self.vacant_from.is_none() {
            self.vacant_from = Some(now);
            self.owner_count = self.next_epoch(&[], others);
            (self.fence, self.saying_since) = (PairFence::default(), None);
        }
    }

    /// It is not being released any more.
    fn stays(&mut self) {
        (self.releasing_since, self.releasing_from, self.closing) = (None, None, None);
    }
}
