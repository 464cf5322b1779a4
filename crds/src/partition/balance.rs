//! Shares of about the same weight, which move only when they have come apart, and then no pair for nothing.
//!
//! *Apart*: some shard, its lightest pair aside, weighs more than some other and a tolerance. (With pairs that all weigh the
//! same and no tolerance that says: their sizes differ by more than one.) There are two tolerances. Beyond the wider one
//! pairs move, until the narrower one holds; the gap between the two is how much counts may wobble without a move.

use std::collections::BTreeSet;

use super::Objects;

/// What a pair weighs beside its objects. Every namespace and watch costs something, and of a few objects more or less
/// nobody should feel anything.
pub const PAIR_WEIGHT: u64 = 16;
/// Pairs move when a shard, its lightest pair aside, weighs more than this share of another, in thousandths.
pub const TOLERATED_PERMILLE: u64 = 1500;
/// And they move until no shard, its lightest pair aside, weighs more than this share of another, in thousandths.
pub const SETTLED_PERMILLE: u64 = 1100;

/// What each pair weighs.
#[derive(Debug)]
pub(super) struct Weights {
    of: Vec<u64>,
    /// Some are guessed, since their cluster was not counted yet.
    guessed: bool,
}

/// Weighs pairs by the objects in them; those of a cluster that was not counted yet weigh as much as the others on average.
pub(super) fn weigh(pairs: &[(&str, u16)], objects: &Objects) -> Weights {
    let count = |(cluster, bucket): &(&str, u16)| {
        let of_cluster = objects.get(*cluster)?;
        let count = of_cluster.get(bucket).copied().unwrap_or(0);
        Some(count.saturating_add(PAIR_WEIGHT))
    };
    let known: Vec<Option<u64>> = pairs.iter().map(count).collect();
    let total: u128 = known.iter().flatten().map(|weight| u128::from(*weight)).sum();
    let counted = known.iter().flatten().count().max(1) as u128;
    let average = u64::try_from(total / counted).unwrap_or(u64::MAX).max(PAIR_WEIGHT);
    Weights {
        guessed: known.iter().any(Option::is_none),
        of: known.into_iter().map(|weight| weight.unwrap_or(average)).collect(),
    }
}

/// The owner of each pair, given that of before.
pub(super) fn share_out(before: Vec<Option<usize>>, size: usize, weights: &Weights) -> Vec<usize> {
    let mut scales = Scales::new(&before, size, &weights.of);
    scales.place_the_free(&before);
    let settled = scales.are_within(TOLERATED_PERMILLE) || weights.guessed;
    if !settled {
        scales.settle();
        scales.take_back(&before);
    }
    scales.owners
}

/// Shards and what they weigh, with the heaviest and the lightest at hand.
struct Scales<'a> {
    weights: &'a [u64],
    owners: Vec<usize>,
    /// What each shard has, by weight.
    pairs: Vec<BTreeSet<(u64, usize)>>,
    loads: Vec<u128>,
    /// Weight and shard.
    by_load: BTreeSet<(u128, usize)>,
    /// Weight without the lightest pair, and shard.
    by_rest: BTreeSet<(u128, usize)>,
}

/// No owner yet.
const NOBODY: usize = usize::MAX;

impl<'a> Scales<'a> {
    fn new(before: &[Option<usize>], size: usize, weights: &'a [u64]) -> Self {
        let mut scales = Self {
            weights,
            owners: vec![NOBODY; before.len()],
            pairs: vec![BTreeSet::new(); size],
            loads: vec![0; size],
            by_load: (0..size).map(|shard| (0, shard)).collect(),
            by_rest: (0..size).map(|shard| (0, shard)).collect(),
        };
        for (pair, owner) in before.iter().enumerate() {
            if let Some(owner) = owner {
                scales.put(pair, *owner);
            }
        }
        scales
    }

    /// The heaviest first, each to whom has least.
    fn place_the_free(&mut self, before: &[Option<usize>]) {
        let free = before.iter().enumerate().filter(|(_, owner)| owner.is_none());
        let mut free: Vec<usize> = free.map(|(pair, _)| pair).collect();
        free.sort_by_key(|pair| std::cmp::Reverse(self.weights[*pair]));
        for pair in free {
            let lightest = self.lightest();
            self.put(pair, lightest);
        }
    }

    /// Whether no shard, its lightest pair aside, weighs more than so many thousandths of any other.
    fn are_within(&self, permille: u64) -> bool {
        let (Some((most, _)), Some((least, _))) = (self.by_rest.last(), self.by_load.first()) else {
            return true;
        };
        most * 1000 <= least * u128::from(permille)
    }

    /// Moves pairs, from whom has most beside its lightest pair to whom has least, until the narrower tolerance holds. Each
    /// makes the two more alike, so it ends.
    fn settle(&mut self) {
        while !self.are_within(SETTLED_PERMILLE) {
            let Some(&(_, from)) = self.by_rest.last() else { return };
            let to = self.lightest();
            let apart = self.loads[from] - self.loads[to];
            let half = u64::try_from(apart / 2).unwrap_or(u64::MAX);
            // The one that makes them most alike at once; the lightest weighs less than they are apart.
            let fitting = self.pairs[from].range(..=(half, usize::MAX)).next_back();
            let Some(&(_, pair)) = fitting.or(self.pairs[from].first()) else {
                return;
            };
            self.put(pair, to);
        }
    }

    /// Gives pairs back to whom had them before, as far as the narrower tolerance goes on holding.
    fn take_back(&mut self, before: &[Option<usize>]) {
        loop {
            let mut any = false;
            for (pair, owner) in before.iter().enumerate() {
                let now = self.owners[pair];
                let Some(owner) = owner.filter(|owner| *owner != now) else {
                    continue;
                };
                self.put(pair, owner);
                if self.are_within(SETTLED_PERMILLE) {
                    any = true;
                } else {
                    self.put(pair, now);
                }
            }
            if !any {
                return;
            }
        }
    }

    fn lightest(&self) -> usize {
        self.by_load.first().map_or(0, |(_, shard)| *shard)
    }

    fn put(&mut self, pair: usize, to: usize) {
        let weight = self.weights[pair];
        let from = std::mem::replace(&mut self.owners[pair], to);
        if from != NOBODY {
            self.off_the_scales(from);
            self.pairs[from].remove(&(weight, pair));
            self.loads[from] -= u128::from(weight);
            self.on_the_scales(from);
        }
        self.off_the_scales(to);
        self.pairs[to].insert((weight, pair));
        self.loads[to] += u128::from(weight);
        self.on_the_scales(to);
    }

    fn off_the_scales(&mut self, shard: usize) {
        self.by_load.remove(&(self.loads[shard], shard));
        self.by_rest.remove(&(self.rest(shard), shard));
    }

    fn on_the_scales(&mut self, shard: usize) {
        self.by_load.insert((self.loads[shard], shard));
        self.by_rest.insert((self.rest(shard), shard));
    }

    /// What a shard weighs without its lightest pair.
    fn rest(&self, shard: usize) -> u128 {
        let lightest = self.pairs[shard].first().map_or(0, |(weight, _)| u128::from(*weight));
        self.loads[shard] - lightest
    }
}
