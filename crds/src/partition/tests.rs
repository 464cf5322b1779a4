//! Laws of the partition over random roots and edits of them.
//!
//! What must move is counted here once more, by trying every partition there is (`minimum`), so that the fewest is the fewest.

use proptest::prelude::*;

use super::*;

/// Some pairs of up to four clusters.
fn part(clusters: usize, buckets: u16) -> impl Strategy<Value = Part> {
    let some = prop::collection::btree_set(0..buckets, 0..=usize::from(buckets));
    prop::collection::vec(some, 0..=clusters).prop_map(|clusters| {
        let mut part = Part::default();
        for (index, buckets) in clusters.into_iter().enumerate() {
            part.add(&format!("c{index}"), &buckets.into_iter().collect());
        }
        part
    })
}

/// A partition of some pairs among some shards, not necessarily an even one.
fn before(clusters: usize, buckets: u16, sizes: usize) -> impl Strategy<Value = Vec<Part>> {
    let owners = prop::collection::vec(0..sizes, clusters * usize::from(buckets));
    (part(clusters, buckets), owners, 0..=sizes).prop_map(|(pairs, owners, size)| {
        let mut parts = vec![Part::default(); size];
        for ((cluster, bucket), owner) in pairs.pairs().zip(owners) {
            if let Some(part) = parts.get_mut(owner) {
                part.add(cluster, &[bucket].into_iter().collect());
            }
        }
        parts
    })
}

fn objects(clusters: usize, buckets: u16) -> impl Strategy<Value = Objects> {
    let count = prop_oneof![0..40_u64, 0..2000_u64, Just(100_000_u64)];
    let of_cluster = prop::collection::btree_map(0..buckets, count, 0..=usize::from(buckets));
    prop::collection::vec(of_cluster, clusters).prop_map(|all| {
        let named = all.into_iter().enumerate();
        named.map(|(index, counts)| (format!("c{index}"), counts)).collect()
    })
}

/// Every pair has exactly one owner, and nothing else has one.
fn check_partition(pairs: &Part, size: usize, after: &[Part]) -> Result<(), TestCaseError> {
    prop_assert_eq!(after.len(), size);
    let owned: Vec<_> = after.iter().flat_map(Part::pairs).collect();
    let distinct: BTreeSet<_> = owned.iter().copied().collect();
    prop_assert_eq!(distinct.len(), owned.len(), "a pair with two owners");
    prop_assert_eq!(distinct, pairs.pairs().collect::<BTreeSet<_>>());
    Ok(())
}

fn weight((cluster, bucket): (&str, u16), objects: &Objects) -> u64 {
    objects[cluster].get(&bucket).copied().unwrap_or(0) + PAIR_WEIGHT
}

/// Whether no part, its lightest pair aside, weighs more than so many thousandths of another.
fn within(parts: &[Part], objects: &Objects, permille: u64) -> bool {
    let loads = parts
        .iter()
        .map(|part| part.pairs().map(|pair| weight(pair, objects)).sum::<u64>());
    let least = loads.min().unwrap_or(0);
    parts.iter().all(|part| {
        let weights: Vec<_> = part.pairs().map(|pair| weight(pair, objects)).collect();
        let rest = weights.iter().sum::<u64>() - weights.iter().min().copied().unwrap_or(0);
        rest * 1000 <= least * permille
    })
}

/// All ways to give each of so many pairs one of `size` owners.
fn all_assignments(pairs: usize, size: usize) -> impl Iterator<Item = Vec<usize>> {
    let count = size.pow(u32::try_from(pairs).unwrap());
    (0..count).map(move |number| {
        let digits = (0..pairs).scan(number, |rest, _| {
            let digit = *rest % size;
            *rest /= size;
            Some(digit)
        });
        digits.collect()
    })
}

/// The fewest pairs that any partition moves which `holds`, found by trying all.
fn minimum(pairs: &Part, size: usize, before: &[Part], holds: impl Fn(&[Part]) -> bool) -> usize {
    let all: Vec<_> = pairs.pairs().collect();
    let partitions = all_assignments(all.len(), size).map(|owners| {
        let mut parts = vec![Part::default(); size];
        for ((cluster, bucket), owner) in all.iter().zip(owners) {
            parts[owner].add(cluster, &[*bucket].into_iter().collect());
        }
        parts
    });
    let moved = partitions
        .filter(|parts| holds(parts))
        .map(|parts| moves(before, &parts).len());
    moved.min().unwrap()
}

pub(super) fn even(parts: &[Part]) -> bool {
    let sizes = || parts.iter().map(Part::len);
    sizes().max().unwrap_or(0) - sizes().min().unwrap_or(0) <= 1
}

proptest! {
    #[test]
    fn an_even_partition_is_whole_and_even(pairs in part(4, 64), before in before(4, 64, 70), size in 1..80_usize) {
        let after = share_out(&pairs, size, &before, None);
        check_partition(&pairs, size, &after)?;
        prop_assert!(even(&after));
        // Nothing moves for nothing.
        prop_assert_eq!(share_out(&pairs, size, &after, None), after);
    }

    /// Counted: of those that had more than the quotient, as many as there is a remainder keep one more.
    #[test]
    fn no_more_pairs_move_than_must(pairs in part(4, 64), before in before(4, 64, 70), size in 1..80_usize) {
        let after = share_out(&pairs, size, &before, None);
        let (each, mut more) = (pairs.len() / size, pairs.len() % size);
        let mut must = 0;
        for (index, part) in before.iter().enumerate() {
            let had = part.pairs().filter(|pair| pairs.contains(*pair)).count();
            let mut kept = if index < size { had.min(each) } else { 0 };
            if index < size && had > each && more > 0 {
                more -= 1;
                kept += 1;
            }
            must += had - kept;
        }
        prop_assert_eq!(moves(&before, &after).len(), must);
    }

    #[test]
    fn no_partition_moves_fewer(pairs in part(2, 4), before in before(2, 4, 4), size in 1..4_usize) {
        let after = share_out(&pairs, size, &before, None);
        prop_assert_eq!(moves(&before, &after).len(), minimum(&pairs, size, &before, even));
    }

    #[test]
    fn a_partition_by_weight_is_whole_and_bounded(
        pairs in part(3, 32), before in before(3, 32, 20), size in 1..24_usize, objects in objects(3, 32),
    ) {
        let after = share_out(&pairs, size, &before, Some(&objects));
        check_partition(&pairs, size, &after)?;
        prop_assert!(within(&after, &objects, TOLERATED_PERMILLE));
        prop_assert_eq!(share_out(&pairs, size, &after, Some(&objects)), after);
    }

    /// Either nothing moves, or each pair that does is needed for what is promised.
    #[test]
    fn each_move_by_weight_is_needed(
        pairs in part(3, 16), before in before(3, 16, 8), size in 1..8_usize, objects in objects(3, 16),
    ) {
        let after = share_out(&pairs, size, &before, Some(&objects));
        let moved = moves(&before, &after);
        let moved: Vec<_> = moved.into_iter().filter(|(.., from, _)| *from < size).collect();
        prop_assert!(moved.is_empty() || within(&after, &objects, SETTLED_PERMILLE));
        for (cluster, bucket, from, to) in moved {
            let mut back = after.clone();
            let bucket = [bucket].into_iter().collect();
            let left = back[to].of(cluster).without(&bucket);
            back[to].0.insert(cluster.to_owned(), left);
            back[from].add(cluster, &bucket);
            prop_assert!(!within(&back, &objects, SETTLED_PERMILLE), "{cluster}/{bucket} moved for nothing");
        }
    }

    /// 15 % up or down, each bucket by itself.
    #[test]
    fn counts_that_wobble_move_nothing(
        pairs in part(3, 32), size in 1..24_usize, objects in objects(3, 32), wobble in prop::collection::vec(-15..=15_i64, 96),
    ) {
        let settled = share_out(&pairs, size, &[], Some(&objects));
        let mut wobbled = objects.clone();
        let counts = wobbled.values_mut().flat_map(BTreeMap::values_mut);
        for (count, percent) in counts.zip(wobble) {
            *count = count.saturating_add_signed(i64::try_from(*count).unwrap() * percent / 100);
        }
        prop_assert_eq!(share_out(&pairs, size, &settled, Some(&wobbled)), settled);
    }
}

#[test]
fn a_first_partition_is_in_ranges() {
    let pairs: Part = (0..32).map(|bucket| ("east", bucket)).collect();
    let parts = share_out(&pairs, 10, &[], None);
    let ranges: Vec<_> = parts.iter().map(|part| part.of("east").to_string()).collect();
    assert_eq!(
        ranges,
        [
            "0-3", "4-7", "8-10", "11-13", "14-16", "17-19", "20-22", "23-25", "26-28", "29-31"
        ]
    );
}

#[test]
fn one_shard_more_takes_its_share_and_nothing_else_moves() {
    let pairs: Part = (0..1024).map(|bucket| ("east", bucket)).collect();
    let before = share_out(&pairs, 64, &[], None);
    let after = share_out(&pairs, 65, &before, None);
    let moved = moves(&before, &after);
    assert_eq!(moved.len(), 1024 / 65);
    assert!(moved.iter().all(|(.., to)| *to == 64), "{moved:?}");
}

/// Light pairs are moved to whom has least before a heavy one comes there, and then need not have moved.
#[test]
fn what_turns_out_not_to_be_needed_is_taken_back() {
    let part = |pairs: &[(&'static str, u16)]| -> Part { pairs.iter().copied().collect() };
    let heavy = [
        ("c0", 4),
        ("c0", 5),
        ("c0", 6),
        ("c0", 8),
        ("c1", 3),
        ("c1", 4),
        ("c2", 12),
    ];
    let mut objects = Objects::from(["c0", "c1", "c2"].map(|cluster| (cluster.to_owned(), BTreeMap::new())));
    for (cluster, bucket) in heavy {
        objects.get_mut(cluster).unwrap().insert(bucket, 100_000);
    }
    let pairs = part(&[&heavy[..], &[("c2", 1), ("c2", 3), ("c2", 5)]].concat());
    let before = [
        part(&[("c1", 3), ("c2", 3), ("c2", 5)]),
        Part::default(),
        Part::default(),
        part(&[("c1", 4), ("c2", 12)]),
    ];
    let after = share_out(&pairs, 7, &before, Some(&objects));
    let moved: Vec<_> = moves(&before, &after).into_iter().map(|(.., from, _)| from).collect();
    assert_eq!(moved, [3]);
}
