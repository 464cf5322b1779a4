//! What is recorded of a lock, as its member answers whoever has written it: whether somebody holds it, and for how long that counts.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::LEADER;
use crate::value::object::{self, Encoding, protobuf};

/// `Lease`: its spec, and in that the holder and the duration.
const LEASE_SPEC: u64 = 2;
const HOLDER: u64 = 1;
const DURATION_SECONDS: u64 = 2;

/// What is recorded of one lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    /// As the member calls it.
    pub(crate) name: String,
    pub(crate) is_held: bool,
    /// `None`: it does not say.
    pub(crate) lasts: Option<Duration>,
}

/// The record that an object in an answer is: a Lease, or what carries a lock by its annotation. `None`: it cannot be read, or is
/// another form of it.
pub(crate) fn record(content_type: Option<&str>, body: &[u8], is_lease: bool) -> Option<Record> {
    match Encoding::of(content_type)? {
        Encoding::Protobuf => of_protobuf(body, is_lease),
        encoding @ (Encoding::Json | Encoding::Yaml) => of_value(&object::parse(encoding, body).ok()?, is_lease),
    }
}

fn of_value(object: &Value, is_lease: bool) -> Option<Record> {
    // A Table's own metadata is nobody's.
    let is_whole = object.get("kind").and_then(Value::as_str) != Some("Table");
    let metadata = object.get("metadata").filter(|_| is_whole)?;
    let name = metadata.get("name")?.as_str()?.to_owned();
    if is_lease {
        let said = object.get("spec").map(Said::deserialize)?.ok()?;
        return Some(said.record(name));
    }
    let text = metadata.get("annotations").and_then(|all| all.get(LEADER)?.as_str());
    Some(annotated(name, text))
}

fn of_protobuf(body: &[u8], is_lease: bool) -> Option<Record> {
    let (_, object) = protobuf::open(body)?;
    let name = protobuf::name(object)?;
    if !is_lease {
        let annotations = protobuf::annotations(object)?;
        return Some(annotated(name, annotations.get(LEADER).map(String::as_str)));
    }
    let spec = protobuf::content(object, LEASE_SPEC)?;
    let said = Said {
        holder_identity: protobuf::content(spec, HOLDER).map(|holder| String::from_utf8_lossy(holder).into_owned()),
        lease_duration_seconds: protobuf::number(spec, DURATION_SECONDS)
            .and_then(|seconds| i64::try_from(seconds).ok()),
    };
    Some(said.record(name))
}

/// Without the annotation nobody leads by it.
fn annotated(name: String, text: Option<&str>) -> Record {
    let Some(text) = text else {
        return Said::default().record(name);
    };
    match serde_json::from_str::<Said>(text) {
        Ok(said) => said.record(name),
        Err(_) => Record {
            name,
            is_held: true,
            lasts: None,
        },
    }
}

/// In a Lease's spec, and in the annotation.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Said {
    holder_identity: Option<String>,
    lease_duration_seconds: Option<i64>,
}

impl Said {
    fn record(self, name: String) -> Record {
        let seconds = self
            .lease_duration_seconds
            .and_then(|seconds| u64::try_from(seconds).ok());
        Record {
            name,
            is_held: self.holder_identity.is_some_and(|holder| !holder.is_empty()),
            lasts: seconds.map(Duration::from_secs),
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::coordination::v1::Lease;
    use serde_json::json;

    use super::*;

    fn record_of(object: &Value, is_lease: bool) -> Option<Record> {
        record(Some("application/json"), object.to_string().as_bytes(), is_lease)
    }

    fn held(seconds: Option<u64>) -> Record {
        Record {
            name: "op".to_owned(),
            is_held: true,
            lasts: seconds.map(Duration::from_secs),
        }
    }

    #[test]
    fn a_record_says_who_holds_it_and_for_how_long() {
        let lease = |spec: Value| json!({"kind": "Lease", "metadata": {"name": "op"}, "spec": spec});
        let whole = lease(json!({"holderIdentity": "a", "leaseDurationSeconds": 15}));
        assert_eq!(record_of(&whole, true), Some(held(Some(15))));
        serde_json::from_value::<Lease>(whole).unwrap();
        assert_eq!(
            record_of(&lease(json!({"holderIdentity": "a"})), true),
            Some(held(None))
        );
        for nobody in [json!({}), json!({"holderIdentity": "", "leaseDurationSeconds": 1})] {
            assert!(!record_of(&lease(nobody), true).unwrap().is_held, "released");
        }
        assert_eq!(record_of(&json!({"kind": "Table", "metadata": {}}), true), None);
        assert_eq!(record(Some("text/plain"), b"", true), None);
        let map =
            |annotations: Value| json!({"kind": "ConfigMap", "metadata": {"name": "op", "annotations": annotations}});
        let text = r#"{"holderIdentity":"a","leaseDurationSeconds":137}"#;
        assert_eq!(record_of(&map(json!({LEADER: text})), false), Some(held(Some(137))));
        assert_eq!(
            record_of(&map(json!({LEADER: "a"})), false),
            Some(held(None)),
            "in other words"
        );
        assert!(!record_of(&map(json!({"a": "b"})), false).unwrap().is_held);
    }

    #[test]
    fn protobuf_says_the_same() {
        let field = |number: u8, content: &[u8]| {
            let mut field = vec![number << 3 | 2, u8::try_from(content.len()).unwrap()];
            field.extend_from_slice(content);
            field
        };
        let object = |spec: &[u8]| {
            let object = [field(1, &field(1, b"op")), field(2, spec)].concat();
            let kind = [field(1, b"coordination.k8s.io/v1"), field(2, b"Lease")].concat();
            [b"k8s\0".to_vec(), field(1, &kind), field(2, &object)].concat()
        };
        let read = |spec: &[u8]| record(Some("application/vnd.kubernetes.protobuf"), &object(spec), true);
        let holder = field(1, b"a");
        assert_eq!(read(&[holder.clone(), vec![2 << 3, 15]].concat()), Some(held(Some(15))));
        assert_eq!(
            read(&[holder.clone(), vec![2 << 3, 0x89, 1]].concat()),
            Some(held(Some(137)))
        );
        assert_eq!(read(&holder), Some(held(None)));
        assert!(!read(&[]).unwrap().is_held);
    }
}
