//! Faults that were injected, counted: by kind for metrics, by rule and caller for the hub. What was ordered must be told
//! apart from what failed, wherever somebody looks.
//!
//! Bounded: of a rule and caller that the snapshot knows no more nothing is kept past the next report. Callers: `admit` and
//! `inject` count, `policies` reports.

use std::sync::LazyLock;
use std::time::Instant;

use dashmap::DashMap;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::decision::policy::{Recent, Tick};
use crate::value::injection::{Action, FaultName};
use crate::value::snapshot::CallerKey;

/// Rules times callers of which it is counted how often; of more only the metric tells. Some two hundred bytes each.
const MOST: usize = 20_000;
/// Time is counted from here.
static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// What was injected. A closed set: the words of the metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Delay,
    Abort,
    Drop,
    Stall,
    Expire,
    WatchDelay,
    RepeatBookmark,
}

impl Kind {
    const ALL: [Self; 7] = [
        Self::Delay,
        Self::Abort,
        Self::Drop,
        Self::Stall,
        Self::Expire,
        Self::WatchDelay,
        Self::RepeatBookmark,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Delay => "delay",
            Self::Abort => "abort",
            Self::Drop => "drop",
            Self::Stall => "stall",
            Self::Expire => "expire",
            Self::WatchDelay => "watch-delay",
            Self::RepeatBookmark => "repeat-bookmark",
        }
    }
}

impl From<Action> for Kind {
    fn from(action: Action) -> Self {
        match action {
            Action::Drop => Self::Drop,
            Action::Stall(_) => Self::Stall,
            Action::Expire => Self::Expire,
            Action::Delay(_) => Self::WatchDelay,
            Action::RepeatBookmark => Self::RepeatBookmark,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

/// All of this process.
#[derive(Debug, Default)]
pub(crate) struct InjectedFaults {
    by_kind: Family<KindLabels, Counter>,
    // Sharded locks: held for an addition.
    by_rule: DashMap<(FaultName, CallerKey), Recent>,
}

/// How often a fault hit a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) last_minute: u64,
    pub(crate) total: u64,
}

impl InjectedFaults {
    pub(crate) fn register(&self, registry: &mut Registry) {
        let help = "Faults that FaultInjections ordered and that were injected";
        registry.register("injected", help, self.by_kind.clone());
        // Known before they happen: the first one counts as an increase.
        for kind in Kind::ALL {
            let kind = kind.as_str();
            drop(self.by_kind.get_or_create(&KindLabels { kind }));
        }
    }

    /// One was.
    pub(crate) fn injected(&self, kind: Kind, name: &FaultName, caller: &CallerKey) {
        self.by_kind.get_or_create(&KindLabels { kind: kind.as_str() }).inc();
        let key = (name.clone(), caller.clone());
        let known = self.by_rule.len() < MOST || self.by_rule.contains_key(&key);
        if known {
            self.by_rule.entry(key).or_default().count(now());
        }
    }

    /// Forgets what `is_known` does not know: of policy and caller, whether one still holds the other.
    pub(crate) fn forget(&self, is_known: impl Fn(&FaultName, &CallerKey) -> bool) {
        self.by_rule.retain(|(name, caller), _| is_known(name, caller));
    }

    /// Tells how often each fault hit each caller.
    pub(crate) fn each(&self, mut tell: impl FnMut(&FaultName, &CallerKey, Counted)) {
        let now = now();
        for entry in &self.by_rule {
            let ((name, caller), count) = entry.pair();
            let counted = Counted {
                last_minute: count.last_minute(now),
                total: count.total(),
            };
            tell(name, caller, counted);
        }
    }

    #[cfg(test)]
    pub(crate) fn count(&self, kind: Kind) -> u64 {
        self.by_kind.get_or_create(&KindLabels { kind: kind.as_str() }).get()
    }
}

fn now() -> Tick {
    Tick::at(u64::try_from(BEGUN.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(uid: &str) -> CallerKey {
        CallerKey {
            home_cluster: "east".into(),
            pod_uid: uid.into(),
        }
    }

    #[test]
    fn each_rule_is_counted_by_caller_until_nobody_knows_it() {
        let all = InjectedFaults::default();
        let name = |rule: &str| FaultName {
            policy: "FaultInjection/ns/fj".into(),
            rule: rule.into(),
        };
        for _ in 0..3 {
            all.injected(Kind::Abort, &name("a"), &caller("1"));
        }
        all.injected(Kind::Delay, &name("b"), &caller("2"));
        let told = || {
            let mut told = Vec::new();
            all.each(|name, caller, counted| {
                told.push((
                    name.rule.to_string(),
                    caller.pod_uid.to_string(),
                    counted.last_minute,
                    counted.total,
                ));
            });
            told.sort();
            told
        };
        let of = |rule: &str, uid: &str, times: u64| (rule.to_owned(), uid.to_owned(), times, times);
        assert_eq!(told(), [of("a", "1", 3), of("b", "2", 1)]);
        all.forget(|name, _| &*name.rule == "b");
        assert_eq!(told(), [of("b", "2", 1)]);
        assert_eq!(
            (all.count(Kind::Abort), all.count(Kind::Drop)),
            (3, 0),
            "not in the metric"
        );
    }

    #[test]
    fn who_makes_up_callers_fills_nothing() {
        let all = InjectedFaults::default();
        let name = FaultName {
            policy: "FaultInjection/ns/fj".into(),
            rule: "a".into(),
        };
        for uid in 0..MOST + 10 {
            all.injected(Kind::Abort, &name, &caller(&uid.to_string()));
        }
        assert_eq!(all.by_rule.len(), MOST);
        assert_eq!(all.count(Kind::Abort), MOST as u64 + 10);
    }
}
