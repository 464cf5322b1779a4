//! Logs and traces: set up once, filter changeable at run time, spans to a collector, W3C context on the wire.
//!
//! Logs go to stderr, as text or JSON, access lines of a server in batches. Spans go by OTLP gRPC in batches from a thread of their own; a collector
//! that is down costs dropped spans and one warning, never a wait. Not here: metrics (`metrics`), which spans there
//! are. Callers: `main` first thing; request and stream code for `propagate`.

use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{ExporterBuildError, Protocol, RetryPolicy, SpanExporter, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{BatchSpanProcessor, Sampler, SdkTracerProvider};
use parking_lot::Mutex;
use prometheus_client::registry::Registry as Metrics;
use thiserror::Error;
use tonic::transport::ClientTlsConfig;
use tracing::Dispatch;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

mod access;
mod batch;
mod count;
mod export;
mod fields;
mod kept;
mod line;
mod propagate;

pub use batch::ACCESS;
pub use kept::{Keeper, KeptSpan, Unsampled};
pub use propagate::{
    child, context_of, event, exports_spans, extract_context, extract_untrusted, inject_context, kept_trace_id, rename,
    set_parent,
};

use count::{CountEvents, EventCounts};
use export::{ExportCounts, QuietExporter};

/// Programs' own lifecycle at info; libraries only when degraded.
pub const DEFAULT_LOG_LEVEL: &str = "info,h2=warn,hyper=warn,tower=warn,rustls=warn,kube=warn";
/// Share of the traces we start ourselves; a caller's decision is always followed. One in ten keeps the cost of an
/// idle fleet's watches low and still shows every path within minutes.
pub const DEFAULT_TRACE_SAMPLE_RATIO: f64 = 0.1;
/// Time for one export, and for the last flush: a collector that takes longer is down.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(3);
/// A restart of the collector is bridged by the queue, not by trying longer.
const EXPORT_RETRIES: usize = 1;
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Of a text that somebody else may have written, in a span. Heads of requests may be 64 KiB, and each would be kept.
const MAX_TEXT_BYTES: usize = 256;

/// The beginning of a text, as much as a span may hold of it.
pub fn short(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT_BYTES)]
}

/// Form of the log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One JSON object a line.
    #[default]
    Json,
    /// For people.
    Text,
}

/// Flags of every program, flattened into its own.
#[derive(Debug, Clone, PartialEq, Args)]
#[command(next_help_heading = "Telemetry")]
pub struct TelemetryArgs {
    /// Form of log lines on stderr
    #[arg(long, env = "PORTOLAN_LOG_FORMAT", value_enum, default_value = "json")]
    pub log_format: LogFormat,

    /// Log filter: a level, or directives such as info,portolan_router=debug; changeable at run time on /loglevel
    #[arg(long, env = "PORTOLAN_LOG_LEVEL", default_value = DEFAULT_LOG_LEVEL)]
    pub log_level: String,

    /// Collector for traces by OTLP over gRPC, for example http://otel-collector:4317; empty for none; https is
    /// verified by the system's roots or those of SSL_CERT_FILE
    #[arg(long, env = "PORTOLAN_OTLP_ENDPOINT")]
    pub otlp_endpoint: Option<String>,

    /// The OpenTelemetry name for the same, used if --otlp-endpoint is not given
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", hide = true)]
    pub otel_exporter_otlp_endpoint: Option<String>,

    /// Share of traces that are recorded, 0 to 1; what a program of ours has decided is followed, what a router's clients
    /// want is not
    #[arg(
        long,
        env = "PORTOLAN_TRACE_SAMPLE_RATIO",
        default_value_t = DEFAULT_TRACE_SAMPLE_RATIO,
        value_parser = parse_ratio
    )]
    pub trace_sample_ratio: f64,

    /// Name of this instance in traces, the Pod's name for example; default: random
    #[arg(long, env = "PORTOLAN_INSTANCE_ID")]
    pub instance_id: Option<String>,
}

impl Default for TelemetryArgs {
    fn default() -> Self {
        Self {
            log_format: LogFormat::default(),
            log_level: DEFAULT_LOG_LEVEL.to_owned(),
            otlp_endpoint: None,
            otel_exporter_otlp_endpoint: None,
            trace_sample_ratio: DEFAULT_TRACE_SAMPLE_RATIO,
            instance_id: None,
        }
    }
}

impl TelemetryArgs {
    /// The part of all traces that is to be recorded; `None` where there is no collector.
    pub fn sampling(&self) -> Option<f64> {
        self.endpoint().map(|_| self.trace_sample_ratio)
    }

    /// The collector, if there is one.
    pub fn endpoint(&self) -> Option<&str> {
        let given = [&self.otlp_endpoint, &self.otel_exporter_otlp_endpoint];
        given
            .into_iter()
            .flatten()
            .next()
            .map(String::as_str)
            .filter(|endpoint| !endpoint.is_empty())
    }
}

/// Why telemetry cannot be set up or changed.
#[derive(Debug, Error)]
pub enum TelemetryError {
    /// A log filter that cannot be read.
    #[error("{filter:?} is not a log filter: {reason}")]
    Filter {
        /// The filter as it was given.
        filter: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The exporter of traces cannot be made.
    #[error("cannot export traces to {endpoint}")]
    Exporter {
        /// Where traces were to go.
        endpoint: String,
        /// What the library says.
        #[source]
        source: ExporterBuildError,
    },
    /// A process has one log and one tracer.
    #[error("telemetry was set up twice in one process")]
    Twice,
    /// The subscriber of the process is gone.
    #[error("the log filter cannot be changed any more")]
    Gone,
}

type FilterHandle = reload::Handle<EnvFilter, Registry>;

/// The running telemetry. Cheap to clone; call [`Telemetry::shutdown`] once, last thing in `main`.
#[derive(Clone)]
pub struct Telemetry {
    filter: FilterHandle,
    // A mutex: the text as it was typed; EnvFilter prints a rearranged one.
    level: Arc<Mutex<String>>,
    provider: Option<SdkTracerProvider>,
    keeper: Option<Keeper>,
    events: EventCounts,
    exports: ExportCounts,
    lines: batch::Lines,
}

impl std::fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Telemetry")
            .field("log_level", &self.log_level())
            .finish_non_exhaustive()
    }
}

/// Sets up logs, traces and propagation for the process. Call inside the runtime that shall carry the exporter's
/// connection, and once. `service_name` is `service.name` of traces: "portolan-router".
pub fn init(service_name: &'static str, args: &TelemetryArgs) -> Result<Telemetry, TelemetryError> {
    let (telemetry, dispatch) = build(service_name, args)?;
    if telemetry.provider.is_some() {
        propagate::spans_are_exported();
    }
    tracing::dispatcher::set_global_default(dispatch).map_err(|_| TelemetryError::Twice)?;
    opentelemetry::global::set_text_map_propagator(TraceContextPropagator::new());
    if let Some(provider) = &telemetry.provider {
        opentelemetry::global::set_tracer_provider(provider.clone());
    }
    Ok(telemetry)
}

/// All of [`init`] but what is global: tests can have several.
fn build(service_name: &'static str, args: &TelemetryArgs) -> Result<(Telemetry, Dispatch), TelemetryError> {
    build_with(service_name, args, line::stderr())
}

fn build_with(
    service_name: &'static str,
    args: &TelemetryArgs,
    output: line::Output,
) -> Result<(Telemetry, Dispatch), TelemetryError> {
    let exports = ExportCounts::default();
    let (provider, keeper) = args
        .endpoint()
        .map(|endpoint| provider(service_name, endpoint, args, &exports))
        .transpose()?
        .unzip();
    let (filter, handle) = reload::Layer::new(parse_filter(&args.log_level)?);
    let lines = output.lines.clone();
    let logs = line::layer(args.log_format, output);
    let events = EventCounts::default();

    // Without collector there is no span layer: `context_of` then hands the caller's context through untouched.
    // Libraries' spans are below info, so the exporter does not trace itself.
    let spans = provider.as_ref().map(|provider| {
        let tracer = provider.tracer(service_name);
        // Threads, busy times and code places of a span say nothing to those who read a trace of requests.
        tracing_opentelemetry::layer()
            .with_tracer(tracer)
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
            .with_filter(LevelFilter::INFO)
    });
    let subscriber = Registry::default()
        .with(logs.with_filter(filter))
        .with(CountEvents::new(events.clone()).with_filter(LevelFilter::INFO))
        .with(spans);

    let level = Arc::new(Mutex::new(args.log_level.clone()));
    Ok((
        Telemetry {
            filter: handle,
            level,
            provider,
            keeper,
            events,
            exports,
            lines,
        },
        Dispatch::new(subscriber),
    ))
}

impl Telemetry {
    /// Replaces the log filter. A text that is not a filter changes nothing.
    pub fn set_log_level(&self, filter: &str) -> Result<(), TelemetryError> {
        let parsed = parse_filter(filter)?;
        let mut level = self.level.lock();
        self.filter.reload(parsed).map_err(|_| TelemetryError::Gone)?;
        // Who turned access lines off does not see one after that.
        self.lines.flush();
        filter.trim().clone_into(&mut level);
        Ok(())
    }

    /// The log filter in force, as it was given.
    pub fn log_level(&self) -> String {
        self.level.lock().clone()
    }

    /// What exports a span of something that is over and was not sampled; `None` where there is no collector.
    pub fn keeper(&self) -> Option<Keeper> {
        self.keeper.clone()
    }

    /// Writes the lines and sends the spans that are left. Takes 7 seconds at most; a second call does nothing.
    pub async fn shutdown(&self) {
        self.lines.flush();
        let Some(provider) = self.provider.clone() else { return };
        // Blocking: the provider joins its thread.
        let flush = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(SHUTDOWN_TIMEOUT));
        match tokio::time::timeout(SHUTDOWN_TIMEOUT, flush).await {
            Ok(Ok(Ok(()) | Err(opentelemetry_sdk::error::OTelSdkError::AlreadyShutdown))) => {}
            Ok(Ok(Err(error))) => tracing::warn!(%error, "the last spans were not sent"),
            Ok(Err(error)) => tracing::warn!(%error, "the last spans were not sent"),
            Err(_) => tracing::warn!("the last spans were not sent in time"),
        }
    }

    /// Registers counts of log events and exports. Called once, by `metrics::Registry::standard`.
    pub fn register(&self, registry: &mut Metrics) {
        self.events.register(registry);
        self.exports.register(registry);
        let help = "Lines of the log that were not written: nobody read it, or it could not be written";
        registry.register("log_lines_dropped", help, self.lines.dropped());
    }
}

fn provider(
    service_name: &'static str,
    endpoint: &str,
    args: &TelemetryArgs,
    counts: &ExportCounts,
) -> Result<(SdkTracerProvider, Keeper), TelemetryError> {
    let mut builder = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .with_protocol(Protocol::Grpc)
        .with_timeout(EXPORT_TIMEOUT)
        .with_retry_policy(RetryPolicy::recommended().with_max_retries(EXPORT_RETRIES));
    if endpoint.starts_with("https:") {
        builder = builder.with_tls_config(ClientTlsConfig::new().with_enabled_roots());
    }
    let exporter = builder.build().map_err(|source| TelemetryError::Exporter {
        endpoint: endpoint.to_owned(),
        source,
    })?;
    let exporter = QuietExporter::new(exporter, endpoint, counts.clone());
    let instance = args
        .instance_id
        .clone()
        .unwrap_or_else(|| format!("{:016x}", rand::random::<u64>()));
    let resource = Resource::builder_empty()
        .with_attributes([
            KeyValue::new("service.name", service_name),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", instance),
        ])
        .build();
    let keeper = Keeper::new(BatchSpanProcessor::builder(exporter).build(), &resource, service_name);
    let provider = SdkTracerProvider::builder()
        .with_resource(resource)
        .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(
            args.trace_sample_ratio,
        ))))
        .with_span_processor(keeper.clone())
        .build();
    Ok((provider, keeper))
}

fn parse_filter(filter: &str) -> Result<EnvFilter, TelemetryError> {
    let wrong = |reason: String| TelemetryError::Filter {
        filter: filter.to_owned(),
        reason,
    };
    for directive in filter.split(',').map(str::trim) {
        // EnvFilter takes a bare word that is no level for a target, and so a typing error for silence.
        let is_level = !directive.is_empty() && directive.parse::<LevelFilter>().is_ok();
        if !is_level && !directive.contains(['=', '[', ']']) {
            return Err(wrong(format!("{directive:?} is neither a level nor target=level")));
        }
    }
    EnvFilter::builder()
        .parse(filter.trim())
        .map_err(|error| wrong(error.to_string()))
}

fn parse_ratio(text: &str) -> Result<f64, String> {
    let ratio: f64 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    if (0.0..=1.0).contains(&ratio) {
        Ok(ratio)
    } else {
        Err(format!("{ratio} is not between 0 and 1"))
    }
}

/// A telemetry that is not the process's own, for tests of what holds one.
#[cfg(test)]
pub(crate) fn for_tests(args: &TelemetryArgs) -> Telemetry {
    let (telemetry, dispatch) = build("portolan-test", args).expect("test arguments are sound");
    // The reload handle works only as long as its subscriber lives.
    std::mem::forget(dispatch);
    telemetry
}

#[cfg(test)]
mod tests;
