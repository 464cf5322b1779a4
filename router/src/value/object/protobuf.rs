//! Names, labels and annotations of single protobuf objects, read and changed in bodies that arrived whole.
//!
//! The walking of fields is `portolan_merge::wire`'s; here is what a router asks of an object. Broken input is `None`,
//! never a guess: requests are refused by what is read here.

use std::collections::BTreeMap;

use portolan_merge::wire::{self, ENTRY_KEY, ENTRY_VALUE, META_ANNOTATIONS, META_LABELS};
pub(crate) use portolan_merge::wire::{LIST_ITEMS, MAGIC, META_NAME, OBJECT_META, put, replace, replace_object};

/// `ObjectMeta`.
const META_OWNERS: u64 = 13;
/// `OwnerReference`: kind, name, uid, apiVersion.
const OWNER_FIELDS: [u64; 4] = [1, 3, 4, 5];
/// `Status`.
pub(crate) const STATUS_MESSAGE: u64 = 3;
/// `Status`.
pub(crate) const STATUS_DETAILS: u64 = 5;
/// `StatusDetails`.
pub(crate) const DETAILS_NAME: u64 = 1;

/// The kind that an envelope names, and the object in it.
pub(crate) fn open(body: &[u8]) -> Option<(&str, &[u8])> {
    wire::open(body).map(|opened| (opened.kind, opened.object))
}

/// `metadata.name` of an object without its envelope. Empty when absent.
pub(crate) fn name(object: &[u8]) -> Option<String> {
    let mut name = "";
    for meta in wire::metas(object) {
        if let Some(found) = wire::last(meta?, META_NAME)? {
            name = std::str::from_utf8(found).ok()?;
        }
    }
    Some(name.to_owned())
}

/// `metadata.labels` of an object without its envelope.
pub(crate) fn labels(object: &[u8]) -> Option<BTreeMap<String, String>> {
    map(object, META_LABELS)
}

/// `metadata.annotations` of an object without its envelope.
pub(crate) fn annotations(object: &[u8]) -> Option<BTreeMap<String, String>> {
    map(object, META_ANNOTATIONS)
}

/// `metadata.ownerReferences` of an object without its envelope: kind, name, uid and apiVersion of each.
pub(crate) fn owners(object: &[u8]) -> Option<Vec<[String; 4]>> {
    let mut found = Vec::new();
    for meta in wire::metas(object) {
        for field in wire::fields(meta?) {
            let field = field?;
            if field.number == META_OWNERS {
                let mut parts: [String; 4] = Default::default();
                for (part, number) in parts.iter_mut().zip(OWNER_FIELDS) {
                    wire::text(field.content?, number)?.clone_into(part);
                }
                found.push(parts);
            }
        }
    }
    Some(found)
}

/// The content of a message's field; `None` also if it has none.
pub(crate) fn content(message: &[u8], number: u64) -> Option<&[u8]> {
    wire::last(message, number)?
}

/// The last number that a message has in this field; `None` also if it has none.
pub(crate) fn number(message: &[u8], number: u64) -> Option<u64> {
    let fields = wire::fields(message).map_while(std::convert::identity);
    let last = fields
        .filter(|field| field.number == number && field.content.is_none())
        .last()?;
    let (_, value) = wire::varint(last.raw)?;
    Some(wire::varint(value)?.0)
}

/// What a Status in its envelope says.
pub(super) fn message(body: &[u8]) -> Option<String> {
    let (_, status) = open(body)?;
    String::from_utf8(wire::last(status, STATUS_MESSAGE)??.to_vec()).ok()
}

fn map(object: &[u8], number: u64) -> Option<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for meta in wire::metas(object) {
        for field in wire::fields(meta?) {
            let field = field?;
            if field.number == number {
                let part = |number| wire::text(field.content?, number).map(str::to_owned);
                found.insert(part(ENTRY_KEY)?, part(ENTRY_VALUE)?);
            }
        }
    }
    Some(found)
}
