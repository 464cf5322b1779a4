//! Everything that rules and dashboards name is there, and everything that they point to.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use portolan_testbed::{Fault, eventually};

use crate::exposed::{Names, TARGET, add_names};
use crate::expressions::{alerts, all, dashboards, named};
use crate::{EAST, Ground, PROGRAMS, WEST, folder, ground};

/// All that the programs tell by now.
async fn names(ground: &Ground) -> Names {
    // Prometheus' own, of each target.
    let mut names = Names::from([("up".to_owned(), BTreeSet::new())]);
    for (program, _) in PROGRAMS {
        add_names(&ground.told(program).await.unwrap(), &mut names);
    }
    names
}

/// What is named and is not there, by where.
fn missing(names: &Names) -> BTreeMap<String, Vec<String>> {
    let mut missing: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let ours = |label: &String| !TARGET.contains(&label.as_str());
    for expression in all() {
        let named = named(&expression.text);
        assert!(!named.metrics.is_empty(), "{expression:?}");
        let mut told = Vec::new();
        told.extend(
            named
                .metrics
                .iter()
                .filter(|metric| !names.contains_key(*metric))
                .cloned(),
        );
        let has = |metric: &String, label: &String| names.get(metric).is_none_or(|labels| labels.contains(label));
        let matched = named
            .matched
            .iter()
            .filter(|(metric, label)| ours(label) && !has(metric, label));
        told.extend(matched.map(|(metric, label)| format!("{metric}{{{label}}}")));
        let grouped = named.grouped.iter().filter(|label| ours(label));
        let lost = grouped.filter(|label| !named.metrics.iter().any(|metric| has(metric, label)));
        told.extend(lost.map(|label| format!("by ({label})")));
        if !told.is_empty() {
            missing.entry(expression.place).or_default().extend(told);
        }
    }
    missing
}

/// A fleet that has served, and a member that was away for a moment.
#[tokio::test]
async fn are_there() {
    let ground = ground().await;
    let door = ground.world.merged_door("alpha").await.unwrap();
    let line = door.open().await.unwrap();
    let watch = "/api/v1/configmaps?watch=true&resourceVersion=0&allowWatchBookmarks=true";
    let request = portolan_tests::door::request(http::Method::GET, watch, &[], &[]).unwrap();
    let _watch = line.send(request).await.unwrap();
    ground.world.cluster("west").fault(Fault::Reset).await.unwrap();
    let list = "/api/v1/configmaps";
    eventually("west's breaker is open, and a list has been held", || async {
        let _ = door.get(WEST, &[]).await;
        let _ = door.get(list, &[]).await;
        let told = ground.told("router").await.unwrap();
        told.contains("code=\"refused\"") && told.contains("lists_without_member_total{")
    })
    .await;
    ground.is_whole().await;
    assert_eq!(door.get(EAST, &[]).await.unwrap().status, 200);
    eventually("all that is named is told", || async {
        let missing = missing(&names(&ground).await);
        if missing.is_empty() {
            Ok(())
        } else {
            Err(format!("{missing:#?}"))
        }
    })
    .await;
}

/// The chapters of a page of the manual, as links name them.
fn anchors(file: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(folder().join("../..").join(file)).unwrap();
    let titles = text.lines().filter_map(|line| line.strip_prefix('#'));
    let anchor = |title: &str| {
        let title = title.trim_start_matches(['#', ' ']).to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.collect::<String>().replace(' ', "-")
    };
    titles.map(anchor).collect()
}

#[test]
fn alerts_say_what_to_do() {
    let mut names = BTreeSet::new();
    let tests = fs::read_to_string(folder().join("alerts_test.yaml")).unwrap();
    let manual = fs::read_to_string(folder().join("../../docs/operations.md")).unwrap();
    for alert in alerts() {
        let name = alert["alert"].as_str().unwrap();
        assert!(names.insert(name.to_owned()), "{name} twice");
        let told = &alert["annotations"];
        for key in ["summary", "description", "runbook"] {
            assert!(told[key].as_str().is_some_and(|text| !text.is_empty()), "{name}: {key}");
        }
        let (file, anchor) = told["runbook"].as_str().unwrap().split_once('#').unwrap();
        assert!(anchors(file).contains(anchor), "{name}: {file} has no {anchor}");
        assert!(
            ["page", "ticket"].contains(&alert["labels"]["severity"].as_str().unwrap()),
            "{name}"
        );
        assert!(tests.contains(&format!("- name: {name}\n")), "{name} is not tested");
        assert!(manual.contains(&format!("| `{name}` |")), "{name} is not in the manual");
    }
}

#[test]
fn dashboards_can_be_told_apart() {
    let mut uids = BTreeSet::new();
    for (file, dashboard) in dashboards() {
        let uid = dashboard["uid"].as_str().unwrap();
        assert!(uids.insert(uid.to_owned()), "{file}: {uid} twice");
        let panels = dashboard["panels"].as_array().unwrap();
        let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
        assert_eq!(ids.len(), panels.len(), "{file}");
        for panel in panels.iter().filter(|panel| panel["type"] != "row") {
            assert_eq!(
                panel["datasource"]["uid"], "${datasource}",
                "{file}: {}",
                panel["title"]
            );
        }
    }
    assert_eq!(uids.len(), 3);
}
