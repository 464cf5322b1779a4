//! Who holds which (cluster, namespace) pair, how often it changed hands, and what is on its way back.
//!
//! A pair is *granted*, *releasing* (its owner no longer wants it, but some router may still let the owner's callers
//! write) or *free*. Only a free pair can be claimed by another shard. Each change of ownership, entering or leaving,
//! takes the next *view revision*; what left is kept for a day. Callers: `arbitrate` asks, `compile` moves it on.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use portolan_crds::ShardName;
use portolan_crds::ledger::{Departure, PairFence};

use super::locks::LockNews;
use crate::facts::{Facts, PairEpoch};

mod departures;
mod durable;
mod holdings;

use departures::Departures;
pub(crate) use holdings::Holdings;

/// Claims of one run: cluster → namespace → shard.
pub(super) type Claims = BTreeMap<String, BTreeMap<String, ShardName>>;

/// Where each namespace that a shard has is: shard → namespace → cluster.
pub(super) type Homes<'a> = BTreeMap<&'a ShardName, BTreeMap<&'a str, &'a str>>;

/// Pairs that have or had an owner, by cluster and namespace.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Ledger {
    pairs: BTreeMap<String, BTreeMap<String, Entry>>,
    departures: BTreeMap<String, Departures>,
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
    /// The epoch of its owner: grows with each, and no two of a namespace have the same.
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
    /// Every router has let go of it, and the member is to refuse what still arrives of its owner.
    pub(crate) closing: bool,
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

impl Released {
    pub(crate) fn of(&self, shard: &ShardName) -> u64 {
        self.of_shard.get(shard).copied().unwrap_or(self.by_all)
    }
}

impl Ledger {
    pub(crate) fn get(&self, cluster: &str, namespace: &str) -> Option<&Entry> {
        self.pairs.get(cluster)?.get(namespace)
    }

    /// Pairs of one cluster, free ones included.
    pub(crate) fn in_cluster(&self, cluster: &str) -> impl Iterator<Item = (&str, &Entry)> {
        self.pairs
            .get(cluster)
            .into_iter()
            .flatten()
            .map(|(namespace, entry)| (namespace.as_str(), entry))
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

    pub(super) fn get_mut(&mut self, cluster: &str, namespace: &str) -> Option<&mut Entry> {
        self.pairs.get_mut(cluster)?.get_mut(namespace)
    }

    pub(super) fn entries_mut(&mut self) -> impl Iterator<Item = (&str, &str, &mut Entry)> {
        self.pairs.iter_mut().flat_map(|(cluster, namespaces)| {
            let entries = namespaces.iter_mut();
            entries.map(|(namespace, entry)| (cluster.as_str(), namespace.as_str(), entry))
        })
    }

    /// What every router has let go of and the member is to fence off, with its owner.
    pub(crate) fn closing(&self) -> impl Iterator<Item = (PairEpoch, &ShardName)> {
        let entries = self.pairs.iter().flat_map(|(cluster, namespaces)| {
            let closing = namespaces.iter().filter(|(_, entry)| entry.closing);
            closing.map(move |(namespace, entry)| (cluster, namespace, entry))
        });
        entries.filter_map(|(cluster, namespace, entry)| {
            let pair = (cluster.clone(), namespace.clone(), entry.owner_count);
            Some((pair, entry.owner.as_ref()?))
        })
    }

    /// As if every router had let go of all that is being released.
    #[cfg(test)]
    pub(crate) fn close_all(&mut self) {
        for (_, _, entry) in self.entries_mut() {
            entry.closing = entry.releasing_since.is_some();
        }
    }

    /// The shards of which something is being released.
    pub(crate) fn releasing(&self) -> BTreeSet<ShardName> {
        let entries = self.pairs.values().flat_map(BTreeMap::values);
        let releasing = entries.filter(|entry| entry.releasing_since.is_some());
        releasing.filter_map(|entry| entry.owner.clone()).collect()
    }

    /// Whether `shard` has anything, releasing or not.
    pub(crate) fn is_owner(&self, shard: &ShardName) -> bool {
        self.clusters().any(|cluster| self.is_owner_in(cluster, shard))
    }

    /// Whether `shard` has anything in `cluster`, releasing or not.
    pub(super) fn is_owner_in(&self, cluster: &str, shard: &ShardName) -> bool {
        let mut entries = self.in_cluster(cluster);
        entries.any(|(_, entry)| entry.owner.as_ref() == Some(shard))
    }

    /// Whether nobody may be given what nobody is known to have.
    pub(crate) fn is_withholding(&self) -> bool {
        self.withholding
    }

    /// Clusters with pairs of any state.
    pub(crate) fn clusters(&self) -> impl Iterator<Item = &str> {
        self.pairs.keys().map(String::as_str)
    }

    /// Namespaces of `cluster` that `shard` holds, releasing ones excepted.
    pub(super) fn owned_in(&self, cluster: &str, shard: &ShardName) -> impl Iterator<Item = &str> {
        let owned = |entry: &Entry| entry.owner.as_ref() == Some(shard) && entry.releasing_since.is_none();
        self.in_cluster(cluster)
            .filter(move |(_, entry)| owned(entry))
            .map(|(namespace, _)| namespace)
    }

    /// The cluster where each shard has a namespace, releasing ones included: until every router has let go of it, callers
    /// may still write there. Of several, the one that is not being released.
    pub(super) fn homes(&self) -> Homes<'_> {
        let mut homes = Homes::new();
        for (cluster, namespaces) in &self.pairs {
            for (namespace, entry) in namespaces {
                let Some(owner) = &entry.owner else { continue };
                let of_shard = homes.entry(owner).or_default();
                if entry.releasing_since.is_none() {
                    of_shard.insert(namespace, cluster);
                } else {
                    of_shard.entry(namespace).or_insert(cluster);
                }
            }
        }
        homes
    }

    /// Frees what was being released in a run that every router has acknowledged which may serve its shard: it leaves that.
    /// Where the member fences it off, also what was let through before must be over.
    pub(super) fn free(&mut self, facts: &Facts, released: &Released, now: Timestamp) {
        // Runs are counted from 1: who has acknowledged one has let go of all that it does not name.
        self.withholding &= released.by_all == 0;
        for (cluster, namespaces) in &mut self.pairs {
            for (namespace, entry) in namespaces {
                if !entry.let_go(facts, released, (cluster, namespace)) {
                    continue;
                }
                entry.stays();
                let Some(shard) = entry.owner.take() else { continue };
                self.view_revision += 1;
                let departure = Departure {
                    view_revision: self.view_revision,
                    unix_seconds: now.as_second(),
                };
                let departures = self.departures.entry(cluster.clone()).or_default();
                departures.add(shard, namespace, departure);
            }
        }
    }

    /// Drops departures that are too old or too many.
    pub(super) fn drop_departures(&mut self, now: Timestamp, is: impl Fn(&ShardName) -> bool) {
        let all = self.departures.values_mut();
        all.for_each(|departures| departures.drop(now, &is));
    }

    /// Moves on to the claims of `run`: what is claimed is granted, what is no longer claimed is being released.
    pub(super) fn settle(&mut self, facts: &Facts, claims: &Claims, (run, now): (u64, Timestamp)) {
        for (cluster, namespaces) in claims {
            for (namespace, shard) in namespaces {
                let annotated = facts.inventory(cluster).and_then(|all| all.get(namespace)?.epoch);
                self.claim((cluster, namespace), shard, annotated);
            }
        }
        for (cluster, namespaces) in &mut self.pairs {
            for (namespace, entry) in namespaces {
                let claimed = claims.get(cluster).is_some_and(|claims| claims.contains_key(namespace));
                if entry.owner.is_some() && !claimed {
                    entry.releasing_since.get_or_insert(run);
                    entry.releasing_from.get_or_insert(now);
                }
            }
        }
    }

    /// Forgets free pairs that are no more: their member is gone, or known not to have the namespace. No view revision is behind
    /// an epoch of theirs: those of a namespace of this name begin after it.
    pub(super) fn forget(&mut self, facts: &Facts) {
        let epochs = self.pairs.values().flat_map(BTreeMap::values);
        let epochs = epochs.map(|entry| entry.owner_count.max(entry.fence.epoch));
        self.skip_to(epochs.max().unwrap_or_default());
        let is_there = |cluster: &str, namespace: &str| {
            let inventory = facts.inventory(cluster);
            facts.members.contains_key(cluster) && inventory.is_none_or(|all| all.contains_key(namespace))
        };
        self.pairs.retain(|cluster, namespaces| {
            namespaces.retain(|namespace, entry| entry.owner.is_some() || is_there(cluster, namespace));
            !namespaces.is_empty()
        });
        self.departures
            .retain(|cluster, departures| facts.members.contains_key(cluster) || !departures.is_empty());
    }

    /// View revisions up to this one are not given again, as they were by a state that could not be stored whole.
    pub(crate) fn skip_to(&mut self, view_revision: u64) {
        self.view_revision = self.view_revision.max(view_revision);
    }

    /// `annotated`: the epoch that the member goes by, which never falls.
    fn claim(&mut self, (cluster, namespace): (&str, &str), shard: &ShardName, annotated: Option<u64>) {
        let namespaces = self.pairs.entry(cluster.to_owned()).or_default();
        let entry = namespaces.entry(namespace.to_owned()).or_insert(Entry {
            owner: None,
            // One of this name may have been forgotten, and late writes to it say its epochs.
            owner_count: self.view_revision,
            view_revision: 0,
            releasing_since: None,
            releasing_from: None,
            fence: PairFence::default(),
            saying_since: None,
            closing: false,
        });
        match &entry.owner {
            // `arbitrate` lets nobody claim what another shard holds, nor take back what another one waits for.
            Some(owner) if owner != shard => return,
            // What was released of the epoch before may have been acknowledged, and fenced off.
            Some(_) if entry.releasing_since.is_some() => entry.owner_count += 1,
            Some(_) => {}
            None => {
                self.view_revision += 1;
                entry.owner = Some(shard.clone());
                entry.begin_epoch(annotated);
                entry.view_revision = self.view_revision;
            }
        }
        entry.stays();
    }
}

impl Entry {
    /// It is not being released any more.
    fn stays(&mut self) {
        (self.releasing_since, self.releasing_from, self.closing) = (None, None, false);
    }
}
