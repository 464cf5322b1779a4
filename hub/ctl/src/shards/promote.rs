//! `portolanctl shards promote`: the canary of a root gets a larger part of what the root spans, or gives all of it back.
//!
//! In the end the canary stays, with its Pods and with nothing to own. Without it the ordinals of the StatefulSet would be
//! shared out anew, and every Pod would become another shard's.

use anyhow::{anyhow, bail};
use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::items;
use super::moving::{ask, client, write_if};
use super::write::{Edit, read};
use crate::cli::{Output, PromoteArgs};
use crate::router::text;

/// What the canary takes, of the fields of `spec.root.canary`.
const CRITERIA: [&str; 2] = ["inNamespaces", "inShardHash"];

pub(super) async fn run(args: &PromoteArgs) -> anyhow::Result<()> {
    let client = client(&args.edit).await?;
    let name = &args.root;
    let object = read(&client, name).await?;
    let spec = promoted(&object.data["spec"], args.percent);
    let spec = spec.map_err(|wrong| anyhow!("ShardingConfig {name}: {wrong}"))?;
    is_in_force(&object).map_err(|wrong| anyhow!("ShardingConfig {name}: {wrong}; nothing was written"))?;
    let told = told(&object.data["spec"], args.percent) + &troubles(&object);
    if args.edit.output.output != Output::Json {
        print!("{name}: {told}");
    }
    let edits = [Edit {
        name: name.clone(),
        object,
        spec,
    }];
    let planned = ask(&args.edit, &edits).await?;
    check(&planned["plan"])?;
    write_if(&args.edit, &client, &edits).await
}

/// `spec` with a canary of so many percent of the buckets beside what it takes by name and by hash; without `percent`, with a
/// canary that takes nothing any more.
///
/// # Errors
/// The field that is in the way, and what to do.
fn promoted(spec: &Value, percent: Option<u8>) -> Result<Value, String> {
    let root = &spec["root"];
    if root.is_null() {
        return Err(
            "spec.root: is absent, and only a root has a canary: name the root that its children come from".into(),
        );
    }
    if root["disable"] == true {
        return Err("spec.root.disable: the root has no children: enable it first".into());
    }
    let canary = &root["canary"];
    if canary["replicas"].as_i64().is_none_or(|replicas| replicas <= 0) {
        return Err(
            "spec.root.canary: the root has no canary that could be promoted: give it one with replicas".into(),
        );
    }
    let has = canary["percent"].as_i64().unwrap_or(0);
    let mut spec = spec.clone();
    let canary = &mut spec["root"]["canary"];
    match percent {
        Some(percent) if i64::from(percent) <= has => {
            return Err(format!(
                "spec.root.canary.percent: the canary has {has} % already, and a promotion gives it more; without --percent it gives \
                 back all, and portolanctl shards rollback takes the last step back"
            ));
        }
        Some(percent) => canary["percent"] = json!(percent),
        None if has == 0 && CRITERIA.iter().all(|field| items(&canary[*field]).is_empty()) => {
            return Err(
                "spec.root.canary: takes nothing, so there is nothing to give back: --percent gives it a part".into(),
            );
        }
        None => {
            canary["percent"] = json!(0);
            if let Some(fields) = canary.as_object_mut() {
                fields.retain(|field, _| !CRITERIA.contains(&field.as_str()));
            }
        }
    }
    Ok(spec)
}

/// A promotion is one step, and takes no other edit along that was refused or is not made yet.
fn is_in_force(object: &DynamicObject) -> Result<(), String> {
    let status = &object.data["status"];
    if status["observedGeneration"].as_i64() != object.metadata.generation {
        return Err("the hub has not judged its present spec yet".to_owned());
    }
    match conditions(object).find(|condition| condition["type"] == "Accepted") {
        Some(accepted) if accepted["status"] == "True" => Ok(()),
        Some(accepted) => {
            let [reason, message] = ["reason", "message"].map(|key| text(&accepted[key]));
            Err(format!("its present spec is not in force, {reason}: {message}"))
        }
        None => Err("the hub has not judged its present spec yet".to_owned()),
    }
}

fn conditions(object: &DynamicObject) -> impl Iterator<Item = &Value> {
    items(&object.data["status"]["conditions"]).iter()
}

/// What is done, in words.
fn told(spec: &Value, percent: Option<u8>) -> String {
    let Some(percent) = percent else {
        return "the canary gives back all that it takes, and stays with its Pods; see that the Pods of the other shards run its \
                version\n"
            .to_owned();
    };
    let canary = &spec["root"]["canary"];
    let has = canary["percent"].as_i64().unwrap_or(0);
    let beside = CRITERIA.iter().filter(|field| !items(&canary[**field]).is_empty());
    let beside: Vec<_> = beside.copied().collect();
    let beside = match beside.as_slice() {
        [] => String::new(),
        fields => format!(", beside what {} names", fields.join(" and ")),
    };
    format!("the canary has {percent} % of all buckets instead of {has} %{beside}\n")
}

/// What is wrong with the root by its own status, for whoever is to decide.
fn troubles(object: &DynamicObject) -> String {
    let matter = conditions(object).filter(|condition| {
        ["Complete", "ChildrenServed"]
            .iter()
            .any(|kind| condition["type"] == **kind)
            && condition["status"] != "True"
    });
    let lines = matter.map(|condition| {
        let [kind, status, message] = ["type", "status", "message"].map(|key| text(&condition[key]));
        format!("{kind} is {status}: {message}\n")
    });
    lines.collect()
}

/// Whether the hub would take it.
fn check(plan: &Value) -> anyhow::Result<()> {
    if let Some(refused) = items(&plan["refused"]).first() {
        bail!(
            "the hub would refuse it: {}; nothing was written",
            text(&refused["message"])
        );
    }
    let mut problems = items(&plan["roots"]).iter().flat_map(|root| items(&root["problems"]));
    if let Some(problem) = problems.next() {
        bail!("it would have no children: {}; nothing was written", text(problem));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use portolan_crds::{ShardingConfigSpec, validate_sharding};
    use serde::Deserialize as _;

    use super::*;

    fn spec(canary: &Value) -> Value {
        json!({
            "selector": {"matchLabels": {"app": "op"}}, "callerClusters": ["east"], "clusters": [{"name": "east"}],
            "root": {"prefix": "op", "targetStatefulSet": "op", "canary": canary, "auto": {"shardingSize": 2, "everyShardReplicas": 1}, "later": 1},
        })
    }

    /// The canary that comes out, which is valid and all that has changed.
    fn canary(before: &Value, percent: Option<u8>) -> Result<Value, String> {
        let mut promoted = promoted(&spec(before), percent)?;
        let canary = promoted["root"]["canary"].clone();
        assert_eq!(promoted["root"]["later"], 1, "what is not known stays");
        promoted["root"].as_object_mut().unwrap().remove("later");
        let read = ShardingConfigSpec::deserialize(&promoted).unwrap();
        let problems = validate_sharding("root", "ops", &read);
        assert!(problems.is_empty(), "{problems:?}");
        promoted["root"]["canary"] = before.clone();
        promoted["root"]["later"] = json!(1);
        assert_eq!(promoted, spec(before));
        Ok(canary)
    }

    #[test]
    fn a_part_is_raised_beside_what_is_named() {
        let named = json!({"replicas": 1, "inNamespaces": ["try-it"], "inShardHash": ["3"]});
        let raised = json!({"replicas": 1, "inNamespaces": ["try-it"], "inShardHash": ["3"], "percent": 25});
        assert_eq!(canary(&named, Some(25)), Ok(raised.clone()));
        let more = canary(&raised, Some(50)).unwrap();
        assert_eq!(
            (&more["percent"], &more["inNamespaces"]),
            (&json!(50), &json!(["try-it"]))
        );
    }

    #[test]
    fn at_last_it_takes_nothing_and_keeps_its_pods() {
        let all = json!({"replicas": 2, "inNamespaces": ["try-it"], "inShardHash": ["3"], "percent": 25});
        let rests = json!({"replicas": 2, "percent": 0});
        assert_eq!(canary(&all, None), Ok(rests.clone()));
        assert_eq!(
            canary(&json!({"replicas": 2, "inNamespaces": ["a"]}), None),
            Ok(rests.clone())
        );
        assert_eq!(
            canary(&rests, Some(10)),
            Ok(json!({"replicas": 2, "percent": 10})),
            "the next upgrade"
        );
    }

    #[test]
    fn what_has_no_canary_is_refused_by_field() {
        let mut disabled = spec(&json!({"replicas": 1, "percent": 5}));
        disabled["root"]["disable"] = json!(true);
        let cases = [
            (
                json!({"selector": {}, "clusters": [{"name": "east"}]}),
                None,
                "spec.root: ",
            ),
            (disabled, None, "spec.root.disable: "),
            (spec(&Value::Null), Some(5), "spec.root.canary: the root has no"),
            (
                spec(&json!({"replicas": 0, "percent": 5})),
                None,
                "spec.root.canary: the root has no",
            ),
            (
                spec(&json!({"replicas": 1, "percent": 0})),
                None,
                "spec.root.canary: takes nothing",
            ),
            (
                spec(&json!({"replicas": 1, "percent": 50})),
                Some(50),
                "spec.root.canary.percent: the canary has 50 %",
            ),
            (
                spec(&json!({"replicas": 1, "percent": 50})),
                Some(20),
                "spec.root.canary.percent: the canary has 50 %",
            ),
        ];
        for (spec, percent, words) in cases {
            let error = promoted(&spec, percent).unwrap_err();
            assert!(error.starts_with(words), "{error}");
        }
    }

    fn object(observed: i64, accepted: &str) -> DynamicObject {
        let condition =
            |kind: &str, status: &str| json!({"type": kind, "status": status, "reason": "Why", "message": "so"});
        serde_json::from_value(json!({
            "metadata": {"name": "root", "namespace": "ops", "generation": 4}, "spec": {},
            "status": {"observedGeneration": observed, "conditions": [
                condition("Accepted", accepted), condition("Complete", "True"), condition("ChildrenServed", "False"),
            ]},
        }))
        .unwrap()
    }

    #[test]
    fn only_what_is_in_force_is_promoted() {
        assert_eq!(is_in_force(&object(4, "True")), Ok(()));
        let error = is_in_force(&object(4, "False")).unwrap_err();
        assert_eq!(error, "its present spec is not in force, Why: so");
        assert!(is_in_force(&object(3, "True")).unwrap_err().contains("not judged"));
        assert_eq!(troubles(&object(4, "True")), "ChildrenServed is False: so\n");
    }

    #[test]
    fn a_plan_that_is_refused_or_without_children_is_not_written() {
        assert!(check(&json!({"refused": [], "roots": [{"problems": []}], "moves": []})).is_ok());
        for plan in [
            json!({"refused": [{"message": "spec.x: no"}]}),
            json!({"refused": [], "roots": [{"problems": ["spec.x: no"]}]}),
        ] {
            let error = check(&plan).unwrap_err().to_string();
            assert!(error.ends_with("spec.x: no; nothing was written"), "{error}");
        }
    }

    #[test]
    fn what_is_done_is_told() {
        let named = spec(&json!({"replicas": 1, "inNamespaces": ["a"], "percent": 5}));
        assert_eq!(
            told(&named, Some(20)),
            "the canary has 20 % of all buckets instead of 5 %, beside what inNamespaces names\n"
        );
        assert!(told(&named, None).starts_with("the canary gives back all"));
    }
}
