//! Single spans of what was not sampled when it began and turned out to be worth keeping.
//!
//! They take the way of all others to the collector, with the ids that were told to others at the time: whoever was asked
//! knows the same trace. Which are worth it, and how many may be, the caller decides. Caller: the router's `edge`.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceContextExt};
use opentelemetry::{Context, InstrumentationScope, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{BatchSpanProcessor, SpanData, SpanEvents, SpanLinks, SpanProcessor};
use tracing::Span;

use super::context_of;

/// Exports spans, those that were sampled and single ones that were not. Clones export to the same place.
#[derive(Debug, Clone)]
pub struct Keeper {
    processor: Arc<BatchSpanProcessor>,
    scope: InstrumentationScope,
}

/// The ids of a span that is not recorded.
#[derive(Debug, Clone)]
pub struct Unsampled {
    context: SpanContext,
    /// The caller's span, if it sent one.
    parent: SpanId,
}

impl Unsampled {
    /// `None` of a span that is recorded already, or where nothing is.
    pub fn of(span: &Span, received: &Context) -> Option<Self> {
        let own = context_of(span, &Context::new());
        let context = own.span().span_context().clone();
        let parent = received.span().span_context().span_id();
        (context.is_valid() && !context.is_sampled()).then_some(Self { context, parent })
    }

    /// As hex.
    pub fn trace_id(&self) -> String {
        self.context.trace_id().to_string()
    }
}

/// A server's span that is over, to be exported.
#[derive(Debug)]
pub struct KeptSpan {
    /// What it would have been.
    pub ids: Unsampled,
    /// As the span would have been called.
    pub name: String,
    /// Ends now.
    pub took: Duration,
    /// Bounded by the caller, in number and length.
    pub attributes: Vec<KeyValue>,
    /// Why it is an error, if it is one.
    pub error: Option<String>,
}

impl Keeper {
    pub(super) fn new(mut processor: BatchSpanProcessor, resource: &Resource, name: &'static str) -> Self {
        processor.set_resource(resource);
        Self {
            processor: Arc::new(processor),
            scope: InstrumentationScope::builder(name).build(),
        }
    }

    /// Exports it with the next batch. Waits for nothing.
    pub fn keep(&self, span: KeptSpan) {
        let KeptSpan {
            ids: Unsampled { context, parent },
            name,
            took,
            attributes,
            error,
        } = span;
        let end_time = SystemTime::now();
        let flags = context.trace_flags().with_sampled(true);
        let state = context.trace_state().clone();
        self.processor.on_end(SpanData {
            span_context: SpanContext::new(context.trace_id(), context.span_id(), flags, false, state),
            parent_span_id: parent,
            parent_span_is_remote: parent != SpanId::INVALID,
            span_kind: SpanKind::Server,
            name: name.into(),
            start_time: end_time.checked_sub(took).unwrap_or(end_time),
            end_time,
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: error.map_or(Status::Unset, Status::error),
            instrumentation_scope: self.scope.clone(),
        });
    }
}

/// The provider's own way.
impl SpanProcessor for Keeper {
    fn on_start(&self, span: &mut opentelemetry_sdk::trace::Span, context: &Context) {
        self.processor.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        self.processor.on_end(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.processor.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.processor.shutdown_with_timeout(timeout)
    }
}
