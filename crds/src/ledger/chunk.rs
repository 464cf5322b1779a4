//! Some pairs of one member cluster, and what left its shards: the content of one ConfigMap.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::slot::Slot;
use crate::names::ShardName;
use crate::operator::OperatorName;

/// A chunk that would be longer than this many bytes is halved: a namespace that comes is written three times with all of its chunk.
pub const CHUNK_BYTES_MAX: usize = 32 * 1024;

/// Pairs and departures of the namespaces of one slot of one member cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Chunk {
    /// The member cluster.
    pub cluster: String,
    /// Which of its namespaces.
    pub slot: Slot,
    /// Namespaces that have or had owners, with what each operator has of them.
    pub pairs: BTreeMap<String, BTreeMap<OperatorName, Pair>>,
    /// The last time that each namespace left each shard.
    pub departures: BTreeMap<ShardName, BTreeMap<String, Departure>>,
    /// The highest view revision among departures from the cluster that are not kept any more.
    pub dropped_up_to: u64,
}

/// One (cluster, namespace) pair, as one operator's shards have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// `None`: free.
    pub owner: Option<ShardName>,
    /// Epoch of its owner: grows with each, and no two of a namespace have the same, of whatever operators.
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

    /// Whether it says more than who everybody's owner of each pair is.
    pub(super) fn is_of_operators(&self) -> bool {
        let mut operators = self.pairs.values().flat_map(BTreeMap::keys);
        operators.any(|operator| !operator.is_everybody())
    }

    /// Adds what an operator has of a namespace.
    pub fn add(&mut self, namespace: &str, operator: OperatorName, pair: Pair) {
        let pairs = self.pairs.entry(namespace.to_owned()).or_default();
        pairs.insert(operator, pair);
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
    pairs: BTreeMap<String, WrittenPair>,
    /// Shard, namespace, view revision, Unix seconds.
    departures: Vec<(usize, String, u64, i64)>,
    /// Namespace → epoch, whether from its beginning. An older hub drops it, and has writes say no epoch.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    fences: BTreeMap<String, (u64, bool)>,
    /// Named once, as shards are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    operators: Vec<OperatorName>,
    /// What each of them has: in `pairs` is everybody's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    of_operators: BTreeMap<String, Vec<OfOperator>>,
}

/// Shard, epoch of its owner, view revision, whether it is being released.
type WrittenPair = (Option<usize>, u64, u64, bool);

/// Operator, and as in `pairs` and `fences`: shard, epoch of its owner, view revision, whether it is being released, epoch of its fence,
/// whether from its beginning.
type OfOperator = (usize, Option<usize>, u64, u64, bool, u64, bool);

impl From<Chunk> for Written {
    fn from(chunk: Chunk) -> Self {
        let all = || chunk.pairs.values().flatten();
        let owners = all().filter_map(|(_, pair)| pair.owner.as_ref());
        let shards = sorted(owners.chain(chunk.departures.keys()));
        let operators = all().map(|(operator, _)| operator);
        let operators = sorted(operators.filter(|operator| !operator.is_everybody()));
        let place = |shard: &ShardName| shards.binary_search(shard).expect("all shards are listed");
        let (mut pairs, mut fences, mut of_operators) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for (namespace, of_namespace) in &chunk.pairs {
            for (operator, pair) in of_namespace {
                let (owner, count, revision) = (pair.owner.as_ref().map(place), pair.owner_count, pair.view_revision);
                let (epoch, whole) = (pair.fence.epoch, pair.fence.whole);
                if let Ok(operator) = operators.binary_search(operator) {
                    let of_namespace = of_operators.entry(namespace.clone()).or_insert_with(Vec::new);
                    of_namespace.push((operator, owner, count, revision, pair.releasing, epoch, whole));
                    continue;
                }
                pairs.insert(namespace.clone(), (owner, count, revision, pair.releasing));
                if epoch > 0 {
                    fences.insert(namespace.clone(), (epoch, whole));
                }
            }
        }
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
            operators,
            of_operators,
        }
    }
}

fn sorted<'a, T: Ord + Clone + 'a>(all: impl Iterator<Item = &'a T>) -> Vec<T> {
    let mut sorted: Vec<_> = all.cloned().collect();
    sorted.sort_unstable();
    sorted.dedup();
    sorted
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
        let pair = |(owner, owner_count, view_revision, releasing): WrittenPair, (epoch, whole)| {
            Ok::<_, String>(Pair {
                fence: PairFence { epoch, whole },
                owner: owner.map(shard).transpose()?,
                owner_count,
                view_revision,
                releasing,
            })
        };
        for (namespace, one) in written.pairs {
            let fence = written.fences.get(&namespace).copied().unwrap_or_default();
            chunk.add(&namespace, OperatorName::default(), pair(one, fence)?);
        }
        for (namespace, of_namespace) in written.of_operators {
            for (operator, owner, owner_count, view_revision, releasing, epoch, whole) in of_namespace {
                let named = written.operators.get(operator).cloned();
                let operator = named.ok_or_else(|| format!("there is no operator {operator}"))?;
                let one = (owner, owner_count, view_revision, releasing);
                chunk.add(&namespace, operator, pair(one, (epoch, whole))?);
            }
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
