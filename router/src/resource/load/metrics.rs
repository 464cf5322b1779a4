//! `portolan_router_load_…`: the signals, the level, and what was shed.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::core::{Core, Level, Reason};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ShedLabels {
    class: &'static str,
    reason: &'static str,
}

type Figure = Gauge<f64, AtomicU64>;

/// Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct LoadMetrics {
    level: Gauge,
    memory: Figure,
    delay: Figure,
    shed: Family<ShedLabels, Counter>,
}

/// How late timers of the runtime that serves requests wake up, smoothed. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lateness(Figure);

impl Lateness {
    pub(crate) fn now(&self) -> Duration {
        Duration::try_from_secs_f64(self.0.get()).unwrap_or(Duration::ZERO)
    }
}

impl LoadMetrics {
    pub(crate) fn lateness(&self) -> Lateness {
        Lateness(self.delay.clone())
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        let help = "What is shed: 0 nothing, 1 lists, 2 starts of watches too, 3 single requests too";
        registry.register("level", help, self.level.clone());
        let help = "Part of the memory limit that is in use; 0 without one";
        registry.register_with_unit("memory_in_use", help, Unit::Ratios, self.memory.clone());
        let help = "How late timers wake up, smoothed";
        registry.register_with_unit("scheduling_delay", help, Unit::Seconds, self.delay.clone());
        let help = "Requests that were shed because this router is loaded";
        registry.register("shed", help, self.shed.clone());
        // There from the first scrape on: a rate needs a beginning.
        for class in [Level::Lists, Level::WatchStarts, Level::Singles] {
            for reason in Reason::ALL {
                drop(self.shed.get_or_create(&labels(class, reason)));
            }
        }
    }

    pub(super) fn measured(&self, core: &Core) {
        let (memory, delay) = core.values();
        self.level.set(core.level() as i64);
        self.memory.set(memory);
        self.delay.set(delay);
    }

    pub(super) fn shed(&self, class: Level, reason: Reason) {
        self.shed.get_or_create(&labels(class, reason)).inc();
    }
}

fn labels(class: Level, reason: Reason) -> ShedLabels {
    ShedLabels {
        class: class.as_str(),
        reason: reason.as_str(),
    }
}
