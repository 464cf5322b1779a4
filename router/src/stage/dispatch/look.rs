//! What must be read before a request may go, or changed in its bodies: leader-election Leases, labels of objects.
//!
//! The only place that gathers bodies, and bounded. The rules are `plan::guard`'s and `lease`'s.

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use tokio::time::Instant;

use super::judge::fault_of;
use super::renamed::Renamed;
use super::{LONG_HEAD_TIMEOUT, Leg, Run, send};
use crate::decision::plan::Forward;
use crate::decision::plan::guard;
use crate::decision::{lease, rewrite};
use crate::resource::upstream::{Body, BodyError, MAX_BODY_BYTES, UpstreamError};
use crate::value::classify::{ApiRequest, Query, Verb};
use crate::value::fault::Fault;
use crate::value::traffic::TrafficClass;

/// An answer that is gathered: metadata of one object, or some Leases.
const MAX_ANSWER_BYTES: usize = 8 << 20;

/// The other plan, if the body creates the leader-election Lease.
pub(super) async fn election(leg: &mut Leg, head: &Parts, body: &mut Body) -> Result<Option<Box<Forward>>, Fault> {
    let Some(election) = leg.forward.election.take() else {
        return Ok(None);
    };
    let Some(names) = &election.rewrite.lease else {
        return Ok(None);
    };
    let bytes = gather_request(leg, body).await?;
    let ours = lease::names_lease(names, content_type(&head.headers), &bytes)?;
    Ok(ours.then_some(election))
}

/// The guard's GET, and the rule on the body.
pub(super) async fn guard(run: &Run<'_>, head: &Parts, body: &mut Body) -> Result<(), Fault> {
    let forward = &run.leg.forward;
    let before = match &forward.guard {
        None => None,
        Some(guard) => {
            let request = rewrite::guard_request(forward, &guard.path, run.bearer)?;
            let leg = question(run.leg, &guard.path);
            let (status, bytes) = fetch(&Run { leg: &leg, ..*run }, request).await?;
            guard::judge(guard, status, &bytes)?
        }
    };
    let Some(rule) = &forward.body_rule else { return Ok(()) };
    let bytes = gather_request(run.leg, body).await?;
    guard::check_body(rule, content_type(&head.headers), before.as_ref(), &bytes)
}

/// A read that ends, whatever the request itself is to become.
pub(super) fn question(leg: &Leg, path: &str) -> Leg {
    let forward = Forward {
        class: TrafficClass::Unary,
        long_running: false,
        read: true,
        ..(*leg.forward).clone()
    };
    let asked = ApiRequest {
        path: path.to_owned(),
        query: Query::new(None),
        method: Method::GET,
        verb: Verb::Get,
        resource: None,
        upgrade: None,
        ..leg.asked.clone()
    };
    Leg {
        forward: Box::new(forward),
        asked,
        snapshot: leg.snapshot.clone(),
        caller: leg.caller.clone(),
        deadline: leg.deadline.or_else(|| Some(Instant::now() + LONG_HEAD_TIMEOUT)),
        received: leg.received.clone(),
        recheck: None,
    }
}

async fn fetch(run: &Run<'_>, request: Request<()>) -> Result<(http::StatusCode, Bytes), Fault> {
    let (head, ()) = request.into_parts();
    let response = send::send(run, head, Body::Empty).await?;
    let status = response.status();
    Ok((status, gather_answer(run, response.into_body()).await?))
}

/// The member's name of the Lease into the request's body.
pub(super) async fn rename_request(run: &Run<'_>, head: &Parts, body: &mut Body) -> Result<(), Fault> {
    let forward = &run.leg.forward;
    // Nobody reads the body of a watch, and nothing bounds how long one may take to come.
    let watches = forward.class == TrafficClass::Watch;
    let Some(names) = forward.rewrite.lease.as_ref().filter(|_| !watches) else {
        return Ok(());
    };
    let bytes = gather_request(run.leg, body).await?;
    if bytes.is_empty() {
        return Ok(());
    }
    let renamed = lease::rename_request_body(names, content_type(&head.headers), bytes)?;
    *body = Body::from(renamed);
    Ok(())
}

/// The client's name of the Lease into the answer's body; into a watch's event by event, as they come.
pub(super) async fn rename_response(run: &Run<'_>, response: Response<Body>) -> Result<Response<Body>, Fault> {
    let forward = &run.leg.forward;
    let Some(names) = &forward.rewrite.lease else {
        return Ok(response);
    };
    if response.headers().contains_key(CONTENT_ENCODING) {
        return Ok(response);
    }
    if forward.class == TrafficClass::Watch && response.status() == StatusCode::OK {
        return Ok(Renamed::of(names, response));
    }
    if forward.class != TrafficClass::Unary {
        return Ok(response);
    }
    let (head, body) = response.into_parts();
    let bytes = gather_answer(run, body).await?;
    let renamed = lease::rename_response_body(names, content_type(&head.headers), bytes);
    Ok(Response::from_parts(head, Body::from(renamed)))
}

fn content_type(headers: &HeaderMap) -> Option<&str> {
    headers.get(CONTENT_TYPE)?.to_str().ok()
}

/// The whole request body, which stays there to be sent.
async fn gather_request(leg: &Leg, body: &mut Body) -> Result<Bytes, Fault> {
    let limit = usize::try_from(MAX_BODY_BYTES).unwrap_or(usize::MAX);
    let taken = std::mem::take(body);
    let gathered = leg.within(gather(taken, limit)).await?;
    let bytes = gathered.map_err(|error| fault_of(&leg.forward, &UpstreamError::Body(error)))?;
    *body = Body::from(bytes.clone());
    Ok(bytes)
}

/// As [`gather_request`], before there is a member to send it to.
pub(crate) async fn gather_body(body: &mut Body, deadline: Option<Instant>) -> Result<Bytes, Fault> {
    let limit = usize::try_from(MAX_BODY_BYTES).unwrap_or(usize::MAX);
    let gathering = gather(std::mem::take(body), limit);
    let gathered = match deadline {
        None => gathering.await,
        Some(deadline) => tokio::time::timeout_at(deadline, gathering)
            .await
            .map_err(|_| Fault::BadRequest("the body did not arrive in time".to_owned()))?,
    };
    let bytes = gathered.map_err(|error| match error {
        BodyError::TooLarge { limit } => Fault::TooLarge { limit },
        other => Fault::BadRequest(other.to_string()),
    })?;
    *body = Body::from(bytes.clone());
    Ok(bytes)
}

/// Metadata of one object, whole.
pub(crate) async fn gather_answer_body(body: Body) -> Result<Bytes, BodyError> {
    gather(body, MAX_ANSWER_BYTES).await
}

async fn gather_answer(run: &Run<'_>, body: Body) -> Result<Bytes, Fault> {
    let cluster = &run.upstream.cluster;
    gather(body, MAX_ANSWER_BYTES).await.map_err(|error| {
        let error = UpstreamError::Lost {
            cluster: cluster.clone(),
            reason: error.to_string(),
            told: false,
        };
        fault_of(&run.leg.forward, &error)
    })
}

/// All of a body. The usual one frame is not copied.
pub(super) async fn gather(mut body: Body, limit: usize) -> Result<Bytes, BodyError> {
    let mut first = Bytes::new();
    let mut rest: Option<BytesMut> = None;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        let length = rest.as_ref().map_or(first.len(), BytesMut::len) + data.len();
        if length > limit {
            return Err(BodyError::TooLarge { limit: limit as u64 });
        }
        if let Some(rest) = &mut rest {
            rest.extend_from_slice(&data);
        } else if first.is_empty() {
            first = data;
        } else {
            let mut joined = BytesMut::with_capacity(length * 2);
            joined.extend_from_slice(&first);
            joined.extend_from_slice(&data);
            rest = Some(joined);
        }
    }
    Ok(rest.map_or(first, BytesMut::freeze))
}
