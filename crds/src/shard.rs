//! Namespace → bucket. Agents label by it, the hub compiles by it, routers filter by it: they must agree to the bit.

mod buckets;

use serde::Serialize;
use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

pub use buckets::{BucketSet, BucketSetError};

/// Buckets unless the hub is configured otherwise.
pub const DEFAULT_BUCKETS: u16 = 32;
/// Most buckets a hub may be configured with.
pub const MAX_BUCKETS: u16 = 1024;
/// Buckets of the original, which knew no other number.
pub const LEGACY_BUCKETS: u16 = 32;

/// How a namespace's name becomes a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub enum BucketAlgorithm {
    /// xxh3-64 (seed 0) of the name's bytes, modulo the number of buckets.
    #[default]
    Xxh3,
    /// Sum of the name's code points modulo 32, as the original labelled its fleets. Insensitive to order: `ab` and
    /// `ba` share a bucket.
    Legacy,
}

/// A number of buckets that cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BucketingError {
    /// The number of buckets is outside 1..=1024.
    #[error("{0} buckets: must be from 1 to {MAX_BUCKETS}")]
    OutOfRange(u16),
    /// The legacy hash is defined for 32 buckets only.
    #[error("{0} buckets: the legacy algorithm has exactly {LEGACY_BUCKETS}")]
    LegacySize(u16),
}

/// The hub-wide rule that assigns namespaces to buckets. Changing it relabels the fleet.
///
/// ```
/// use portolan_crds::{BucketAlgorithm, Bucketing};
///
/// assert_eq!(Bucketing::legacy().bucket_of("default"), 5);
/// let rule = Bucketing::new(BucketAlgorithm::Xxh3, 1024)?;
/// assert!(rule.bucket_of("default") < 1024);
/// # Ok::<(), portolan_crds::shard::BucketingError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bucketing {
    algorithm: BucketAlgorithm,
    buckets: u16,
}

impl Bucketing {
    /// A checked rule: 1 to 1024 buckets, and exactly 32 for the legacy algorithm.
    pub fn new(algorithm: BucketAlgorithm, buckets: u16) -> Result<Self, BucketingError> {
        match algorithm {
            _ if !(1..=MAX_BUCKETS).contains(&buckets) => Err(BucketingError::OutOfRange(buckets)),
            BucketAlgorithm::Legacy if buckets != LEGACY_BUCKETS => Err(BucketingError::LegacySize(buckets)),
            _ => Ok(Self { algorithm, buckets }),
        }
    }

    /// The rule of the original ControllerMesh: the sum of code points over 32 buckets.
    pub const fn legacy() -> Self {
        Self {
            algorithm: BucketAlgorithm::Legacy,
            buckets: LEGACY_BUCKETS,
        }
    }

    /// The hash in use.
    pub const fn algorithm(self) -> BucketAlgorithm {
        self.algorithm
    }

    /// Number of buckets; they are numbered from 0.
    pub const fn buckets(self) -> u16 {
        self.buckets
    }

    /// Bucket of `namespace`, less than [`Self::buckets`].
    pub fn bucket_of(self, namespace: &str) -> u16 {
        let modulus = u64::from(self.buckets);
        let bucket = match self.algorithm {
            BucketAlgorithm::Xxh3 => xxh3_64(namespace.as_bytes()) % modulus,
            BucketAlgorithm::Legacy => namespace.chars().map(u64::from).sum::<u64>() % modulus,
        };
        u16::try_from(bucket).expect("a remainder of a u16 fits a u16")
    }
}

impl Default for Bucketing {
    fn default() -> Self {
        Self {
            algorithm: BucketAlgorithm::Xxh3,
            buckets: DEFAULT_BUCKETS,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legacy_vectors_of_the_original() {
        let vectors = [
            ("a", 1),
            ("default", 5),
            ("ns-a", 15),
            ("ns-b", 16),
            ("foo-31", 21),
            ("kube-system", 25),
            ("operator-demo", 30),
        ];
        for (namespace, bucket) in vectors {
            assert_eq!(Bucketing::legacy().bucket_of(namespace), bucket, "{namespace}");
        }
    }

    /// From the reference implementation of xxHash: labels outlive any version of a crate.
    #[test]
    fn xxh3_vectors() {
        let vectors = [
            ("a", 31, 543),
            ("default", 26, 26),
            ("ns-a", 27, 699),
            ("ns-b", 9, 745),
            ("foo-31", 27, 27),
            ("kube-system", 16, 272),
            ("operator-demo", 1, 769),
            ("ns-c", 0, 672),
        ];
        let most = Bucketing::new(BucketAlgorithm::Xxh3, MAX_BUCKETS).unwrap();
        for (namespace, of_32, of_1024) in vectors {
            let buckets = (Bucketing::default().bucket_of(namespace), most.bucket_of(namespace));
            assert_eq!(buckets, (of_32, of_1024), "{namespace}");
        }
    }

    #[test]
    fn sizes_that_cannot_be_served_are_refused() {
        assert_eq!(
            Bucketing::new(BucketAlgorithm::Xxh3, 0),
            Err(BucketingError::OutOfRange(0))
        );
        assert_eq!(
            Bucketing::new(BucketAlgorithm::Xxh3, 1025),
            Err(BucketingError::OutOfRange(1025))
        );
        assert_eq!(
            Bucketing::new(BucketAlgorithm::Legacy, 64),
            Err(BucketingError::LegacySize(64))
        );
        assert!(Bucketing::new(BucketAlgorithm::Xxh3, 1024).is_ok());
        assert!(Bucketing::new(BucketAlgorithm::Legacy, 31).is_err());
    }
}
