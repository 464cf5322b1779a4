//! A root, with what is around it, to its children. The one function that hub and `portolanctl` call.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use super::canary::{self, Taken, canary};
use super::children::{HOME, Mould, canary_name, normal_name, part_of};
use super::pods::{self, Ordinals};
use super::territory::Territory;
use super::{Objects, Part, invalid, share_out};
use crate::labels::LabelKeys;
use crate::names::ShardName;
use crate::shard::{BucketSet, Bucketing};
use crate::sharding::{AUTHOR_BYTES_MAX, Balance, Root, ShardingConfigSpec, json_bytes};
use crate::validate::{Problem, Reason, validate_sharding};

/// Most entries of `clusters`, and of `limits`, that a ShardingConfig can have, by its schema.
const CLUSTERS_MAX: usize = 128;
const LIMITS_MAX: usize = 32;

/// What a root's children depend on beside its spec.
#[derive(Clone, Debug, Default)]
pub struct Surroundings<'a> {
    /// The hub's buckets.
    pub bucketing: Bucketing,
    /// The hub's label keys.
    pub keys: LabelKeys,
    /// The MemberClusters that the root's namespace may have, with their labels.
    pub members: BTreeMap<String, BTreeMap<String, String>>,
    /// The Pods of its StatefulSet; `None`: not known.
    pub pods: Option<Ordinals>,
    /// The specs of its children that are in force, by their names: what moves is counted from there.
    pub children: BTreeMap<String, &'a ShardingConfigSpec>,
    /// Objects that agents have counted, for `balance: Objects`. Of a root without clusters by the cluster `""`.
    pub objects: Objects,
    /// Prefixes of the roots of its namespace that were there first, by the roots' names.
    pub roots: BTreeMap<String, String>,
    /// Names of the ShardingConfigs of its namespace that are not its children.
    pub others: BTreeSet<String>,
}

/// The children of a root.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Expansion {
    /// The children, the canary first, then by number.
    pub children: Vec<Child>,
    /// Namespaces that the canary takes with their whole buckets, because the root has no clusters and its canary names both
    /// namespaces and buckets.
    pub widened: BTreeSet<String>,
    /// Pods of the StatefulSet that are left over and serve no child.
    pub spare_pods: u32,
    /// What the children's specs weigh together, in bytes of JSON.
    pub bytes: usize,
}

/// One child of a root.
#[derive(Clone, Debug, PartialEq)]
pub struct Child {
    /// Name of its ShardingConfig.
    pub name: String,
    /// Its spec.
    pub spec: ShardingConfigSpec,
    /// The pairs that it has; without clusters, buckets of the cluster `""`. What a canary takes by name is beside that.
    pub part: Part,
    /// It has nothing: there are more shards than pairs, or the canary has it all.
    pub is_empty: bool,
    /// Its StatefulSet is too small for any Pod of it to run.
    pub has_no_pods: bool,
}

/// The children of the root `name`, or everything that is wrong with its spec in these surroundings. None, if it is
/// disabled.
///
/// Of the pairs of cluster and bucket that the root spans, each is exactly one child's, but for namespaces of it that the
/// canary takes by name. A root whose children are there already has the same children.
pub fn expand(
    name: &ShardName,
    spec: &ShardingConfigSpec,
    around: &Surroundings<'_>,
) -> Result<Expansion, Vec<Problem>> {
    let mut problems = validate_sharding(name.name(), name.namespace(), spec);
    problems.retain(Problem::refuses);
    let root = spec.root.as_ref().filter(|root| root.disable != Some(true));
    let (Some(root), true) = (root, problems.is_empty()) else {
        return err_unless_empty(problems, Expansion::default());
    };
    let (territory, found) = Territory::new(spec, &around.members, around.bucketing);
    problems.extend(found);
    problems.extend(check(spec, root, around));
    if !problems.is_empty() {
        return Err(problems);
    }
    let expansion = share(spec, root, &territory, around).map_err(|problem| vec![problem])?;
    let problems = check_children(name, &expansion);
    err_unless_empty(problems, expansion)
}

fn err_unless_empty<T>(problems: Vec<Problem>, value: T) -> Result<T, Vec<Problem>> {
    if problems.is_empty() { Ok(value) } else { Err(problems) }
}

/// Number of shards beside the canary.
fn size(root: &Root) -> usize {
    let size = root.auto.as_ref().map_or(0, |auto| auto.sharding_size);
    usize::try_from(size).unwrap_or(0).max(1)
}

fn check(spec: &ShardingConfigSpec, root: &Root, around: &Surroundings<'_>) -> Vec<Problem> {
    let mut problems = Vec::new();
    let size = size(root);
    if let Some((other, _)) = around.roots.iter().find(|(_, prefix)| **prefix == root.prefix) {
        let message =
            format!("root {other:?} of this namespace has the same: choose another, or delete one of the two");
        problems.push(Problem {
            reason: Reason::Duplicate,
            ..invalid("spec.root.prefix", message)
        });
    }
    let mut names = (1..=size)
        .map(|number| normal_name(root, number))
        .chain([canary_name(root)]);
    if let Some(taken) = names.find(|name| around.others.contains(name)) {
        let message = format!(
            "a child would be named {taken:?}, and a ShardingConfig of that name is there that is no child of this root: delete that one, or choose another prefix"
        );
        problems.push(Problem {
            reason: Reason::Duplicate,
            ..invalid("spec.root.prefix", message)
        });
    }
    if let Some(canary) = canary(root) {
        let named = spec.clusters.iter().flat_map(|entry| &entry.namespaces);
        let named = named.map(String::as_str).collect();
        problems.extend(canary::problems(canary, around.bucketing, &named));
    }
    let all = pods::ordinals(root, around.pods, 0).start..pods::ordinals(root, around.pods, size).end;
    problems.extend(pods::problems(spec, root, around.pods, all));
    let limits = spec.limits.len() + root.resource_selector.len();
    if limits > LIMITS_MAX {
        let message = format!("with spec.limits these are {limits}, and a child can have {LIMITS_MAX}: merge some");
        problems.push(invalid("spec.root.resourceSelector", message));
    }
    problems
}

/// Fails as soon as the children weigh more than one author may have: a root of a few kilobytes could ask for gigabytes.
fn share(
    spec: &ShardingConfigSpec,
    root: &Root,
    territory: &Territory,
    around: &Surroundings<'_>,
) -> Result<Expansion, Problem> {
    let Surroundings { bucketing, keys, .. } = around;
    let mut taken = Taken::new(root, *bucketing);
    let is_home = spec.clusters.is_empty();
    let widened = if is_home {
        taken.widen(*bucketing)
    } else {
        BTreeSet::new()
    };
    let pairs = if is_home {
        let mut pairs = Part::default();
        pairs.add(HOME, &BucketSet::all(bucketing.buckets()));
        pairs
    } else {
        territory.pairs(&taken.names)
    };
    let (canarys, normals) = pairs.split(&taken.buckets);
    let before = parts_before(root, around);
    let balance = root.auto.as_ref().map(|auto| auto.balance).unwrap_or_default();
    let objects = Some(&around.objects).filter(|_| balance == Balance::Objects);
    let parts = share_out(&normals, before.len(), &before, objects);

    let mould = Mould {
        spec,
        root,
        bucketing: *bucketing,
        keys,
        territory,
        taken: &taken,
    };
    let child = |number: usize, part: Part| {
        let is_canary = number == 0;
        let has_names = is_canary && !taken.names.is_empty();
        let ordinals = pods::ordinals(root, around.pods, number);
        let runs_up_to = around.pods.map(|pods| pods.start.saturating_add(pods.replicas));
        Child {
            name: if is_canary {
                canary_name(root)
            } else {
                normal_name(root, number)
            },
            is_empty: part.is_empty() && !has_names,
            has_no_pods: runs_up_to.is_some_and(|end| ordinals.start >= end),
            spec: mould.child(pods::selector(spec, root, ordinals), &part, number),
            part,
        }
    };
    let canary = canary(root).map(|_| child(0, canarys));
    let normal = (1..).zip(parts).map(|(number, part)| child(number, part));
    let last = pods::ordinals(root, around.pods, before.len()).end;
    let count = before.len() + usize::from(canary.is_some());
    let (children, bytes) = weigh(spec, count, canary.into_iter().chain(normal))?;
    Ok(Expansion {
        children,
        bytes,
        widened,
        spare_pods: around
            .pods
            .map_or(0, |pods| pods.start.saturating_add(pods.replicas).saturating_sub(last)),
    })
}

/// What each child that is not the canary had before.
fn parts_before(root: &Root, around: &Surroundings<'_>) -> Vec<Part> {
    let had = |number| around.children.get(&normal_name(root, number));
    let parts = (1..=size(root)).map(|number| had(number).map(|child| part_of(child, around.bucketing, &around.keys)));
    parts.map(Option::unwrap_or_default).collect()
}

/// All of `count` children, and what they weigh.
fn weigh(
    spec: &ShardingConfigSpec,
    count: usize,
    made: impl Iterator<Item = Child>,
) -> Result<(Vec<Child>, usize), Problem> {
    let (mut children, mut bytes) = (Vec::with_capacity(count), 0);
    for child in made {
        bytes += json_bytes(&child.spec);
        children.push(child);
        if bytes > AUTHOR_BYTES_MAX {
            return Err(too_much(spec, (children.len(), count), bytes));
        }
    }
    Ok((children, bytes))
}

/// What is said where the first `made` of all children weigh too much already.
fn too_much(spec: &ShardingConfigSpec, (made, all): (usize, usize), bytes: usize) -> Problem {
    let limits = json_bytes(&spec.limits) + spec.root.as_ref().map_or(0, |root| json_bytes(&root.resource_selector));
    Problem {
        field: "spec.root".to_owned(),
        reason: Reason::TooMuch,
        message: format!(
            "each child repeats what the root says beside it ({limits} bytes of limits and resourceSelector): {made} of {all} children weigh {bytes} bytes of JSON, and all ShardingConfigs of a namespace may weigh {AUTHOR_BYTES_MAX}: say less in limits and clusters, or have fewer shards (auto.shardingSize)"
        ),
    }
}

/// What a child may not be, said of the root: nobody writes children.
fn check_children(root: &ShardName, expansion: &Expansion) -> Vec<Problem> {
    let most = expansion.children.iter().max_by_key(|child| child.spec.clusters.len());
    if let Some(child) = most.filter(|child| child.spec.clusters.len() > CLUSTERS_MAX) {
        let (name, count) = (&child.name, child.spec.clusters.len());
        let message = format!(
            "child {name:?} would have {count} entries of clusters, and {CLUSTERS_MAX} is the most: span fewer clusters, or have more shards"
        );
        return vec![invalid("spec.clusters", message)];
    }
    let problems = expansion.children.iter().flat_map(|child| {
        let problems = validate_sharding(&child.name, root.namespace(), &child.spec);
        problems.into_iter().map(|problem| (&child.name, problem))
    });
    let problem = problems.into_iter().find(|(_, problem)| problem.refuses());
    let problem =
        problem.map(|(name, problem)| invalid("spec.root", format!("child {name:?} would not be valid: {problem}")));
    problem.into_iter().collect()
}
