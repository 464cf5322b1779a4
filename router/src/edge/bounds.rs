//! What a request may ask of the router's patience, and how large its head may be. Caller: `call`.

use std::time::Duration;

use http::HeaderMap;
use http::request::Parts;
use portolan_crds::duration::parse_duration;
use tokio::time::Instant;

use super::MAX_HEAD_BYTES;
use crate::value::classify::{ApiRequest, Verb};
use crate::value::fault::Fault;

/// Added to a `timeout` that the client asks for: the member's own answer about it is to come first.
pub(super) const TIMEOUT_GRACE: Duration = Duration::from_secs(2);
/// Of an answer's way to its client.
const SPARED: Duration = Duration::from_millis(500);
/// Of the headers of a watch of several members.
const MAX_KEPT_BYTES: usize = 64 << 10;
/// Longest `timeout` that a client may ask for.
const MAX_TIMEOUT: Duration = Duration::from_hours(1);

/// The client's own `timeout`, as an API server takes it, else the default.
pub(super) fn timeout(asked: &ApiRequest, default: Duration) -> Duration {
    wanted(asked).map_or(default, |wanted| wanted.min(MAX_TIMEOUT) + TIMEOUT_GRACE)
}

/// Until when what follows a write may keep its answer: its client has it before its own time-out ends.
pub(super) fn patience(asked: &ApiRequest, deadline: Instant) -> Instant {
    let grace = if wanted(asked).is_some() {
        TIMEOUT_GRACE
    } else {
        Duration::ZERO
    };
    deadline.checked_sub(SPARED + grace).unwrap_or(deadline)
}

/// What the client asks for; zero is none, as for an API server.
fn wanted(asked: &ApiRequest) -> Option<Duration> {
    let wanted = asked
        .query
        .first("timeout")
        .and_then(|value| parse_duration(&value).ok());
    wanted.filter(|wanted| !wanted.is_zero())
}

/// Heads are read up to twice the bound; what is beyond that hyper and h2 refuse without a Status.
pub(super) fn check_size(head: &Parts) -> Result<(), Fault> {
    let uri = head.uri.path_and_query().map_or(0, |path| path.as_str().len());
    let headers = head
        .headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len());
    if uri + headers.sum::<usize>() <= MAX_HEAD_BYTES {
        return Ok(());
    }
    let message = format!("the head of the request is larger than {MAX_HEAD_BYTES} bytes");
    Err(Fault::HeadTooLarge(message))
}

/// A watch of several members keeps its headers for as long as it runs, to ask members anew.
pub(super) fn check_kept(headers: &HeaderMap) -> Result<(), Fault> {
    let bytes = headers.iter().map(|(name, value)| name.as_str().len() + value.len());
    if bytes.sum::<usize>() <= MAX_KEPT_BYTES {
        return Ok(());
    }
    let message = format!("the headers of a watch of several member clusters are larger than {MAX_KEPT_BYTES} bytes");
    Err(Fault::HeadTooLarge(message))
}

/// Nobody can be asked who the client is or what it may do: to an informer 429, because it lists anew after a 503.
pub(super) fn not_yet(asked: &ApiRequest, fault: Fault) -> Fault {
    match fault {
        Fault::Unavailable {
            message,
            cluster,
            sent: false,
        } if matches!(asked.verb, Verb::List | Verb::Watch) => Fault::TooManyRequests {
            message,
            retry_after_seconds: 1,
            cluster,
        },
        other => other,
    }
}
