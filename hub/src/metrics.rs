//! The hub's own metrics. Labels are closed enums; no name of an object is ever one.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// What came of an enrolment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types)] // the label's value is the variant's name
pub(crate) enum EnrollOutcome {
    Issued,
    Renewed,
    Pending,
    Refused,
}

/// Whose streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Program {
    Agent,
    Router,
}

/// What a watch is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Watched {
    MemberClusters,
    ShardingConfigs,
}

/// How a router answered a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Answer {
    Ack,
    Nack,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: EnrollOutcome,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfProgram {
    program: Program,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfWatch {
    watched: Watched,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfAnswer {
    answer: Answer,
}

/// Everything the hub counts. Clones are the same counters.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    enrollments: Family<Outcome, Counter>,
    streams: Family<OfProgram, Gauge>,
    watch_errors: Family<OfWatch, Counter>,
    answers: Family<OfAnswer, Counter>,
    compile_seconds: Histogram,
    resources: Gauge,
    status_writes: Counter,
    status_errors: Counter,
    ack_seconds: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        // From 100 µs to about 3 s.
        let buckets = || exponential_buckets(0.0001, 2.0, 16);
        Self {
            enrollments: Family::default(),
            streams: Family::default(),
            watch_errors: Family::default(),
            answers: Family::default(),
            compile_seconds: Histogram::new(buckets()),
            resources: Gauge::default(),
            status_writes: Counter::default(),
            status_errors: Counter::default(),
            ack_seconds: Histogram::new(buckets()),
        }
    }
}

impl Metrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "enrollments",
            "Requests for a certificate by outcome",
            self.enrollments.clone(),
        );
        registry.register("streams", "Open streams by program", self.streams.clone());
        registry.register(
            "watch_errors",
            "Errors of watches on the hub's API server",
            self.watch_errors.clone(),
        );
        registry.register(
            "transactions",
            "Transactions by the router's answer",
            self.answers.clone(),
        );
        let help = "Time to compile all facts";
        registry.register_with_unit("compile", help, Unit::Seconds, self.compile_seconds.clone());
        registry.register("resources", "Resources that routers must hold", self.resources.clone());
        registry.register("status_writes", "Statuses written", self.status_writes.clone());
        registry.register(
            "status_errors",
            "Statuses that could not be written",
            self.status_errors.clone(),
        );
        let help = "Time from a commit to the router's answer";
        registry.register_with_unit("ack", help, Unit::Seconds, self.ack_seconds.clone());
    }

    pub(crate) fn enrolled(&self, outcome: EnrollOutcome) {
        self.enrollments.get_or_create(&Outcome { outcome }).inc();
    }

    /// Counts a stream until the guard is dropped.
    pub(crate) fn stream(&self, program: Program) -> StreamGuard {
        let gauge = self.streams.get_or_create_owned(&OfProgram { program });
        gauge.inc();
        StreamGuard(gauge)
    }

    pub(crate) fn watch_failed(&self, watched: Watched) {
        self.watch_errors.get_or_create(&OfWatch { watched }).inc();
    }

    pub(crate) fn answered(&self, answer: Answer, seconds: f64) {
        self.answers.get_or_create(&OfAnswer { answer }).inc();
        self.ack_seconds.observe(seconds);
    }

    pub(crate) fn compiled(&self, seconds: f64, resources: usize) {
        self.compile_seconds.observe(seconds);
        self.resources.set(i64::try_from(resources).unwrap_or(i64::MAX));
    }

    pub(crate) fn status_written(&self, ok: bool) {
        if ok {
            self.status_writes.inc()
        } else {
            self.status_errors.inc()
        };
    }
}

/// One open stream.
#[derive(Debug)]
pub(crate) struct StreamGuard(Gauge);

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}
