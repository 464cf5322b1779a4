//! `portolan_router_dispatch_…`: what members were asked, how they answered and how long the head of it took, leg by leg.
//!
//! Told by `send` and `upgrade`, in every case: a leg that its client gave up is told when it is dropped. Waiting for a
//! place (bulkhead) is before it, attempts are within it.

use std::sync::Arc;
use std::time::Instant;

use http::StatusCode;
use portolan_runtime::metrics::{Recent, TracedSeconds, TracedSeries, observe_traced};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::exemplar::HistogramWithExemplars;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Registry, Unit};

use super::Leg;
use crate::value::code::code_class;

/// A small GET takes a millisecond, a watch starts at once; a member's own deadline is at 60 s.
const SECONDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5, 10.0, 60.0];

/// Member clusters are bounded: an administrator joins each. The rest are words of enums.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LegLabels {
    cluster: Arc<str>,
    class: &'static str,
    verb: &'static str,
    /// Of the member's answer; see [`Told`] for those without one.
    code: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DurationLabels {
    cluster: Arc<str>,
    class: &'static str,
    verb: &'static str,
}

/// Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct DispatchMetrics {
    legs: Family<LegLabels, Counter>,
    // Not by code: a fifth of the series, and failures are told apart by the counter.
    seconds: TracedSeconds<DurationLabels>,
    /// Series of both by the labels of the first, and whether it was timed.
    recent: Arc<Recent<(LegLabels, bool), LegSeries>>,
}

/// What every leg tells.
#[derive(Debug, Clone)]
struct LegSeries {
    legs: Counter,
    /// `None`: its breaker did not let it through.
    seconds: Option<TracedSeries>,
}

impl Default for DispatchMetrics {
    fn default() -> Self {
        Self {
            legs: Family::default(),
            seconds: Family::new_with_constructor(|| HistogramWithExemplars::new(SECONDS.into_iter())),
            recent: Arc::default(),
        }
    }
}

impl DispatchMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        let help = "Legs: requests to one member each, by how that answered; none: it did not, refused: its breaker is open, gone: its client did not wait";
        registry.register("legs", help, self.legs.clone());
        let help = "Time from asking a member to the head of its answer, or until there will be none";
        registry.register_with_unit("leg_duration", help, Unit::Seconds, self.seconds.clone());
    }

    /// A leg is about to be sent. Dropped untold, its client is gone.
    pub(super) fn begin(&self, leg: &Leg, trace_id: Option<String>) -> Told {
        Told {
            metrics: self.clone(),
            cluster: leg.forward.target.cluster.clone(),
            class: leg.forward.traffic.class.as_str(),
            verb: leg.asked.verb.as_str(),
            code: "gone",
            asked: None,
            trace_id,
        }
    }
}

/// One leg, told when it is dropped.
pub(super) struct Told {
    metrics: DispatchMetrics,
    cluster: Arc<str>,
    class: &'static str,
    verb: &'static str,
    code: &'static str,
    /// Since its breaker let it through first.
    asked: Option<Instant>,
    trace_id: Option<String>,
}

impl Told {
    /// The breaker lets it through.
    pub(super) fn asked(&mut self) {
        self.asked.get_or_insert_with(Instant::now);
    }

    /// It is over; `None`: there is no answer of the member's.
    pub(super) fn over(mut self, status: Option<StatusCode>) {
        self.code = match (status, self.asked) {
            (Some(status), _) => code_class(Some(status.as_u16())),
            (None, Some(_)) => "none",
            (None, None) => "refused",
        };
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        let (metrics, cluster) = (&self.metrics, &self.cluster);
        let (class, verb, code) = (self.class, self.verb, self.code);
        let took = self.asked.map(|asked| asked.elapsed());
        let timed = took.is_some();
        let is = |(labels, also_timed): &(LegLabels, bool)| {
            (labels.class, labels.verb, labels.code) == (class, verb, code)
                && labels.cluster == *cluster
                && *also_timed == timed
        };
        let make = || {
            let cluster = cluster.clone();
            let times = || {
                metrics.seconds.get_or_create_owned(&DurationLabels {
                    cluster: cluster.clone(),
                    class,
                    verb,
                })
            };
            let seconds = timed.then(times);
            let labels = LegLabels {
                cluster,
                class,
                verb,
                code,
            };
            let legs = metrics.legs.get_or_create_owned(&labels);
            ((labels, timed), LegSeries { legs, seconds })
        };
        let trace_id = self.trace_id.take();
        metrics.recent.tell(is, make, |series| {
            series.legs.inc();
            if let (Some(took), Some(times)) = (took, &series.seconds) {
                observe_traced(times, took, trace_id);
            }
        });
    }
}

#[cfg(test)]
impl DispatchMetrics {
    /// Legs of a member by code.
    pub(crate) fn count(&self, cluster: &str, class: &'static str, verb: &'static str, code: &'static str) -> u64 {
        let labels = LegLabels {
            cluster: cluster.into(),
            class,
            verb,
            code,
        };
        self.legs.get_or_create(&labels).get()
    }
}
