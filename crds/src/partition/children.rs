//! The children that follow from a root: their specs, and back from specs to what they share.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::Part;
use super::canary::Taken;
use super::territory::{Ground, Scope, Territory};
use crate::labels::{LabelKeys, system_namespace};
use crate::selector::Selector;
use crate::shard::{BucketSet, Bucketing};
use crate::sharding::{ClusterEntry, ObjectLimiter, Root, ShardingConfigSpec};

/// Label of every Namespace: its name. API servers see to it.
const METADATA_NAME: &str = "kubernetes.io/metadata.name";
/// In place of a cluster's name: whichever a caller runs in.
pub const HOME: &str = "";
/// No bucket has this value of the label.
const NO_BUCKET: &str = "none";

/// End of the name of a canary.
const CANARY: &str = "-0-canary";
/// End of the name of every other child, after its number.
const NORMAL: &str = "-normal";

/// What a child is to its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChildRole {
    /// It tries changes first.
    Canary,
    /// One of those that share what the canary leaves.
    Normal,
}

impl ChildRole {
    /// The role of the shard of this name; `None` for one that is not named as children of roots are.
    pub fn of_name(shard: &str) -> Option<Self> {
        let is_prefix = |prefix: &str| !prefix.is_empty();
        if shard.strip_suffix(CANARY).is_some_and(is_prefix) {
            return Some(Self::Canary);
        }
        let (prefix, number) = shard.strip_suffix(NORMAL)?.rsplit_once('-')?;
        let is_number = number.parse::<usize>().is_ok_and(|number| number > 0);
        (is_prefix(prefix) && is_number).then_some(Self::Normal)
    }
}

/// Name of the canary of `root`.
pub(super) fn canary_name(root: &Root) -> String {
    format!("{}{CANARY}", root.prefix)
}

/// Name of a child, from 1.
pub(super) fn normal_name(root: &Root, number: usize) -> String {
    format!("{}-{number}{NORMAL}", root.prefix)
}

/// What all children of a root are made by.
pub(super) struct Mould<'a> {
    pub(super) spec: &'a ShardingConfigSpec,
    pub(super) root: &'a Root,
    pub(super) bucketing: Bucketing,
    pub(super) keys: &'a LabelKeys,
    pub(super) territory: &'a Territory,
    pub(super) taken: &'a Taken,
}

impl Mould<'_> {
    /// The child that has `part`: of all its number, of which 0 is the canary's. That has what is taken by name, too, which else it has
    /// not, and the first one has the kinds of which one has all.
    pub(super) fn child(&self, selector: LabelSelector, part: &Part, number: usize) -> ShardingConfigSpec {
        let (canary, first) = (number == 0, number == 1);
        let mut child = ShardingConfigSpec {
            selector: Some(selector),
            root: None,
            cluster_scoped: self.spec.cluster_scoped.clone().filter(|_| first),
            ..self.spec.clone()
        };
        if self.spec.clusters.is_empty() {
            child.limits.extend(self.home_limits(&part.of(HOME), canary));
        } else {
            child.limits.extend(self.root.resource_selector.iter().cloned());
            child.clusters = self.clusters(part, canary);
        }
        child
    }

    /// Without clusters a child is told by labels alone.
    fn home_limits(&self, buckets: &BucketSet, canary: bool) -> Vec<ObjectLimiter> {
        let mut requirements = Vec::new();
        if !canary || self.taken.names.is_empty() {
            let mut values: Vec<_> = buckets.iter().map(|bucket| bucket.to_string()).collect();
            if values.is_empty() {
                values.push(NO_BUCKET.to_owned());
            }
            requirements.push(requirement(self.keys.sharding_hash(), "In", values));
        }
        let is_named = |name: &&String| canary || buckets.contains(self.bucketing.bucket_of(name));
        let names: Vec<_> = self.taken.names.iter().filter(is_named).cloned().collect();
        if !names.is_empty() {
            let operator = if canary { "In" } else { "NotIn" };
            requirements.push(requirement(self.keys.namespace(), operator, names));
        }
        let everything = [ObjectLimiter::default()];
        let limits = match self.root.resource_selector.as_slice() {
            [] => &everything,
            limits => limits,
        };
        let narrowed = limits.iter().map(|limit| {
            let mut selector = limit.selector.clone().unwrap_or_default();
            let expressions = selector.match_expressions.get_or_insert_default();
            expressions.extend(requirements.iter().cloned());
            ObjectLimiter {
                selector: Some(selector),
                ..limit.clone()
            }
        });
        narrowed.collect()
    }

    fn clusters(&self, part: &Part, canary: bool) -> Vec<ClusterEntry> {
        let grounds = self.territory.grounds.iter();
        let mut entries: Vec<_> = grounds
            .flat_map(|ground| self.entries(ground, &part.of(&ground.cluster), canary))
            .collect();
        // One entry alone may be the default: the first in the root's order.
        let mut has_default = false;
        for entry in &mut entries {
            entry.default &= !has_default;
            has_default |= entry.default;
        }
        let is_named = |cluster: &str| entries.iter().any(|entry| entry.name.as_deref() == Some(cluster));
        let primary = self.spec.primary_cluster.as_ref();
        let primary = primary.filter(|primary| !self.spec.caller_clusters.contains(primary) && !is_named(primary));
        let first = self.territory.grounds.first().map(|ground| &ground.cluster);
        let nothing_of = primary.or(first.filter(|_| entries.is_empty()));
        // An absent list would be all there is.
        entries.extend(nothing_of.map(|cluster| ClusterEntry {
            name: Some(cluster.clone()),
            buckets: Some(Vec::new()),
            ..ClusterEntry::default()
        }));
        entries
    }

    /// What the child with these buckets has in one cluster. No bucket is in two entries.
    fn entries(&self, ground: &Ground, buckets: &BucketSet, canary: bool) -> Vec<ClusterEntry> {
        let bucket_of = |name: &String| self.bucketing.bucket_of(name);
        let taken = &self.taken.names;
        let mut names = ground.names_in(buckets);
        if canary {
            names.extend(taken.iter().filter(|name| ground.has_name(name, bucket_of(name))));
        } else {
            names.retain(|name| !taken.contains(*name));
        }
        let names: Vec<_> = names.into_iter().cloned().collect();
        let mut scopes = Vec::new();
        for scope in &ground.scopes {
            let own = scope.buckets.and(buckets);
            let names_in = |buckets: &BucketSet| -> Vec<String> {
                let names = taken.iter().filter(|name| !system_namespace(name));
                names
                    .filter(|name| buckets.contains(bucket_of(name)))
                    .cloned()
                    .collect()
            };
            if canary {
                scopes.extend(narrowed(scope, &own, None));
                let by_name = names_in(&scope.buckets.without(&own));
                let theirs = by_name.iter().map(bucket_of).collect();
                scopes.extend(narrowed(scope, &theirs, Some(("In", by_name))));
            } else {
                scopes.extend(narrowed(scope, &own, Some(("NotIn", names_in(&own)))));
            }
        }
        let mut entries: Vec<_> = scopes
            .into_iter()
            .map(|(selector, buckets)| ClusterEntry {
                name: Some(ground.cluster.clone()),
                namespace_selector: Some(selector).filter(|selector| *selector != LabelSelector::default()),
                buckets: Some(written(&buckets)),
                default: ground.is_default,
                ..ClusterEntry::default()
            })
            .collect();
        if entries.is_empty() && !names.is_empty() {
            entries.push(ClusterEntry {
                name: Some(ground.cluster.clone()),
                default: ground.is_default,
                ..ClusterEntry::default()
            });
        }
        if let Some(first) = entries.first_mut() {
            first.namespaces = names;
        }
        entries
    }
}

/// A scope within some buckets, with or without some names; `None` if nothing is left.
fn narrowed(
    scope: &Scope,
    buckets: &BucketSet,
    names: Option<(&str, Vec<String>)>,
) -> Option<(LabelSelector, BucketSet)> {
    let mut selector = scope.selector.clone();
    if let Some((operator, names)) = names.filter(|(_, names)| !names.is_empty()) {
        let these = requirement(METADATA_NAME, operator, names);
        selector.match_expressions.get_or_insert_default().push(these);
    }
    let matches = Selector::from_label_selector(&selector).is_ok_and(|selector| !selector.is_nothing());
    (matches && !buckets.is_empty()).then(|| (selector, buckets.clone()))
}

fn requirement(key: &str, operator: &str, values: Vec<String>) -> LabelSelectorRequirement {
    LabelSelectorRequirement {
        key: key.to_owned(),
        operator: operator.to_owned(),
        values: Some(values),
    }
}

/// As people write them: numbers as numbers.
fn written(buckets: &BucketSet) -> Vec<IntOrString> {
    let items = buckets.ranges().into_iter().map(|range| match range.parse() {
        Ok(number) => IntOrString::Int(number),
        Err(_) => IntOrString::String(range),
    });
    items.collect()
}

/// What a child has, read back from its spec.
pub(super) fn part_of(child: &ShardingConfigSpec, bucketing: Bucketing, keys: &LabelKeys) -> Part {
    let mut part = Part::default();
    for entry in &child.clusters {
        let Some(cluster) = &entry.name else { continue };
        part.add(cluster, &entry.bucket_set().ok().flatten().unwrap_or_default());
        let named = entry.namespaces.iter().map(|name| bucketing.bucket_of(name));
        part.add(cluster, &named.collect());
    }
    if child.clusters.is_empty() {
        // The root's own limits come first, and its resourceSelector may name buckets too: ours is what comes last.
        let selector = child.limits.last().and_then(|limit| limit.selector.as_ref());
        let expressions = selector.and_then(|selector| selector.match_expressions.as_ref());
        let ours = expressions.into_iter().flatten().rev();
        let mut ours = ours.filter(|expression| expression.key == keys.sharding_hash() && expression.operator == "In");
        let values: BTreeSet<&String> = ours
            .next()
            .and_then(|ours| ours.values.as_ref())
            .into_iter()
            .flatten()
            .collect();
        let buckets = values.into_iter().filter_map(|value| value.parse().ok());
        part.add(HOME, &buckets.collect());
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_childs_role_is_told_by_its_name() {
        let root = Root {
            prefix: "op.a-1".to_owned(),
            ..Root::default()
        };
        assert_eq!(ChildRole::of_name(&canary_name(&root)), Some(ChildRole::Canary));
        assert_eq!(ChildRole::of_name(&normal_name(&root, 12)), Some(ChildRole::Normal));
        for other in [
            "shop",
            "-0-canary",
            "op-1-canary",
            "op-0-normal",
            "op-x-normal",
            "-1-normal",
            "op-normal",
        ] {
            assert_eq!(ChildRole::of_name(other), None, "{other}");
        }
    }
}
