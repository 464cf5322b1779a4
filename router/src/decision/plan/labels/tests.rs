//! Bodies and objects inside and outside a shard limited by `app=foo`.

use super::*;
use crate::value::object::protobuf::{MAGIC, put};
use portolan_crds::selector::Selector;

fn rule(change: Change) -> BodyRule {
    BodyRule {
        selector: Selector::parse("app=foo").unwrap(),
        change,
        object: "pods a/p".into(),
        shard: "ops/blue".into(),
    }
}

fn check(change: Change, content_type: &str, before: &[(&str, &str)], body: &str) -> Result<(), Fault> {
    let before = before
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    check_body(&rule(change), Some(content_type), Some(&before), body.as_bytes())
}

#[test]
fn whole_objects() {
    let json = "application/json";
    for (change, body, fits) in [
        (Change::Whole, r#"{"metadata":{"labels":{"app":"foo","x":"y"}}}"#, true),
        (Change::Whole, r#"{"metadata":{"labels":{"app":"bar"}}}"#, false),
        (Change::Whole, r#"{"metadata":{"labels":null}}"#, false),
        (Change::Whole, "{}", false),
        (Change::Status, "{}", true),
        (Change::Status, r#"{"metadata":{"labels":{"app":"bar"}}}"#, false),
    ] {
        assert_eq!(check(change, json, &[("app", "foo")], body).is_ok(), fits, "{body}");
    }
    let odd = check(Change::Whole, json, &[], r#"{"metadata":{"labels":{"app":1}}}"#);
    assert!(matches!(odd, Err(Fault::BadRequest(_))));
    assert!(matches!(
        check(Change::Whole, "application/cbor", &[], ""),
        Err(Fault::UnsupportedMediaType(_))
    ));
}

#[test]
fn whole_objects_in_protobuf() {
    let message = |fields: &[(u64, &[u8])]| {
        let mut out = Vec::new();
        for (number, content) in fields {
            put(&mut out, *number, content);
        }
        out
    };
    for (value, fits) in [("foo", true), ("bar", false)] {
        let entry = message(&[(1, b"app"), (2, value.as_bytes())]);
        let object = message(&[(1, &message(&[(1, b"p"), (11, &entry)])), (2, b"spec")]);
        let body = [MAGIC, &message(&[(1, &message(&[(2, b"Pod")])), (2, &object)])].concat();
        let kind = Some("application/vnd.kubernetes.protobuf");
        assert_eq!(check_body(&rule(Change::Whole), kind, None, &body).is_ok(), fits);
    }
}

#[test]
fn field_numbers_that_go_reads_otherwise_are_refused() {
    let mut label = Vec::new();
    put(&mut label, 1, b"app");
    put(&mut label, 2, b"foo");
    let mut foreign = Vec::new();
    put(&mut foreign, 1, b"app");
    put(&mut foreign, 2, b"bar");
    let mut meta = Vec::new();
    put(&mut meta, 11, &label);
    // Go keeps 32 bits of a field's number.
    put(&mut meta, (1 << 32) + 11, &foreign);
    let mut object = Vec::new();
    put(&mut object, 1, &meta);
    let mut unknown = Vec::new();
    put(&mut unknown, 2, &object);
    let body = [MAGIC, &unknown].concat();
    let kind = Some("application/vnd.kubernetes.protobuf");
    let checked = check_body(&rule(Change::Whole), kind, None, &body);
    assert!(matches!(checked, Err(Fault::BadRequest(_))), "{checked:?}");
}

#[test]
fn a_binding_lays_its_labels_over_those_of_its_pod() {
    let json = "application/json";
    for (body, fits) in [
        (r#"{"metadata":{"name":"p"},"target":{"name":"n"}}"#, true),
        (r#"{"metadata":{"labels":{"zone":"a"}}}"#, true),
        (r#"{"metadata":{"labels":{"app":"bar"}}}"#, false),
    ] {
        assert_eq!(
            check(Change::Over, json, &[("app", "foo")], body).is_ok(),
            fits,
            "{body}"
        );
    }
}

fn patch_fits(table: &[(&str, &str, bool)]) {
    let inside: &[(&str, &str)] = &[("app", "foo"), ("x/y", "1")];
    for (kind, body, fits) in table {
        assert_eq!(check(Change::Patch, kind, inside, body).is_ok(), *fits, "{body}");
    }
}

#[test]
fn patches() {
    let merge = "application/merge-patch+json";
    patch_fits(&[
        (merge, r#"{"spec":{}}"#, true),
        (merge, r#"{"metadata":{"labels":{"x":"y"}}}"#, true),
        (merge, r#"{"metadata":{"labels":{"app":"bar"}}}"#, false),
        (merge, r#"{"metadata":{"labels":{"app":null}}}"#, false),
        (merge, r#"{"metadata":{"labels":null}}"#, false),
        (merge, r#"{"metadata":null}"#, false),
        (merge, r#"{"metadata":{"labels":{"$patch":"replace"}}}"#, false),
        (merge, r#"{"metadata":{"$patch":"replace"}}"#, false),
        (merge, r#"{"$patch":"delete"}"#, false),
        (merge, r#"{"metadata":{"$setElementOrder/finalizers":["a"]}}"#, true),
        (
            "application/apply-patch+yaml",
            "metadata:\n  labels:\n    app: foo\n",
            true,
        ),
        (
            "application/apply-patch+yaml",
            "metadata:\n  labels:\n    app: bar\n",
            false,
        ),
    ]);
    // An apply that creates the object has no labels before.
    let create = check_body(&rule(Change::Patch), Some("application/apply-patch+yaml"), None, b"{}");
    assert!(matches!(create, Err(Fault::Forbidden(_))));
}

#[test]
fn json_patches() {
    let json = "application/json-patch+json";
    patch_fits(&[
        (json, r#"[{"op":"replace","path":"/spec/x","value":1}]"#, true),
        (
            json,
            r#"[{"op":"add","path":"/metadata/labels/app","value":"bar"}]"#,
            false,
        ),
        (json, r#"[{"op":"remove","path":"/metadata/labels/x~1y"}]"#, true),
        (json, r#"[{"op":"remove","path":"/metadata/labels/app"}]"#, false),
        (json, r#"[{"op":"remove","path":"/metadata/labels"}]"#, false),
        (
            json,
            r#"[{"op":"replace","path":"/metadata/labels","value":{"app":"foo"}}]"#,
            true,
        ),
        (
            json,
            r#"[{"op":"replace","path":"/metadata","value":{"name":"p"}}]"#,
            false,
        ),
        (
            json,
            r#"[{"op":"replace","path":"","value":{"metadata":{"labels":{"app":"foo"}}}}]"#,
            true,
        ),
        (
            json,
            r#"[{"op":"move","from":"/metadata/labels/app","path":"/spec/x"}]"#,
            false,
        ),
        (
            json,
            r#"[{"op":"copy","from":"/spec/x","path":"/metadata/labels/app"}]"#,
            false,
        ),
        (
            json,
            r#"[{"op":"test","path":"/metadata/labels/app","value":"bar"}]"#,
            true,
        ),
        // An API server ignores what stands before the first slash.
        (
            json,
            r#"[{"op":"add","path":"x/metadata/labels/app","value":"bar"}]"#,
            false,
        ),
        (
            json,
            r#"[{"op":"move","from":"x/metadata/labels/app","path":"/spec/x"}]"#,
            false,
        ),
    ]);
}

#[test]
fn objects_are_told_by_their_labels() {
    let wanted = LabelCheck {
        path: "/api/v1/namespaces/a/pods/p".into(),
        selector: Selector::parse("app=foo").unwrap(),
        connects: false,
        object: "pods a/p".into(),
        shard: "ops/blue".into(),
    };
    let ask =
        |status: u16, body: &str| check_labels(&wanted, "east", StatusCode::from_u16(status).unwrap(), body.as_bytes());
    assert!(ask(200, r#"{"metadata":{"labels":{"app":"foo"}}}"#).unwrap().is_some());
    assert!(matches!(ask(200, r#"{"metadata":{}}"#), Err(Fault::Forbidden(text)) if text.contains("ops/blue")));
    assert_eq!(ask(404, "{}"), Ok(None));
    let connecting = LabelCheck {
        connects: true,
        ..wanted.clone()
    };
    let absent = check_labels(&connecting, "east", StatusCode::NOT_FOUND, b"{}");
    assert!(matches!(absent, Err(Fault::NotFound(_))), "{absent:?}");
    assert!(matches!(ask(403, "{}"), Err(Fault::Forbidden(_))));
    assert!(matches!(ask(500, "{}"), Err(Fault::Unavailable { sent: false, .. })));
    assert!(matches!(ask(429, "{}"), Err(Fault::TooManyRequests { .. })));
    assert!(matches!(ask(200, "<html>"), Err(Fault::Unavailable { .. })));
}
