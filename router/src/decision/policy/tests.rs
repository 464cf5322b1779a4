//! Laws of rules and of what several make of one request, under a virtual clock; and each defect of what was before.

use portolan_crds::PolicyReason;
use portolan_crds::circuit_breaker::{
    Bucket as BucketSpec, LimitScope, RateLimiting, RecoverPolicy, RecoverType, TriggerPolicy,
};
use proptest::collection::vec;
use proptest::prelude::*;

use super::bucket::MILLIONTHS;
use super::judge::Judged;
use super::rule::SHARES_SETTLE;
use super::*;
use crate::value::policy::{CallerPolicies, Limit, Policy, PolicySpec};

const SECOND: u64 = 1_000_000_000;

/// So many requests a second, and as many at once.
fn rule(trigger: TriggerPolicy, limit: i64) -> RateLimiting {
    RateLimiting {
        name: format!("{trigger:?}-{limit}"),
        trigger_policy: trigger,
        bucket: BucketSpec {
            burst: limit,
            interval: "1s".to_owned(),
            limit,
        },
        ..RateLimiting::default()
    }
}

fn sleeping(limit: i64, window: &str) -> RateLimiting {
    RateLimiting {
        recover_policy: Some(RecoverPolicy {
            type_: RecoverType::SleepingWindow,
            sleeping_window_size: Some(window.to_owned()),
        }),
        ..rule(TriggerPolicy::Normal, limit)
    }
}

/// Some rules, all of which every request meets.
struct Rules(Vec<(std::sync::Arc<Limit>, RuleState)>);

impl Met for Rules {
    fn rule(&mut self, id: usize) -> (&Limit, &mut RuleState) {
        let (limit, state) = &mut self.0[id];
        (limit, state)
    }
}

impl Rules {
    fn new(specs: Vec<RateLimiting>) -> Self {
        let spec = portolan_crds::CircuitBreakerSpec {
            rate_limitings: specs,
            ..portolan_crds::CircuitBreakerSpec::default()
        };
        let policy = Policy::new("CircuitBreaker/ops/calm", "u1", 1, PolicySpec::CircuitBreaker(spec));
        let rules = policy.limits().iter().map(|limit| {
            let state = if limit.shared {
                RuleState::shared(None, 0, Tick::default())
            } else {
                RuleState::own(limit, None, Tick::default())
            };
            (limit.clone(), state)
        });
        Self(rules.collect())
    }

    fn ids(&self) -> Vec<usize> {
        (0..self.0.len()).collect()
    }

    fn judge(&mut self, now: u64) -> Judged {
        let ids = self.ids();
        judge(self, &ids, "get", Tick::at(now))
    }

    fn why(&mut self, now: u64) -> Option<Why> {
        self.judge(now).denied.map(|denied| denied.why)
    }

    fn stands(&mut self, id: usize, now: u64) -> Stands {
        let (limit, state) = &mut self.0[id];
        state.stands(limit, Tick::at(now))
    }

    fn tokens(&mut self, id: usize, now: u64) -> u64 {
        self.stands(id, now).tokens.unwrap()
    }
}

/// The predecessor evaluated the most specific rule alone: `ForceOpened` on `*` did not stop what a narrow one let pass.
#[test]
fn a_narrow_rule_hides_no_force_opened_one() {
    let wide = r#"{"name": "wide", "triggerPolicy": "ForceOpened",
        "resourceRules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "namespaces": ["*"]}]}"#;
    let narrow = r#"{"name": "narrow", "triggerPolicy": "LimiterOnly", "bucket": {"burst": 9, "interval": "1s", "limit": 9},
        "resourceRules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"], "namespaces": ["a"]}]}"#;
    for order in [[wide, narrow], [narrow, wide]] {
        let spec = format!(r#"{{"rateLimitings": [{}]}}"#, order.join(","));
        let spec = PolicySpec::CircuitBreaker(serde_json::from_str(&spec).unwrap());
        let policy = std::sync::Arc::new(Policy::new("CircuitBreaker/ops/calm", "u1", 1, spec));
        let policies = CallerPolicies::new(vec![policy]);
        let resource = AskedResource {
            group: "",
            resource: "pods",
            subresource: None,
        };
        let asked = Asked {
            resource: Some(resource),
            verb: "delete",
            namespace: Some("a"),
            clusters: &["east"],
            election: false,
        };
        assert_eq!(policies.limits_met(&asked), [0, 1], "both count");
        let limits = policies.limits().map(|(_, limit)| limit.clone());
        let mut rules = Rules(
            limits
                .map(|limit| (limit.clone(), RuleState::own(&limit, None, Tick::default())))
                .collect(),
        );
        assert_eq!(rules.why(0), Some(Why::Forced));
    }
}

/// The predecessor let ForceClosed overwrite an earlier refusal, by the order of a map.
#[test]
fn force_closed_overrides_no_other_refusal() {
    for other in [rule(TriggerPolicy::ForceOpened, 1), rule(TriggerPolicy::LimiterOnly, 0)] {
        for specs in [
            vec![rule(TriggerPolicy::ForceClosed, 1), other.clone()],
            vec![other.clone(), rule(TriggerPolicy::ForceClosed, 1)],
        ] {
            assert!(Rules::new(specs).why(0).is_some(), "{other:?}");
        }
    }
    let mut alone = Rules::new(vec![rule(TriggerPolicy::ForceClosed, 0)]);
    assert_eq!(alone.why(0), None, "whatever its bucket");
    assert_eq!(alone.stands(0, 0).reason, Some(PolicyReason::ForceClosed));
}

/// The predecessor took a token of each rule, also when another one refused.
#[test]
fn a_request_that_is_refused_takes_no_token_of_any_rule() {
    let mut rules = Rules::new(vec![
        rule(TriggerPolicy::LimiterOnly, 5),
        rule(TriggerPolicy::LimiterOnly, 1),
    ]);
    assert_eq!(rules.why(0), None);
    for _ in 0..10 {
        assert_eq!(rules.why(0), Some(Why::Limited));
    }
    assert_eq!((rules.tokens(0, 0), rules.tokens(1, 0)), (4, 0));
    assert_eq!((rules.stands(0, 0).total, rules.stands(1, 0).total), (0, 10));
}

/// The predecessor panicked on the first overflow of a rule without recoverPolicy.
#[test]
fn without_recover_policy_a_rule_stays_opened_until_it_is_closed_by_hand() {
    let mut rules = Rules::new(vec![rule(TriggerPolicy::Normal, 1)]);
    assert_eq!(rules.why(0), None);
    let judged = rules.judge(0);
    assert!(judged.opened && judged.denied.unwrap().why == Why::Limited);
    assert_eq!(rules.why(3_600 * SECOND), Some(Why::Opened));
    assert_eq!(
        rules.stands(0, 3_600 * SECOND).reason,
        Some(PolicyReason::LimitExceeded)
    );
    let state = &mut rules.0[0].1;
    assert!(state.close_by_hand(7, Tick::at(3_600 * SECOND)));
    assert!(!state.close_by_hand(7, Tick::at(3_600 * SECOND)), "it is no news");
    assert_eq!(rules.stands(0, 3_600 * SECOND).reason, Some(PolicyReason::ClosedByHand));
    assert_eq!(rules.why(3_600 * SECOND), None);
    assert!(rules.judge(3_600 * SECOND).opened);
    assert!(
        !rules.0[0].1.close_by_hand(7, Tick::at(3_601 * SECOND)),
        "one time, once"
    );
    assert_eq!(rules.why(3_602 * SECOND), Some(Why::Opened));
    assert!(rules.0[0].1.close_by_hand(8, Tick::at(3_602 * SECOND)));
}

#[test]
fn closing_refills_nothing() {
    let mut rules = Rules::new(vec![rule(TriggerPolicy::Normal, 10)]);
    for _ in 0..10 {
        assert_eq!(rules.why(0), None);
    }
    assert!(rules.judge(0).opened);
    assert!(rules.0[0].1.close_by_hand(1, Tick::at(0)));
    assert_eq!(rules.tokens(0, 0), 0);
    assert!(rules.judge(0).opened);
}

#[test]
fn a_sleeping_window_closes_by_itself_with_what_came_meanwhile() {
    let mut rules = Rules::new(vec![sleeping(100, "50ms")]);
    for _ in 0..100 {
        assert_eq!(rules.why(0), None);
    }
    let denied = rules.judge(0).denied.unwrap();
    assert_eq!(
        (denied.why, denied.lasts),
        (Why::Limited, Some(std::time::Duration::from_millis(10)))
    );
    let denied = rules.judge(49_999_999).denied.unwrap();
    assert_eq!(
        (denied.why, denied.lasts),
        (Why::Opened, Some(std::time::Duration::from_nanos(1)))
    );
    assert_eq!(rules.tokens(0, 50_000_000), 5);
    assert!(!rules.stands(0, 50_000_000).opened);
    assert_eq!(
        rules.stands(0, 50_000_000).reason,
        Some(PolicyReason::SleepingWindowOver)
    );
    for _ in 0..5 {
        assert_eq!(rules.why(50_000_000), None);
    }
    assert!(rules.judge(50_000_000).opened);
}

/// Issue: what is refused by a stronger rule spends nothing and opens nothing.
#[test]
fn what_is_refused_by_a_stronger_rule_opens_no_other() {
    for (strong, why) in [
        (rule(TriggerPolicy::ForceOpened, 1), Why::Forced),
        (rule(TriggerPolicy::Normal, 0), Why::Opened),
    ] {
        let mut rules = Rules::new(vec![rule(TriggerPolicy::Normal, 1), strong]);
        if why == Why::Opened {
            judge(&mut rules, &[1], "get", Tick::default());
        }
        judge(&mut rules, &[0], "get", Tick::default());
        for _ in 0..3 {
            let judged = rules.judge(0);
            assert_eq!((judged.denied.unwrap().why, judged.opened), (why, false));
        }
        assert!(!rules.stands(0, 0).opened && rules.stands(0, 0).total == 0);
    }
}

#[test]
fn the_wait_that_is_told_is_that_of_the_slowest() {
    let slow = RateLimiting {
        bucket: BucketSpec {
            burst: 1,
            interval: "10s".to_owned(),
            limit: 1,
        },
        ..rule(TriggerPolicy::LimiterOnly, 1)
    };
    let mut rules = Rules::new(vec![rule(TriggerPolicy::LimiterOnly, 1), slow]);
    assert_eq!(rules.why(0), None);
    let denied = rules.judge(0).denied.unwrap();
    assert_eq!((denied.id, denied.lasts), (1, Some(std::time::Duration::from_secs(10))));
}

#[test]
fn a_list_may_cost_more_and_a_verb_of_cost_nothing_always_passes() {
    let mut spec = rule(TriggerPolicy::LimiterOnly, 10);
    spec.cost = [("list".to_owned(), 7), ("watch".to_owned(), 0)].into();
    let mut rules = Rules::new(vec![spec]);
    let mut ask = |verb| judge(&mut rules, &[0], verb, Tick::default()).denied.is_none();
    assert!(ask("list") && !ask("list"));
    assert!(ask("get") && ask("get") && ask("get") && !ask("get"));
    assert!(ask("watch"));
}

fn shared(trigger: TriggerPolicy, limit: i64) -> Rules {
    Rules::new(vec![RateLimiting {
        scope: LimitScope::Shared,
        ..rule(trigger, limit)
    }])
}

#[test]
fn a_shared_limit_lets_nothing_pass_without_a_share_and_does_not_open_for_it() {
    let mut rules = shared(TriggerPolicy::Normal, 10);
    for second in 0..9 {
        let judged = rules.judge(second * SECOND);
        let denied = judged.denied.unwrap();
        assert_eq!((denied.why, judged.opened), (Why::Limited, false));
        assert_eq!(denied.lasts, Some(std::time::Duration::from_secs(1)));
    }
    let (limit, state) = &mut rules.0[0];
    state.reshare(limit, MILLIONTHS / 2, Tick::at(9 * SECOND));
    assert_eq!(state.asked(), 9, "what was refused counts as asked");
    assert_eq!(rules.tokens(0, 9 * SECOND), 0, "others may have spent them");
    let (limit, state) = &mut rules.0[0];
    state.fill(limit, MILLIONTHS / 2);
    assert_eq!(rules.tokens(0, 9 * SECOND), 5, "nobody has");
    let (limit, state) = &mut rules.0[0];
    state.reshare(limit, MILLIONTHS, Tick::at(9 * SECOND));
    assert_eq!(rules.tokens(0, 9 * SECOND), 5, "more of it comes without");
    let (limit, state) = &mut rules.0[0];
    state.fill(limit, MILLIONTHS);
    assert_eq!(rules.tokens(0, 9 * SECOND), 10, "no more than it holds");
}

#[test]
fn a_shared_limit_opens_when_it_goes_on_refusing_longer_than_shares_take_to_move() {
    let mut rules = shared(TriggerPolicy::Normal, 1);
    let (limit, state) = &mut rules.0[0];
    state.reshare(limit, MILLIONTHS, Tick::default());
    state.fill(limit, MILLIONTHS);
    let settle = u64::try_from(SHARES_SETTLE.as_nanos()).unwrap();
    let mut now = 0;
    while now < settle {
        assert!(!rules.judge(now).opened, "{now}");
        now += SECOND / 10;
    }
    assert_eq!(rules.why(now), None, "a token has come");
    assert!(rules.judge(now + SECOND / 10).opened);
    // With pauses it never does.
    let mut rules = shared(TriggerPolicy::Normal, 1);
    let (limit, state) = &mut rules.0[0];
    state.reshare(limit, MILLIONTHS, Tick::default());
    state.fill(limit, MILLIONTHS);
    for second in 0..60 {
        for _ in 0..3 {
            assert!(!rules.judge(second * 2 * SECOND).opened);
        }
    }
}

fn any_rule() -> impl Strategy<Value = RateLimiting> {
    let trigger = prop_oneof![
        4 => Just(TriggerPolicy::LimiterOnly),
        4 => Just(TriggerPolicy::Normal),
        1 => Just(TriggerPolicy::ForceOpened),
        1 => Just(TriggerPolicy::ForceClosed),
    ];
    (trigger, 0..6_i64, prop::option::of(1..5_000_u32), 0..3_i64).prop_map(|(trigger, limit, window, cost)| {
        let mut spec = match window {
            Some(window) => sleeping(limit, &format!("{window}ms")),
            None => rule(trigger, limit),
        };
        spec.trigger_policy = trigger;
        spec.cost = [("list".to_owned(), cost)].into();
        spec
    })
}

proptest! {
    /// All tokens or none, whatever meets; and each bucket alone holds what it promises.
    #[test]
    fn a_request_takes_from_all_it_meets_or_from_none(
        specs in vec(any_rule(), 1..6),
        asks in vec((0..2 * SECOND, 1..32_u8, any::<bool>()), 1..80),
    ) {
        let mut rules = Rules::new(specs.clone());
        let mut now = 0;
        let mut taken = vec![0_u64; specs.len()];
        for (step, meets, list) in asks {
            now += step;
            let verb = if list { "list" } else { "get" };
            let ids: Vec<_> = rules.ids().into_iter().filter(|id| meets & (1 << id) != 0).collect();
            let before: Vec<_> = rules.ids().into_iter().map(|id| rules.stands(id, now)).collect();
            let denied = would_deny(&mut rules, &ids, verb, Tick::at(now));
            let judged = judge(&mut rules, &ids, verb, Tick::at(now));
            prop_assert_eq!(denied, judged.denied, "looking says what asking does");
            let forced = ids.iter().any(|id| specs[*id].trigger_policy == TriggerPolicy::ForceOpened);
            prop_assert_eq!(forced, judged.denied.is_some_and(|denied| denied.why == Why::Forced));
            let counts = |id: &usize| rules.0[*id].0.counts();
            let lacks = |id: &usize| {
                let cost = u64::from(rules.0[*id].0.cost(verb));
                counts(id) && (before[*id].opened || before[*id].tokens.unwrap() < cost)
            };
            prop_assert_eq!(forced || ids.iter().any(lacks), judged.denied.is_some());
            for id in rules.ids() {
                let after = rules.stands(id, now);
                let cost = if judged.denied.is_none() && ids.contains(&id) { u64::from(rules.0[id].0.cost(verb)) } else { 0 };
                if let (Some(before), Some(after)) = (before[id].tokens, after.tokens) {
                    prop_assert_eq!(before - cost, after);
                    taken[id] += cost;
                }
                let opens = after.opened && !before[id].opened;
                prop_assert!(!opens || (judged.opened && judged.denied.unwrap().why == Why::Limited));
                let burst = u64::try_from(specs[id].bucket.burst).unwrap();
                prop_assert!(taken[id] * SECOND <= burst * (SECOND + now), "{} of {} after {}", taken[id], burst, now);
            }
        }
    }
}
