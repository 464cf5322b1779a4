//! A Status in Kubernetes' protobuf, written by hand: five messages are not worth a generator.

use k8s_openapi::apimachinery::pkg::apis::meta::v1;
use prost::Message;

use crate::value::object::protobuf::{MAGIC, put};

#[derive(Clone, PartialEq, Message)]
pub(super) struct Unknown {
    #[prost(message, required, tag = "1")]
    pub(super) type_meta: TypeMeta,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) raw: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TypeMeta {
    #[prost(string, tag = "1")]
    pub(super) api_version: String,
    #[prost(string, tag = "2")]
    pub(super) kind: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Status {
    #[prost(message, required, tag = "1")]
    pub(super) metadata: ListMeta,
    #[prost(string, optional, tag = "2")]
    pub(super) status: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub(super) message: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub(super) reason: Option<String>,
    #[prost(message, optional, tag = "5")]
    pub(super) details: Option<StatusDetails>,
    #[prost(int32, optional, tag = "6")]
    pub(super) code: Option<i32>,
}

/// Of list metadata a Status of ours has the token to go on with, if any.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ListMeta {
    #[prost(string, optional, tag = "3")]
    pub(super) continue_: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StatusDetails {
    #[prost(message, repeated, tag = "4")]
    pub(super) causes: Vec<StatusCause>,
    #[prost(int32, optional, tag = "5")]
    pub(super) retry_after_seconds: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StatusCause {
    #[prost(string, optional, tag = "1")]
    pub(super) reason: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub(super) message: Option<String>,
}

/// A Status in its envelope.
pub(super) fn status(status: &v1::Status) -> Vec<u8> {
    let details = status.details.as_ref().map(|details| StatusDetails {
        causes: details
            .causes
            .iter()
            .flatten()
            .map(|cause| StatusCause {
                reason: cause.reason.clone(),
                message: cause.message.clone(),
            })
            .collect(),
        retry_after_seconds: details.retry_after_seconds,
    });
    let object = Status {
        metadata: ListMeta {
            continue_: status.metadata.continue_.clone(),
        },
        status: status.status.clone(),
        message: status.message.clone(),
        reason: status.reason.clone(),
        details,
        code: status.code,
    };
    let type_meta = TypeMeta {
        api_version: "v1".into(),
        kind: "Status".into(),
    };
    let envelope = Unknown {
        type_meta,
        raw: object.encode_to_vec(),
    };
    [MAGIC, &envelope.encode_to_vec()].concat()
}

/// A watch frame: four bytes of length, then `WatchEvent {1: type, 2: RawExtension {1: the object's envelope}}`.
pub(super) fn error_event(fault: &v1::Status) -> Vec<u8> {
    let mut object = Vec::new();
    put(&mut object, 1, &status(fault));
    let mut event = Vec::new();
    put(&mut event, 1, b"ERROR");
    put(&mut event, 2, &object);
    let length = u32::try_from(event.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes()[..], &event].concat()
}
