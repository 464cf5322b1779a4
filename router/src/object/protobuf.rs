//! Protobuf without a schema: fields by number, and Kubernetes' envelope around every object.
//!
//! Everything is bounded by the input and nothing recurses by what it finds: only known paths are descended. Broken input
//! is `None`. Unknown fields are kept as they are, in their order.

use std::collections::BTreeMap;

/// What an encoded object begins with.
pub const MAGIC: &[u8] = b"k8s\0";

/// `runtime.Unknown`: the envelope's fields.
const UNKNOWN_TYPE_META: u64 = 1;
const UNKNOWN_RAW: u64 = 2;
/// `runtime.TypeMeta`.
const TYPE_META_KIND: u64 = 2;
/// Every object.
pub const OBJECT_META: u64 = 1;
/// Every list.
pub const LIST_ITEMS: u64 = 2;
/// `ObjectMeta`.
pub const META_NAME: u64 = 1;
const META_LABELS: u64 = 11;
const META_ANNOTATIONS: u64 = 12;
/// A map's entries.
const ENTRY_KEY: u64 = 1;
const ENTRY_VALUE: u64 = 2;
/// `Status`.
pub const STATUS_MESSAGE: u64 = 3;
/// `Status`.
pub const STATUS_DETAILS: u64 = 5;
/// `StatusDetails`.
pub const DETAILS_NAME: u64 = 1;

/// Wire type of strings, bytes and messages.
const LENGTH_DELIMITED: u64 = 2;

/// One field of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field<'a> {
    /// Its number.
    pub number: u64,
    /// Tag, length and content as they stand.
    pub raw: &'a [u8],
    /// The content, if it is length-delimited.
    pub content: Option<&'a [u8]>,
}

/// Largest number a field can have. Go's readers keep 32 bits of a number, so a larger one could be any field to them.
const MAX_FIELD: u64 = (1 << 29) - 1;

/// Cuts a message into its fields.
pub fn fields(mut message: &[u8]) -> Option<Vec<Field<'_>>> {
    let mut fields = Vec::new();
    while !message.is_empty() {
        let (tag, mut rest) = varint(message)?;
        if !(1..=MAX_FIELD).contains(&(tag >> 3)) {
            return None;
        }
        let content = match tag & 7 {
            0 => {
                rest = varint(rest)?.1;
                None
            }
            1 => {
                rest = rest.get(8..)?;
                None
            }
            LENGTH_DELIMITED => {
                let (length, after) = varint(rest)?;
                let (content, after) = after.split_at_checked(usize::try_from(length).ok()?)?;
                rest = after;
                Some(content)
            }
            5 => {
                rest = rest.get(4..)?;
                None
            }
            // Groups are of proto1; Kubernetes has none.
            _ => return None,
        };
        let raw = message.get(..message.len() - rest.len())?;
        fields.push(Field {
            number: tag >> 3,
            raw,
            content,
        });
        message = rest;
    }
    Some(fields)
}

fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0_u64;
    for (index, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f).checked_shl(u32::try_from(index * 7).ok()?)?;
        if byte & 0x80 == 0 {
            return Some((value, bytes.get(index + 1..)?));
        }
    }
    None
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(u8::try_from(value & 0x7f).unwrap_or_default() | 0x80);
        value >>= 7;
    }
    out.push(u8::try_from(value).unwrap_or_default());
}

/// Appends a length-delimited field.
pub fn put(out: &mut Vec<u8>, number: u64, content: &[u8]) {
    put_varint(out, (number << 3) | LENGTH_DELIMITED);
    put_varint(out, u64::try_from(content.len()).unwrap_or(u64::MAX));
    out.extend_from_slice(content);
}

/// A message with the contents of some fields replaced: `change` returns the new content, or `None` to keep it.
pub fn replace(message: &[u8], change: impl Fn(u64, &[u8]) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(message.len() + 64);
    for field in fields(message)? {
        match field.content.and_then(|content| change(field.number, content)) {
            Some(content) => put(&mut out, field.number, &content),
            None => out.extend_from_slice(field.raw),
        }
    }
    Some(out)
}

/// The content of the last length-delimited field of this number: the last one counts.
fn last(message: &[u8], number: u64) -> Option<&[u8]> {
    fields(message)?
        .into_iter()
        .rev()
        .filter(|field| field.number == number)
        .find_map(|field| field.content)
}

fn text(bytes: &[u8]) -> Option<String> {
    String::from_utf8(bytes.to_vec()).ok()
}

/// The kind that an envelope names, and the object in it.
pub fn open(body: &[u8]) -> Option<(String, &[u8])> {
    let unknown = body.strip_prefix(MAGIC)?;
    let kind = last(unknown, UNKNOWN_TYPE_META)
        .and_then(|meta| last(meta, TYPE_META_KIND))
        .unwrap_or_default();
    Some((text(kind)?, last(unknown, UNKNOWN_RAW)?))
}

/// The same envelope around a changed object.
pub fn replace_object(body: &[u8], change: impl Fn(&[u8]) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
    let unknown = body.strip_prefix(MAGIC)?;
    let mut out = MAGIC.to_vec();
    out.extend(replace(unknown, |number, content| {
        if number == UNKNOWN_RAW { change(content) } else { None }
    })?);
    Some(out)
}

/// `metadata.name` of an object without its envelope. Empty when absent.
pub fn name(object: &[u8]) -> Option<String> {
    let mut name = String::new();
    for meta in metas(object)? {
        if let Some(found) = last(meta, META_NAME) {
            name = text(found)?;
        }
    }
    Some(name)
}

/// `metadata.labels` of an object without its envelope.
pub fn labels(object: &[u8]) -> Option<BTreeMap<String, String>> {
    map(object, META_LABELS)
}

/// `metadata.annotations` of an object without its envelope.
pub fn annotations(object: &[u8]) -> Option<BTreeMap<String, String>> {
    map(object, META_ANNOTATIONS)
}

fn map(object: &[u8], number: u64) -> Option<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for meta in metas(object)? {
        for entry in fields(meta)?.into_iter().filter(|field| field.number == number) {
            let entry = entry.content?;
            let part = |number| last(entry, number).map_or(Some(String::new()), text);
            found.insert(part(ENTRY_KEY)?, part(ENTRY_VALUE)?);
        }
    }
    Some(found)
}

/// A message may come in several pieces, which a reader merges.
fn metas(object: &[u8]) -> Option<Vec<&[u8]>> {
    fields(object)?
        .into_iter()
        .filter(|field| field.number == OBJECT_META)
        .map(|field| field.content)
        .collect()
}
