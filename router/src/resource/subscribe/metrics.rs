//! `portolan_router_hub_…`: the hub's stream and what became of its transactions, told by `subscribe`. What came of them is
//! read of `routing`.

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

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

    pub(crate) fn transaction(&self, rejected: usize) {
        let outcome = if rejected == 0 { "applied" } else { "partly-applied" };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.swapped_at.set(i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
        self.transactions.get_or_create(&OutcomeLabels { outcome }).inc();
        self.rejected.inc_by(u64::try_from(rejected).unwrap_or(u64::MAX));
    }
}
