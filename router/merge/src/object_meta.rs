//! What an object is, read without decoding it: type, name, version and the initial-events marker.
//!
//! For frames of watches and items of lists, JSON or protobuf. Strings are borrowed where they stand. Broken input is
//! `None`; nothing recurses by what it finds. `watch` and `list` call it.

use std::borrow::Cow;
use std::fmt;
use std::sync::LazyLock;

use memchr::arch::all::packedpair::HeuristicFrequencyRank;
use memchr::memmem::{Finder, FinderBuilder};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::wire;

mod written;

/// The annotation of the bookmark that ends the initial events of a watch-list.
pub const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// Type and identity of an object. Empty where the object does not say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObjectMeta<'a> {
    /// `kind`; items of lists have none.
    pub kind: Cow<'a, str>,
    /// `apiVersion`; items of lists have none.
    pub api_version: Cow<'a, str>,
    /// `metadata.name`
    pub name: Cow<'a, str>,
    /// `metadata.namespace`
    pub namespace: Cow<'a, str>,
    /// `metadata.uid`
    pub uid: Cow<'a, str>,
    /// `metadata.resourceVersion`
    pub resource_version: Cow<'a, str>,
    /// Annotated `k8s.io/initial-events-end: "true"`. Means something on bookmarks only: users can annotate objects, so of
    /// objects it may be left unread.
    pub initial_events_end: bool,
}

/// Whether no more of an object need be read than its metadata, with what came before.
type Enough<'a> = fn(&ObjectMeta<'a>) -> bool;

fn types_known(meta: &ObjectMeta<'_>) -> bool {
    !meta.kind.is_empty() && !meta.api_version.is_empty()
}

impl ObjectMeta<'_> {
    /// Whether it is told of an object in a namespace all that can be.
    fn is_complete(&self) -> bool {
        let texts = [&self.name, &self.namespace, &self.uid, &self.resource_version];
        !texts.iter().any(|text| text.is_empty())
    }
}

/// Reads a JSON object, no further than it must: an object that breaks behind its metadata may pass.
pub fn json(object: &[u8]) -> Option<ObjectMeta<'_>> {
    json_until(object, types_known)
}

/// Reads a JSON object in a list, where the type may be left out: reads no further than its metadata.
pub fn json_item(object: &[u8]) -> Option<ObjectMeta<'_>> {
    json_until(object, |_| true)
}

fn json_until<'a>(object: &'a [u8], enough: Enough<'a>) -> Option<ObjectMeta<'a>> {
    let meta = written::json(object, enough).or_else(|| json_while(object, enough))?;
    if is_all_said(object, &meta) {
        return Some(meta);
    }
    json_while(object, |_| false)
}

/// Whether nothing behind what was read can say otherwise: of a field that stands twice clients take the last, and a member
/// could hide behind the first whose an object is.
fn is_all_said(object: &[u8], meta: &ObjectMeta<'_>) -> bool {
    let from = object.as_ptr().addr();
    let end = |text: &Cow<'_, str>| match text {
        Cow::Borrowed(text) => text.as_ptr().addr().checked_sub(from).map(|at| at + text.len()),
        Cow::Owned(_) => None,
    };
    let texts = [&meta.name, &meta.namespace, &meta.uid, &meta.resource_version];
    let read = texts
        .into_iter()
        .filter_map(end)
        .filter(|end| *end <= object.len())
        .max();
    let rest = &object[read.unwrap_or_default()..];
    !(is_escaped(rest) || METADATA.find(rest).is_some() || NAMESPACE.find(rest).is_some())
}

static METADATA: LazyLock<Finder<'static>> = LazyLock::new(|| word(b"\"metadata\""));
static NAMESPACE: LazyLock<Finder<'static>> = LazyLock::new(|| word(b"\"namespace\""));

/// Whether a character is written by its number, as any word may be then.
fn is_escaped(json: &[u8]) -> bool {
    // A byte is found faster than two of them, and most objects have none.
    let first = memchr::memchr(b'\\', json);
    first.is_some_and(|first| memchr::memmem::find(&json[first..], b"\\u").is_some())
}

/// Looks for a word of JSON by its letters: quotes are everywhere.
fn word(word: &'static [u8]) -> Finder<'static> {
    FinderBuilder::new().build_forward_with_ranker(Letters, word)
}

/// How often letters stand in JSON, as far as it matters in the words that are looked for.
struct Letters;

impl HeuristicFrequencyRank for Letters {
    fn rank(&self, byte: u8) -> u8 {
        match byte {
            b'"' => u8::MAX,
            b'a' | b'e' | b't' | b'n' | b's' => 200,
            _ => 100,
        }
    }
}

fn json_while<'a>(object: &'a [u8], enough: Enough<'a>) -> Option<ObjectMeta<'a>> {
    let mut meta = ObjectMeta::default();
    let mut done = false;
    let seed = ObjectVisitor {
        meta: &mut meta,
        done: &mut done,
        enough,
    };
    let mut reader = serde_json::Deserializer::from_slice(object);
    let whole = seed.deserialize(&mut reader).is_ok() && reader.end().is_ok();
    // Leaving a map early is an error to serde_json, and all that is wrong then.
    (done || whole).then_some(meta)
}

/// Reads an object in Kubernetes' protobuf envelope (`k8s\0` first).
pub fn protobuf(envelope: &[u8]) -> Option<ObjectMeta<'_>> {
    let opened = wire::open(envelope)?;
    Some(ObjectMeta {
        kind: opened.kind.into(),
        api_version: opened.api_version.into(),
        ..protobuf_object(opened.object)?
    })
}

/// Reads a protobuf object without envelope, as it stands in a list: type unknown.
pub fn protobuf_object(object: &[u8]) -> Option<ObjectMeta<'_>> {
    let mut meta = ObjectMeta::default();
    for message in wire::metas(object) {
        for field in wire::fields(message?) {
            let field = field?;
            let text = |content| std::str::from_utf8(content).ok().map(Cow::Borrowed);
            match (field.number, field.content) {
                (wire::META_NAME, Some(content)) => meta.name = text(content)?,
                (wire::META_NAMESPACE, Some(content)) => meta.namespace = text(content)?,
                (wire::META_UID, Some(content)) => meta.uid = text(content)?,
                (wire::META_VERSION, Some(content)) => meta.resource_version = text(content)?,
                (wire::META_ANNOTATIONS, Some(entry)) if wire::text(entry, wire::ENTRY_KEY)? == INITIAL_EVENTS_END => {
                    meta.initial_events_end = wire::text(entry, wire::ENTRY_VALUE)? == "true";
                }
                _ => {}
            }
        }
    }
    Some(meta)
}

/// A string, borrowed unless it has escapes; `null` is the empty one.
#[derive(Deserialize)]
#[serde(transparent)]
struct Text<'a>(#[serde(borrow)] Option<Plain<'a>>);

#[derive(Deserialize)]
#[serde(transparent)]
struct Plain<'a>(#[serde(borrow)] Cow<'a, str>);

fn key<'de, A: MapAccess<'de>>(map: &mut A) -> Result<Option<Cow<'de, str>>, A::Error> {
    Ok(map.next_key::<Plain<'de>>()?.map(|key| key.0))
}

fn text<'de, A: MapAccess<'de>>(map: &mut A) -> Result<Cow<'de, str>, A::Error> {
    Ok(map.next_value::<Text<'de>>()?.0.map(|text| text.0).unwrap_or_default())
}

struct ObjectVisitor<'s, 'a> {
    meta: &'s mut ObjectMeta<'a>,
    done: &'s mut bool,
    enough: Enough<'a>,
}

impl<'de> DeserializeSeed<'de> for ObjectVisitor<'_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ObjectVisitor<'_, 'de> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = key(&mut map)? {
            match &*key {
                "kind" => self.meta.kind = text(&mut map)?,
                "apiVersion" => self.meta.api_version = text(&mut map)?,
                "metadata" => {
                    let enough = (self.enough)(self.meta);
                    let read = map.next_value_seed(MetaVisitor {
                        meta: self.meta,
                        leave: enough,
                        left: self.done,
                    });
                    // The reader of the outer map complains of an inner one that was left early.
                    if *self.done {
                        return Ok(());
                    }
                    read?;
                    if enough {
                        *self.done = true;
                        return Ok(());
                    }
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

struct MetaVisitor<'s, 'a> {
    meta: &'s mut ObjectMeta<'a>,
    /// As soon as all is known: managed fields are a third of an object, and stand behind it.
    leave: bool,
    left: &'s mut bool,
}

impl<'de> DeserializeSeed<'de> for MetaVisitor<'_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for MetaVisitor<'_, 'de> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object's metadata")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = key(&mut map)? {
            match &*key {
                "name" => self.meta.name = text(&mut map)?,
                "namespace" => self.meta.namespace = text(&mut map)?,
                "uid" => self.meta.uid = text(&mut map)?,
                "resourceVersion" => self.meta.resource_version = text(&mut map)?,
                "annotations" => {
                    // `null` or nothing that could be the marker.
                    map.next_value_seed(AnnotationsVisitor(&mut self.meta.initial_events_end))?;
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
            if self.leave && self.meta.is_complete() {
                *self.left = true;
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Reads one key's value and skips the others unread: the last-applied annotation is as large as its object.
struct AnnotationsVisitor<'s>(&'s mut bool);

impl<'de> DeserializeSeed<'de> for AnnotationsVisitor<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for AnnotationsVisitor<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("annotations")
    }

    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = key(&mut map)? {
            if key == INITIAL_EVENTS_END {
                *self.0 = text(&mut map)? == "true";
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_heads() {
        let event = br#"{"kind":"Pod","apiVersion":"v1","spec":{"metadata":{"name":"inner"},"a":"\"}"},
            "metadata":{"name":"web","labels":{"name":"no"},"namespace":"ns-a","uid":"u","creationTimestamp":null,
            "resourceVersion":"12","managedFields":[{"#;
        let meta = json(event).unwrap();
        assert_eq!((&*meta.kind, &*meta.api_version, &*meta.name), ("Pod", "v1", "web"));
        assert_eq!(
            (&*meta.namespace, &*meta.uid, &*meta.resource_version),
            ("ns-a", "u", "12")
        );
        assert!(matches!(meta.name, Cow::Borrowed(_)));
    }

    #[test]
    fn of_what_stands_twice_the_last_counts() {
        let meta = r#""name":"n","namespace":"own","uid":"u","resourceVersion":"1""#;
        for object in [
            format!(r#"{{"metadata":{{{meta},"namespace":"other"}}}}"#),
            format!(r#"{{"metadata":{{{meta},"names\u0070ace":"other"}}}}"#),
            format!(
                r#"{{"metadata":{{{meta}}},"metadata":{{{}}}}}"#,
                meta.replace("own", "other")
            ),
            format!(r#"{{"metadata":{{{meta}}},"spec":{{}},"met\u0061data":{{"namespace":"other"}}}}"#),
        ] {
            assert_eq!(json_item(object.as_bytes()).unwrap().namespace, "other", "{object}");
            let typed = object.replacen('{', r#"{"kind":"K","apiVersion":"v1","#, 1);
            assert_eq!(json(typed.as_bytes()).unwrap().namespace, "other", "{typed}");
        }
        let nested = format!(r#"{{"metadata":{{{meta}}},"spec":{{"metadata":{{"namespace":"other"}}}}}}"#);
        assert_eq!(json_item(nested.as_bytes()).unwrap().namespace, "own");
    }

    #[test]
    fn the_marker_is_read_of_bookmarks() {
        let bookmark = br#"{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"12","creationTimestamp":null,
            "annotations":{"x":"{\"y\":1}","k8s.io/initial-events-end":"true"}},"spec":{"containers":null},"status":{}}"#;
        assert!(json(bookmark).unwrap().initial_events_end);
        let no =
            br#"{"kind":"Pod","apiVersion":"v1","metadata":{"annotations":{"k8s.io/initial-events-end":"false"}}}"#;
        assert!(!json(no).unwrap().initial_events_end);
    }

    #[test]
    fn json_items_have_no_type_and_any_order() {
        let item = br#"{"status":[[{"metadata":1}]],"metadata":{"annotations":null,"name":"a\u0062"}}"#;
        let meta = json_item(item).unwrap();
        assert_eq!((&*meta.name, &*meta.kind), ("ab", ""));
        assert_eq!(json(item).unwrap(), meta);
        assert_eq!(
            &*json(br#"{"metadata":{},"kind":"K","apiVersion":"v1"}"#).unwrap().kind,
            "K"
        );
    }

    #[test]
    fn what_is_broken_has_no_head() {
        for broken in [
            &b""[..],
            b"null",
            b"[]",
            b"{",
            br#"{"metadata":{"name":"x""#,
            br#"{"metadata":3}"#,
            b"{} {}",
        ] {
            assert_eq!(json(broken), None, "{}", String::from_utf8_lossy(broken));
        }
        let bomb = [b"{\"a\":".repeat(100_000), b"[".repeat(100_000)].concat();
        assert_eq!(json(&bomb), None);
    }

    #[test]
    fn protobuf_heads() {
        let mut marker = Vec::new();
        wire::put(&mut marker, wire::ENTRY_KEY, INITIAL_EVENTS_END.as_bytes());
        wire::put(&mut marker, wire::ENTRY_VALUE, b"true");
        let mut meta = Vec::new();
        wire::put(&mut meta, wire::META_NAME, b"web");
        wire::put(&mut meta, wire::META_NAMESPACE, b"ns-a");
        wire::put(&mut meta, wire::META_UID, b"u");
        wire::put(&mut meta, wire::META_VERSION, b"12");
        wire::put(&mut meta, wire::META_ANNOTATIONS, &marker);
        let mut object = Vec::new();
        wire::put(&mut object, wire::OBJECT_META, &meta);
        let mut kind = Vec::new();
        wire::put(&mut kind, wire::TYPE_META_VERSION, b"v1");
        wire::put(&mut kind, wire::TYPE_META_KIND, b"Pod");
        let mut body = wire::MAGIC.to_vec();
        wire::put(&mut body, wire::UNKNOWN_TYPE_META, &kind);
        wire::put(&mut body, wire::UNKNOWN_RAW, &object);
        let meta = protobuf(&body).unwrap();
        assert_eq!((&*meta.kind, &*meta.api_version, &*meta.name), ("Pod", "v1", "web"));
        assert_eq!(
            (&*meta.namespace, &*meta.uid, &*meta.resource_version),
            ("ns-a", "u", "12")
        );
        assert!(meta.initial_events_end);
        for length in 0..body.len() {
            if let Some(cut) = protobuf(&body[..length]) {
                assert_eq!(cut.name, "", "cut between fields, at {length}");
            }
        }
    }
}
