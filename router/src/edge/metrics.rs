//! Requests, told once each when they are over (`edge::RequestRecord`).

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use portolan_crds::partition::ChildRole;
use portolan_runtime::metrics::{Recent, TracedSeconds, TracedSeries, observe_traced};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::exemplar::HistogramWithExemplars;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::record::RequestRecord;
use super::strangers::Strangers;
use super::tail::TailMetrics;
use crate::decision::plan::Rule;
use crate::value::classify::Verb;
use crate::value::code::{NONE, code_class};
use crate::value::traffic::TrafficClass;

/// A small GET takes about a millisecond; a unary request ends by its deadline.
const SECONDS: [f64; 15] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];

/// Operators that are told of by name.
const MOST_OPERATORS: usize = 64;
/// All others. No operator has this name: theirs have a slash.
const OTHER: &str = "other";

/// All values are words of enums: closed sets.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    verb: &'static str,
    /// The rule of the plan; it also tells the view.
    rule: &'static str,
    code: &'static str,
    /// Why an answer of our own is an error.
    reason: &'static str,
    ended: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DurationLabels {
    verb: &'static str,
    class: &'static str,
}

/// Member clusters are bounded: an administrator joins each.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MemberLabels {
    cluster: Arc<str>,
    class: &'static str,
    code: &'static str,
}

/// What a canary does beside the other children of its root. Not which shard: there may be a thousand. Of operators so many as there
/// is room for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ChildLabels {
    operator: Arc<str>,
    child: &'static str,
    verb: &'static str,
    code: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AuditLabels {
    verb: &'static str,
    rule: &'static str,
}

/// All by which [`RequestSeries`] differ.
#[derive(Debug, Clone, PartialEq)]
struct RequestKey {
    labels: RequestLabels,
    class: &'static str,
    timed: bool,
    cluster: Option<Arc<str>>,
}

/// What every request tells.
#[derive(Debug, Clone)]
struct RequestSeries {
    finished: Counter,
    /// `None`: its time says nothing.
    head_seconds: Option<TracedSeries>,
    /// `None`: it was planned for no member, or for several.
    member: Option<Counter>,
}

/// One per process.
#[derive(Debug)]
pub(crate) struct RequestMetrics {
    finished: Family<RequestLabels, Counter>,
    head_seconds: TracedSeconds<DurationLabels>,
    members: Family<MemberLabels, Counter>,
    /// Series of these three by what they are told of.
    recent: Recent<RequestKey, RequestSeries>,
    children: Family<ChildLabels, Counter>,
    /// The operators that are told of by name. A mutex: of requests of roots' children alone, and held for a look.
    operators: Mutex<BTreeSet<Arc<str>>>,
    audited: Family<AuditLabels, Counter>,
    answer_bytes: Counter,
    in_flight: Gauge,
    pub(super) strangers: Strangers,
    pub(super) tail: TailMetrics,
}

impl Default for RequestMetrics {
    fn default() -> Self {
        Self {
            finished: Family::default(),
            head_seconds: Family::new_with_constructor(|| HistogramWithExemplars::new(SECONDS.into_iter())),
            members: Family::default(),
            recent: Recent::default(),
            children: Family::default(),
            operators: Mutex::default(),
            audited: Family::default(),
            answer_bytes: Counter::default(),
            in_flight: Gauge::default(),
            strangers: Strangers::default(),
            tail: TailMetrics::default(),
        }
    }
}

impl RequestMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register("finished", "Requests that are over", self.finished.clone());
        let help = "Time to the head of the answer, of requests without an injected fault";
        registry.register_with_unit("head_duration", help, Unit::Seconds, self.head_seconds.clone());
        registry.register(
            "by_member",
            "Requests that were planned for a member",
            self.members.clone(),
        );
        let help = "Requests of callers whose shard a root has generated";
        registry.register("by_child", help, self.children.clone());
        let help = "Requests outside their caller's shard that Audit let through";
        registry.register("audited", help, self.audited.clone());
        registry.register_with_unit("answer", "Bytes of answers", Unit::Bytes, self.answer_bytes.clone());
        let help = "Access lines that were not written: too many a second of unknown senders";
        registry.register("access_lines_left_out", help, self.strangers.left_out.clone());
        registry.register("in_flight", "Requests that are being served", self.in_flight.clone());
        self.tail.register(registry);
    }

    /// A request has come.
    pub(crate) fn begin(&self) {
        self.in_flight.inc();
    }

    /// It is over. `trace_id`: of a trace that is kept.
    pub(crate) fn observe(&self, record: &RequestRecord, trace_id: Option<&str>) {
        self.in_flight.dec();
        let verb = record.verb.map_or(NONE, Verb::as_str);
        let rule = record.rule.map_or(NONE, Rule::as_str);
        let class = record.class.map_or(NONE, TrafficClass::as_str);
        let code = code_class(record.status.map(|status| status.as_u16()));
        let reason = record.reason.unwrap_or(NONE);
        let labels = RequestLabels {
            verb,
            rule,
            code,
            reason,
            ended: record.ended.as_str(),
        };
        let head = record.head.filter(|_| !record.injected);
        let (timed, cluster) = (head.is_some(), record.cluster.as_ref());
        let is = |key: &RequestKey| {
            key.labels == labels && (key.class, key.timed) == (class, timed) && key.cluster.as_ref() == cluster
        };
        let make = || {
            let key = RequestKey {
                labels: labels.clone(),
                class,
                timed,
                cluster: cluster.cloned(),
            };
            let series = self.series(&key);
            (key, series)
        };
        self.recent.tell(is, make, |series| {
            series.finished.inc();
            if let (Some(head), Some(times)) = (head, &series.head_seconds) {
                observe_traced(times, head, trace_id.map(str::to_owned));
            }
            if let Some(member) = &series.member {
                member.inc();
            }
        });
        if let Some(child) = record.child {
            let child = match child {
                ChildRole::Canary => "canary",
                ChildRole::Normal => "normal",
            };
            let operator = self.told_operator(&record.operator);
            let labels = ChildLabels {
                operator,
                child,
                verb,
                code,
            };
            self.children.get_or_create(&labels).inc();
        }
        if record.audited {
            self.audited.get_or_create(&AuditLabels { verb, rule }).inc();
        }
        self.answer_bytes.inc_by(record.bytes);
    }

    /// Authors choose the names: those that come first are told, and all others as one.
    fn told_operator(&self, operator: &Arc<str>) -> Arc<str> {
        let mut told = self.operators.lock();
        if told.contains(operator) || told.len() < MOST_OPERATORS && told.insert(operator.clone()) {
            operator.clone()
        } else {
            OTHER.into()
        }
    }

    fn series(&self, key: &RequestKey) -> RequestSeries {
        let (verb, class, code) = (key.labels.verb, key.class, key.labels.code);
        let times = || self.head_seconds.get_or_create_owned(&DurationLabels { verb, class });
        let of_member = |cluster: &Arc<str>| {
            let cluster = cluster.clone();
            self.members.get_or_create_owned(&MemberLabels { cluster, class, code })
        };
        RequestSeries {
            finished: self.finished.get_or_create_owned(&key.labels),
            head_seconds: key.timed.then(times),
            member: key.cluster.as_ref().map(of_member),
        }
    }
}
