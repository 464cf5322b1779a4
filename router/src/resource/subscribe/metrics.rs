//! `portolan_router_hub_…`: the hub's stream and what became of its transactions, told by `subscribe`. What came of them is
//! read of `routing`.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use portolan_runtime::metrics::{Labels, gauges, seconds};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
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
    /// Unix seconds: when a transaction was last applied.
    swapped_at: Gauge,
    /// Since when the hub is not heard; `None` while what is served is what it says. A mutex: taken at the ends of a stream
    /// and at each scrape.
    away: Arc<Mutex<Option<SystemTime>>>,
    /// Since when the state file cannot be written; `None`: it can. A mutex: taken after each write and at each scrape.
    unwritten: Arc<Mutex<Option<SystemTime>>>,
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
        registry.register_collector(Box::new(Ages(self.clone())));
    }

    pub(crate) fn connected(&self) {
        self.connected.set(1);
        self.connections.inc();
    }

    /// The stream has ended, or there is none yet. `heard`: until when what is served was what the hub says.
    pub(crate) fn disconnected(&self, heard: Option<SystemTime>) {
        self.connected.set(0);
        *self.away.lock() = heard;
    }

    /// How the last write of the state file went.
    pub(super) fn state_file(&self, written: bool) {
        let mut unwritten = self.unwritten.lock();
        *unwritten = unwritten.or(Some(SystemTime::now())).filter(|_| !written);
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.connected.get() == 1
    }

    pub(crate) fn transaction(&self, rejected: usize) {
        let outcome = if rejected == 0 { "applied" } else { "partly-applied" };
        *self.away.lock() = None;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.swapped_at.set(i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
        self.transactions.get_or_create(&OutcomeLabels { outcome }).inc();
        self.rejected.inc_by(u64::try_from(rejected).unwrap_or(u64::MAX));
    }
}

/// Read at each scrape: they grow while nothing happens.
#[derive(Debug)]
struct Ages(HubMetrics);

impl Collector for Ages {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let age = |since: &Mutex<Option<SystemTime>>| {
            let since = *since.lock();
            since.map_or(0, |since| seconds(since.elapsed().unwrap_or_default()))
        };
        let help = "Seconds since the hub last vouched for what is served; 0 while its stream is up and its first transaction applied";
        let away = age(&self.0.away);
        gauges(&mut encoder, "config_age_seconds", help, [(Labels::new(), away)])?;
        let help = "Seconds since the state file could not be written for the first time; 0 while it can be. What the hub takes away meanwhile is in force, and not acknowledged";
        let unwritten = age(&self.0.unwritten);
        gauges(
            &mut encoder,
            "state_file_unwritten_seconds",
            help,
            [(Labels::new(), unwritten)],
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn age(metrics: &HubMetrics) -> i64 {
        gauge(metrics, "config_age_seconds")
    }

    fn gauge(metrics: &HubMetrics, name: &str) -> i64 {
        let registry = portolan_runtime::metrics::Registry::new("router");
        registry.scope("hub", |part| metrics.register(part));
        let text = registry.encode().unwrap();
        let name = format!("portolan_router_hub_{name}{{}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&name));
        line.unwrap_or_else(|| panic!("{text}")).parse().unwrap()
    }

    #[test]
    fn config_ages_until_the_hub_has_said_all_again() {
        let metrics = HubMetrics::default();
        assert_eq!(age(&metrics), 0);
        metrics.disconnected(Some(SystemTime::now() - Duration::from_secs(90)));
        assert!((90..100).contains(&age(&metrics)));
        // A stream alone says nothing of what is served.
        metrics.connected();
        assert!((90..100).contains(&age(&metrics)));
        metrics.transaction(0);
        assert_eq!(age(&metrics), 0);
    }

    #[test]
    fn a_state_file_is_unwritten_since_the_first_write_that_failed() {
        let metrics = HubMetrics::default();
        let unwritten = || gauge(&metrics, "state_file_unwritten_seconds");
        assert_eq!(unwritten(), 0);
        metrics.state_file(false);
        *metrics.unwritten.lock() = Some(SystemTime::now() - Duration::from_secs(90));
        metrics.state_file(false);
        assert!((90..100).contains(&unwritten()));
        metrics.state_file(true);
        assert_eq!(unwritten(), 0);
    }
}
