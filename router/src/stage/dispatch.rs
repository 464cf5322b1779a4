//! Sends what is ready to be sent to one member: bulkhead, breaker, attempts, and classifies what came.
//!
//! Every leg has a client span and carries its trace context to the member. Reads are retried within a budget when the
//! member cannot have been the wiser; a write that left is never sent again. Errors become a `Fault` that says whether
//! the request may have run. Not here: routing rules (`plan`), what must be known before (`preflight`), connections
//! (`upstream`). Callers: `edge`, `fanout` leg by leg, and `preflight` for its questions.

mod document;
mod judge;
mod rename;
mod renamed;
mod review;
mod send;
mod silence;
pub(crate) mod upgrade;

use std::sync::Arc;
use std::time::Duration;

use http::Response;
use http::header::{CONTENT_LENGTH, HeaderValue};
use http::request::Parts;
use opentelemetry::Context;
use portolan_runtime::{Secret, Tasks};
use tokio::sync::watch;
use tokio::time::Instant;

pub(crate) use self::document::{DocumentRequest, MemberDocuments};
pub(crate) use self::judge::{fault_of, judge_answer, judge_error, refused_us};
pub(crate) use self::review::MemberReviews;
pub(crate) use self::send::{admit, inject, leg_span, tell};
use self::upgrade::Tunnel;
use crate::decision::plan::Forward;
use crate::decision::rewrite;
use crate::resource::bulkhead::{Full, Permit};
use crate::resource::routing::Routing;
use crate::resource::upstream::{Body, Upstream, UpstreamError};
use crate::stage::replan::Replanner;
use crate::value::classify::ApiRequest;
use crate::value::fault::Fault;
use crate::value::snapshot::Caller;
use crate::value::traffic::TrafficClass;

/// To the head of the answer of a watch, and to a switch of protocols. API servers answer a watch at once; a kubelet that
/// is asked to exec may have to start something.
pub(crate) const LONG_HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// One request for one member.
pub(crate) struct Leg {
    pub(crate) forward: Box<Forward>,
    pub(crate) asked: ApiRequest,
    /// The one that it was planned with.
    pub(crate) routing: Arc<Routing>,
    pub(crate) caller: Caller,
    /// For the whole answer; `None` for what is long.
    pub(crate) deadline: Option<Instant>,
    /// Trace context that came with the request.
    pub(crate) received: Context,
    /// Asked before anything but a read leaves; `None` for what the router asks itself, which reads.
    pub(crate) replanner: Option<Arc<Replanner>>,
}

/// An answer, and what it holds of its member's bulkhead until its body is over.
pub(crate) struct Dispatched {
    pub(crate) response: Response<Body>,
    pub(crate) permit: Permit,
    /// With a 101: to be run once the client has been answered.
    pub(crate) tunnel: Option<Tunnel>,
}

/// The stage. One per process.
pub(crate) struct Dispatcher {
    /// Connections for upgrades are its tasks.
    tasks: Tasks,
}

/// What the steps of one leg share.
pub(crate) struct Run<'a> {
    pub(crate) leg: &'a Leg,
    pub(crate) upstream: &'a Arc<Upstream>,
    pub(crate) bearer: &'a Secret,
}

impl Dispatcher {
    pub(crate) fn new(tasks: Tasks) -> Self {
        Self { tasks }
    }

    /// Sends the request to the plan's member and returns its answer, with its body to come.
    pub(crate) async fn dispatch(&self, leg: Leg, mut head: Parts, mut body: Body) -> Result<Dispatched, Fault> {
        let upstream = leg.upstream()?;
        let bearer = credential(&leg)?;
        let permit = Self::target_permit(&leg, upstream).await?;
        let run = Run {
            leg: &leg,
            upstream,
            bearer: &bearer,
        };
        if leg.forward.traffic.class == TrafficClass::Upgrade {
            let (response, tunnel) = upgrade::upgrade(&run, &self.tasks, (head, body)).await?;
            return Ok(Dispatched {
                response,
                permit,
                tunnel,
            });
        }
        rewrite::rewrite_head(&leg.forward, &leg.asked, &mut head, &bearer)?;
        rename::rename_request(&run, &head, &mut body).await?;
        if let Body::Whole(bytes) = &body {
            head.headers.insert(CONTENT_LENGTH, HeaderValue::from(bytes.len()));
        }
        let response = send::send(&run, head, body).await?;
        let response = rename::rename_response(&run, response).await?;
        let (mut head, body) = response.into_parts();
        rewrite::rewrite_response(&leg.forward, &mut head);
        Ok(Dispatched {
            response: Response::from_parts(head, body),
            permit,
            tunnel: None,
        })
    }

    /// Sends one leg of a request that goes to several members: a read, whose caller was admitted already. The permit of
    /// the member goes with the answer's body. The head of the answer is the member's own, untouched.
    pub(crate) async fn read(&self, leg: Leg, mut head: Parts) -> Result<Response<Body>, Fault> {
        let upstream = leg.upstream()?;
        let bearer = credential(&leg)?;
        let permit = Self::target_permit(&leg, upstream).await?;
        let run = Run {
            leg: &leg,
            upstream,
            bearer: &bearer,
        };
        rewrite::rewrite_head(&leg.forward, &leg.asked, &mut head, &bearer)?;
        let mut response = send::send(&run, head, Body::Empty).await?;
        if let Body::Member(stream) = response.body_mut() {
            stream.hold(permit);
        }
        Ok(response)
    }

    /// Long requests are bounded by `admit` alone: a member does not count them among its work.
    async fn target_permit(leg: &Leg, upstream: &Upstream) -> Result<Permit, Fault> {
        if leg.forward.traffic.long {
            return Ok(Permit::default());
        }
        if leg.forward.is_priority() {
            return Ok(upstream.bulkhead.pass());
        }
        let permit = leg.within(upstream.bulkhead.enter()).await?;
        permit.map_err(|Full| Fault::TooManyRequests {
            message: format!(
                "member cluster {} has as many requests under way as it may",
                upstream.cluster
            ),
            retry_after_seconds: 1,
            cluster: Some(upstream.cluster.to_string()),
        })
    }
}

impl Leg {
    fn upstream(&self) -> Result<&Arc<Upstream>, Fault> {
        let cluster = &self.forward.target.cluster;
        // A leg that connects anew may have an older plan than routing.
        let removed = || {
            self.forward
                .unavailable(format!("member cluster {cluster} was just removed"))
        };
        self.routing.upstreams.get(cluster).ok_or_else(removed)
    }

    /// Whether it may still be sent. The one exception to one snapshot per request: the hub gives a namespace to its
    /// next owner soon after this router has acknowledged its release, and a write may have waited long since its plan:
    /// for a place, a review, a look at the object, its body or a connection. It must not leave then.
    pub(crate) fn still(&self) -> Result<(), UpstreamError> {
        let still = |replanner: &Arc<Replanner>| {
            replanner.still(&self.forward, &self.asked, &self.caller, &self.routing.snapshot)
        };
        let replanner = self.replanner.as_ref().filter(|_| !self.forward.traffic.is_read());
        replanner.map_or(Ok(()), still).map_err(UpstreamError::Withdrawn)
    }

    /// Wakes when [`Self::still`] may say something else.
    fn swaps(&self) -> Option<watch::Receiver<u64>> {
        let replanner = self.replanner.as_ref().filter(|_| !self.forward.traffic.is_read());
        replanner.map(|replanner| replanner.swaps())
    }

    /// Awaits something that comes before anything is sent, up to the deadline.
    async fn within<T>(&self, future: impl Future<Output = T>) -> Result<T, Fault> {
        match self.deadline {
            None => Ok(future.await),
            Some(deadline) => tokio::time::timeout_at(deadline, future)
                .await
                .map_err(|_| Fault::Timeout {
                    message: format!(
                        "member cluster {} had no room for the request in time",
                        self.forward.target.cluster
                    ),
                    cluster: self.forward.target.cluster.to_string(),
                    sent: false,
                }),
        }
    }
}

fn credential(leg: &Leg) -> Result<Secret, Fault> {
    let cluster = &leg.forward.target.cluster;
    leg.routing
        .snapshot
        .gateway_credential(cluster)
        .map(|credential| credential.token.clone())
        .ok_or_else(|| {
            leg.forward.unavailable(format!(
                "this router has no credential for member cluster {cluster} yet; is its agent connected?"
            ))
        })
}

#[cfg(test)]
pub(crate) mod tests;
