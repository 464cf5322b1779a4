//! Tokens that are brought to their buckets afterwards: nobody can tell it from each being taken at once.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;
use crate::decision::policy::{Met, Passed, RuleState, judge};
use crate::value::policy::Limit;

/// Each rule by itself, asked one after the other.
struct Plain {
    policies: CallerPolicies,
    states: Vec<RuleState>,
}

impl Met for Plain {
    fn rule(&mut self, id: usize) -> (&Limit, &mut RuleState) {
        let (_, limit) = self.policies.limit(id).unwrap();
        (limit, &mut self.states[id])
    }
}

const VERBS: [&str; 8] = [
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
];

/// Rules that meet some verbs, with few tokens and with many, that open, that are forced, that cost more.
fn rule() -> impl Strategy<Value = Value> {
    let trigger = prop_oneof![
        6 => Just("LimiterOnly"),
        3 => Just("Normal"),
        1 => Just("ForceClosed"),
    ];
    let numbers = (prop_oneof![1..30_i64, 100..400_i64], 0..200_i64);
    let verbs = prop_oneof![Just(vec!["*"]), prop::sample::subsequence(VERBS.to_vec(), 1..6)];
    (trigger, numbers, verbs, prop::option::weighted(0.1, 0..4_i64)).prop_map(
        |(trigger, (burst, come), verbs, cost)| {
            let mut rule = limit("x", trigger, burst, come);
            rule["resourceRules"][0]["verbs"] = json!(verbs);
            rule["recoverPolicy"] = json!({"type": "SleepingWindow", "sleepingWindowSize": "700ms"});
            if let Some(cost) = cost {
                rule["cost"] = json!({"get": cost.min(burst)});
            }
            rule
        },
    )
}

/// How long after the one before, and which verb.
fn asks() -> impl Strategy<Value = Vec<(u64, usize)>> {
    let step = prop_oneof![8 => 0..3_u64, 1 => 0..400_u64, 1 => Just(5_000)];
    // Some verbs in a row as clients have it, and then all of them.
    let verb = prop_oneof![8 => 0..3_usize, 1 => 0..VERBS.len()];
    vec((step, verb), 1..600)
}

#[test]
fn a_caller_with_many_rules_is_judged_as_by_each_rule_at_once() {
    let mut runner = TestRunner::default();
    let strategy = (vec(rule(), 1..40), asks(), 0..100_usize);
    let law = |(mut rules, asks, looks): (Vec<Value>, Vec<(u64, usize)>, usize)| {
        for (index, rule) in rules.iter_mut().enumerate() {
            rule["name"] = json!(format!("rule-{index}"));
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut world = World::new(&[]);
            world.edit(&rules);
            let view = world.view("1");
            let policy = world.snapshot.policies[BREAKER].clone();
            let policies = CallerPolicies::new(vec![policy]);
            let now = world.policies.clock.now();
            let states = policies.limits().map(|(_, limit)| RuleState::own(limit, None, now));
            let states = states.collect();
            let mut plain = Plain { policies, states };
            for (number, (step, verb)) in asks.into_iter().enumerate() {
                advance(Duration::from_millis(step)).await;
                let now = world.policies.clock.now();
                let asked = judging(&view, world.snapshot.generation, VERBS[verb]);
                let ids = plain.policies.limits_met(&asked.asked);
                let expected = judge(&mut plain, &ids, VERBS[verb], now).denied.map(|denied| denied.id);
                let gives_back = number % 100 == looks;
                let judged = world.policies.admit(&asked);
                let judged = judged.map(|taken| (!gives_back).then(|| taken.keep()));
                let passed = judged.is_ok();
                let refused = judged.err().map(|fault| refusal(Err(fault)).rule);
                let expected = expected.map(|id| format!("{BREAKER}/rule-{id}"));
                prop_assert_eq!(refused, expected);
                if passed && gives_back {
                    for id in ids {
                        let (limit, state) = plain.rule(id);
                        let passed = Passed { generation: 0, at: now };
                        state.give_back(limit, limit.cost(VERBS[verb]), passed, now);
                    }
                }
            }
            let now = world.policies.clock.now();
            for rule in world.report().rules {
                let id = rule.rule.strip_prefix("rule-").unwrap().parse().unwrap();
                let (limit, state) = plain.rule(id);
                let stands = state.stands(limit, now);
                prop_assert_eq!(
                    (rule.tokens, rule.opened, rule.total),
                    (stands.tokens, stands.opened, stands.total)
                );
            }
            Ok(())
        })
    };
    runner.run(&strategy, law).unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_written_down_is_there_for_whoever_looks_and_over_edits() {
    let limits: Vec<_> = (0..50)
        .map(|index| limit(&format!("rule-{index}"), "LimiterOnly", 1_000, 0))
        .collect();
    let mut world = World::new(&limits);
    assert_eq!(world.pass("1", 7), 7);
    assert!(world.report().rules.iter().all(|rule| rule.tokens == Some(993)));
    assert_eq!(world.pass("1", 3), 3);
    let view = world.view("1");
    let said = world.policies.explain(&judging(&view, 1, "get"));
    assert_eq!(said["limits"][49]["tokens"], 990, "{said}");
    assert_eq!(world.pass("1", 2), 2);
    world.edit(&limits[1..]);
    let rules = world.report().rules;
    assert!(rules.len() == 49 && rules.iter().all(|rule| rule.tokens == Some(988)));
    assert_eq!(world.pass("1", 2_000), 988);
}
