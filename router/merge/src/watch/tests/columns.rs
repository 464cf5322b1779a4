//! Rows of members whose columns are named alike.

use serde_json::{Value, json};

use super::*;

/// What each of these events is to the client: the names of its columns, and its cells.
fn told(events: &[(usize, String)]) -> Vec<(Vec<String>, Value)> {
    let mut merge = merge(WatchFormat::Table, &[Start::At(1), Start::At(1)]);
    let mut out = Output::default();
    let mut told = Vec::new();
    for (leg, event) in events {
        merge.push(*leg, event.clone().into(), &mut out).unwrap();
        let event: Value = serde_json::from_slice(&drain(&mut out)[0]).unwrap();
        let columns = event["object"]["columnDefinitions"].as_array();
        let name = |column: &Value| column["name"].as_str().unwrap().to_owned();
        let names = columns.into_iter().flatten().map(name).collect();
        told.push((names, event["object"]["rows"][0]["cells"].clone()));
    }
    told
}

#[test]
fn a_members_own_cluster_column_stays_and_ours_is_last() {
    let own = r#"[{"name":"Name"},{"name":"Cluster"},{"name":"Age"}]"#;
    let told = told(&[
        (0, row(2, Some(own), r#"["a","blue","1s"]"#)),
        (1, row(2, Some(own), r#"["b","red","2s"]"#)),
    ]);
    assert_eq!(told[0].0, ["Name", "Cluster", "Age", "Cluster"]);
    assert_eq!(told[0].1, json!(["a", "blue", "1s", "m0"]));
    assert_eq!(told[1].1, json!(["b", "red", "2s", "m1"]));
}

#[test]
fn columns_of_one_name_keep_their_cells_and_what_is_missing_is_none() {
    let two = r#"[{"name":"Name"},{"name":"Port"},{"name":"Port"}]"#;
    let told = told(&[
        (0, row(2, Some(two), r#"["a",1,2]"#)),
        (
            1,
            row(
                2,
                Some(r#"[{"name":"Name"},{"name":"Port"},{"name":"New"}]"#),
                r#"["b",3,4]"#,
            ),
        ),
        (0, row(3, None, r#"["c",5,6]"#)),
    ]);
    assert_eq!(told[0].0, ["Name", "Port", "Port", "Cluster"]);
    assert_eq!(told[0].1, json!(["a", 1, 2, "m0"]));
    assert_eq!(told[1], (vec![], json!(["b", 3, "<none>", "m1"])));
    assert_eq!(told[2].1, json!(["c", 5, 6, "m0"]));
}

#[test]
fn rows_of_a_member_that_told_no_columns_go_on_as_they_are() {
    let told = told(&[(0, row(2, None, r#"["a"]"#)), (0, row(3, Some("[]"), r#"["b"]"#))]);
    assert_eq!(told, [(vec![], json!(["a", "m0"])), (vec![], json!(["b", "m0"]))]);
}

#[test]
fn rows_without_objects_are_merged_by_them_all_the_same() {
    let mut merge = merge(WatchFormat::Table, &[Start::At(1)]).hiding_objects();
    let mut out = Output::default();
    let first = row(2, Some(r#"[{"name":"Name"}]"#), r#"["a"]"#);
    merge.push(0, first.into(), &mut out).unwrap();
    let event: Value = serde_json::from_slice(&drain(&mut out)[0]).unwrap();
    assert_eq!(event["object"]["rows"], json!([{"cells": ["a", "m0"]}]));
    assert_eq!(merge.leg_state(0).slot, crate::cursor::Slot::At(2));
}

#[test]
fn an_event_has_one_row_and_that_says_what_it_is() {
    let mut merge = merge(WatchFormat::Table, &[Start::At(1)]);
    let mut out = Output::default();
    let good = row(2, None, r#"["a"]"#);
    let two = good.replace("\"rows\":[", "\"rows\":[{\"cells\":[\"b\"],\"object\":{\"kind\":\"PartialObjectMetadata\",\
        \"apiVersion\":\"meta.k8s.io/v1\",\"metadata\":{\"name\":\"q\",\"namespace\":\"other\",\"uid\":\"v\",\"resourceVersion\":\"2\"}}},");
    let rows = good.find("\"rows\":[").unwrap();
    let bare = format!("{}\"rows\":[{{\"cells\":[\"b\"]}}]}}}}\n", &good[..rows]);
    for bad in [two, bare] {
        let error = merge.push(0, bad.clone().into(), &mut out).unwrap_err();
        assert_eq!(error.fault, WatchFault::NotAnEvent, "{bad}");
    }
}
