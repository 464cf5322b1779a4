//! Types of `portolan_crds` as they travel, and back where nothing can be wrong with them.

use portolan_crds::{BucketAlgorithm, Bucketing, GroupResource};

use crate::v1;

impl From<v1::KindRef> for GroupResource {
    fn from(kind: v1::KindRef) -> Self {
        Self::new(kind.group, kind.resource)
    }
}

impl From<GroupResource> for v1::KindRef {
    fn from(kind: GroupResource) -> Self {
        Self {
            group: kind.group,
            resource: kind.resource,
        }
    }
}

impl From<Bucketing> for v1::Bucketing {
    fn from(bucketing: Bucketing) -> Self {
        let algorithm = match bucketing.algorithm() {
            BucketAlgorithm::Xxh3 => v1::BucketAlgorithm::Xxh3,
            BucketAlgorithm::Legacy => v1::BucketAlgorithm::Legacy,
        };
        Self {
            algorithm: algorithm.into(),
            buckets: u32::from(bucketing.buckets()),
        }
    }
}
