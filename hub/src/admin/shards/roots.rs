//! The children of an edited root, as the plan leaves them. Pure; what they get and lose is among the plan's moves.
//!
//! The Pods of the StatefulSet are the member's to know, so what depends on them is left out.

use std::collections::BTreeSet;

use portolan_crds::ShardName;
use portolan_crds::partition::Child;
use serde::Serialize;

use crate::compile::{Ledger, State};

/// A root and its children.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RootPlan {
    root: ShardName,
    /// Why the spec in force would not generate what it says.
    problems: Vec<String>,
    children: Vec<ChildPlan>,
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
    /// Number of objects in its pairs, as they were weighed; `None`: they are not.
    objects: Option<u64>,
    /// It has nothing: there are more shards than pairs, or the canary has it all.
    empty: bool,
}

/// Of the shard `name`, if it is a root with children in `after`.
pub(super) fn plan(after: &State, name: &ShardName) -> Option<RootPlan> {
    let children = after.roots.get(name)?;
    let generated = children.coming.as_ref().or(children.in_force.as_ref());
    let expansion = generated.map(|generated| &generated.expansion);
    let all = generated.into_iter().flat_map(|generated| {
        let children = generated.expansion.children.iter();
        children.map(|child| (child, generated.objects(child)))
    });
    Some(RootPlan {
        root: name.clone(),
        problems: children.problem.iter().cloned().collect(),
        children: all
            .filter_map(|child| ChildPlan::new(name, child, &after.ledger))
            .collect(),
        widened: expansion.map(|expansion| expansion.widened.clone()).unwrap_or_default(),
    })
}

impl ChildPlan {
    fn new(root: &ShardName, (child, objects): (&Child, Option<u64>), ledger: &Ledger) -> Option<Self> {
        let shard = ShardName::new(root.namespace(), child.name.as_str()).ok()?;
        let namespaces = ledger.held_by(&shard).count();
        Some(Self {
            shard,
            pairs: child.part.len(),
            namespaces,
            objects,
            empty: child.is_empty,
        })
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::super::plan::{Edits, Plan, plan};
    use super::super::testing::{Fleet, with_spec};
    use crate::settings::Settings;

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
        serde_json::to_value(plan).unwrap()
    }

    #[test]
    fn children_share_out_every_namespace_once() {
        let mut fleet = Fleet::new(&["ns-a", "ns-b", "ns-c", "ns-d", "kube-system"]);
        fleet.compile();
        let plan = planned(&fleet, 2);
        assert_eq!(
            (&plan["refused"], &plan["endless"]),
            (&json!([]), &json!(false)),
            "{plan}"
        );
        let children = plan["roots"][0]["children"].as_array().unwrap();
        let names: Vec<_> = children.iter().map(|child| child["shard"].as_str().unwrap()).collect();
        assert_eq!(names, ["ops/part-0-canary", "ops/part-1-normal", "ops/part-2-normal"]);
        let counts = children.iter().map(|child| child["namespaces"].as_u64().unwrap());
        let moves = plan["moves"].as_array().unwrap();
        let to_canary: Vec<_> = moves.iter().filter(|one| one["to"] == "ops/part-0-canary").collect();
        assert!(
            !to_canary.is_empty() && to_canary.iter().all(|one| one["namespace"] == "ns-a"),
            "{plan}"
        );
        // One name is of one member in one shard: two shards may have one each.
        assert_eq!(counts.sum::<u64>(), moves.len() as u64, "{plan}");
        assert!((4..=8).contains(&moves.len()), "{plan}");
    }

    #[test]
    fn what_is_wrong_with_a_root_is_told() {
        let mut fleet = Fleet::new(&["ns-a"]);
        fleet.apply("part-1-normal", &json!([{"name": "east", "namespaces": ["ns-a"]}]));
        fleet.compile();
        let plan = planned(&fleet, 2);
        let message = plan["refused"][0]["message"].as_str().unwrap_or_default();
        assert!(message.starts_with("spec.root.prefix: "), "{plan}");
    }
}
