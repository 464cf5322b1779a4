//! The server span of a request, and what the stages put on it.
//!
//! Attribute names are OpenTelemetry's where it has one. The span is called by what was asked, `list greetings.example.com`, or
//! by its method alone where that is no resource. The span of what is long ends with the answer's head: spans are
//! exported when they end, and a watch may last for hours. What clients write is cut before it is recorded. Caller: `edge`.

use http::{HeaderMap, Method, Request, StatusCode};
use opentelemetry::{Context, KeyValue};
use portolan_runtime::request_span;
use portolan_runtime::telemetry::{self, short};
use tracing::{Span, field};

use crate::decision::injection::Injection;
use crate::decision::plan::{Plan, Planned};
use crate::value::classify::ApiRequest;
use crate::value::fault::Fault;

/// Whoever invents methods does not name spans by them.
pub(super) fn method(method: &Method) -> &str {
    let known = [
        Method::GET,
        Method::HEAD,
        Method::POST,
        Method::PUT,
        Method::PATCH,
        Method::DELETE,
        Method::OPTIONS,
        Method::CONNECT,
        Method::TRACE,
    ];
    if known.contains(method) {
        method.as_str()
    } else {
        "_OTHER"
    }
}

/// The trace context that the client sent, if any. Clients do not choose what is recorded.
pub(super) fn received(headers: &HeaderMap, sampling: Option<f64>) -> Context {
    if headers.contains_key("traceparent") {
        telemetry::extract_untrusted(headers, sampling)
    } else {
        Context::new()
    }
}

pub(super) fn request<B>(request: &Request<B>, received: &Context) -> Span {
    let span = request_span!(
        "request",
        otel.name = method(request.method()),
        otel.kind = "server",
        otel.status_code = field::Empty,
        otel.status_description = field::Empty,
        http.request.method = method(request.method()),
        url.path = short(request.uri().path()),
        http.response.status_code = field::Empty,
        caller = field::Empty,
        shard = field::Empty,
        verb = field::Empty,
        resource = field::Empty,
        plan = field::Empty,
        clusters = field::Empty,
        portolan.fault = field::Empty,
        portolan.policy = field::Empty,
    );
    telemetry::set_parent(&span, received.clone());
    span
}

/// Returns the resource's name.
pub(super) fn classified(request: &ApiRequest) -> Option<String> {
    let span = Span::current();
    if span.is_disabled() {
        return None;
    }
    span.record("verb", request.verb.as_str());
    let mut kind = request.resource.as_ref()?.kind();
    kind.truncate(short(&kind).len());
    telemetry::rename(&span, format!("{} {kind}", request.verb.as_str()));
    span.record("resource", &kind);
    Some(kind)
}

pub(super) fn identified(caller: &str, shard: Option<&str>) {
    let span = Span::current();
    span.record("caller", short(caller));
    if let Some(shard) = shard {
        span.record("shard", shard);
    }
}

pub(super) fn planned(planned: &Planned) {
    let span = Span::current();
    span.record("plan", planned.rule.as_str());
    match &planned.plan {
        Plan::Forward(forward) => {
            span.record("clusters", &*forward.target.cluster);
        }
        Plan::FanOut(fan) if !span.is_disabled() => {
            let clusters: Vec<&str> = fan.clusters().map(|cluster| &**cluster).collect();
            span.record("clusters", short(&clusters.join(",")));
        }
        Plan::FanOut(_)
        | Plan::Choose(_)
        | Plan::DeleteEach(_)
        | Plan::Discovery(_)
        | Plan::Review(_)
        | Plan::Local(_)
        | Plan::Refuse(_) => {}
    }
}

/// Attribute that names ordered faults.
pub(super) const PORTOLAN_FAULT: &str = "portolan.fault";

/// Faults were ordered for the request, by these names.
pub(super) fn injected(names: &str, injection: &Injection) {
    let span = Span::current();
    span.record(PORTOLAN_FAULT, short(names));
    let mut said = vec![KeyValue::new(PORTOLAN_FAULT, short(names).to_owned())];
    if !injection.delayed_by.is_empty() {
        let milliseconds = i64::try_from(injection.delay.as_millis()).unwrap_or(i64::MAX);
        said.push(KeyValue::new("delay_ms", milliseconds));
    }
    if let Some((code, _)) = &injection.abort {
        said.push(KeyValue::new("abort", i64::from(code.as_u16())));
    }
    telemetry::event(&span, "faults injected", said);
}

/// Of what is asked before the request may leave.
pub(super) fn preflight(step: &'static str) -> Span {
    telemetry::child(|| tracing::info_span!("preflight", step))
}

pub(super) fn answered(span: &Span, status: StatusCode) {
    span.record("http.response.status_code", status.as_u16());
    if status.is_server_error() {
        span.record("otel.status_code", "ERROR");
    }
}

/// Faults carry no secrets: they are what the client is told.
pub(super) fn failed(span: &Span, fault: &Fault) {
    span.record("otel.status_description", short(&fault.to_string()));
    if let Fault::Policy(refusal) = fault {
        span.record("portolan.policy", &*refusal.rule);
    }
}
