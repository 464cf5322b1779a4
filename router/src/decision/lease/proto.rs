//! Where a Lease's name stands in protobuf: Lease, LeaseList, Status, in their envelope.

use super::Names;
use crate::value::object::protobuf::{
    self, DETAILS_NAME, LIST_ITEMS, META_NAME, OBJECT_META, STATUS_DETAILS, STATUS_MESSAGE, replace,
};

/// Renames in the object of an envelope; `None` if it cannot be read.
pub(super) fn rename(names: &Names<'_>, body: &[u8]) -> Option<Vec<u8>> {
    let (kind, object) = protobuf::open(body)?;
    let changed = match kind {
        "Status" => status(names, object)?,
        list if list.ends_with("List") => replace(object, |number, item| {
            if number == LIST_ITEMS {
                rename_object(names, item)
            } else {
                None
            }
        })?,
        _ => rename_object(names, object)?,
    };
    protobuf::replace_object(body, |_| Some(changed.clone()))
}

fn rename_object(names: &Names<'_>, object: &[u8]) -> Option<Vec<u8>> {
    replace(object, |number, meta| {
        let renamed = |number, name: &[u8]| (number == META_NAME).then(|| swap(names, name)).flatten();
        (number == OBJECT_META).then(|| replace(meta, renamed)).flatten()
    })
}

fn status(names: &Names<'_>, status: &[u8]) -> Option<Vec<u8>> {
    replace(status, |number, content| match number {
        STATUS_MESSAGE => Some(
            std::str::from_utf8(content)
                .ok()?
                .replace(names.from, names.to)
                .into_bytes(),
        ),
        STATUS_DETAILS => replace(content, |number, name| {
            (number == DETAILS_NAME).then(|| swap(names, name)).flatten()
        }),
        _ => None,
    })
}

fn swap(names: &Names<'_>, name: &[u8]) -> Option<Vec<u8>> {
    (name == names.from.as_bytes()).then(|| names.to.as_bytes().to_vec())
}
