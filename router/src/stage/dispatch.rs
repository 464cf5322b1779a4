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

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::Response;
use http::header::{CONTENT_LENGTH, HeaderValue};
use http::request::Parts;
use opentelemetry::Context;
use parking_lot::Mutex;
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
use crate::resource::bulkhead::{Bulkhead, CALLER_IN_FLIGHT, CALLER_QUEUE, CALLER_STREAMS, Permit};
use crate::resource::upstream::{Body, Upstream, UpstreamError, Upstreams};
use crate::stage::replan::Recheck;
use crate::value::classify::ApiRequest;
use crate::value::fault::Fault;
use crate::value::snapshot::{Caller, CallerId, Snapshot};
use crate::value::traffic::TrafficClass;

/// To the head of the answer of a watch, and to a switch of protocols. API servers answer a watch at once; a kubelet that
/// is asked to exec may have to start something.
pub(crate) const LONG_HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Callers whose bulkheads are kept; beyond it those without requests are dropped.
const MAX_CALLERS: usize = 4096;

/// One request for one member.
pub(crate) struct Leg {
    pub(crate) forward: Box<Forward>,
    pub(crate) asked: ApiRequest,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) caller: Caller,
    /// For the whole answer; `None` for what is long.
    pub(crate) deadline: Option<Instant>,
    /// Trace context that came with the request.
    pub(crate) received: Context,
    /// Asked before anything but a read leaves; `None` for what the router asks itself, which reads.
    pub(crate) recheck: Option<Arc<Recheck>>,
}

/// An answer, and what it holds in the bulkheads until its body is over.
pub(crate) struct Dispatched {
    pub(crate) response: Response<Body>,
    pub(crate) places: Places,
    /// With a 101: to be run once the client has been answered.
    pub(crate) tunnel: Option<Tunnel>,
}

/// Places of one request: its caller's, its member's.
#[derive(Debug, Default)]
pub(crate) struct Places {
    _caller: Permit,
    _target: Permit,
}

impl Places {
    /// Of a request to several members, each of which has its place with its own answer.
    pub(crate) fn of_caller(caller: Permit) -> Self {
        Self {
            _caller: caller,
            _target: Permit::default(),
        }
    }
}

/// The stage. One per process.
pub(crate) struct Dispatcher {
    upstreams: Arc<Upstreams>,
    // A mutex: held for one look-up per request.
    callers: Mutex<HashMap<CallerId, Arc<CallerGates>>>,
    /// Connections for upgrades are its tasks.
    tasks: Tasks,
}

#[derive(Debug)]
struct CallerGates {
    unary: Arc<Bulkhead>,
    streams: Arc<Bulkhead>,
}

/// What the steps of one leg share.
pub(crate) struct Run<'a> {
    pub(crate) leg: &'a Leg,
    pub(crate) upstream: &'a Arc<Upstream>,
    pub(crate) bearer: &'a Secret,
}

impl Dispatcher {
    pub(crate) fn new(upstreams: Arc<Upstreams>, tasks: Tasks) -> Self {
        Self {
            upstreams,
            callers: Mutex::default(),
            tasks,
        }
    }

    /// Sends the request to the plan's member and returns its answer, with its body to come.
    pub(crate) async fn dispatch(&self, leg: Leg, mut head: Parts, mut body: Body) -> Result<Dispatched, Fault> {
        let upstream = self.upstream(&leg.forward)?;
        let bearer = credential(&leg)?;
        let places = self.places(&leg, &upstream).await?;
        let run = Run {
            leg: &leg,
            upstream: &upstream,
            bearer: &bearer,
        };
        if leg.forward.traffic.class == TrafficClass::Upgrade {
            let (response, tunnel) = upgrade::upgrade(&run, &self.tasks, (head, body)).await?;
            return Ok(Dispatched {
                response,
                places,
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
            places,
            tunnel: None,
        })
    }

    fn upstream(&self, forward: &Forward) -> Result<Arc<Upstream>, Fault> {
        // The set of members follows the snapshot at once, but a request may hold an older snapshot.
        self.upstreams
            .get(&forward.target.cluster)
            .ok_or_else(|| forward.unavailable(format!("member cluster {} was just removed", forward.target.cluster)))
    }

    /// Sends one leg of a request that goes to several members: a read, whose caller has its place already. The place at
    /// the member goes with the answer's body. The head of the answer is the member's own, untouched.
    pub(crate) async fn read(&self, leg: Leg, mut head: Parts) -> Result<Response<Body>, Fault> {
        let upstream = self.upstream(&leg.forward)?;
        let bearer = credential(&leg)?;
        let place = Self::target_place(&leg, &upstream).await?;
        let run = Run {
            leg: &leg,
            upstream: &upstream,
            bearer: &bearer,
        };
        rewrite::rewrite_head(&leg.forward, &leg.asked, &mut head, &bearer)?;
        let mut response = send::send(&run, head, Body::Empty).await?;
        if let Body::Member(stream) = response.body_mut() {
            stream.hold(place);
        }
        Ok(response)
    }

    async fn places(&self, leg: &Leg, upstream: &Upstream) -> Result<Places, Fault> {
        let forward = &leg.forward;
        let caller = self.caller_place(&leg.caller, forward.traffic.long, forward.is_priority());
        Ok(Places {
            _caller: leg.within(caller).await??,
            _target: Self::target_place(leg, upstream).await?,
        })
    }

    /// A place among the caller's unary requests, waited for up to the deadline.
    pub(crate) async fn caller_place_by(&self, caller: &Caller, deadline: Option<Instant>) -> Result<Permit, Fault> {
        let entering = self.caller_place(caller, false, false);
        let Some(deadline) = deadline else {
            return entering.await;
        };
        let late = |_| Fault::TooManyRequests {
            message: "this caller's other requests left no room for this one in time".to_owned(),
            retry_after_seconds: 1,
            cluster: None,
        };
        tokio::time::timeout_at(deadline, entering).await.map_err(late)?
    }

    /// A place among the caller's requests. `long`: among its streams, which do not queue.
    pub(crate) async fn caller_place(&self, caller: &Caller, long: bool, first: bool) -> Result<Permit, Fault> {
        let gates = self.gates(caller);
        let gate = if long { &gates.streams } else { &gates.unary };
        gate.enter(first).await.map_err(|_| full("this caller", None))
    }

    /// Long requests are bounded by caller alone: a member does not count them among its work.
    async fn target_place(leg: &Leg, upstream: &Upstream) -> Result<Permit, Fault> {
        if leg.forward.traffic.long {
            return Ok(Permit::default());
        }
        let place = leg.within(upstream.bulkhead.enter(leg.forward.is_priority())).await?;
        place.map_err(|_| full(&format!("member cluster {}", upstream.cluster), Some(&upstream.cluster)))
    }

    fn gates(&self, caller: &Caller) -> Arc<CallerGates> {
        let id = CallerId::of(caller);
        let mut callers = self.callers.lock();
        if callers.len() >= MAX_CALLERS && !callers.contains_key(&id) {
            callers.retain(|_, gates| gates.is_used());
        }
        callers.entry(id).or_default().clone()
    }
}

impl Default for CallerGates {
    fn default() -> Self {
        Self {
            unary: Bulkhead::new(CALLER_IN_FLIGHT, CALLER_QUEUE),
            streams: Bulkhead::new(CALLER_STREAMS, 0),
        }
    }
}

impl CallerGates {
    fn is_used(&self) -> bool {
        self.unary.taken(CALLER_IN_FLIGHT) > 0 || self.streams.taken(CALLER_STREAMS) > 0
    }
}

impl Leg {
    /// Whether it may still be sent. The one exception to one snapshot per request: the hub gives a namespace to its
    /// next owner soon after this router has acknowledged its release, and a write may have waited long since its plan:
    /// for a place, a review, a look at the object, its body or a connection. It must not leave then.
    pub(crate) fn still(&self) -> Result<(), UpstreamError> {
        let still = |recheck: &Arc<Recheck>| recheck.still(&self.forward, &self.asked, &self.caller, &self.snapshot);
        let recheck = self.recheck.as_ref().filter(|_| !self.forward.traffic.is_read());
        recheck.map_or(Ok(()), still).map_err(UpstreamError::Withdrawn)
    }

    /// Wakes when [`Self::still`] may say something else.
    fn swaps(&self) -> Option<watch::Receiver<u64>> {
        let recheck = self.recheck.as_ref().filter(|_| !self.forward.traffic.is_read());
        recheck.map(|recheck| recheck.swaps())
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

fn full(whose: &str, cluster: Option<&str>) -> Fault {
    Fault::TooManyRequests {
        message: format!("{whose} has as many requests under way as it may"),
        retry_after_seconds: 1,
        cluster: cluster.map(str::to_owned),
    }
}

fn credential(leg: &Leg) -> Result<Secret, Fault> {
    let cluster = &leg.forward.target.cluster;
    leg.snapshot
        .credentials
        .get(cluster)
        .map(|credential| credential.token.clone())
        .ok_or_else(|| {
            leg.forward.unavailable(format!(
                "this router has no credential for member cluster {cluster} yet; is its agent connected?"
            ))
        })
}

#[cfg(test)]
pub(crate) mod tests;
