//! How many objects of one kind are in each bucket: what roots are shared out by that ask for `balance: Objects`. Pure.
//!
//! Counted one by one as objects come and go, and anew at the end of each list. Caller: `sweep::inventory`.

use portolan_crds::shard::Bucketing;

/// Objects in each bucket, labelled or not.
#[derive(Debug)]
pub(super) struct Buckets {
    bucketing: Bucketing,
    counts: Vec<u64>,
}

impl Buckets {
    pub(super) fn new(bucketing: Bucketing) -> Self {
        Self {
            bucketing,
            counts: vec![0; bucketing.buckets().into()],
        }
    }

    /// An object is there that was not.
    pub(super) fn add(&mut self, namespace: &str) {
        *self.of(namespace) += 1;
    }

    /// An object is gone that was there.
    pub(super) fn remove(&mut self, namespace: &str) {
        *self.of(namespace) -= 1;
    }

    /// All objects are these: so many in each namespace.
    pub(super) fn recount<'a>(&mut self, sizes: impl Iterator<Item = (&'a str, usize)>) {
        self.counts.fill(0);
        for (namespace, size) in sizes {
            *self.of(namespace) += size as u64;
        }
    }

    /// About how many there are in each.
    pub(super) fn told(&self) -> Vec<u64> {
        self.counts.iter().copied().map(roughly).collect()
    }

    fn of(&mut self, namespace: &str) -> &mut u64 {
        let bucket = self.bucketing.bucket_of(namespace);
        &mut self.counts[usize::from(bucket)]
    }
}

/// The count, rounded down to eighths of its leading power of two, so that it changes seldom; below 16 it is exact.
fn roughly(count: u64) -> u64 {
    let dropped = count.checked_ilog2().unwrap_or(0).saturating_sub(3);
    count >> dropped << dropped
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_told_is_less_by_an_eighth_at_most(count: u64, bits in 0_u32..64) {
            let count = count >> bits;
            let told = roughly(count);
            prop_assert!(told <= count && count - told <= told / 8);
            prop_assert_eq!(roughly(told), told);
            prop_assert_eq!(told == 0, count == 0);
            prop_assert!(count >= 16 || told == count);
        }
    }
}
