//! What a router reports of policies, as far as it is kept. Caller: `routers`.

use std::collections::{BTreeMap, BTreeSet};

use portolan_wire::v1;

use crate::compile::Ref;
use crate::shares::MAX_DEMANDS;

/// Most states of rules that are kept of one router: statuses show fewer, of all routers.
const MAX_STATES: usize = 1_000;
/// Longest name of a rule, with the cluster of a breaker.
const MAX_RULE_BYTES: usize = 512;
/// Longest word that says why.
const MAX_REASON_BYTES: usize = 64;

/// How rules stand, each once, the first first: of policies and callers that the router is told of.
pub(super) fn rule_states(report: Vec<v1::RuleState>, told_of: impl Fn(&Ref) -> bool) -> Vec<v1::RuleState> {
    let mut kept = BTreeSet::new();
    let mut states = Vec::new();
    // Many states are of one policy, and of one caller.
    let mut policies = Known::default();
    let mut callers = Known::default();
    for state in report {
        if states.len() == MAX_STATES {
            break;
        }
        let is_word = state.reason.len() <= MAX_REASON_BYTES && state.reason.bytes().all(|b| b.is_ascii_alphanumeric());
        let is_known = state.rule.len() <= MAX_RULE_BYTES
            && policies.is(&state.policy, |name| Some(Ref::Policy(name.parse().ok()?)), &told_of)
            && (state.caller.is_empty() || callers.is(&state.caller, view, &told_of));
        let key = (state.policy.clone(), state.rule.clone(), state.caller.clone());
        if is_word && is_known && kept.insert(key) {
            states.push(state);
        }
    }
    states
}

/// What is asked for under limits that routers have together, of policies that the router is told of.
pub(super) fn demands(report: Vec<v1::SharedDemand>, told_of: impl Fn(&Ref) -> bool) -> Vec<v1::SharedDemand> {
    let mut policies = Known::default();
    let known = report.into_iter().filter(|demand| {
        demand.rule.len() <= MAX_RULE_BYTES
            && policies.is(&demand.policy, |name| Some(Ref::Policy(name.parse().ok()?)), &told_of)
    });
    known.take(MAX_DEMANDS).collect()
}

/// Names that were looked up.
#[derive(Default)]
struct Known(BTreeMap<String, bool>);

impl Known {
    fn is(&mut self, name: &str, read: impl Fn(&str) -> Option<Ref>, told_of: impl Fn(&Ref) -> bool) -> bool {
        if let Some(known) = self.0.get(name) {
            return *known;
        }
        let known = read(name).is_some_and(|name| told_of(&name));
        self.0.insert(name.to_owned(), known);
        known
    }
}

/// The view of a caller by its name in reports, which is that of its view.
fn view(name: &str) -> Option<Ref> {
    let (home, pod_uid) = name.split_once('/')?;
    Some(Ref::View {
        home: home.to_owned(),
        pod_uid: pod_uid.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(policy: &str, rule: &str, caller: &str) -> v1::RuleState {
        v1::RuleState {
            policy: policy.to_owned(),
            rule: rule.to_owned(),
            caller: caller.to_owned(),
            opened: true,
            reason: "LimitExceeded".to_owned(),
            ..v1::RuleState::default()
        }
    }

    fn told_of(name: &Ref) -> bool {
        [
            Ref::Policy("CircuitBreaker/ops/calm".parse().unwrap()),
            view("east/p").unwrap(),
        ]
        .contains(name)
    }

    #[test]
    fn states_are_of_what_the_router_knows_each_once_and_few() {
        const CALM: &str = "CircuitBreaker/ops/calm";
        let mut report = vec![
            state(CALM, "slow", "east/p"),
            state(CALM, "slow", ""),
            state(CALM, "slow", "east/p"),
            state(CALM, "slow", "east/q"),
            state("CircuitBreaker/dev/calm", "slow", "east/p"),
            state("calm", "slow", "east/p"),
            state(CALM, &"x".repeat(MAX_RULE_BYTES + 1), "east/p"),
        ];
        for reason in ["Two words", "<script>", &"x".repeat(MAX_REASON_BYTES + 1)] {
            report.push(v1::RuleState {
                reason: reason.to_owned(),
                ..state(CALM, "other", "east/p")
            });
        }
        let kept = rule_states(report, told_of);
        assert_eq!(kept, [state(CALM, "slow", "east/p"), state(CALM, "slow", "")]);
        let many = (0..2 * MAX_STATES).map(|number| state(CALM, &number.to_string(), "east/p"));
        let kept = rule_states(many.collect(), told_of);
        assert_eq!(
            (kept.len(), kept[0].rule.as_str()),
            (MAX_STATES, "0"),
            "the worst come first"
        );
    }

    #[test]
    fn demands_are_of_what_the_router_knows_and_few() {
        let demand = |policy: &str, rule: &str| v1::SharedDemand {
            policy: policy.to_owned(),
            rule: rule.to_owned(),
            ..v1::SharedDemand::default()
        };
        let mut report = vec![
            demand("CircuitBreaker/ops/calm", "all"),
            demand("CircuitBreaker/dev/calm", "all"),
            demand("", "all"),
        ];
        assert_eq!(demands(report.clone(), told_of).len(), 1);
        report.resize(2 * MAX_DEMANDS, demand("CircuitBreaker/ops/calm", "all"));
        assert_eq!(demands(report, told_of).len(), MAX_DEMANDS);
    }
}
