//! The readable account: step heads, and where each request went, read from the router's completion records.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

/// Prints the head of a step.
pub(crate) fn head(text: &str) {
    println!("\n== {text}");
}

/// Prints what a program printed, indented.
pub(crate) fn quote(text: &str) {
    for line in text.lines() {
        println!("   {line}");
    }
}

/// Counts the router's completion records by verb, resource and member.
pub(crate) fn where_requests_went(log: &Path) -> anyhow::Result<Vec<String>> {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for line in std::fs::read_to_string(log)?.lines() {
        let Ok(record) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        if record["target"] != "access" || record["shard"].is_null() {
            continue;
        }
        let text = |key: &str| record[key].as_str().unwrap_or("-");
        let Some((namespace, resource)) = what(text("path")) else {
            continue;
        };
        let to = match text("rule") {
            "all-namespaces" => "all members, merged",
            _ => text("cluster"),
        };
        let route = format!("{:<7} {resource:<14} in {namespace:<10} -> {to}", text("verb"));
        *counts.entry(route).or_default() += 1;
    }
    Ok(counts
        .into_iter()
        .map(|(route, count)| format!("{count:>4} x {route}"))
        .collect())
}

/// Namespace and resource of a path; nothing for discovery.
fn what(path: &str) -> Option<(&str, &str)> {
    let mut segments = path.split('?').next().unwrap_or(path).split('/').skip(1);
    match segments.next()? {
        "api" => segments.next()?,
        "apis" => segments.nth(1)?,
        _ => return None,
    };
    match segments.next()? {
        "namespaces" => Some((segments.next()?, segments.next().unwrap_or("-"))),
        resource => Some(("all", resource)),
    }
}
