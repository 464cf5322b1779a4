//! One request from its head to the end of its answer: span, deadline and record around the stages
//! `classify → identify → plan → admit → preflight → dispatch → reply` (`call`).
//!
//! What requests are routed by is loaded here, once. Nothing is decided here: stages return a `Fault` or go on. A panic in a stage is
//! this request's 500. Caller: `accept`, for each request of each connection.

mod after;
mod answer;
mod bounds;
mod call;
mod carried;
mod completion;
#[cfg(test)]
pub(crate) mod harness;
mod health;
mod lagging;
mod limited;
pub(crate) mod metrics;
mod namespace;
#[cfg(test)]
pub(crate) mod operators;
mod ordered;
mod passing;
mod record;
mod replicated;
mod span;
mod strangers;
mod tail;

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use http::header::WARNING;
use http::{Request, Response};
use hyper::body::Incoming;
use parking_lot::Mutex;
use portolan_merge::resume::{Resume, ResumeBounds};
use portolan_merge::watch::Budget;
use portolan_runtime::telemetry::{Keeper, Unsampled};
use portolan_runtime::{Readiness, Tasks, telemetry};
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tracing::{Instrument as _, Span};

pub(crate) use self::answer::Answer;
use self::call::Call;
use self::carried::Carried;
use self::completion::{Completion, Latecomer};
use self::lagging::Lagging;
use self::metrics::RequestMetrics;
use self::passing::{Attached, Right};
use self::record::Names;
use self::tail::Tail;
pub(crate) use self::tail::TailSettings;
use crate::decision::rewrite;
use crate::resource::access::{Access, ProxyQuestion};
use crate::resource::grants::Grants;
use crate::resource::injected::InjectedFaults;
use crate::resource::queues::Seat;
use crate::resource::reviewed::Authenticated;
use crate::resource::routing::RoutingStore;
use crate::resource::upstream::Body;
use crate::stage::admit::{Admit, Admitted, KeptBounds, Share};
use crate::stage::discovery::Discovery;
use crate::stage::dispatch::Dispatcher;
use crate::stage::fanout::listing::Turns;
use crate::stage::fanout::open::OpenWatches;
use crate::stage::fanout::young::YoungKinds;
use crate::stage::fanout::{AHEAD_BYTES, FRAME_BYTES, FanOuts, NAMES_BYTES, SHADOW_BYTES};
use crate::stage::identify::{Identifier, LastToken, PeerIdentity};
use crate::stage::preflight::Preflight;
use crate::stage::replan::{Replanner, Watched};
use crate::stage::reply;
use crate::value::event_boundary::EventBoundary;
use crate::value::fault::Fault;
use crate::value::media::{Accepts, Media, prefers_yaml};

/// Size of a request's head, as API servers have it: its target and its headers, however many these are.
pub(crate) const MAX_HEAD_BYTES: usize = 1 << 20;
/// Up to here a head is read, so that one that is too large is told so by a Status.
pub(crate) const MOST_HEAD_BYTES: usize = 2 * MAX_HEAD_BYTES;

/// What the edge works with; filled by `app`.
pub(crate) struct EdgeParts {
    pub(crate) routing: Arc<RoutingStore>,
    pub(crate) admit: Arc<Admit>,
    pub(crate) identifier: Identifier,
    pub(crate) access: Access,
    pub(crate) dispatcher: Arc<Dispatcher>,
    /// What FaultInjections did.
    pub(crate) injected: Arc<InjectedFaults>,
    /// Merged watches.
    pub(crate) open: Arc<OpenWatches>,
    pub(crate) discovery: Arc<Discovery>,
    pub(crate) metrics: Arc<RequestMetrics>,
    /// The part of clients' traces that is recorded; `None`: nothing is.
    pub(crate) sampling: Option<f64>,
    /// What keeps some of those that are not sampled.
    pub(crate) tail: Option<Arc<Tail>>,
    /// `<member>.<this>` is the explicit view of a member.
    pub(crate) explicit_host: Option<String>,
    /// Answers `/readyz`.
    pub(crate) readiness: Readiness,
    /// For the answer to a unary request, all of it.
    pub(crate) request_timeout: Duration,
    /// Cancelled when the router drains; tunnels and connections are its tasks.
    pub(crate) tasks: Tasks,
}

impl RequestMetrics {
    /// What keeps errors and slow requests as spans; `None` where nothing is to be kept.
    pub(crate) fn tail(&self, keeper: Option<Keeper>, settings: TailSettings) -> Option<Arc<Tail>> {
        Tail::new(keeper, settings, self.tail.clone()).map(Arc::new)
    }
}

/// What all requests of one connection have in common.
pub(crate) struct Connection {
    peer: Option<PeerIdentity>,
    last: LastToken,
    bounds: KeptBounds,
    /// Whether it is known who is at its other end.
    known: AtomicBool,
    /// Told of that once; the listener waits for it.
    told: Notify,
    /// Among the connections of those who are not known. A mutex: given back once.
    place: Mutex<Option<Share>>,
}

impl Connection {
    /// Whose it is, is known: it takes no place among strangers any more.
    fn is_known(&self) {
        if !self.known.load(Ordering::Relaxed) && !self.known.swap(true, Ordering::Relaxed) {
            self.place.lock().take();
            self.told.notify_one();
        }
    }

    /// Whether somebody is known to be at its other end.
    pub(crate) fn has_client(&self) -> bool {
        self.known.load(Ordering::Relaxed)
    }

    /// Whether somebody is known to be at its other end: as soon as that is so, or after so long. To be asked once.
    pub(crate) async fn is_known_within(&self, wait: Duration) -> bool {
        tokio::time::timeout(wait, self.told.notified()).await.is_ok()
    }
}

/// One per process, shared by all requests.
pub(crate) struct Edge {
    parts: EdgeParts,
    replanner: Arc<Replanner>,
    preflight: Arc<Preflight>,
    fanouts: Arc<FanOuts>,
    grants: Grants,
    /// Whom members have authenticated for callers.
    authenticated: Authenticated,
    /// Copies that are not known to be what the primary has.
    lagging: Arc<Lagging>,
}

/// What a request has become when its answer's head is known.
struct Served {
    response: Response<Body>,
    /// `None`: nothing led to a member.
    admitted: Option<Admitted>,
    /// At the member.
    seat: Seat,
    watch: bool,
    /// May go on for hours.
    long: bool,
    /// For all of the answer, of what is not long.
    deadline: Option<Instant>,
    watched: Option<Watched>,
    /// What is asked of the hub again and again while it goes on. A box, as the next: hardly a request has either, and all are moved.
    right: Option<Box<ProxyQuestion>>,
    tunnel: Option<Box<Carried>>,
}

impl Edge {
    pub(crate) fn new(parts: EdgeParts) -> Arc<Self> {
        let replanner = Replanner::new(parts.routing.clone());
        // Without it what a caller may not see any more would go on, and no drain would end a watch.
        let planning = replanner.clone().run(parts.tasks.clone()).map(Ok);
        parts.tasks.spawn_critical("replan", planning);
        let preflight = Arc::new(Preflight {
            dispatcher: parts.dispatcher.clone(),
            access: parts.access.clone(),
            routing: parts.routing.clone(),
        });
        let fanouts = Arc::new(FanOuts {
            dispatcher: parts.dispatcher.clone(),
            preflight: preflight.clone(),
            routing: parts.routing.clone(),
            replanner: replanner.clone(),
            open: parts.open.clone(),
            resume: Mutex::new(Resume::new(ResumeBounds::default())),
            shadows: Budget::new(SHADOW_BYTES),
            names: Budget::new(NAMES_BYTES),
            frames: Budget::new(FRAME_BYTES),
            turns: Turns::default(),
            young: YoungKinds::default(),
            ahead: Arc::new(Semaphore::new(AHEAD_BYTES)),
        });
        let lagging = Lagging::new(parts.open.metrics.replicas_behind.clone(), parts.routing.clone());
        Arc::new(Self {
            parts,
            replanner,
            preflight,
            fanouts,
            grants: Grants::default(),
            authenticated: Authenticated::default(),
            lagging,
        })
    }

    /// What a connection brings to all its requests. `peer`: who its client certificate belongs to.
    pub(crate) fn connection(peer: Option<PeerIdentity>, place: Share) -> Arc<Connection> {
        let connection = Connection {
            last: LastToken::default(),
            bounds: KeptBounds::default(),
            known: AtomicBool::new(false),
            told: Notify::new(),
            place: Mutex::new(Some(place)),
            peer,
        };
        if connection.peer.is_some() {
            connection.is_known();
        }
        Arc::new(connection)
    }

    /// Answers one request, always.
    pub(crate) async fn serve(
        self: Arc<Self>,
        request: Request<Incoming>,
        connection: Arc<Connection>,
    ) -> Response<Answer> {
        let received = span::received(request.headers(), self.parts.sampling);
        let span = span::request(&request, &received);
        let names = Names {
            method: Some(request.method().clone()),
            path: request.uri().path().to_owned(),
            trace_id: telemetry::kept_trace_id(&span, &received),
            ..Names::default()
        };
        let latecomer = self.parts.tail.as_ref().and_then(|tail| {
            let ids = Unsampled::of(&span, &received)?;
            Some(Latecomer {
                tail: tail.clone(),
                ids,
            })
        });
        let mut completion = Completion::new(self.parts.metrics.clone(), names, latecomer);
        let accepts = Accepts::of(request.headers());
        let call = Call {
            edge: &self,
            connection: &connection,
            received: &received,
            completion: &mut completion,
        };
        let outcome = {
            // Pinned first: what is made of it moves no more than a pointer.
            let running = pin!(call.run(request));
            AssertUnwindSafe(running).catch_unwind().instrument(span.clone()).await
        };
        let served = match outcome {
            Ok(Ok(served)) => served,
            Ok(Err(fault)) => {
                let headers = accepts.headers();
                let mut served = Self::refused(&fault, Media::preferred(&headers), &mut completion, &span);
                if reply::reads_no_status(&headers)
                    && let Some(warning) = rewrite::warning(&fault.to_string())
                {
                    served.response.headers_mut().insert(WARNING, warning);
                }
                if prefers_yaml(&headers) {
                    served.response = reply::in_yaml(served.response);
                }
                served
            }
            Err(panic) => {
                let format = Media::preferred(&accepts.headers());
                self.panicked(panic.as_ref(), format, &mut completion, &span)
            }
        };
        self.answer(served, completion, &span)
    }

    fn answer(&self, served: Served, mut completion: Completion, span: &Span) -> Response<Answer> {
        let Served {
            response,
            admitted,
            seat,
            watch,
            long,
            deadline,
            watched,
            right,
            tunnel,
        } = served;
        completion.answered(response.status(), long);
        span::answered(span, response.status());
        let (mut head, body) = response.into_parts();
        ordered::mark(&mut head.headers, &completion);
        let boundary = watch.then(|| EventBoundary::of(&head.headers));
        let revoked = right.map(|question| {
            let access = self.parts.access.clone();
            Right::Held(async move { access.revoked(*question).await }.boxed())
        });
        let attached = Attached {
            completion,
            _admitted: admitted,
            _seat: seat,
            boundary,
            watched,
            revoked,
            // Spans are exported when they end.
            _span: (!long).then(|| span.clone()),
        };
        let Some(tunnel) = tunnel else {
            return Response::from_parts(head, Answer::new(body, attached, deadline, &self.parts.tasks));
        };
        self.parts.tasks.spawn("tunnel", attached.carry(*tunnel));
        Response::from_parts(head, Answer::of(Body::Empty))
    }

    fn refused(fault: &Fault, format: Media, completion: &mut Completion, span: &Span) -> Served {
        completion.failed(fault);
        span::failed(span, fault);
        Served::local(reply::reply(fault, format))
    }

    fn panicked(
        &self,
        panic: &(dyn std::any::Any + Send),
        format: Media,
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
    /// Nothing led to a member.
    fn local(response: Response<Bytes>) -> Self {
        Self::holding(response.map(Body::from), None)
    }

    /// What ends by itself.
    fn of(response: Response<Body>, admitted: Admitted) -> Self {
        Self::holding(response, Some(admitted))
    }

    fn holding(response: Response<Body>, admitted: Option<Admitted>) -> Self {
        Self {
            response,
            admitted,
            seat: Seat::default(),
            watch: false,
            long: false,
            deadline: None,
            watched: None,
            right: None,
            tunnel: None,
        }
    }
}

#[cfg(test)]
mod tests;
