//! OpenAPI documents of several members, made into one: the v3 index, and documents whose members differ.
//!
//! The first document (the primary's) is taken whole; of the others what it lacks, by name: paths and schemas. JSON is cut
//! without being read, protobuf (gnostic's messages) is walked: of two messages in a row a reader makes one, so what is
//! missing is simply put behind. Pure; the router's `discovery` fetches, keeps and answers. Broken input is `None`.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::discovery::render::etag;
use crate::wire;

/// Which specification a document follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Edition {
    /// Swagger 2.0, `/openapi/v2`.
    V2,
    /// OpenAPI 3, `/openapi/v3/…`.
    V3,
}

/// The index `/openapi/v3` of one server: path of a document → its hash.
pub type Index = BTreeMap<String, String>;

#[derive(Serialize, Deserialize)]
struct IndexDocument {
    paths: BTreeMap<String, IndexEntry>,
}

#[derive(Serialize, Deserialize)]
struct IndexEntry {
    #[serde(rename = "serverRelativeURL")]
    server_relative_url: String,
}

/// Reads an index.
pub fn parse_index(body: &[u8]) -> Option<Index> {
    let document: IndexDocument = serde_json::from_slice(body).ok()?;
    let entries = document.paths.into_iter();
    let hashes = entries.map(|(path, entry)| {
        let hash = entry
            .server_relative_url
            .split_once("hash=")
            .map_or("", |(_, hash)| hash);
        let hash = hash.split('&').next().unwrap_or_default().to_owned();
        (path, hash)
    });
    Some(hashes.collect())
}

/// Who has which document of a path, by hash: the primary's first, each hash once.
pub fn sources<'a>(indexes: &[(&'a str, &'a Index)], path: &str) -> Vec<(&'a str, &'a str)> {
    let mut seen = BTreeSet::new();
    let having = indexes
        .iter()
        .filter_map(|(cluster, index)| Some((*cluster, index.get(path)?.as_str())));
    having.filter(|(_, hash)| seen.insert(*hash)).collect()
}

/// The hash of what several documents become: the only one's own, or one of them all. The first counts as the first, the
/// order of the others is of no effect.
pub fn combined(hashes: &[&str]) -> String {
    match hashes {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [first, rest @ ..] => {
            let mut rest = rest.to_vec();
            rest.sort_unstable();
            let mut all = vec![*first];
            all.extend(rest);
            etag(all.join(" ").as_bytes())
        }
    }
}

/// The index of the union. `indexes`: the primary's first.
pub fn unite_indexes(indexes: &[(&str, &Index)]) -> Vec<u8> {
    let paths: BTreeSet<&String> = indexes.iter().flat_map(|(_, index)| index.keys()).collect();
    let entry = |path: &String| {
        let hashes: Vec<_> = sources(indexes, path).into_iter().map(|(_, hash)| hash).collect();
        let entry = IndexEntry {
            server_relative_url: format!("/openapi/v3/{path}?hash={}", combined(&hashes)),
        };
        (path.clone(), entry)
    };
    let document = IndexDocument {
        paths: paths.into_iter().map(entry).collect(),
    };
    serde_json::to_vec(&document).unwrap_or_default()
}

type Object<'a> = BTreeMap<String, &'a RawValue>;

/// Makes one JSON document of several of one edition.
pub fn unite_json(edition: Edition, documents: &[&[u8]]) -> Option<Vec<u8>> {
    let (first, others) = documents.split_first()?;
    let mut whole: Object<'_> = serde_json::from_slice(first).ok()?;
    let others: Vec<Object<'_>> = others
        .iter()
        .map(|other| serde_json::from_slice(other).ok())
        .collect::<Option<_>>()?;
    let all = |key: &str| -> Option<Box<RawValue>> {
        let parts = std::iter::once(&whole)
            .chain(&others)
            .map(|document| document.get(key).copied());
        unite_objects(&parts.collect::<Vec<_>>())
    };
    let paths = all("paths");
    let schemas = match edition {
        Edition::V2 => all("definitions"),
        Edition::V3 => {
            let parts: Vec<_> = std::iter::once(&whole)
                .chain(&others)
                .map(|document| document.get("components").copied())
                .collect();
            unite_components(&parts)
        }
    };
    let key = if edition == Edition::V2 {
        "definitions"
    } else {
        "components"
    };
    for (key, value) in [("paths", &paths), (key, &schemas)] {
        if let Some(value) = value {
            whole.insert(key.to_owned(), value);
        }
    }
    serde_json::to_vec(&whole).ok()
}

/// The members of several objects, the first one's word for each; `None` if there is nothing to write.
fn unite_objects(parts: &[Option<&RawValue>]) -> Option<Box<RawValue>> {
    let mut all: Object<'_> = BTreeMap::new();
    for part in parts.iter().flatten() {
        let part: Object<'_> = serde_json::from_str(part.get()).ok()?;
        for (name, value) in part {
            all.entry(name).or_insert(value);
        }
    }
    if parts.iter().all(Option::is_none) {
        return None;
    }
    serde_json::value::to_raw_value(&all).ok()
}

/// `components` of v3: the same for each of its kinds of things.
fn unite_components(parts: &[Option<&RawValue>]) -> Option<Box<RawValue>> {
    let parts: Vec<Object<'_>> = parts
        .iter()
        .flatten()
        .map(|part| serde_json::from_str(part.get()).ok())
        .collect::<Option<_>>()?;
    let names: BTreeSet<&String> = parts.iter().flat_map(BTreeMap::keys).collect();
    let united = names.into_iter().filter_map(|name| {
        let values: Vec<_> = parts.iter().map(|part| part.get(name).copied()).collect();
        Some((name.clone(), unite_objects(&values)?))
    });
    let united: BTreeMap<String, Box<RawValue>> = united.collect();
    (!parts.is_empty())
        .then(|| serde_json::value::to_raw_value(&united).ok())
        .flatten()
}

/// A way down to a repeated field whose messages begin with their name: numbers of the fields on it.
type Way = &'static [u64];

/// `Document.paths.path`, `Document.definitions.additional_properties`.
const V2: [Way; 2] = [&[8, 2], &[9, 1]];
/// `Document.paths.path`, `Document.components.schemas.additional_properties`.
const V3: [Way; 2] = [&[4, 1], &[5, 1, 1]];
/// `name` of `NamedPathItem`, `NamedSchema`, `NamedSchemaOrReference`.
const NAME: u64 = 1;

/// Makes one protobuf document of several of one edition.
pub fn unite_protobuf(edition: Edition, documents: &[&[u8]]) -> Option<Vec<u8>> {
    let (first, others) = documents.split_first()?;
    let mut united = first.to_vec();
    let ways = if edition == Edition::V2 { V2 } else { V3 };
    for way in ways {
        let mut known = BTreeSet::new();
        each(first, way, &mut |name, _| {
            known.insert(name.to_vec());
        })?;
        for other in others {
            let mut more = Vec::new();
            each(other, way, &mut |name, raw| {
                if known.insert(name.to_vec()) {
                    more.extend_from_slice(raw);
                }
            })?;
            if !more.is_empty() {
                wrap(&mut united, way, more);
            }
        }
    }
    Some(united)
}

/// Calls with the name and the raw field of each message at the end of the way.
fn each<'a>(message: &'a [u8], way: &[u64], call: &mut dyn FnMut(&'a [u8], &'a [u8])) -> Option<()> {
    let (number, rest) = way.split_first()?;
    for field in wire::fields(message) {
        let field = field?;
        let Some(content) = field.content.filter(|_| field.number == *number) else {
            continue;
        };
        if rest.is_empty() {
            call(wire::last(content, NAME)?.unwrap_or_default(), field.raw);
        } else {
            each(content, rest, call)?;
        }
    }
    Some(())
}

/// Appends the fields within the messages that lead to them.
fn wrap(out: &mut Vec<u8>, way: &[u64], mut fields: Vec<u8>) {
    let messages = way.split_last().map_or(&[][..], |(_, messages)| messages);
    for number in messages.iter().rev() {
        let mut around = Vec::with_capacity(fields.len() + 12);
        wire::put(&mut around, *number, &fields);
        fields = around;
    }
    out.extend_from_slice(&fields);
}
