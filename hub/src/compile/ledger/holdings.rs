//! What each shard has, looked up by its name: whoever asks for many shards, one after the other, must not go through all pairs
//! for each. Callers: `status` and `finalize`.

use std::collections::HashMap;

use portolan_crds::ShardName;

use super::{Entry, Ledger};

/// Cluster, namespace and entry of all that each shard has, releasing or not, in order.
#[derive(Debug, Default)]
pub(crate) struct Holdings<'a>(HashMap<&'a ShardName, Vec<(&'a str, &'a str, &'a Entry)>>);

impl<'a> Holdings<'a> {
    /// Pairs of `shard`.
    pub(crate) fn of(&self, shard: &ShardName) -> impl Iterator<Item = (&'a str, &'a str, &'a Entry)> + use<'a, '_> {
        self.0.get(shard).into_iter().flatten().copied()
    }

    /// Its clusters, each with its namespaces.
    pub(crate) fn by_cluster(&self, shard: &ShardName) -> impl Iterator<Item = (&'a str, Vec<&'a str>)> + use<'a, '_> {
        let all = self.0.get(shard).map_or(&[][..], Vec::as_slice);
        let clusters = all.chunk_by(|(one, ..), (other, ..)| one == other);
        clusters.map(|pairs| (pairs[0].0, pairs.iter().map(|(_, namespace, _)| *namespace).collect()))
    }
}

impl Ledger {
    /// One pass over all pairs.
    pub(crate) fn holdings(&self) -> Holdings<'_> {
        let mut holdings = Holdings::default();
        for (cluster, namespaces) in &self.pairs {
            for (namespace, entry) in namespaces {
                if let Some(owner) = &entry.owner {
                    let of_owner = holdings.0.entry(owner).or_default();
                    of_owner.push((cluster.as_str(), namespace.as_str(), entry));
                }
            }
        }
        holdings
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
        let holdings = ledger.holdings();
        let of = |name: &str| holdings.by_cluster(&shard(name)).collect::<Vec<_>>();
        assert_eq!(of("a"), [("east", vec!["x", "z"]), ("west", vec!["y"])]);
        assert_eq!(of("b"), [("east", vec!["y"]), ("west", vec!["z"])]);
        assert_eq!(holdings.of(&shard("c")).count(), 0);
        assert_eq!(holdings.of(&shard("a")).count(), 3);
    }
}
