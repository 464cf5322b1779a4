//! `portolanctl shards plan`: what applying files would move. `show` is also what edits show before they are written.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::bail;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::{first_of, items, send, texts};
use crate::acceptance::{Verdict, judge};
use crate::apply_files::{documents, name_of};
use crate::cli::{HubAdminArgs, Output, PlanArgs};
use crate::foreign::advice;
use crate::router::text;
use crate::table::Table;

const KIND: &str = "ShardingConfig";
/// Where kubectl puts what names no namespace.
const DEFAULT_NAMESPACE: &str = "default";
/// The hub has exactly this already.
const SAME: u8 = 0;
/// Something would change.
const CHANGES: u8 = 1;
/// A spec would be refused.
const REFUSED: u8 = 2;

pub(super) async fn run(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    let mut objects = Vec::new();
    for file in &args.files {
        objects.extend(documents(file)?);
    }
    let (objects, notes) = sharding_configs(objects)?;
    let answer = ask(&args.hub, &objects).await?;
    let wide = args.output.output == Output::Wide;
    args.output.print(&answer, |answer| show(answer, wide) + &notes)?;
    Ok(ExitCode::from(exit_code(&answer)))
}

/// What the hub says of these edits.
pub(super) async fn ask(hub: &HubAdminArgs, objects: &[DynamicObject]) -> anyhow::Result<Value> {
    send(hub, "/shards/plan", &json!({"objects": objects})).await
}

/// The documents that matter, and what is said of the others.
fn sharding_configs(objects: Vec<DynamicObject>) -> anyhow::Result<(Vec<DynamicObject>, String)> {
    let (mut found, mut notes, mut wrong) = (Vec::new(), String::new(), Vec::new());
    for mut object in objects {
        let name = name_of(&object);
        let verdict = judge(&object)?;
        let is_ours = verdict != Verdict::Foreign && object.types.as_ref().is_some_and(|types| types.kind == KIND);
        if !is_ours {
            let told = advice(&object).unwrap_or_else(|| format!("no {KIND}, so no part of the plan"));
            let _ = writeln!(notes, "{name}: {told}");
            continue;
        }
        if let Verdict::Wrong(told) = verdict {
            wrong.extend(told.into_iter().map(|told| format!("{name}: {told}")));
        }
        if object.namespace().is_none() {
            object.metadata.namespace = Some(DEFAULT_NAMESPACE.to_owned());
        }
        found.push(object);
    }
    if !wrong.is_empty() {
        bail!("{}", wrong.join("; "));
    }
    if found.is_empty() {
        bail!("there is no {KIND} to plan");
    }
    Ok((found, notes))
}

fn exit_code(answer: &Value) -> u8 {
    let plan = &answer["plan"];
    let is_wrong = |root: &Value| !items(&root["problems"]).is_empty();
    if !items(&plan["refused"]).is_empty() || items(&plan["roots"]).iter().any(is_wrong) {
        REFUSED
    } else if items(&plan["changed"]).is_empty() {
        SAME
    } else {
        CHANGES
    }
}

/// `wide`: all namespaces by name.
pub(super) fn show(answer: &Value, wide: bool) -> String {
    let plan = &answer["plan"];
    let mut told = if items(&plan["moves"]).is_empty() {
        "no namespace changes its owner\n".to_owned()
    } else {
        moves(&plan["moves"], wide)
    };
    for one in items(&plan["kinds"]) {
        told += &kind(one);
    }
    for one in items(&plan["locks"]) {
        let [shard, from, to] = ["shard", "from", "to"].map(|key| text(&one[key]));
        let _ = writeln!(
            told,
            "{shard}: its leader lock moves from {from} to {to}; while that goes on nobody becomes leader"
        );
    }
    for name in texts(&plan["unchanged"]) {
        let _ = writeln!(told, "{name}: the hub has exactly this");
    }
    for refused in items(&plan["refused"]) {
        let rest = if refused["keepsEarlier"] == true {
            "the last accepted spec stays in force"
        } else {
            "nothing is in force"
        };
        let [shard, reason, message] = ["shard", "reason", "message"].map(|key| text(&refused[key]));
        let _ = writeln!(told, "{shard}: would be refused, {reason}: {message}; {rest}");
    }
    for unresolved in items(&plan["unresolved"]) {
        let [shard, reason, message] = ["shard", "reason", "message"].map(|key| text(&unresolved[key]));
        let _ = writeln!(
            told,
            "{shard}: would not have all that it asks for, {reason}: {message}"
        );
    }
    for name in texts(&plan["freed"]) {
        let _ = writeln!(told, "{name}: its present spec is refused now, and would be taken then");
    }
    for one in items(&plan["roots"]) {
        told += &root(one);
    }
    if plan["endless"] == true {
        told += "it was not found out where this ends: the plan may lack moves\n";
    }
    if items(&plan["moves"]).iter().any(|one| !one["from"].is_null()) {
        for away in items(&answer["routersAway"]) {
            let (router, seconds) = (text(&away["router"]), &away["awaySeconds"]);
            let _ = writeln!(
                told,
                "router {router} is away since {seconds} s: what it may serve is handed over when it is back, or forgotten"
            );
        }
    }
    told
}

fn moves(moves: &Value, wide: bool) -> String {
    let mut groups = BTreeMap::<[String; 3], Vec<&str>>::new();
    for one in items(moves) {
        let owner = |key: &str| one[key].as_str().unwrap_or("nobody").to_owned();
        let group = [text(&one["cluster"]), owner("from"), owner("to")];
        groups.entry(group).or_default().extend(one["namespace"].as_str());
    }
    let mut table = Table::new(&["CLUSTER", "FROM", "TO", "NAMESPACES"]);
    for (group, namespaces) in groups {
        let count = namespaces.len();
        let names = if wide {
            namespaces.join(", ")
        } else {
            first_of(&namespaces, count)
        };
        table.row([&group[..], &[format!("{count}: {names}")]].concat());
    }
    table.to_string()
}

/// A kind without namespaces that one shard sees alone, or will.
fn kind(one: &Value) -> String {
    let mut operator = text(&one["namespace"]);
    if let Some(name) = one["operator"].as_str() {
        operator = format!("{operator}/{name}");
    }
    let kind = text(&one["kind"]);
    match (one["from"].as_str(), one["to"].as_str()) {
        (Some(from), Some(to)) => {
            format!("{kind}: seen by {to} alone of operator {operator}, no more by {from}; by nobody in between\n")
        }
        (Some(from), None) => format!("{kind}: seen by all shards of operator {operator}, no more by {from} alone\n"),
        (None, to) => format!(
            "{kind}: seen by {} alone of operator {operator}, no more by its other shards\n",
            to.unwrap_or_default()
        ),
    }
}

fn root(root: &Value) -> String {
    let name = text(&root["root"]);
    let mut told = String::new();
    for problem in texts(&root["problems"]) {
        let _ = writeln!(told, "root {name}: {problem}");
    }
    if !told.is_empty() {
        return told;
    }
    let _ = writeln!(told, "root {name}: its children");
    let mut table = Table::new(&["CHILD", "PAIRS OF CLUSTER AND BUCKET", "NAMESPACES", "OBJECTS"]);
    for child in items(&root["children"]) {
        let pairs = if child["empty"] == true {
            "none: it has nothing".to_owned()
        } else {
            child["pairs"].to_string()
        };
        // Of a root that is shared out by them, once they are counted.
        let objects = child["objects"].as_u64().map(|objects| objects.to_string());
        let (shard, namespaces) = (text(&child["shard"]), child["namespaces"].to_string());
        table.row(vec![shard, pairs, namespaces, objects.unwrap_or_default()]);
    }
    let widened = texts(&root["widened"]);
    let _ = write!(told, "{table}");
    if !widened.is_empty() {
        let names = first_of(&widened, widened.len());
        let _ = writeln!(told, "root {name}: the canary takes the whole buckets of {names}");
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::parse;

    fn answer() -> Value {
        let one = |namespace: &str, from: Value, to: Value| json!({"cluster": "east", "namespace": namespace, "from": from, "to": to});
        json!({
            "plan": {
                "changed": ["ops/a", "ops/b"], "unchanged": ["ops/d"],
                "moves": [
                    one("ns-a", json!("ops/a"), json!("ops/b")), one("ns-b", json!("ops/a"), json!("ops/b")),
                    one("ns-c", Value::Null, json!("ops/b")),
                ],
                "locks": [{"shard": "ops/a", "from": "op in east", "to": "op in west"}], "refused": [], "freed": ["ops/c"], "roots": [], "endless": false,
            },
            "routersAway": [{"router": "gateway", "awaySeconds": 7}],
        })
    }

    #[test]
    fn moves_are_told_together_by_cluster_and_owners() {
        let lines = [
            "CLUSTER   FROM     TO      NAMESPACES",
            "east      nobody   ops/b   1: ns-c",
            "east      ops/a    ops/b   2: ns-a, ns-b",
            "ops/a: its leader lock moves from op in east to op in west; while that goes on nobody becomes leader",
            "ops/d: the hub has exactly this",
            "ops/c: its present spec is refused now, and would be taken then",
            "router gateway is away since 7 s: what it may serve is handed over when it is back, or forgotten",
        ];
        assert_eq!(show(&answer(), false).lines().collect::<Vec<_>>(), lines);
        assert_eq!(exit_code(&answer()), CHANGES);
    }

    #[test]
    fn a_refusal_and_a_plan_of_nothing_have_exit_codes_of_their_own() {
        let mut refused = answer();
        refused["plan"]["refused"] = json!([{"shard": "ops/b", "reason": "Overlap", "message": "spec.clusters: east/ns-a", "keepsEarlier": true}]);
        let told = show(&refused, false);
        assert!(
            told.contains(
                "ops/b: would be refused, Overlap: spec.clusters: east/ns-a; the last accepted spec stays in force"
            ),
            "{told}"
        );
        assert_eq!(exit_code(&refused), REFUSED);
        let mut misspelt = answer();
        misspelt["plan"]["unresolved"] = json!([{"shard": "ops/b", "reason": "UnknownCluster", "message": "spec.clusters[0].name: no MemberCluster is named \"wset\""}]);
        let told = show(&misspelt, false);
        assert!(
            told.contains(
                "ops/b: would not have all that it asks for, UnknownCluster: spec.clusters[0].name: no MemberCluster"
            ),
            "{told}"
        );
        assert_eq!(exit_code(&misspelt), CHANGES);
        let same = json!({"plan": {"changed": [], "unchanged": ["ops/a"], "moves": []}});
        assert_eq!(
            (exit_code(&same), show(&same, false).starts_with("no namespace")),
            (SAME, true)
        );
    }

    #[test]
    fn kinds_of_one_shard_are_told() {
        let one =
            |from: Value, to: Value| json!({"kind": "fleets.shop.example", "namespace": "ops", "from": from, "to": to});
        let mut told = answer();
        told["plan"]["kinds"] = json!([
            one(json!("ops/a"), json!("ops/b")),
            one(Value::Null, json!("ops/b")),
            one(json!("ops/a"), Value::Null)
        ]);
        told["plan"]["kinds"][1]["operator"] = json!("mail");
        let shown = show(&told, false);
        let lines: Vec<&str> = shown.lines().filter(|line| line.starts_with("fleets")).collect();
        assert_eq!(
            lines,
            [
                "fleets.shop.example: seen by ops/b alone of operator ops, no more by ops/a; by nobody in between",
                "fleets.shop.example: seen by ops/b alone of operator ops/mail, no more by its other shards",
                "fleets.shop.example: seen by all shards of operator ops, no more by ops/a alone",
            ]
        );
    }

    #[test]
    fn children_of_a_root_are_told() {
        let child = |name: &str, pairs: u32, empty: bool| json!({"shard": name, "pairs": pairs, "namespaces": pairs, "empty": empty});
        let mut told = answer();
        told["plan"]["roots"] = json!([{
            "root": "ops/whole", "problems": [], "widened": ["ns-a"],
            "children": [child("ops/w-1-normal", 4, false), child("ops/w-2-normal", 0, true)],
        }]);
        let shown = show(&told, false);
        for words in [
            "the canary takes the whole buckets of ns-a",
            "ops/w-1-normal   4 ",
            "none: it has nothing",
        ] {
            assert!(shown.contains(words), "{words}: {shown}");
        }
        told["plan"]["roots"][0]["problems"] = json!(["spec.root.prefix: taken"]);
        assert!(show(&told, false).contains("root ops/whole: spec.root.prefix: taken"));
        assert_eq!(exit_code(&told), REFUSED);
    }

    #[test]
    fn documents_of_other_kinds_are_passed_over_and_wrong_ones_named() {
        let yaml = "
apiVersion: v1
kind: Namespace
metadata: {name: ops}
---
apiVersion: ctrlmesh.kusionstack.io/v1alpha1
kind: ShardingConfig
metadata: {name: a}
spec: {selector: {}, callerClusters: [east], clusters: [{name: east}]}
";
        let (found, notes) = sharding_configs(parse("test", yaml).unwrap()).unwrap();
        assert_eq!(found[0].namespace().as_deref(), Some(DEFAULT_NAMESPACE));
        assert_eq!(notes, "Namespace/ops: no ShardingConfig, so no part of the plan\n");
        let wrong = parse(
            "test",
            &yaml.replace("clusters: [{name: east}]", "clusters: [{name: East}]"),
        )
        .unwrap();
        let error = sharding_configs(wrong).unwrap_err().to_string();
        assert!(
            error.starts_with("ShardingConfig/a: spec.clusters[0].name: "),
            "{error}"
        );
        let none = sharding_configs(parse("test", "{apiVersion: v1, kind: Namespace, metadata: {name: a}}").unwrap());
        assert!(none.unwrap_err().to_string().contains("no ShardingConfig to plan"));
    }
}
