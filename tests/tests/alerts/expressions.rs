//! Reads the expressions of rule files and dashboards, and the names within each. No parser of PromQL: `promtool` has one, and
//! refuses what is not well-formed.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use crate::folder;

/// One expression and where it stands.
#[derive(Debug)]
pub(crate) struct Expression {
    pub(crate) place: String,
    pub(crate) text: String,
}

/// What an expression names.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Named {
    /// A metric, and a label that is asked of it.
    pub(crate) matched: BTreeSet<(String, String)>,
    pub(crate) metrics: BTreeSet<String>,
    /// Labels that it is grouped by.
    pub(crate) grouped: BTreeSet<String>,
}

pub(crate) fn rules() -> Value {
    let text = fs::read_to_string(folder().join("alerts.yaml")).unwrap();
    serde_yaml_ng::from_str(&text).unwrap()
}

/// The rules of all groups.
pub(crate) fn alerts() -> Vec<Value> {
    let rules = rules();
    let groups = rules["groups"].as_array().unwrap();
    let rules = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
    rules.cloned().collect()
}

pub(crate) fn dashboards() -> Vec<(String, Value)> {
    let files = fs::read_dir(folder().join("dashboards")).unwrap();
    let read = |file: fs::DirEntry| {
        let text = fs::read_to_string(file.path()).unwrap();
        let name = file.file_name().to_string_lossy().into_owned();
        (name, serde_json::from_str(&text).unwrap())
    };
    files.map(|file| read(file.unwrap())).collect()
}

/// Of all rules, panels and variables.
pub(crate) fn all() -> Vec<Expression> {
    let of_rule = |rule: &Value| Expression {
        place: rule["alert"].as_str().unwrap().to_owned(),
        text: rule["expr"].as_str().unwrap().to_owned(),
    };
    let mut all: Vec<Expression> = alerts().iter().map(of_rule).collect();
    for (file, dashboard) in dashboards() {
        for panel in dashboard["panels"].as_array().unwrap() {
            let targets = panel["targets"].as_array().into_iter().flatten();
            all.extend(targets.map(|target| Expression {
                place: format!("{file}: {}", panel["title"]),
                text: target["expr"].as_str().unwrap().to_owned(),
            }));
        }
        for variable in dashboard["templating"]["list"].as_array().unwrap() {
            if let Some(query) = variable["query"]["query"].as_str() {
                let within = query.strip_prefix("label_values(").unwrap().trim_end_matches(')');
                let (metric, label) = within.split_once(", ").unwrap();
                all.push(Expression {
                    place: format!("{file}: variable {}", variable["name"]),
                    text: format!("sum by ({label}) ({metric})"),
                });
            }
        }
    }
    all
}

/// Words that are followed by labels in parentheses.
const GROUPING: [&str; 5] = ["by", "without", "on", "group_left", "ignoring"];

/// Walks over words: one that is followed by neither `(` nor is a word of the language is a metric.
pub(crate) fn named(text: &str) -> Named {
    let mut named = Named::default();
    let mut rest = text;
    while let Some(at) =
        rest.find(|c: char| c.is_ascii_alphabetic() || c == '_' || c == '"' || c == '[' || c.is_ascii_digit())
    {
        rest = &rest[at..];
        match rest.as_bytes()[0] {
            b'"' => rest = rest[1..].split_once('"').map_or("", |(_, after)| after),
            b'[' => rest = rest.split_once(']').map_or("", |(_, after)| after),
            _ => {
                let end = rest
                    .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'))
                    .unwrap_or(rest.len());
                let (word, after) = rest.split_at(end);
                rest = read_word(word, after.trim_start(), &mut named);
            }
        }
    }
    named
}

/// One word and what belongs to it; returns what follows.
fn read_word<'a>(word: &str, after: &'a str, named: &mut Named) -> &'a str {
    if GROUPING.contains(&word) {
        let (labels, after) = after.trim_start_matches('(').split_once(')').unwrap();
        let labels = labels.split(',').map(|label| label.trim().to_owned());
        named.grouped.extend(labels.filter(|label| !label.is_empty()));
        return after;
    }
    let is_number = word.starts_with(|c: char| c.is_ascii_digit());
    if is_number || after.starts_with('(') || ["and", "or", "unless", "bool"].contains(&word) || aggregates(word) {
        return after;
    }
    named.metrics.insert(word.to_owned());
    let Some(within) = after.strip_prefix('{') else {
        return after;
    };
    let (matchers, after) = within.split_once('}').unwrap();
    // Values have no comma in any rule or dashboard of ours.
    for matcher in matchers.split(',') {
        let label = matcher.split(['=', '!']).next().unwrap().trim();
        named.matched.insert((word.to_owned(), label.to_owned()));
    }
    after
}

/// Those that may be followed by `by` before their parenthesis.
fn aggregates(word: &str) -> bool {
    ["sum", "max", "min", "count", "avg", "group", "topk"].contains(&word)
}

#[test]
fn names_of_an_expression() {
    let text = r#"histogram_quantile(0.5, sum by (cluster, le) (rate(a_bucket{class="unary",verb=~"get|\\w"}[5m]))) > 1 or b_total and max(c) == 2"#;
    let found = named(text);
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(found.metrics, words(&["a_bucket", "b_total", "c"]));
    assert_eq!(found.grouped, words(&["cluster", "le"]));
    let labels: Vec<&str> = found.matched.iter().map(|(_, label)| label.as_str()).collect();
    assert_eq!(labels, ["class", "verb"]);
}
