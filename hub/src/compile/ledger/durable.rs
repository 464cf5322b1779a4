//! The ledger as chunks that can be stored, and what of two ledgers differs. Called by `crate::ledger`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_crds::ledger::{Chunk, Pair, Slot};

use portolan_crds::{Contention, OperatorName};

use super::pairs::{unshared, unshared_fields};
use super::{Departures, Entry, Ledger};

/// The run in which a restored pair counts as released: the first, as no router has acknowledged any yet.
const FIRST_RUN: u64 = 1;

impl Ledger {
    /// What the chunks say. `withholding`: routers may hold pairs that no chunk names.
    pub(crate) fn restore(
        contention: Contention,
        chunks: impl IntoIterator<Item = Chunk>,
        view_revision: u64,
        withholding: bool,
    ) -> Self {
        let mut ledger = Self {
            contention,
            view_revision,
            withholding,
            ..Self::default()
        };
        let mut pairs = BTreeMap::<(OperatorName, String), BTreeMap<String, Entry>>::new();
        let mut all_departures = BTreeMap::<String, Departures>::new();
        for chunk in chunks {
            let departures = all_departures.entry(chunk.cluster.clone()).or_default();
            departures.dropped_up_to = departures.dropped_up_to.max(chunk.dropped_up_to);
            for (shard, namespaces) in chunk.departures {
                departures.by_shard.entry(shard).or_default().extend(namespaces);
            }
            for (namespace, of_namespace) in chunk.pairs {
                for (operator, pair) in of_namespace {
                    let entries = pairs.entry((operator, chunk.cluster.clone())).or_default();
                    entries.insert(namespace.clone(), Entry::restore(pair));
                }
            }
        }
        for ((operator, cluster), known) in pairs {
            ledger.change((&operator, &cluster), |entries| *entries = known);
        }
        let departures = all_departures.into_iter();
        let departures = departures.filter(|(_, departures)| *departures != Departures::default());
        ledger.departures = departures
            .map(|(cluster, departures)| (cluster, Arc::new(departures)))
            .collect();
        ledger
    }

    /// Whether there is anything to store of `cluster`.
    pub(crate) fn has_cluster(&self, cluster: &str) -> bool {
        self.shared_in(cluster).next().is_some() || self.departures.contains_key(cluster)
    }

    /// The chunks of `cluster` in those of `slots` that are `asked` for, in the ledger of this key.
    pub(crate) fn chunks(
        &self,
        cluster: &str,
        key: &str,
        slots: &BTreeSet<Slot>,
        asked: &BTreeSet<Slot>,
    ) -> Vec<Chunk> {
        let none = Departures::default();
        let departures = self.departures.get(cluster).map_or(&none, |departures| departures);
        let empty = |slot: &Slot| {
            let chunk = Chunk {
                dropped_up_to: departures.dropped_up_to,
                ..Chunk::new(cluster, *slot)
            };
            (*slot, chunk)
        };
        let mut chunks: BTreeMap<_, _> = asked.iter().map(empty).collect();
        let slot_of = |namespace: &str| Slot::of_namespace(key, slots, namespace);
        for (operator, pairs) in self.shared_in(cluster) {
            for (namespace, entry) in pairs.entries() {
                if let Some(chunk) = slot_of(namespace).and_then(|slot| chunks.get_mut(&slot)) {
                    chunk.add(namespace, operator.clone(), entry.stored());
                }
            }
        }
        for (shard, namespaces) in &departures.by_shard {
            for (namespace, departure) in namespaces {
                if let Some(chunk) = slot_of(namespace).and_then(|slot| chunks.get_mut(&slot)) {
                    let of_shard = chunk.departures.entry(shard.clone()).or_default();
                    of_shard.insert(namespace.clone(), *departure);
                }
            }
        }
        chunks.into_values().collect()
    }

    /// Namespaces, by cluster, of which the two say something different that is stored.
    pub(crate) fn differing(&self, other: &Self) -> BTreeMap<String, BTreeSet<String>> {
        let mut differing = BTreeMap::<String, BTreeSet<String>>::new();
        let none = BTreeMap::new();
        for ((_, cluster), ours, theirs) in unshared_fields(&self.pairs, &other.pairs) {
            let ours = ours.map_or(&none, |pairs| pairs.entries());
            let theirs = theirs.map_or(&none, |pairs| pairs.entries());
            let found = different(ours, theirs, Entry::is_stored_as);
            differing.entry(cluster.to_owned()).or_default().extend(found);
        }
        let (nobody, none) = (Departures::default(), BTreeMap::new());
        for (cluster, ours, theirs) in unshared(&self.departures, &other.departures) {
            let ours = &ours.map_or(&nobody, |departures| departures).by_shard;
            let theirs = &theirs.map_or(&nobody, |departures| departures).by_shard;
            for shard in union(ours, theirs) {
                let found = different(
                    ours.get(shard).unwrap_or(&none),
                    theirs.get(shard).unwrap_or(&none),
                    PartialEq::eq,
                );
                differing.entry(cluster.clone()).or_default().extend(found);
            }
        }
        differing.retain(|_, namespaces| !namespaces.is_empty());
        differing
    }
}

impl Entry {
    fn restore(pair: Pair) -> Self {
        Self {
            owner: pair.owner,
            owner_count: pair.owner_count,
            view_revision: pair.view_revision,
            releasing_since: pair.releasing.then_some(FIRST_RUN),
            releasing_from: None,
            fence: pair.fence,
            saying_since: None,
            vacant_from: None,
            closing: None,
        }
    }

    fn stored(&self) -> Pair {
        Pair {
            owner: self.owner.clone(),
            owner_count: self.owner_count,
            view_revision: self.view_revision,
            releasing: self.releasing_since.is_some(),
            fence: self.fence,
        }
    }

    fn is_stored_as(&self, other: &Self) -> bool {
        let releasing = |entry: &Self| entry.releasing_since.is_some();
        releasing(self) == releasing(other)
            && self.owner == other.owner
            && self.owner_count == other.owner_count
            && self.view_revision == other.view_revision
            && self.fence == other.fence
    }
}

fn union<'a, K: Ord, V>(ours: &'a BTreeMap<K, V>, theirs: &'a BTreeMap<K, V>) -> BTreeSet<&'a K> {
    ours.keys().chain(theirs.keys()).collect()
}

/// Keys of what is not the same on both sides.
fn different<'a, V>(
    ours: &'a BTreeMap<String, V>,
    theirs: &'a BTreeMap<String, V>,
    same: impl Fn(&V, &V) -> bool,
) -> Vec<String> {
    let alike = |(ours, theirs): ((&String, &V), (&String, &V))| ours.0 == theirs.0 && same(ours.1, theirs.1);
    // Nearly always, and then it takes one pass.
    if ours.len() == theirs.len() && ours.iter().zip(theirs).all(alike) {
        return Vec::new();
    }
    let changed = ours
        .iter()
        .filter(|(name, one)| theirs.get(*name).is_none_or(|other| !same(one, other)));
    let added = theirs.keys().filter(|name| !ours.contains_key(*name));
    changed.map(|(name, _)| name).chain(added).cloned().collect()
}
