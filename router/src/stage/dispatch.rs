//! Sends what is ready to be sent to one member: queue, breaker, attempts, and classifies what came.
//!
//! Every leg has a client span and carries its trace context to the member. Reads are retried within a budget when the
//! member cannot have been the wiser; a write that left is never sent again. Errors become a `Fault` that says whether
//! the request may have run. Not here: routing rules (`plan`), what must be known before (`preflight`), connections
//! (`upstream`). Callers: `edge`, `fanout` leg by leg, and `preflight` for its questions; `identify`, `access` and
//! `discovery` for what the router asks in its own name (`own`).

mod acting;
mod metrics;
mod outcome;
mod own;
mod probe;
mod received;
mod rename;
mod renamed;
mod send;
mod silence;
mod turn;
pub(crate) mod upgrade;

use std::sync::Arc;
use std::time::Duration;

use http::Response;
use http::header::{CONTENT_LENGTH, HeaderValue};
use http::request::Parts;
use opentelemetry::Context;
use portolan_runtime::Tasks;
use tokio::sync::watch;
use tokio::time::Instant;

pub(crate) use self::metrics::DispatchMetrics;
use self::outcome::Kind;
pub(crate) use self::own::{DocumentRequest, OwnRequests};
pub(crate) use self::probe::Prober;
use self::turn::Turns;
use self::upgrade::Tunnel;
use crate::decision::plan::Forward;
use crate::decision::rewrite;
use crate::resource::breaker::Probe;
use crate::resource::load::Lateness;
use crate::resource::queues::{Class, QueueMetrics, Seat};
use crate::resource::routing::Routing;
use crate::resource::upstream::{Body, Place, Upstream, UpstreamError};
use crate::resource::writes::Write;
use crate::stage::replan::Replanner;
use crate::value::classify::{ApiRequest, Verb};
use crate::value::fault::{AGAIN_SECONDS, Fault};
use crate::value::snapshot::Caller;
use crate::value::traffic::TrafficClass;

/// To the head of the answer of a watch, and to a switch of protocols. API servers answer a watch at once; a kubelet that
/// is asked to exec may have to start something.
pub(crate) const LONG_HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// One request for one member.
pub(crate) struct Leg {
    pub(crate) forward: Box<Forward>,
    /// A box, as legs are moved: it is most of them.
    pub(crate) asked: Box<ApiRequest>,
    /// The one that it was planned with.
    pub(crate) routing: Arc<Routing>,
    pub(crate) caller: Caller,
    /// For the whole answer; `None` for what is long.
    pub(crate) deadline: Option<Instant>,
    /// Trace context that came with the request.
    pub(crate) received: Context,
    /// Asked before anything but a read leaves; `None` for what the router asks itself, which reads.
    pub(crate) replanner: Option<Arc<Replanner>>,
    /// Of a merged watch whose client was answered: it waits behind nobody who comes new.
    pub(crate) running: bool,
}

/// An answer, and its seat at the member until its body is over.
pub(crate) struct Dispatched {
    pub(crate) response: Response<Body>,
    pub(crate) seat: Seat,
    /// With a 101: to be run once the client has been answered.
    pub(crate) tunnel: Option<Tunnel>,
}

/// The stage. One per process.
pub(crate) struct Dispatcher {
    /// Connections for upgrades are its tasks.
    tasks: Tasks,
    metrics: DispatchMetrics,
    waits: QueueMetrics,
    late: Lateness,
}

/// A leg that has a seat at its member: what its steps share.
struct Run {
    leg: Leg,
    upstream: Arc<Upstream>,
    bearer: HeaderValue,
    metrics: DispatchMetrics,
    /// Of this router: what it makes late says nothing of the member.
    late: Lateness,
    /// Of a watch: when its head is to be here, whatever it has waited for before.
    head_until: Instant,
}

impl Dispatcher {
    pub(crate) fn new(tasks: Tasks, metrics: DispatchMetrics) -> Self {
        Self {
            tasks,
            metrics,
            waits: QueueMetrics::default(),
            late: Lateness::default(),
        }
    }

    /// How late this router itself is.
    pub(crate) fn beside(mut self, late: Lateness) -> Self {
        self.late = late;
        self
    }

    /// Tells these how long legs wait for their members.
    pub(crate) fn measured(mut self, waits: QueueMetrics) -> Self {
        self.waits = waits;
        self
    }

    /// Sends the request to the plan's member and returns its answer, with its body to come.
    pub(crate) async fn dispatch(&self, mut leg: Leg, mut head: Parts, mut body: Body) -> Result<Dispatched, Fault> {
        leg.say_no_epoch_where_there_is_none();
        let (run, seat, place) = self.begin(leg).await?;
        let forward = &run.leg.forward;
        if forward.traffic.class == TrafficClass::Upgrade {
            let (response, tunnel) = Box::pin(upgrade::upgrade(&run, &self.tasks, (head, body))).await?;
            return Ok(Dispatched {
                response,
                seat: run.after_head(seat),
                tunnel,
            });
        }
        rewrite::rewrite_head(forward, &run.leg.asked, &mut head, &run.bearer)?;
        rename::rename_request(&run, &head, &mut body).await?;
        if let Body::Whole(bytes) = &body {
            head.headers.insert(CONTENT_LENGTH, HeaderValue::from(bytes.len()));
        }
        let response = placed(send::send(&run, head, body).await?, place);
        let response = rename::rename_response(&run, response).await?;
        let (mut head, body) = response.into_parts();
        rewrite::rewrite_response(forward, &mut head);
        Ok(Dispatched {
            response: Response::from_parts(head, body),
            seat: run.after_head(seat),
            tunnel: None,
        })
    }

    /// Sends one leg of a request that goes to several members: a read, whose caller was admitted already. The seat at
    /// the member goes with the answer's body. The head of the answer is the member's own, untouched.
    pub(crate) async fn read(&self, leg: Leg, mut head: Parts) -> Result<Response<Body>, Fault> {
        let (run, seat, place) = self.begin(leg).await?;
        rewrite::rewrite_head(&run.leg.forward, &run.leg.asked, &mut head, &run.bearer)?;
        let mut response = placed(send::send(&run, head, Body::Empty).await?, place);
        if let Body::Member(stream) = response.body_mut() {
            stream.hold(run.after_head(seat));
        }
        if run.leg.forward.rewrite.touches_bodies() {
            response.headers_mut().remove(CONTENT_LENGTH);
        }
        rename::rename_response(&run, response).await
    }

    /// Finds the member and the credential, and waits for its tenant's place, if it needs one, and then for a seat at the member.
    /// What is long takes none, but for watches until they have begun: a member does not count it among its work.
    async fn begin(&self, leg: Leg) -> Result<(Run, Seat, Option<Box<Place>>), Fault> {
        let forward = &leg.forward;
        let cluster = &forward.target.cluster;
        let unavailable = |message| forward.unavailable(message);
        let upstream = find(&leg.routing, cluster).map_err(unavailable)?;
        let bearer = credential(&leg.routing, cluster).map_err(unavailable)?;
        let turns = Turns {
            leg: &leg,
            upstream: &upstream,
            until: Instant::now() + LONG_HEAD_TIMEOUT,
            legs: &self.metrics,
            waits: &self.waits,
        };
        let head_until = turns.until;
        // Boxed: most requests need none.
        let place = match forward.traffic.class {
            TrafficClass::List | TrafficClass::Watch | TrafficClass::Upgrade => Box::pin(turns.place()).await?,
            _ => None,
        };
        let seat = if forward.traffic.long && leg.asked.verb != Verb::Watch {
            Seat::default()
        } else {
            turns.seat().await?
        };
        let (metrics, late) = (self.metrics.clone(), self.late.clone());
        let run = Run {
            leg,
            upstream,
            bearer,
            metrics,
            late,
            head_until,
        };
        Ok((run, seat, place))
    }
}

impl Run {
    /// A watch has begun, or a protocol was switched to: the member's work for it is done.
    fn after_head(&self, seat: Seat) -> Seat {
        if self.leg.forward.traffic.long {
            Seat::default()
        } else {
            seat
        }
    }
}

/// An answer that keeps its place until it is over.
fn placed(mut response: Response<Body>, place: Option<Box<Place>>) -> Response<Body> {
    if let (Body::Member(stream), Some(place)) = (response.body_mut(), place) {
        stream.hold_place(place);
    }
    response
}

impl Leg {
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

    /// Counts a write as open, then looks whether it may still be sent; from here on it is under way. In this order, so that a
    /// release which [`Self::still`] does not know yet knows of the write.
    fn leave(&self) -> Result<Option<Write>, UpstreamError> {
        let mut write = self.open_write();
        self.still()?;
        if let Some(write) = &mut write {
            write.leaves();
        }
        Ok(write)
    }

    /// A write to a namespace of the caller's shard, or of its leader lock.
    fn open_write(&self) -> Option<Write> {
        let replanner = self.replanner.as_ref()?;
        if self.forward.is_priority() && !self.forward.traffic.is_read() {
            let Caller::Pod(view) = &self.caller else { return None };
            return Some(replanner.writes().begin_of_lock(view.shard()?));
        }
        let grant = self.forward.grant.as_ref()?;
        let said = grant.fenced.then_some(grant.epoch);
        Some(replanner.writes().begin(grant.pair(&self.forward.target), said))
    }

    /// A namespace that was made anew is not annotated yet, and its member would refuse every epoch.
    fn say_no_epoch_where_there_is_none(&mut self) {
        let (Some(grant), Some(replanner)) = (&mut self.forward.grant, &self.replanner) else {
            return;
        };
        let pair = grant.pair(&self.forward.target);
        let bare = replanner.writes().says_no_epoch(pair, grant.epoch);
        grant.fenced &= !bare;
    }

    /// How urgent it is at its member, as far as the request tells.
    fn class(&self) -> Class {
        match self.forward.traffic.class {
            _ if self.forward.is_priority() || self.asked.is_lease() => Class::Lease,
            _ if self.running => Class::Running,
            TrafficClass::List | TrafficClass::Watch => Class::List,
            TrafficClass::Unary | TrafficClass::Upgrade | TrafficClass::TokenReview => Class::Single,
        }
    }

    /// What it would tell of a member that is tried again.
    fn probe(&self) -> Probe {
        let (forward, kind) = (&self.forward, Kind::of(self));
        if forward.is_priority() {
            Probe::Lease
        } else if self.asked.is_lease() {
            Probe::OtherLease
        } else if kind.proxied || self.is_patient() {
            Probe::Doubtful
        } else if forward.traffic.is_read() {
            Probe::Telling
        } else {
            Probe::Write
        }
    }

    /// Whether the member may say nothing until there is something to say: followed logs, and what is behind `proxy`.
    fn is_patient(&self) -> bool {
        self.deadline.is_none() && self.asked.verb != Verb::Watch
    }

    /// Whether a member that is well answers it soon, whoever asks: one object is read. A write may wait for its webhooks, a
    /// collection or a document is work.
    fn is_prompt(&self) -> bool {
        let object = self.asked.resource.as_ref();
        let object = object.is_some_and(|object| object.subresource.is_none() && object.name.is_some());
        object && self.asked.verb == Verb::Get && !Kind::of(self).proxied
    }

    /// Wakes when [`Self::still`] may say something else.
    fn swaps(&self) -> Option<watch::Receiver<u64>> {
        let replanner = self.replanner.as_ref().filter(|_| !self.forward.traffic.is_read());
        replanner.map(|replanner| replanner.swaps())
    }
}

/// What became of a write that left. A gateway's or server's failure says nothing about it: it may be carried out yet.
fn settle(write: Option<Write>, outcome: &Result<Response<Body>, UpstreamError>) {
    let is_known = match outcome {
        Ok(response) => !response.status().is_server_error(),
        Err(UpstreamError::Lost { .. } | UpstreamError::Body(_)) => false,
        Err(_) => true,
    };
    if let Some(mut write) = write.filter(|_| is_known) {
        write.answered();
    }
}

/// The member's connections; an error says why there are none: a leg that connects anew may have an older plan than
/// routing.
fn find(routing: &Routing, cluster: &str) -> Result<Arc<Upstream>, String> {
    let upstream = routing.upstreams.get(cluster).cloned();
    upstream.ok_or_else(|| format!("this router does not know member cluster {cluster} any more"))
}

/// The router's own credential for a member; an error says why there is none.
fn credential(routing: &Routing, cluster: &str) -> Result<HeaderValue, String> {
    let credential = routing.snapshot.gateway_credential(cluster);
    credential.map(|credential| credential.bearer.clone()).ok_or_else(|| {
        format!("this router has no credential for member cluster {cluster} yet; is its agent connected?")
    })
}

/// The answer when too many wait for the member already. Nothing was sent.
fn full(upstream: &Upstream) -> Fault {
    let cluster = &upstream.cluster;
    Fault::TooManyRequests {
        message: format!("as many requests wait for member cluster {cluster} as may, or as many of this shard"),
        retry_after_seconds: rand::random_range(1..=AGAIN_SECONDS),
        cluster: Some(cluster.to_string()),
    }
}

#[cfg(test)]
pub(crate) mod tests;
