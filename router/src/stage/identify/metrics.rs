//! `portolan_router_identify_…`: who asked, and where the answers about tokens came from. Told by `identify`.

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
#[derive(Debug, Clone)]
pub(crate) struct IdentifyMetrics {
    outcomes: Family<OutcomeLabels, Counter>,
    sources: Family<SourceLabels, Counter>,
    /// Of these, what most requests are and most answers come from, so that they need not look for it.
    pods: Counter,
    from_kept: Counter,
    kept: Gauge,
}

impl Default for IdentifyMetrics {
    fn default() -> Self {
        let outcomes = Family::<OutcomeLabels, Counter>::default();
        let sources = Family::<SourceLabels, Counter>::default();
        let outcome = Identified::Pod.as_str();
        let source = AnswerSource::Kept.as_str();
        Self {
            pods: outcomes.get_or_create_owned(&OutcomeLabels { outcome }),
            from_kept: sources.get_or_create_owned(&SourceLabels { source }),
            outcomes,
            sources,
            kept: Gauge::default(),
        }
    }
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
        if outcome == Identified::Pod {
            self.pods.inc();
            return;
        }
        let outcome = outcome.as_str();
        self.outcomes.get_or_create(&OutcomeLabels { outcome }).inc();
    }

    pub(crate) fn source(&self, source: AnswerSource) {
        if source == AnswerSource::Kept {
            self.from_kept.inc();
            return;
        }
        let source = source.as_str();
        self.sources.get_or_create(&SourceLabels { source }).inc();
    }

    pub(crate) fn kept(&self, entries: u64) {
        self.kept.set(i64::try_from(entries).unwrap_or(i64::MAX));
    }
}
