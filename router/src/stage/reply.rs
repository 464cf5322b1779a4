//! The one place that writes Kubernetes `Status` answers, whole or as a watch `ERROR` event, in the client's format.
//!
//! `Retry-After`, as header and in the details, only where the fault allows it: clients resend any verb that carries it.
//! Called by `edge` for every fault before a body has begun, and by watches after.

mod protobuf;
#[cfg(test)]
mod tests;
mod yaml;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, Response, StatusCode};
use k8s_openapi::apimachinery::pkg::apis::meta::v1;

pub(crate) use self::yaml::{in_yaml, takes_yaml};
use crate::value::fault::{Fault, Origin};
use crate::value::media::{Media, asks_as};

/// Cause that names the member cluster at fault.
const MEMBER_CAUSE: &str = "MemberCluster";
/// Cause that names a field, as API servers say it.
const INVALID_CAUSE: &str = "FieldValueInvalid";
/// Cause that names the policy, and the rule in it, by which a request is answered so.
const POLICY_CAUSE: &str = "Policy";

/// The whole answer to a failed request: code, content type, `Retry-After` if allowed, Status body.
pub(crate) fn reply(fault: &Fault, format: Media) -> Response<Bytes> {
    if let Fault::Injected(injected) = fault
        && injected.streams
        && injected.code == StatusCode::GONE
    {
        return headed(StatusCode::OK, error_event(fault, format), format.watch_content_type());
    }
    answer(fault, &fault.status(), format)
}

/// The same for an expired page of a list, with the token that the rest can be read with as it is now.
pub(crate) fn reply_with_continue(fault: &Fault, token: &str, format: Media) -> Response<Bytes> {
    let mut status = fault.status();
    status.metadata.continue_ = Some(token.to_owned());
    answer(fault, &status, format)
}

fn answer(fault: &Fault, status: &v1::Status, format: Media) -> Response<Bytes> {
    let mut response = written(fault.status_code(), status, format);
    if let Some(seconds) = fault.retry_after_seconds() {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

fn written(code: StatusCode, status: &v1::Status, format: Media) -> Response<Bytes> {
    let body = match format {
        Media::Json => json(status),
        Media::Protobuf => protobuf::status(status).into(),
    };
    headed(code, body, format.content_type())
}

fn headed(code: StatusCode, body: Bytes, kind: HeaderValue) -> Response<Bytes> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, kind);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

/// The answer to what is done, where there is no object to show.
pub(crate) fn done(format: Media) -> Response<Bytes> {
    let status = v1::Status {
        status: Some("Success".into()),
        ..v1::Status::default()
    };
    written(StatusCode::OK, &status, format)
}

/// Whether the client will not read the Status of a refusal. client-go does not when it asks for aggregated discovery:
/// kubectl then says `unknown`, and only a `Warning` header reaches the person.
pub(crate) fn reads_no_status(headers: &HeaderMap) -> bool {
    asks_as(headers, "APIGroupDiscoveryList")
}

/// One `ERROR` event of a watch, framed: a line of JSON, or length-prefixed protobuf. The stream ends after it.
pub(crate) fn error_event(fault: &Fault, format: Media) -> Bytes {
    let status = fault.status();
    match format {
        Media::Json => {
            let event = serde_json::json!({"type": "ERROR", "object": status});
            Bytes::from(format!("{event}\n"))
        }
        Media::Protobuf => protobuf::error_event(&status).into(),
    }
}

fn json(status: &v1::Status) -> Bytes {
    // A Status has string keys only, so this cannot fail; an empty body would still carry the code.
    serde_json::to_vec(status).unwrap_or_default().into()
}

impl Fault {
    /// The Kubernetes Status of this fault.
    pub(crate) fn status(&self) -> v1::Status {
        let because = |reason: &str, message| v1::StatusCause {
            field: None,
            message: Some(message),
            reason: Some(reason.into()),
        };
        let of_member = |message| because(MEMBER_CAUSE, message);
        let cause = match (self, self.origin()) {
            (Self::Members(failures), _) => {
                let each = failures.iter();
                let each = each.map(|one| of_member(format!("{}: {}", one.cluster, one.message)));
                Some(each.collect())
            }
            (Self::Invalid { fields, .. }, _) if !fields.is_empty() => {
                let each = fields.iter().map(|invalid| v1::StatusCause {
                    field: Some(invalid.field.clone()),
                    ..because(INVALID_CAUSE, invalid.message.clone())
                });
                Some(each.collect())
            }
            (_, Origin::Cluster(cluster)) => Some(vec![of_member(cluster)]),
            (_, Origin::Policy(said)) => Some(vec![because(POLICY_CAUSE, said)]),
            (_, Origin::Client | Origin::Router) => None,
        };
        let retry = self
            .retry_after_seconds()
            .and_then(|seconds| i32::try_from(seconds).ok());
        let about = matches!(self, Self::AlreadyExists { .. });
        let details = (about || cause.is_some() || retry.is_some()).then(|| v1::StatusDetails {
            causes: cause,
            retry_after_seconds: retry,
            ..self.about()
        });
        v1::Status {
            code: Some(self.status_code().as_u16().into()),
            details,
            message: Some(self.to_string()),
            metadata: v1::ListMeta::default(),
            reason: Some(self.status_reason().into()),
            status: Some("Failure".into()),
        }
    }

    /// The object that an error is about which an API server might have answered.
    fn about(&self) -> v1::StatusDetails {
        let about = match self {
            Self::Injected(injected) => injected.about.clone(),
            Self::AlreadyExists { about, .. } => Some((**about).clone()),
            Self::Policy(refusal) => refusal.about.clone(),
            _ => None,
        };
        about.map_or_else(v1::StatusDetails::default, |about| v1::StatusDetails {
            group: Some(about.group).filter(|group| !group.is_empty()),
            kind: Some(about.resource),
            name: about.name,
            ..v1::StatusDetails::default()
        })
    }

    /// As in apimachinery's `StatusReason`: clients switch on it.
    fn status_reason(&self) -> &'static str {
        match self {
            Self::BadRequest(_) => "BadRequest",
            Self::Unauthenticated(_) => "Unauthorized",
            Self::Forbidden(_) => "Forbidden",
            Self::NotFound(_) => "NotFound",
            Self::MethodNotAllowed(_) => "MethodNotAllowed",
            Self::NotAcceptable(_) => "NotAcceptable",
            Self::Conflict(_) => "Conflict",
            Self::AlreadyExists { .. } => "AlreadyExists",
            Self::Expired(_) => "Expired",
            Self::TooLarge { .. } => "RequestEntityTooLarge",
            // Apimachinery has no word for it.
            Self::HeadTooLarge(_) => "RequestHeaderFieldsTooLarge",
            Self::TooManyRequests { .. } => "TooManyRequests",
            Self::Unavailable { .. } | Self::HubAway(_) => "ServiceUnavailable",
            // Apimachinery has no word for it.
            Self::BadGateway { .. } => "BadGateway",
            Self::Timeout { .. } => "Timeout",
            Self::Members(_) => match self.status_code() {
                StatusCode::BAD_REQUEST => "BadRequest",
                StatusCode::UNAUTHORIZED => "Unauthorized",
                StatusCode::FORBIDDEN => "Forbidden",
                StatusCode::NOT_FOUND => "NotFound",
                StatusCode::METHOD_NOT_ALLOWED => "MethodNotAllowed",
                StatusCode::CONFLICT => "Conflict",
                StatusCode::UNPROCESSABLE_ENTITY => "Invalid",
                StatusCode::TOO_MANY_REQUESTS => "TooManyRequests",
                StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailable",
                StatusCode::GATEWAY_TIMEOUT => "Timeout",
                _ => "InternalError",
            },
            Self::UnsupportedMediaType(_) => "UnsupportedMediaType",
            Self::Invalid { .. } => "Invalid",
            Self::Internal(_) => "InternalError",
            Self::Policy(_) => match self.status_code() {
                StatusCode::TOO_MANY_REQUESTS => "TooManyRequests",
                _ => "ServiceUnavailable",
            },
            Self::Injected(injected) => reason_of_code(injected.code, injected.creates),
        }
    }
}

/// The reason that an API server gives with a code. Where several have one code, that of the usual case: a conflict of who
/// makes an object is that it is there; what is gone is a version. Of a code that API servers do not answer: what client-go
/// makes of it.
fn reason_of_code(code: StatusCode, creates: bool) -> &'static str {
    match code {
        StatusCode::BAD_REQUEST => "BadRequest",
        StatusCode::UNAUTHORIZED => "Unauthorized",
        StatusCode::FORBIDDEN => "Forbidden",
        StatusCode::NOT_FOUND => "NotFound",
        StatusCode::METHOD_NOT_ALLOWED => "MethodNotAllowed",
        StatusCode::NOT_ACCEPTABLE => "NotAcceptable",
        StatusCode::CONFLICT if creates => "AlreadyExists",
        StatusCode::CONFLICT => "Conflict",
        StatusCode::GONE => "Expired",
        StatusCode::PAYLOAD_TOO_LARGE => "RequestEntityTooLarge",
        StatusCode::UNSUPPORTED_MEDIA_TYPE => "UnsupportedMediaType",
        StatusCode::UNPROCESSABLE_ENTITY => "Invalid",
        StatusCode::TOO_MANY_REQUESTS => "TooManyRequests",
        StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailable",
        StatusCode::GATEWAY_TIMEOUT => "Timeout",
        code if code.is_server_error() => "InternalError",
        _ => "",
    }
}
