//! What a root's canary takes from the other shards.

use std::collections::BTreeSet;

use xxhash_rust::xxh3::xxh3_64;

use super::invalid;
use super::territory::no_such_bucket;
use crate::labels::system_namespace;
use crate::shard::{BucketSet, Bucketing};
use crate::sharding::{Canary, Root};
use crate::validate::Problem;

/// What the canary takes, in all clusters: some buckets, and by name some namespaces of others.
#[derive(Debug, Default)]
pub(super) struct Taken {
    pub(super) buckets: BucketSet,
    pub(super) names: BTreeSet<String>,
}

/// The canary of `root`, unless it is off.
pub(super) fn canary(root: &Root) -> Option<&Canary> {
    root.canary
        .as_ref()
        .filter(|canary| canary.replicas.is_some_and(|replicas| replicas > 0))
}

impl Taken {
    /// The union of what the canary's criteria say.
    pub(super) fn new(root: &Root, bucketing: Bucketing) -> Self {
        let Some(canary) = canary(root) else {
            return Self::default();
        };
        let listed = canary.in_shard_hash.iter().filter_map(|bucket| bucket.parse().ok());
        let percent = u16::try_from(canary.percent.unwrap_or(0)).unwrap_or(0);
        let buckets = listed
            .collect::<BucketSet>()
            .or(&share(&root.prefix, percent, bucketing));
        let names = canary.in_namespaces.iter();
        let names = names.filter(|name| !buckets.contains(bucketing.bucket_of(name)));
        Self {
            names: names.cloned().collect(),
            buckets,
        }
    }

    /// With the whole buckets of what it takes by name, where it takes buckets too. One selector of labels cannot say "of this
    /// bucket, or of this name". Returns the names for which that was done.
    pub(super) fn widen(&mut self, bucketing: Bucketing) -> BTreeSet<String> {
        if self.buckets.is_empty() {
            return BTreeSet::new();
        }
        let names = std::mem::take(&mut self.names);
        for name in &names {
            self.buckets.insert(bucketing.bucket_of(name));
        }
        names
    }
}

/// So many percent of all buckets, rounded up. In an order that is the root's own, so that not every operator tries its
/// changes on the same namespaces; a larger share begins with the smaller one.
fn share(prefix: &str, percent: u16, bucketing: Bucketing) -> BucketSet {
    let count = (usize::from(bucketing.buckets()) * usize::from(percent)).div_ceil(100);
    let mut order: Vec<u16> = (0..bucketing.buckets()).collect();
    order.sort_by_key(|bucket| (xxh3_64(format!("{prefix}/{bucket}").as_bytes()), *bucket));
    order.into_iter().take(count).collect()
}

/// Criteria that cannot be met: buckets that the hub does not have, system namespaces that the root does not name.
pub(super) fn problems(canary: &Canary, bucketing: Bucketing, names: &BTreeSet<&str>) -> Vec<Problem> {
    let listed = canary.in_shard_hash.iter().enumerate();
    let listed = listed.filter_map(|(index, text)| {
        let beyond = text
            .parse::<u16>()
            .ok()
            .filter(|bucket| *bucket >= bucketing.buckets())?;
        let field = format!("spec.root.canary.inShardHash[{index}]");
        Some(invalid(field, no_such_bucket(beyond, bucketing)))
    });
    let named = canary.in_namespaces.iter().enumerate();
    let named = named.filter(|(_, name)| system_namespace(name) && !names.contains(name.as_str()));
    let named = named.map(|(index, name)| {
        let field = format!("spec.root.canary.inNamespaces[{index}]");
        let message = format!(
            "{name:?} is a system namespace, which the root does not have: name it in spec.clusters[].namespaces too"
        );
        invalid(field, message)
    });
    listed.chain(named).collect()
}
