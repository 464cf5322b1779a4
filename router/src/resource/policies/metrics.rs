//! `portolan_router_policy_…`: what CircuitBreakers refused, and how their rules stand. Labels are words of closed sets:
//! names of policies are in reports and pages.

use std::fmt;
use std::sync::Arc;

use portolan_runtime::metrics::{Labels, count, gauges};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::Policies;
use crate::value::fault::RefusedBy;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

/// Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct PolicyMetrics {
    refused: Family<KindLabels, Counter>,
}

impl PolicyMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        let help = "Requests that CircuitBreakers refused";
        registry.register("refused", help, self.refused.clone());
        // Known before it happens: the first one counts as an increase.
        for by in RefusedBy::ALL {
            let kind = by.as_str();
            drop(self.refused.get_or_create(&KindLabels { kind }));
        }
    }

    pub(super) fn refused(&self, by: RefusedBy) {
        let kind = by.as_str();
        self.refused.get_or_create(&KindLabels { kind }).inc();
    }

    #[cfg(test)]
    pub(super) fn count(&self, by: RefusedBy) -> u64 {
        let kind = by.as_str();
        self.refused.get_or_create(&KindLabels { kind }).get()
    }
}

/// Reads how rules stand at each scrape.
#[derive(Debug)]
pub(crate) struct PolicyCollector(pub(crate) Arc<Policies>);

impl Collector for PolicyCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let counts = self.0.counts();
        let help = "Rules of CircuitBreakers that callers have met, each counted for every caller";
        let states = [("opened", counts.opened), ("closed", counts.closed)];
        let states = states.map(|(state, rules)| (vec![("state", state)], count(rules)));
        gauges(&mut encoder, "policy_rules", help, states)?;
        let help = "Requests of the last minutes that a policy can be tried on";
        let records = [(Labels::new(), count(counts.records))];
        gauges(&mut encoder, "policy_records", help, records)
    }
}
