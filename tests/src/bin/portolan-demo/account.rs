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
        let (namespace, resource) = what(text("path"));
        let route = format!(
            "{:<7} {resource:<14} in {namespace:<10} -> {}",
            text("verb"),
            text("cluster")
        );
        *counts.entry(route).or_default() += 1;
    }
    Ok(counts
        .into_iter()
        .map(|(route, count)| format!("{count:>4} x {route}"))
        .collect())
}

/// Namespace and resource of a namespaced path.
fn what(path: &str) -> (&str, &str) {
    let path = path.split('?').next().unwrap_or(path);
    let mut rest = path.split('/').skip_while(|segment| *segment != "namespaces").skip(1);
    (rest.next().unwrap_or("-"), rest.next().unwrap_or("-"))
}
