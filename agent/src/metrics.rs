//! The agent's metrics, `portolan_agent_…`. Labels are closed sets: never a name of an object, a kind or a namespace.
//!
//! Registered once by `app`; every module holds a clone and counts through the methods.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// Which watch of the member's API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Watched {
    Namespaces,
    Callers,
    Roles,
    Objects,
    Definitions,
    Policies,
}

/// How a patch of labels ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patched {
    /// The labels were written.
    Labelled,
    /// The object was gone or another one had its name: nothing was written.
    Gone,
    /// The write failed and is tried again.
    Failed,
    /// The API server refuses any such patch of this object: not tried again before the object changes.
    Refused,
}

impl Watched {
    fn word(self) -> &'static str {
        match self {
            Self::Namespaces => "namespaces",
            Self::Callers => "callers",
            Self::Roles => "roles",
            Self::Objects => "objects",
            Self::Definitions => "definitions",
            Self::Policies => "policies",
        }
    }
}

impl Patched {
    fn word(self) -> &'static str {
        match self {
            Self::Labelled => "labelled",
            Self::Gone => "gone",
            Self::Failed => "failed",
            Self::Refused => "refused",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WatchLabels {
    watched: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PatchLabels {
    outcome: &'static str,
}

/// All metrics. Clones are the same ones.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    patches: Family<PatchLabels, Counter>,
    queued: Gauge,
    objects: Gauge,
    unlabelled: Gauge,
    kinds: Gauge,
    kinds_complete: Gauge,
    watch_failures: Family<WatchLabels, Counter>,
    probe_seconds: Histogram,
    api_ready: Gauge,
    token_expiry: Gauge<f64, AtomicU64>,
    mint_failures: Counter,
    identity_expiry: Gauge<f64, AtomicU64>,
    hub_connected: Gauge,
    hub_reconnects: Counter,
    configs_refused: Counter,
    reviews: Counter,
    admission_installed: Gauge,
    // A mutex: what each sweep has last said of its queue and its objects, so that the gauges are sums of all.
    sums: Arc<Mutex<Sums>>,
}

/// Queue, objects and unlabelled objects over all kinds.
#[derive(Debug, Default)]
struct Sums {
    queued: i64,
    objects: i64,
    unlabelled: i64,
}

/// What one sweep contributes to the sums. Taken back when it is dropped.
#[derive(Debug)]
pub(crate) struct SweepGauges {
    metrics: Metrics,
    queued: i64,
    objects: i64,
    unlabelled: i64,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            patches: Family::default(),
            queued: Gauge::default(),
            objects: Gauge::default(),
            unlabelled: Gauge::default(),
            kinds: Gauge::default(),
            kinds_complete: Gauge::default(),
            watch_failures: Family::default(),
            // 1 ms to 8 s: the probe's own time-out is 10 s.
            probe_seconds: Histogram::new(exponential_buckets(0.001, 2.0, 14)),
            api_ready: Gauge::default(),
            token_expiry: Gauge::default(),
            mint_failures: Counter::default(),
            identity_expiry: Gauge::default(),
            hub_connected: Gauge::default(),
            hub_reconnects: Counter::default(),
            configs_refused: Counter::default(),
            reviews: Counter::default(),
            admission_installed: Gauge::default(),
            sums: Arc::default(),
        }
    }
}

impl Metrics {
    pub(crate) fn register_labels(&self, registry: &mut Registry) {
        registry.register("patches", "Patches of labels by outcome", self.patches.clone());
        registry.register("queue_objects", "Objects waiting for their labels", self.queued.clone());
        registry.register("objects", "Objects of the labelled kinds", self.objects.clone());
        registry.register(
            "unlabelled_objects",
            "Objects without their labels",
            self.unlabelled.clone(),
        );
        registry.register("kinds", "Kinds that are labelled", self.kinds.clone());
        registry.register(
            "complete_kinds",
            "Kinds whose coverage is complete",
            self.kinds_complete.clone(),
        );
        registry.register(
            "admission_installed",
            "1 while the admission policy labels new objects",
            self.admission_installed.clone(),
        );
    }

    pub(crate) fn register_member(&self, registry: &mut Registry) {
        registry.register(
            "watch_failures",
            "Watches of the API server that broke",
            self.watch_failures.clone(),
        );
        registry.register_with_unit(
            "probe",
            "Round trip of /readyz of the API server",
            Unit::Seconds,
            self.probe_seconds.clone(),
        );
        registry.register("api_ready", "1 while the API server is ready", self.api_ready.clone());
        registry.register_with_unit(
            "token_expiry_timestamp",
            "End of the newest router token",
            Unit::Seconds,
            self.token_expiry.clone(),
        );
        registry.register(
            "mint_failures",
            "Token requests that failed",
            self.mint_failures.clone(),
        );
        registry.register("reviews", "Tokens reviewed for hub and routers", self.reviews.clone());
    }

    pub(crate) fn register_hub(&self, registry: &mut Registry) {
        registry.register(
            "connected",
            "1 while the stream to the hub is up",
            self.hub_connected.clone(),
        );
        registry.register(
            "reconnects",
            "Streams to the hub that ended",
            self.hub_reconnects.clone(),
        );
        registry.register(
            "configs_refused",
            "Configurations of the hub that were refused",
            self.configs_refused.clone(),
        );
        registry.register_with_unit(
            "identity_expiry_timestamp",
            "End of the agent's certificate",
            Unit::Seconds,
            self.identity_expiry.clone(),
        );
    }

    pub(crate) fn patched(&self, outcome: Patched) {
        self.patches
            .get_or_create(&PatchLabels {
                outcome: outcome.word(),
            })
            .inc();
    }

    pub(crate) fn watch_failed(&self, watched: Watched) {
        self.watch_failures
            .get_or_create(&WatchLabels {
                watched: watched.word(),
            })
            .inc();
    }

    pub(crate) fn probed(&self, ready: bool, took: Duration) {
        self.probe_seconds.observe(took.as_secs_f64());
        self.api_ready.set(ready.into());
    }

    #[allow(clippy::cast_precision_loss)] // exact for some 285 million years
    pub(crate) fn minted(&self, expires_unix_seconds: i64) {
        self.token_expiry.set(expires_unix_seconds as f64);
    }

    pub(crate) fn mint_failed(&self) {
        self.mint_failures.inc();
    }

    pub(crate) fn reviewed(&self) {
        self.reviews.inc();
    }

    pub(crate) fn identity_until(&self, end: std::time::SystemTime) {
        let seconds = end
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs_f64();
        self.identity_expiry.set(seconds);
    }

    pub(crate) fn hub_connected(&self, connected: bool) {
        self.hub_connected.set(connected.into());
        if !connected {
            self.hub_reconnects.inc();
        }
    }

    pub(crate) fn config_refused(&self) {
        self.configs_refused.inc();
    }

    pub(crate) fn admission(&self, installed: bool) {
        self.admission_installed.set(installed.into());
    }

    pub(crate) fn coverage(&self, kinds: usize, complete: usize) {
        self.kinds.set(i64::try_from(kinds).unwrap_or(i64::MAX));
        self.kinds_complete.set(i64::try_from(complete).unwrap_or(i64::MAX));
    }

    /// The part of one sweep in the sums over all kinds.
    pub(crate) fn sweep(&self) -> SweepGauges {
        SweepGauges {
            metrics: self.clone(),
            queued: 0,
            objects: 0,
            unlabelled: 0,
        }
    }
}

impl SweepGauges {
    pub(crate) fn set(&mut self, queued: usize, objects: u64, labelled: u64) {
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let (queued, objects, unlabelled) = (
            number(queued as u64),
            number(objects),
            number(objects.saturating_sub(labelled)),
        );
        let mut sums = self.metrics.sums.lock();
        sums.queued += queued - std::mem::replace(&mut self.queued, queued);
        sums.objects += objects - std::mem::replace(&mut self.objects, objects);
        sums.unlabelled += unlabelled - std::mem::replace(&mut self.unlabelled, unlabelled);
        self.metrics.queued.set(sums.queued);
        self.metrics.objects.set(sums.objects);
        self.metrics.unlabelled.set(sums.unlabelled);
    }
}

impl Drop for SweepGauges {
    fn drop(&mut self) {
        self.set(0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_over_sweeps_that_come_and_go() {
        let metrics = Metrics::default();
        let (mut pods, mut services) = (metrics.sweep(), metrics.sweep());
        pods.set(3, 10, 7);
        services.set(1, 5, 5);
        assert_eq!(
            (metrics.queued.get(), metrics.objects.get(), metrics.unlabelled.get()),
            (4, 15, 3)
        );
        pods.set(0, 10, 10);
        drop(services);
        assert_eq!(
            (metrics.queued.get(), metrics.objects.get(), metrics.unlabelled.get()),
            (0, 10, 0)
        );
    }

    #[test]
    fn names_follow_the_house_form() {
        let registry = portolan_runtime::metrics::Registry::new("agent");
        let metrics = Metrics::default();
        registry.scope("labels", |part| metrics.register_labels(part));
        registry.scope("member", |part| metrics.register_member(part));
        registry.scope("hub", |part| metrics.register_hub(part));
        metrics.patched(Patched::Labelled);
        let text = registry.encode().unwrap();
        for line in [
            "portolan_agent_labels_patches_total{outcome=\"labelled\"} 1\n",
            "portolan_agent_member_token_expiry_timestamp_seconds ",
            "portolan_agent_hub_connected 0\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
