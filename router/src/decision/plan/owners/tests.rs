//! What bodies say of owners, in every spelling that an API server reads, and what follows from what members have.

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::value::object::protobuf::{MAGIC, put};

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const JSON_PATCH: &str = "application/json-patch+json";
const ENTRY: &str = r#"{"apiVersion":"x.io/v1","kind":"Port","name":"p","uid":"u"}"#;

fn owner() -> Owner {
    Owner::new("x.io/v1", "Port".into(), "p".into(), "u".into())
}

/// The owners, or the code of the refusal.
fn named(kind: &str, body: &[u8]) -> Result<Vec<Owner>, u16> {
    let verb = if kind.contains("patch") {
        Verb::Patch
    } else {
        Verb::Create
    };
    match read(verb, Some(kind), body) {
        Ok(Named::Owners(owners)) => Ok(owners),
        Ok(Named::ByResult(patch)) => panic!("{patch:?}"),
        Err(fault) => Err(fault.status_code().as_u16()),
    }
}

fn object(list: &str) -> String {
    format!(r#"{{"metadata":{{"name":"c","ownerReferences":[{list}]}}}}"#)
}

#[test]
fn owners_are_read_from_objects_and_patches() {
    for kind in [JSON, MERGE, STRATEGIC, APPLY, "application/yaml"] {
        assert_eq!(named(kind, object(ENTRY).as_bytes()), Ok(vec![owner()]), "{kind}");
        for none in [
            r#"{"metadata":{"name":"c"}}"#,
            r#"{"metadata":{"name":"c","ownerReferences":null}}"#,
            r#"{"data":{"a":"ownerReferences"}}"#,
            r#"{"data":{"a":"\u003cb\u003e"},"data":{}}"#,
        ] {
            assert_eq!(named(kind, none.as_bytes()), Ok(Vec::new()), "{kind} {none}");
        }
    }
    assert_eq!(
        named(APPLY, b"metadata: {name: c}\ndata: {a: 'if [ ! -f b ]; then c\\d'}\n"),
        Ok(Vec::new())
    );
    assert_eq!(
        named(
            STRATEGIC,
            br#"{"metadata":{"ownerReferences":[{"$patch":"delete","uid":"u"}]}}"#
        ),
        Ok(Vec::new())
    );
    assert_eq!(
        named(
            STRATEGIC,
            br#"{"metadata":{"ownerReferences":[{"uid":"u","controller":true}]}}"#
        ),
        Ok(Vec::new())
    );
}

#[test]
fn owners_are_read_however_the_field_is_spelled() {
    let yaml = "metadata:\n  \"owner\\x52eferences\":\n  - {apiVersion: x.io/v1, kind: Port, name: p, uid: u}\n";
    let folded =
        "metadata:\n  ? \"owner\\\n    References\"\n  :\n  - {apiVersion: x.io/v1, kind: Port, name: p, uid: u}\n";
    for (kind, body) in [
        (JSON, object(ENTRY).replace("ownerReferences", "ownerReference\\u0073")),
        (MERGE, object(ENTRY).replace("ownerReferences", "\\u006FwnerReferences")),
        (APPLY, object(ENTRY).replace("ownerReferences", "owner\\u0052eferences")),
        ("application/yaml", yaml.to_owned()),
        ("application/yaml", folded.to_owned()),
    ] {
        assert_eq!(named(kind, body.as_bytes()), Ok(vec![owner()]), "{kind} {body}");
    }
}

#[test]
fn what_cannot_be_read_surely_is_refused() {
    let twice = object(ENTRY).replace(r#""name":"c""#, r#""ownerReferences":[]"#);
    let base64 = "metadata:\n  !!binary b3duZXJSZWZlcmVuY2Vz: []\n";
    let utf16: Vec<u8> = [0xFF, 0xFE]
        .into_iter()
        .chain("a: 'b".bytes().flat_map(|byte| [byte, 0]))
        .collect();
    let many = [ENTRY; 65].join(",");
    for (kind, body, code) in [
        (JSON, twice.into_bytes(), 400),
        (JSON, br#"{"metadata":{"ownerReferences":["#.to_vec(), 400),
        (JSON, br#"{"metadata":{"ownerReferences":{}}}"#.to_vec(), 400),
        ("application/yaml", base64.as_bytes().to_vec(), 400),
        ("application/yaml", utf16, 400),
        ("application/cbor", b"x".to_vec(), 415),
        (JSON, object(&many).into_bytes(), 422),
        (STRATEGIC, object(r#"{"uid":"u","name":"other"}"#).into_bytes(), 422),
        (APPLY, object(r#"{"uid":"u","kind":"Pod"}"#).into_bytes(), 422),
        (JSON_PATCH, b"{}".to_vec(), 400),
    ] {
        assert_eq!(
            named(kind, &body),
            Err(code),
            "{kind} {}",
            String::from_utf8_lossy(&body)
        );
    }
    assert_eq!(
        named(JSON, object(&[ENTRY; 64].join(",")).as_bytes()).unwrap().len(),
        64
    );
}

#[test]
fn owners_are_read_from_protobuf() {
    let message = |fields: &[(u64, &[u8])]| {
        let mut out = Vec::new();
        for (number, content) in fields {
            put(&mut out, *number, content);
        }
        out
    };
    let entry = message(&[(1, b"Port"), (3, b"p"), (4, b"u"), (5, b"x.io/v1")]);
    let object = message(&[(1, &message(&[(1, b"c"), (13, &entry)]))]);
    let body = [MAGIC, &message(&[(2, &object)])].concat();
    let kind = "application/vnd.kubernetes.protobuf";
    assert_eq!(named(kind, &body), Ok(vec![owner()]));
    assert_eq!(named(kind, b"k8s\0\xff\xff"), Err(400));
}

fn stored() -> Value {
    json!({
        "metadata": {
            "name": "c", "resourceVersion": "7",
            "ownerReferences": [{"apiVersion": "x.io/v1", "kind": "Port", "name": "p", "uid": "u"}],
        },
        "spec": {"template": {"metadata": {"ownerReferences": [
            {"apiVersion": "x.io/v1", "kind": "Port", "name": "q", "uid": "v"},
        ]}}},
    })
}

/// What a JSON patch makes of the stored object: names of its owners; `None` if it can add none; or the code of the refusal.
fn patched(operations: &Value) -> Result<Option<Vec<String>>, u16> {
    let body = Bytes::from(operations.to_string());
    let code = |fault: Fault| fault.status_code().as_u16();
    match read(Verb::Patch, Some(JSON_PATCH), &body).map_err(code)? {
        Named::Owners(owners) => {
            assert!(owners.is_empty());
            Ok(None)
        }
        Named::ByResult(patch) => {
            let judged = patch.judge(&stored(), &body).map_err(code)?;
            let sent: Value = serde_json::from_slice(&judged.body).unwrap();
            let mut wanted = operations.as_array().unwrap().clone();
            wanted.push(json!({"op": "add", "path": "/metadata/resourceVersion", "value": "7"}));
            assert_eq!(sent, Value::Array(wanted), "it leaves bound to what was judged");
            let names = judged
                .owners
                .into_iter()
                .map(|owner| format!("{}={}", owner.name, owner.uid));
            Ok(Some(names.collect()))
        }
    }
}

#[test]
#[expect(
    clippy::too_many_lines,
    reason = "one story, of which each step needs the one before"
)]
fn a_json_patch_is_judged_by_what_it_makes_of_the_object() {
    let refs = "/metadata/ownerReferences";
    let entry = json!({"apiVersion": "x.io/v1", "kind": "Port", "name": "r", "uid": "w"});
    let some = |names: &[&str]| Ok(Some(names.iter().map(|name| (*name).to_owned()).collect()));
    for (operations, outcome) in [
        (
            json!([{"op": "replace", "path": format!("{refs}/0/uid"), "value": "x"}]),
            some(&["p=x"]),
        ),
        (
            json!([{"op": "add", "path": format!("{refs}/-"), "value": entry}]),
            some(&["p=u", "r=w"]),
        ),
        (
            json!([{"op": "add", "path": format!("{refs}/0"), "value": entry}]),
            some(&["r=w", "p=u"]),
        ),
        (json!([{"op": "add", "path": refs, "value": [entry]}]), some(&["r=w"])),
        (
            json!([{"op": "add", "path": "/metadata", "value": {"ownerReferences": [entry]}}]),
            some(&["r=w"]),
        ),
        (
            json!([{"op": "move", "from": "/spec/template/metadata", "path": "/metadata"}]),
            some(&["q=v"]),
        ),
        (
            json!([{"op": "copy", "from": "/spec/template/metadata/ownerReferences/0/uid", "path": format!("{refs}/0/uid")}]),
            some(&["p=v"]),
        ),
        (json!([{"op": "remove", "path": refs}]), Ok(None)),
        (json!([{"op": "remove", "path": format!("{refs}/0")}]), Ok(None)),
        (
            json!([{"op": "test", "path": format!("{refs}/0/uid"), "value": "u"}]),
            Ok(None),
        ),
        (
            json!([{"op": "add", "path": "/metadata/labels", "value": {"a": "ownerReferences"}}]),
            Ok(None),
        ),
        (
            json!([{"op": "add", "path": "/metadata/ownerReferencesOf", "value": "a"}]),
            Ok(None),
        ),
        // What API servers read in ways of their own.
        (
            json!([{"op": "replace", "path": format!("{refs}/-1/uid"), "value": "x"}]),
            Err(422),
        ),
        (
            json!([{"op": "replace", "path": "x/metadata/ownerReferences/0/uid", "value": "x"}]),
            Err(422),
        ),
        (
            json!([{"op": "replace", "path": format!("{refs}/1/uid"), "value": "x"}]),
            Err(422),
        ),
        (json!([{"op": "bend", "path": refs}]), Err(422)),
        // Of another version of the object.
        (
            json!([
                {"op": "replace", "path": "/metadata/resourceVersion", "value": "6"},
                {"op": "replace", "path": format!("{refs}/0/uid"), "value": "x"},
            ]),
            Err(409),
        ),
    ] {
        assert_eq!(patched(&operations), outcome, "{operations}");
    }
    let double = |n: usize| json!({"op": "copy", "from": "", "path": format!("/spec/a{n}")});
    let mut doubles: Vec<_> = (0..40).map(double).collect();
    doubles.push(json!({"op": "add", "path": refs, "value": []}));
    assert_eq!(patched(&Value::Array(doubles)), Err(422), "what it copies is bounded");
}

#[test]
fn an_owner_is_asked_for_by_a_path_of_its_own_or_not_at_all() {
    let path = |api_version: &str, name: &str, namespace| {
        let owner = Owner::new(api_version, "Port".into(), name.into(), "u".into());
        owner.request("ports", namespace).map(|request| request.object_path())
    };
    assert_eq!(path("x.io/v1", "p", None).unwrap(), "/apis/x.io/v1/ports/p");
    assert_eq!(path("v1", "p", Some("ns")).unwrap(), "/api/v1/namespaces/ns/ports/p");
    for (api_version, name) in [
        ("v1", "victim/secrets/s1"),
        ("v1", "x?watch=true"),
        ("v1/namespaces/victim/roles/x?", "p"),
        ("rbac.authorization.k8s.io/v1/namespaces/victim/roles/x?", "p"),
        ("v1?", "p"),
        ("", "p"),
        ("v1", ".."),
    ] {
        match path(api_version, name, None) {
            Ok(path) => assert!(path == "/api/v1/ports/x%3Fwatch=true", "{path}"),
            Err(fault) => assert_eq!(fault.status_code(), 422, "{api_version} {name}"),
        }
    }
}

fn sights() -> impl Strategy<Value = Sight> {
    let fault = Fault::Unavailable {
        message: "away".to_owned(),
        cluster: None,
        sent: false,
    };
    prop_oneof![
        Just(Sight::Owner),
        Just(Sight::Other),
        Just(Sight::Outside),
        Just(Sight::Nothing),
        Just(Sight::Forbidden),
        Just(Sight::Unknown(fault)),
    ]
}

proptest! {
    /// Let through is what is there, what is nowhere, and what no member lets the caller look for.
    #[test]
    fn a_child_is_let_through_beside_its_owner_alone(own in sights(), others in prop::collection::vec(sights(), 0..4)) {
        let named: Vec<_> = others.iter().map(|sight| ("west".to_owned(), sight.clone())).collect();
        let judged = owner().judge("east", &own, &named);
        let nowhere = matches!(own, Sight::Other | Sight::Nothing) && others.iter().all(|one| *one == Sight::Nothing);
        let hidden = own == Sight::Forbidden
            && !others.iter().any(|one| matches!(one, Sight::Owner | Sight::Unknown(_)));
        prop_assert_eq!(judged.is_ok(), own == Sight::Owner || nowhere || hidden);
    }

    /// What the caller may not read is told by no uid.
    #[test]
    fn no_uid_is_told_of_what_is_outside(others in prop::collection::vec(sights(), 0..3)) {
        let elsewhere = |sight: Sight| {
            let all = others.iter().cloned().chain([sight]);
            all.map(|one| ("west".to_owned(), one)).collect::<Vec<_>>()
        };
        let [right, wrong] = [Sight::Owner, Sight::Other].map(|sight| owner().judge("east", &Sight::Nothing, &elsewhere(sight)));
        prop_assert_eq!(right, wrong);
    }
}
