//! Events that no member sent: bookmarks with the merged cursor, and the DELETED of what vanished while nobody looked.
//!
//! Their type is what the members' own frames say, so that every client decodes them like any other event.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Serialize;

use super::WatchFormat;
use super::event::around;
use crate::object_meta::INITIAL_EVENTS_END;
use crate::wire;

/// After the version in a bookmark of JSON.
const AFTER_VERSION: &str = "\",\"creationTimestamp\":null}}}\n";

/// The type of the objects in this watch, which every event of it is written with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EventTemplate {
    format: WatchFormat,
    kind: Box<str>,
    api_version: Box<str>,
    /// What all bookmarks of JSON begin with, up to the version: one goes with each event.
    bookmark: Option<Box<str>>,
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
            let stub = Stub {
                version: "0",
                ..Stub::default()
            };
            let bookmark = json_line("BOOKMARK", template.json(stub));
            let before = bookmark
                .strip_suffix(AFTER_VERSION)
                .and_then(|text| text.strip_suffix('0'));
            template.bookmark = before.map(Into::into);
        }
        template
    }

    /// A bookmark with a version in digits. `cells`: as of [`Self::event`].
    pub(super) fn bookmark(&self, version: &str, initial_events_end: bool, cells: serde_json::Value) -> Bytes {
        if let (Some(before), false) = (&self.bookmark, initial_events_end) {
            return [before, version, AFTER_VERSION].concat().into();
        }
        let stub = Stub {
            version,
            initial_events_end,
            ..Stub::default()
        };
        self.event("BOOKMARK", stub, cells)
    }

    /// A whole frame. `cells`: for Tables, the row as the columns of the client have it.
    pub(super) fn event(&self, event_type: &str, stub: Stub<'_>, cells: serde_json::Value) -> Bytes {
        match self.format {
            WatchFormat::Json => json_line(event_type, self.json(stub)).into(),
            WatchFormat::Protobuf => {
                let object = self.protobuf(stub);
                let (before, after) = around(self.format, event_type, object.len());
                [&before[..], &object, &after].concat().into()
            }
            WatchFormat::Table => json_line(event_type, self.table(stub, cells)).into(),
        }
    }

    fn json<'a>(&'a self, stub: Stub<'a>) -> Object<'a> {
        Object {
            kind: &self.kind,
            api_version: &self.api_version,
            metadata: stub.into(),
        }
    }

    /// As the API server converts any object of a Table watch, bookmarks too: one row around its metadata.
    fn table<'a>(&'a self, stub: Stub<'a>, cells: serde_json::Value) -> Table<'a> {
        let object = Object {
            kind: "PartialObjectMetadata",
            ..self.json(stub)
        };
        Table {
            kind: &self.kind,
            api_version: &self.api_version,
            metadata: TableMeta {
                resource_version: stub.version,
            },
            column_definitions: (),
            rows: [Row { cells, object }],
        }
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

/// `metav1.WatchEvent` in JSON.
#[derive(Serialize)]
struct Event<'a, O> {
    r#type: &'a str,
    object: O,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Object<'a> {
    kind: &'a str,
    api_version: &'a str,
    metadata: Meta<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Meta<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    uid: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    resource_version: &'a str,
    /// Null. Typed servers write it for every object, and some clients' decoders want it.
    creation_timestamp: (),
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<&'static str, &'static str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Table<'a> {
    kind: &'a str,
    api_version: &'a str,
    metadata: TableMeta<'a>,
    column_definitions: (),
    rows: [Row<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TableMeta<'a> {
    resource_version: &'a str,
}

#[derive(Serialize)]
struct Row<'a> {
    cells: serde_json::Value,
    object: Object<'a>,
}

impl<'a> From<Stub<'a>> for Meta<'a> {
    fn from(stub: Stub<'a>) -> Self {
        let end = stub.initial_events_end.then_some((INITIAL_EVENTS_END, "true"));
        Self {
            name: stub.name,
            namespace: stub.namespace,
            uid: stub.uid,
            resource_version: stub.version,
            creation_timestamp: (),
            annotations: end.into_iter().collect(),
        }
    }
}

fn json_line(event_type: &str, object: impl Serialize) -> String {
    let r#type = event_type;
    let mut line = serde_json::to_string(&Event { r#type, object }).expect("all of it is text");
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bookmark_is_the_same_however_it_is_written() {
        for format in [WatchFormat::Json, WatchFormat::Protobuf, WatchFormat::Table] {
            let template = EventTemplate::new(format, "Po\"d", "v1");
            let cells = || serde_json::json!(["", null]);
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
