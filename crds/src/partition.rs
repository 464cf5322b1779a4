//! How a root's (cluster, bucket) pairs are shared out among its shards, and the children that follow from it.
//!
//! Pure: the partition of before is an argument, and what must not move does not. Called by the hub, which writes the
//! children, and by `portolanctl`, which shows them beforehand.

mod balance;
mod canary;
mod children;
mod even;
mod expand;
mod pods;
mod territory;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

pub use balance::{PAIR_WEIGHT, SETTLED_PERMILLE, TOLERATED_PERMILLE};
pub use children::ChildRole;
pub use children::HOME;
pub use expand::{Child, Expansion, Surroundings, expand};
pub use pods::Ordinals;

use crate::shard::BucketSet;
use crate::validate::{Problem, Reason};

/// Buckets of member clusters, by the clusters' names. A cluster of which it has no bucket is not in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Part(BTreeMap<String, BucketSet>);

impl Part {
    /// Whether it has no pair.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.0.values().map(BucketSet::len).sum()
    }

    /// The buckets of `cluster`.
    pub fn of(&self, cluster: &str) -> BucketSet {
        self.0.get(cluster).cloned().unwrap_or_default()
    }

    /// Whether it has the pair.
    pub fn contains(&self, (cluster, bucket): (&str, u16)) -> bool {
        self.0.get(cluster).is_some_and(|buckets| buckets.contains(bucket))
    }

    /// The pairs, by cluster and bucket.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, u16)> {
        let clusters = self.0.iter();
        clusters.flat_map(|(cluster, buckets)| buckets.iter().map(|bucket| (cluster.as_str(), bucket)))
    }

    /// What it has of these buckets, and the rest.
    pub fn split(&self, buckets: &BucketSet) -> (Self, Self) {
        let (mut of_them, mut rest) = (Self::default(), Self::default());
        for (cluster, all) in &self.0 {
            of_them.add(cluster, &all.and(buckets));
            rest.add(cluster, &all.without(buckets));
        }
        (of_them, rest)
    }

    /// Adds buckets of `cluster`.
    pub fn add(&mut self, cluster: &str, buckets: &BucketSet) {
        if !buckets.is_empty() {
            let all = self.0.entry(cluster.to_owned()).or_default();
            *all = all.or(buckets);
        }
    }
}

impl<'a> FromIterator<(&'a str, u16)> for Part {
    fn from_iter<I: IntoIterator<Item = (&'a str, u16)>>(pairs: I) -> Self {
        let mut part = Self::default();
        for (cluster, bucket) in pairs {
            part.0.entry(cluster.to_owned()).or_default().insert(bucket);
        }
        part
    }
}

/// Objects by cluster and bucket, as agents count them. A cluster that is not in it was not counted yet; a bucket that a
/// counted cluster does not name has none.
pub type Objects = BTreeMap<String, BTreeMap<u16, u64>>;

/// Shares `pairs` out among `size` shards (at least one), given what each had `before`.
///
/// Every pair has one owner, and the outcome depends on the arguments alone. What moves is what must:
///
/// - Without `objects` the numbers of pairs of any two shards differ by at most one, and of all such partitions it is one
///   that leaves the most pairs where they were.
/// - With `objects` no shard, its lightest pair aside, weighs more than half as much again as any other. As long as that
///   holds, pairs with an owner stay. Else pairs move until no shard, its lightest pair aside, weighs more than a tenth more
///   than any other, and each pair that moves is needed for that: with any one of them back it would not hold. While a
///   cluster was not counted yet, pairs that have an owner keep it, and its pairs are taken to weigh as others do.
///
/// Order of clusters: by name. The parts of before may be fewer or more than `size`; those beyond are dissolved.
pub fn share_out(pairs: &Part, size: usize, before: &[Part], objects: Option<&Objects>) -> Vec<Part> {
    let all: Vec<_> = pairs.pairs().collect();
    let owners = owners(&all, size, before);
    let owners = match objects {
        None => even::share_out(owners, size),
        Some(objects) => balance::share_out(owners, size, &balance::weigh(&all, objects)),
    };
    let mut parts = vec![BTreeMap::<String, BucketSet>::new(); size];
    for ((cluster, bucket), owner) in all.into_iter().zip(owners) {
        let buckets = parts[owner].entry(cluster.to_owned()).or_default();
        buckets.insert(bucket);
    }
    parts.into_iter().map(Part).collect()
}

/// Who had each pair before, of the shards that there still are.
fn owners(pairs: &[(&str, u16)], size: usize, before: &[Part]) -> Vec<Option<usize>> {
    let had = owned(&before[..before.len().min(size)]);
    pairs.iter().map(|pair| had.get(pair).copied()).collect()
}

/// Pairs whose owner in `after` is another than in `before`, with both, by cluster and bucket. A pair that nobody had, or
/// that nobody has any more, is none.
pub fn moves<'a>(before: &'a [Part], after: &[Part]) -> BTreeSet<(&'a str, u16, usize, usize)> {
    let now = owned(after);
    let moved = owned(before).into_iter().filter_map(|(pair, from)| {
        let to = now.get(&pair).copied().filter(|to| *to != from)?;
        Some((pair.0, pair.1, from, to))
    });
    moved.collect()
}

/// The owner of each pair; of several the first.
fn owned(parts: &[Part]) -> BTreeMap<(&str, u16), usize> {
    let mut owned = BTreeMap::new();
    for (owner, part) in parts.iter().enumerate() {
        for pair in part.pairs() {
            owned.entry(pair).or_insert(owner);
        }
    }
    owned
}

fn invalid(field: impl Into<String>, message: impl Into<String>) -> Problem {
    Problem {
        field: field.into(),
        reason: Reason::Invalid,
        message: message.into(),
    }
}
