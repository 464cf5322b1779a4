//! JSON patches (RFC 6902), as far as they decide whose child an object becomes. Pure.
//!
//! A JSON patch says positions, not values: what it makes of the owner references depends on the object. So it is carried
//! out on the object as it was read, and sent with that object's version as a precondition: what was judged is what
//! happens, or 409. Positions are read as API servers read them, and what those read in ways of their own (a negative
//! index, a path without a slash in front) is refused.

use bytes::{BufMut as _, Bytes, BytesMut};
use serde_json::{Value, json};

use super::Owner;
use crate::value::fault::Fault;
use crate::value::object::{self, Encoding};

/// Operations of one patch: as many as an API server takes.
const MAX_OPERATIONS: usize = 10_000;
/// What all `copy` operations of a patch may copy together, in values: it could double the object with each.
const MAX_COPIED_VALUES: usize = 100_000;
/// What a position that concerns owner references begins with.
const FIELD_PATH: &str = "/metadata/ownerReferences";

/// A JSON patch that may add owners.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct JsonPatch {
    operations: Vec<Value>,
}

/// What a JSON patch makes of an object.
#[derive(Debug, PartialEq)]
pub(crate) struct Judged {
    /// The owners that the object has then.
    pub(crate) owners: Vec<Owner>,
    /// The patch, which applies to that version of the object alone.
    pub(crate) body: Bytes,
}

impl JsonPatch {
    /// `None`: it adds no owner, whatever the object is.
    pub(super) fn read(body: &[u8]) -> Result<Option<Self>, Fault> {
        let Value::Array(operations) = object::parse(Encoding::Json, body)? else {
            return Err(Fault::BadRequest(
                "a JSON patch must be a list of operations".to_owned(),
            ));
        };
        if operations.len() > MAX_OPERATIONS {
            return Err(Fault::TooLarge {
                limit: MAX_OPERATIONS as u64,
            });
        }
        let adds = operations.iter().any(may_add);
        Ok(adds.then_some(Self { operations }))
    }

    /// Carries it out on the object as it was read. `body`: the patch as it came.
    pub(crate) fn judge(&self, object: &Value, body: &Bytes) -> Result<Judged, Fault> {
        let version = object.pointer("/metadata/resourceVersion").and_then(Value::as_str);
        let version = version
            .filter(|version| !version.is_empty())
            .ok_or_else(|| Fault::Internal("the object as it was read has no resourceVersion".to_owned()))?;
        let mut result = object.clone();
        let mut copied = 0;
        for (index, operation) in self.operations.iter().enumerate() {
            operate(&mut result, operation, &mut copied).map_err(|why| Fault::Invalid {
                message: format!("the JSON patch cannot be carried out: operation {index}: {why}"),
                fields: Vec::new(),
            })?;
        }
        let wanted = result.pointer("/metadata/resourceVersion").unwrap_or(&Value::Null);
        if !(wanted.is_null() || wanted == version || wanted == "") {
            return Err(Fault::Conflict(format!(
                "the object has been modified: it is at resourceVersion {version}, and the patch is for {wanted}"
            )));
        }
        Ok(Judged {
            owners: super::of_object(&result)?,
            body: preconditioned(body, version)?,
        })
    }
}

/// The patch as it came, and the version that it is for as its last operation: an API server answers 409 to another.
fn preconditioned(body: &Bytes, version: &str) -> Result<Bytes, Fault> {
    let list = body.trim_ascii_end().strip_suffix(b"]");
    let list = list.ok_or_else(|| Fault::Internal("a JSON patch that is no list".to_owned()))?;
    let last = json!({"op": "add", "path": "/metadata/resourceVersion", "value": version}).to_string();
    let mut out = BytesMut::with_capacity(body.len() + last.len() + 1);
    out.put_slice(list);
    out.put_u8(b',');
    out.put_slice(last.as_bytes());
    out.put_u8(b']');
    Ok(out.freeze())
}

/// Whether an operation may give the object an owner: it writes at the field, in it, or around it. What cannot be read is
/// taken to.
fn may_add(operation: &Value) -> bool {
    let text = |field: &str| operation.get(field).and_then(Value::as_str).unwrap_or_default();
    // API servers drop what stands before the first slash, whatever it is.
    let is_odd = |path: &str| !path.is_empty() && !path.starts_with('/');
    match text("op") {
        "test" => false,
        "remove" => is_odd(text("path")),
        _ => is_odd(text("path")) || is_odd(text("from")) || concerns(text("path")),
    }
}

fn concerns(path: &str) -> bool {
    let within = path.strip_prefix(FIELD_PATH);
    matches!(path, "" | "/metadata") || within.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// One operation. Tests are the member's affair: where one fails nothing is written.
fn operate(target: &mut Value, operation: &Value, copied: &mut usize) -> Result<(), String> {
    let text = |field: &str| {
        let found = operation.get(field).and_then(Value::as_str);
        found.ok_or_else(|| format!("it has no {field}"))
    };
    let value = || {
        operation
            .get("value")
            .cloned()
            .ok_or_else(|| "it has no value".to_owned())
    };
    match text("op")? {
        "test" => Ok(()),
        "add" => add(target, text("path")?, value()?),
        "replace" => {
            let value = value()?;
            *at(target, text("path")?)? = value;
            Ok(())
        }
        "remove" => remove(target, text("path")?).map(drop),
        "move" => {
            let moved = remove(target, text("from")?)?;
            add(target, text("path")?, moved)
        }
        "copy" => {
            let from = at(target, text("from")?)?.clone();
            *copied = copied.saturating_add(size(&from));
            if *copied > MAX_COPIED_VALUES {
                return Err("it copies too much".to_owned());
            }
            add(target, text("path")?, from)
        }
        other => Err(format!("{other:?} is no operation")),
    }
}

/// How many values a value is.
fn size(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(size).sum(),
        Value::Object(fields) => fields.values().map(size).sum(),
        _ => 0,
    }
}

/// The words of a position, outermost first.
fn words(path: &str) -> Result<Vec<String>, String> {
    if path.is_empty() {
        return Ok(Vec::new());
    }
    let rest = path
        .strip_prefix('/')
        .ok_or_else(|| format!("{path:?} does not begin with a slash"))?;
    Ok(rest
        .split('/')
        .map(|word| word.replace("~1", "/").replace("~0", "~"))
        .collect())
}

/// A place in a list: digits without a sign or a leading zero.
fn index(word: &str) -> Result<usize, String> {
    let plain =
        word == "0" || !word.starts_with('0') && !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let index = word.parse().ok().filter(|_| plain);
    index.ok_or_else(|| format!("{word:?} is no place in a list: say it as a number"))
}

fn step<'a>(value: &'a mut Value, word: &str) -> Result<&'a mut Value, String> {
    let found = match value {
        Value::Object(fields) => fields.get_mut(word),
        Value::Array(items) => items.get_mut(index(word)?),
        _ => None,
    };
    found.ok_or_else(|| format!("there is nothing at {word:?}"))
}

fn at<'a>(target: &'a mut Value, path: &str) -> Result<&'a mut Value, String> {
    words(path)?.iter().try_fold(target, |value, word| step(value, word))
}

/// The value that holds the last word of a position, and that word.
fn parent<'a>(target: &'a mut Value, path: &str) -> Result<Option<(&'a mut Value, String)>, String> {
    let mut words = words(path)?;
    let Some(last) = words.pop() else { return Ok(None) };
    let holder = words.iter().try_fold(target, |value, word| step(value, word))?;
    Ok(Some((holder, last)))
}

fn add(target: &mut Value, path: &str, value: Value) -> Result<(), String> {
    let Some((holder, word)) = parent(target, path)? else {
        *target = value;
        return Ok(());
    };
    match holder {
        Value::Object(fields) => {
            fields.insert(word, value);
        }
        Value::Array(items) => {
            let place = if word == "-" { items.len() } else { index(&word)? };
            if place > items.len() {
                return Err(format!("there is no place {place} in a list of {}", items.len()));
            }
            items.insert(place, value);
        }
        _ => return Err(format!("{path:?} is in no object and no list")),
    }
    Ok(())
}

fn remove(target: &mut Value, path: &str) -> Result<Value, String> {
    let nothing = || format!("there is nothing at {path:?}");
    let (holder, word) = parent(target, path)?.ok_or_else(nothing)?;
    match holder {
        Value::Object(fields) => fields.remove(&word).ok_or_else(nothing),
        Value::Array(items) => {
            let place = index(&word)?;
            if place >= items.len() {
                return Err(nothing());
            }
            Ok(items.remove(place))
        }
        _ => Err(nothing()),
    }
}
