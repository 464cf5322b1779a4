//! Unaggregated documents of discovery in Kubernetes' protobuf, for clients that take nothing else: field for field as API
//! servers write them (`generated.proto` of meta/v1).

use serde_json::Value;

use crate::wire::{MAGIC, put, put_varint};

/// Tag of the field `namespaced` of an APIResource, which is a varint.
const NAMESPACED: u64 = 2 << 3;

/// A document of [`render`](super::render) in its envelope; `None` for what is none of `APIVersions`, `APIGroupList`, `APIGroup`
/// and `APIResourceList`.
pub fn encode(document: &Value) -> Option<Vec<u8>> {
    let kind = document["kind"].as_str()?;
    let raw = match kind {
        "APIVersions" => versions(document),
        "APIGroupList" => message(|out| each(out, 1, &document["groups"], group)),
        "APIGroup" => group(document),
        "APIResourceList" => message(|out| {
            text(out, 1, &document["groupVersion"]);
            each(out, 2, &document["resources"], resource);
        }),
        _ => return None,
    };
    let type_meta = message(|out| {
        text(out, 1, &document["apiVersion"]);
        put(out, 2, kind.as_bytes());
    });
    let mut out = MAGIC.to_vec();
    put(&mut out, 1, &type_meta);
    put(&mut out, 2, &raw);
    // Encoding and type of the content, which API servers write though they are empty.
    put(&mut out, 3, b"");
    put(&mut out, 4, b"");
    Some(out)
}

fn versions(document: &Value) -> Vec<u8> {
    message(|out| {
        texts(out, 1, &document["versions"]);
        each(out, 2, &document["serverAddressByClientCIDRs"], |address| {
            message(|out| {
                text(out, 1, &address["clientCIDR"]);
                text(out, 2, &address["serverAddress"]);
            })
        });
    })
}

fn group(group: &Value) -> Vec<u8> {
    let version = |version: &Value| {
        message(|out| {
            text(out, 1, &version["groupVersion"]);
            text(out, 2, &version["version"]);
        })
    };
    message(|out| {
        text(out, 1, &group["name"]);
        each(out, 2, &group["versions"], version);
        put(out, 3, &version(&group["preferredVersion"]));
    })
}

fn resource(resource: &Value) -> Vec<u8> {
    message(|out| {
        text(out, 1, &resource["name"]);
        put_varint(out, NAMESPACED);
        put_varint(out, resource["namespaced"].as_bool().unwrap_or_default().into());
        text(out, 3, &resource["kind"]);
        put(out, 4, &message(|out| texts(out, 1, &resource["verbs"])));
        texts(out, 5, &resource["shortNames"]);
        text(out, 6, &resource["singularName"]);
        texts(out, 7, &resource["categories"]);
        text(out, 8, &resource["group"]);
        text(out, 9, &resource["version"]);
        text(out, 10, &resource["storageVersionHash"]);
    })
}

fn message(fill: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    fill(&mut out);
    out
}

/// A text, also an empty or an absent one: API servers write those as empty.
fn text(out: &mut Vec<u8>, number: u64, value: &Value) {
    put(out, number, value.as_str().unwrap_or_default().as_bytes());
}

fn texts(out: &mut Vec<u8>, number: u64, values: &Value) {
    for value in values.as_array().into_iter().flatten() {
        text(out, number, value);
    }
}

fn each(out: &mut Vec<u8>, number: u64, values: &Value, encode: impl Fn(&Value) -> Vec<u8>) {
    for value in values.as_array().into_iter().flatten() {
        put(out, number, &encode(value));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_group_is_written_as_an_api_server_writes_it() {
        let version = json!({"groupVersion": "a/v1", "version": "v1"});
        let group = json!({"kind": "APIGroup", "apiVersion": "v1", "name": "a", "versions": [version], "preferredVersion": version});
        // As kube-apiserver 1.36 answers for a group of this name.
        let expected = b"k8s\0\n\x0e\n\x02v1\x12\x08APIGroup\x12\x1b\n\x01a\x12\x0a\n\x04a/v1\x12\x02v1\x1a\x0a\n\x04a/v1\x12\x02v1\x1a\0\"\0";
        assert_eq!(encode(&group).unwrap(), expected);
        assert_eq!(encode(&json!({"kind": "Status"})), None);
    }
}
