//! Tells of every request when it is over, in every case: one access line, one observation of the metrics.
//!
//! A [`Completion`] begins with the request and goes with the answer's body; it reports when it is dropped, so a client
//! that goes away and a body that breaks are told like everything else. Caller: `edge`.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use http::StatusCode;
use portolan_runtime::telemetry;

use super::metrics::RequestMetrics;
use super::record::RequestRecord;
use crate::decision::plan::Rule;
use crate::resource::upstream::Ended;
use crate::value::classify::Verb;

/// Seconds are counted from here.
static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Names for the access line; not labels.
#[derive(Debug, Default)]
pub(crate) struct Names {
    pub(crate) caller: Option<String>,
    pub(crate) shard: Option<String>,
    pub(crate) method: Option<http::Method>,
    pub(crate) path: String,
    pub(crate) trace_id: Option<String>,
}

/// A request that is going on.
pub(crate) struct Completion {
    pub(crate) record: RequestRecord,
    pub(crate) names: Names,
    started: Instant,
    metrics: Arc<RequestMetrics>,
}

impl Completion {
    pub(crate) fn new(metrics: Arc<RequestMetrics>, names: Names) -> Self {
        let record = RequestRecord {
            verb: None,
            rule: None,
            class: None,
            cluster: None,
            status: None,
            reason: None,
            ended: Ended::ClientGone,
            head: None,
            total: Duration::ZERO,
            bytes: 0,
            audited: false,
            panicked: false,
        };
        metrics.begin();
        Self {
            record,
            names,
            started: Instant::now(),
            metrics,
        }
    }

    /// The answer's head is decided.
    pub(crate) fn answered(&mut self, status: StatusCode) {
        self.record.status = Some(status);
        self.record.head = Some(self.started.elapsed());
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        self.record.total = self.started.elapsed();
        self.metrics.observe(&self.record, self.names.trace_id.as_deref());
        let (record, names) = (&self.record, &self.names);
        if names.caller.is_none() && !self.metrics.strangers.may_write(BEGUN.elapsed().as_secs()) {
            return;
        }
        // A target of its own, so that `--log-level info,access=warn` turns these lines off alone.
        tracing::info!(
            target: telemetry::ACCESS,
            method = names.method.as_ref().map(http::Method::as_str),
            path = names.path,
            caller = names.caller,
            shard = names.shard,
            verb = record.verb.map(Verb::as_str),
            rule = record.rule.map(Rule::as_str),
            cluster = record.cluster.as_deref(),
            status = record.status.map(|status| status.as_u16()),
            reason = record.reason,
            ended = record.ended.as_str(),
            bytes = record.bytes,
            milliseconds = u64::try_from(record.total.as_millis()).unwrap_or(u64::MAX),
            trace = names.trace_id,
            "request"
        );
    }
}
