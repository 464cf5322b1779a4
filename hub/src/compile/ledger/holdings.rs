//! What each shard has, looked up by its name: whoever asks for many shards, one after the other, must not go through all pairs
//! for each. Callers: the compiler, `status` and `finalize`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use portolan_crds::{OperatorName, ShardName};

use super::pairs::unshared_fields;
use super::{Entry, Field, Ledger, Pairs, unshared};

/// Where each namespace that a shard has is: namespace → cluster.
pub(in crate::compile) type Homes<'a> = BTreeMap<&'a str, &'a str>;

/// Where each shard has something. None of these is empty, and all of one are of the same operator, until an edit of that is carried out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Owners(BTreeMap<ShardName, Arc<BTreeSet<(OperatorName, String)>>>);

impl Owners {
    /// Who has something in `field` is not who `had`, but who `has`.
    pub(super) fn change(&mut self, field: Field<'_>, had: &BTreeSet<ShardName>, has: &BTreeSet<ShardName>) {
        let field = (field.0.clone(), field.1.to_owned());
        for owner in had.difference(has) {
            let left = self.0.get_mut(owner).map(|fields| {
                Arc::make_mut(fields).remove(&field);
                fields.is_empty()
            });
            if left == Some(true) {
                self.0.remove(owner);
            }
        }
        for owner in has.difference(had) {
            let fields = self.0.entry(owner.clone()).or_default();
            Arc::make_mut(fields).insert(field.clone());
        }
    }
}

impl Owners {
    /// The clusters where `shard` has something, releasing or not.
    pub(super) fn clusters_of(&self, shard: &ShardName) -> impl Iterator<Item = &str> {
        self.fields_of(shard).map(|(_, cluster)| cluster)
    }

    /// Where, and as whose, `shard` has something, releasing or not.
    fn fields_of(&self, shard: &ShardName) -> impl Iterator<Item = Field<'_>> {
        let fields = self.0.get(shard).into_iter().flat_map(|fields| fields.iter());
        fields.map(|(operator, cluster)| (operator, cluster.as_str()))
    }
}

impl Ledger {
    /// Whether `shard` has anything, releasing or not.
    pub(crate) fn is_owner(&self, shard: &ShardName) -> bool {
        self.owners.0.contains_key(shard)
    }

    /// Namespaces of `cluster` that `shard` holds, releasing ones excepted.
    pub(in crate::compile) fn owned_in(&self, cluster: &str, shard: &ShardName) -> impl Iterator<Item = &str> {
        let fields = self.owners.fields_of(shard).filter(move |(_, of)| *of == cluster);
        let held = fields.flat_map(move |field| self.held_in(field, shard));
        let held = held.filter(|(.., entry)| entry.releasing_since.is_none());
        held.map(|(_, namespace, _)| namespace)
    }

    /// As whose `shard` has what it has in a cluster; everybody's, where it has nothing.
    pub(in crate::compile) fn operator_of(&self, cluster: &str, shard: &ShardName) -> OperatorName {
        let mut fields = self.owners.fields_of(shard).filter(|(_, of)| *of == cluster);
        fields.next().map(|(operator, _)| operator.clone()).unwrap_or_default()
    }

    /// Whether `shard` has anything, releasing or not, as a shard of another operator than this one.
    pub(in crate::compile) fn is_owner_elsewhere(&self, shard: &ShardName, operator: &OperatorName) -> bool {
        self.owners.fields_of(shard).any(|(of, _)| of != operator)
    }

    /// Whoever has anything, releasing or not.
    pub(in crate::compile) fn owners(&self) -> impl Iterator<Item = &ShardName> {
        self.owners.0.keys()
    }

    /// Cluster, namespace and entry of all that `shard` has, releasing or not, in order.
    pub(crate) fn held_by(&self, shard: &ShardName) -> impl Iterator<Item = (&str, &str, &Entry)> {
        let fields = self.owners.fields_of(shard);
        fields.flat_map(move |field| self.held_in(field, shard))
    }

    fn held_in<'a>(
        &'a self,
        (operator, cluster): Field<'a>,
        shard: &ShardName,
    ) -> impl Iterator<Item = (&'a str, &'a str, &'a Entry)> {
        let pairs = self.shared(operator, cluster).into_iter();
        let entries = pairs.flat_map(|pairs| pairs.entries());
        let entries = entries.filter(move |(_, entry)| entry.owner.as_ref() == Some(shard));
        entries.map(move |(namespace, entry)| (cluster, namespace.as_str(), entry))
    }

    /// The cluster where `shard` has each namespace, releasing ones included: until every router has let go of it, callers may
    /// still write there. Of several, the one that is not being released.
    pub(in crate::compile) fn homes(&self, shard: &ShardName) -> Homes<'_> {
        let mut homes = Homes::new();
        for (cluster, namespace, entry) in self.held_by(shard) {
            if entry.releasing_since.is_none() {
                homes.insert(namespace, cluster);
            } else {
                homes.entry(namespace).or_insert(cluster);
            }
        }
        homes
    }

    /// Shards of which `before` says, or may say, something else: what they have, or what left them.
    pub(in crate::compile) fn touched_since<'a>(&'a self, before: &'a Self) -> BTreeSet<&'a ShardName> {
        let mut touched = BTreeSet::new();
        for (_, one, other) in unshared_fields(&before.pairs, &self.pairs) {
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
        self.all().filter_map(|(.., pairs)| pairs.vacancy_ends()).min()
    }

    /// The clusters of `shard`, each with the namespaces that it has there, releasing or not.
    pub(crate) fn held_by_cluster(&self, shard: &ShardName) -> impl Iterator<Item = (&str, Vec<&str>)> {
        let mut held = BTreeMap::<_, Vec<_>>::new();
        for (cluster, namespace, _) in self.held_by(shard) {
            held.entry(cluster).or_default().push(namespace);
        }
        held.into_iter()
    }

    /// Whether what is kept beside the pairs is what follows from them.
    #[cfg(test)]
    pub(in crate::compile) fn is_consistent(&self) -> bool {
        let mut again = Self::default();
        for (operator, cluster, pairs) in self.all() {
            again.change((operator, cluster), |entries| entries.clone_from(pairs.entries()));
        }
        again.pairs == self.pairs && again.owners == self.owners
    }
}

#[cfg(test)]
mod tests {
    use portolan_crds::Contention;
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
                chunk.add(namespace, OperatorName::default(), pair);
            }
            chunk
        };
        let east = chunk("east", [("x", Some("a")), ("y", Some("b")), ("z", Some("a"))]);
        let west = chunk("west", [("x", None), ("y", Some("a")), ("z", Some("b"))]);
        let ledger = Ledger::restore(Contention::Fleet, [east, west], 1, false);
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
