//! The hub's own metrics. Labels are closed enums; of names only those of members, which are few.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
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

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfCluster {
    cluster: String,
}

/// Writes of one kind to objects of the hub's API server. Clones are the same counters.
#[derive(Debug, Clone, Default)]
pub(crate) struct WriteCounters {
    writes: Counter,
    errors: Counter,
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
    pub(crate) statuses: WriteCounters,
    pub(crate) finalizers: WriteCounters,
    /// Until what failed is written, nothing is granted.
    pub(crate) ledger: WriteCounters,
    ack_seconds: Histogram,
    held_members: Family<OfCluster, Gauge>,
    /// Those with a series now. A lock, because clones share the series.
    held_names: Arc<Mutex<BTreeSet<String>>>,
    shadowed: Gauge,
    awaited: Gauge,
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
            statuses: WriteCounters::default(),
            finalizers: WriteCounters::default(),
            ledger: WriteCounters::default(),
            ack_seconds: Histogram::new(buckets()),
            held_members: Family::default(),
            held_names: Arc::default(),
            shadowed: Gauge::default(),
            awaited: Gauge::default(),
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
        self.statuses.register("status", registry);
        self.finalizers.register("finalizer", registry);
        self.ledger.register("ledger", registry);
        let help = "Time from a commit to the router's answer";
        registry.register_with_unit("ack", help, Unit::Seconds, self.ack_seconds.clone());
        self.register_conditions(registry);
    }

    fn register_conditions(&self, registry: &mut Registry) {
        let help = "1 for each member that a connected router does not get through to: its objects are held";
        registry.register("held_members", help, self.held_members.clone());
        let help = "Namespaces that shards ask for and have in another member already";
        registry.register("shadowed_namespaces", help, self.shadowed.clone());
        let help = "Pairs of cluster and namespace that shards wait for until their last owner has let go";
        registry.register("awaited_pairs", help, self.awaited.clone());
    }

    /// The state that conditions of shards tell in words.
    pub(crate) fn observe(&self, held: BTreeSet<String>, shadowed: usize, awaited: usize) {
        let mut names = self.held_names.lock();
        for cluster in names.difference(&held).cloned() {
            self.held_members.remove(&OfCluster { cluster });
        }
        for cluster in held.iter().cloned() {
            self.held_members.get_or_create(&OfCluster { cluster }).set(1);
        }
        *names = held;
        self.shadowed.set(i64::try_from(shadowed).unwrap_or(i64::MAX));
        self.awaited.set(i64::try_from(awaited).unwrap_or(i64::MAX));
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
}

impl WriteCounters {
    pub(crate) fn count(&self, ok: bool) {
        let counter = if ok { &self.writes } else { &self.errors };
        counter.inc();
    }

    fn register(&self, what: &str, registry: &mut Registry) {
        let help = "Writes to objects of the hub's API server";
        registry.register(format!("{what}_writes"), help, self.writes.clone());
        let help = "Writes to objects of the hub's API server that failed";
        registry.register(format!("{what}_errors"), help, self.errors.clone());
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
