//! `portolan_router_identify_…`: who asked, and where the answers about tokens came from. Told by `identify`.

use std::sync::Arc;

use portolan_runtime::metrics::Recent;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::cache::AnswerSource;

/// One closed set of words.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
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
    recent_outcomes: Arc<Recent<Identified, Counter>>,
    recent_sources: Arc<Recent<AnswerSource, Counter>>,
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

    pub(crate) fn outcome(&self, told: Identified) {
        let outcome = told.as_str();
        count(&self.recent_outcomes, told, || {
            self.outcomes.get_or_create_owned(&OutcomeLabels { outcome })
        });
    }

    pub(crate) fn source(&self, told: AnswerSource) {
        let source = told.as_str();
        count(&self.recent_sources, told, || {
            self.sources.get_or_create_owned(&SourceLabels { source })
        });
    }

    pub(crate) fn kept(&self, entries: u64) {
        self.kept.set(i64::try_from(entries).unwrap_or(i64::MAX));
    }
}

fn count<T: Copy + PartialEq>(recent: &Recent<T, Counter>, told: T, series: impl FnOnce() -> Counter) {
    let add = |series: &Counter| {
        series.inc();
    };
    recent.tell(|known| *known == told, || (told, series()), add);
}
