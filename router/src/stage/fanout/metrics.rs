//! Merged lists and watches: what became of them, what their legs did, how long writes waited. Told by `fanout`.
//!
//! What is open now is read at each scrape, see `open`.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::replicate::Behind;

/// A fence ends at 250 ms; an event usually comes within a few.
const FENCE_SECONDS: [f64; 9] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.25];

/// Why merged watches tell their clients to list again.
const EXPIRED: [&str; 9] = [
    "position",
    "changed",
    "compacted",
    "memory",
    "metadata",
    "member",
    "refused",
    "unreadable",
    "injected",
];

/// What becomes of copies in other members; see `replicate`.
const REPLICAS: [&str; 10] = [
    "applied", "conflict", "refused", "unseen", "away", "late", "leaving", "gone", "deleted", "unread",
];

/// All values are words of this program.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

/// Member clusters are bounded: an administrator joins each.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LegLabels {
    cluster: Arc<str>,
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClusterLabels {
    cluster: Arc<str>,
}

/// One per process, cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct FanOutMetrics {
    starts: Family<OutcomeLabels, Counter>,
    restarts: Family<LegLabels, Counter>,
    expired: Family<ReasonLabels, Counter>,
    events: Counter,
    bookmarks: Counter,
    fence_outcomes: Family<OutcomeLabels, Counter>,
    fence_seconds: Histogram,
    lists: Family<LegLabels, Counter>,
    collisions: Counter,
    foreign: Family<ClusterLabels, Counter>,
    replicas: Family<OutcomeLabels, Counter>,
    /// Set by whoever remembers them.
    pub(crate) replicas_behind: Gauge,
}

impl Default for FanOutMetrics {
    fn default() -> Self {
        Self {
            starts: Family::default(),
            restarts: Family::default(),
            expired: Family::default(),
            events: Counter::default(),
            bookmarks: Counter::default(),
            fence_outcomes: Family::default(),
            fence_seconds: Histogram::new(FENCE_SECONDS),
            lists: Family::default(),
            collisions: Counter::default(),
            foreign: Family::default(),
            replicas: Family::default(),
            replicas_behind: Gauge::default(),
        }
    }
}

impl FanOutMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        let help = "Merged watches by how they began";
        registry.register("watch_starts", help, self.starts.clone());
        let help = "Legs of merged watches that were connected again, by why";
        registry.register("leg_restarts", help, self.restarts.clone());
        let help = "Merged watches that told their client to list again, by why";
        registry.register("watches_expired", help, self.expired.clone());
        registry.register("watch_events", "Events of merged watches", self.events.clone());
        registry.register("watch_bookmarks", "Bookmarks of merged watches", self.bookmarks.clone());
        let help = "Writes that waited for their caller's own watch, by how that ended";
        registry.register("fences", help, self.fence_outcomes.clone());
        let help = "How long answers to writes were kept for their caller's own watch";
        registry.register_with_unit("fence_wait", help, Unit::Seconds, self.fence_seconds.clone());
        let help = "Lists that a member could not be had for: held for it, or begun without it";
        registry.register("lists_without_member", help, self.lists.clone());
        let help = "Cluster-scoped objects hidden in lists behind another member's of the same name";
        registry.register("list_collisions", help, self.collisions.clone());
        let help =
            "Objects, in lists and events, that a member was not asked for and sent all the same: no client gets them";
        registry.register("foreign_objects", help, self.foreign.clone());
        let help = "Copies of objects of replicated kinds that members were to be brought to, by how that ended";
        registry.register("replicas", help, self.replicas.clone());
        let help = "Objects of replicated kinds whose copies are not known to be what the primary has";
        registry.register("replicas_behind", help, self.replicas_behind.clone());
        // Known before they happen: the first one counts as an increase.
        for outcome in ["seen", "late"] {
            drop(self.fence_outcomes.get_or_create(&OutcomeLabels { outcome }));
        }
        for outcome in REPLICAS {
            drop(self.replicas.get_or_create(&OutcomeLabels { outcome }));
        }
        for reason in EXPIRED {
            drop(self.expired.get_or_create(&ReasonLabels { reason }));
        }
    }

    /// Copies in so many members, and those that are behind.
    pub(crate) fn replicated(&self, members: usize, behind: &[Behind]) {
        let applied = (members - behind.len()) as u64;
        let outcome = "applied";
        self.replicas.get_or_create(&OutcomeLabels { outcome }).inc_by(applied);
        for Behind { reason: outcome, .. } in behind {
            self.replicas.get_or_create(&OutcomeLabels { outcome }).inc();
        }
    }

    /// `reason`: held or left-out.
    pub(crate) fn list_without(&self, cluster: &Arc<str>, reason: &'static str) {
        let cluster = cluster.clone();
        self.lists.get_or_create(&LegLabels { cluster, reason }).inc();
    }

    pub(crate) fn foreign(&self, cluster: &Arc<str>, objects: u64) {
        let cluster = cluster.clone();
        self.foreign.get_or_create(&ClusterLabels { cluster }).inc_by(objects);
    }

    pub(crate) fn collided(&self, objects: u64) {
        self.collisions.inc_by(objects);
    }

    #[cfg(test)]
    pub(crate) fn collisions(&self) -> u64 {
        self.collisions.get()
    }

    #[cfg(test)]
    pub(crate) fn expirations(&self, reason: &'static str) -> u64 {
        self.expired.get_or_create(&ReasonLabels { reason }).get()
    }

    pub(crate) fn started(&self, outcome: &'static str) {
        self.starts.get_or_create(&OutcomeLabels { outcome }).inc();
    }

    pub(crate) fn restarted(&self, cluster: &Arc<str>, reason: &'static str) {
        let cluster = cluster.clone();
        self.restarts.get_or_create(&LegLabels { cluster, reason }).inc();
    }

    pub(crate) fn expired(&self, reason: &'static str) {
        self.expired.get_or_create(&ReasonLabels { reason }).inc();
    }

    pub(crate) fn sent(&self, events: u64, bookmarks: u64) {
        self.events.inc_by(events);
        self.bookmarks.inc_by(bookmarks);
    }

    pub(crate) fn fenced(&self, outcome: &'static str, waited: Duration) {
        self.fence_outcomes.get_or_create(&OutcomeLabels { outcome }).inc();
        self.fence_seconds.observe(waited.as_secs_f64());
    }
}
