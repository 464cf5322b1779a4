//! The leader-election Lease has another name in the member than for the operator: this renames it in bodies.
//!
//! JSON and YAML by value, protobuf by walking the envelope; everything else in the body is preserved. Pure, bounded by
//! the body; bodies arrive whole (a Lease is small), but for a watch's, whose events do. A request that cannot be read is refused, because it would create or
//! change a Lease of another name; an answer that cannot be read is passed on as it is. Called by `dispatch` for plans
//! whose rewrite has a lease.

mod events;
mod json;
mod proto;
#[cfg(test)]
mod tests;

use bytes::Bytes;

pub(crate) use self::events::Events;
use crate::value::fault::Fault;
use crate::value::object::{self, Encoding};
use crate::value::snapshot::LeaseName;

/// Whether the body of a create is for the leader-election Lease, as the client names it.
pub(crate) fn names_lease(lease: &LeaseName, content_type: Option<&str>, body: &[u8]) -> Result<bool, Fault> {
    let encoding = Encoding::required(content_type)?;
    let name = match encoding {
        Encoding::Protobuf => proto::name(body).ok_or_else(unreadable)?,
        Encoding::Json | Encoding::Yaml => json::name(&object::parse(encoding, body)?).to_owned(),
    };
    Ok(name == lease.client)
}

/// The client's name → the member's, in a request body. No body (a GET, most DELETEs) stays none.
pub(crate) fn rename_request_body(lease: &LeaseName, content_type: Option<&str>, body: Bytes) -> Result<Bytes, Fault> {
    if body.is_empty() {
        return Ok(body);
    }
    let names = Names {
        from: &lease.client,
        to: &lease.member,
    };
    let encoding = Encoding::required(content_type)?;
    match encoding {
        Encoding::Protobuf => proto::rename(&names, &body).map(Bytes::from).ok_or_else(unreadable),
        // JSON is YAML: what came as YAML may leave as JSON.
        Encoding::Json | Encoding::Yaml => {
            let mut value = object::parse(encoding, &body)?;
            json::rename(&names, &mut value);
            serde_json::to_vec(&value)
                .map(Bytes::from)
                .map_err(|error| Fault::Internal(error.to_string()))
        }
    }
}

/// The member's name → the client's, in a response body: Lease, LeaseList, Table or Status.
pub(crate) fn rename_response_body(lease: &LeaseName, content_type: Option<&str>, body: Bytes) -> Bytes {
    let names = Names {
        from: &lease.member,
        to: &lease.client,
    };
    let renamed = match Encoding::of(content_type) {
        Some(Encoding::Protobuf) => proto::rename(&names, &body),
        Some(encoding) => object::parse(encoding, &body).ok().and_then(|mut value| {
            json::rename(&names, &mut value);
            serde_json::to_vec(&value).ok()
        }),
        None => None,
    };
    renamed.map_or(body, Bytes::from)
}

/// One name for another.
struct Names<'a> {
    from: &'a str,
    to: &'a str,
}

fn unreadable() -> Fault {
    Fault::BadRequest("the body is not an object in Kubernetes' protobuf".into())
}
