//! One request through the stages: `classify → identify → plan → admit → preflight → dispatch`, or `fanout`, which asks
//! leg by leg.
//!
//! Nothing is decided here: a stage returns a `Fault` or the request goes on. Caller: `edge`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use opentelemetry::Context;
use portolan_crds::duration::parse_duration;
use tokio::time::Instant;
use tracing::Span;

use super::carried::Carried;
use super::completion::Completion;
use super::{Connection, Edge, MAX_HEAD_BYTES, Served, span};
use crate::decision::plan::{self, Choose, FanOut, Forward, LocalAnswer, Plan, Planned};
use crate::resource::bulkhead::Permit;
use crate::resource::routing::Routing;
use crate::resource::upstream::Body;
use crate::stage::admit::{Admission, Admitted, Arriving, Life};
use crate::stage::dispatch::{Dispatched, LONG_HEAD_TIMEOUT, Leg};
use crate::stage::fanout::fence::{self, Write};
use crate::stage::fanout::socket::Switch;
use crate::stage::fanout::{Asking, Fan};
use crate::stage::identify::Sender;
use crate::stage::preflight::Pending;
use crate::value::classify::{self, ApiRequest, Verb};
use crate::value::document::Wanted;
use crate::value::fault::Fault;
use crate::value::snapshot::{Binding, Caller, CallerView, Snapshot};
use crate::value::traffic::{Traffic, TrafficClass};

/// Added to a `timeout` that the client asks for: the member's own answer about it is to come first.
const TIMEOUT_GRACE: Duration = Duration::from_secs(2);
/// Longest `timeout` that a client may ask for.
const MAX_TIMEOUT: Duration = Duration::from_hours(1);

/// One request on its way through the stages.
pub(super) struct Call<'a> {
    pub(super) edge: &'a Arc<Edge>,
    pub(super) connection: &'a Connection,
    pub(super) received: &'a Context,
    pub(super) completion: &'a mut Completion,
}

/// A request whose sender is known, and its plan.
struct Identified {
    started: Instant,
    head: Parts,
    body: Incoming,
    asked: ApiRequest,
    routing: Arc<Routing>,
    caller: Caller,
}

/// A request that is admitted.
struct Known {
    admitted: Admitted,
    started: Instant,
    head: Parts,
    asked: ApiRequest,
    routing: Arc<Routing>,
    caller: Caller,
}

impl Call<'_> {
    pub(super) async fn run(mut self, request: Request<Incoming>) -> Result<Served, Fault> {
        let edge = &self.edge.parts;
        let started = Instant::now();
        let (head, body) = request.into_parts();
        let asked = self.classify(&head)?;
        self.not_while_draining(&asked)?;
        if let Some(local) = plan::local(&asked) {
            return Ok(Served::local(self.local(local)));
        }
        let routing = edge.routing.load();
        let caller = self.identify(&head, &asked, &routing.snapshot).await?;
        self.name(&caller);
        let planned = plan::plan(&caller, &asked, &routing.snapshot, &routing.kinds);
        if planned.unknown_kind {
            edge.routing.miss();
        }
        self.note(&planned);
        let identified = Identified {
            started,
            head,
            body,
            asked,
            routing,
            caller,
        };
        match planned.plan {
            Plan::Forward(forward) => {
                let admitted = self.admit(Life::of_one(forward.traffic.long), identified).await;
                let (known, body) = admitted?;
                self.forward(forward, known, body).await
            }
            Plan::Choose(choose) => {
                let long = choose.candidates.iter().any(|one| one.forward.traffic.long);
                let (known, body) = self.admit(Life::of_one(long), identified).await?;
                self.choose(*choose, known, body).await
            }
            Plan::FanOut(fan) => {
                let (known, _) = self.admit(Life::of_fan(fan.watch), identified).await?;
                self.fan_out(*fan, known).await
            }
            Plan::Discovery(wanted) => {
                let (known, _) = self.admit(Life::Unary, identified).await?;
                self.discover(&wanted, known).await
            }
            Plan::Local(local) => Ok(Served::local(self.local(local))),
            Plan::Refuse(fault) => Err(fault),
        }
    }

    async fn identify(&self, head: &Parts, asked: &ApiRequest, snapshot: &Snapshot) -> Result<Caller, Fault> {
        let edge = &self.edge.parts;
        let Connection { peer, source } = self.connection;
        let _arrived = edge.admit.arrive(source, asked).await?;
        let sender = Sender {
            headers: &head.headers,
            peer: peer.as_ref(),
            address: source.address,
        };
        let identified = edge.identifier.identify(&sender, snapshot);
        identified.await.map_err(|fault| not_yet(asked, fault))
    }

    /// Waits for what the request may take; only then is its body there to be read.
    async fn admit(&self, life: Life, identified: Identified) -> Result<(Known, Body), Fault> {
        let edge = &self.edge.parts;
        let Identified {
            started,
            head,
            body,
            asked,
            routing,
            caller,
        } = identified;
        let long = life != Life::Unary;
        let body = Arriving::bounded(long, &head, body)?;
        let wait = if long {
            LONG_HEAD_TIMEOUT
        } else {
            timeout(&asked, edge.request_timeout)
        };
        let admission = Admission {
            caller: &caller,
            asked: &asked,
            life,
            bytes: body.bytes(),
            deadline: started + wait,
        };
        let admitted = edge.admit.admit(&admission).await?;
        let known = Known {
            admitted,
            started,
            head,
            asked,
            routing,
            caller,
        };
        Ok((known, body.admitted()))
    }

    /// A client whose watch the drain has ended may ask again on the same connection before it is told to go: a watch
    /// taken now would end at once, which makes client-go list anew. After 429 it comes back where it was.
    fn not_while_draining(&self, asked: &ApiRequest) -> Result<(), Fault> {
        if asked.verb == Verb::Watch && self.edge.parts.tasks.is_cancelled() {
            return Err(Fault::TooManyRequests {
                message: "this router is about to end: watch again".to_owned(),
                retry_after_seconds: 1,
                cluster: None,
            });
        }
        Ok(())
    }

    /// To one member.
    async fn forward(self, forward: Box<Forward>, mut known: Known, mut body: Body) -> Result<Served, Fault> {
        let edge = &self.edge.parts;
        let pending = self.pending(&known);
        let checked = self.edge.preflight.check(&forward, pending, &mut body).await;
        checked.map_err(|fault| not_yet(&known.asked, fault))?;
        known.admitted.asked();
        let Traffic { class, long, .. } = forward.traffic;
        // A followed log has no events that it could end between.
        let watch = class == TrafficClass::Watch && known.asked.verb == Verb::Watch;
        // Before it is sent: no swap from here on is missed.
        let watched = long.then(|| {
            self.edge
                .replanner
                .watch(&forward, &known.asked, &known.caller, &known.routing.snapshot)
        });
        let deadline = (!long).then(|| known.started + timeout(&known.asked, edge.request_timeout));
        let leg = Leg {
            deadline,
            forward,
            asked: known.asked,
            routing: known.routing,
            caller: known.caller,
            received: self.received.clone(),
            replanner: Some(self.edge.replanner.clone()),
        };
        let write = Write::of(&leg.caller, &leg.asked, &leg.forward.target.cluster);
        let Dispatched {
            mut response,
            permit,
            tunnel,
        } = edge.dispatcher.dispatch(leg, known.head, body).await?;
        if let Some(write) = write {
            response = fence::hold(&edge.open, &write, response).await;
        }
        Ok(Served {
            watch: watch && response.status() == StatusCode::OK,
            response,
            admitted: Some(known.admitted),
            permit,
            long,
            deadline,
            watched,
            tunnel: tunnel.map(Carried::Tunnel),
        })
    }

    /// For what is asked before the request itself.
    fn pending<'k>(&'k self, known: &'k Known) -> Pending<'k> {
        Pending {
            head: &known.head,
            asked: &known.asked,
            caller: &known.caller,
            routing: &known.routing,
            received: self.received,
            deadline: known.started + timeout(&known.asked, self.edge.parts.request_timeout),
        }
    }

    /// To one of some members, once an answer or the body has told which.
    async fn choose(self, choose: Choose, known: Known, mut body: Body) -> Result<Served, Fault> {
        let pending = self.pending(&known);
        let forward = self.edge.preflight.choose(choose, pending, &mut body).await?;
        self.completion.record.cluster = Some(forward.target.cluster.clone());
        Span::current().record("clusters", &*forward.target.cluster);
        self.forward(forward, known, body).await
    }

    /// To members of a shard, for one collection.
    async fn fan_out(self, plan: FanOut, mut known: Known) -> Result<Served, Fault> {
        let edge = &self.edge.parts;
        let long = plan.watch;
        let switch = match &known.asked.upgrade {
            Some(upgrade) if long && upgrade.protocol.eq_ignore_ascii_case("websocket") => {
                Some(Switch::of(&mut known.head)?)
            }
            _ => None,
        };
        let mut asking = Asking::new(known.asked, &known.head, known.caller, self.received.clone());
        let deadline = (!long).then(|| known.started + timeout(&asking.asked, edge.request_timeout));
        asking.deadline = deadline;
        let fan = Fan {
            plan,
            asking,
            routing: known.routing,
        };
        let response = self.edge.fanouts.run(fan).await?;
        let (response, socket) = match switch {
            Some(switch) => switch.switch(response),
            None => (response, None),
        };
        Ok(Served {
            // It drains and is replanned within.
            watch: false,
            response,
            admitted: Some(known.admitted),
            permit: Permit::default(),
            long,
            deadline,
            watched: None,
            tunnel: socket.map(Carried::Socket),
        })
    }

    /// From what members have said they serve.
    async fn discover(self, wanted: &Wanted, known: Known) -> Result<Served, Fault> {
        let edge = &self.edge.parts;
        self.edge.preflight.access(&wanted.checks).await?;
        let hash = known.asked.query.first("hash");
        let answer = edge
            .discovery
            .answer(wanted, hash.as_deref(), &known.head, &known.routing.snapshot);
        let response = answer.await?;
        Ok(Served {
            response,
            admitted: Some(known.admitted),
            deadline: Some(known.started + edge.request_timeout),
            ..Served::local(Response::default())
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
        match &planned.plan {
            Plan::Forward(forward) => {
                record.class = Some(forward.traffic.class);
                record.cluster = Some(forward.target.cluster.clone());
                record.audited = forward.warning.is_some();
            }
            Plan::FanOut(fan) => {
                record.class = Some(if fan.watch {
                    TrafficClass::Watch
                } else {
                    TrafficClass::Unary
                });
                if let [leg] = fan.legs.as_slice() {
                    record.cluster = Some(leg.cluster().clone());
                }
                record.audited = fan.legs.iter().any(|leg| leg.forward.warning.is_some());
            }
            Plan::Choose(choose) => {
                let mut all = choose.candidates.iter().map(|one| &one.forward);
                record.audited = all.clone().any(|forward| forward.warning.is_some());
                record.class = all.next().map(|forward| forward.traffic.class);
            }
            Plan::Discovery(_) | Plan::Local(_) | Plan::Refuse(_) => {}
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
        Binding::None | Binding::Unknown { .. } | Binding::Several(_) => None,
    }
}

fn text(status: StatusCode, body: Bytes) -> Response<Bytes> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let plain = http::HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(http::header::CONTENT_TYPE, plain);
    response
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
    let wanted = asked
        .query
        .first("timeout")
        .and_then(|value| parse_duration(&value).ok());
    // Zero is none, as for an API server.
    let wanted = wanted.filter(|wanted| !wanted.is_zero());
    wanted.map_or(default, |wanted| wanted.min(MAX_TIMEOUT) + TIMEOUT_GRACE)
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
