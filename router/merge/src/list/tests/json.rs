//! JSON lists.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn list(items: &[Value], sorted: bool) -> Vec<u8> {
    let items = serde_json::to_string(items).unwrap();
    let meta = r#"{"selfLink":"","resourceVersion":"77","continue":"go \"on\"","remainingItemCount":3}"#;
    let text = if sorted {
        format!(r#"{{"apiVersion":"v1","items":{items},"kind":"ThingList","metadata":{meta}}}"#)
    } else {
        format!("{{\"kind\":\"ThingList\",\"apiVersion\":\"v1\",\"metadata\":{meta},\"items\":{items}}}\n")
    };
    text.into_bytes()
}

fn item(namespace: &str, name: &str, content: &str) -> Value {
    json!({
        "spec": {"items": [content, {"metadata": {"namespace": "not-this"}}], "kind": content},
        "metadata": {"name": name, "namespace": namespace, content: content},
        "kind": "Thing",
    })
}

/// Strings that look like the structure around them.
fn content() -> impl Strategy<Value = String> {
    prop_oneof![
        "[\\\\\"\\[\\]{}:,a-z]{0,40}",
        "\\PC{0,30}",
        Just(r#"],"kind":"x"}"#.to_owned()),
        Just("\\\\\"".to_owned()),
    ]
}

fn items() -> impl Strategy<Value = Vec<Value>> {
    let item = ("ns-[a-d]", "[a-z]{1,8}", content()).prop_map(|(namespace, name, text)| item(&namespace, &name, &text));
    proptest::collection::vec(item, 0..6)
}

fn legs() -> impl Strategy<Value = Vec<(Vec<Value>, bool, Vec<u16>)>> {
    let leg = (items(), any::<bool>(), proptest::collection::vec(any::<u16>(), 0..8));
    proptest::collection::vec(leg, 1..4)
}

fn read(merged: &Merged) -> Value {
    let value: Value = serde_json::from_slice(&merged.body).unwrap();
    assert_eq!(value["kind"], "ThingList");
    assert_eq!(value["apiVersion"], "v1");
    assert_eq!(
        value["metadata"],
        json!({"resourceVersion": meta().resource_version, "continue": "to\"ken"})
    );
    value
}

fn fault(body: impl Into<Bytes>) -> ListFault {
    let error = merge(
        ListFormat::Json,
        options(),
        vec![Body::whole(list(&[], false)), Body::whole(body)],
    )
    .err()
    .unwrap();
    assert_eq!((error.leg, &*error.cluster), (1, "c1"));
    error.fault
}

proptest! {
    #[test]
    fn a_merge_is_the_union(legs in legs()) {
        let bodies = legs.iter().map(|(items, sorted, cuts)| Body::cut(list(items, *sorted), cuts)).collect();
        let merged = merge(ListFormat::Json, options(), bodies).unwrap();
        let union: Vec<Value> = legs.iter().flat_map(|(items, ..)| items.clone()).collect();
        prop_assert_eq!(&read(&merged)["items"], &Value::Array(union));
        for meta in merged.metas {
            let expected = LegMeta { resource_version: "77".to_owned(), continue_: Some("go \"on\"".to_owned()), remaining: Some(3), shard_selector: None };
            prop_assert_eq!(meta, Some(expected));
        }
    }

    #[test]
    fn a_filter_leaves_what_it_admits(legs in legs()) {
        let bodies = legs.iter().map(|(items, sorted, cuts)| Body::cut(list(items, *sorted), cuts).only(&["ns-a", "ns-c"]));
        let merged = merge(ListFormat::Json, options(), bodies.collect()).unwrap();
        let mut union: Vec<Value> = legs.iter().flat_map(|(items, ..)| items.clone()).collect();
        union.retain(|item| ["ns-a", "ns-c"].contains(&item["metadata"]["namespace"].as_str().unwrap()));
        prop_assert_eq!(&read(&merged)["items"], &Value::Array(union));
    }

    #[test]
    fn a_name_counts_once_and_the_earlier_leg_has_it(legs in legs()) {
        let bodies = legs.iter().map(|(items, sorted, cuts)| Body::cut(list(items, *sorted), cuts)).collect();
        let merged = merge(ListFormat::Json, ListOptions { unique: true, ..options() }, bodies).unwrap();
        let (mut expected, mut taken) = (Vec::new(), std::collections::HashSet::new());
        for (items, ..) in &legs {
            let free = items.iter().filter(|item| !taken.contains(&item["metadata"]["name"])).cloned();
            expected.extend(free.collect::<Vec<_>>());
            taken.extend(items.iter().map(|item| item["metadata"]["name"].clone()));
        }
        let all: usize = legs.iter().map(|(items, ..)| items.len()).sum();
        prop_assert_eq!(merged.collisions, (all - expected.len()) as u64);
        prop_assert_eq!(&read(&merged)["items"], &Value::Array(expected));
    }

    #[test]
    fn a_cut_list_is_never_a_list(items in items(), sorted: bool, filtered: bool, at: u16) {
        let whole = list(&items, sorted);
        let at = (whole.len() - 1) * usize::from(at) / usize::from(u16::MAX);
        let at = if whole[at..] == *b"\n" { at - 1 } else { at };
        let mut body = Body::whole(whole[..at].to_vec());
        body.filter = filtered.then(|| only(&["ns-a"]));
        let error = merge(ListFormat::Json, options(), vec![body]).err().unwrap();
        prop_assert_eq!(error.fault, ListFault::Cut);
    }

    #[test]
    fn anything_else_is_an_error_and_no_panic(noise in proptest::collection::vec(any::<u8>(), 0..200), at: u16, items in items()) {
        let mut body = list(&items, false);
        let at = body.len() * usize::from(at) / usize::from(u16::MAX);
        let end = (at + noise.len()).min(body.len());
        body.splice(at..end, noise);
        for body in [Body::whole(body.clone()), Body::whole(body).only(&["ns-a"])] {
            // Noise within an item passes where items are not looked at; what comes out is the members' business then.
            let _ = merge(ListFormat::Json, options(), vec![body]);
        }
    }
}

#[test]
fn every_truncation_wants_more() {
    let items = [item("ns-a", "a", "\\\"]}"), item("ns-b", "b", "ü")];
    for (sorted, filter) in [
        (true, None),
        (false, None),
        (true, Some(only(&["ns-b"]))),
        (false, Some(only(&["ns-a"]))),
    ] {
        let whole = list(&items, sorted);
        let whole = whole.trim_ascii_end();
        for at in 0..whole.len() {
            let mut body = Body::bytewise(&whole[..at]);
            body.filter.clone_from(&filter);
            let error = merge(ListFormat::Json, options(), vec![body]).err().unwrap();
            assert_eq!(error.fault, ListFault::Cut, "at {at}");
        }
        let mut body = Body::bytewise(whole);
        body.filter.clone_from(&filter);
        let count = if filter.is_some() { 1 } else { 2 };
        assert_eq!(
            read(&merge(ListFormat::Json, options(), vec![body]).unwrap())["items"]
                .as_array()
                .unwrap()
                .len(),
            count
        );
    }
}

#[test]
fn nothing_is_a_list_too() {
    for empty in [r#""items":[]"#, r#""items" : [ ] "#, r#""items":null"#] {
        let body =
            format!(r#" {{"kind":"ThingList","apiVersion":"v1","metadata":{{"resourceVersion":"5"}},{empty}}} "#);
        let two = list(&[item("ns-a", "a", "")], true);
        let bodies = || {
            vec![
                Body::whole(body.clone()),
                Body::whole(two.clone()),
                Body::whole(body.clone()),
            ]
        };
        let merged = merge(ListFormat::Json, options(), bodies()).unwrap();
        assert_eq!(read(&merged)["items"].as_array().unwrap().len(), 1);
        assert_eq!(merged.metas[0].as_ref().unwrap().resource_version, "5");
        let filtered = bodies().into_iter().map(|body| body.only(&["ns-z"])).collect();
        assert_eq!(
            read(&merge(ListFormat::Json, options(), filtered).unwrap())["items"],
            json!([])
        );
    }
}

#[test]
fn what_is_no_list_names_the_member() {
    assert_eq!(
        fault(&b"<html>\n<body>busy"[..]),
        ListFault::NotAList("<html>\n<body>busy".to_owned())
    );
    assert_eq!(fault(&b"[]"[..]), ListFault::NotAList("[]".to_owned()));
    assert_eq!(fault(&b""[..]), ListFault::Cut);
    let status = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","code":500}"#;
    assert_eq!(
        fault(status),
        ListFault::NoItems {
            kind: "Status".to_owned()
        }
    );
    assert_eq!(fault("{}"), ListFault::NoItems { kind: String::new() });
    let other = list(&[], true);
    let other = String::from_utf8(other).unwrap().replace("ThingList", "OtherList");
    assert!(matches!(fault(other), ListFault::TypeDiffers { .. }));
    for broken in [
        r#"{"items":{}}"#,
        r#"{"items":7}"#,
        r#"{"items":"[]"}"#,
        r#"{"items":nope}"#,
        r#"{"items":[]]}"#,
        r#"{"items":[],"items":[]}"#,
        r#"{"items":[]} {}"#,
        r#"{"kind":7,"items":[]}"#,
        r#"{"items":[],}"#,
        r#"{"items" []}"#,
        r#"{"rows":[]}"#,
        r#"{"items":[],"metadata":[]}"#,
        r#"{"items":[],"kind":"ThingList"}"#,
        "{,}",
    ] {
        assert!(matches!(fault(broken), ListFault::Broken(_)), "{broken}");
    }
    let error = merge(ListFormat::Json, options(), vec![Body::whole(&b"<html>"[..])])
        .err()
        .unwrap();
    assert_eq!(
        error.to_string(),
        r#"c0: the answer is not a list; it begins with "<html>""#
    );
}

#[test]
fn nested_keys_are_not_the_lists_own() {
    let body = r#"{"x":{"items":[1],"metadata":{"resourceVersion":"9"}},"items":[{"items":[],"metadata":{"name":"a"}}],
        "\u006bind":"ThingList","y":["kind",{"kind":"no"}],"apiVersion":"v1","metadata":{"x":{"resourceVersion":"8"}}}"#;
    let merged = merge(ListFormat::Json, options(), vec![Body::bytewise(body.as_bytes())]).unwrap();
    assert_eq!(read(&merged)["items"][0]["metadata"]["name"], "a");
    assert_eq!(merged.metas, [Some(LegMeta::default())]);
}

#[test]
fn large_items_are_refused_where_they_must_be_held() {
    let body = list(&[item("ns-a", "a", &"x".repeat(1000))], false);
    let small = || ListOptions {
        max_item_bytes: 500,
        ..options()
    };
    let held = vec![Body::whole(body.clone()).only(&["ns-a"])];
    let error = merge(ListFormat::Json, small(), held).err().unwrap();
    assert_eq!(error.fault, ListFault::ItemTooLarge { limit: 500 });
    assert!(merge(ListFormat::Json, small(), vec![Body::whole(body)]).is_ok());
}

#[test]
fn depth_and_outer_values_are_bounded() {
    let deep = "[".repeat(1_000_000);
    assert_eq!(
        fault(format!(r#"{{"kind":"ThingList","items":[{deep}"#)),
        ListFault::Cut
    );
    assert_eq!(fault(format!(r#"{{"other":{deep}"#)), ListFault::Cut);
    let filtered = vec![Body::whole(format!(r#"{{"items":[{{"a":{deep}"#)).only(&["ns-a"])];
    assert!(merge(ListFormat::Json, options(), filtered).is_err());
    assert!(matches!(
        fault(format!(r#"{{"metadata":{deep}{deep}"#)),
        ListFault::Broken(_)
    ));
    assert!(matches!(
        fault(format!(r#"{{"{}"#, "k".repeat(2_000_000))),
        ListFault::Broken(_)
    ));
}

#[test]
fn slices_pass_uncopied_and_small_pieces_are_joined() {
    let items: Vec<_> = (0..2000)
        .map(|index| item("ns-a", &format!("n{index}"), &"x".repeat(100)))
        .collect();
    let body = Bytes::from(list(&items, false));
    let mut merge = ListMerge::new(
        ListFormat::Json,
        vec![ListLeg {
            cluster: "east".into(),
            filter: None,
        }],
        options(),
    );
    let mut out = VecDeque::new();
    merge.push(0, body.clone(), &mut out).unwrap();
    let range = body.as_ptr_range();
    assert!(range.contains(&out[1].as_ptr()), "a slice of what came in");
    assert_eq!(out.len(), 2);
    let filtered = Body::cut(body, &[3000; 40]).only(&["ns-a"]);
    let cuts = filtered.pieces.len();
    let merged = super::merge(ListFormat::Json, options(), vec![filtered]).unwrap();
    assert!(merged.pieces < 20 + 2 * cuts, "{} pieces", merged.pieces);
}

#[test]
fn bytes_out_of_turn_are_kept_and_errors_stay() {
    let body = || Bytes::from(list(&[item("ns-a", "a", "")], false));
    let leg = |name: &str| ListLeg {
        cluster: name.into(),
        filter: None,
    };
    let mut merge = ListMerge::new(ListFormat::Json, vec![leg("east"), leg("west")], options());
    let mut out = VecDeque::new();
    merge.push(1, body(), &mut out).unwrap();
    merge.end(1, &mut out).unwrap();
    assert!(out.is_empty());
    assert_eq!(
        merge.set_meta(meta(), &mut out).err().unwrap().fault,
        ListFault::OutOfTurn
    );
    merge.push(0, body(), &mut out).unwrap();
    assert_eq!(
        merge.metas(),
        [
            Some(LegMeta {
                resource_version: "77".to_owned(),
                continue_: Some("go \"on\"".to_owned()),
                remaining: Some(3),
                shard_selector: None,
            }),
            None
        ]
    );
    merge.end(0, &mut out).unwrap();
    assert_eq!(merge.wants(), Wants::Meta);
    let mut broken = ListMerge::new(ListFormat::Json, vec![leg("east")], options());
    let error = broken.push(0, Bytes::from_static(b"no"), &mut out).err().unwrap();
    assert_eq!(broken.end(0, &mut out), Err(error.clone()));
    assert_eq!(broken.set_meta(meta(), &mut out), Err(error));
    assert_ne!(broken.wants(), Wants::Done);
}
