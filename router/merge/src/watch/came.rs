//! A member's list of what came, page by page, as the events that a watch of it would begin with: its objects as ADDED, then
//! the marker.
//!
//! A watch cannot be asked for what was there at a version, a list can. Objects are not decoded: of a list of JSON each gets
//! the type that lists leave out, of protobuf its envelope, of a Table its row a Table of its own. Made for
//! [`super::Start::Came`]; the router's `fanout` reads pages and pushes what comes of them.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::WatchFormat;
use super::compose::EventTemplate;
use super::event::around;
use crate::object_meta;
use crate::wire;

/// What came, as of a version.
#[derive(Debug)]
pub struct Came {
    format: WatchFormat,
    version: u64,
    /// Columns of a Table were told.
    headed: bool,
}

/// Why a page cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CameFault {
    /// No list in the format of the watch.
    #[error("what it answered is no list of this kind")]
    NotAList,
    /// A list of another moment: the member does not heed the version that it is asked for.
    #[error("it answered with a list as of another version")]
    AnotherVersion,
}

/// A page, as far as it is read.
#[derive(Default)]
struct Page<'a> {
    kind: Cow<'a, str>,
    api_version: Cow<'a, str>,
    version: Cow<'a, str>,
    next: Cow<'a, str>,
    items: Vec<&'a [u8]>,
    columns: Option<&'a str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Json<'a> {
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    api_version: Cow<'a, str>,
    #[serde(borrow, default)]
    metadata: JsonMeta<'a>,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
    #[serde(borrow, default)]
    rows: Option<Vec<&'a RawValue>>,
    #[serde(borrow, default)]
    column_definitions: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct JsonMeta<'a> {
    #[serde(borrow)]
    resource_version: Cow<'a, str>,
    #[serde(borrow, rename = "continue")]
    next: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Row<'a> {
    #[serde(borrow)]
    object: &'a RawValue,
}

impl Came {
    /// Of a list as of this version, in the format of the watch.
    pub fn new(format: WatchFormat, version: u64) -> Self {
        Self {
            format,
            version,
            headed: false,
        }
    }

    /// A page as events, and the token of the next one. Behind the last page's events is the marker.
    pub fn page(&mut self, body: &[u8]) -> Result<(Bytes, Option<String>), CameFault> {
        let page = match self.format {
            WatchFormat::Protobuf => protobuf(body),
            WatchFormat::Json | WatchFormat::Table => json(body, self.format),
        };
        let page = page.ok_or(CameFault::NotAList)?;
        if page.version != self.version.to_string() {
            return Err(CameFault::AnotherVersion);
        }
        let kind = match self.format {
            WatchFormat::Table => &*page.kind,
            WatchFormat::Json | WatchFormat::Protobuf => page.kind.strip_suffix("List").ok_or(CameFault::NotAList)?,
        };
        let template = EventTemplate::new(self.format, kind, &page.api_version);
        let mut events = Vec::with_capacity(body.len() + body.len() / 4);
        for item in &page.items {
            let object = match self.format {
                WatchFormat::Json => typed(item, kind, &page.api_version),
                WatchFormat::Protobuf => Some(Cow::Owned(template.envelope(item))),
                WatchFormat::Table => {
                    let columns = page.columns.filter(|_| !self.headed);
                    self.headed = true;
                    table(item, &page.api_version, columns).map(Cow::Owned)
                }
            };
            let object = object.ok_or(CameFault::NotAList)?;
            let (before, after) = around(self.format, "ADDED", object.len());
            for part in [&before[..], &object, &after] {
                events.extend_from_slice(part);
            }
        }
        let next = Some(page.next.into_owned()).filter(|token| !token.is_empty());
        if next.is_none() {
            events.extend_from_slice(&template.bookmark(&page.version, true, Value::Array(Vec::new())));
        }
        Ok((events.into(), next))
    }
}

fn json(body: &[u8], format: WatchFormat) -> Option<Page<'_>> {
    let list: Json<'_> = serde_json::from_slice(body).ok()?;
    let items = match format {
        WatchFormat::Table if list.kind == "Table" => list.rows,
        WatchFormat::Table => return None,
        WatchFormat::Json | WatchFormat::Protobuf => list.items,
    };
    let items = items.unwrap_or_default().into_iter();
    Some(Page {
        kind: list.kind,
        api_version: list.api_version,
        version: list.metadata.resource_version,
        next: list.metadata.next,
        items: items.map(|item| item.get().as_bytes()).collect(),
        columns: list.column_definitions.map(RawValue::get),
    })
}

fn protobuf(body: &[u8]) -> Option<Page<'_>> {
    let list = wire::open(body)?;
    let mut page = Page {
        kind: list.kind.into(),
        api_version: list.api_version.into(),
        ..Page::default()
    };
    for field in wire::fields(list.object) {
        let field = field?;
        match (field.number, field.content) {
            (wire::LIST_META, Some(meta)) => {
                page.version = wire::text(meta, wire::LIST_META_VERSION)?.into();
                page.next = wire::text(meta, wire::LIST_META_CONTINUE)?.into();
            }
            (wire::LIST_ITEMS, Some(item)) => page.items.push(item),
            _ => {}
        }
    }
    Some(page)
}

/// An object in one line, with the type that items of lists may lack.
fn typed<'a>(item: &'a [u8], kind: &str, api_version: &str) -> Option<Cow<'a, [u8]>> {
    let item = in_one_line(item);
    if !object_meta::json_item(&item)?.kind.is_empty() {
        return Some(item);
    }
    let rest = item.strip_prefix(b"{")?;
    let head = serde_json::json!({"kind": kind, "apiVersion": api_version}).to_string();
    let head = head.strip_suffix('}')?;
    // An object has metadata, so that something follows.
    Some([head.as_bytes(), b",", rest].concat().into())
}

/// A row as a Table of its own.
fn table(row: &[u8], api_version: &str, columns: Option<&str>) -> Option<Vec<u8>> {
    let row = in_one_line(row);
    let Row { object } = serde_json::from_slice(&row).ok()?;
    let meta = object_meta::json(object.get().as_bytes())?;
    let head = format!(
        "{{\"kind\":\"Table\",\"apiVersion\":{},\"metadata\":{{\"resourceVersion\":{}}},\"columnDefinitions\":",
        Value::from(api_version),
        Value::from(&*meta.resource_version),
    );
    let columns = in_one_line(columns.unwrap_or("null").as_bytes()).into_owned();
    Some([head.as_bytes(), &columns, b",\"rows\":[", &row, b"]}"].concat())
}

/// Events are told apart by lines, and lists may be written for people: in JSON a line never ends within a text.
fn in_one_line(json: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr2(b'\n', b'\r', json).is_none() {
        return Cow::Borrowed(json);
    }
    let space = |byte: &u8| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte };
    json.iter().map(space).collect::<Vec<u8>>().into()
}

#[cfg(test)]
mod tests {
    use super::super::decoder::{FrameBytes, FrameDecoder};
    use super::super::event::{Event, EventType};
    use super::*;

    /// Type, kind, name and version of each event; the marker has no name.
    fn read(format: WatchFormat, events: &Bytes) -> Vec<(EventType, String, String, u64)> {
        let (mut decoder, mut at) = (FrameDecoder::new(None), 0);
        let mut seen = Vec::new();
        while let Some(frame) = decoder.next(format, events, &mut at).unwrap() {
            let FrameBytes::Within(range) = frame else {
                panic!("all of it is there");
            };
            let event = Event::read(format, &events[range]).unwrap().unwrap();
            let end = event.event_type == EventType::Bookmark;
            assert_eq!(event.meta.initial_events_end, end);
            let meta = &event.meta;
            let name = if end { String::new() } else { meta.name.to_string() };
            seen.push((
                event.event_type,
                format!("{} {}", meta.api_version, meta.kind),
                name,
                event.version,
            ));
        }
        seen
    }

    fn expected(kind: &str) -> Vec<(EventType, String, String, u64)> {
        let event = |event_type, name: &str, version| (event_type, kind.to_owned(), name.to_owned(), version);
        vec![
            event(EventType::Added, "a", 3),
            event(EventType::Added, "b", 5),
            event(EventType::Bookmark, "", 9),
        ]
    }

    #[test]
    fn a_list_becomes_what_a_watch_begins_with() {
        let pretty = r#"{
  "kind": "PodList", "apiVersion": "v1",
  "metadata": {"resourceVersion": "9"},
  "items": [
    {"metadata": {"name": "a", "resourceVersion": "3"}, "spec": {"x": "\n"}},
    {
      "kind": "Pod", "apiVersion": "v1",
      "metadata": {"name": "b", "resourceVersion": "5"}
    }
  ]
}"#;
        let mut came = Came::new(WatchFormat::Json, 9);
        let (events, next) = came.page(pretty.as_bytes()).unwrap();
        assert_eq!((read(WatchFormat::Json, &events), next), (expected("v1 Pod"), None));
    }

    #[test]
    fn rows_become_tables_and_columns_are_told_once() {
        let row = |name: &str, version: u64| {
            format!(
                r#"{{"cells":["{name}"],"object":{{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{{"name":"{name}","resourceVersion":"{version}"}}}}}}"#
            )
        };
        let table = format!(
            r#"{{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{{"resourceVersion":"9"}},"columnDefinitions":[{{"name":"Name","type":"string"}}],"rows":[{},{}]}}"#,
            row("a", 3),
            row("b", 5)
        );
        let (events, _) = Came::new(WatchFormat::Table, 9).page(table.as_bytes()).unwrap();
        assert_eq!(read(WatchFormat::Table, &events), expected("meta.k8s.io/v1 Table"));
        let text = String::from_utf8(events.to_vec()).unwrap();
        assert_eq!((text.matches("\"string\"").count(), text.lines().count()), (1, 3));
    }

    #[test]
    fn objects_of_protobuf_get_their_envelopes() {
        let item = |name: &str, version: &str| {
            let mut meta = Vec::new();
            wire::put(&mut meta, wire::META_NAME, name.as_bytes());
            wire::put(&mut meta, wire::META_VERSION, version.as_bytes());
            let mut object = Vec::new();
            wire::put(&mut object, wire::OBJECT_META, &meta);
            object
        };
        let mut meta = Vec::new();
        wire::put(&mut meta, wire::LIST_META_VERSION, b"9");
        let mut list = Vec::new();
        wire::put(&mut list, wire::LIST_META, &meta);
        wire::put(&mut list, wire::LIST_ITEMS, &item("a", "3"));
        wire::put(&mut list, wire::LIST_ITEMS, &item("b", "5"));
        let body = EventTemplate::new(WatchFormat::Protobuf, "PodList", "v1").envelope(&list);
        let (events, next) = Came::new(WatchFormat::Protobuf, 9).page(&body).unwrap();
        assert_eq!((read(WatchFormat::Protobuf, &events), next), (expected("v1 Pod"), None));
    }

    #[test]
    fn the_marker_is_behind_the_last_page_and_other_moments_are_refused() {
        let page = |version: u64, token: &str| {
            let meta = format!(r#"{{"resourceVersion":"{version}","continue":"{token}"}}"#);
            format!(r#"{{"kind":"PodList","apiVersion":"v1","metadata":{meta},"items":null}}"#)
        };
        let mut came = Came::new(WatchFormat::Json, 9);
        let first = came.page(page(9, "more").as_bytes());
        assert_eq!(first, Ok((Bytes::new(), Some("more".to_owned()))));
        let (last, next) = came.page(page(9, "").as_bytes()).unwrap();
        assert_eq!((read(WatchFormat::Json, &last).len(), next), (1, None));
        assert_eq!(came.page(page(10, "").as_bytes()), Err(CameFault::AnotherVersion));
        for body in [
            "",
            "{}",
            "[]",
            r#"{"kind":"Status","apiVersion":"v1","metadata":{"resourceVersion":"9"}}"#,
        ] {
            assert_eq!(came.page(body.as_bytes()), Err(CameFault::NotAList), "{body}");
        }
    }
}
