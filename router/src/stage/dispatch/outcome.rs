//! What an answer or an error says of the member's health, and what the client is told of an error. Pure.

use http::{HeaderMap, Response, StatusCode};

use super::Leg;
use crate::decision::plan::Forward;
use crate::resource::breaker::Outcome;
use crate::resource::upstream::{Body, BodyError, Broke, UpstreamError};
use crate::value::classify::Verb;
use crate::value::fault::Fault;
use crate::value::media::Media;

/// Every API server puts it on every answer; what stands in front of one does not.
const AUDIT_ID: &str = "audit-id";

/// What the head of an answer says of the member. A 5xx is a failure only if it is not the API server's own: a Status of admission, of a
/// broken aggregated API or of a Pod behind `proxy` says nothing against the member. 429 is pressure.
pub(crate) fn classify_response<B>(response: &Response<B>) -> Outcome {
    let status = response.status();
    if status == StatusCode::TOO_MANY_REQUESTS {
        return Outcome::Neutral;
    }
    if status.is_server_error() && !is_api_server(response.headers()) {
        return Outcome::Failure;
    }
    Outcome::Success
}

fn is_api_server(headers: &HeaderMap) -> bool {
    headers.contains_key(AUDIT_ID) || Media::of_content(headers).is_some()
}

/// What an error says of the member: the client's own failing says nothing.
pub(crate) fn classify_error(error: &UpstreamError) -> Outcome {
    match error {
        UpstreamError::Connect { .. }
        | UpstreamError::Lost {
            broke: Broke::Connection,
            ..
        } => Outcome::Unreachable,
        UpstreamError::Lost {
            broke: Broke::Stream, ..
        } => Outcome::Failure,
        // A break that was counted already; what the request itself brought about; a member that is shutting down one connection of several, whose next dial
        // tells more; the client's own failing.
        UpstreamError::Lost {
            broke: Broke::Known | Broke::Request,
            ..
        }
        | UpstreamError::Refused { .. }
        | UpstreamError::Withdrawn(_)
        | UpstreamError::Body(_)
        | UpstreamError::Request(_) => Outcome::Neutral,
    }
}

/// What the client is told. Reads are answered as if nothing had been sent: nothing can have changed, so asking again
/// is safe.
pub(crate) fn fault_of(forward: &Forward, error: &UpstreamError) -> Fault {
    match error {
        UpstreamError::Body(BodyError::TooLarge { limit }) => Fault::TooLarge { limit: *limit },
        UpstreamError::Body(error) => Fault::BadRequest(error.to_string()),
        UpstreamError::Request(_) => Fault::BadRequest(error.to_string()),
        UpstreamError::Withdrawn(fault) => fault.clone(),
        UpstreamError::Lost { .. } if !forward.traffic.is_read() => Fault::Unavailable {
            message: format!("{error}; the request may have run"),
            cluster: Some(forward.target.cluster.to_string()),
            sent: true,
        },
        UpstreamError::Lost { .. } | UpstreamError::Connect { .. } | UpstreamError::Refused { .. } => {
            forward.unavailable(error.to_string())
        }
    }
}

/// Whether a program behind `proxy` may have answered.
pub(super) fn proxies(leg: &Leg) -> bool {
    let resource = leg.asked.resource.as_ref();
    leg.asked.verb == Verb::Proxy || resource.is_some_and(|resource| resource.subresource.as_deref() == Some("proxy"))
}

/// A 401 that is the router's and not the caller's: the member knows nobody else's credential. A client that got it
/// would give up its own. `None` for any other answer, and for programs behind `proxy`, which know clients of their own.
pub(super) fn refused_us(leg: &Leg, response: &Response<Body>) -> Option<Fault> {
    let refused = response.status() == StatusCode::UNAUTHORIZED && !proxies(leg);
    refused.then(|| {
        leg.forward.unavailable(format!(
            "member cluster {} does not accept this router's credential (401); is its agent connected?",
            leg.forward.target.cluster
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::media::PROTOBUF;

    fn answer(status: u16, headers: &[(&'static str, &'static str)]) -> Response<Body> {
        let mut response = Response::new(Body::Empty);
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        for (name, value) in headers {
            response
                .headers_mut()
                .insert(*name, http::HeaderValue::from_static(value));
        }
        response
    }

    #[test]
    fn only_what_is_no_api_server_fails() {
        let json = ("content-type", "application/json");
        for (status, headers, expected) in [
            (200, vec![], Outcome::Success),
            (404, vec![json], Outcome::Success),
            (409, vec![json], Outcome::Success),
            (429, vec![json], Outcome::Neutral),
            (500, vec![json], Outcome::Success),
            (500, vec![("content-type", PROTOBUF)], Outcome::Success),
            (
                503,
                vec![("content-type", "text/plain"), ("audit-id", "1")],
                Outcome::Success,
            ),
            (502, vec![("content-type", "text/html")], Outcome::Failure),
            (503, vec![], Outcome::Failure),
        ] {
            assert_eq!(
                classify_response(&answer(status, &headers)),
                expected,
                "{status} {headers:?}"
            );
        }
    }
}
