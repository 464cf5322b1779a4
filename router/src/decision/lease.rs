//! The leader-election Lease, or the ConfigMap or Endpoints that carries the lock, has another name in the member than for the
//! operator: this renames it in bodies.
//!
//! JSON and YAML by value, protobuf by walking the envelope; everything else in the body is preserved. Pure, bounded by
//! the body; bodies arrive whole (a lock is small), but for a watch's, whose events do, and a list's, which may be large. A request that cannot be read is
//! refused, because it would create or change an object of another name; an answer that cannot be read is passed on as it
//! is. Called by `dispatch` for plans whose rewrite has a lease, or shows one.

mod events;
mod json;
mod list;
mod moved;
mod proto;
mod record;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;

pub(crate) use self::events::Events;
pub(crate) use self::list::Renaming;
pub(crate) use self::moved::{Step, step};
pub(crate) use self::record::record;
use crate::value::fault::Fault;
use crate::value::object::{self, Encoding};
use crate::value::snapshot::LeaseName;

/// Annotation by which a ConfigMap or an Endpoints carries a lock, as client-go has it.
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
/// Between who renews and this router.
const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_secs(5);

/// Whether somebody holds a Lease, as its member says it in JSON: one that says no time is held for ever.
pub(crate) fn is_alive(lease: &[u8], now: Timestamp) -> Result<bool, serde_json::Error> {
    let lease: Lease = serde_json::from_slice(lease)?;
    let Some(spec) = lease.spec else { return Ok(false) };
    let held = spec.holder_identity.is_some_and(|holder| !holder.is_empty());
    let lasts = spec.lease_duration_seconds.map(i64::from);
    let until = spec.renew_time.zip(lasts).map(|(renewed, seconds)| {
        let lasts = SignedDuration::from_secs(seconds).saturating_add(CLOCKS_DIFFER);
        renewed.0.saturating_add(lasts).unwrap_or(Timestamp::MAX)
    });
    Ok(held && until.is_none_or(|until| now <= until))
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
