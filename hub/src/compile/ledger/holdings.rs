//! What each shard has, looked up by its name: whoever asks for many shards, one after the other, must not go through all pairs
//! for each. Callers: the compiler, `status` and `finalize`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use portolan_crds::ShardName;

use super::{Clusters, Entry, Ledger, Pairs, unshared};

/// Where each namespace that a shard has is: namespace → cluster.
pub(in crate::compile) type Homes<'a> = BTreeMap<&'a str, &'a str>;

/// The clusters where each shard has something. None of these is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Owners(BTreeMap<ShardName, Arc<Clusters>>);

impl Owners {
    /// Who has something in `cluster` is not who `had`, but who `has`.
    pub(super) fn change(&mut self, cluster: &str, had: &BTreeSet<ShardName>, has: &BTreeSet<ShardName>) {
        for owner in had.difference(has) {
            let left = self.0.get_mut(owner).map(|clusters| {
                Arc::make_mut(clusters).remove(cluster);
                clusters.is_empty()
            });
            if left == Some(true) {
                self.0.remove(owner);
            }
        }
        for owner in has.difference(had) {
            let clusters = self.0.entry(owner.clone()).or_default();
            Arc::make_mut(clusters).insert(cluster.to_owned());
        }
    }
}

impl Owners {
    /// The clusters where `shard` has something, releasing or not.
    pub(super) fn clusters_of(&self, shard: &ShardName) -> impl Iterator<Item = &str> {
        let clusters = self.0.get(shard).into_iter();
        clusters.flat_map(|clusters| clusters.iter()).map(String::as_str)
    }
}

impl Ledger {
    /// Whether `shard` has anything, releasing or not.
    pub(crate) fn is_owner(&self, shard: &ShardName) -> bool {
        self.owners.0.contains_key(shard)
    }

    /// Namespaces of `cluster` that `shard` holds, releasing ones excepted.
    pub(in crate::compile) fn owned_in(&self, cluster: &str, shard: &ShardName) -> impl Iterator<Item = &str> {
        let pairs = self.pairs.get(cluster).filter(|pairs| pairs.owners().contains(shard));
        let entries = pairs.into_iter().flat_map(|pairs| pairs.entries());
        let owned = |entry: &Entry| entry.owner.as_ref() == Some(shard) && entry.releasing_since.is_none();
        entries
            .filter(move |(_, entry)| owned(entry))
            .map(|(namespace, _)| namespace.as_str())
    }

    /// The clusters where `shard` has something, releasing or not.
    pub(in crate::compile) fn clusters_of(&self, shard: &ShardName) -> impl Iterator<Item = &str> {
        self.owners.clusters_of(shard)
    }

    /// Whoever has anything, releasing or not.
    pub(in crate::compile) fn owners(&self) -> impl Iterator<Item = &ShardName> {
        self.owners.0.keys()
    }

    /// Cluster, namespace and entry of all that `shard` has, releasing or not, in order.
    pub(crate) fn held_by(&self, shard: &ShardName) -> impl Iterator<Item = (&str, &str, &Entry)> {
        self.clusters_of(shard).flat_map(move |cluster| {
            let entries = self
                .in_cluster(cluster)
                .filter(|(_, entry)| entry.owner.as_ref() == Some(shard));
            entries.map(move |(namespace, entry)| (cluster, namespace, entry))
        })
    }

    /// The cluster where `shard` has each namespace, releasing ones included: until every router has let go of it, callers may
    /// still write there. Of several, the one that is not being released.
    pub(in crate::compile) fn homes(&self, shard: &ShardName) -> Homes<'_> {
        let mut homes = Homes::new();
        for cluster in self.clusters_of(shard) {
            let entries = self
                .in_cluster(cluster)
                .filter(|(_, entry)| entry.owner.as_ref() == Some(shard));
            for (namespace, entry) in entries {
                if entry.releasing_since.is_none() {
                    homes.insert(namespace, cluster);
                } else {
                    homes.entry(namespace).or_insert(cluster);
                }
            }
        }
        homes
    }

    /// Shards of which `before` says, or may say, something else: what they have, or what left them.
    pub(in crate::compile) fn touched_since<'a>(&'a self, before: &'a Self) -> BTreeSet<&'a ShardName> {
        let mut touched = BTreeSet::new();
        for (_, one, other) in unshared(&before.pairs, &self.pairs) {
            touched.extend(one.into_iter().chain(other).flat_map(Pairs::owners));
        }
        for (_, one, other) in unshared(&before.departures, &self.departures) {
            let departures = one.into_iter().chain(other);
            touched.extend(departures.flat_map(|departures| departures.by_shard.keys()));
        }
        touched
    }

    /// When the next pair has been vacant for too long.
    pub(crate) fn vacancy_ends(&self) -> Option<Timestamp> {
        self.pairs.values().filter_map(|pairs| pairs.vacancy_ends()).min()
    }

    /// The clusters of `shard`, each with the namespaces that it has there, releasing or not.
    pub(crate) fn held_by_cluster(&self, shard: &ShardName) -> impl Iterator<Item = (&str, Vec<&str>)> {
        self.clusters_of(shard).map(move |cluster| {
            let entries = self
                .in_cluster(cluster)
                .filter(|(_, entry)| entry.owner.as_ref() == Some(shard));
            (cluster, entries.map(|(namespace, _)| namespace).collect())
        })
    }

    /// Whether what is kept beside the pairs is what follows from them.
    #[cfg(test)]
    pub(in crate::compile) fn is_consistent(&self) -> bool {
        let mut again = Self::default();
        for (cluster, pairs) in &self.pairs {
            again.change(cluster, |entries| entries.clone_from(pairs.entries()));
        }
        again.pairs == self.pairs && again.owners == self.owners
    }
}

#[cfg(test)]
mod tests {
    use portolan_crds::ledger::{Chunk, Pair, PairFence, Slot};

    use super::*;

    #[test]
    fn each_shard_has_its_own_in_order() {
        let shard = |name: &str| ShardName::new("ops", name).unwrap();
        let chunk = |cluster: &str, owned: [(&str, Option<&str>); 3]| {
            let mut chunk = Chunk::new(cluster, Slot::WHOLE);
            for (namespace, owner) in owned {
                let pair = Pair {
                    fence: PairFence::default(),
                    owner: owner.map(shard),
                    owner_count: 1,
                    view_revision: 1,
                    releasing: false,
                };
                chunk.pairs.insert(namespace.to_owned(), pair);
            }
            chunk
        };
        let east = chunk("east", [("x", Some("a")), ("y", Some("b")), ("z", Some("a"))]);
        let west = chunk("west", [("x", None), ("y", Some("a")), ("z", Some("b"))]);
        let ledger = Ledger::restore([east, west], 1, false);
        let of = |name: &str| -> Vec<_> {
            let shard = shard(name);
            let held = ledger.held_by_cluster(&shard);
            held.map(|(cluster, all)| (cluster.to_owned(), all.join(" "))).collect()
        };
        let said = |held: &[(&str, &str)]| -> Vec<_> {
            let held = held.iter();
            held.map(|(cluster, all)| ((*cluster).to_owned(), (*all).to_owned()))
                .collect()
        };
        assert_eq!(of("a"), said(&[("east", "x z"), ("west", "y")]));
        assert_eq!(of("b"), said(&[("east", "y"), ("west", "z")]));
        assert_eq!(ledger.held_by(&shard("c")).count(), 0);
        assert_eq!(ledger.held_by(&shard("a")).count(), 3);
    }
}
