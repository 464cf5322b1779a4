//! Unions of indexes and documents, in both encodings.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn index(entries: &[(&str, &str)]) -> Index {
    entries
        .iter()
        .map(|(path, hash)| ((*path).to_owned(), (*hash).to_owned()))
        .collect()
}

#[test]
fn an_index_is_read_and_united() {
    let body = r#"{"paths":{"api":{"serverRelativeURL":"/openapi/v3/api?hash=AB"},"apis/x":{"serverRelativeURL":"/openapi/v3/apis/x?hash=CD&y=1"}}}"#;
    let east = parse_index(body.as_bytes()).unwrap();
    assert_eq!(east, index(&[("api", "AB"), ("apis/x", "CD")]));
    let west = index(&[("api", "AB"), ("apis/x", "EF"), ("apis/y", "12")]);
    let united = unite_indexes(&[("east", &east), ("west", &west)]);
    let united = parse_index(&united).unwrap();
    assert_eq!(united["api"], "AB", "the same everywhere: its own hash");
    assert_eq!(united["apis/y"], "12");
    assert_eq!(united["apis/x"], combined(&["CD", "EF"]));
    assert_eq!(
        sources(&[("east", &east), ("west", &west)], "apis/x"),
        [("east", "CD"), ("west", "EF")]
    );
    assert_eq!(sources(&[("east", &east), ("west", &west)], "api"), [("east", "AB")]);
    assert_eq!(combined(&["a", "b", "c"]), combined(&["a", "c", "b"]));
    assert_ne!(
        combined(&["a", "b"]),
        combined(&["b", "a"]),
        "the first one's word counts"
    );
}

#[test]
fn json_documents_are_united_by_name() {
    let east = br#"{"swagger":"2.0","info":{"title":"K"},"paths":{"/a":{"x":1}},"definitions":{"A":{"d":"east"}}}"#;
    let west =
        br#"{"swagger":"2.0","info":{"title":"W"},"paths":{"/a":{"x":2},"/b":{}},"definitions":{"A":{},"B":{"d":1}}}"#;
    let united: Value = serde_json::from_slice(&unite_json(Edition::V2, &[east, west]).unwrap()).unwrap();
    assert_eq!(
        united,
        json!({"swagger": "2.0", "info": {"title": "K"}, "paths": {"/a": {"x": 1}, "/b": {}},
            "definitions": {"A": {"d": "east"}, "B": {"d": 1}}})
    );
    let east = br#"{"openapi":"3.0.0","paths":{},"components":{"schemas":{"A":{}},"securitySchemes":{"t":1}}}"#;
    let west = br#"{"openapi":"3.0.0","paths":{"/b":1},"components":{"schemas":{"B":{}}}}"#;
    let united: Value = serde_json::from_slice(&unite_json(Edition::V3, &[east, west]).unwrap()).unwrap();
    assert_eq!(
        united,
        json!({"openapi": "3.0.0", "paths": {"/b": 1}, "components": {"schemas": {"A": {}, "B": {}}, "securitySchemes": {"t": 1}}})
    );
    assert_eq!(unite_json(Edition::V2, &[b"{}", b"<html>"]), None);
}

fn named(name: &str, value: &str) -> Vec<u8> {
    let mut message = Vec::new();
    wire::put(&mut message, 1, name.as_bytes());
    wire::put(&mut message, 2, value.as_bytes());
    message
}

fn document(way: Way, entries: &[(&str, &str)]) -> Vec<u8> {
    let mut fields = Vec::new();
    let (last, _) = way.split_last().expect("not empty");
    for (name, value) in entries {
        wire::put(&mut fields, *last, &named(name, value));
    }
    let mut out = Vec::new();
    wrap(&mut out, way, fields);
    out
}

fn entries(message: &[u8], way: Way) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    each(message, way, &mut |name, raw| {
        all.push((String::from_utf8(name.to_vec()).unwrap(), raw.to_vec()));
    })
    .unwrap();
    all
}

#[test]
fn protobuf_documents_are_united_by_name() {
    for (edition, ways) in [(Edition::V2, V2), (Edition::V3, V3)] {
        let both = |first: &[(&str, &str)], second: &[(&str, &str)]| {
            [document(ways[0], first), document(ways[1], second)].concat()
        };
        let east = both(&[("/a", "east")], &[("A", "east")]);
        let west = both(&[("/a", "west"), ("/b", "west")], &[("B", "west"), ("A", "west")]);
        let united = unite_protobuf(edition, &[&east, &west, &west]).unwrap();
        let names = |way| {
            entries(&united, way)
                .into_iter()
                .map(|(name, _)| name)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            (names(ways[0]), names(ways[1])),
            (vec!["/a".into(), "/b".into()], vec!["A".into(), "B".into()])
        );
        assert!(united.starts_with(&east), "the first one's is untouched");
        assert_eq!(unite_protobuf(edition, &[&east, &west[..west.len() - 1]]), None, "cut");
    }
}

proptest! {
    #[test]
    fn protobuf_survives_anything(a in proptest::collection::vec(any::<u8>(), 0..64), b in proptest::collection::vec(any::<u8>(), 0..64)) {
        let _ = unite_protobuf(Edition::V3, &[&a, &b]);
        let _ = unite_json(Edition::V3, &[&a, &b]);
        let _ = parse_index(&a);
    }

    #[test]
    fn every_name_is_there_once(first in proptest::collection::btree_set("[a-c]", 0..3), second in proptest::collection::btree_set("[a-c]", 0..3)) {
        let all = |names: &BTreeSet<String>| document(V2[1], &names.iter().map(|name| (name.as_str(), "x")).collect::<Vec<_>>());
        let united = unite_protobuf(Edition::V2, &[&all(&first), &all(&second)]).unwrap();
        let mut names: Vec<_> = entries(&united, V2[1]).into_iter().map(|(name, _)| name).collect();
        names.sort();
        prop_assert_eq!(names, first.union(&second).cloned().collect::<Vec<_>>());
    }
}
