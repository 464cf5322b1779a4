//! Errors and slow requests that were not sampled when they came: each kept as one span, made of the completion record.
//!
//! What it cost to find them is paid by all requests, so it is next to nothing: the ids that the request had anyway, and two
//! comparisons when it is over. A client cannot ask to be kept; what it may bring about is bounded (`budget`). Caller:
//! `completion`.

mod budget;

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use opentelemetry::KeyValue;
use parking_lot::Mutex;
use portolan_runtime::telemetry::{Keeper, KeptSpan, Unsampled, short};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use self::budget::Budget;
use super::record::{Names, RequestRecord};
use super::span::{self, method};
use crate::decision::plan::Rule;
use crate::resource::upstream::Ended;
use crate::value::classify::Verb;

/// Times of the budget are counted from here.
static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// What is kept, by flags.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct TailSettings {
    /// Spans a second; 0: none.
    pub(crate) rate: f64,
    /// From here on a request is slow; zero: none is.
    pub(crate) slow: Duration,
}

/// Why a request is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Why {
    Error,
    Slow,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WhyLabels {
    why: &'static str,
}

/// Cheap to clone: clones are the same figures.
#[derive(Debug, Clone, Default)]
pub(super) struct TailMetrics {
    kept: Family<WhyLabels, Counter>,
    over_budget: Family<WhyLabels, Counter>,
}

/// One per process that exports traces.
pub(crate) struct Tail {
    keeper: Keeper,
    slow: Duration,
    /// A mutex: held for two subtractions, by requests that are kept.
    budget: Mutex<Budget>,
    metrics: TailMetrics,
}

impl Why {
    fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Slow => "slow",
        }
    }

    /// `None`: nothing worth keeping. What is refused for the client's own fault is in metrics and access lines.
    fn of(record: &RequestRecord, long: bool, slow: Duration) -> Option<Self> {
        // Not what `/readyz` says while the router is not ready: it is asked every second.
        let own_health = record.rule.is_none() && record.reason.is_none();
        let failed = !own_health && record.status.is_some_and(|status| status.is_server_error());
        // What goes on for long breaks off some day; clients begin anew.
        if failed || record.panicked || record.ended == Ended::Broken && !long {
            return Some(Self::Error);
        }
        let took = if long {
            record.head.unwrap_or_default()
        } else {
            record.total
        };
        (!slow.is_zero() && took >= slow).then_some(Self::Slow)
    }
}

impl TailMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        let help = "Requests that were not sampled and are kept as one span, by why";
        registry.register("tail_kept", help, self.kept.clone());
        let help = "Errors and slow requests that were not kept as a span: over the budget";
        registry.register("tail_over_budget", help, self.over_budget.clone());
    }
}

impl Tail {
    /// `None` where nothing is to be kept.
    pub(super) fn new(keeper: Option<Keeper>, settings: TailSettings, metrics: TailMetrics) -> Option<Self> {
        let keeper = keeper.filter(|_| settings.rate > 0.0)?;
        LazyLock::force(&BEGUN);
        Some(Self {
            keeper,
            slow: settings.slow,
            budget: Mutex::new(Budget::new(settings.rate)),
            metrics,
        })
    }

    /// Keeps it if it is worth it; true if it does. `long`: judged by its head.
    pub(super) fn look(&self, (record, names): (&RequestRecord, &Names), long: bool, ids: &Unsampled) -> bool {
        let Some(why) = Why::of(record, long, self.slow) else {
            return false;
        };
        let labels = WhyLabels { why: why.as_str() };
        let tenant = names.shard.as_deref().or(names.caller.as_deref()).unwrap_or_default();
        if !self.budget.lock().spend(tenant, BEGUN.elapsed()) {
            self.metrics.over_budget.get_or_create(&labels).inc();
            return false;
        }
        self.metrics.kept.get_or_create(&labels).inc();
        let took = record.head.filter(|_| long).unwrap_or(record.total);
        self.keeper.keep(KeptSpan {
            ids: ids.clone(),
            name: name(record, names),
            took,
            attributes: attributes(record, names, why),
            error: (why == Why::Error).then(|| names.fault.clone().unwrap_or_default()),
        });
        true
    }
}

/// As the request's own span would have been called.
fn name(record: &RequestRecord, names: &Names) -> String {
    let method = || names.method.as_ref().map_or("request", method);
    match (record.verb, &names.resource) {
        (Some(verb), Some(resource)) => format!("{} {}", verb.as_str(), short(resource)),
        _ => method().to_owned(),
    }
}

/// As many as there are here, each as long as `short` allows.
fn attributes(record: &RequestRecord, names: &Names, why: Why) -> Vec<KeyValue> {
    let text = |key, value: Option<&str>| value.map(|value| KeyValue::new(key, short(value).to_owned()));
    let status = record.status.map(|status| i64::from(status.as_u16()));
    let number = |key, value: Option<i64>| value.map(|value| KeyValue::new(key, value));
    let head = record
        .head
        .map(|head| i64::try_from(head.as_millis()).unwrap_or(i64::MAX));
    [
        text("kept", Some(why.as_str())),
        text("http.request.method", names.method.as_ref().map(method)),
        text("url.path", Some(&names.path)),
        number("http.response.status_code", status),
        text("caller", names.caller.as_deref()),
        text("shard", names.shard.as_deref()),
        text("verb", record.verb.map(Verb::as_str)),
        text("resource", names.resource.as_deref()),
        text("plan", record.rule.map(Rule::as_str)),
        text("clusters", record.cluster.as_deref()),
        text("reason", record.reason),
        text(span::PORTOLAN_FAULT, names.injected.as_deref()),
        text("ended", Some(record.ended.as_str())),
        number("head_ms", head),
        number("bytes", i64::try_from(record.bytes).ok()),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    const LATE: Duration = Duration::from_secs(3);

    fn record() -> RequestRecord {
        RequestRecord {
            rule: Some(Rule::OwnedNamespace),
            status: Some(StatusCode::OK),
            ended: Ended::Complete,
            head: Some(Duration::from_millis(10)),
            total: Duration::from_millis(20),
            ..RequestRecord::default()
        }
    }

    fn but(change: impl FnOnce(&mut RequestRecord)) -> RequestRecord {
        let mut record = record();
        change(&mut record);
        record
    }

    fn code(code: u16) -> RequestRecord {
        but(|record| record.status = StatusCode::from_u16(code).ok())
    }

    #[test]
    fn errors_are_kept() {
        let broken = || but(|record| record.ended = Ended::Broken);
        let not_ready = but(|record| (record.rule, record.status) = (None, Some(StatusCode::SERVICE_UNAVAILABLE)));
        for (name, record, long, kept) in [
            ("a good one", record(), false, false),
            ("refused", code(403), false, false),
            ("shed", code(429), false, false),
            ("member away", code(503), false, true),
            ("not ready", not_ready, false, false),
            ("watch refused", code(504), true, true),
            ("a panic", but(|record| record.panicked = true), false, true),
            ("half an answer", broken(), false, true),
            ("a watch that broke", broken(), true, false),
        ] {
            let why = Why::of(&record, long, Duration::from_secs(2));
            assert_eq!(why, kept.then_some(Why::Error), "{name}");
        }
    }

    #[test]
    fn slow_ones_are_kept() {
        let total = || but(|record| record.total = LATE);
        let head = but(|record| record.head = Some(LATE));
        let two = Duration::from_secs(2);
        for (name, record, long, slow, kept) in [
            ("slow", total(), false, two, true),
            ("not so slow", total(), false, LATE * 2, false),
            ("never", total(), false, Duration::ZERO, false),
            ("a long watch", total(), true, two, false),
            ("a watch that began late", head, true, two, true),
        ] {
            assert_eq!(Why::of(&record, long, slow), kept.then_some(Why::Slow), "{name}");
        }
    }

    #[test]
    fn what_clients_wrote_is_cut() {
        let names = Names {
            path: "/x".repeat(40_000),
            resource: Some("y".repeat(40_000)),
            method: Some("M".repeat(100).parse().unwrap()),
            ..Names::default()
        };
        let record = RequestRecord {
            verb: Some(Verb::List),
            ..record()
        };
        let all = attributes(&record, &names, Why::Slow);
        let bytes: usize = all.iter().map(|attribute| attribute.value.as_str().len()).sum();
        assert!(all.len() <= 15 && bytes < 1024, "{} of {bytes} bytes", all.len());
        assert!(name(&record, &names).len() < 512);
    }
}
