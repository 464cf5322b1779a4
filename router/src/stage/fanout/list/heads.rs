//! What the head of one member's answer means for a list over several
//! (`docs/semantics.md#unreachable-is-not-deleted`).
//!
//! A member that decided (bad request, forbidden, gone …) has decided for all; one that does not serve the kind adds
//! nothing; one that cannot be had makes the list wait, or go without it.

use http::{Response, StatusCode};
use tokio::time::Instant;

use super::status::{Told, whole};
use crate::decision::plan::FanLeg;
use crate::resource::upstream::Body;
use crate::value::fault::Fault;
use crate::value::media::{Media, described};

/// One member's part of the answer.
#[derive(Debug)]
pub(super) enum Head {
    /// A list, in this form.
    List(Media, Response<Body>),
    /// The kind is not served there.
    Absent(Response<Body>),
    /// Its own Status decides.
    Refused(Response<Body>),
    /// It cannot be had.
    Away(Fault),
}

/// What the head of a member's answer means for the whole list. The outer error is ours and ends the request.
pub(super) async fn classify_response(
    leg: &FanLeg,
    outcome: Result<Response<Body>, Fault>,
    deadline: Option<Instant>,
) -> Result<Head, Fault> {
    let response = match outcome {
        Ok(response) => response,
        Err(
            fault @ (Fault::Unavailable { .. }
            | Fault::TooManyRequests { .. }
            | Fault::Timeout { .. }
            | Fault::BadGateway { .. }
            | Fault::Policy(_)),
        ) => {
            return Ok(Head::Away(away(leg, fault)));
        }
        Err(fault) => return Err(fault),
    };
    Ok(match response.status() {
        StatusCode::OK => listing(leg, response),
        StatusCode::NOT_FOUND => Head::Absent(response),
        status if status.is_client_error() => Head::Refused(response),
        status if status.is_server_error() => {
            let (response, body) = whole(response, deadline).await;
            if Told::read(&body).too_large {
                Head::Refused(response)
            } else {
                Head::Away(leg.forward.unavailable(unhealthy(leg, status, &body)))
            }
        }
        status => Head::Away(leg.forward.unavailable(unhealthy(leg, status, b""))),
    })
}

/// Everything that is not a list as asked for comes from something that is no API server.
fn listing(leg: &FanLeg, response: Response<Body>) -> Head {
    if let Some(media) = Media::of(response.headers()) {
        return Head::List(media, response);
    }
    let what = format!(
        "member cluster {} did not answer with a list: {}",
        leg.cluster(),
        described(response.headers())
    );
    Head::Away(leg.forward.unavailable(what))
}

/// Always 429 to a lister, however it came about.
fn away(leg: &FanLeg, fault: Fault) -> Fault {
    match fault {
        fault @ (Fault::TooManyRequests { .. } | Fault::Policy(_)) => fault,
        fault => leg.forward.unavailable(fault.to_string()),
    }
}

fn unhealthy(leg: &FanLeg, status: StatusCode, body: &[u8]) -> String {
    /// Of the member's words in ours.
    const QUOTED: usize = 200;
    let text: String = serde_json::from_slice::<serde_json::Value>(body)
        .ok()
        .and_then(|status| Some(status.get("message")?.as_str()?.chars().take(QUOTED).collect()))
        .unwrap_or_default();
    format!("member cluster {} answered {status}: {text}", leg.cluster())
}
