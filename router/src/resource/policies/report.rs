//! How policies stand in this router, for the hub: the worst of each, and a bounded number of rules (`worst`).

use std::cmp::Reverse;

use portolan_crds::PolicyReason;
use portolan_wire::v1;

use super::Policies;
use super::breakers::{BreakerKey, Entry};
use super::found::{Found, Name, Rank, Since};
use super::worst::Worst;
use crate::decision::policy::{Stands, Tick};
use crate::resource::breaker::State;
use crate::resource::injected::Counted;
use crate::value::injection::FaultName;
use crate::value::policy::{Limit, Policy};
use crate::value::snapshot::{CallerKey, Snapshot};

/// Rules of one report: as many as the hub keeps of one router, about 150 KB.
const MOST_RULES: usize = 1_000;
/// Policies of which a report counts what it leaves out.
const MOST_LEFT_OUT: usize = 1_000;

/// Rules that callers have met.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) opened: usize,
    pub(super) closed: usize,
    /// Requests of the last minutes.
    pub(super) records: usize,
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
        let (rules, mut left_out) = worst.all();
        let more_left_out = left_out.len() > MOST_LEFT_OUT;
        left_out.truncate(MOST_LEFT_OUT);
        v1::PolicyReport {
            rules,
            demands,
            shares_revision,
            left_out,
            more_left_out,
        }
    }

    /// The worst rules, for people; more of them than the hub is told.
    pub(super) fn worst_rules(&self, most: usize) -> Vec<v1::RuleState> {
        let mut worst = Worst::new(most, self.clock);
        self.each_rule(self.clock.now(), |rule| worst.add(rule));
        worst.all().0
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
