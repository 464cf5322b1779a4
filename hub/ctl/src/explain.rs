//! `portolanctl explain`: asks a router for the plan of a request, because the router is who decides it.

use std::fmt::Write as _;

use serde_json::Value;

use crate::admin::encode;
use crate::cli::ExplainArgs;
use crate::router::{ask, words};

pub(crate) async fn run(args: &ExplainArgs) -> anyhow::Result<()> {
    let question = format!(
        "/explain?verb={}&path={}&as={}",
        encode(&args.verb),
        encode(&args.path),
        encode(&args.caller)
    );
    let answer = ask(&args.router, &question).await?;
    args.output.print(&answer, report)
}

fn report(answer: &Value) -> String {
    let request = &answer["request"];
    let verb = request["verb"].as_str().or(request["method"].as_str());
    let view = request["view"].as_str().map(|view| format!(" ({view} view)"));
    let mut lines = vec![
        format!("caller   {}", caller(&answer["caller"])),
        format!(
            "request  {} {}{}",
            verb.unwrap_or("-"),
            text(&request["path"]),
            view.unwrap_or_default()
        ),
    ];
    let mut plan = plan(&answer["plan"]).into_iter();
    lines.extend(plan.next().map(|first| format!("plan     {first}")));
    lines.extend(plan.map(|leg| format!("  {leg}")));
    lines.extend(policies(&answer["policies"]));
    lines.push("why".into());
    for reason in answer["why"].as_array().into_iter().flatten() {
        let reason = text(reason);
        let words = reason.trim_start();
        let indent = &reason[..reason.len() - words.len()];
        lines.push(format!("  {indent}- {words}"));
    }
    lines.join("\n") + "\n"
}

fn caller(caller: &Value) -> String {
    if !caller["pod"].is_string() {
        let groups = words(&caller["groups"]);
        let groups = if groups.is_empty() {
            groups
        } else {
            format!(", groups {groups}")
        };
        return format!("user {}{groups}", text(&caller["user"]));
    }
    let pod = [&caller["homeCluster"], &caller["namespace"], &caller["pod"]].map(text);
    let shard = match &caller["binding"] {
        Value::Null => "no shard".to_owned(),
        Value::Array(_) => format!("shards {}", words(&caller["binding"])),
        one => format!("shard {}", text(one)),
    };
    format!(
        "{}, ServiceAccount {}, {shard}",
        pod.join("/"),
        text(&caller["serviceAccount"])
    )
}

/// The rules of policies that it meets, and what they would say to it now. Nothing where none is asked: of people, and of what
/// no member is asked. A rule that refuses is told as such by the router.
fn policies(policies: &Value) -> Vec<String> {
    let each = |kind: &str| {
        policies[kind]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default()
            .to_vec()
    };
    let (limits, breakers, faults) = (each("limits"), each("breakers"), each("faults"));
    if policies.is_null() {
        return Vec::new();
    }
    if limits.is_empty() && breakers.is_empty() && faults.is_empty() {
        return vec!["policies meets no rule of any".to_owned()];
    }
    let name = |rule: &Value| format!("{}/{}", text(&rule["policy"]), text(&rule["rule"]));
    let mut lines = vec![match policies["refusedBy"].as_str() {
        Some(rule) => format!("policies refused by {rule}"),
        None => "policies no rule refuses it".to_owned(),
    }];
    lines.extend(limits.iter().map(|limit| {
        let shared = if limit["shared"] == true { ", shared" } else { "" };
        let tokens = limit["tokens"]
            .as_u64()
            .map(|tokens| format!("; costs {} of {tokens} tokens", limit["cost"]));
        let trigger = text(&limit["triggerPolicy"]);
        format!(
            "  {} ({trigger}{shared}): {}{}",
            name(limit),
            text(&limit["says"]),
            tokens.unwrap_or_default()
        )
    }));
    let others = breakers.iter().chain(&faults);
    lines.extend(others.map(|rule| format!("  {}: {}", name(rule), text(&rule["says"]))));
    lines
}

/// The kind of plan, then a line for each member that is asked.
fn plan(plan: &Value) -> Vec<String> {
    let Some((kind, detail)) = plan.as_object().and_then(|plan| plan.iter().next()) else {
        return vec![plan.to_string()];
    };
    match kind.as_str() {
        "forward" => vec![forward(detail)],
        "fanOut" => fan_out(detail),
        "choose" => choose(detail),
        "discovery" => vec![format!("union of what {} serve", words(detail))],
        "local" => vec![format!("answered by the router itself ({})", text(detail))],
        "refuse" => vec![format!("refuse: {}", text(detail))],
        // A router newer than this program.
        _ => vec![plan.to_string()],
    }
}

fn forward(forward: &Value) -> String {
    let only = forward["selector"]
        .as_str()
        .map(|selector| format!(", only {selector}"));
    format!(
        "forward to {} as {}{}",
        text(&forward["cluster"]),
        text(&forward["actAs"]),
        only.unwrap_or_default()
    )
}

fn fan_out(fan: &Value) -> Vec<String> {
    let legs = fan["legs"].as_array().map(Vec::as_slice).unwrap_or_default();
    let watch = fan["watch"].as_bool().unwrap_or_default();
    let mut first = format!(
        "merged {} over {} as {}",
        if watch { "watch" } else { "list" },
        counted(legs),
        text(&legs.first().unwrap_or(&Value::Null)["actAs"])
    );
    if !watch {
        let _ = write!(first, ", unavailable: {}", text(&fan["unavailable"]));
    }
    if fan["unique"].as_bool().unwrap_or_default() {
        first.push_str(", each name once");
    }
    [vec![first], each(legs)].concat()
}

fn choose(candidates: &Value) -> Vec<String> {
    let candidates = candidates.as_array().map(Vec::as_slice).unwrap_or_default();
    let user = text(&candidates.first().unwrap_or(&Value::Null)["actAs"]);
    let first = format!("to one of {} as {user}", counted(candidates));
    [vec![first], each(candidates)].concat()
}

fn counted(members: &[Value]) -> String {
    match members.len() {
        1 => "1 member".to_owned(),
        count => format!("{count} members"),
    }
}

/// Member, class of traffic, what is asked there, and why it is not asked now.
fn each(legs: &[Value]) -> Vec<String> {
    let name = |leg: &Value| text(&leg["cluster"]);
    let width = legs.iter().map(|leg| name(leg).chars().count()).max().unwrap_or(0);
    let line = |leg: &Value| {
        let held = leg["held"]
            .as_str()
            .map(|held| format!("; held, not asked now: {held}"));
        format!(
            "{:<width$}   {:<7}   {}{}",
            name(leg),
            text(&leg["class"]),
            asked(leg),
            held.unwrap_or_default()
        )
    };
    legs.iter().map(line).collect()
}

fn asked(leg: &Value) -> String {
    let selector = leg["selector"]
        .as_str()
        .map(|selector| format!("labelSelector {selector}"));
    let filter = leg["filter"]
        .as_str()
        .map(|filter| format!("the router keeps {filter}"));
    let asked: Vec<_> = selector.into_iter().chain(filter).collect();
    if asked.is_empty() {
        "whole".to_owned()
    } else {
        asked.join("; ")
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("-").to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const USER: &str = "system:serviceaccount:ops:op";

    fn told(plan: &Value) -> Vec<String> {
        let caller = json!({"homeCluster": "east", "namespace": "ops", "pod": "op-0", "serviceAccount": "op", "binding": "ops/a"});
        let answer = json!({
            "caller": caller,
            "request": {"verb": "list", "path": "/api/v1/pods", "view": "merged"},
            "plan": plan,
            "why": ["Merged: a collection", "leg east, cursor slot 0:", "  forward to member cluster east"],
        });
        report(&answer).lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_merged_list_has_a_line_for_each_member() {
        let leg = |cluster: &str, selector: Value, filter: Value, held: Value| json!({"cluster": cluster, "class": "unary", "actAs": USER, "selector": selector, "filter": filter, "held": held});
        let legs = [
            leg("east", json!("shard=a"), Value::Null, Value::Null),
            leg("northwest", Value::Null, json!("namespaces shop-c"), json!("cordoned")),
            leg("west", Value::Null, Value::Null, Value::Null),
        ];
        let plan = json!({"fanOut": {"watch": false, "unavailable": "Hold", "unique": false, "legs": legs}});
        let lines = [
            "caller   east/ops/op-0, ServiceAccount op, shard ops/a",
            "request  list /api/v1/pods (merged view)",
            "plan     merged list over 3 members as system:serviceaccount:ops:op, unavailable: Hold",
            "  east        unary     labelSelector shard=a",
            "  northwest   unary     the router keeps namespaces shop-c; held, not asked now: cordoned",
            "  west        unary     whole",
            "why",
            "  - Merged: a collection",
            "  - leg east, cursor slot 0:",
            "    - forward to member cluster east",
        ];
        assert_eq!(told(&plan), lines);
    }

    #[test]
    fn every_kind_of_plan_is_told_in_words() {
        let member = json!({"cluster": "east", "class": "unary", "actAs": USER, "selector": "shard=a"});
        let cases = [
            (
                json!({"forward": member}),
                "plan     forward to east as system:serviceaccount:ops:op, only shard=a",
            ),
            (
                json!({"choose": [member]}),
                "plan     to one of 1 member as system:serviceaccount:ops:op",
            ),
            (
                json!({"discovery": ["east", "west"]}),
                "plan     union of what east, west serve",
            ),
            (
                json!({"local": "ready"}),
                "plan     answered by the router itself (ready)",
            ),
            (json!({"refuse": "not yours"}), "plan     refuse: not yours"),
        ];
        for (plan, line) in cases {
            assert_eq!(told(&plan)[2], line);
        }
    }

    #[test]
    fn rules_of_policies_are_told_with_what_they_would_say() {
        let policy = "CircuitBreaker/ops/calm";
        let limit = |rule: &str, says: &str| json!({"policy": policy, "rule": rule, "triggerPolicy": "Normal", "shared": rule == "reads", "cost": 1, "tokens": 7, "says": says});
        let met = json!({
            "limits": [limit("deletes", "opened until it is closed by hand"), limit("reads", "passes")],
            "breakers": [{"policy": policy, "rule": "west-fails@west", "state": "closed", "says": "passes"}],
            "refusedBy": "CircuitBreaker/ops/calm/deletes",
            "faults": [{"policy": "FaultInjection/ops/f", "rule": "half", "says": "answers 50 of a hundred with 503"}],
        });
        let lines = [
            "policies refused by CircuitBreaker/ops/calm/deletes",
            "  CircuitBreaker/ops/calm/deletes (Normal): opened until it is closed by hand; costs 1 of 7 tokens",
            "  CircuitBreaker/ops/calm/reads (Normal, shared): passes; costs 1 of 7 tokens",
            "  CircuitBreaker/ops/calm/west-fails@west: passes",
            "  FaultInjection/ops/f/half: answers 50 of a hundred with 503",
        ];
        assert_eq!(policies(&met), lines);
        let none = json!({"limits": [], "breakers": [], "refusedBy": null});
        assert_eq!(policies(&none), ["policies meets no rule of any"]);
        assert!(policies(&Value::Null).is_empty(), "of a person, and by an older router");
    }

    #[test]
    fn a_person_and_a_request_that_cannot_be_read_are_told() {
        let answer = json!({
            "caller": {"user": "ada", "groups": ["sre", "dev"]},
            "request": {"method": "GET", "path": "/api/.."},
            "plan": {"refuse": "the path has dots"},
            "why": [],
        });
        let lines =
            "caller   user ada, groups sre, dev\nrequest  GET /api/..\nplan     refuse: the path has dots\nwhy\n";
        assert_eq!(report(&answer), lines);
    }
}
