//! One request through the stages: `classify → identify → plan → admit → preflight → dispatch`, or `fanout`, which asks
//! leg by leg.
//!
//! Nothing is decided here: a stage returns a `Fault` or the request goes on. Caller: `edge`.

mod absent;
mod documents;
mod judged;
mod review;
mod several;

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use opentelemetry::Context;
use portolan_crds::partition::ChildRole;
use tokio::time::Instant;
use tracing::{Instrument as _, Span};

use super::after::After;
use super::bounds::{TIMEOUT_GRACE, check_kept, check_size, not_yet, timeout};
use super::carried::Carried;
use super::completion::Completion;
use super::health;
use super::lagging;
use super::namespace::{self, Basis};
use super::ordered;
use super::replicated::Replicated;
use super::{Connection, Edge, Served, span};
use crate::decision::injection::Injection;
use crate::decision::plan::{self, Choose, FanOut, Forward, LocalAnswer, Plan, Planned, Rule};
use crate::decision::policy::Reach;
use crate::resource::access::ProxyQuestion;
use crate::resource::routing::Routing;
use crate::resource::upstream::Body;
use crate::stage::admit::{Admission, Admitted, Arriving, Life, Passage};
use crate::stage::dispatch::{Dispatched, LONG_HEAD_TIMEOUT, Leg};
use crate::stage::fanout::socket::Switch;
use crate::stage::fanout::{Asking, Fan};
use crate::stage::identify::Sender;
use crate::stage::preflight::Pending;
use crate::stage::reply;
use crate::value::classify::{self, ApiRequest, Verb, View};
use crate::value::fault::Fault;
use crate::value::snapshot::{Caller, Snapshot};
use crate::value::traffic::{Traffic, TrafficClass};

/// One request on its way through the stages.
pub(super) struct Call<'a> {
    pub(super) edge: &'a Arc<Edge>,
    pub(super) connection: &'a Connection,
    pub(super) received: &'a Context,
    pub(super) completion: &'a mut Completion,
}

/// A request whose sender is known.
struct Identified {
    started: Instant,
    /// For the whole answer of what ends by itself, and for all questions.
    deadline: Instant,
    head: Parts,
    /// A box, as the request is moved: it is most of it.
    asked: Box<ApiRequest>,
    routing: Arc<Routing>,
    caller: Caller,
    /// What a FaultInjection orders for it.
    injection: Option<Box<Injection>>,
    /// What policies must know of its plan.
    reach: Reach,
}

impl Call<'_> {
    /// What hardly a request needs is boxed here and in the stages: the room of the largest of all ways would be moved and kept
    /// for each.
    pub(super) async fn run(mut self, request: Request<Incoming>) -> Result<Served, Fault> {
        let started = Instant::now();
        let (head, body) = request.into_parts();
        let asked = Box::new(self.classify(&head)?);
        self.not_while_draining(&asked)?;
        health::served(&asked)?;
        if let Some(local) = plan::local(&asked) {
            return Ok(Served::local(self.local(local, &asked)));
        }
        let (planned, request) = self.planned(started, head, asked).await?;
        match planned.plan {
            Plan::Forward(forward) => {
                let (life, gathers) = (Life::of_one(forward.traffic.long), forward.gathers());
                let (admitted, body) = self.admit((life, gathers), &request, body).await?;
                self.forward(forward, request, admitted, body).await
            }
            Plan::Choose(choose) => {
                let long = choose.candidates.iter().any(|one| one.forward.traffic.long);
                let life = Life::of_one(long);
                let (admitted, body) = self.admit((life, choose.gathers()), &request, body).await?;
                Box::pin(self.choose(*choose, request, admitted, body)).await
            }
            Plan::DeleteEach(parts) => {
                let (admitted, body) = self.admit((Life::Unary, true), &request, body).await?;
                Box::pin(self.delete_each(&parts, &request, admitted, body)).await
            }
            Plan::FanOut(fan) => {
                let (admitted, _) = self.admit((Life::of_fan(fan.watch), false), &request, body).await?;
                Box::pin(self.fan_out(*fan, request, admitted)).await
            }
            Plan::Review(_) => {
                let (admitted, body) = self.admit((Life::Unary, true), &request, body).await?;
                Box::pin(self.review(request, admitted, body)).await
            }
            Plan::Discovery(wanted) => {
                let (admitted, _) = self.admit((Life::Unary, false), &request, body).await?;
                Box::pin(self.discover(&wanted, request, admitted)).await
            }
            Plan::Local(local) => Ok(Served::local(self.local(local, &request.asked))),
            Plan::Refuse(fault) if planned.rule == Rule::UnknownCluster => {
                Box::pin(self.unknown(fault, &request, body)).await
            }
            Plan::Refuse(fault) => Err(fault),
        }
    }

    /// Whose it is, and what is to become of it.
    async fn planned(
        &mut self,
        started: Instant,
        head: Parts,
        asked: Box<ApiRequest>,
    ) -> Result<(Planned, Identified), Fault> {
        let edge = &self.edge.parts;
        let routing = edge.routing.load();
        let mut caller = self.identify(&head, &asked, &routing.snapshot).await?;
        if !asked.is_read() {
            caller = edge.routing.writing(caller);
        }
        self.connection.is_known();
        lagging::mend(self.edge, &caller, &routing, &asked);
        self.name(&caller);
        let deadline = started + timeout(&asked, edge.request_timeout);
        let Basis {
            routing,
            caller,
            planned,
        } = namespace::planned(self.edge, &asked, (routing, caller), deadline).await;
        if planned.unknown_kind {
            edge.routing.miss();
        }
        self.note(&planned);
        let mut request = Identified {
            injection: None,
            reach: Reach::of(&planned.plan),
            deadline,
            started,
            head,
            asked,
            routing,
            caller,
        };
        if !matches!(planned.plan, Plan::Local(_) | Plan::Refuse(_)) {
            self.draw(&mut request, matches!(planned.plan, Plan::FanOut(_)));
        }
        Ok((planned, request))
    }

    /// That there is no member of a name is told to people who might use it.
    async fn unknown(&self, fault: Fault, request: &Identified, body: Incoming) -> Result<Served, Fault> {
        if let (View::Explicit(cluster), Caller::Person { user, groups }) = (&request.asked.view, &request.caller) {
            let _held = self.admit((Life::Unary, false), request, body).await?;
            self.edge.preflight.access.may_know((user, groups), cluster).await?;
        }
        Err(fault)
    }

    async fn identify(&self, head: &Parts, asked: &ApiRequest, snapshot: &Snapshot) -> Result<Caller, Fault> {
        let edge = &self.edge.parts;
        let Connection { peer, last, .. } = self.connection;
        let sender = Sender {
            head,
            peer: peer.as_ref(),
            last,
            asked,
        };
        let identified = edge.identifier.identify(&sender, snapshot);
        identified.await.map_err(|fault| not_yet(asked, fault))
    }

    /// Waits for what the request may take; only then is its body there to be read.
    async fn admit(
        &self,
        (life, gathers): (Life, bool),
        request: &Identified,
        body: Incoming,
    ) -> Result<(Admitted, Body), Fault> {
        let long = life != Life::Unary;
        let body = Arriving::bounded(Passage::of(long, gathers), &request.head, body)?;
        let clusters = request.clusters();
        let admission = Admission {
            caller: &request.caller,
            asked: &request.asked,
            life,
            head: &request.head,
            bytes: body.bytes(),
            room: request.room(life),
            deadline: if long {
                request.started + LONG_HEAD_TIMEOUT
            } else {
                request.deadline
            },
            kept: Some(&self.connection.bounds),
            judging: request.judging(&clusters),
        };
        let edge = &self.edge.parts;
        if let Some(injection) = &request.injection {
            Box::pin(ordered::happens(edge, injection, &admission)).await?;
        }
        let admitted = edge.admit.admit(&admission).await?;
        // What is reserved for a body is not its client's for as long as it likes, whatever time-out it asks for. One that
        // is streamed ends with its request first, where that is not longer.
        let arrives = Instant::now() + edge.request_timeout;
        let arrives = if gathers {
            arrives.min(request.deadline)
        } else {
            arrives + TIMEOUT_GRACE
        };
        Ok((admitted, body.admitted(arrives)))
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
    async fn forward(
        &self,
        mut forward: Box<Forward>,
        request: Identified,
        mut admitted: Admitted,
        mut body: Body,
    ) -> Result<Served, Fault> {
        let replicated = self.checked(&mut forward, &request, &mut body).await?;
        admitted.asked(&body);
        let Identified {
            deadline,
            head,
            asked,
            routing,
            caller,
            injection,
            ..
        } = request;
        let Traffic { class, long, .. } = forward.traffic;
        // A followed log has no events that it could end between.
        let watch = class == TrafficClass::Watch && asked.verb == Verb::Watch;
        // Before it is sent: no swap from here on is missed.
        let replanner = &self.edge.replanner;
        let watched = long.then(|| replanner.watch(&forward, &asked, &caller, &routing));
        let ask = || forward.access().find_map(ProxyQuestion::of).map(Box::new);
        let right = long.then(ask).flatten();
        let deadline = (!long).then_some(deadline);
        let injection = self.edge.watch_injection(injection, &asked, &caller);
        let after = After::of(&caller, &asked, &head.headers, &forward);
        let leg = Leg {
            deadline,
            forward,
            asked,
            routing,
            caller,
            received: self.received.clone(),
            replanner: Some(replanner.clone()),
            running: false,
        };
        let sent = self.edge.sent((leg, head, body), after, replicated).await?;
        let Dispatched {
            mut response,
            seat,
            tunnel,
        } = sent;
        if let Some(injection) = injection.filter(|_| watch) {
            response = injection.whole(response);
        }
        Ok(Served {
            watch: watch && response.status() == StatusCode::OK,
            seat,
            long,
            deadline,
            watched,
            right,
            tunnel: tunnel.map(|tunnel| Box::new(Carried::Tunnel(tunnel))),
            ..Served::of(response, admitted)
        })
    }

    /// Asks all that the plan needs; what is to follow the request comes back.
    async fn checked(
        &self,
        forward: &mut Forward,
        request: &Identified,
        body: &mut Body,
    ) -> Result<Option<Box<Replicated>>, Fault> {
        let pending = self.pending(request);
        if !forward.needs.is_empty() {
            let checked = Box::pin(self.edge.preflight.check(forward, pending, body));
            let checked = checked.instrument(span::preflight("check")).await;
            checked.map_err(|fault| not_yet(&request.asked, fault))?;
        }
        if forward.replicas.is_none() {
            return Ok(None);
        }
        Box::pin(Replicated::of(self.edge, forward, pending, body)).await
    }

    /// For what is asked before the request itself.
    fn pending<'k>(&'k self, request: &'k Identified) -> Pending<'k> {
        Pending {
            head: &request.head,
            asked: &request.asked,
            caller: &request.caller,
            routing: &request.routing,
            received: self.received,
            deadline: request.deadline,
        }
    }

    /// To one of some members, once an answer or the body has told which.
    async fn choose(
        mut self,
        choose: Choose,
        mut request: Identified,
        admitted: Admitted,
        mut body: Body,
    ) -> Result<Served, Fault> {
        let preflight = &self.edge.preflight;
        let makes_namespace = choose.makes_namespace();
        let chosen = preflight.choose(choose, self.pending(&request), &mut body);
        let forward = chosen.instrument(span::preflight("choose")).await?;
        let cluster = forward.target.cluster.clone();
        self.completion.record.cluster = Some(cluster.clone());
        Span::current().record("clusters", &*cluster);
        if request.reach.election.is_none() {
            self.judge_chosen(&mut request, &forward).await?;
        }
        // What no rule takes is let through with a warning, and never becomes the shard's.
        if !makes_namespace || forward.warning.is_some() {
            return self.forward(forward, request, admitted, body).await;
        }
        let (asked, caller) = (request.asked.clone(), request.caller.clone());
        let mut served = self.forward(forward, request, admitted, body).await?;
        served.response = namespace::once_served(self.edge, &asked, &caller, &cluster, served.response).await;
        Ok(served)
    }

    /// To members of a shard, for one collection.
    async fn fan_out(self, plan: FanOut, mut request: Identified, admitted: Admitted) -> Result<Served, Fault> {
        let plan = self.unless_somewhere(plan, &request).await?;
        let long = plan.watch;
        let yaml = !long && reply::takes_yaml(&mut request.head.headers);
        let switch = match &request.asked.upgrade {
            Some(upgrade) if long && upgrade.protocol.eq_ignore_ascii_case("websocket") => {
                Some(Switch::of(&mut request.head)?)
            }
            _ => None,
        };
        let received = self.received.clone();
        let injection = self
            .edge
            .watch_injection(request.injection, &request.asked, &request.caller);
        let mut asking = Asking::new(*request.asked, &request.head, request.caller, received);
        asking.deadline = (!long).then_some(request.deadline);
        asking.injection = injection;
        if long {
            check_kept(&asking.headers)?;
        }
        // A member that is slow has its own time, and the others have theirs.
        let own = (request.deadline - request.started).min(self.edge.parts.request_timeout);
        let most = request.deadline + own;
        let deadline = (!long).then_some(if plan.legs.len() > 1 { most } else { request.deadline });
        let fan = Fan {
            plan,
            asking,
            routing: request.routing,
        };
        let overdue = Fault::Timeout {
            message: "the members did not begin their answers in time".to_owned(),
            cluster: fan
                .plan
                .legs
                .first()
                .map(|leg| leg.cluster().to_string())
                .unwrap_or_default(),
            sent: true,
        };
        let answered = self.edge.fanouts.run(fan);
        let response = match deadline {
            None => answered.await?,
            Some(deadline) => tokio::time::timeout_at(deadline, answered)
                .await
                .map_err(|_| overdue)??,
        };
        let response = if yaml { reply::in_yaml(response) } else { response };
        let (response, socket) = match switch {
            Some(switch) => switch.switch(response),
            None => (response, None),
        };
        // A watch drains and is replanned within.
        Ok(Served {
            long,
            deadline,
            tunnel: socket.map(|socket| Box::new(Carried::Socket(socket))),
            ..Served::of(response, admitted)
        })
    }

    fn classify(&mut self, head: &Parts) -> Result<ApiRequest, Fault> {
        check_size(head)?;
        classify::check_authority(&head.method, &head.uri, &head.headers, head.version)?;
        let asked = match &self.edge.parts.explicit_host {
            Some(suffix) => classify::classify_by_host(suffix, &head.method, &head.uri, &head.headers)?,
            None => classify::classify(&head.method, &head.uri, &head.headers)?,
        };
        self.completion.record.verb = Some(asked.verb);
        self.completion.names.resource = span::classified(&asked);
        Ok(asked)
    }

    fn note(&mut self, planned: &Planned) {
        span::planned(planned);
        let record = &mut self.completion.record;
        record.rule = Some(planned.rule);
        let audits = |forward: &Forward| forward.warning.is_some() && planned.rule != Rule::OtherLease;
        match &planned.plan {
            Plan::Forward(forward) => {
                record.class = Some(forward.traffic.class);
                record.cluster = Some(forward.target.cluster.clone());
                record.audited = audits(forward);
            }
            Plan::FanOut(fan) => {
                record.class = Some(if fan.watch {
                    TrafficClass::Watch
                } else {
                    TrafficClass::List
                });
                if let [leg] = fan.legs.as_slice() {
                    record.cluster = Some(leg.cluster().clone());
                }
                record.audited = fan.legs.iter().any(|leg| audits(&leg.forward));
            }
            Plan::Choose(choose) => {
                let mut all = choose.candidates.iter().map(|one| &one.forward);
                record.audited = all.clone().any(audits);
                record.class = all.next().map(|forward| forward.traffic.class);
            }
            Plan::DeleteEach(_) | Plan::Review(_) => record.class = Some(TrafficClass::Unary),
            Plan::Discovery(_) | Plan::Local(_) | Plan::Refuse(_) => {}
        }
    }

    fn name(&mut self, caller: &Caller) {
        let (name, shard) = match caller {
            Caller::Pod(view) => (view.user.clone(), view.shard().cloned()),
            Caller::Person { user, .. } => (user.as_str().into(), None),
        };
        span::identified(&name, shard.as_deref());
        let child = shard.as_deref().and_then(|shard| shard.rsplit_once('/'));
        let child = child.and_then(|(_, name)| ChildRole::of_name(name));
        if child.is_some()
            && let Caller::Pod(view) = caller
        {
            self.completion.record.operator = view.operator().into();
        }
        self.completion.record.child = child;
        self.completion.names.caller = Some(name);
        self.completion.names.shard = shard;
    }

    fn local(&self, answer: LocalAnswer, asked: &ApiRequest) -> Response<Bytes> {
        let (code, said) = health::answer(answer, asked, self.edge.parts.readiness.checks());
        health::text(code, said.into())
    }
}
