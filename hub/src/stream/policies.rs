//! What a router reports of policies, as far as it is kept. Caller: `routers`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_wire::v1;

use crate::acks::RuleReport;
use crate::compile::Ref;
use crate::facts::{PolicyName, RuleNames};
use crate::shares::MAX_DEMANDS;

/// Most states of rules that are kept of one router: statuses show fewer, of all routers.
const MAX_STATES: usize = 1_000;
/// Most policies of which it is kept how many rules one router leaves out.
const MAX_LEFT_OUT: usize = 1_000;
/// More rules than that no policy has.
const MAX_OPENED: u64 = 1 << 32;
/// Longest name of a rule, with the cluster of a breaker.
const MAX_RULE_BYTES: usize = 512;
/// Longest word that says why.
const MAX_REASON_BYTES: usize = 64;

/// What a router may speak of.
pub(super) struct Known<T, R> {
    /// Whether it is told of what has this name.
    pub(super) told_of: T,
    /// The names of a policy's rules; `None` while no good spec of it is known, and the router may have one.
    pub(super) rules_of: R,
}

impl<T: Fn(&Ref) -> bool, R: Fn(&PolicyName) -> Option<Arc<RuleNames>>> Known<T, R> {
    /// How rules stand, each once, the first first: of policies, rules and callers that there are. `report`: without its states.
    pub(super) fn rules(&self, states: Vec<v1::RuleState>, mut report: RuleReport) -> RuleReport {
        let mut kept = BTreeSet::new();
        // Many states are of one policy, and of one caller.
        let mut policies = BTreeMap::new();
        let mut callers = BTreeMap::new();
        for state in states {
            if report.states.len() == MAX_STATES {
                report.more_left_out = true;
                break;
            }
            let is_word =
                state.reason.len() <= MAX_REASON_BYTES && state.reason.bytes().all(|b| b.is_ascii_alphanumeric());
            let is_known = self.is_rule(&mut policies, &state.policy, &state.rule)
                && (state.caller.is_empty() || self.is_caller(&mut callers, &state.caller));
            let key = (state.policy.clone(), state.rule.clone(), state.caller.clone());
            if is_word && is_known && kept.insert(key) {
                report.states.push(state);
            }
        }
        report
    }

    /// How many rules of policies that there are a router leaves out.
    pub(super) fn left_out(&self, told: Vec<v1::RulesLeftOut>, more: bool) -> RuleReport {
        let mut policies = BTreeMap::new();
        let mut report = RuleReport {
            more_left_out: more,
            ..RuleReport::default()
        };
        for v1::RulesLeftOut { policy, opened } in told {
            if report.left_out.len() == MAX_LEFT_OUT {
                report.more_left_out = true;
                break;
            }
            if opened > 0 && !matches!(self.look_up(&mut policies, &policy), Rules::None) {
                report.left_out.insert(policy, opened.min(MAX_OPENED));
            }
        }
        report
    }

    /// What is asked for under limits that routers have together, of policies that there are: of whatever rule, as a router says
    /// too what it still has of one that is in force no more.
    pub(super) fn demands(&self, report: Vec<v1::SharedDemand>) -> Vec<v1::SharedDemand> {
        let mut policies = BTreeMap::new();
        let known = report.into_iter().filter(|demand| {
            is_name(&demand.rule) && !matches!(self.look_up(&mut policies, &demand.policy), Rules::None)
        });
        known.take(MAX_DEMANDS).collect()
    }

    fn is_rule(&self, looked_up: &mut BTreeMap<String, Rules>, policy: &str, rule: &str) -> bool {
        match self.look_up(looked_up, policy) {
            Rules::None => false,
            Rules::Any => is_name(rule),
            Rules::These(names) => {
                let is_breaker = |(name, cluster): (&str, &str)| {
                    names.has_breaker(name, cluster) && (self.told_of)(&Ref::Target(cluster.to_owned()))
                };
                names.has_rule(rule) || rule.split_once('@').is_some_and(is_breaker)
            }
        }
    }

    fn look_up<'a>(&self, looked_up: &'a mut BTreeMap<String, Rules>, policy: &str) -> &'a Rules {
        if !looked_up.contains_key(policy) {
            looked_up.insert(policy.to_owned(), self.names(policy));
        }
        &looked_up[policy]
    }

    fn names(&self, policy: &str) -> Rules {
        let Ok(name) = policy.parse::<PolicyName>() else {
            return Rules::None;
        };
        if !(self.told_of)(&Ref::Policy(name.clone())) {
            return Rules::None;
        }
        (self.rules_of)(&name).map_or(Rules::Any, Rules::These)
    }

    fn is_caller(&self, looked_up: &mut BTreeMap<String, bool>, name: &str) -> bool {
        if let Some(known) = looked_up.get(name) {
            return *known;
        }
        let known = view(name).is_some_and(|view| (self.told_of)(&view));
        looked_up.insert(name.to_owned(), known);
        known
    }
}

/// Whether a rule may be called so, as far as can be told without its policy.
fn is_name(rule: &str) -> bool {
    rule.len() <= MAX_RULE_BYTES && rule.bytes().all(|b| b == b' ' || b.is_ascii_graphic())
}

/// Which rules of a policy a router may speak of.
enum Rules {
    /// It is not told of the policy.
    None,
    /// It may have a spec that this hub does not know.
    Any,
    These(Arc<RuleNames>),
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
    use portolan_crds::CircuitBreakerSpec;
    use serde_json::json;

    use super::*;
    use crate::facts::{PolicyInForce, PolicySpec};

    const CALM: &str = "CircuitBreaker/ops/calm";
    const UNKNOWN: &str = "CircuitBreaker/ops/unknown";

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
        let policies = [CALM, UNKNOWN].map(|name| Ref::Policy(name.parse().unwrap()));
        let targets = ["east", "west"].map(|cluster| Ref::Target(cluster.to_owned()));
        policies.contains(name) || targets.contains(name) || view("east/p").as_ref() == Some(name)
    }

    /// Of the one it knows: limit slow, a breaker of east, one of all clusters.
    fn rules_of(name: &PolicyName) -> Option<Arc<RuleNames>> {
        let spec = json!({
            "rateLimitings": [{"name": "slow"}],
            "breakers": [{"name": "guard", "clusters": ["east"]}, {"name": "all"}],
        });
        let spec: CircuitBreakerSpec = serde_json::from_value(spec).unwrap();
        let good = PolicyInForce::new(1, PolicySpec::Breaker(spec)).unwrap();
        (name.name == "calm").then_some(good.rules)
    }

    fn states(report: Vec<v1::RuleState>) -> Vec<v1::RuleState> {
        KNOWN.rules(report, RuleReport::default()).states
    }

    type RulesOf = fn(&PolicyName) -> Option<Arc<RuleNames>>;
    const KNOWN: Known<fn(&Ref) -> bool, RulesOf> = Known { told_of, rules_of };

    #[test]
    fn states_are_of_what_the_router_knows_each_once_and_few() {
        let good = [
            state(CALM, "slow", "east/p"),
            state(CALM, "slow", ""),
            state(CALM, "guard@east", "east/p"),
            state(CALM, "all@west", "east/p"),
        ];
        let mut report = good.to_vec();
        report.extend([
            state(CALM, "slow", "east/p"),
            state(CALM, "slow", "east/q"),
            state(CALM, "gone", "east/p"),
            state(CALM, "guard", "east/p"),
            state(CALM, "guard@west", "east/p"),
            state(CALM, "all@mars", "east/p"),
            state(CALM, "slow@east", "east/p"),
            state("CircuitBreaker/dev/calm", "slow", "east/p"),
            state("calm", "slow", "east/p"),
        ]);
        for reason in ["Two words", "<script>", &"x".repeat(MAX_REASON_BYTES + 1)] {
            report.push(v1::RuleState {
                reason: reason.to_owned(),
                ..state(CALM, "slow", "east/p")
            });
        }
        assert_eq!(states(report), good);
    }

    #[test]
    fn what_a_router_leaves_out_is_counted_and_what_is_cut_is_left_out() {
        let left = |policy: &str, opened| v1::RulesLeftOut {
            policy: policy.to_owned(),
            opened,
        };
        let told = vec![
            left(CALM, 7),
            left(UNKNOWN, u64::MAX),
            left("CircuitBreaker/dev/calm", 9),
        ];
        let report = KNOWN.left_out(told, false);
        assert!(report.leaves_out(CALM) && !report.leaves_out("CircuitBreaker/dev/calm"));
        assert_eq!(
            report.left_out,
            [(CALM.to_owned(), 7), (UNKNOWN.to_owned(), MAX_OPENED)].into()
        );
        assert!(KNOWN.left_out(Vec::new(), true).leaves_out(CALM));
        let many: Vec<_> = (0..=MAX_STATES)
            .map(|rule| state(UNKNOWN, &rule.to_string(), "east/p"))
            .collect();
        let kept = KNOWN.rules(many.clone(), RuleReport::default());
        assert!(kept.states.len() == MAX_STATES && kept.more_left_out);
        let kept = KNOWN.rules(many[1..].to_vec(), RuleReport::default());
        assert!(kept.states.len() == MAX_STATES && !kept.more_left_out);
    }

    #[test]
    fn of_a_policy_whose_rules_are_not_known_routers_may_have_any() {
        let report = vec![
            state(UNKNOWN, "any", "east/p"),
            state(UNKNOWN, &"x".repeat(MAX_RULE_BYTES + 1), "east/p"),
            state(UNKNOWN, "two\nlines", "east/p"),
        ];
        assert_eq!(states(report), [state(UNKNOWN, "any", "east/p")]);
        let many = (0..2 * MAX_STATES).map(|number| state(UNKNOWN, &number.to_string(), "east/p"));
        let kept = states(many.collect());
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
            demand(CALM, "slow"),
            demand(CALM, "gone"),
            demand("CircuitBreaker/dev/calm", "slow"),
            demand("", "slow"),
            demand(CALM, "two\nlines"),
        ];
        let kept = KNOWN.demands(report.clone());
        assert_eq!(
            kept,
            [demand(CALM, "slow"), demand(CALM, "gone")],
            "what was in force may be held still"
        );
        report.resize(2 * MAX_DEMANDS, demand(CALM, "slow"));
        assert_eq!(KNOWN.demands(report).len(), MAX_DEMANDS);
    }
}
