//! Tells of every request when it is over, in every case: one access line, one observation of the metrics.
//!
//! A [`Completion`] begins with the request and goes with the answer's body; it reports when it is dropped, so a client
//! that goes away and a body that breaks are told like everything else. Caller: `edge`.

use std::sync::{Arc, LazyLock};
use std::time::Instant;

use http::StatusCode;
use portolan_runtime::telemetry::{self, Unsampled, short};

use super::metrics::RequestMetrics;
use super::record::{Names, RequestRecord};
use super::tail::Tail;
use crate::decision::plan::Rule;
use crate::value::classify::Verb;
use crate::value::fault::Fault;

/// Seconds are counted from here.
static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// How a request that was not sampled may be kept all the same.
pub(crate) struct Latecomer {
    pub(crate) tail: Arc<Tail>,
    pub(crate) ids: Unsampled,
}

/// A request that is going on.
pub(crate) struct Completion {
    pub(crate) record: RequestRecord,
    pub(crate) names: Names,
    started: Instant,
    metrics: Arc<RequestMetrics>,
    /// Until it is looked at.
    latecomer: Option<Latecomer>,
}

impl Completion {
    pub(crate) fn new(metrics: Arc<RequestMetrics>, names: Names, latecomer: Option<Latecomer>) -> Self {
        metrics.begin();
        Self {
            record: RequestRecord::default(),
            names,
            started: Instant::now(),
            metrics,
            latecomer,
        }
    }

    /// The answer's head is decided. What is `long` may go on for hours: whether it is kept is seen now.
    pub(crate) fn answered(&mut self, status: StatusCode, long: bool) {
        self.record.status = Some(status);
        self.record.head = Some(self.started.elapsed());
        if long {
            self.look(true);
        }
    }

    /// An answer of our own, which is an error.
    pub(crate) fn failed(&mut self, fault: &Fault) {
        self.record.reason = Some(fault.reason());
        if matches!(fault, Fault::Injected(_)) {
            // It reached no member, and is nothing that one of them did.
            self.record.cluster = None;
        }
        if self.latecomer.is_some() {
            let mut text = fault.to_string();
            text.truncate(short(&text).len());
            self.names.fault = Some(text);
        }
    }

    fn look(&mut self, long: bool) {
        let Some(Latecomer { tail, ids }) = self.latecomer.take() else {
            return;
        };
        if tail.look((&self.record, &self.names), long, &ids) {
            self.names.trace_id = Some(ids.trace_id());
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        self.record.total = self.started.elapsed();
        self.look(false);
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
            caller = names.caller.as_deref(),
            shard = names.shard.as_deref(),
            verb = record.verb.map(Verb::as_str),
            rule = record.rule.map(Rule::as_str),
            cluster = record.cluster.as_deref(),
            status = record.status.map(|status| status.as_u16()),
            reason = record.reason,
            injected = names.injected,
            ended = record.ended.as_str(),
            bytes = record.bytes,
            milliseconds = u64::try_from(record.total.as_millis()).unwrap_or(u64::MAX),
            trace = names.trace_id,
            "request"
        );
    }
}

#[cfg(test)]
mod tests {
    use portolan_crds::partition::ChildRole;
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::value::fault::InjectedFault;

    /// What scrapes read of a request that was planned for east and ended so.
    fn scraped(fault: &Fault, injected: bool) -> String {
        let metrics = Arc::new(RequestMetrics::default());
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let mut completion = Completion::new(metrics, Names::default(), None);
        completion.record.cluster = Some("east".into());
        completion.record.injected = injected;
        completion.failed(fault);
        completion.answered(fault.status_code(), false);
        drop(completion);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn what_a_canary_is_answered_is_told_apart() {
        let metrics = Arc::new(RequestMetrics::default());
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let many = (0..100).map(|number| (Some(ChildRole::Normal), 200, format!("ops/o-{number:02}")));
        let few = [
            (Some(ChildRole::Canary), 422, "ops/o-00".to_owned()),
            (Some(ChildRole::Normal), 200, "ops/o-00".to_owned()),
            (None, 500, "ops/o-00".to_owned()),
        ];
        for (child, code, operator) in few.into_iter().chain(many) {
            let mut completion = Completion::new(metrics.clone(), Names::default(), None);
            completion.record.child = child;
            completion.record.operator = operator.into();
            completion.record.verb = Some(Verb::Patch);
            completion.answered(StatusCode::from_u16(code).unwrap(), false);
        }
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let lines = text.lines().filter(|line| line.starts_with("by_child_total{"));
        let mut lines: Vec<_> = lines.collect();
        lines.sort_unstable();
        let expected = [
            r#"by_child_total{operator="ops/o-00",child="canary",verb="patch",code="4xx"} 1"#,
            r#"by_child_total{operator="ops/o-00",child="normal",verb="patch",code="2xx"} 2"#,
            r#"by_child_total{operator="ops/o-01",child="normal",verb="patch",code="2xx"} 1"#,
        ];
        assert_eq!(lines[..3], expected);
        // So many by name, and all others as one.
        assert_eq!(lines.len(), 1 + 64 + 1);
        let others = r#"by_child_total{operator="other",child="normal",verb="patch",code="2xx"} 36"#;
        assert!(lines.contains(&others), "{lines:?}");
    }

    #[test]
    fn an_error_that_was_ordered_is_no_members_and_its_time_is_nobodys() {
        let ordered = Fault::Injected(Box::new(InjectedFault {
            code: StatusCode::SERVICE_UNAVAILABLE,
            name: "ops/fj/away".to_owned(),
            creates: false,
            streams: false,
            about: None,
        }));
        let failed = Fault::Unavailable {
            message: "east is away".to_owned(),
            cluster: Some("east".to_owned()),
            sent: false,
        };
        for (fault, injected) in [(ordered, true), (failed, false)] {
            let seen = scraped(&fault, injected);
            assert_ne!(seen.contains("by_member_total{cluster=\"east\""), injected, "{seen}");
            assert_ne!(seen.contains("head_duration_seconds_count{"), injected, "{seen}");
            let reason = format!("reason=\"{}\"", fault.reason());
            assert!(seen.contains(&reason), "{seen}");
        }
    }
}
