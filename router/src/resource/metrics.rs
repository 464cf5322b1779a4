//! The router's metrics: `portolan_router_…`, closed label sets (member clusters are a bounded one).
//!
//! Counters are told by the stages; what is state (snapshot, credentials, breakers) is read at each scrape. Callers:
//! `app` registers, the stages count.

mod fanout;
mod requests;
mod state;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use portolan_runtime::metrics::Registry as Runtime;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

pub(crate) use self::fanout::FanOutMetrics;
pub(crate) use self::requests::RequestMetrics;
use self::state::State;
use crate::resource::discovery::DiscoveryMetrics;
use crate::resource::upstream::Upstreams;
use crate::stage::fanout::open::OpenWatches;
use crate::stage::identify::Source;
use crate::value::snapshot::SnapshotStore;

/// All of them. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Metrics {
    pub(crate) hub: HubMetrics,
    pub(crate) identify: IdentifyMetrics,
    pub(crate) discovery: DiscoveryMetrics,
    pub(crate) requests: Arc<RequestMetrics>,
    /// It counts, and knows what is open.
    pub(crate) open: Arc<OpenWatches>,
    state: State,
}

impl Metrics {
    pub(crate) fn new(store: Arc<SnapshotStore>, upstreams: Arc<Upstreams>) -> Self {
        let open = OpenWatches::new(FanOutMetrics::default());
        Self {
            hub: HubMetrics::default(),
            identify: IdentifyMetrics::default(),
            discovery: DiscoveryMetrics::default(),
            requests: Arc::new(RequestMetrics::new()),
            state: State {
                store,
                upstreams,
                open: open.clone(),
            },
            open,
        }
    }

    /// Under `portolan_router_<part>_`.
    pub(crate) fn register(&self, registry: &Runtime) {
        registry.scope("hub", |part| self.hub.register(part));
        registry.scope("identify", |part| self.identify.register(part));
        registry.scope("discovery", |part| self.discovery.register(part));
        registry.scope("requests", |part| self.requests.register(part));
        registry.scope("fanout", |part| self.open.metrics.register(part));
        registry.root(|root| root.register_collector(Box::new(self.state.clone())));
    }
}

/// One closed set of words.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

/// The hub's stream. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct HubMetrics {
    connected: Gauge,
    connections: Counter,
    transactions: Family<OutcomeLabels, Counter>,
    rejected: Counter,
    /// Unix seconds: the age of the snapshot is `time()` less this.
    swapped_at: Gauge,
}

impl HubMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "connected",
            "Whether the stream to the hub is up",
            self.connected.clone(),
        );
        registry.register("connections", "Streams opened to the hub", self.connections.clone());
        registry.register(
            "transactions",
            "Transactions of the hub by what became of them",
            self.transactions.clone(),
        );
        registry.register(
            "last_swap_timestamp_seconds",
            "When a transaction was last applied, since the Unix epoch",
            self.swapped_at.clone(),
        );
        registry.register(
            "rejected_entries",
            "Resources of the hub that were refused",
            self.rejected.clone(),
        );
    }

    pub(crate) fn connected(&self) {
        self.connected.set(1);
        self.connections.inc();
    }

    pub(crate) fn disconnected(&self) {
        self.connected.set(0);
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.connected.get() == 1
    }

    pub(crate) fn transaction(&self, applied: bool, rejected: usize) {
        let outcome = match (applied, rejected) {
            (true, 0) => "applied",
            (true, _) => "partly-applied",
            (false, _) => "refused",
        };
        if applied {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            self.swapped_at.set(i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
        }
        self.transactions.get_or_create(&OutcomeLabels { outcome }).inc();
        self.rejected.inc_by(u64::try_from(rejected).unwrap_or(u64::MAX));
    }
}

/// What `identify` made of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Identified {
    Pod,
    Person,
    Unauthenticated,
    Forbidden,
    Unavailable,
}

impl Identified {
    fn as_str(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::Person => "person",
            Self::Unauthenticated => "unauthenticated",
            Self::Forbidden => "forbidden",
            Self::Unavailable => "unavailable",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SourceLabels {
    source: &'static str,
}

/// Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct IdentifyMetrics {
    outcomes: Family<OutcomeLabels, Counter>,
    sources: Family<SourceLabels, Counter>,
    kept: Gauge,
}

impl IdentifyMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "requests",
            "Requests by what they were identified as",
            self.outcomes.clone(),
        );
        registry.register(
            "reviews",
            "Token reviews by where the answer came from",
            self.sources.clone(),
        );
        registry.register("reviews_kept", "Token reviews kept", self.kept.clone());
    }

    pub(crate) fn outcome(&self, outcome: Identified) {
        let outcome = outcome.as_str();
        self.outcomes.get_or_create(&OutcomeLabels { outcome }).inc();
    }

    pub(crate) fn source(&self, source: Source) {
        let source = source.as_str();
        self.sources.get_or_create(&SourceLabels { source }).inc();
    }

    pub(crate) fn kept(&self, entries: usize) {
        self.kept.set(i64::try_from(entries).unwrap_or(i64::MAX));
    }
}
