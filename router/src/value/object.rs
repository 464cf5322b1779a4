//! The bytes of Kubernetes objects, as far as a router must look into them: which encoding, which name, which labels.
//!
//! A router does not know schemas. It relies on what all objects share: `metadata` with `name` and `labels` in JSON and
//! YAML, and in protobuf the envelope and the field numbers of ObjectMeta. Everything it does not look for is left as it
//! is. Callers: `lease`, which renames, and `plan::labels`, which checks; both with bodies that arrived whole.

pub(crate) mod protobuf;
mod unambiguous;

use std::collections::BTreeMap;

use portolan_crds::names::is_dns_subdomain;
use serde::Deserialize;
use serde_json::Value;

use self::unambiguous::Unambiguous;
use crate::value::fault::Fault;
use crate::value::media::{JSON, PROTOBUF, essence};

/// How an object is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// JSON, the patches in JSON included.
    Json,
    /// YAML: `apply` patches, which are mostly JSON all the same.
    Yaml,
    /// Kubernetes' protobuf envelope.
    Protobuf,
}

impl Encoding {
    /// The encoding behind a `Content-Type`; JSON without one, as for the API server. `None` for anything else (CBOR).
    pub(crate) fn of(content_type: Option<&str>) -> Option<Self> {
        let Some(content_type) = content_type else {
            return Some(Self::Json);
        };
        match essence(content_type).to_ascii_lowercase().as_str() {
            "" | JSON | "text/json" => Some(Self::Json),
            PROTOBUF => Some(Self::Protobuf),
            "application/yaml" | "text/yaml" => Some(Self::Yaml),
            other if other.ends_with("+json") => Some(Self::Json),
            other if other.ends_with("+yaml") => Some(Self::Yaml),
            _ => None,
        }
    }

    /// The encoding behind a `Content-Type`, or the 415 that makes clients fall back to another one.
    pub(crate) fn required(content_type: Option<&str>) -> Result<Self, Fault> {
        Self::of(content_type).ok_or_else(|| {
            Fault::UnsupportedMediaType(format!(
                "the body must be JSON, YAML or Kubernetes protobuf here, not {:?}",
                content_type.unwrap_or_default()
            ))
        })
    }
}

/// Labels of an object.
pub(crate) type Labels = BTreeMap<String, String>;

/// What is read of an object in a member's answer.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ObjectMeta {
    pub(crate) labels: Option<Labels>,
    pub(crate) uid: Option<String>,
    /// It is on its way out.
    pub(crate) deletion_timestamp: Option<String>,
    annotations: Option<Noted>,
}

/// What is read of annotations.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Noted {
    /// [`portolan_crds::labels::DECIDES`].
    #[serde(rename = "ctrlmesh.kusionstack.io/decides")]
    decides: Option<String>,
}

impl ObjectMeta {
    /// The member that decides about an object of a replicated kind, if it says so in words of Portolan's.
    pub(crate) fn decides(&self) -> Option<&str> {
        let decides = self.annotations.as_ref()?.decides.as_deref();
        decides.filter(|cluster| is_dns_subdomain(cluster))
    }
}

/// The metadata of an object in JSON, of which nothing else is kept.
pub(crate) fn metadata(json: &[u8]) -> Result<ObjectMeta, serde_json::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Object {
        metadata: ObjectMeta,
    }
    serde_json::from_slice(json).map(|object: Object| object.metadata)
}

/// The name of the object that the body of a create makes; empty if the API server is to name it.
pub(crate) fn name(content_type: Option<&str>, body: &[u8]) -> Result<String, Fault> {
    let encoding = Encoding::required(content_type)?;
    if encoding == Encoding::Protobuf {
        let name = protobuf::open(body).and_then(|(_, object)| protobuf::name(object));
        return name.ok_or_else(|| Fault::BadRequest("the body is not an object in Kubernetes' protobuf".into()));
    }
    let object = parse(encoding, body)?;
    let name = object.pointer("/metadata/name").and_then(Value::as_str);
    Ok(name.unwrap_or_default().to_owned())
}

/// What a member's Status says, in JSON or protobuf.
pub(crate) fn message_of(status: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Status {
        message: Option<String>,
    }
    if status.starts_with(protobuf::MAGIC) {
        return protobuf::message(status);
    }
    serde_json::from_slice::<Status>(status).ok()?.message
}

/// Reads a JSON or YAML body. 400 if it is neither, or could be read in two ways: a field given twice, which one reader
/// merges and the next one replaces, YAML's merge key, or its tags.
pub(crate) fn parse(encoding: Encoding, body: &[u8]) -> Result<Value, Fault> {
    let json = serde_json::from_slice::<Unambiguous>(body);
    let read = match encoding {
        // A tagged key is another word to our reader than to an API server's: `!!binary bWV0YWRhdGE=` is `metadata` there.
        Encoding::Yaml if json.is_err() && may_have_tags(body) => {
            Err("YAML with tags: write it without, or as JSON".to_owned())
        }
        Encoding::Yaml if json.is_err() => {
            serde_yaml_ng::from_slice::<Unambiguous>(body).map_err(|error| format!("not YAML: {error}"))
        }
        _ => json.map_err(|error| format!("not JSON: {error}")),
    };
    read.map(|value| value.0)
        .map_err(|why| Fault::BadRequest(format!("the body is {why}")))
}

/// Whether a tag may begin anywhere. Texts that are not quoted and have a word with `!` in front count as well.
fn may_have_tags(yaml: &[u8]) -> bool {
    let before = |at: usize| at.checked_sub(1).map(|at| yaml[at]);
    memchr::memchr_iter(b'!', yaml).any(|at| before(at).is_none_or(|byte| b" \t\r\n[{,".contains(&byte)))
}
