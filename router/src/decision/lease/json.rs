//! Where a Lease's name stands in JSON values.

use serde_json::Value;

use super::Names;

/// Renames in an object, a list, a Table, a Status or a JSON patch.
pub(super) fn rename(names: &Names<'_>, value: &mut Value) {
    if let Value::Array(operations) = value {
        for operation in operations {
            patch_operation(names, operation);
        }
        return;
    }
    match value.get("kind").and_then(Value::as_str) {
        Some("Status") => status(names, value),
        Some("Table") => each(value, "rows", |row| {
            row.get_mut("object")
                .into_iter()
                .for_each(|object| rename_object(names, object));
            if let Some(Value::Array(cells)) = row.get_mut("cells") {
                for cell in cells {
                    swap(names, cell);
                }
            }
        }),
        _ => {
            rename_object(names, value);
            each(value, "items", |item| rename_object(names, item));
        }
    }
}

fn rename_object(names: &Names<'_>, object: &mut Value) {
    object
        .pointer_mut("/metadata/name")
        .into_iter()
        .for_each(|name| swap(names, name));
}

fn status(names: &Names<'_>, status: &mut Value) {
    status
        .pointer_mut("/details/name")
        .into_iter()
        .for_each(|name| swap(names, name));
    if let Some(Value::String(message)) = status.get_mut("message") {
        *message = message.replace(names.from, names.to);
    }
}

fn patch_operation(names: &Names<'_>, operation: &mut Value) {
    let path = operation
        .get("path")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    let Some(value) = operation.get_mut("value") else {
        return;
    };
    match path.as_str() {
        "/metadata/name" => swap(names, value),
        "/metadata" => value.get_mut("name").into_iter().for_each(|name| swap(names, name)),
        "" => rename_object(names, value),
        _ => {}
    }
}

fn each(value: &mut Value, field: &str, mut change: impl FnMut(&mut Value)) {
    if let Some(Value::Array(all)) = value.get_mut(field) {
        for one in all {
            change(one);
        }
    }
}

fn swap(names: &Names<'_>, value: &mut Value) {
    if value.as_str() == Some(names.from) {
        *value = Value::from(names.to);
    }
}
