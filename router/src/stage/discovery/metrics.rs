//! `portolan_router_discovery_…`. Told by `cache` and `discovery`.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// What a look at a member's document brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fetched {
    Changed,
    Unchanged,
    Failed,
}

impl Fetched {
    fn as_str(self) -> &'static str {
        match self {
            Self::Changed => "changed",
            Self::Unchanged => "unchanged",
            Self::Failed => "failed",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FetchLabels {
    /// Member clusters are a bounded set.
    cluster: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClusterLabels {
    cluster: String,
}

/// Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct DiscoveryMetrics {
    fetches: Family<FetchLabels, Counter>,
    without: Family<ClusterLabels, Counter>,
    conflicts: Counter,
}

impl DiscoveryMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "fetches",
            "Looks at members' discovery and OpenAPI documents",
            self.fetches.clone(),
        );
        registry.register(
            "answers_without_member",
            "Discovery answers that leave out a member which has never been read",
            self.without.clone(),
        );
        registry.register(
            "conflicts",
            "Resources left out of newly made discovery documents: no version in common",
            self.conflicts.clone(),
        );
    }

    pub(super) fn fetched(&self, cluster: &str, outcome: Fetched) {
        let labels = FetchLabels {
            cluster: cluster.to_owned(),
            outcome: outcome.as_str(),
        };
        self.fetches.get_or_create(&labels).inc();
    }

    pub(super) fn without(&self, cluster: &str) {
        let cluster = cluster.to_owned();
        self.without.get_or_create(&ClusterLabels { cluster }).inc();
    }

    pub(super) fn conflicts(&self, number: usize) {
        self.conflicts.inc_by(u64::try_from(number).unwrap_or(u64::MAX));
    }
}
