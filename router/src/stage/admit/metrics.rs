//! `portolan_router_admit_…`: requests that were turned away, by the bound that did it; and what waits.

use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::bounds::Bound;
use crate::resource::injected::InjectedFaults;
use crate::resource::queues::QueueMetrics;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BoundLabels {
    bound: &'static str,
}

/// Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct AdmitMetrics {
    refused: Family<BoundLabels, Counter>,
    /// Memory of requests that wait.
    pub(super) waiting: Gauge,
    /// Registered by who hands them to `dispatch` too.
    pub(super) waits: QueueMetrics,
    /// Registered by who hands them to `inject` too.
    pub(super) injected: Arc<InjectedFaults>,
}

impl AdmitMetrics {
    /// Tells these how long requests wait.
    pub(crate) fn measured(mut self, waits: QueueMetrics) -> Self {
        self.waits = waits;
        self
    }

    /// Counts here what faults were injected.
    pub(crate) fn counting(mut self, injected: Arc<InjectedFaults>) -> Self {
        self.injected = injected;
        self
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        let help = "Requests that were turned away before anything was spent on them";
        registry.register("refused", help, self.refused.clone());
        let help = "Memory of the requests that wait: for a review of their token, for their caller's others or for those of all";
        registry.register_with_unit("waiting", help, Unit::Bytes, self.waiting.clone());
        // Known before it happens: the first one counts as an increase.
        for bound in Bound::ALL {
            let bound = bound.as_str();
            drop(self.refused.get_or_create(&BoundLabels { bound }));
        }
    }

    pub(super) fn refused(&self, bound: Bound) {
        let bound = bound.as_str();
        self.refused.get_or_create(&BoundLabels { bound }).inc();
    }
}
