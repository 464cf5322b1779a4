//! The agent's metrics, `portolan_agent_…`. Labels are closed sets: never a name of an object, a kind or a namespace.
//!
//! Registered once by `app`; every module holds a clone and counts through the methods.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use portolan_runtime::metrics::{Seconds, count};
use prometheus_client::encoding::EncodeLabelValue;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

/// Which watch of the member's API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "the label's value is the variant's name")]
pub(crate) enum Watched {
    namespaces,
    nodes,
    callers,
    roles,
    objects,
    definitions,
    policies,
}

/// How a patch of labels ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "the label's value is the variant's name")]
pub(crate) enum Patched {
    /// The labels were written.
    labelled,
    /// The object was gone or another one had its name: nothing was written.
    gone,
    /// The write failed and is tried again.
    failed,
    /// The API server refuses any such patch of this object: not tried again before the object changes.
    refused,
}

/// Counters by the one label that they have.
type CountersBy<L> = Family<[(&'static str, L); 1], Counter>;

/// All metrics. Clones are the same ones.
#[derive(Debug, Clone, Default)]
pub(crate) struct Metrics {
    patches: CountersBy<Patched>,
    queued: Gauge,
    objects: Gauge,
    unlabelled: Gauge,
    kinds: Gauge,
    kinds_complete: Gauge,
    pace: Gauge<f64, AtomicU64>,
    watch_failures: CountersBy<Watched>,
    /// From 1 ms to 8 s: the probe's own time-out is 10 s.
    probe_seconds: Seconds<1000, 14>,
    api_ready: Gauge,
    token_expiry: Gauge<f64, AtomicU64>,
    mint_failures: Counter,
    identity_expiry: Gauge<f64, AtomicU64>,
    hub_connected: Gauge,
    hub_reconnects: Counter,
    configs_refused: Counter,
    reviews: Counter,
    admission_installed: Gauge,
}

/// What one sweep contributes to the gauges of queue and objects, which are sums over all kinds. Taken back when it is
/// dropped.
#[derive(Debug)]
pub(crate) struct SweepGauges {
    metrics: Metrics,
    queued: i64,
    objects: i64,
    unlabelled: i64,
}

impl Metrics {
    pub(crate) fn register_labels(&self, registry: &mut Registry) {
        registry.register("patches", "Patches of labels by outcome", self.patches.clone());
        for (name, help, gauge) in [
            ("queue_objects", "Objects waiting for their labels", &self.queued),
            ("objects", "Objects of the labelled kinds", &self.objects),
            ("unlabelled_objects", "Objects without their labels", &self.unlabelled),
            ("kinds", "Kinds that are labelled", &self.kinds),
            (
                "complete_kinds",
                "Kinds whose coverage is complete",
                &self.kinds_complete,
            ),
            (
                "admission_installed",
                "1 while the admission policy labels new objects",
                &self.admission_installed,
            ),
        ] {
            registry.register(name, help, gauge.clone());
        }
        let help = "Patches of labels a second that the API server is given at present";
        registry.register("pace", help, self.pace.clone());
    }

    pub(crate) fn register_member(&self, registry: &mut Registry) {
        let help = "Watches of the API server that broke";
        registry.register("watch_failures", help, self.watch_failures.clone());
        let help = "Round trip of /readyz of the API server";
        registry.register_with_unit("probe", help, Unit::Seconds, self.probe_seconds.histogram());
        registry.register("api_ready", "1 while the API server is ready", self.api_ready.clone());
        let (name, help) = ("token_expiry_timestamp", "First end of a router's token");
        registry.register_with_unit(name, help, Unit::Seconds, self.token_expiry.clone());
        let help = "Token requests that failed";
        registry.register("mint_failures", help, self.mint_failures.clone());
        registry.register("reviews", "Tokens reviewed for hub and routers", self.reviews.clone());
    }

    pub(crate) fn register_hub(&self, registry: &mut Registry) {
        let help = "1 while the stream to the hub is up";
        registry.register("connected", help, self.hub_connected.clone());
        let help = "Streams to the hub that ended";
        registry.register("reconnects", help, self.hub_reconnects.clone());
        let help = "Configurations of the hub that were refused";
        registry.register("configs_refused", help, self.configs_refused.clone());
        let (name, help) = ("identity_expiry_timestamp", "End of the agent's certificate");
        registry.register_with_unit(name, help, Unit::Seconds, self.identity_expiry.clone());
    }

    pub(crate) fn patched(&self, outcome: Patched) {
        self.patches.get_or_create(&[("outcome", outcome)]).inc();
    }

    pub(crate) fn watch_failed(&self, watched: Watched) {
        self.watch_failures.get_or_create(&[("watched", watched)]).inc();
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
        self.kinds.set(count(kinds));
        self.kinds_complete.set(count(complete));
    }

    pub(crate) fn pace(&self, per_second: f64) {
        self.pace.set(per_second);
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
        let unlabelled = objects.saturating_sub(labelled);
        for (sum, part, now) in [
            (&self.metrics.queued, &mut self.queued, number(queued as u64)),
            (&self.metrics.objects, &mut self.objects, number(objects)),
            (&self.metrics.unlabelled, &mut self.unlabelled, number(unlabelled)),
        ] {
            sum.inc_by(now - std::mem::replace(part, now));
        }
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
        metrics.patched(Patched::labelled);
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
