//! `portolanctl policies try`: what a CircuitBreaker would have refused of a router's last minutes. The router judges, by the
//! rules that it judges live requests by; nothing is changed.

use std::fmt::Write as _;

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use crate::apply_files::{documents, name_of};
use crate::cli::TryArgs;
use crate::router::{send, text};
use crate::strict;
use crate::table::{Table, age};

const KIND: &str = "CircuitBreaker";
const PAGE: &str = "/policies/try";

pub(super) async fn run(args: &TryArgs) -> anyhow::Result<()> {
    let mut objects = Vec::new();
    for file in &args.files {
        objects.extend(documents(file)?);
    }
    let is_tried = |object: &DynamicObject| object.types.as_ref().is_some_and(|types| types.kind == KIND);
    let (tried, others): (Vec<_>, Vec<_>) = objects.into_iter().partition(is_tried);
    if tried.is_empty() {
        bail!("nothing to try: there is no {KIND} among {} documents", others.len());
    }
    strict::check(&tried)?;
    let mut outcomes = Vec::new();
    for object in tried {
        let name = name_of(&object);
        let outcome = send(&args.router, PAGE, &question(&object, &args.callers)).await;
        outcomes.push(json!({"policy": name, "outcome": outcome.context(name.clone())?}));
    }
    args.output.print(&outcomes, |outcomes| {
        let mut all: Vec<_> = outcomes.iter().map(report).collect();
        all.extend(others.iter().map(|other| format!("{}: passed over\n", name_of(other))));
        all.join("\n")
    })
}

/// Without a namespace it would be applied to kubectl's; here that is `default`, as `apply` has it.
fn question(object: &DynamicObject, callers: &[String]) -> Value {
    let namespace = object.namespace().unwrap_or_else(|| "default".to_owned());
    let mut question = json!({
        "kind": KIND,
        "metadata": {"name": object.name_any(), "namespace": namespace},
        "spec": object.data["spec"],
    });
    if !callers.is_empty() {
        question["callers"] = json!(callers);
    }
    question
}

fn report(told: &Value) -> String {
    let (policy, outcome) = (text(&told["policy"]), &told["outcome"]);
    let Some(from) = time(&outcome["fromUnixMilliseconds"]) else {
        return format!("{policy}: none of its callers has asked this router for anything in the last minutes\n");
    };
    let to = time(&outcome["toUnixMilliseconds"]).unwrap_or(from);
    let mut lines = format!(
        "{policy}, over the last {}: {} requests of {} callers, {} met a rule, {} would have been refused\n",
        age(to, from),
        outcome["requests"],
        outcome["callerCount"],
        outcome["met"],
        outcome["refused"],
    );
    let mut rules = Table::new(&[
        "RULE",
        "MET",
        "REFUSED",
        "OVER LIMIT",
        "OPENED",
        "FORCED",
        "FIRST OPENED",
    ]);
    for rule in outcome["rules"].as_array().into_iter().flatten() {
        let mut row = vec![text(&rule["rule"])];
        row.extend(["met", "refused", "limited", "opened", "forced"].map(|count| rule[count].to_string()));
        let first = time(&rule["openedFirstUnixMilliseconds"]);
        row.push(
            first
                .map(|first| format!("{} after", age(first, from)))
                .unwrap_or_default(),
        );
        rules.row(row);
    }
    let mut callers = Table::new(&["CALLER", "REQUESTS", "REFUSED", "BY"]);
    for caller in outcome["callers"].as_array().into_iter().flatten() {
        callers.row(of_caller(caller));
    }
    let _ = write!(lines, "{rules}{callers}");
    if let Some(note) = outcome["note"].as_str() {
        let _ = writeln!(lines, "{note}");
    }
    lines
}

fn of_caller(caller: &Value) -> Vec<String> {
    // `<home cluster>/<uid>` and `<namespace>/<pod>`: people know the Pod.
    let home = text(&caller["caller"]);
    let home = home.split('/').next().unwrap_or_default();
    let by = caller["byRule"].as_object().into_iter().flatten();
    let by: Vec<_> = by.map(|(rule, count)| format!("{rule} {count}")).collect();
    vec![
        format!("{home}/{}", text(&caller["pod"])),
        caller["requests"].to_string(),
        caller["refused"].to_string(),
        by.join(", "),
    ]
}

fn time(milliseconds: &Value) -> Option<Timestamp> {
    Timestamp::from_millisecond(milliseconds.as_i64()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_and_callers_are_told_with_what_would_have_been_refused() {
        let told = json!({"policy": "CircuitBreaker/ops/calm", "outcome": {
            "fromUnixMilliseconds": 10_000, "toUnixMilliseconds": 262_000,
            "requests": 120, "met": 60, "refused": 41, "callerCount": 2,
            "rules": [{"rule": "deletes", "met": 60, "refused": 41, "limited": 1, "opened": 40, "forced": 0, "openedFirstUnixMilliseconds": 40_500}],
            "callers": [
                {"caller": "east/1-2", "pod": "ops/op-0", "requests": 100, "refused": 41, "byRule": {"deletes": 41}},
                {"caller": "west/1-3", "pod": "ops/op-1", "requests": 20, "refused": 0, "byRule": {}},
            ],
            "note": "on all callers of the namespace",
        }});
        let lines = [
            "CircuitBreaker/ops/calm, over the last 4m12s: 120 requests of 2 callers, 60 met a rule, 41 would have been refused",
            "RULE      MET   REFUSED   OVER LIMIT   OPENED   FORCED   FIRST OPENED",
            "deletes   60    41        1            40       0        30s after",
            "CALLER          REQUESTS   REFUSED   BY",
            "east/ops/op-0   100        41        deletes 41",
            "west/ops/op-1   20         0         -",
            "on all callers of the namespace",
        ];
        assert_eq!(report(&told), lines.join("\n") + "\n");
        let silent = json!({"policy": "CircuitBreaker/ops/calm", "outcome": {"fromUnixMilliseconds": null}});
        assert!(report(&silent).contains("none of its callers has asked"));
    }

    #[test]
    fn the_router_is_asked_what_would_be_applied() {
        let objects = crate::apply::parse(
            "a file",
            "apiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: CircuitBreaker\nmetadata: {name: calm}\nspec: {selector: {}}\n",
        )
        .unwrap();
        let asked = question(&objects[0], &["east/ops/op-0".to_owned()]);
        let wanted = json!({
            "kind": "CircuitBreaker", "metadata": {"name": "calm", "namespace": "default"},
            "spec": {"selector": {}}, "callers": ["east/ops/op-0"],
        });
        assert_eq!(asked, wanted);
        assert!(question(&objects[0], &[])["callers"].is_null());
    }
}
