//! Events that no member sent: bookmarks with the merged cursor, and the DELETED of what vanished while nobody looked.
//!
//! Their type is what the members' own frames say, so that every client decodes them like any other event.

use bytes::Bytes;
use serde_json::{Value, json};

use super::WatchFormat;
use super::event::around;
use crate::object_meta::INITIAL_EVENTS_END;
use crate::wire;

/// After the version in a bookmark of JSON.
const AFTER_VERSION: &[u8] = b"\"}}}\n";

/// What clients ask for that want metadata alone.
const PARTIAL_METADATA: &str = "PartialObjectMetadata";

/// The type of the objects in this watch, which every event of it is written with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EventTemplate {
    format: WatchFormat,
    kind: Box<str>,
    api_version: Box<str>,
    /// What bookmarks of JSON begin with, up to the version: one goes with each event, and is not written anew for it.
    bookmark: Option<Box<[u8]>>,
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
    pub(super) fn new(format: WatchFormat, kind: &str, api_version: &str) -> Self {
        let mut template = Self {
            format,
            kind: kind.into(),
            api_version: api_version.into(),
            bookmark: None,
        };
        if format == WatchFormat::Json {
            let bookmark = template.bookmark("0", false, Value::Null);
            let before = bookmark.strip_suffix(AFTER_VERSION);
            template.bookmark = before.and_then(|text| text.strip_suffix(b"0")).map(Into::into);
        }
        template
    }

    /// Whether an object is nothing but its metadata.
    pub(super) fn is_of_metadata(&self) -> bool {
        &*self.kind == PARTIAL_METADATA
    }

    /// A bookmark with a version in digits. `cells`: as of [`Self::event`].
    pub(super) fn bookmark(&self, version: &str, initial_events_end: bool, cells: Value) -> Bytes {
        if let (Some(before), false) = (&self.bookmark, initial_events_end) {
            return [before, version.as_bytes(), AFTER_VERSION].concat().into();
        }
        let stub = Stub {
            version,
            initial_events_end,
            ..Stub::default()
        };
        self.event("BOOKMARK", stub, cells)
    }

    /// A whole frame. `cells`: for Tables, the row as the columns of the client have it.
    pub(super) fn event(&self, event_type: &str, stub: Stub<'_>, cells: Value) -> Bytes {
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
    fn table(&self, stub: Stub<'_>, cells: Value) -> Vec<u8> {
        let row = json!({
            "cells": cells,
            "object": {"kind": PARTIAL_METADATA, "apiVersion": self.api_version, "metadata": meta(stub)},
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

    /// An object of protobuf as events have it, in its envelope.
    pub(super) fn envelope(&self, object: &[u8]) -> Vec<u8> {
        let mut kind = Vec::new();
        wire::put(&mut kind, wire::TYPE_META_VERSION, self.api_version.as_bytes());
        wire::put(&mut kind, wire::TYPE_META_KIND, self.kind.as_bytes());
        let mut envelope = wire::MAGIC.to_vec();
        wire::put(&mut envelope, wire::UNKNOWN_TYPE_META, &kind);
        wire::put(&mut envelope, wire::UNKNOWN_RAW, object);
        envelope
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
        self.envelope(&object)
    }
}

fn meta(stub: Stub<'_>) -> Value {
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
    meta.insert("creationTimestamp".to_owned(), Value::Null);
    meta.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bookmark_is_the_same_however_it_is_written() {
        for format in [WatchFormat::Json, WatchFormat::Protobuf, WatchFormat::Table] {
            let template = EventTemplate::new(format, "Po\"d", "v1");
            let cells = || json!(["", null]);
            let stub = Stub {
                version: "1042",
                ..Stub::default()
            };
            assert_eq!(
                template.bookmark("1042", false, cells()),
                template.event("BOOKMARK", stub, cells())
            );
            assert_eq!(template.bookmark.is_some(), format == WatchFormat::Json);
        }
    }
}
