//! One request from its head to the end of its answer: span, permit, deadline and record around the stages
//! `classify → identify → plan → checks → dispatch → reply`.
//!
//! The snapshot is loaded here, once. Nothing is decided here: stages return a `Fault` or go on. A panic in a stage is
//! this request's 500. Caller: `accept`, for each request of each connection.

mod answer;
#[cfg(test)]
pub(crate) mod harness;
mod record;
mod span;
mod watch;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use http::header::WARNING;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use opentelemetry::Context;
use portolan_runtime::{Readiness, Tasks};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tracing::{Instrument as _, Span};

pub(crate) use self::answer::Answer;
use self::answer::Held;
pub(crate) use self::record::RequestRecord;
use self::record::{Completion, Names};
use self::watch::EventBoundary;
use crate::access::Access;
use crate::classify::{self, ApiRequest, Verb};
use crate::dispatch::{Dispatched, Dispatcher, Leg, Places};
use crate::fault::Fault;
use crate::identify::{Identifier, PeerIdentity};
use crate::metrics::RequestMetrics;
use crate::plan::{self, Forward, LocalAnswer, Plan, Planned, TrafficClass};
use crate::recheck::{Recheck, Watched};
use crate::reply::{self, Format};
use crate::rewrite;
use crate::snapshot::{Binding, Caller, CallerView, SnapshotStore};
use crate::upgrade::Tunnel;
use crate::upstream::{Body, ClientBody};

/// Largest request body but for streams into Pods. An API server takes 3 MiB by default, and large custom resources
/// may be allowed more.
pub(crate) const MAX_BODY_BYTES: u64 = 8 << 20;
/// Size of a request's head. Tokens are some kilobytes, label selectors and continue tokens may be many.
pub(crate) const MAX_HEAD_BYTES: usize = 64 << 10;
/// What the paths of Leases have in common.
const LEASES: &str = "/apis/coordination.k8s.io/";
/// Lease requests beyond the bound on requests: one at a time from as many operators, twice.
const LEASE_RESERVE: usize = 256;
/// Added to a `timeout` that the client asks for: the member's own answer about it is to come first.
const TIMEOUT_GRACE: Duration = Duration::from_secs(2);
/// Longest `timeout` that a client may ask for.
const MAX_TIMEOUT: Duration = Duration::from_hours(1);

/// What the edge works with; filled by `app`.
pub(crate) struct EdgeParts {
    pub(crate) snapshots: Arc<SnapshotStore>,
    pub(crate) identifier: Identifier,
    pub(crate) access: Access,
    pub(crate) dispatcher: Dispatcher,
    pub(crate) metrics: Arc<RequestMetrics>,
    /// Answers `/readyz`.
    pub(crate) readiness: Readiness,
    /// Unary requests in flight.
    pub(crate) max_requests: usize,
    /// Watches and upgrades in flight.
    pub(crate) max_streams: usize,
    /// For the answer to a unary request, all of it.
    pub(crate) request_timeout: Duration,
    /// Cancelled when the router drains; tunnels and connections are its tasks.
    pub(crate) tasks: Tasks,
}

/// One per process, shared by all requests.
pub(crate) struct Edge {
    parts: EdgeParts,
    // Semaphores: permits go with the answers' bodies.
    requests: Arc<Semaphore>,
    /// Beyond the bound, for Leases alone: a router that sheds must not make every operator lose its leadership.
    leases: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    recheck: Arc<Recheck>,
}

/// What a request has become when its answer's head is known.
struct Served {
    response: Response<Body>,
    places: Places,
    permit: Option<OwnedSemaphorePermit>,
    watch: bool,
    /// May go on for hours.
    long: bool,
    watched: Option<Watched>,
    tunnel: Option<Tunnel>,
}

impl Edge {
    pub(crate) fn new(parts: EdgeParts) -> Arc<Self> {
        let requests = Arc::new(Semaphore::new(parts.max_requests.min(Semaphore::MAX_PERMITS)));
        let streams = Arc::new(Semaphore::new(parts.max_streams.min(Semaphore::MAX_PERMITS)));
        let recheck = Recheck::new(parts.snapshots.clone());
        parts.tasks.spawn("recheck", recheck.clone().run(parts.tasks.clone()));
        Arc::new(Self {
            recheck,
            parts,
            leases: Arc::new(Semaphore::new(LEASE_RESERVE)),
            requests,
            streams,
        })
    }

    fn admit(&self, path: &str) -> Result<OwnedSemaphorePermit, Fault> {
        let reserve = if path.contains(LEASES) {
            &self.leases
        } else {
            &self.requests
        };
        take(&self.requests, "requests").or_else(|full| reserve.clone().try_acquire_owned().map_err(|_| full))
    }

    /// Answers one request, always. `peer`: who the connection's client certificate belongs to.
    pub(crate) async fn serve(
        self: Arc<Self>,
        request: Request<Incoming>,
        peer: Option<Arc<PeerIdentity>>,
    ) -> Response<Answer> {
        let received = span::received(request.headers());
        let span = span::request(&request, &received);
        let names = Names {
            method: Some(request.method().clone()),
            path: request.uri().path().to_owned(),
            trace_id: span::trace_id(&span, &received),
            ..Names::default()
        };
        let mut completion = Completion::new(self.parts.metrics.clone(), names);
        let format = Format::negotiate(request.headers());
        let blind = reply::reads_no_status(request.headers());
        let call = Call {
            edge: &self,
            peer: peer.as_deref(),
            received: &received,
            completion: &mut completion,
        };
        let outcome = AssertUnwindSafe(call.run(request))
            .catch_unwind()
            .instrument(span.clone())
            .await;
        let served = match outcome {
            Ok(Ok(served)) => served,
            Ok(Err(fault)) => {
                let mut served = Self::refused(&fault, format, &mut completion, &span);
                if blind && let Some(warning) = rewrite::warning(&fault.to_string()) {
                    served.response.headers_mut().insert(WARNING, warning);
                }
                served
            }
            Err(panic) => self.panicked(panic.as_ref(), format, &mut completion, &span),
        };
        self.answer(served, completion, &span)
    }

    fn answer(&self, served: Served, mut completion: Completion, span: &Span) -> Response<Answer> {
        let Served {
            response,
            places,
            permit,
            watch,
            long,
            watched,
            tunnel,
        } = served;
        completion.answered(response.status());
        span::answered(span, response.status());
        let (head, body) = response.into_parts();
        let drain = watch.then(|| {
            let token = self.parts.tasks.token().cancelled_owned();
            (Box::pin(token), EventBoundary::of(&head.headers))
        });
        let held = Held {
            completion,
            _permit: permit,
            _places: places,
            drain,
            watched,
            // Spans are exported when they end.
            _span: (!long).then(|| span.clone()),
        };
        let Some(tunnel) = tunnel else {
            return Response::from_parts(head, Answer::new(body, held));
        };
        self.parts.tasks.spawn("tunnel", held.carry(tunnel));
        Response::from_parts(head, Answer::empty())
    }

    fn refused(fault: &Fault, format: Format, completion: &mut Completion, span: &Span) -> Served {
        completion.record.reason = Some(fault.reason());
        span::failed(span, fault);
        Served::local(reply::reply(fault, format))
    }

    fn panicked(
        &self,
        panic: &(dyn std::any::Any + Send),
        format: Format,
        completion: &mut Completion,
        span: &Span,
    ) -> Served {
        let text = panic
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        self.parts
            .tasks
            .count_panic("request", text.unwrap_or("a value that is no text"));
        completion.record.panicked = true;
        let fault = Fault::Internal("the router failed on this request; its log says why".to_owned());
        Self::refused(&fault, format, completion, span)
    }
}

impl Served {
    fn local(response: Response<Bytes>) -> Self {
        Self {
            response: response.map(Body::from),
            places: Places::default(),
            permit: None,
            watch: false,
            long: false,
            watched: None,
            tunnel: None,
        }
    }
}

/// One request on its way through the stages.
struct Call<'a> {
    edge: &'a Arc<Edge>,
    peer: Option<&'a PeerIdentity>,
    received: &'a Context,
    completion: &'a mut Completion,
}

impl Call<'_> {
    async fn run(mut self, request: Request<Incoming>) -> Result<Served, Fault> {
        let edge = &self.edge.parts;
        // Shed before any work is done for it.
        let permit = self.edge.admit(request.uri().path())?;
        let started = Instant::now();
        let (head, body) = request.into_parts();
        let asked = self.classify(&head)?;
        if let Some(local) = plan::local(&asked) {
            return Ok(Served::local(self.local(local)));
        }
        let snapshot = edge.snapshots.load();
        let identified = edge.identifier.identify(&head.headers, self.peer, &snapshot).await;
        let caller = identified.map_err(|fault| not_yet(&asked, fault))?;
        self.name(&caller);
        let planned = plan::plan(&caller, &asked, &snapshot);
        self.note(&planned);
        let forward = match planned.plan {
            Plan::Forward(forward) => forward,
            Plan::Local(local) => return Ok(Served::local(self.local(local))),
            Plan::Refuse(fault) => return Err(fault),
        };
        let permit = if forward.long_running {
            // Watches of a member that hangs must not use up the places of requests.
            drop(permit);
            take(&self.edge.streams, "streams")?
        } else {
            permit
        };
        self.check(&forward).await.map_err(|fault| not_yet(&asked, fault))?;
        let body = bounded(&forward, &head, body)?;
        // A followed log has no events that it could end between.
        let watch = forward.class == TrafficClass::Watch && asked.verb == Verb::Watch;
        let long = forward.long_running;
        // Before it is sent: no swap from here on is missed.
        let watched = long.then(|| self.edge.recheck.watch(&forward, &asked, &caller, &snapshot));
        let leg = Leg {
            deadline: (!long).then(|| started + timeout(&asked, edge.request_timeout)),
            forward,
            asked,
            snapshot,
            caller,
            received: self.received.clone(),
        };
        let Dispatched {
            response,
            places,
            tunnel,
        } = edge.dispatcher.dispatch(leg, head, body).await?;
        Ok(Served {
            watch: watch && response.status() == StatusCode::OK,
            response,
            places,
            permit: Some(permit),
            long,
            watched,
            tunnel,
        })
    }

    fn classify(&mut self, head: &Parts) -> Result<ApiRequest, Fault> {
        check_size(head)?;
        classify::check_authority(&head.method, &head.uri, &head.headers, head.version)?;
        let asked = classify::classify(&head.method, &head.uri, &head.headers)?;
        self.completion.record.verb = Some(asked.verb);
        span::classified(&asked);
        Ok(asked)
    }

    fn note(&mut self, planned: &Planned) {
        span::planned(planned);
        let record = &mut self.completion.record;
        record.rule = Some(planned.rule);
        if let Plan::Forward(forward) = &planned.plan {
            record.class = Some(forward.class);
            record.cluster = Some(forward.target.cluster.clone());
            record.audited = forward.warning.is_some();
        }
    }

    async fn check(&self, forward: &Forward) -> Result<(), Fault> {
        let access = &self.edge.parts.access;
        access.check(&forward.checks).await?;
        match &forward.election {
            // Which of the two it is stands in the body, which nobody may make us read before they may do both.
            Some(election) => access.check(&election.checks).await,
            None => Ok(()),
        }
    }

    fn name(&mut self, caller: &Caller) {
        let (name, shard) = match caller {
            Caller::Pod(view) => (view.user(), shard_of(view)),
            Caller::Person { user, .. } => (user.clone(), None),
        };
        span::identified(&name, shard.as_deref());
        self.completion.names.caller = Some(name);
        self.completion.names.shard = shard;
    }

    fn local(&self, answer: LocalAnswer) -> Response<Bytes> {
        let ready = &self.edge.parts.readiness;
        match answer {
            LocalAnswer::Live => text(StatusCode::OK, "ok".into()),
            LocalAnswer::Ready if ready.is_ready() => text(StatusCode::OK, "ok".into()),
            LocalAnswer::Ready => text(StatusCode::SERVICE_UNAVAILABLE, ready.report().into()),
        }
    }
}

fn shard_of(view: &CallerView) -> Option<String> {
    match &view.binding {
        Binding::One(shard) => Some(shard.config.to_string()),
        Binding::None | Binding::Several(_) => None,
    }
}

fn text(status: StatusCode, body: Bytes) -> Response<Bytes> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let plain = http::HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(http::header::CONTENT_TYPE, plain);
    response
}

fn take(permits: &Arc<Semaphore>, what: &str) -> Result<OwnedSemaphorePermit, Fault> {
    permits.clone().try_acquire_owned().map_err(|_| Fault::TooManyRequests {
        message: format!("this router serves as many {what} as it may"),
        retry_after_seconds: 1,
        cluster: None,
    })
}

/// Nobody can be asked who the client is or what it may do: to an informer 429, because it lists anew after a 503.
fn not_yet(asked: &ApiRequest, fault: Fault) -> Fault {
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

/// The client's own `timeout`, as an API server takes it, else the default.
fn timeout(asked: &ApiRequest, default: Duration) -> Duration {
    let wanted = asked.query.first("timeout").and_then(|value| go_duration(&value));
    wanted.map_or(default, |wanted| wanted.min(MAX_TIMEOUT) + TIMEOUT_GRACE)
}

/// Go's duration syntax as far as clients write it: `34s`, `1m30s`, `1.5s`, `500ms`. Zero is none.
fn go_duration(text: &str) -> Option<Duration> {
    let mut total = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit() && c != '.')?);
        let (unit, next) = after.split_at(after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len()));
        let seconds = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        total += number.parse::<f64>().ok()? * seconds;
        rest = next;
    }
    Duration::try_from_secs_f64(total).ok().filter(|total| !total.is_zero())
}

/// hyper's own bound is that of a buffer, and heads of up to twice its size can slip through.
fn check_size(head: &Parts) -> Result<(), Fault> {
    let uri = head.uri.path_and_query().map_or(0, |path| path.as_str().len());
    let headers = head
        .headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len());
    if uri + headers.sum::<usize>() <= MAX_HEAD_BYTES {
        return Ok(());
    }
    let message = format!("the head of the request is larger than {MAX_HEAD_BYTES} bytes");
    Err(Fault::BadRequest(message))
}

/// The client's body with its bound. A length that is over it is refused before anything is sent.
fn bounded(forward: &Forward, head: &Parts, body: Incoming) -> Result<Body, Fault> {
    use http_body::Body as _;
    if body.is_end_stream() {
        return Ok(Body::Empty);
    }
    let limit = if forward.long_running { u64::MAX } else { MAX_BODY_BYTES };
    let length = head
        .headers
        .get(http::header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse().ok());
    if length.is_some_and(|length: u64| length > limit) {
        return Err(Fault::TooLarge { limit });
    }
    Ok(Body::Client(ClientBody::new(body, limit)))
}

#[cfg(test)]
mod tests;
