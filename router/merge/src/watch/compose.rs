//! Events that no member sent: bookmarks with the merged cursor, and the DELETED of what vanished while nobody looked.
//!
//! Their type is what the members' own frames say, so that every client decodes them like any other event.

use bytes::Bytes;
use serde_json::json;

use super::WatchFormat;
use super::event::around;
use crate::object_meta::INITIAL_EVENTS_END;
use crate::wire;

/// The type of the objects in this watch, which every event of it is written with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EventTemplate {
    pub(super) format: WatchFormat,
    pub(super) kind: Box<str>,
    pub(super) api_version: Box<str>,
}

/// What is known of an object that is told of without its content.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stub<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) uid: &'a str,
    pub(super) version: &'a str,
    pub(super) initial_events_end: bool,
}

impl EventTemplate {
    /// A whole frame. `cells`: for Tables, the row as the columns of the client have it.
    pub(super) fn event(&self, event_type: &str, stub: Stub<'_>, cells: serde_json::Value) -> Bytes {
        let object = match self.format {
            WatchFormat::Json => self.json(stub),
            WatchFormat::Protobuf => self.protobuf(stub),
            WatchFormat::Table => self.table(stub, cells),
        };
        let (before, after) = around(self.format, event_type, object.len());
        [&before[..], &object, &after].concat().into()
    }

    fn json(&self, stub: Stub<'_>) -> Vec<u8> {
        let object = json!({"kind": self.kind, "apiVersion": self.api_version, "metadata": meta(stub)});
        object.to_string().into_bytes()
    }

    /// As the API server converts any object of a Table watch, bookmarks too: one row around its metadata.
    fn table(&self, stub: Stub<'_>, cells: serde_json::Value) -> Vec<u8> {
        let row = json!({
            "cells": cells,
            "object": {"kind": "PartialObjectMetadata", "apiVersion": self.api_version, "metadata": meta(stub)},
        });
        let object = json!({
            "kind": self.kind,
            "apiVersion": self.api_version,
            "metadata": {"resourceVersion": stub.version},
            "columnDefinitions": null,
            "rows": [row],
        });
        object.to_string().into_bytes()
    }

    fn protobuf(&self, stub: Stub<'_>) -> Vec<u8> {
        let mut meta = Vec::new();
        for (number, text) in [
            (wire::META_NAME, stub.name),
            (wire::META_NAMESPACE, stub.namespace),
            (wire::META_UID, stub.uid),
            (wire::META_VERSION, stub.version),
        ] {
            if !text.is_empty() {
                wire::put(&mut meta, number, text.as_bytes());
            }
        }
        if stub.initial_events_end {
            let mut entry = Vec::new();
            wire::put(&mut entry, wire::ENTRY_KEY, INITIAL_EVENTS_END.as_bytes());
            wire::put(&mut entry, wire::ENTRY_VALUE, b"true");
            wire::put(&mut meta, wire::META_ANNOTATIONS, &entry);
        }
        let mut object = Vec::new();
        wire::put(&mut object, wire::OBJECT_META, &meta);
        let mut kind = Vec::new();
        wire::put(&mut kind, wire::TYPE_META_VERSION, self.api_version.as_bytes());
        wire::put(&mut kind, wire::TYPE_META_KIND, self.kind.as_bytes());
        let mut envelope = wire::MAGIC.to_vec();
        wire::put(&mut envelope, wire::UNKNOWN_TYPE_META, &kind);
        wire::put(&mut envelope, wire::UNKNOWN_RAW, &object);
        envelope
    }
}

fn meta(stub: Stub<'_>) -> serde_json::Value {
    let mut meta = serde_json::Map::new();
    for (name, text) in [
        ("name", stub.name),
        ("namespace", stub.namespace),
        ("uid", stub.uid),
        ("resourceVersion", stub.version),
    ] {
        if !text.is_empty() {
            meta.insert(name.to_owned(), text.into());
        }
    }
    if stub.initial_events_end {
        meta.insert("annotations".to_owned(), json!({INITIAL_EVENTS_END: "true"}));
    }
    // Typed servers write it for every object, and some clients' decoders want it.
    meta.insert("creationTimestamp".to_owned(), serde_json::Value::Null);
    meta.into()
}
