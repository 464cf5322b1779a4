//! The lease under both names, in every encoding; nothing else changes; broken bodies break nothing.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::value::object::protobuf::{MAGIC, put};

const PROTOBUF: Option<&str> = Some("application/vnd.kubernetes.protobuf");

fn lease() -> LeaseName {
    LeaseName {
        client: "op".into(),
        member: "op---blue".into(),
    }
}

fn request(content_type: Option<&str>, body: &str) -> Value {
    let renamed = rename_request_body(&lease(), content_type, Bytes::copy_from_slice(body.as_bytes())).unwrap();
    serde_json::from_slice(&renamed).unwrap()
}

fn response(body: Value) -> Value {
    let bytes = rename_response_body(
        &lease(),
        Some("application/json; charset=utf-8"),
        body.to_string().into(),
    );
    serde_json::from_slice(&bytes).unwrap()
}

#[test]
fn json_is_renamed_both_ways() {
    let object = |name: &str| {
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": name, "namespace": "op", "labels": {"name": "op"}, "resourceVersion": "18446744073709551615"},
            "spec": {"holderIdentity": "op", "leaseDurationSeconds": 15, "unknown": [1.5, null, "op"]},
        })
    };
    assert_eq!(request(None, &object("op").to_string()), object("op---blue"));
    assert_eq!(
        request(Some("application/json"), &object("other").to_string()),
        object("other")
    );
    assert_eq!(response(object("op---blue")), object("op"));
    let list =
        |name: &str| json!({"kind": "LeaseList", "metadata": {"name": "x"}, "items": [object(name), object("z")]});
    assert_eq!(response(list("op---blue")), list("op"));
    let table = |name: &str| json!({"kind": "Table", "rows": [{"cells": [name, "h", "1d"], "object": object(name)}]});
    assert_eq!(response(table("op---blue")), table("op"));
    let status = |name: &str| {
        json!({
            "kind": "Status", "message": format!("leases \"{name}\" not found"), "details": {"name": name, "kind": "leases"},
        })
    };
    assert_eq!(response(status("op---blue")), status("op"));
}

#[test]
fn patches_and_yaml() {
    let merge = r#"{"metadata":{"name":"op","annotations":{"a":"op"}}}"#;
    let renamed = request(Some("application/merge-patch+json"), merge);
    assert_eq!(
        renamed,
        json!({"metadata": {"name": "op---blue", "annotations": {"a": "op"}}})
    );
    let nameless = request(
        Some("application/strategic-merge-patch+json"),
        r#"{"spec":{"holderIdentity":"x"}}"#,
    );
    assert_eq!(nameless, json!({"spec": {"holderIdentity": "x"}}));
    let patch = r#"[{"op":"test","path":"/metadata/name","value":"op"},{"op":"add","path":"/spec/x","value":"op"}]"#;
    let renamed = request(Some("application/json-patch+json"), patch);
    assert_eq!(renamed[0]["value"], "op---blue");
    assert_eq!(renamed[1]["value"], "op");
    let yaml = "kind: Lease\nmetadata:\n  name: op\nspec:\n  leaseDurationSeconds: 15\n";
    let renamed = request(Some("application/apply-patch+yaml"), yaml);
    assert_eq!(
        renamed,
        json!({"kind": "Lease", "metadata": {"name": "op---blue"}, "spec": {"leaseDurationSeconds": 15}})
    );
    assert_eq!(object::name(Some("application/yaml"), yaml.as_bytes()).unwrap(), "op");
    assert_eq!(
        object::name(None, br#"{"metadata":{"generateName":"op"}}"#).unwrap(),
        ""
    );
}

#[test]
fn a_lease_is_alive_until_it_expires() {
    let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
    let alive = |spec: Value| is_alive(json!({"spec": spec}).to_string().as_bytes(), now).unwrap();
    let renewed = |at: &str| alive(json!({"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": at}));
    assert!(renewed("2026-01-01T00:00:59.000000Z"));
    assert!(renewed("2026-01-01T00:00:40.000000Z"), "clocks differ");
    assert!(!renewed("2026-01-01T00:00:39.000000Z"));
    assert!(renewed("2026-01-01T00:02:00.000000Z"), "a clock that is ahead");
    assert!(!alive(
        json!({"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": "2026-01-01T00:01:00.000000Z"})
    ));
    assert!(
        alive(json!({"holderIdentity": "a"})),
        "held, and nobody says until when"
    );
    assert!(!alive(json!({})));
    assert!(!is_alive(b"{}", now).unwrap());
    assert!(is_alive(b"[", now).is_err());
}

#[test]
fn what_cannot_be_read_is_refused_or_passed() {
    let broken =
        |content_type, body: &'static [u8]| rename_request_body(&lease(), content_type, Bytes::from_static(body));
    assert!(matches!(broken(None, b"{"), Err(Fault::BadRequest(_))));
    assert!(matches!(broken(PROTOBUF, b"k8s"), Err(Fault::BadRequest(_))));
    assert!(matches!(broken(PROTOBUF, b"k8s\0\x12\xff"), Err(Fault::BadRequest(_))));
    assert!(matches!(
        broken(Some("application/cbor"), b"x"),
        Err(Fault::UnsupportedMediaType(_))
    ));
    assert_eq!(broken(PROTOBUF, b"").unwrap(), Bytes::new());
    assert_eq!(rename_response_body(&lease(), None, Bytes::from_static(b"ok")), "ok");
    let odd = Bytes::from_static(b"k8s\0\x12\xff");
    assert_eq!(rename_response_body(&lease(), PROTOBUF, odd.clone()), odd);
}

fn message(fields: &[(u64, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, content) in fields {
        put(&mut out, *number, content);
    }
    out
}

fn envelope(kind: &str, object: &[u8]) -> Bytes {
    let meta = message(&[(1, b"coordination.k8s.io/v1"), (2, kind.as_bytes())]);
    [MAGIC, &message(&[(1, &meta), (2, object), (3, b""), (4, b"")])]
        .concat()
        .into()
}

fn wire_lease(name: &str) -> Vec<u8> {
    // ObjectMeta: name, generateName, namespace, a varint (generation), labels; then spec.
    let mut meta = message(&[(1, name.as_bytes()), (2, b""), (3, b"op")]);
    meta.extend([7 << 3, 0x96, 0x01]);
    meta.extend(message(&[(11, &message(&[(1, b"name"), (2, b"op")]))]));
    message(&[(1, &meta), (2, &message(&[(1, b"op")]))])
}

#[test]
fn protobuf_is_renamed_both_ways() {
    let (client, member) = (
        envelope("Lease", &wire_lease("op")),
        envelope("Lease", &wire_lease("op---blue")),
    );
    assert_eq!(object::name(PROTOBUF, &client).unwrap(), "op");
    assert_eq!(rename_request_body(&lease(), PROTOBUF, client.clone()).unwrap(), member);
    assert_eq!(rename_response_body(&lease(), PROTOBUF, member), client);
    let list = |name: &str| {
        let metadata = message(&[(2, b"7")]);
        envelope(
            "LeaseList",
            &message(&[(1, &metadata), (2, &wire_lease(name)), (2, &wire_lease("z"))]),
        )
    };
    assert_eq!(rename_response_body(&lease(), PROTOBUF, list("op---blue")), list("op"));
    let status = |name: &str| {
        let message_text = format!("leases \"{name}\" not found");
        let details = message(&[(1, name.as_bytes()), (3, b"leases")]);
        envelope(
            "Status",
            &message(&[(1, b""), (2, b"Failure"), (3, message_text.as_bytes()), (5, &details)]),
        )
    };
    assert_eq!(
        rename_response_body(&lease(), PROTOBUF, status("op---blue")),
        status("op")
    );
}

/// A watch event around an object's bytes, framed.
fn wire_event(object: &[u8]) -> Vec<u8> {
    let event = message(&[(1, b"MODIFIED"), (2, &message(&[(1, object)]))]);
    let length = u32::try_from(event.len()).unwrap().to_be_bytes();
    [&length[..], &event].concat()
}

#[test]
fn events_are_renamed_however_they_are_cut() {
    let json = |name: &str| {
        let events = [
            json!({"type": "ADDED", "object": {"kind": "Lease", "metadata": {"name": name, "resourceVersion": "7"}}}),
            json!({"type": "BOOKMARK", "object": {"kind": "Lease", "metadata": {"resourceVersion": "9"}}}),
            json!({"type": "ERROR", "object": {"kind": "Status", "message": format!("{name} is gone"), "code": 410}}),
        ];
        events.map(|event| format!("{event}\n")).concat().into_bytes()
    };
    let protobuf = |name: &str| {
        let lease = envelope("Lease", &wire_lease(name));
        [
            wire_event(&lease),
            wire_event(&envelope("Lease", b"")),
            wire_event(&lease),
        ]
        .concat()
    };
    let parsed = |bytes: &[u8]| -> Vec<Value> {
        let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
    };
    for cut in [1, 2, 5, 64, 1 << 20] {
        let renamed = |content_type, whole: Vec<u8>| {
            let mut events = Events::new(&lease(), content_type).unwrap();
            let chunks = whole.chunks(cut).map(|chunk| events.push(chunk).unwrap());
            chunks.collect::<Vec<_>>().concat()
        };
        assert_eq!(parsed(&renamed(None, json("op---blue"))), parsed(&json("op")), "{cut}");
        let stream = Some("application/vnd.kubernetes.protobuf;stream=watch");
        assert_eq!(renamed(stream, protobuf("op---blue")), protobuf("op"), "{cut}");
    }
    let mut events = Events::new(&lease(), None).unwrap();
    assert_eq!(events.push(b"no event\n").unwrap(), "no event\n");
    assert!(events.push(&vec![b'x'; 9 << 20]).is_none());
    assert!(Events::new(&lease(), Some("application/cbor-seq")).is_none());
}

proptest! {
    #[test]
    fn arbitrary_bodies_break_nothing(bytes in proptest::collection::vec(any::<u8>(), 0..80), magic: bool) {
        let body = if magic { [MAGIC, &bytes].concat() } else { bytes };
        for content_type in [PROTOBUF, None, Some("application/yaml"), Some("application/json-patch+json")] {
            let _ = object::name(content_type, &body);
            let _ = rename_request_body(&lease(), content_type, body.clone().into());
            let _ = rename_response_body(&lease(), content_type, body.clone().into());
        }
    }

    #[test]
    fn arbitrary_events_break_nothing(bytes in proptest::collection::vec(any::<u8>(), 0..80), framed: bool) {
        let length = u32::try_from(bytes.len()).unwrap().to_be_bytes();
        let stream = if framed { [&length[..], &bytes].concat() } else { bytes };
        for content_type in [PROTOBUF, None] {
            let _ = Events::new(&lease(), content_type).unwrap().push(&stream);
        }
    }

    #[test]
    fn truncated_protobuf_breaks_nothing(cut in 0_usize..120) {
        let whole = envelope("Lease", &wire_lease("op"));
        let _ = rename_request_body(&lease(), PROTOBUF, whole.slice(..cut.min(whole.len())));
    }
}
