//! What a root spans: of each member cluster the namespaces that it names, and those that it chooses by their labels, by
//! bucket.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::{Part, invalid};
use crate::selector::Selector;
use crate::shard::{BucketSet, Bucketing};
use crate::sharding::{ClusterEntry, ShardingConfigSpec};
use crate::validate::Problem;

/// The clusters of a root, in its order; those of one entry by name.
#[derive(Debug, Default)]
pub(super) struct Territory {
    pub(super) grounds: Vec<Ground>,
}

/// One cluster of a root.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) cluster: String,
    /// Exact names, by their buckets: each child looks at its own alone.
    names: BTreeMap<u16, BTreeSet<String>>,
    /// What is chosen by labels. No bucket is in two.
    pub(super) scopes: Vec<Scope>,
    pub(super) is_default: bool,
}

/// Namespaces of some buckets that are chosen by their labels.
#[derive(Debug)]
pub(super) struct Scope {
    pub(super) selector: LabelSelector,
    pub(super) buckets: BucketSet,
    /// `selector`, to compare it.
    meaning: Selector,
    /// Index of the entry that chooses them.
    entry: usize,
}

impl Territory {
    /// What `spec` spans of `members`, which are told with their labels. Those that it names are spanned whether or not
    /// they are among them.
    pub(super) fn new(
        spec: &ShardingConfigSpec,
        members: &BTreeMap<String, BTreeMap<String, String>>,
        bucketing: Bucketing,
    ) -> (Self, Vec<Problem>) {
        let mut territory = Self::default();
        let mut problems = Vec::new();
        for (index, entry) in spec.clusters.iter().enumerate() {
            let buckets = entry.bucket_set().ok().flatten();
            let buckets = buckets.unwrap_or_else(|| BucketSet::all(bucketing.buckets()));
            if let Some(beyond) = buckets.last().filter(|last| *last >= bucketing.buckets()) {
                let field = format!("spec.clusters[{index}].buckets");
                problems.push(invalid(field, no_such_bucket(beyond, bucketing)));
                continue;
            }
            for cluster in chosen(entry, members) {
                let ground = territory.ground(cluster);
                for name in &entry.namespaces {
                    let of_bucket = ground.names.entry(bucketing.bucket_of(name)).or_default();
                    of_bucket.insert(name.clone());
                }
                ground.is_default |= entry.default;
                problems.extend(ground.add(index, entry, buckets.clone()));
            }
        }
        (territory, problems)
    }

    /// The pairs: all buckets that are chosen by labels, and those of names that are not in `names_aside`.
    pub(super) fn pairs(&self, names_aside: &BTreeSet<String>) -> Part {
        let mut part = Part::default();
        for ground in &self.grounds {
            for scope in &ground.scopes {
                part.add(&ground.cluster, &scope.buckets);
            }
            let named = ground.names.iter().filter(|(_, names)| !names.is_subset(names_aside));
            let named = named.map(|(bucket, _)| *bucket).collect();
            part.add(&ground.cluster, &named);
        }
        part
    }

    fn ground(&mut self, cluster: &str) -> &mut Ground {
        let at = self.grounds.iter().position(|ground| ground.cluster == cluster);
        let at = at.unwrap_or_else(|| {
            self.grounds.push(Ground {
                cluster: cluster.to_owned(),
                names: BTreeMap::new(),
                scopes: Vec::new(),
                is_default: false,
            });
            self.grounds.len() - 1
        });
        &mut self.grounds[at]
    }
}

impl Ground {
    /// Exact names of these buckets, in order.
    pub(super) fn names_in(&self, buckets: &BucketSet) -> BTreeSet<&String> {
        let names = buckets.iter().filter_map(|bucket| self.names.get(&bucket));
        names.flatten().collect()
    }

    /// Whether it names this one, which has this bucket.
    pub(super) fn has_name(&self, name: &String, bucket: u16) -> bool {
        self.names.get(&bucket).is_some_and(|names| names.contains(name))
    }

    /// Adds what an entry chooses by labels. What an earlier entry chooses is chosen once, by the wider of the two selectors;
    /// where neither is, nobody could write down which namespaces a bucket has.
    fn add(&mut self, index: usize, entry: &ClusterEntry, mut buckets: BucketSet) -> Option<Problem> {
        let meaning = entry.by_labels()?;
        for scope in &mut self.scopes {
            let both = scope.buckets.and(&buckets);
            if both.is_empty() {
                continue;
            }
            if scope.meaning == meaning || scope.meaning.is_everything() {
                buckets = buckets.without(&both);
            } else if meaning.is_everything() {
                scope.buckets = scope.buckets.without(&both);
            } else {
                let Self { cluster, .. } = self;
                let earlier = scope.entry;
                return Some(invalid(
                    format!("spec.clusters[{index}]"),
                    format!(
                        "chooses namespaces of buckets {both} in {cluster:?} by another namespaceSelector than spec.clusters[{earlier}]: a root has one selector for each bucket of a cluster, so make one entry of the two"
                    ),
                ));
            }
        }
        self.scopes.push(Scope {
            selector: entry.namespace_selector.clone().unwrap_or_default(),
            buckets,
            meaning,
            entry: index,
        });
        self.scopes.retain(|scope| !scope.buckets.is_empty());
        None
    }
}

/// The clusters that an entry chooses.
fn chosen<'a>(entry: &'a ClusterEntry, members: &'a BTreeMap<String, BTreeMap<String, String>>) -> Vec<&'a str> {
    if let Some(name) = &entry.name {
        return vec![name];
    }
    let is_chosen = entry.cluster_filter();
    let chosen = members.iter().filter(|(name, labels)| is_chosen(name, labels));
    chosen.map(|(name, _)| name.as_str()).collect()
}

pub(super) fn no_such_bucket(bucket: u16, bucketing: Bucketing) -> String {
    let (count, last) = (bucketing.buckets(), bucketing.buckets() - 1);
    format!("this hub has no bucket {bucket}, it has {count}: write 0 to {last}")
}
