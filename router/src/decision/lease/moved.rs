//! What is recorded of a leader lock, carried from where it was to where it is now.
//!
//! Routers do it one beside the other, and after each other's deaths, so each step is a write with a precondition: first the
//! record to the new place, then a mark to the old one. Nobody uses the new place before the old one is marked. So whoever
//! reads the new place, then the old one without a mark, and then finds the new one as it was, overwrites nothing that
//! anybody has recorded there since. In this order alone. Called by `preflight`.

use portolan_crds::labels::LOCK_MOVED;
use serde_json::{Map, Value, json};

use super::LEADER;

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    /// The lock may be used.
    Done,
    /// The new place is to be written, then the old one: made where it is absent, else as of the version that was read.
    Write {
        /// For the new place.
        record: Value,
        /// For the old place.
        marked: Value,
    },
}

/// What is to be done, by the lock at its new place, which was read first, and at its old one, as JSON. `None`: there is none.
pub(crate) fn step(new: Option<Value>, old: Option<Value>, mark: &str) -> Step {
    let Some(mut old) = old else { return Step::Done };
    if annotation(&old, LOCK_MOVED) == Some(mark) {
        return Step::Done;
    }
    let Some(record) = record(&old) else { return Step::Done };
    let mut object = new.unwrap_or_else(|| {
        let metadata = old.get("metadata");
        let of = |field| {
            metadata
                .and_then(|metadata| metadata.get(field))
                .cloned()
                .unwrap_or_default()
        };
        json!({
            "apiVersion": old.get("apiVersion"),
            "kind": old.get("kind"),
            "metadata": {"name": of("name"), "namespace": of("namespace")},
        })
    });
    match record {
        Record::Spec(spec) => object["spec"] = spec,
        Record::Annotation(text) => annotate(&mut object, LEADER, text),
    }
    annotate(&mut old, LOCK_MOVED, mark.to_owned());
    Step::Write {
        record: object,
        marked: old,
    }
}

/// Who leads, as a kind of lock says it.
enum Record {
    /// Of a Lease.
    Spec(Value),
    /// Of all others.
    Annotation(String),
}

fn record(lock: &Value) -> Option<Record> {
    if lock.get("kind").and_then(Value::as_str) == Some("Lease") {
        return lock.get("spec").cloned().map(Record::Spec);
    }
    annotation(lock, LEADER).map(|text| Record::Annotation(text.to_owned()))
}

fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.get("metadata")?.get("annotations")?.get(key)?.as_str()
}

fn annotate(object: &mut Value, key: &str, text: String) {
    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
    let Some(metadata) = metadata else { return };
    let annotations = metadata.entry("annotations").or_insert_with(|| Map::new().into());
    if !annotations.is_object() {
        *annotations = Map::new().into();
    }
    annotations[key] = text.into();
}

#[cfg(test)]
mod tests;
