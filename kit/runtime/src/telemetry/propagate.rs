//! W3C trace context on HTTP headers, both directions.
//!
//! Uses the W3C format always, whatever propagator is global. Callers: `edge` and `upstream` of the router, both
//! ends of the control streams.

use std::sync::atomic::{AtomicBool, Ordering};

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator};
use opentelemetry::trace::{SpanContext, TraceContextExt, TraceState};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Whether spans are exported. One per process, as its subscriber is; set before that is.
static EXPORTED: AtomicBool = AtomicBool::new(false);

/// Of a `tracestate`: what W3C asks everybody to pass on. It goes out with every span of the trace.
const MAX_STATE_BYTES: usize = 512;

/// Spans go to a collector from now on.
pub(super) fn spans_are_exported() {
    EXPORTED.store(true, Ordering::Relaxed);
}

/// Whether this process has a collector for its spans, by which [`request_span!`](crate::request_span) goes.
pub fn exports_spans() -> bool {
    EXPORTED.load(Ordering::Relaxed)
}

/// A span that there is one of for each request or more, with the fields of `tracing::info_span!`: of level info where spans
/// are exported, else of level debug. Nobody would see it there but in the text of log lines, which name what they are about
/// themselves, and to keep it and to write its fields costs a small request as much as a stage.
#[macro_export]
macro_rules! request_span {
    ($($field:tt)*) => {
        if $crate::telemetry::exports_spans() {
            tracing::info_span!($($field)*)
        } else {
            tracing::debug_span!($($field)*)
        }
    };
}

/// The caller's context; an empty one if there is none or it is malformed.
pub fn extract_context(headers: &HeaderMap) -> Context {
    TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(headers))
}

/// As [`extract_context`], of somebody who must not decide what is recorded here: the trace is theirs, whether it is
/// sampled is drawn, in this part of all cases. `None`: nothing is recorded here, and the context crosses as it is. A
/// `tracestate` that is longer than anybody must pass on is left out: it would be recorded with every span.
pub fn extract_untrusted(headers: &HeaderMap, sampling: Option<f64>) -> Context {
    let context = extract_context(headers);
    let Some(ratio) = sampling else { return context };
    let theirs = context.span().span_context().clone();
    if !theirs.is_valid() {
        return context;
    }
    let flags = theirs.trace_flags().with_sampled(rand::random::<f64>() < ratio);
    let (trace, span) = (theirs.trace_id(), theirs.span_id());
    let state = theirs.trace_state();
    let state = if state.header().len() > MAX_STATE_BYTES {
        TraceState::NONE
    } else {
        state.clone()
    };
    let ours = SpanContext::new(trace, span, flags, true, state);
    Context::new().with_remote_span_context(ours)
}

/// Writes `context` over whatever trace headers there are. An empty context leaves them as they are.
pub fn inject_context(context: &Context, headers: &mut HeaderMap) {
    TraceContextPropagator::new().inject_context(context, &mut HeadersMut(headers));
}

/// The context to send on from within `span`: its own if spans are recorded, else `received` untouched, so that a
/// trace of our callers crosses a program that has no collector.
pub fn context_of(span: &Span, received: &Context) -> Context {
    let own = span.context();
    if own.span().span_context().is_valid() {
        own
    } else {
        received.clone()
    }
}

/// The trace of `span`, else of what was received, if it is kept: for access lines and exemplars.
pub fn kept_trace_id(span: &Span, received: &Context) -> Option<String> {
    let context = context_of(span, received);
    let context = context.span().span_context().clone();
    (context.is_valid() && context.is_sampled()).then(|| context.trace_id().to_string())
}

/// A child of the current span, for something that takes time: made only where the current one is recorded, else none,
/// which costs nothing.
pub fn child(make: impl FnOnce() -> Span) -> Span {
    let current = Span::current().context();
    if current.span().span_context().is_sampled() {
        make()
    } else {
        Span::none()
    }
}

/// Something happened in `span`, at this moment. Costs nothing where the span is not recorded.
pub fn event(span: &Span, name: &'static str, attributes: Vec<KeyValue>) {
    span.add_event(name, attributes);
}

/// Calls `span` something better than it was called when it began; recording `otel.name` does nothing by then.
pub fn rename(span: &Span, name: String) {
    span.context().span().update_name(name);
}

/// Makes `span` a child of `received`. To be called before the span is entered.
pub fn set_parent(span: &Span, received: Context) {
    // It fails without span layer, or for a span that has begun; the trace is then cut here, no more.
    let _ = span.set_parent(received);
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}

struct HeadersMut<'a>(&'a mut HeaderMap);

impl Injector for HeadersMut<'_> {
    fn set(&mut self, key: &str, value: String) {
        let (Ok(name), Ok(value)) = (HeaderName::try_from(key), HeaderValue::try_from(value)) else {
            return;
        };
        if !value.is_empty() {
            self.0.insert(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn crosses_headers() {
        let mut headers = HeaderMap::new();
        headers.insert("traceparent", HeaderValue::from_static(PARENT));
        headers.insert("tracestate", HeaderValue::from_static("vendor=1"));
        let context = extract_context(&headers);
        assert!(context.span().span_context().is_remote());

        let mut back = HeaderMap::new();
        back.insert("traceparent", HeaderValue::from_static("overwritten"));
        inject_context(&context, &mut back);
        assert_eq!(back, headers);
    }

    #[test]
    fn clients_do_not_choose_what_is_sampled() {
        for (sent, ratio, sampled) in [(PARENT, 0.0, false), (&PARENT.replace("-01", "-00"), 1.0, true)] {
            let mut headers = HeaderMap::new();
            headers.insert("traceparent", HeaderValue::from_str(sent).unwrap());
            let context = extract_untrusted(&headers, Some(ratio));
            let span = context.span().span_context().clone();
            assert_eq!((span.is_sampled(), span.is_remote()), (sampled, true), "{sent}");
            assert_eq!(span.trace_id().to_string(), PARENT[3..35], "it is still their trace");
            let crossing = extract_untrusted(&headers, None);
            assert_eq!(
                crossing.span().span_context().is_sampled(),
                !sampled,
                "nobody records here"
            );
        }
    }

    #[test]
    fn what_is_recorded_with_every_span_is_bounded() {
        for (length, kept) in [(500, true), (520, false)] {
            let half = "v".repeat(length / 2 - 4);
            let state = format!("aa={half},bb={half}");
            let mut headers = HeaderMap::new();
            headers.insert("traceparent", HeaderValue::from_static(PARENT));
            headers.insert("tracestate", HeaderValue::from_str(&state).unwrap());
            let context = extract_untrusted(&headers, Some(1.0));
            let span = context.span().span_context().clone();
            assert_eq!(span.trace_id().to_string(), PARENT[3..35]);
            assert_eq!(!span.trace_state().header().is_empty(), kept, "{}", state.len());
        }
    }

    #[test]
    fn nothing_and_nonsense_are_no_context() {
        for value in [
            "",
            "nonsense",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("traceparent", HeaderValue::from_static(value));
            let context = extract_context(&headers);
            assert!(!context.span().span_context().is_valid(), "{value}");
            let mut out = HeaderMap::new();
            inject_context(&context, &mut out);
            assert!(out.is_empty(), "{out:?}");
        }
    }

    #[test]
    fn without_span_layer_the_callers_context_goes_on() {
        let mut headers = HeaderMap::new();
        headers.insert("traceparent", HeaderValue::from_static(PARENT));
        let received = extract_context(&headers);
        let span = tracing::info_span!("request");
        set_parent(&span, received.clone());
        let mut out = HeaderMap::new();
        inject_context(&context_of(&span, &received), &mut out);
        assert_eq!(out["traceparent"], PARENT);
    }
}
