//! Some pairs of one member cluster, and what left its shards: the content of one ConfigMap.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::slot::Slot;
use crate::names::ShardName;

/// A chunk that would be longer than this many bytes is halved.
pub const CHUNK_BYTES_MAX: usize = 64 * 1024;

/// Pairs and departures of the namespaces of one slot of one member cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Chunk {
    /// The member cluster.
    pub cluster: String,
    /// Which of its namespaces.
    pub slot: Slot,
    /// Namespaces that have or had an owner.
    pub pairs: BTreeMap<String, Pair>,
    /// The last time that each namespace left each shard.
    pub departures: BTreeMap<ShardName, BTreeMap<String, Departure>>,
    /// The highest view revision among departures from the cluster that are not kept any more.
    pub dropped_up_to: u64,
}

/// One (cluster, namespace) pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// `None`: free.
    pub owner: Option<ShardName>,
    /// Epoch of its owner: grows with each, and no two of a namespace have the same.
    pub owner_count: u64,
    /// View revision at which it entered its owner's shard, or that of the last one while it is free.
    pub view_revision: u64,
    /// The owner no longer wants the pair, but some router may still let the owner's callers write.
    pub releasing: bool,
    /// Whose writes the member takes.
    pub fence: PairFence,
}

/// Which writes to a pair its member takes, of those that say their epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PairFence {
    /// Those of this epoch alone; 0: nothing is known of it.
    pub epoch: u64,
    /// No write that the member still takes says no epoch.
    pub whole: bool,
}

/// A pair that left its shard: since then no caller of the shard is served it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// View revision at which it left.
    pub view_revision: u64,
    /// Time at which it left.
    pub unix_seconds: i64,
}

impl Chunk {
    /// An empty one.
    pub fn new(cluster: &str, slot: Slot) -> Self {
        Self {
            cluster: cluster.to_owned(),
            slot,
            pairs: BTreeMap::new(),
            departures: BTreeMap::new(),
            dropped_up_to: 0,
        }
    }

    /// Itself, or its halves and theirs, so that none is longer than a chunk may be, in the ledger of this key.
    pub fn bounded(self, key: &str) -> Vec<Self> {
        let bytes = serde_json::to_vec(&self).map_or(0, |text| text.len());
        match self.slot.halves().filter(|_| bytes > CHUNK_BYTES_MAX) {
            None => vec![self],
            Some(halves) => {
                let parts = halves.into_iter().map(|half| self.part(key, half));
                parts.flat_map(|part| part.bounded(key)).collect()
            }
        }
    }

    /// What of it is of `slot`.
    fn part(&self, key: &str, slot: Slot) -> Self {
        let of_slot = |namespace: &String| slot.holds(key, namespace);
        let mut part = Self { slot, ..self.clone() };
        part.pairs.retain(|namespace, _| of_slot(namespace));
        part.departures.retain(|_, namespaces| {
            namespaces.retain(|namespace, _| of_slot(namespace));
            !namespaces.is_empty()
        });
        part
    }
}

/// A chunk as it is written: shards are named once and then by their place, as a namespace is in one of a few.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    cluster: String,
    slot: Slot,
    dropped_up_to: u64,
    shards: Vec<ShardName>,
    /// Namespace → shard, epoch of its owner, view revision, whether it is being released.
    pairs: BTreeMap<String, (Option<usize>, u64, u64, bool)>,
    /// Shard, namespace, view revision, Unix seconds.
    departures: Vec<(usize, String, u64, i64)>,
    /// Namespace → epoch, whether from its beginning. An older hub drops it, and has writes say no epoch.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    fences: BTreeMap<String, (u64, bool)>,
}

impl From<Chunk> for Written {
    fn from(chunk: Chunk) -> Self {
        let owners = chunk.pairs.values().filter_map(|pair| pair.owner.as_ref());
        let mut shards: Vec<_> = owners.chain(chunk.departures.keys()).cloned().collect();
        shards.sort_unstable();
        shards.dedup();
        let place = |shard: &ShardName| shards.binary_search(shard).expect("all shards are listed");
        let pair = |pair: &Pair| {
            let owner = pair.owner.as_ref().map(place);
            (owner, pair.owner_count, pair.view_revision, pair.releasing)
        };
        let fenced = chunk.pairs.iter().filter(|(_, one)| one.fence.epoch > 0);
        let fences = fenced.map(|(namespace, one)| (namespace.clone(), (one.fence.epoch, one.fence.whole)));
        let fences = fences.collect();
        let pairs = chunk.pairs.iter();
        let pairs = pairs.map(|(namespace, one)| (namespace.clone(), pair(one))).collect();
        let departures = chunk.departures.iter().flat_map(|(shard, namespaces)| {
            let place = place(shard);
            let departures = namespaces.iter();
            departures.map(move |(namespace, one)| (place, namespace.clone(), one.view_revision, one.unix_seconds))
        });
        Self {
            cluster: chunk.cluster,
            slot: chunk.slot,
            dropped_up_to: chunk.dropped_up_to,
            departures: departures.collect(),
            pairs,
            shards,
            fences,
        }
    }
}

impl TryFrom<Written> for Chunk {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let shard = |place: usize| {
            let shard = written.shards.get(place).cloned();
            shard.ok_or_else(|| format!("there is no shard {place}"))
        };
        let mut chunk = Self {
            dropped_up_to: written.dropped_up_to,
            ..Self::new(&written.cluster, written.slot)
        };
        for (namespace, (owner, owner_count, view_revision, releasing)) in written.pairs {
            let (epoch, whole) = written.fences.get(&namespace).copied().unwrap_or_default();
            let pair = Pair {
                fence: PairFence { epoch, whole },
                owner: owner.map(shard).transpose()?,
                owner_count,
                view_revision,
                releasing,
            };
            chunk.pairs.insert(namespace, pair);
        }
        for (place, namespace, view_revision, unix_seconds) in written.departures {
            let departure = Departure {
                view_revision,
                unix_seconds,
            };
            let namespaces = chunk.departures.entry(shard(place)?).or_default();
            namespaces.insert(namespace, departure);
        }
        Ok(chunk)
    }
}
