//! A set of buckets, as it is written in specs: numbers and ranges such as `17` and `0-15`.

use std::collections::BTreeSet;
use std::fmt;

use thiserror::Error;

use super::MAX_BUCKETS;

/// Some buckets of a hub. Written as the fewest ranges, ascending.
///
/// ```
/// use portolan_crds::shard::BucketSet;
///
/// let buckets = BucketSet::parse(["17", "0-3"])?;
/// assert!(buckets.contains(2) && !buckets.contains(4));
/// assert_eq!(buckets.ranges(), ["0-3", "17"]);
/// # Ok::<(), portolan_crds::shard::BucketSetError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BucketSet(BTreeSet<u16>);

/// Text that is no set of buckets.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BucketSetError {
    /// Neither a number nor a range of numbers that buckets have.
    #[error("{0:?} is no bucket and no range: write a number from 0 to {max}, or two of them as in \"0-15\", the lower first", max = MAX_BUCKETS - 1)]
    Item(String),
    /// A bucket stands twice.
    #[error("bucket {bucket} of {item:?} is there already: remove it from one of them")]
    Twice {
        /// What it stands in for the second time.
        item: String,
        /// The bucket.
        bucket: u16,
    },
}

impl BucketSet {
    /// Reads numbers and ranges, in any order, each bucket at most once.
    pub fn parse<T: AsRef<str>>(items: impl IntoIterator<Item = T>) -> Result<Self, BucketSetError> {
        let mut all = BTreeSet::new();
        for item in items {
            let item = item.as_ref();
            let (first, last) = range(item).ok_or_else(|| BucketSetError::Item(item.to_owned()))?;
            for bucket in first..=last {
                if !all.insert(bucket) {
                    let item = item.to_owned();
                    return Err(BucketSetError::Twice { item, bucket });
                }
            }
        }
        Ok(Self(all))
    }

    /// All buckets of a hub that has this many.
    pub fn all(buckets: u16) -> Self {
        (0..buckets).collect()
    }

    /// The fewest numbers and ranges that say the same, ascending.
    pub fn ranges(&self) -> Vec<String> {
        let mut runs = Vec::<(u16, u16)>::new();
        for bucket in self.iter() {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == bucket => *last = bucket,
                _ => runs.push((bucket, bucket)),
            }
        }
        let written = runs.into_iter().map(|(first, last)| {
            if first == last {
                first.to_string()
            } else {
                format!("{first}-{last}")
            }
        });
        written.collect()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of buckets.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has `bucket`.
    pub fn contains(&self, bucket: u16) -> bool {
        self.0.contains(&bucket)
    }

    /// The buckets, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        self.0.iter().copied()
    }

    /// The highest bucket.
    pub fn last(&self) -> Option<u16> {
        self.0.last().copied()
    }

    /// What both have.
    pub fn and(&self, other: &Self) -> Self {
        Self(&self.0 & &other.0)
    }

    /// What either has.
    pub fn or(&self, other: &Self) -> Self {
        Self(&self.0 | &other.0)
    }

    /// What it has and `other` has not.
    pub fn without(&self, other: &Self) -> Self {
        Self(&self.0 - &other.0)
    }

    /// Adds a bucket.
    pub fn insert(&mut self, bucket: u16) {
        self.0.insert(bucket);
    }
}

impl FromIterator<u16> for BucketSet {
    fn from_iter<I: IntoIterator<Item = u16>>(buckets: I) -> Self {
        Self(buckets.into_iter().collect())
    }
}

impl fmt::Display for BucketSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.ranges().join(","))
    }
}

fn range(item: &str) -> Option<(u16, u16)> {
    let (first, last) = item.split_once('-').unwrap_or((item, item));
    let (first, last) = (number(first)?, number(last)?);
    (first <= last).then_some((first, last))
}

/// A bucket as it stands in labels: decimal, without leading zeros.
fn number(text: &str) -> Option<u16> {
    let number = text.parse::<u16>().ok()?;
    (number < MAX_BUCKETS && number.to_string() == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_no_bucket_is_refused() {
        for bad in [
            "", "-", "1-", "-1", "3-2", "1024", "0-1024", "01", "+1", "1,2", "a", "1-2-3", " 1",
        ] {
            assert_eq!(BucketSet::parse([bad]), Err(BucketSetError::Item(bad.to_owned())));
        }
    }

    #[test]
    fn a_bucket_stands_once() {
        let twice = BucketSet::parse(["0-3", "5", "2-4"]);
        let item = "2-4".to_owned();
        assert_eq!(twice, Err(BucketSetError::Twice { item, bucket: 2 }));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(buckets in prop::collection::btree_set(0..MAX_BUCKETS, 0..40)) {
            let set = BucketSet(buckets);
            prop_assert_eq!(BucketSet::parse(set.ranges()), Ok(set));
        }
    }
}
