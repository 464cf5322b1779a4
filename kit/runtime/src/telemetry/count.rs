//! Counts log events by level: "did anything warn" is a query, not a search through logs.
//!
//! Counts from info up, whatever the log filter shows. Caller: `telemetry::build`.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Counters by level.
#[derive(Debug, Clone, Default)]
pub(super) struct EventCounts(Family<[(&'static str, &'static str); 1], Counter>);

impl EventCounts {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "log_events",
            "Log events by level, whether or not the filter showed them",
            self.0.clone(),
        );
    }
}

/// The layer that counts.
pub(super) struct CountEvents {
    // Taken out of the family once: an event costs one atomic, no map look-up.
    info: Counter,
    warn: Counter,
    error: Counter,
}

impl CountEvents {
    pub(super) fn new(counts: EventCounts) -> Self {
        let counter = |level| counts.0.get_or_create_owned(&[("level", level)]);
        Self {
            info: counter("info"),
            warn: counter("warn"),
            error: counter("error"),
        }
    }
}

impl<S: Subscriber> Layer<S> for CountEvents {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        match *event.metadata().level() {
            Level::ERROR => self.error.inc(),
            Level::WARN => self.warn.inc(),
            Level::INFO => self.info.inc(),
            _ => 0,
        };
    }
}
