//! How policies stand in this router, for the hub: the worst first, and a bounded number of rules.

use std::cmp::Reverse;
use std::time::{SystemTime, UNIX_EPOCH};

use portolan_wire::v1;

use super::Policies;
use super::breakers::{BreakerKey, Entry};
use crate::decision::policy::{Stands, Tick};
use crate::resource::breaker::State;
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

/// The worst of some rules.
struct Worst {
    most: usize,
    rules: Vec<v1::RuleState>,
}

impl Worst {
    fn new(most: usize) -> Self {
        Self {
            most,
            rules: Vec::new(),
        }
    }

    fn add(&mut self, rule: v1::RuleState) {
        self.rules.push(rule);
        // Not at each: what is sorted out is sorted once.
        if self.rules.len() >= self.most * 2 {
            self.keep();
        }
    }

    fn keep(&mut self) {
        let rank = |rule: &v1::RuleState| {
            (
                !rule.opened,
                Reverse(rule.last_minute),
                Reverse(rule.total),
                rule.tokens,
            )
        };
        self.rules.sort_by(|one, other| {
            let name = |rule: &'_ v1::RuleState| (rule.policy.clone(), rule.rule.clone(), rule.caller.clone());
            rank(one).cmp(&rank(other)).then_with(|| name(one).cmp(&name(other)))
        });
        self.rules.truncate(self.most);
    }

    fn all(mut self) -> Vec<v1::RuleState> {
        self.keep();
        self.rules
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
        let mut worst = Worst::new(MOST_RULES);
        self.each_rule(now, |rule| worst.add(rule));
        let holds = |policy: &str, caller: &CallerKey| {
            let view = snapshot.callers.get(caller);
            view.is_some_and(|view| view.policy_names.iter().any(|name| **name == *policy))
        };
        for rule in self.injected.report(|name, caller| holds(&name.policy, caller)) {
            worst.add(rule);
        }
        v1::PolicyReport {
            rules: worst.all(),
            demands,
            shares_revision,
        }
    }

    /// The worst rules, for people; more of them than the hub is told.
    pub(super) fn worst_rules(&self, most: usize) -> Vec<v1::RuleState> {
        let mut worst = Worst::new(most);
        self.each_rule(self.clock.now(), |rule| worst.add(rule));
        worst.all()
    }

    pub(super) fn counts(&self) -> Counts {
        let mut counts = Counts {
            records: self.recorder.size().0,
            ..Counts::default()
        };
        self.each_rule(self.clock.now(), |rule| {
            let state = if rule.opened {
                &mut counts.opened
            } else {
                &mut counts.closed
            };
            *state += 1;
        });
        counts
    }

    /// Tells each rule that differs from one that nobody has met.
    fn each_rule(&self, now: Tick, mut tell: impl FnMut(v1::RuleState)) {
        for entry in &self.callers {
            let caller = name_of(entry.key());
            for (policy, limit, state) in entry.value().lock().met() {
                let stands = state.stands(limit, now);
                if !stands.untouched {
                    let rule = self.rule_state((&policy.name, &limit.name), &caller, &stands);
                    tell(rule);
                }
            }
        }
        for (policy, limit, state) in self.shared.lock().all() {
            let stands = state.stands(limit, now);
            if !stands.untouched {
                tell(self.rule_state((&policy.name, &limit.name), "", &stands));
            }
        }
        self.breakers.each(|key, entry| tell(breaker_state(key, entry, now)));
    }

    fn rule_state(&self, (policy, rule): (&str, &str), caller: &str, stands: &Stands) -> v1::RuleState {
        let since = stands.since.map(|since| self.clock.system_time(since));
        v1::RuleState {
            policy: policy.to_owned(),
            rule: rule.to_owned(),
            caller: caller.to_owned(),
            opened: stands.opened,
            reason: stands
                .reason
                .map(|reason| reason.as_str().to_owned())
                .unwrap_or_default(),
            since_unix_milliseconds: since.map_or(0, unix_milliseconds),
            last_minute: stands.last_minute,
            total: stands.total,
            tokens: stands.tokens,
        }
    }
}

fn breaker_state(key: &BreakerKey, entry: &Entry, now: Tick) -> v1::RuleState {
    let report = entry.breaker.report();
    let refused = entry.refused.lock();
    v1::RuleState {
        policy: entry.policy.to_string(),
        rule: entry.name(key),
        caller: name_of(&key.caller),
        opened: report.state != State::Closed,
        reason: report
            .changed
            .map(|(reason, _)| reason.as_str().to_owned())
            .unwrap_or_default(),
        since_unix_milliseconds: report.changed.map_or(0, |(_, since)| unix_milliseconds(since)),
        last_minute: refused.last_minute(now),
        total: refused.total(),
        tokens: None,
    }
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
    use super::*;

    #[test]
    fn the_worst_are_kept_the_worst_first() {
        let mut worst = Worst::new(3);
        let rule = |name: usize, opened, last_minute| v1::RuleState {
            rule: name.to_string(),
            opened,
            last_minute,
            ..v1::RuleState::default()
        };
        for index in 0..50 {
            worst.add(rule(index, false, u64::try_from(index).unwrap()));
        }
        worst.add(rule(100, true, 0));
        let rules = worst.all();
        let names: Vec<_> = rules.iter().map(|rule| &*rule.rule).collect();
        assert_eq!(names, ["100", "49", "48"]);
    }
}
