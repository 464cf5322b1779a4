//! The metric registry of one program: `portolan_<program>_<subsystem>_<noun>_<unit>`.
//!
//! A subsystem owns a struct of metrics with `register(&mut prometheus_client::registry::Registry)` and is handed
//! its prefixed part by [`Registry::scope`]; this file adds what every process has. Not here: any program's own
//! metrics. Callers: `app.rs` of every program; `admin` encodes.

mod recent;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text};
use prometheus_client::metrics::TypedMetric;
use prometheus_client::metrics::exemplar::HistogramWithExemplars;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry as Inner, Unit};

pub use self::recent::Recent;
use crate::tasks::Tasks;
use crate::telemetry::Telemetry;

/// First word of every metric of ours.
const PREFIX: &str = "portolan";
/// What `/metrics` answers as content type.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Shared, late registration included. Cheap to clone.
#[derive(Clone)]
pub struct Registry {
    program: &'static str,
    // A mutex: taken at startup to register and once per scrape to encode, never on a request's path.
    inner: Arc<Mutex<Inner>>,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry")
            .field("program", &self.program)
            .finish_non_exhaustive()
    }
}

impl Registry {
    /// A registry with the process metrics. `program` is the short name: `router`, not `portolan-router`.
    pub fn new(program: &'static str) -> Self {
        let mut inner = Inner::default();
        inner.register_collector(Box::new(Process {
            start: SystemTime::now(),
        }));
        let registry = Self {
            program,
            inner: Arc::new(Mutex::new(inner)),
        };
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.root(|root| root.register("build", "Version of this program", build));
        registry
    }

    /// Registers under `portolan_<program>_<subsystem>_`. A second scope of one name shares its prefix.
    pub fn scope<T>(&self, subsystem: &str, register: impl FnOnce(&mut Inner) -> T) -> T {
        self.root(|root| register(root.sub_registry_with_prefix(subsystem)))
    }

    /// Registers under `portolan_<program>_`.
    pub fn root<T>(&self, register: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = self.inner.lock();
        register(
            inner
                .sub_registry_with_prefix(PREFIX)
                .sub_registry_with_prefix(self.program),
        )
    }

    /// What every program registers: task, log and trace counts. Called once, by `AdminServer::serve`.
    pub fn standard(&self, tasks: &Tasks, telemetry: &Telemetry) {
        self.root(|root| {
            tasks.register(root);
            telemetry.register(root);
        });
    }

    /// All metrics in the OpenMetrics text format.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut body = String::new();
        text::encode(&mut body, &self.inner.lock())?;
        Ok(body)
    }
}

/// Pairs of name and value: names are words of the program, values come from bounded sets.
pub type Labels<'a> = Vec<(&'static str, &'a str)>;

/// One gauge with all its series, for a collector that reads state at each scrape.
pub fn gauges<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (Labels<'a>, i64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, <ConstGauge<i64> as TypedMetric>::TYPE)?;
    for (labels, value) in values {
        let value = ConstGauge::new(value);
        value.encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

/// Times in seconds: a histogram whose first bucket ends at so many microseconds, and each other at twice the one before.
#[derive(Debug, Clone)]
pub struct Seconds<const FIRST_MICROSECONDS: u32, const BUCKETS: u16>(Histogram);

impl<const FIRST_MICROSECONDS: u32, const BUCKETS: u16> Default for Seconds<FIRST_MICROSECONDS, BUCKETS> {
    fn default() -> Self {
        let first = f64::from(FIRST_MICROSECONDS) / 1e6;
        Self(Histogram::new(exponential_buckets(first, 2.0, BUCKETS)))
    }
}

impl<const FIRST_MICROSECONDS: u32, const BUCKETS: u16> Seconds<FIRST_MICROSECONDS, BUCKETS> {
    /// Counts one time.
    pub fn observe(&self, seconds: f64) {
        self.0.observe(seconds);
    }

    /// The histogram, to be registered.
    pub fn histogram(&self) -> Histogram {
        self.0.clone()
    }
}

/// What an exemplar tells: the trace that shows why it took so long.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct TraceLabels {
    trace_id: String,
}

/// Times in seconds; the last one of each bucket whose trace is kept is told with it.
pub type TracedSeries = HistogramWithExemplars<TraceLabels>;

/// The same by labels.
pub type TracedSeconds<L> = Family<L, TracedSeries, fn() -> TracedSeries>;

/// Counts one time. `trace_id`: of a trace that is kept; of others there would be nothing to see.
pub fn observe_traced(times: &TracedSeries, took: Duration, trace_id: Option<String>) {
    let trace = trace_id.map(|trace_id| TraceLabels { trace_id });
    let now = trace.is_some().then(SystemTime::now);
    times.observe(took.as_secs_f64(), trace, now);
}

/// Whole seconds as the value of a gauge.
pub fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

/// A number of things as the value of a gauge.
pub fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The metrics that Prometheus' own client libraries have for every process, under the same names.
#[derive(Debug)]
struct Process {
    start: SystemTime,
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let start = self.start.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let help = "Start of the process since the Unix epoch";
        gauge(&mut encoder, "process_start_time", help, Some(&Unit::Seconds), start)?;
        if let Some(bytes) = resident_bytes() {
            let help = "Resident memory size";
            gauge(&mut encoder, "process_resident_memory", help, Some(&Unit::Bytes), bytes)?;
        }
        if let Some(open) = open_descriptors() {
            let help = "Number of open file descriptors";
            gauge(&mut encoder, "process_open_fds", help, None, open)?;
        }
        Ok(())
    }
}

fn gauge<N>(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, unit: Option<&Unit>, value: N) -> fmt::Result
where
    ConstGauge<N>: EncodeMetric,
{
    let metric = ConstGauge::new(value);
    metric.encode(encoder.encode_descriptor(name, help, unit, metric.metric_type())?)
}

/// Resident memory from `/proc`, as nothing portable tells; absent elsewhere.
#[allow(clippy::cast_precision_loss)] // exact up to 8 PiB
fn resident_bytes() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some((kibibytes * 1024) as f64)
}

fn open_descriptors() -> Option<i64> {
    // Less the one that lists them.
    i64::try_from(std::fs::read_dir("/proc/self/fd").ok()?.count())
        .ok()
        .map(|count| count - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::metrics::counter::Counter;

    #[test]
    fn names_follow_the_house_form() {
        let registry = Registry::new("router");
        let requests = Counter::<u64>::default();
        registry.scope("upstream", |part| {
            part.register("requests", "Requests sent", requests.clone());
        });
        registry.scope("upstream", |part| {
            part.register("retries", "Retries", Counter::<u64>::default());
        });
        requests.inc();
        let text = registry.encode().unwrap();
        assert!(text.contains("portolan_router_upstream_requests_total 1\n"), "{text}");
        assert!(text.contains("portolan_router_upstream_retries_total 0\n"), "{text}");
        assert!(text.contains("portolan_router_build_info{version=\""), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn process_metrics_have_their_usual_names() {
        let text = Registry::new("hub").encode().unwrap();
        for name in [
            "process_start_time_seconds ",
            "process_resident_memory_bytes ",
            "process_open_fds ",
        ] {
            let line = text
                .lines()
                .find(|line| line.starts_with(name))
                .unwrap_or_else(|| panic!("{name}: {text}"));
            let value: f64 = line[name.len()..].parse().unwrap();
            assert!(value > 0.0, "{line}");
        }
    }
}
