//! One frame, read as far as merging needs: what happened, and the meta of the object it happened to.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{WatchFault, WatchFormat};
use crate::object_meta::{self, ObjectMeta};
use crate::wire;

/// Fields of `metav1.WatchEvent`, and of the `runtime.RawExtension` in it.
const EVENT_TYPE: u64 = 1;
const EVENT_OBJECT: u64 = 2;
const EXTENSION_RAW: u64 = 1;
/// Fields of `metav1.Status`.
const STATUS_MESSAGE: u64 = 3;
const STATUS_REASON: u64 = 4;
const STATUS_CODE: u64 = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventType {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
}

impl EventType {
    fn of(text: &[u8]) -> Option<Self> {
        Some(match text {
            b"ADDED" => Self::Added,
            b"MODIFIED" => Self::Modified,
            b"DELETED" => Self::Deleted,
            b"BOOKMARK" => Self::Bookmark,
            b"ERROR" => Self::Error,
            _ => return None,
        })
    }
}

/// One watch event, read as far as merging needs.
#[derive(Debug)]
pub(super) struct Event<'a> {
    pub(super) event_type: EventType,
    /// The object's metadata; for Tables the row's object's, but with the Table's type and version.
    pub(super) meta: ObjectMeta<'a>,
    pub(super) version: u64,
    /// Where the object stands in the frame.
    pub(super) object: Range<usize>,
}

/// What a member's ERROR event says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: i64,
    pub(super) reason: String,
    pub(super) message: String,
}

impl Refusal {
    /// Whether the version that the member was asked for is compacted.
    pub(super) fn expired(&self) -> bool {
        self.code == 410 || self.reason == "Expired" || self.reason == "Gone"
    }
}

impl<'a> Event<'a> {
    /// Reads a frame; `None` for a blank line.
    pub(super) fn read(format: WatchFormat, frame: &'a [u8]) -> Result<Option<Self>, WatchFault> {
        let outer = match format {
            WatchFormat::Protobuf => protobuf(frame),
            WatchFormat::Json | WatchFormat::Table if frame.trim_ascii().is_empty() => return Ok(None),
            WatchFormat::Json | WatchFormat::Table => json_as_servers_write(frame).or_else(|| json_in_any_order(frame)),
        };
        let (event_type, object) = outer.ok_or(WatchFault::NotAnEvent)?;
        let mut event = Self {
            event_type,
            meta: ObjectMeta::default(),
            version: 0,
            object,
        };
        if event_type != EventType::Error {
            let body = frame.get(event.object.clone()).unwrap_or_default();
            event.meta = meta(format, body, event_type).ok_or(WatchFault::NotAnEvent)?;
            event.version = event.meta.resource_version.parse().map_err(|_| WatchFault::NoVersion)?;
        }
        Ok(Some(event))
    }
}

fn meta(format: WatchFormat, object: &[u8], event_type: EventType) -> Option<ObjectMeta<'_>> {
    match format {
        WatchFormat::Json => object_meta::json(object),
        WatchFormat::Protobuf => object_meta::protobuf(object),
        WatchFormat::Table => {
            let table = object_meta::json(object)?;
            let row = match row_object(object) {
                Some(row) => row,
                None if event_type == EventType::Bookmark => return Some(table),
                // Rows that nobody has looked at would reach the client.
                None => return None,
            };
            let row = object_meta::json(row)?;
            Some(ObjectMeta {
                kind: table.kind,
                api_version: table.api_version,
                resource_version: if table.resource_version.is_empty() {
                    row.resource_version
                } else {
                    table.resource_version
                },
                initial_events_end: table.initial_events_end || row.initial_events_end,
                ..row
            })
        }
    }
}

/// Of the one row that an event has.
fn row_object(table: &[u8]) -> Option<&[u8]> {
    #[derive(Deserialize)]
    struct Table<'a> {
        #[serde(borrow)]
        rows: Vec<Row<'a>>,
    }
    #[derive(Deserialize)]
    struct Row<'a> {
        #[serde(borrow)]
        object: &'a RawValue,
    }
    let table: Table<'_> = serde_json::from_slice(table).ok()?;
    let [row] = &table.rows[..] else { return None };
    Some(row.object.get().as_bytes())
}

/// `{"type":"ADDED","object":{…}}`, so that the rest of the object need not be walked to find its end.
fn json_as_servers_write(frame: &[u8]) -> Option<(EventType, Range<usize>)> {
    const TYPE: &[u8] = b"{\"type\":\"";
    const OBJECT: &[u8] = b",\"object\":";
    let rest = frame.strip_prefix(TYPE)?;
    // The longest type is shorter than this.
    let end = rest.iter().take(12).position(|byte| *byte == b'"')?;
    let body = rest[end + 1..].strip_prefix(OBJECT)?.trim_ascii_end();
    let from = TYPE.len() + end + 1 + OBJECT.len();
    let body = body.strip_suffix(b"}")?;
    // One object: the brace above is the event's, this one is its own.
    (body.starts_with(b"{") && body.ends_with(b"}")).then_some(())?;
    Some((EventType::of(&rest[..end])?, from..from + body.len()))
}

fn json_in_any_order(frame: &[u8]) -> Option<(EventType, Range<usize>)> {
    #[derive(Deserialize)]
    struct Outer<'a> {
        #[serde(borrow, rename = "type")]
        kind: Cow<'a, str>,
        #[serde(borrow)]
        object: &'a RawValue,
    }
    let outer: Outer<'_> = serde_json::from_slice(frame).ok()?;
    let object = outer.object.get().as_bytes();
    Some((EventType::of(outer.kind.as_bytes())?, position(frame, object)))
}

fn protobuf(frame: &[u8]) -> Option<(EventType, Range<usize>)> {
    let event = frame.get(4..)?;
    let event_type = EventType::of(wire::last(event, EVENT_TYPE)??)?;
    let object = wire::last(wire::last(event, EVENT_OBJECT)??, EXTENSION_RAW)??;
    Some((event_type, position(frame, object)))
}

/// Where a part stands in the bytes it is a slice of.
fn position(whole: &[u8], part: &[u8]) -> Range<usize> {
    let from = part.as_ptr().addr() - whole.as_ptr().addr();
    from..from + part.len()
}

/// Reads the Status of an ERROR event; what cannot be read has code 0.
pub(super) fn refusal(format: WatchFormat, object: &[u8]) -> Refusal {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Status {
        code: i64,
        reason: String,
        message: String,
    }
    if format == WatchFormat::Protobuf {
        return protobuf_refusal(object).unwrap_or_default();
    }
    let status: Status = serde_json::from_slice(object).unwrap_or_default();
    Refusal {
        code: status.code,
        reason: status.reason,
        message: status.message,
    }
}

fn protobuf_refusal(object: &[u8]) -> Option<Refusal> {
    let status = wire::open(object)?.object;
    let code = wire::fields(status)
        .flatten()
        .find(|field| field.number == STATUS_CODE)
        .and_then(|field| wire::varint(field.raw.get(1..)?))
        .map_or(0, |(code, _)| i64::try_from(code).unwrap_or_default());
    Some(Refusal {
        code,
        reason: wire::text(status, STATUS_REASON)?.to_owned(),
        message: wire::text(status, STATUS_MESSAGE)?.to_owned(),
    })
}

/// The frame of an event around an object that is there already: what comes before and after the object.
pub(super) fn around(format: WatchFormat, event_type: &str, object: usize) -> (Bytes, Bytes) {
    if format != WatchFormat::Protobuf {
        let before = format!("{{\"type\":\"{event_type}\",\"object\":");
        return (before.into(), Bytes::from_static(b"}\n"));
    }
    let length = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    let mut inner = Vec::with_capacity(8);
    wire::put_header(&mut inner, EXTENSION_RAW, length(object));
    let mut event = Vec::with_capacity(32);
    wire::put(&mut event, EVENT_TYPE, event_type.as_bytes());
    wire::put_header(&mut event, EVENT_OBJECT, length(inner.len() + object));
    event.extend(inner);
    let total = u32::try_from(event.len() + object).unwrap_or(u32::MAX);
    let mut before = total.to_be_bytes().to_vec();
    before.extend(event);
    (before.into(), Bytes::new())
}
