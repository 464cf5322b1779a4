//! What the children of an edited root would have: by the same function that makes them. Pure.
//!
//! Told for itself, beside the compiler's plan: a hub that does not serve roots refuses the object, and then nothing of
//! this happens. The Pods of the StatefulSet are the member's to know, and objects are not counted by bucket, so what
//! depends on these is left out.

use std::collections::{BTreeMap, BTreeSet};

use portolan_crds::partition::{Child, Surroundings, expand};
use portolan_crds::{ClusterEntry, ConditionReason, ShardName, ShardingConfigSpec};
use serde::Serialize;

use super::plan::Move;
use crate::compile::Decided;
use crate::facts::Facts;
use crate::settings::Settings;

/// A root, and what would become of what it spans.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RootPlan {
    root: ShardName,
    /// Whether the hub would take the root, so that all this happens.
    served: bool,
    /// What is wrong with it; then there are no children.
    problems: Vec<String>,
    children: Vec<ChildPlan>,
    /// Namespaces that a child would get and does not have.
    moves: Vec<Move>,
    /// Namespaces that the canary takes with their whole buckets.
    widened: BTreeSet<String>,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct ChildPlan {
    shard: ShardName,
    /// Number of (cluster, bucket) pairs.
    pairs: usize,
    /// Number of namespaces, of those that there are now.
    namespaces: usize,
    /// It has nothing: there are more shards than pairs, or the canary has it all.
    empty: bool,
}

/// Of the shard `name`, if it is a root.
pub(super) fn plan(facts: &Facts, after: &Decided, settings: &Settings, name: &ShardName) -> Option<RootPlan> {
    let object = facts.shards.get(name)?;
    let spec = object.spec.as_ref().ok()?;
    spec.root.as_ref()?;
    let refusal = after.verdicts.get(name).and_then(|verdict| verdict.refusal.as_ref());
    let mut plan = RootPlan {
        root: name.clone(),
        served: refusal.is_none_or(|refusal| refusal.reason != ConditionReason::NotImplemented),
        problems: Vec::new(),
        children: Vec::new(),
        moves: Vec::new(),
        widened: BTreeSet::new(),
    };
    match expand(name, spec, &around(facts, after, settings, name)) {
        Err(problems) => plan.problems = problems.iter().map(ToString::to_string).collect(),
        Ok(expansion) => {
            for child in &expansion.children {
                plan.add(facts, after, settings, child);
            }
            plan.widened = expansion.widened;
        }
    }
    Some(plan)
}

/// What the root's children depend on beside its spec.
fn around<'a>(facts: &Facts, after: &'a Decided, settings: &Settings, name: &ShardName) -> Surroundings<'a> {
    let namespace = name.namespace();
    let allowed = facts.members.iter().filter(|(_, member)| {
        let spec = member.in_force.as_ref();
        spec.is_none_or(|spec| spec.allows(namespace))
    });
    let root = facts.shards.get(name);
    let is_child =
        |other: &ShardName| root.is_some_and(|root| root.status.children.iter().any(|child| child == other.name()));
    let neighbours = || {
        facts
            .shards
            .iter()
            .filter(|(other, _)| other.namespace() == namespace && *other != name)
    };
    let prefix = |spec: &ShardingConfigSpec| spec.root.as_ref().map(|root| root.prefix.clone());
    let earlier = neighbours().filter(|(_, other)| root.is_none_or(|root| other.created <= root.created));
    let accepted = after.state.accepted.iter();
    Surroundings {
        bucketing: settings.bucketing,
        keys: settings.keys.clone(),
        members: allowed
            .map(|(cluster, member)| (cluster.clone(), member.labels.clone()))
            .collect(),
        pods: None,
        children: accepted
            .filter(|(other, _)| other.namespace() == namespace && is_child(other))
            .map(|(other, accepted)| (other.name().to_owned(), &*accepted.spec))
            .collect(),
        objects: BTreeMap::new(),
        roots: earlier
            .filter_map(|(other, object)| Some((other.name().to_owned(), prefix(object.spec.as_ref().ok()?)?)))
            .collect(),
        others: neighbours()
            .filter(|(other, _)| !is_child(other))
            .map(|(other, _)| other.name().to_owned())
            .collect(),
    }
}

impl RootPlan {
    fn add(&mut self, facts: &Facts, after: &Decided, settings: &Settings, child: &Child) {
        let Ok(shard) = ShardName::new(self.root.namespace(), child.name.clone()) else {
            return;
        };
        let pairs = pairs(facts, settings, &child.spec);
        self.children.push(ChildPlan {
            shard: shard.clone(),
            pairs: child.part.len(),
            namespaces: pairs.len(),
            empty: child.is_empty,
        });
        let moves = pairs.into_iter().filter_map(|(cluster, namespace)| {
            let entry = after.state.ledger.get(&cluster, &namespace);
            let from = entry.and_then(|entry| entry.owner.clone());
            (from.as_ref() != Some(&shard)).then(|| Move {
                cluster,
                namespace,
                from,
                to: Some(shard.clone()),
            })
        });
        self.moves.extend(moves);
    }
}

/// What a child asks for, of the namespaces that there are.
fn pairs(facts: &Facts, settings: &Settings, spec: &ShardingConfigSpec) -> BTreeSet<(String, String)> {
    let mut pairs = BTreeSet::new();
    for entry in &spec.clusters {
        let is_chosen = entry.cluster_filter();
        for (cluster, _) in facts
            .members
            .iter()
            .filter(|(name, member)| is_chosen(name, &member.labels))
        {
            let chosen = chosen(facts, settings, entry, cluster);
            pairs.extend(chosen.into_iter().map(|namespace| (cluster.clone(), namespace)));
        }
    }
    pairs
}

fn chosen(facts: &Facts, settings: &Settings, entry: &ClusterEntry, cluster: &str) -> Vec<String> {
    let Some(inventory) = facts.inventory(cluster) else {
        return entry.namespaces.clone();
    };
    let buckets = entry.bucket_set().ok().flatten();
    let is_of_bucket = |name: &String| {
        let bucket = settings.bucketing.bucket_of(name);
        buckets.as_ref().is_none_or(|buckets| buckets.contains(bucket))
    };
    let labels = inventory.iter().map(|(name, namespace)| (name, &namespace.labels));
    let by_labels = entry.chosen_by_labels(labels).into_iter().filter(is_of_bucket);
    let named = entry.namespaces.iter().filter(|name| inventory.contains_key(*name));
    named.cloned().chain(by_labels).collect()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::super::plan::{Edits, Plan, plan};
    use super::super::testing::{Fleet, with_spec};
    use super::*;

    fn planned(fleet: &Fleet, size: i32) -> serde_json::Value {
        let spec = json!({
            "selector": {"matchLabels": {"app": "op"}}, "callerClusters": ["east"],
            "clusters": [{"name": "east"}, {"name": "west"}],
            "root": {
                "prefix": "part", "targetStatefulSet": "op", "canary": {"replicas": 1, "inNamespaces": ["ns-a"]},
                "auto": {"shardingSize": size, "everyShardReplicas": 1},
            },
        });
        let edits = Edits::read(&[with_spec("whole", &spec)]).unwrap();
        let plan: Plan = plan(
            &fleet.facts,
            &fleet.state,
            &Settings::default(),
            edits,
            Timestamp::UNIX_EPOCH,
        );
        serde_json::to_value(plan).unwrap()["roots"][0].clone()
    }

    #[test]
    fn children_share_out_every_namespace_once() {
        let mut fleet = Fleet::new(&["ns-a", "ns-b", "ns-c", "ns-d", "kube-system"]);
        fleet.apply("a", &json!([{"name": "east", "namespaces": ["ns-b"]}]));
        fleet.compile();
        let root = planned(&fleet, 2);
        assert_eq!(root["problems"], json!([]), "{root}");
        let children = root["children"].as_array().unwrap();
        let names: Vec<_> = children.iter().map(|child| child["shard"].as_str().unwrap()).collect();
        assert_eq!(names, ["ops/part-0-canary", "ops/part-1-normal", "ops/part-2-normal"]);
        let namespaces: u64 = children.iter().map(|child| child["namespaces"].as_u64().unwrap()).sum();
        assert_eq!(namespaces, 8, "of two members, without system namespaces: {root}");
        let moves = root["moves"].as_array().unwrap();
        let to_canary: Vec<_> = moves.iter().filter(|one| one["to"] == "ops/part-0-canary").collect();
        assert!(
            !to_canary.is_empty() && to_canary.iter().all(|one| one["namespace"] == "ns-a"),
            "{root}"
        );
        let taken: Vec<_> = moves.iter().filter(|one| one["from"] == "ops/a").collect();
        assert_eq!(
            (moves.len(), taken.len(), &taken[0]["namespace"]),
            (8, 1, &json!("ns-b"))
        );
    }

    #[test]
    fn what_is_wrong_with_a_root_is_told() {
        let mut fleet = Fleet::new(&["ns-a"]);
        fleet.apply("part-1-normal", &json!([{"name": "east", "namespaces": ["ns-a"]}]));
        fleet.compile();
        let root = planned(&fleet, 2);
        let problems = root["problems"].as_array().unwrap();
        assert!(
            problems[0].as_str().unwrap().starts_with("spec.root.prefix: "),
            "{root}"
        );
        assert_eq!(root["children"], json!([]));
    }
}
