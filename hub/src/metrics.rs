//! The hub's own metrics. Labels are closed enums; of names only those of members, which are few.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use portolan_runtime::metrics::{Seconds, count};
use prometheus_client::encoding::EncodeLabelValue;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
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

/// The kind of program that a stream is of.
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
    Routers,
    CircuitBreakers,
    FaultInjections,
    FaultSwitch,
}

/// How a policy stands, in the words of the compiler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, EncodeLabelValue)]
pub(crate) enum PolicyStanding {
    InForce,
    NoneGood,
    NeverGood,
    Withdrawn,
    Disabled,
    Stopped,
    Expired,
    Excess,
}

/// How a router answered a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Answer {
    Ack,
    Nack,
    /// It is in force there and not on disk.
    Unsaved,
}

/// Series by the one label that they have.
type By<L, M> = Family<[(&'static str, L); 1], M>;

/// Writes of one kind to objects of the hub's API server. Clones are the same counters.
#[derive(Debug, Clone, Default)]
pub(crate) struct WriteCounters {
    writes: Counter,
    errors: Counter,
}

/// Everything the hub counts. Clones are the same counters.
#[derive(Debug, Clone, Default)]
pub(crate) struct Metrics {
    enrollments: By<EnrollOutcome, Counter>,
    streams: By<Program, Gauge>,
    watch_errors: By<Watched, Counter>,
    answers: By<Answer, Counter>,
    /// From 100 µs to about 3 s.
    compile_seconds: Seconds<100, 16>,
    resources: Gauge,
    pub(crate) statuses: WriteCounters,
    pub(crate) finalizers: WriteCounters,
    pub(crate) children: WriteCounters,
    /// Writes of the ledger: until one that failed is made good, nothing is granted.
    pub(crate) ledger: WriteCounters,
    /// From 100 µs to about 3 s.
    ack_seconds: Seconds<100, 16>,
    unreached_members: By<String, Gauge>,
    /// Members with a series of `unreached_members` now. A lock, because clones share the series.
    unreached_names: Arc<Mutex<BTreeSet<String>>>,
    shadowed: Gauge,
    awaited: Gauge,
    policies: By<PolicyStanding, Gauge>,
    faults_stopped: Gauge,
    opened_rules: Gauge,
    shared_limits: Gauge,
    shares_told: Counter,
    shares_withheld: Gauge,
    leads: Gauge,
    term: Gauge,
    spliced: Gauge,
}

impl PolicyStanding {
    const ALL: [Self; 8] = [
        Self::InForce,
        Self::NoneGood,
        Self::NeverGood,
        Self::Withdrawn,
        Self::Disabled,
        Self::Stopped,
        Self::Expired,
        Self::Excess,
    ];
}

impl Metrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        let help = "Requests for a certificate by outcome";
        registry.register("enrollments", help, self.enrollments.clone());
        registry.register("streams", "Open streams by program", self.streams.clone());
        let help = "Errors of watches on the hub's API server";
        registry.register("watch_errors", help, self.watch_errors.clone());
        let help = "Transactions by the router's answer";
        registry.register("transactions", help, self.answers.clone());
        let help = "Time to compile all facts";
        registry.register_with_unit("compile", help, Unit::Seconds, self.compile_seconds.histogram());
        registry.register("resources", "Resources that routers must hold", self.resources.clone());
        self.statuses.register("status", registry);
        self.finalizers.register("finalizer", registry);
        self.children.register("child", registry);
        self.ledger.register("ledger", registry);
        let help = "Time from a commit to the router's answer";
        registry.register_with_unit("ack", help, Unit::Seconds, self.ack_seconds.histogram());
        let help = "1 for each member that a connected router does not get through to: its objects are held";
        registry.register("held_members", help, self.unreached_members.clone());
        let help = "Namespaces that shards ask for and have in another member already";
        registry.register("shadowed_namespaces", help, self.shadowed.clone());
        let help = "Pairs of cluster and namespace that shards wait for until their last owner has let go";
        registry.register("awaited_pairs", help, self.awaited.clone());
        self.register_policies(registry);
        let help = "1 while this replica leads";
        registry.register("leader", help, self.leads.clone());
        let help = "Term of this replica's ledger; 0 if it does not lead";
        registry.register("term", help, self.term.clone());
        let help = "Connections that this replica passes on to the one that leads";
        registry.register("spliced_connections", help, self.spliced.clone());
    }

    fn register_policies(&self, registry: &mut Registry) {
        let help = "CircuitBreakers and FaultInjections by how they stand";
        registry.register("policies", help, self.policies.clone());
        let help = "1 while all faults are stopped by hand";
        registry.register("faults_stopped", help, self.faults_stopped.clone());
        let help = "Rules that refuse all, counted for every caller and connected router";
        registry.register("opened_rules", help, self.opened_rules.clone());
        let help = "Limits in force that routers have together";
        registry.register("shared_limits", help, self.shared_limits.clone());
        let help = "Times that a router was told its shares of such limits";
        registry.register("shares_told", help, self.shares_told.clone());
        let help = "Such limits of which a router has kept a share for half a minute that others are to have";
        registry.register("shares_withheld", help, self.shares_withheld.clone());
    }

    /// How policies stand, and how many rules of theirs are opened.
    pub(crate) fn observe_policies(
        &self,
        standings: &BTreeMap<PolicyStanding, usize>,
        faults_stopped: bool,
        opened_rules: usize,
    ) {
        for standing in PolicyStanding::ALL {
            let policies = standings.get(&standing).copied().unwrap_or_default();
            self.policies.get_or_create(&[("state", standing)]).set(count(policies));
        }
        self.faults_stopped.set(faults_stopped.into());
        self.opened_rules.set(count(opened_rules));
    }

    /// How many limits are divided, how many routers were told anew, and of how many limits somebody withholds a share.
    pub(crate) fn divided(&self, limits: usize, told: usize, withheld: usize) {
        self.shared_limits.set(count(limits));
        self.shares_told.inc_by(told as u64);
        self.shares_withheld.set(count(withheld));
    }

    /// The state that conditions of shards tell in words.
    pub(crate) fn observe(&self, unreached: BTreeSet<String>, shadowed: usize, awaited: usize) {
        let mut names = self.unreached_names.lock();
        for cluster in names.difference(&unreached) {
            self.unreached_members.remove(&[("cluster", cluster.clone())]);
        }
        for cluster in &unreached {
            let series = [("cluster", cluster.clone())];
            self.unreached_members.get_or_create(&series).set(1);
        }
        *names = unreached;
        self.shadowed.set(count(shadowed));
        self.awaited.set(count(awaited));
    }

    pub(crate) fn enrolled(&self, outcome: EnrollOutcome) {
        self.enrollments.get_or_create(&[("outcome", outcome)]).inc();
    }

    /// Counts a stream until the guard is dropped.
    pub(crate) fn stream(&self, program: Program) -> StreamGuard {
        let gauge = self.streams.get_or_create_owned(&[("program", program)]);
        gauge.inc();
        StreamGuard(gauge)
    }

    /// Counts a connection that is passed on until the guard is dropped.
    pub(crate) fn spliced(&self) -> StreamGuard {
        self.spliced.inc();
        StreamGuard(self.spliced.clone())
    }

    /// This replica leads, by this term.
    pub(crate) fn lead(&self, term: u64) {
        self.leads.set(1);
        self.term.set(i64::try_from(term).unwrap_or(i64::MAX));
    }

    pub(crate) fn watch_failed(&self, watched: Watched) {
        self.watch_errors.get_or_create(&[("watched", watched)]).inc();
    }

    pub(crate) fn answered(&self, answer: Answer, seconds: f64) {
        self.answers.get_or_create(&[("answer", answer)]).inc();
        self.ack_seconds.observe(seconds);
    }

    pub(crate) fn compiled(&self, seconds: f64, resources: usize) {
        self.compile_seconds.observe(seconds);
        self.resources.set(count(resources));
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
