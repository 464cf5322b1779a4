//! The leader-election Lease has another name in the member: in bodies of requests, of answers, and of watches.
//!
//! Paths and queries are `rewrite`'s; what a body becomes is said by `lease`.

use bytes::Bytes;
use http::header::CONTENT_ENCODING;
use http::request::Parts;
use http::{Response, StatusCode};

use super::Run;
use super::outcome::fault_of;
use super::renamed::{Renamed, RenamedList};
use crate::decision::lease;
use crate::resource::upstream::{Body, Broke, UpstreamError, gather, gather_request};
use crate::value::fault::Fault;
use crate::value::media::{Media, content_type};
use crate::value::traffic::TrafficClass;

/// An answer that is gathered: a lock, or a list for a client that takes no JSON.
const MAX_ANSWER_BYTES: usize = 8 << 20;

/// The member's name of the Lease into the request's body.
pub(super) async fn rename_request(run: &Run, head: &Parts, body: &mut Body) -> Result<(), Fault> {
    let forward = &run.leg.forward;
    let Some(names) = forward.rewrite.lease.as_ref().filter(|_| forward.gathers()) else {
        return Ok(());
    };
    let bytes = gather_request(body).await?;
    if bytes.is_empty() {
        return Ok(());
    }
    let renamed = lease::rename_request_body(names, content_type(&head.headers), bytes)?;
    *body = Body::from(renamed);
    Ok(())
}

/// The client's name of the Lease into the answer's body; into a watch's event by event, as they come.
pub(super) async fn rename_response(run: &Run, response: Response<Body>) -> Result<Response<Body>, Fault> {
    let forward = &run.leg.forward;
    let Some(names) = forward.rewrite.renames_answers() else {
        return Ok(response);
    };
    if response.headers().contains_key(CONTENT_ENCODING) {
        return Ok(response);
    }
    if forward.traffic.class == TrafficClass::Watch && response.status() == StatusCode::OK {
        return Ok(Renamed::of(names, response));
    }
    if !matches!(forward.traffic.class, TrafficClass::Unary | TrafficClass::List) {
        return Ok(response);
    }
    let is_json = Media::of_content(response.headers()) == Some(Media::Json);
    if forward.traffic.class == TrafficClass::List && is_json && response.status().is_success() {
        return Ok(RenamedList::of(names, response));
    }
    let (head, body) = response.into_parts();
    let bytes = gather_answer(run, body).await?;
    let renamed = lease::rename_response_body(names, content_type(&head.headers), bytes);
    Ok(Response::from_parts(head, Body::from(renamed)))
}

async fn gather_answer(run: &Run, body: Body) -> Result<Bytes, Fault> {
    let cluster = &run.upstream.cluster;
    gather(body, MAX_ANSWER_BYTES).await.map_err(|error| {
        let error = UpstreamError::Lost {
            cluster: cluster.clone(),
            reason: error.to_string(),
            broke: Broke::Stream,
        };
        fault_of(&run.leg.forward, &error)
    })
}
