//! Frames as members write them and clients read them, written apart from the product's own code where that is short.

use portolan_merge::watch::WatchFormat;
use portolan_merge::wire;
use serde_json::{Value, json};

/// An object of the simulated members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) version: String,
    pub(crate) end: bool,
}

/// A frame, decoded.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) kind: String,
    pub(crate) object_kind: String,
    /// Not metadata alone, where its format shows that.
    pub(crate) whole: bool,
    pub(crate) object: Object,
}

/// `columns`: the first event of a Table stream tells them.
pub(crate) fn frame(format: WatchFormat, kind: &str, object: &Object, columns: bool) -> Vec<u8> {
    if format == WatchFormat::Protobuf {
        return event_protobuf(kind, &object_protobuf(object));
    }
    let object = if format == WatchFormat::Table {
        table(object, columns)
    } else {
        object_json(object)
    };
    // As Go's encoder has it: type first. `json!` would sort.
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n").into_bytes()
}

pub(crate) fn error(format: WatchFormat, code: u16, reason: &str) -> Vec<u8> {
    if format == WatchFormat::Protobuf {
        let mut status = Vec::new();
        wire::put(&mut status, 3, b"too old resource version");
        wire::put(&mut status, 4, reason.as_bytes());
        wire::put_varint(&mut status, 6 << 3);
        wire::put_varint(&mut status, u64::from(code));
        return event_protobuf("ERROR", &envelope("v1", "Status", &status));
    }
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "too old resource version", "reason": reason, "code": code});
    format!("{{\"type\":\"ERROR\",\"object\":{status}}}\n").into_bytes()
}

fn meta(object: &Object) -> Value {
    let mut meta = json!({"uid": object.uid, "resourceVersion": object.version, "creationTimestamp": null});
    for (field, text) in [("name", &object.name), ("namespace", &object.namespace)] {
        if !text.is_empty() {
            meta[field] = json!(text);
        }
    }
    if object.end {
        meta["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    meta
}

fn object_json(object: &Object) -> String {
    let text = json!({"kind": "Thing", "apiVersion": "test/v1", "metadata": meta(object), "spec": {"a": "}{\n\""}});
    text.to_string()
}

fn table(object: &Object, columns: bool) -> String {
    let definitions = json!([{"name": "Name", "type": "string", "format": "name", "description": "", "priority": 0},
        {"name": "Uid", "type": "string", "format": "", "description": "", "priority": 0}]);
    json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": object.version},
        "columnDefinitions": if columns { definitions } else { Value::Null },
        "rows": [{"cells": [object.name, object.uid],
            "object": {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": meta(object)}}]})
    .to_string()
}

fn object_protobuf(object: &Object) -> Vec<u8> {
    let mut meta = Vec::new();
    for (number, text) in [
        (wire::META_NAME, &object.name),
        (wire::META_NAMESPACE, &object.namespace),
        (wire::META_UID, &object.uid),
        (wire::META_VERSION, &object.version),
    ] {
        wire::put(&mut meta, number, text.as_bytes());
    }
    if object.end {
        let mut entry = Vec::new();
        wire::put(&mut entry, 1, b"k8s.io/initial-events-end");
        wire::put(&mut entry, 2, b"true");
        wire::put(&mut meta, wire::META_ANNOTATIONS, &entry);
    }
    let mut body = Vec::new();
    wire::put(&mut body, 1, &meta);
    wire::put(&mut body, 2, b"spec");
    envelope("test/v1", "Thing", &body)
}

fn envelope(version: &str, kind: &str, object: &[u8]) -> Vec<u8> {
    let mut of = Vec::new();
    wire::put(&mut of, 1, version.as_bytes());
    wire::put(&mut of, 2, kind.as_bytes());
    let mut out = b"k8s\0".to_vec();
    wire::put(&mut out, 1, &of);
    wire::put(&mut out, 2, object);
    wire::put(&mut out, 3, b"");
    wire::put(&mut out, 4, b"");
    out
}

fn event_protobuf(kind: &str, object: &[u8]) -> Vec<u8> {
    let mut extension = Vec::new();
    wire::put(&mut extension, 1, object);
    let mut event = Vec::new();
    wire::put(&mut event, 1, kind.as_bytes());
    wire::put(&mut event, 2, &extension);
    let mut out = u32::try_from(event.len()).unwrap().to_be_bytes().to_vec();
    out.extend(event);
    out
}

/// Takes the first whole frame from what a client has read.
pub(crate) fn take(format: WatchFormat, read: &mut Vec<u8>) -> Option<Vec<u8>> {
    let end = if format == WatchFormat::Protobuf {
        let length = u32::from_be_bytes(*read.first_chunk::<4>()?) as usize;
        4 + length
    } else {
        read.iter().position(|byte| *byte == b'\n')? + 1
    };
    (read.len() >= end).then(|| read.drain(..end).collect())
}

pub(crate) fn decode(format: WatchFormat, frame: &[u8]) -> Seen {
    if format == WatchFormat::Protobuf {
        return decode_protobuf(&frame[4..]);
    }
    let event: Value = serde_json::from_slice(frame).expect("whole JSON frames");
    let object = &event["object"];
    let meta = if format == WatchFormat::Table && event["type"] != "ERROR" {
        assert_eq!(
            object["metadata"]["resourceVersion"],
            object["rows"][0]["object"]["metadata"]["resourceVersion"]
        );
        &object["rows"][0]["object"]["metadata"]
    } else {
        &object["metadata"]
    };
    let text = |field: &str| meta[field].as_str().unwrap_or_default().to_owned();
    Seen {
        kind: event["type"].as_str().unwrap().to_owned(),
        object_kind: object["kind"].as_str().unwrap().to_owned(),
        whole: format != WatchFormat::Json || object.get("spec").is_some(),
        object: Object {
            namespace: text("namespace"),
            name: text("name"),
            uid: text("uid"),
            version: text("resourceVersion"),
            end: meta["annotations"]["k8s.io/initial-events-end"] == "true",
        },
    }
}

fn decode_protobuf(event: &[u8]) -> Seen {
    let raw = wire::last(wire::last(event, 2).unwrap().unwrap(), 1).unwrap().unwrap();
    let head = portolan_merge::object_meta::protobuf(raw).expect("an envelope");
    Seen {
        kind: wire::text(event, 1).unwrap().to_owned(),
        object_kind: head.kind.clone().into_owned(),
        whole: true,
        object: Object {
            namespace: head.namespace.into_owned(),
            name: head.name.into_owned(),
            uid: head.uid.into_owned(),
            version: head.resource_version.into_owned(),
            end: head.initial_events_end,
        },
    }
}
