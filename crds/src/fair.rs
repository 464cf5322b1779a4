//! Shares of a bound that several have together: who asks for little gets it, and the others get equally much.
//!
//! Pure. What one author asks for must not take the room of others: an agent shares out how many Pods it tells, the hub what
//! it orders of an agent, both by the namespaces that ask.

/// The most that each of `asked` may have, so that they have `all` together at most: those that ask for less lose nothing while
/// others have more. [`usize::MAX`] if all get what they ask for.
///
/// ```
/// use portolan_crds::fair::most_of_each;
///
/// assert_eq!(most_of_each([3, 500, 900], 303), 150);
/// assert_eq!(most_of_each([3, 500], 503), usize::MAX);
/// ```
pub fn most_of_each(asked: impl IntoIterator<Item = usize>, all: usize) -> usize {
    let mut asked: Vec<usize> = asked.into_iter().collect();
    asked.sort_unstable();
    let mut left = all;
    for (at, size) in asked.iter().enumerate() {
        let sharing = asked.len() - at;
        // What is left is shared by those that ask for as much as this one, or more.
        if size.saturating_mul(sharing) > left {
            return left / sharing;
        }
        left -= size;
    }
    usize::MAX
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_bound_holds_is_used_and_takes_from_the_largest_alone(asked in prop::collection::vec(0_usize..200, 0..12), all in 0_usize..600) {
            let most = most_of_each(asked.iter().copied(), all);
            let given: usize = asked.iter().map(|size| (*size).min(most)).sum();
            prop_assert!(given <= all);
            let wanted: usize = asked.iter().sum();
            if wanted <= all {
                prop_assert_eq!(most, usize::MAX);
            } else {
                let cut = asked.iter().filter(|size| **size > most).count();
                prop_assert!(all - given < cut, "less is left than would be one more for each that is cut");
            }
        }
    }
}
