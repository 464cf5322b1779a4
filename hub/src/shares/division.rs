//! How one bucket is divided among routers by demand: max-min fair, with a least share for each. Pure; called by `core`.

/// All of a bucket.
pub(crate) const WHOLE: u32 = 1_000_000;
/// What all routers have together whatever they are asked for, so that one that becomes busy can begin at once.
const LEAST: u32 = WHOLE / 20;
/// What a router is given beyond its demand, in parts of that demand, where there is enough: demand is not even.
const HEADROOM: u64 = 10;

/// The part of a bucket that serves `asked` tokens a second, in the same unit as `rate`, with some headroom.
pub(crate) fn wanted(asked: u64, rate: u64) -> u32 {
    if asked == 0 {
        return 0;
    }
    let asked = u128::from(asked.saturating_add(asked / HEADROOM));
    // Of a bucket that is not filled up any part is too little.
    let wanted = (asked * u128::from(WHOLE)).div_ceil(u128::from(rate.max(1)));
    u32::try_from(wanted).unwrap_or(WHOLE).min(WHOLE)
}

/// Divides `budget` among those who want so much each. Nothing of it is left over; nobody gets less than the least share,
/// nor less than it wants unless others, who want more, get no more than it does.
pub(crate) fn divide(budget: u32, wanted: &[u32]) -> Vec<u32> {
    let Some(count) = u32::try_from(wanted.len()).ok().filter(|count| *count > 0) else {
        return Vec::new();
    };
    let least = (LEAST / count).min(budget / count);
    let mut order: Vec<_> = (0..wanted.len()).collect();
    order.sort_by_key(|place| wanted[*place]);
    let mut shares = vec![0; wanted.len()];
    let (mut left, mut waiting) = (budget, count);
    for place in order {
        // Whoever wants less than an equal part of what is left gets that; the others divide the rest.
        shares[place] = wanted[place].max(least).min(left / waiting);
        left -= shares[place];
        waiting -= 1;
    }
    let (each, odd) = (left / count, left % count);
    for (share, place) in shares.iter_mut().zip(0..) {
        *share += each + u32::from(place < odd);
    }
    shares
}

/// As [`divide`], where less than `least` is worth nothing: a request takes more tokens than that may hold. Who wants some
/// has that first. With too little for all of them it is given to as many as there is enough for, in turns; what is left, to all.
pub(crate) fn divide_useful(budget: u32, wanted: &[u32], least: u32, turn: u64) -> Vec<u32> {
    let mut shares = divide(budget, wanted);
    let is_enough = |(share, wanted): (&u32, &u32)| *wanted == 0 || *share >= least;
    if shares.iter().zip(wanted).all(is_enough) {
        return shares;
    }
    let count = wanted.len();
    let enough = usize::try_from(budget / least.max(1)).unwrap_or(count);
    let from = usize::try_from(turn % (count.max(1) as u64)).unwrap_or_default();
    shares.fill(0);
    let wanting = (from..count).chain(0..from).filter(|place| wanted[*place] > 0);
    for place in wanting.take(enough) {
        shares[place] = least;
    }
    let left = budget - shares.iter().sum::<u32>();
    let further: Vec<_> = wanted
        .iter()
        .zip(&shares)
        .map(|(wanted, has)| wanted.saturating_sub(*has))
        .collect();
    for (share, more) in shares.iter_mut().zip(divide(left, &further)) {
        *share += more;
    }
    shares
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn demand_decides_and_nobody_is_left_out() {
        assert_eq!(divide(WHOLE, &[0, 0, 0, 0]), [WHOLE / 4; 4]);
        assert_eq!(divide(WHOLE, &[WHOLE, 0]), [975_000, 25_000]);
        assert_eq!(divide(WHOLE, &[600_000, 600_000, 100_000]), [450_000, 450_000, 100_000]);
        assert_eq!(
            divide(WHOLE, &[100_000, 300_000]),
            [400_000, 600_000],
            "what nobody wants is divided"
        );
        assert_eq!(divide(1, &[WHOLE, WHOLE]).iter().sum::<u32>(), 1);
        assert!(divide(WHOLE, &[]).is_empty());
    }

    #[test]
    fn what_is_wanted_is_a_part_of_the_rate() {
        assert_eq!(wanted(0, 0), 0);
        assert_eq!(wanted(1, 0), WHOLE, "of a bucket that is never filled up");
        assert_eq!(wanted(50_000, 100_000), 550_000);
        assert_eq!(wanted(u64::MAX, 1), WHOLE);
    }

    #[test]
    fn what_is_too_little_is_given_to_nobody_who_could_have_enough() {
        // A bucket of one token, and of two.
        assert_eq!(divide_useful(WHOLE, &[1, 1, 0], WHOLE, 0), [WHOLE, 0, 0]);
        assert_eq!(divide_useful(WHOLE, &[1, 1, 0], WHOLE, 1), [0, WHOLE, 0]);
        assert_eq!(divide_useful(WHOLE, &[1, 1, 0], WHOLE, 2), [WHOLE, 0, 0]);
        assert_eq!(
            divide_useful(WHOLE, &[1, 1, 1], WHOLE / 2, 2),
            [WHOLE / 2, 0, WHOLE / 2]
        );
        assert_eq!(
            divide_useful(WHOLE, &[WHOLE, 1, 0], WHOLE / 4, 0),
            [716_668, 266_666, 16_666]
        );
    }

    proptest! {
        #[test]
        fn whoever_wants_some_has_a_turn(
            budget in 0..=WHOLE, wanted in vec(prop_oneof![Just(0), 1..=WHOLE], 1..12), least in 1..=WHOLE,
        ) {
            let rounds = u64::try_from(wanted.len()).unwrap();
            let turns: Vec<_> = (0..rounds).map(|turn| divide_useful(budget, &wanted, least, turn)).collect();
            for shares in &turns {
                prop_assert_eq!(shares.iter().sum::<u32>(), budget);
            }
            for (place, wanted) in wanted.iter().enumerate() {
                let served = turns.iter().any(|shares| shares[place] >= least);
                prop_assert!(served || *wanted == 0 || budget < least);
            }
        }

        #[test]
        fn all_is_divided_and_fairly(budget in 0..=WHOLE, wanted in vec(prop_oneof![Just(0), 0..=WHOLE], 1..12)) {
            let shares = divide(budget, &wanted);
            prop_assert_eq!(shares.iter().sum::<u32>(), budget);
            let count = u32::try_from(wanted.len()).unwrap();
            let fair = budget / count;
            let most = shares.iter().max().copied().unwrap();
            for (share, wanted) in shares.iter().zip(&wanted) {
                prop_assert!(*share >= (LEAST / count).min(fair));
                prop_assert!(*share >= fair.min(*wanted));
                // Whoever is short has as much as anybody, but for rounding.
                prop_assert!(share >= wanted || share + count >= most);
            }
        }
    }
}
