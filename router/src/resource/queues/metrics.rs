//! `portolan_router_queue_…`: how long requests waited in which queue, and who waited in vain; and the span of who waits.

use std::pin::pin;
use std::sync::{Arc, OnceLock};

use futures::FutureExt as _;
use opentelemetry::Context;
use opentelemetry::trace::TraceContextExt as _;
use portolan_runtime::telemetry;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use tokio::time::Instant;
use tracing::{Instrument as _, Span};

use super::class::Class;

/// Most wait for nothing; nobody longer than the deadline of requests.
const SECONDS: [f64; 13] = [
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0,
];

/// Of [`QueueKind`] and of [`Class`].
const KINDS: usize = 4;
const CLASSES: usize = 4;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QueueLabels {
    queue: &'static str,
    class: &'static str,
}

/// Member clusters are bounded: an administrator joins each.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusedLabels {
    cluster: Arc<str>,
    class: &'static str,
    why: &'static str,
}

/// Why nobody's turn came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Vain {
    /// As many wait as may.
    Queue,
    /// It waited as long as it could.
    Time,
}

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueueKind<'a> {
    /// The caller's own share of this router.
    Caller,
    /// The share of its tenant.
    Tenant,
    /// The member of this name.
    Member(&'a str),
    /// The tenant's places for lists and starts of watches at the member of this name.
    Places(&'a str),
}

/// Cheap to clone: clones are the same figures.
#[derive(Debug, Clone)]
pub(crate) struct QueueMetrics {
    waited: Family<QueueLabels, Histogram, fn() -> Histogram>,
    /// By kind and class, once one was told: each request is told of three, and a look into the family for each is as much
    /// as the rest of it.
    taken: Arc<[[OnceLock<Histogram>; CLASSES]; KINDS]>,
    refused: Family<RefusedLabels, Counter>,
}

impl Default for QueueMetrics {
    fn default() -> Self {
        Self {
            waited: Family::new_with_constructor(|| Histogram::new(SECONDS)),
            taken: Arc::default(),
            refused: Family::default(),
        }
    }
}

impl QueueKind<'_> {
    fn as_str(self) -> &'static str {
        match self {
            Self::Caller => "caller",
            Self::Tenant => "tenant",
            Self::Member(_) => "member",
            Self::Places(_) => "places",
        }
    }

    fn index(self) -> usize {
        match self {
            Self::Caller => 0,
            Self::Tenant => 1,
            Self::Member(_) => 2,
            Self::Places(_) => 3,
        }
    }

    /// Of who waits here, where something records it.
    fn span(self, class: Class) -> Span {
        let context = telemetry::context_of(&Span::current(), &Context::new());
        if !context.span().span_context().is_sampled() {
            return Span::none();
        }
        let cluster = match self {
            Self::Member(cluster) | Self::Places(cluster) => Some(cluster),
            Self::Caller | Self::Tenant => None,
        };
        let name = format!("queue of {}", cluster.unwrap_or(self.as_str()));
        tracing::info_span!(
            "queue",
            otel.name = name,
            queue = self.as_str(),
            class = class.as_str(),
            cluster
        )
    }
}

impl QueueMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        let help = "Time that requests waited for their turn";
        registry.register_with_unit("duration", help, Unit::Seconds, self.waited.clone());
        let help = "Requests whose turn at a member did not come: too many waited (queue), or it was waited for too long (time)";
        registry.register("refused", help, self.refused.clone());
    }

    /// Awaits somebody's turn, and tells how long that took, also of who goes away meanwhile.
    pub(crate) async fn waited<T>(&self, queue: QueueKind<'_>, class: Class, turn: impl Future<Output = T>) -> T {
        let mut turn = pin!(turn);
        // Most wait for nothing, which no clock is needed to know.
        if let Some(at_once) = turn.as_mut().now_or_never() {
            self.series(queue, class).observe(0.0);
            return at_once;
        }
        let _told = Told {
            series: self.series(queue, class),
            since: Instant::now(),
        };
        turn.instrument(queue.span(class)).await
    }
}

impl QueueMetrics {
    fn series(&self, queue: QueueKind<'_>, class: Class) -> &Histogram {
        self.taken[queue.index()][class as usize].get_or_init(|| {
            self.waited.get_or_create_owned(&QueueLabels {
                queue: queue.as_str(),
                class: class.as_str(),
            })
        })
    }

    /// A request's turn at a member did not come.
    pub(crate) fn refused(&self, cluster: &Arc<str>, class: Class, why: Vain) {
        let labels = RefusedLabels {
            cluster: cluster.clone(),
            class: class.as_str(),
            why: match why {
                Vain::Queue => "queue",
                Vain::Time => "time",
            },
        };
        self.refused.get_or_create(&labels).inc();
    }

    #[cfg(test)]
    pub(crate) fn count(&self, cluster: &str, class: Class, why: &'static str) -> u64 {
        let labels = RefusedLabels {
            cluster: cluster.into(),
            class: class.as_str(),
            why,
        };
        self.refused.get_or_create(&labels).get()
    }
}

/// Tells when it is dropped.
struct Told<'a> {
    series: &'a Histogram,
    since: Instant,
}

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.series.observe(self.since.elapsed().as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus_client::encoding::text::encode;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_waits_in_vain_has_waited_as_well() {
        let metrics = QueueMetrics::default();
        metrics.waited(QueueKind::Caller, Class::Single, async {}).await;
        let places = metrics.waited(QueueKind::Places("east"), Class::List, async {});
        places.await;
        metrics.refused(&"east".into(), Class::List, Vain::Time);
        let forever = metrics.waited(QueueKind::Member("east"), Class::List, std::future::pending::<()>());
        assert!(tokio::time::timeout(Duration::from_secs(3), forever).await.is_err());
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            r#"duration_seconds_bucket{le="0.001",queue="caller",class="single"} 1"#,
            r#"duration_seconds_bucket{le="0.001",queue="places",class="list"} 1"#,
            r#"refused_total{cluster="east",class="list",why="time"} 1"#,
            r#"duration_seconds_bucket{le="2.5",queue="member",class="list"} 0"#,
            r#"duration_seconds_bucket{le="5.0",queue="member",class="list"} 1"#,
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
}
