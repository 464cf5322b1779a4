//! The span exporter's manners: a collector that is down is warned of once in a while and counted, no more.
//!
//! Runs on the batch processor's own thread; whatever happens here, no request waits. Caller: `telemetry::provider`.

use std::time::{Duration, Instant};

use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

/// The first repetition of a warning comes after this, each further one after twice as long.
const FIRST_REPEAT: Duration = Duration::from_mins(1);
const LAST_REPEAT: Duration = Duration::from_hours(1);

#[derive(Debug, Clone, Default)]
pub(super) struct ExportCounts {
    pub(super) spans: Counter,
    pub(super) lost: Counter,
}

impl ExportCounts {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "trace_spans_exported",
            "Spans that the collector took",
            self.spans.clone(),
        );
        registry.register(
            "trace_spans_lost",
            "Spans given up because an export failed",
            self.lost.clone(),
        );
    }
}

/// Wraps an exporter, counting and warning.
#[derive(Debug)]
pub(super) struct QuietExporter<E> {
    inner: E,
    endpoint: String,
    counts: ExportCounts,
    // A mutex: exports are one at a time; it makes the type Sync.
    silence: Mutex<Silence>,
}

/// How long failures of the exporter are not warned of again.
#[derive(Debug, Default)]
struct Silence {
    /// `None`: the last export went well.
    until: Option<Instant>,
    length: Duration,
}

impl<E> QuietExporter<E> {
    pub(super) fn new(inner: E, endpoint: &str, counts: ExportCounts) -> Self {
        Self {
            inner,
            endpoint: endpoint.to_owned(),
            counts,
            silence: Mutex::default(),
        }
    }

    fn note(&self, spans: u64, result: &OTelSdkResult) {
        match result {
            Ok(()) => {
                self.counts.spans.inc_by(spans);
                if self.silence.lock().recovered() {
                    tracing::info!(endpoint = self.endpoint, "traces are exported again");
                }
            }
            Err(error) => {
                self.counts.lost.inc_by(spans);
                if self.silence.lock().failed(Instant::now()) {
                    tracing::warn!(endpoint = self.endpoint, %error, "cannot export traces, dropping them");
                }
            }
        }
    }
}

impl Silence {
    /// True if this failure shall be warned of.
    fn failed(&mut self, now: Instant) -> bool {
        let speak = self.until.is_none_or(|until| now >= until);
        if speak {
            self.length = (self.length * 2).clamp(FIRST_REPEAT, LAST_REPEAT);
            self.until = Some(now + self.length);
        }
        speak
    }

    /// True if there was a warning to take back.
    fn recovered(&mut self) -> bool {
        std::mem::take(self).until.is_some()
    }
}

impl<E: SpanExporter> SpanExporter for QuietExporter<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len() as u64;
        let result = self.inner.export(batch).await;
        self.note(spans, &result);
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warns_at_once_then_ever_more_rarely_then_takes_it_back() {
        let start = Instant::now();
        let mut silence = Silence::default();
        let warned: Vec<u64> = (0..4 * 3600)
            .filter(|second| silence.failed(start + Duration::from_secs(*second)))
            .collect();
        assert_eq!(warned, [0, 60, 180, 420, 900, 1860, 3780, 7380, 10980]);
        assert!(silence.recovered());
        assert!(!silence.recovered());
        assert!(silence.failed(start));
    }
}
