//! Tables.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn row(namespace: &str, name: &str, cells: &[&str]) -> Value {
    json!({"cells": cells, "object": {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": {"name": name, "namespace": namespace}}})
}

fn table(columns: &[&str], rows: &[Value]) -> String {
    let columns: Vec<Value> = columns
        .iter()
        .map(|name| json!({"name": name, "type": "string", "priority": 0}))
        .collect();
    let (columns, rows) = (json!(columns), json!(rows));
    format!(
        r#"{{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{{"resourceVersion":"7"}},"columnDefinitions":{columns},"rows":{rows}}}"#
    )
}

fn read(merged: &Merged) -> Value {
    let value: Value = serde_json::from_slice(&merged.body).unwrap();
    assert_eq!(
        (&value["kind"], &value["apiVersion"]),
        (&json!("Table"), &json!("meta.k8s.io/v1"))
    );
    assert_eq!(value["metadata"]["resourceVersion"], meta().resource_version);
    assert_eq!(merged.metas[0].as_ref().unwrap().resource_version, "7");
    value
}

fn names(table: &Value) -> Vec<&str> {
    let columns = table["columnDefinitions"].as_array().unwrap();
    columns.iter().map(|column| column["name"].as_str().unwrap()).collect()
}

fn cells(table: &Value) -> Vec<Value> {
    table["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["cells"].clone())
        .collect()
}

#[test]
fn columns_of_different_versions_are_aligned() {
    let east = table(&["Name", "Ready", "Age"], &[row("ns-a", "a", &["a", "1/1", "2d"])]);
    let west = table(&["Name", "Age", "IP"], &[row("ns-b", "b", &["b", "3d", "10.0.0.1"])]);
    let bodies = || vec![Body::bytewise(east.as_bytes()), Body::whole(west.clone())];
    let merged = merge(ListFormat::Table, options(), bodies()).unwrap();
    let read_back = read(&merged);
    assert_eq!(names(&read_back), ["Name", "Ready", "Age", "IP"]);
    assert_eq!(
        cells(&read_back),
        [
            json!(["a", "1/1", "2d", "<none>"]),
            json!(["b", "<none>", "3d", "10.0.0.1"])
        ]
    );
    assert_eq!(read_back["rows"][1]["object"]["metadata"]["namespace"], "ns-b");

    let wide = ListOptions {
        cluster_column: true,
        hide_objects: true,
        ..options()
    };
    let read_back = read(&merge(ListFormat::Table, wide, bodies()).unwrap());
    assert_eq!(names(&read_back), ["Name", "Ready", "Age", "IP", "Cluster"]);
    assert_eq!(read_back["columnDefinitions"][4]["priority"], 1);
    assert_eq!(cells(&read_back)[1], json!(["b", "<none>", "3d", "10.0.0.1", "c1"]));
    assert_eq!(read_back["rows"][0].get("object"), None);
}

#[test]
fn rows_are_filtered_and_unique() {
    let rows = [row("ns-a", "a", &["a"]), row("ns-b", "b", &["b"])];
    let body = table(&["Name"], &rows);
    let bodies = vec![
        Body::whole(body.clone()).only(&["ns-a"]),
        Body::whole(body.clone()).only(&["ns-b"]),
    ];
    assert_eq!(
        cells(&read(&merge(ListFormat::Table, options(), bodies).unwrap())),
        [json!(["a"]), json!(["b"])]
    );
    let unique = ListOptions {
        unique: true,
        ..options()
    };
    let merged = merge(
        ListFormat::Table,
        unique,
        vec![Body::whole(body.clone()), Body::whole(body)],
    )
    .unwrap();
    assert_eq!((merged.collisions, cells(&read(&merged)).len()), (2, 2));
    let bare = table(&["Name"], &[json!({"cells": ["a"]})]);
    let error = merge(
        ListFormat::Table,
        options(),
        vec![Body::whole(bare.clone()).only(&["ns-a"])],
    )
    .err()
    .unwrap();
    assert_eq!(error.fault, ListFault::NoObject);
    assert_eq!(
        cells(&read(
            &merge(ListFormat::Table, options(), vec![Body::whole(bare)]).unwrap()
        )),
        [json!(["a"])]
    );
}

#[test]
fn kinds_without_a_table_come_as_lists() {
    let list = r#"{"kind":"ThingList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a"}}]}"#;
    let merged = merge(ListFormat::Table, options(), vec![Body::whole(list), Body::whole(list)]).unwrap();
    let value: Value = serde_json::from_slice(&merged.body).unwrap();
    assert_eq!(
        (&value["kind"], value["items"].as_array().unwrap().len()),
        (&json!("ThingList"), 2)
    );
    let error = merge(
        ListFormat::Table,
        options(),
        vec![Body::whole(table(&[], &[])), Body::whole(list)],
    )
    .err()
    .unwrap();
    assert!(error.leg == 1 && matches!(error.fault, ListFault::Broken(_)));
}

#[test]
fn empty_and_broken_tables() {
    let null = r#"{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"7"},"columnDefinitions":null,"rows":null}"#;
    let some = table(&["Name"], &[row("ns-a", "a", &["a"])]);
    let merged = merge(
        ListFormat::Table,
        options(),
        vec![Body::whole(null), Body::whole(some.clone())],
    )
    .unwrap();
    assert_eq!(cells(&read(&merged)), [json!(["a"])]);
    for at in 0..some.len() {
        let error = merge(ListFormat::Table, options(), vec![Body::whole(some[..at].to_owned())])
            .err()
            .unwrap();
        assert_eq!(error.fault, ListFault::Cut, "at {at}");
    }
    for broken in [
        some.replace("[\"a\"]", "7"),
        some.replace("\"cells\"", "\"cell\""),
        some.replace("\"name\":", "\"name\":7,\"x\":"),
    ] {
        assert!(matches!(
            merge(ListFormat::Table, options(), vec![Body::whole(broken)])
                .err()
                .unwrap()
                .fault,
            ListFault::Broken(_)
        ));
    }
}

proptest! {
    #[test]
    fn rows_of_any_cut_are_the_union(
        legs in proptest::collection::vec((proptest::collection::vec("\\PC{0,12}", 0..5), proptest::collection::vec(any::<u16>(), 0..6)), 1..4),
    ) {
        let rows = |cells: &Vec<String>| cells.iter().map(|cell| row("ns-a", "a", &[cell])).collect::<Vec<_>>();
        let bodies = legs.iter().map(|(cells, cuts)| Body::cut(table(&["Name"], &rows(cells)), cuts)).collect();
        let merged = merge(ListFormat::Table, options(), bodies).unwrap();
        let expected: Vec<_> = legs.iter().flat_map(|(cells, _)| cells).map(|cell| json!([cell])).collect();
        prop_assert_eq!(cells(&read(&merged)), expected);
    }
}
