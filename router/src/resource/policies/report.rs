//! How policies stand in this router, for the hub: the worst first, and a bounded number of rules.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::{SystemTime, UNIX_EPOCH};

use portolan_crds::PolicyReason;
use portolan_wire::v1;

use super::breakers::{BreakerKey, Entry};
use super::{Clock, Policies};
use crate::decision::policy::{Stands, Tick};
use crate::resource::breaker::State;
use crate::resource::injected::Counted;
use crate::value::injection::FaultName;
use crate::value::policy::{Limit, Policy};
use crate::value::snapshot::{CallerKey, Snapshot};

/// Rules of one report.
const MOST_RULES: usize = 200;

/// Rules that callers have met.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) opened: usize,
    pub(super) closed: usize,
    /// Requests of the last minutes.
    pub(super) records: usize,
}

/// A rule as it stands. Of thousands few are told, so that nothing is written down of it yet.
struct Found<'a> {
    rank: Rank,
    name: Name<&'a str>,
    reason: &'static str,
    since: Option<Since>,
}

/// How bad it is; what is less is worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    closed: bool,
    last_minute: Reverse<u64>,
    total: Reverse<u64>,
    tokens: Option<u64>,
}

/// By what it is told from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Name<T> {
    policy: T,
    rule: T,
    /// Of a breaker.
    cluster: Option<T>,
    /// Home cluster and uid; `None`: all callers share it.
    caller: Option<(T, T)>,
}

/// When it became what it is.
enum Since {
    Tick(Tick),
    Time(SystemTime),
}

/// One that is told; those that are less are worse.
struct Told {
    rank: Rank,
    name: Name<Box<str>>,
    reason: &'static str,
    since_unix_milliseconds: i64,
}

/// The worst of some rules.
struct Worst {
    most: usize,
    clock: Clock,
    // The mildest of them on top: it makes room for one that is worse.
    rules: BinaryHeap<Told>,
}

impl<T> Name<T> {
    fn map<'a, U>(&'a self, to: impl Fn(&'a T) -> U) -> Name<U> {
        Name {
            policy: to(&self.policy),
            rule: to(&self.rule),
            cluster: self.cluster.as_ref().map(&to),
            caller: self.caller.as_ref().map(|(home, uid)| (to(home), to(uid))),
        }
    }
}

impl Told {
    fn key(&self) -> (Rank, Name<&str>) {
        (self.rank, self.name.map(|word| &**word))
    }
}

impl PartialEq for Told {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Told {}

impl PartialOrd for Told {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Told {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl From<Told> for v1::RuleState {
    fn from(told: Told) -> Self {
        let Name {
            policy,
            rule,
            cluster,
            caller,
        } = told.name;
        Self {
            policy: policy.into(),
            rule: cluster.map_or_else(|| rule.to_string(), |cluster| format!("{rule}@{cluster}")),
            caller: caller.map(|(home, uid)| format!("{home}/{uid}")).unwrap_or_default(),
            opened: !told.rank.closed,
            reason: told.reason.to_owned(),
            since_unix_milliseconds: told.since_unix_milliseconds,
            last_minute: told.rank.last_minute.0,
            total: told.rank.total.0,
            tokens: told.rank.tokens,
        }
    }
}

impl Worst {
    fn new(most: usize, clock: Clock) -> Self {
        Self {
            most,
            clock,
            rules: BinaryHeap::with_capacity(most + 1),
        }
    }

    fn add(&mut self, found: &Found<'_>) {
        if self.rules.len() >= self.most
            && self
                .rules
                .peek()
                .is_some_and(|mildest| (found.rank, found.name) >= mildest.key())
        {
            return;
        }
        let since = found.since.as_ref().map(|since| match since {
            Since::Tick(at) => self.clock.system_time(*at),
            Since::Time(at) => *at,
        });
        self.rules.push(Told {
            rank: found.rank,
            name: found.name.map(|word| (*word).into()),
            reason: found.reason,
            since_unix_milliseconds: since.map_or(0, unix_milliseconds),
        });
        if self.rules.len() > self.most {
            self.rules.pop();
        }
    }

    /// The worst first.
    fn all(self) -> Vec<v1::RuleState> {
        self.rules.into_sorted_vec().into_iter().map(Into::into).collect()
    }
}

impl Policies {
    /// What the hub is to know: of rules that somebody has met, and of what is asked of shared limits. `snapshot`: who holds
    /// whom, for what faults have done.
    pub(crate) fn report(&self, snapshot: &Snapshot) -> v1::PolicyReport {
        let now = self.clock.now();
        let (mut demands, shares_revision) = {
            let mut shared = self.shared.lock();
            (shared.demands(now), shared.safe().revision)
        };
        demands.sort_by(|one, other| (&one.policy, &one.rule).cmp(&(&other.policy, &other.rule)));
        let mut worst = Worst::new(MOST_RULES, self.clock);
        self.each_rule(now, |rule| worst.add(rule));
        let holds = |policy: &str, caller: &CallerKey| {
            let view = snapshot.callers.get(caller);
            view.is_some_and(|view| view.policy_names.iter().any(|name| **name == *policy))
        };
        self.injected.forget(|name, caller| holds(&name.policy, caller));
        self.injected
            .each(|name, caller, counted| worst.add(&Found::of_fault(name, caller, counted)));
        v1::PolicyReport {
            rules: worst.all(),
            demands,
            shares_revision,
        }
    }

    /// The worst rules, for people; more of them than the hub is told.
    pub(super) fn worst_rules(&self, most: usize) -> Vec<v1::RuleState> {
        let mut worst = Worst::new(most, self.clock);
        self.each_rule(self.clock.now(), |rule| worst.add(rule));
        worst.all()
    }

    pub(super) fn counts(&self) -> Counts {
        let now = self.clock.now();
        let mut counts = Counts {
            records: self.recorder.size(now).0,
            ..Counts::default()
        };
        self.each_rule(now, |rule| {
            let state = if rule.rank.closed {
                &mut counts.closed
            } else {
                &mut counts.opened
            };
            *state += 1;
        });
        counts
    }

    /// Tells each rule that differs from one that nobody has met.
    fn each_rule(&self, now: Tick, mut tell: impl FnMut(&Found<'_>)) {
        for entry in &self.callers {
            let mut rules = entry.value().lock();
            // Of most callers of a router nothing has changed since they were looked at last.
            if rules.is_idle() {
                continue;
            }
            let mut idle = true;
            for (policy, limit, state) in rules.met() {
                let stands = state.stands(limit, now);
                if !stands.untouched {
                    idle = false;
                    tell(&Found::of_limit((policy, limit), Some(entry.key()), &stands));
                }
            }
            if idle {
                rules.set_idle();
            }
        }
        for (policy, limit, state) in self.shared.lock().all() {
            let stands = state.stands(limit, now);
            if !stands.untouched {
                tell(&Found::of_limit((policy, limit), None, &stands));
            }
        }
        self.breakers
            .each(|key, entry| tell(&Found::of_breaker(key, entry, now)));
    }
}

impl<'a> Found<'a> {
    fn of_limit((policy, limit): (&'a Policy, &'a Limit), caller: Option<&'a CallerKey>, stands: &Stands) -> Self {
        Self {
            rank: Rank {
                closed: !stands.opened,
                last_minute: Reverse(stands.last_minute),
                total: Reverse(stands.total),
                tokens: stands.tokens,
            },
            name: Name {
                policy: &policy.name,
                rule: &limit.name,
                cluster: None,
                caller: caller.map(words),
            },
            reason: stands.reason.map(PolicyReason::as_str).unwrap_or_default(),
            since: stands.since.map(Since::Tick),
        }
    }

    fn of_breaker(key: &'a BreakerKey, entry: &'a Entry, now: Tick) -> Self {
        let report = entry.breaker.report();
        let refused = entry.refused.lock();
        Self {
            rank: Rank {
                closed: report.state == State::Closed,
                last_minute: Reverse(refused.last_minute(now)),
                total: Reverse(refused.total()),
                tokens: None,
            },
            name: Name {
                policy: &entry.policy,
                rule: entry.rule(),
                cluster: Some(&key.cluster),
                caller: Some(words(&key.caller)),
            },
            reason: report.changed.map(|(reason, _)| reason.as_str()).unwrap_or_default(),
            since: report.changed.map(|(_, since)| Since::Time(since)),
        }
    }

    fn of_fault(name: &'a FaultName, caller: &'a CallerKey, counted: Counted) -> Self {
        Self {
            rank: Rank {
                closed: true,
                last_minute: Reverse(counted.last_minute),
                total: Reverse(counted.total),
                tokens: None,
            },
            name: Name {
                policy: &name.policy,
                rule: &name.rule,
                cluster: None,
                caller: Some(words(caller)),
            },
            reason: "",
            since: None,
        }
    }
}

fn words(caller: &CallerKey) -> (&str, &str) {
    (&caller.home_cluster, &caller.pod_uid)
}

/// As the hub knows it.
pub(super) fn name_of(caller: &CallerKey) -> String {
    format!("{}/{}", caller.home_cluster, caller.pod_uid)
}

pub(super) fn unix_milliseconds(at: SystemTime) -> i64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    fn found(rule: &str, opened: bool, last_minute: u64) -> Found<'_> {
        Found {
            rank: Rank {
                closed: !opened,
                last_minute: Reverse(last_minute),
                total: Reverse(0),
                tokens: None,
            },
            name: Name {
                policy: "CircuitBreaker/ops/calm",
                rule,
                cluster: None,
                caller: None,
            },
            reason: "",
            since: None,
        }
    }

    fn worst(rules: &[Found<'_>]) -> Vec<String> {
        let mut worst = Worst::new(3, Clock { began: Instant::now() });
        for rule in rules {
            worst.add(rule);
            assert!(worst.rules.len() <= 3);
        }
        worst.all().into_iter().map(|rule| rule.rule).collect()
    }

    #[test]
    fn the_worst_are_kept_the_worst_first() {
        let names: Vec<_> = (0..50_u64).map(|index| index.to_string()).collect();
        let mut rules: Vec<_> = names
            .iter()
            .zip(0..)
            .map(|(name, index)| found(name, false, index))
            .collect();
        rules.push(found("100", true, 0));
        assert_eq!(worst(&rules), ["100", "49", "48"]);
        rules.reverse();
        assert_eq!(worst(&rules), ["100", "49", "48"]);
    }

    #[test]
    fn of_rules_that_are_alike_the_same_are_told_each_time() {
        let names: Vec<_> = (10..60_u64).map(|index| index.to_string()).collect();
        let mut rules: Vec<_> = names.iter().map(|name| found(name, false, 7)).collect();
        assert_eq!(worst(&rules), ["10", "11", "12"]);
        rules.reverse();
        assert_eq!(worst(&rules), ["10", "11", "12"]);
    }
}
