//! Tells a collector what the operator does, by OpenTelemetry: a span of each reconcile, one of each request in it, and a
//! `traceparent` with each request, so that whoever answers can go on with the trace.
//!
//! Without a collector nothing is recorded and nothing changes. Caller: `main`.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use kube::client::Body;
use opentelemetry::KeyValue;
use opentelemetry::propagation::{Injector, TextMapPropagator};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tower::{Layer, Service};
use tracing::field::Empty;
use tracing::{Instrument as _, Span, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use crate::greeting::NAME;

/// For the last spans; a collector that takes longer is down.
const LAST_SPANS: Duration = Duration::from_secs(3);

/// Where spans go; nowhere without a collector.
pub(crate) struct Traces(Option<SdkTracerProvider>);

impl Traces {
    /// `endpoint`: of the collector, if there is one.
    pub(crate) fn start(endpoint: Option<&str>) -> anyhow::Result<Self> {
        let Some(endpoint) = endpoint.filter(|endpoint| !endpoint.is_empty()) else {
            return Ok(Self(None));
        };
        let exporter = SpanExporter::builder().with_tonic().with_endpoint(endpoint).build()?;
        let named = Resource::builder_empty().with_attribute(KeyValue::new("service.name", NAME));
        let provider = SdkTracerProvider::builder()
            .with_resource(named.build())
            .with_batch_exporter(exporter)
            .build();
        Ok(Self(Some(provider)))
    }

    /// For the layer of `tracing`.
    pub(crate) fn tracer(&self) -> Option<SdkTracer> {
        self.0.as_ref().map(|provider| provider.tracer(NAME))
    }

    /// Sends what is left.
    pub(crate) async fn stop(self) {
        let Some(provider) = self.0 else { return };
        // Blocking, and the exporter needs this thread meanwhile.
        let stopping = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(LAST_SPANS));
        if let Ok(Err(error)) = stopping.await {
            tracing::warn!(%error, "the last spans were not sent");
        }
    }
}

/// Makes every request of a client a span, and tells its server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Traced;

/// A client's service with spans.
#[derive(Debug, Clone)]
pub(crate) struct TracedService<S>(S);

impl<S> Layer<S> for Traced {
    type Service = TracedService<S>;

    fn layer(&self, inner: S) -> TracedService<S> {
        TracedService(inner)
    }
}

impl<S, B> Service<Request<Body>> for TracedService<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let span = info_span!(
            "request",
            otel.name = request.method().as_str(),
            otel.kind = "client",
            otel.status_code = Empty,
            http.request.method = request.method().as_str(),
            url.path = request.uri().path(),
            server.address = request.uri().host(),
            http.response.status_code = Empty,
        );
        let context = span.context();
        TraceContextPropagator::new().inject_context(&context, &mut Headers(request.headers_mut()));
        let answer = self.0.call(request);
        let told = span.clone();
        let answer = async move {
            let answer = answer.await;
            tell(&told, answer.as_ref().ok());
            answer
        };
        Box::pin(answer.instrument(span))
    }
}

fn tell<B>(span: &Span, answer: Option<&Response<B>>) {
    if let Some(answer) = answer {
        span.record("http.response.status_code", answer.status().as_u16());
    }
    if answer.is_none_or(|answer| answer.status().is_server_error()) {
        span.record("otel.status_code", "ERROR");
    }
}

struct Headers<'a>(&'a mut HeaderMap);

impl Injector for Headers<'_> {
    fn set(&mut self, key: &str, value: String) {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(key), HeaderValue::try_from(value)) {
            self.0.insert(name, value);
        }
    }
}
