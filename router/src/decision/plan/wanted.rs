//! What the body of an object without a namespace says about where it is to be made. Pure.
//!
//! Callers: `new_namespace`, and `preflight::new_object` for all other kinds.

use crate::value::fault::Fault;
use crate::value::object::{self, Encoding, Labels, protobuf};

/// What the body of an object says that is to be made.
pub(crate) struct Wanted {
    /// Empty: the API server shall make one.
    pub(crate) name: String,
    /// The member that its annotation names.
    pub(crate) cluster: Option<String>,
    /// Its labels.
    pub(crate) labels: Labels,
}

impl Wanted {
    /// Reads a body in which `annotation` names the member; 400 or 415 if it cannot be read.
    pub(crate) fn read(annotation: &str, content_type: Option<&str>, body: &[u8]) -> Result<Self, Fault> {
        let encoding = Encoding::required(content_type)?;
        let unreadable = || Fault::BadRequest("the metadata in the body cannot be read".to_owned());
        if encoding == Encoding::Protobuf {
            let (_, object) = protobuf::open(body).ok_or_else(unreadable)?;
            return Ok(Self {
                name: protobuf::name(object).ok_or_else(unreadable)?,
                cluster: protobuf::annotations(object).ok_or_else(unreadable)?.remove(annotation),
                labels: protobuf::labels(object).ok_or_else(unreadable)?,
            });
        }
        let object = object::parse(encoding, body)?;
        let metadata = object.get("metadata");
        let text = |value: Option<&serde_json::Value>| match value {
            None | Some(serde_json::Value::Null) => Ok(None),
            Some(value) => value.as_str().map(|text| Some(text.to_owned())).ok_or_else(unreadable),
        };
        let field = |name: &str| metadata.and_then(|metadata| metadata.get(name));
        let labels = field("labels").and_then(serde_json::Value::as_object);
        let label = |(key, value): (&String, &serde_json::Value)| Some((key.clone(), value.as_str()?.to_owned()));
        Ok(Self {
            name: text(field("name"))?.unwrap_or_default(),
            cluster: text(field("annotations").and_then(|all| all.get(annotation)))?,
            labels: labels.into_iter().flatten().filter_map(label).collect(),
        })
    }
}
