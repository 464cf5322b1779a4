//! One leg on the wire: breaker, attempts, deadline, and the leg's client span.

use std::pin::{Pin, pin};
use std::time::Duration;

use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http::{HeaderMap, Request, Response};
use opentelemetry::Context;
use portolan_runtime::request_span;
use portolan_runtime::telemetry::{self, short};
use tokio::time::Instant;
use tokio::time::error::Elapsed;
use tracing::{Instrument as _, Span, field};

use super::acting;
use super::metrics::Told;
use super::outcome::{End, Kind, SILENCE, fault_of, judge};
use super::received::received;
use super::silence::Waiting;
use super::{LONG_HEAD_TIMEOUT, Run, settle};
use crate::resource::breaker::{BesidePass, Change, Outcome, Pass, Refused, Size, State, Took};
use crate::resource::upstream::retry::MAX_ATTEMPTS;
use crate::resource::upstream::{Body, Broke, ConnectError, Upstream, UpstreamError};
use crate::value::classify::{ResourceRequest, Verb};
use crate::value::fault::Fault;
use crate::value::snapshot::Caller;
use crate::value::traffic::{Effect, TrafficClass};

/// Without an answer, and without a connection. A wrong suspicion costs the member one `/readyz`.
const SUSPECT_AFTER: Duration = Duration::from_secs(2);
/// Before a retry: long enough for a server that restarts a listener, short enough for who waits.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// Sends `head` and `body`, which are the member's already but for trace context.
pub(super) async fn send(run: &Run, mut head: Parts, body: Body) -> Result<Response<Body>, Fault> {
    let span = leg_span(run, &head);
    inject(&span, &run.leg.received, &mut head);
    let trace_id = telemetry::kept_trace_id(&span, &run.leg.received);
    let mut seen = run.metrics.begin(&run.leg, trace_id);
    // Boxed: what a request's own future holds is there for every one that is open.
    let attempts = Box::pin(attempts(run, (head, body), &mut seen));
    let outcome = attempts.instrument(span.clone()).await;
    seen.over(outcome.as_ref().ok().map(Response::status));
    let outcome = outcome.and_then(|response| received(&run.leg, response));
    let outcome = match outcome {
        Ok(response) => acting::told(run, response).await,
        refused => refused,
    };
    match &outcome {
        Ok(response) => {
            span.record("http.response.status_code", response.status().as_u16());
            if response.status().is_server_error() {
                span.record("otel.status_code", "ERROR");
            }
        }
        Err(fault) => {
            span.record("otel.status_code", "ERROR");
            span.record("otel.status_description", short(&fault.to_string()));
        }
    }
    outcome
}

pub(super) fn leg_span(run: &Run, head: &Parts) -> Span {
    let forward = &run.leg.forward;
    let span = request_span!(
        "leg",
        otel.name = field::Empty,
        otel.kind = "client",
        otel.status_code = field::Empty,
        otel.status_description = field::Empty,
        http.request.method = short(head.method.as_str()),
        http.response.status_code = field::Empty,
        peer.service = &*forward.target.cluster,
        cluster = &*forward.target.cluster,
        class = forward.traffic.class.as_str(),
        breaker = field::Empty,
        attempts = field::Empty,
    );
    if !span.is_disabled() {
        let asked = &run.leg.asked;
        let what = asked.resource.as_ref().map(ResourceRequest::kind);
        let words = [
            Some(&*forward.target.cluster),
            Some(asked.verb.as_str()),
            what.as_deref(),
        ];
        let name = words.into_iter().flatten().collect::<Vec<_>>().join(" ");
        span.record("otel.name", short(&name));
    }
    span
}

pub(super) fn inject(span: &Span, received: &Context, head: &mut Parts) {
    telemetry::inject_context(&telemetry::context_of(span, received), &mut head.headers);
}

async fn attempts(run: &Run, (head, body): (Parts, Body), seen: &mut Told) -> Result<Response<Body>, Fault> {
    let forward = &run.leg.forward;
    let retries = &run.upstream.retries;
    retries.earn();
    // A body can be sent once; reads have none.
    let again = (forward.traffic.is_read() && matches!(body, Body::Empty)).then(|| head.clone());
    let mut request = Request::from_parts(head, body);
    for attempt in 1.. {
        let pass = run.pass_breaker()?;
        seen.asked();
        let error = match attempt_once(run, pass, request).await? {
            Ok(response) => return Ok(response),
            Err(error) => error,
        };
        let Some(again) = &again else {
            return Err(fault_of(forward, &error));
        };
        if attempt >= MAX_ATTEMPTS || !is_retryable(&error) || !retries.spend() {
            return Err(fault_of(forward, &error));
        }
        Span::current().record("attempts", attempt + 1);
        tracing::debug!(cluster = %run.upstream.cluster, %error, attempt, "sending a read again");
        tokio::time::sleep(RETRY_AFTER * attempt).await;
        request = Request::from_parts(again.clone(), Body::Empty);
    }
    Err(Fault::Internal("attempts are counted".to_owned()))
}

/// Reads only. What took its full time already is not tried again: the client is better served by an answer.
fn is_retryable(error: &UpstreamError) -> bool {
    match error {
        UpstreamError::Refused { .. } => true,
        // What the request itself brought about it would bring about again, from the budget of all.
        UpstreamError::Lost { broke, .. } => *broke != Broke::Request,
        UpstreamError::Connect { source, .. } => {
            matches!(
                source,
                ConnectError::Tcp { .. }
                    | ConnectError::Untried { .. }
                    | ConnectError::Cut { .. }
                    | ConnectError::Tls { .. }
                    | ConnectError::Http { .. }
            )
        }
        UpstreamError::Withdrawn(_) | UpstreamError::Body(_) | UpstreamError::Request(_) => false,
    }
}

impl Run {
    pub(super) fn pass_breaker(&self) -> Result<Pass, Fault> {
        let forward = &self.leg.forward;
        let beside = self.ask_beside()?;
        let breaker = self.upstream.breaker(forward.traffic.class);
        let pass = breaker.admit(Some(&self.leg.caller), self.leg.probe());
        let pass = pass.map_err(|refused| {
            refused_span(&self.upstream, &refused);
            refusal(&self.upstream, forward.traffic.class, &refused)
        });
        let mut pass = pass.map_err(|message| forward.unavailable(message))?;
        pass.beside(beside);
        self.upstream.changed(forward.traffic.class, pass.began());
        Ok(pass)
    }

    /// Asks the breakers that CircuitBreakers give the caller for this member; renewals of its own election are none of their
    /// business.
    fn ask_beside(&self) -> Result<Vec<BesidePass>, Fault> {
        let (leg, forward) = (&self.leg, &self.leg.forward);
        let Caller::Pod(view) = &leg.caller else {
            return Ok(Vec::new());
        };
        if forward.is_priority() {
            return Ok(Vec::new());
        }
        // As the leg's snapshot has it, not as it was when a watch began.
        let snapshot = &leg.routing.snapshot;
        let view = snapshot.callers.get(&view.key).filter(|view| view.policies.is_some());
        let Some(view) = view else {
            return Ok(Vec::new());
        };
        let collection = forward.traffic.effect == Effect::Collection;
        let asked = leg
            .routing
            .policies
            .ask_breakers((view, snapshot.generation), &forward.target.cluster, collection);
        asked.map_err(|fault| {
            Span::current().record("breaker", State::Open.as_str());
            fault.of_request(|| leg.asked.about())
        })
    }

    /// Tells the breaker of an answer's head or of an error.
    pub(super) fn tell(&self, pass: Pass, outcome: &Result<Response<Body>, UpstreamError>) {
        let class = self.leg.forward.traffic.class;
        tell(&self.upstream, class, pass, (Kind::of(&self.leg), outcome));
    }
}

/// A span of no length: who reads the trace sees at once that the member was not asked.
pub(super) fn refused_span(upstream: &Upstream, refused: &Refused) {
    let _over = telemetry::child(|| {
        tracing::info_span!(
            "breaker refusal",
            otel.name = format!("breaker of {}", upstream.cluster),
            otel.status_code = "ERROR",
            state = refused.state.as_str(),
            reason = %refused.reason,
            retry_in_ms = u64::try_from(refused.retry_in.as_millis()).unwrap_or(u64::MAX),
        )
    });
}

/// The span of a member that is asked and has not answered yet: from the first byte on the way there to the head.
pub(super) fn first_byte(upstream: &Upstream) -> Span {
    telemetry::child(|| tracing::info_span!("first byte", otel.name = format!("first byte of {}", upstream.cluster)))
}

/// Why nothing may be sent.
pub(super) fn refusal(upstream: &Upstream, class: TrafficClass, refused: &Refused) -> String {
    Span::current().record("breaker", State::Open.as_str());
    let last = upstream.last_failure();
    let last = last.map(|why| format!("; last: {why}")).unwrap_or_default();
    format!(
        "member cluster {} is not asked for now: its {} breaker is {} ({}); the next try is in {:.0?}{last}",
        upstream.cluster,
        class.as_str(),
        refused.state.as_str(),
        refused.reason,
        refused.retry_in
    )
}

/// Tells the breaker, and everybody else when that changed its state.
pub(super) fn tell<T>(
    upstream: &Upstream,
    class: TrafficClass,
    pass: Pass,
    (kind, outcome): (Kind, &Result<Response<T>, UpstreamError>),
) {
    match outcome {
        Ok(response) => {
            upstream.heard();
            let judged = judge(kind, &End::Head(response.status(), response.headers()));
            told(upstream, class, (pass, judged), &response.status());
        }
        Err(error) => told(upstream, class, (pass, judge(kind, &End::Error(error))), error),
    }
}

/// As [`tell`], of what was judged already.
pub(super) fn told(
    upstream: &Upstream,
    class: TrafficClass,
    (pass, outcome): (Pass, Outcome),
    why: &dyn std::fmt::Display,
) {
    let change = pass.record(outcome);
    if outcome.is_failure() {
        upstream.failed(why);
    }
    match outcome {
        Outcome::Success => upstream.answers(class),
        Outcome::Unreachable => upstream.suspect(),
        _ => {}
    }
    match change {
        // An event within the leg's span: the trace of the request that tipped the breaker shows it.
        Some(Change {
            transition,
            of_caller: false,
        }) => upstream.changed(class, Some(transition)),
        Some(Change { transition, .. }) => {
            let (cluster, class, to) = (&*upstream.cluster, class.as_str(), transition.to.as_str());
            tracing::info!(cluster, class, to, reason = %transition.why, last = %why, "breaker of one caller changed");
        }
        None => {}
    }
}

/// One attempt. The outer error ends the leg, the inner one may be tried again.
async fn attempt_once(
    run: &Run,
    pass: Pass,
    request: Request<Body>,
) -> Result<Result<Response<Body>, UpstreamError>, Fault> {
    let watch = run.leg.asked.verb == Verb::Watch;
    let patient = run.leg.is_patient();
    let mut waiting = Waiting::new(
        &run.upstream.cluster,
        pass,
        request.body().delivered(),
        Kind::of(&run.leg),
        patient,
    );
    // Writes take as long as the webhooks of whoever writes; what may be silent has no pace.
    let paced = run.leg.forward.traffic.is_read() && !patient;
    let patience = if watch {
        // It has waited for its turn within the same time; but not so long that its member would be blamed for that.
        run.head_until.max(Instant::now() + SILENCE)
    } else {
        Instant::now() + LONG_HEAD_TIMEOUT
    };
    let until = run.leg.deadline.map_or(patience, |deadline| deadline.min(patience));
    let mut sending = pin!(deliver(run, request));
    let going_on = || {
        let change = paced.then(|| waiting.goes_on(run.late.now())).flatten();
        run.upstream.changed(run.leg.forward.traffic.class, change);
    };
    let outcome = match within(&run.upstream, until, sending.as_mut(), going_on).await {
        Ok(outcome) => outcome,
        Err(_) if watch || run.leg.deadline == Some(until) => return Err(timed_out(run, Some(waiting))),
        Err(_) => {
            // The breaker does not wait for it any longer: it may be its only probe.
            drop(waiting);
            let outcome = match run.leg.deadline {
                None => sending.await,
                Some(deadline) => tokio::time::timeout_at(deadline, sending)
                    .await
                    .map_err(|_| timed_out(run, None))?,
            };
            return Ok(outcome.map(|response| limited(run, response)));
        }
    };
    if let Some((mut pass, took)) = waiting.over() {
        if let Ok(response) = &outcome
            && paced
        {
            let late = run.late.now();
            pass.took(Took { time: took, late }, Size::of(length(response.headers())));
        }
        run.tell(pass, &outcome);
    }
    Ok(outcome.map(|response| limited(run, response)))
}

/// Bytes of an answer, if its head tells.
fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Awaits what the member is to answer. One that says nothing for a while may not be there: the router looks, and who waits on
/// is told so.
pub(super) async fn suspecting<T>(
    upstream: &Upstream,
    mut answer: Pin<&mut impl Future<Output = T>>,
    going_on: impl FnOnce(),
) -> T {
    match early(upstream, answer.as_mut(), going_on).await {
        Some(answer) => answer,
        None => answer.await,
    }
}

/// The same up to a time. One timer after the other: most answers are here before the first.
async fn within<T>(
    upstream: &Upstream,
    until: Instant,
    mut answer: Pin<&mut impl Future<Output = T>>,
    going_on: impl FnOnce(),
) -> Result<T, Elapsed> {
    if Instant::now() + SUSPECT_AFTER < until
        && let Some(answer) = early(upstream, answer.as_mut(), going_on).await
    {
        return Ok(answer);
    }
    tokio::time::timeout_at(until, answer).await
}

/// The answer, if it comes before anybody wonders where it is.
async fn early<T>(
    upstream: &Upstream,
    answer: Pin<&mut impl Future<Output = T>>,
    going_on: impl FnOnce(),
) -> Option<T> {
    if let Ok(answer) = tokio::time::timeout(SUSPECT_AFTER, answer).await {
        return Some(answer);
    }
    upstream.suspect();
    going_on();
    None
}

/// Sends what may still be sent once there is a connection for it. A member carries out a write when it has all of its
/// body, so one whose client takes its time is taken back when a swap meanwhile plans it otherwise.
async fn deliver(run: &Run, request: Request<Body>) -> Result<Response<Body>, UpstreamError> {
    let (leg, forward) = (&run.leg, &run.leg.forward);
    let slot = run.upstream.slot(forward.traffic.long, forward.is_priority()).await?;
    let slot = slot.patient(!leg.is_prompt());
    let delivered = request.body().delivered();
    let swaps = leg.swaps().filter(|_| !delivered.is_whole());
    let write = leg.leave()?;
    let exchange = run.upstream.exchange(slot, request);
    let mut exchange = pin!(exchange.instrument(first_byte(&run.upstream)));
    let outcome = match swaps {
        None => exchange.await,
        Some(mut swaps) => {
            let withdrawn = async {
                while swaps.changed().await.is_ok() && !delivered.is_whole() {
                    if let Err(withdrawn) = leg.still() {
                        return withdrawn;
                    }
                }
                std::future::pending().await
            };
            tokio::select! {
                biased;
                outcome = exchange.as_mut() => outcome,
                // What becomes of what has left is not known: it is not settled.
                withdrawn = withdrawn => return Err(withdrawn),
            }
        }
    };
    settle(write, &outcome);
    outcome
}

/// The deadline is for the whole answer.
fn limited(run: &Run, mut response: Response<Body>) -> Response<Body> {
    if response.status().is_success() {
        run.upstream.answered();
    }
    if let (Some(deadline), Body::Member(stream)) = (run.leg.deadline, response.body_mut()) {
        stream.set_deadline(deadline);
    }
    response
}

fn timed_out(run: &Run, waiting: Option<Waiting<'_>>) -> Fault {
    let message = format!("member cluster {} did not answer in time", run.upstream.cluster);
    if let Some(silence) = waiting.and_then(Waiting::timed_out) {
        told(&run.upstream, run.leg.forward.traffic.class, silence, &message);
    }
    if run.leg.asked.verb == Verb::Watch {
        // Nothing can have changed by it, and an informer lists anew after anything but 429.
        return run.leg.forward.unavailable(message);
    }
    Fault::Timeout {
        message,
        cluster: run.upstream.cluster.to_string(),
        sent: true,
    }
}
