//! Edits while requests come, by several threads.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;
use proptest::strategy::{Strategy, ValueTree as _};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::*;

/// What requests are ruled by at this moment, as `routing` publishes it.
struct Published {
    policies: Arc<Policies>,
    now: RwLock<Arc<Snapshot>>,
    over: AtomicBool,
}

impl Published {
    fn new(world: &World) -> Self {
        Self {
            policies: world.policies.clone(),
            now: RwLock::new(Arc::new(world.snapshot.clone())),
            over: AtomicBool::new(false),
        }
    }

    fn publish(&self, world: &World) {
        *self.now.write() = Arc::new(world.snapshot.clone());
    }

    fn ask(&self, uid: &str) -> Result<(), Fault> {
        let snapshot = self.now.read().clone();
        let key = CallerKey {
            home_cluster: "east".into(),
            pod_uid: uid.into(),
        };
        ask(&self.policies, &snapshot.callers[&key], snapshot.generation, "get")
    }

    fn until_over(&self, mut ask: impl FnMut()) {
        while !self.over.load(Ordering::Relaxed) {
            ask();
        }
    }
}

#[test]
fn edits_of_other_rules_make_and_lose_no_token_while_requests_come() {
    const TOKENS: usize = 4_000;
    let kept = limit("kept", "LimiterOnly", i64::try_from(TOKENS).unwrap(), 0);
    let shared = with(limit("shared", "LimiterOnly", 1_000_000, 0), "scope", json!("Shared"));
    let other = |edit: i64| limit("other", "LimiterOnly", 1_000_000 + edit, 1);
    let mut world = World::new(&[]);
    world.policies.heard_hub();
    let all = ToldShares::of(&v1::Shares {
        revision: 1,
        shares: vec![v1::RuleShare {
            policy: BREAKER.into(),
            uid: "u1".into(),
            rule: "shared".into(),
            millionths: 1_000_000,
            fresh: true,
        }],
    });
    world.policies.restore(all);
    world.edit(&[kept.clone(), shared.clone(), other(0)]);
    let published = Published::new(&world);
    let passed = [AtomicUsize::new(0), AtomicUsize::new(0)];
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (published, passed) = (&published, &passed);
            scope.spawn(move || {
                let uid = if thread % 2 == 0 { "1" } else { "2" };
                published.until_over(|| {
                    if published.ask(uid).is_ok() {
                        passed[thread % 2].fetch_add(1, Ordering::Relaxed);
                    }
                });
            });
        }
        for edit in 1..200_i64 {
            let order = if edit % 2 == 0 {
                [other(edit), kept.clone(), shared.clone()]
            } else {
                [shared.clone(), kept.clone(), other(edit)]
            };
            world.edit(&order);
            published.publish(&world);
        }
        while passed.iter().any(|passed| passed.load(Ordering::Relaxed) < TOKENS) {
            std::thread::yield_now();
        }
        published.over.store(true, Ordering::Relaxed);
    });
    for passed in passed {
        assert_eq!(passed.into_inner(), TOKENS);
    }
    let rules = world.report().rules;
    let shared = rules.iter().find(|rule| rule.rule == "shared").unwrap();
    assert_eq!(shared.tokens, Some(1_000_000 - 2 * TOKENS as u64));
}

#[test]
fn no_request_is_judged_by_half_an_update() {
    for scope in ["PerRouter", "Shared"] {
        is_judged_by_whole_updates(scope);
    }
}

/// Each version refuses everything by one of two rules, which take turns: of a half of one version and a half of another
/// something would pass, or be refused by what is in neither. `scope`: of one of them.
fn is_judged_by_whole_updates(scope: &str) {
    let version = |edit: usize| {
        let (one, other) = if edit.is_multiple_of(2) {
            ("ForceOpened", "ForceClosed")
        } else {
            ("ForceClosed", "ForceOpened")
        };
        let one = with(limit("one", one, 1, 1), "scope", json!(scope));
        [one, limit("other", other, 1, 1)]
    };
    let mut world = World::new(&version(0));
    let published = Published::new(&world);
    std::thread::scope(|scope| {
        for uid in ["1", "2", "1"] {
            let published = &published;
            scope.spawn(move || {
                published.until_over(|| {
                    let refusal = refusal(published.ask(uid));
                    assert_eq!(refusal.by, RefusedBy::Forced);
                });
            });
        }
        for edit in 1..200 {
            world.edit(&version(edit));
            published.publish(&world);
        }
        published.over.store(true, Ordering::Relaxed);
    });
}

/// Good in most cases, so that of a whole document of them many are good.
fn mostly<T: std::fmt::Debug + Clone + 'static>(
    good: impl Strategy<Value = T> + 'static,
    bad: impl Strategy<Value = T> + 'static,
) -> impl Strategy<Value = T> {
    proptest::prop_oneof![40 => good, 1 => bad]
}

fn words(good: &'static [&'static str]) -> impl Strategy<Value = Value> {
    use proptest::collection::vec;
    let good = vec(proptest::sample::select(good), 1..3).prop_map(|words| json!(words));
    mostly(good, vec("\\PC{0,8}", 0..3).prop_map(|words| json!(words)))
}

fn row() -> impl Strategy<Value = Value> {
    let row = (
        words(&["*", "", "apps"]),
        words(&["*", "pods", "pods/exec", "pods/*", "*/scale", "leases"]),
        words(&["*", "get", "list"]),
        words(&["*", "", "ns", "other"]),
        words(&["east", "west"]),
    );
    row.prop_map(|(groups, resources, verbs, namespaces, clusters)| {
        json!({"apiGroups": groups, "resources": resources, "verbs": verbs, "namespaces": namespaces, "clusters": clusters})
    })
}

fn rule() -> impl Strategy<Value = Value> {
    use proptest::prelude::*;
    let number = |least: i64| mostly(least..20, any::<i64>());
    let word = |good: &'static [&'static str]| mostly(prop::sample::select(good), Just("Whatever"));
    let interval = mostly(
        prop::sample::select(&["1s", "1ms", "720h"][..]),
        prop::sample::select(&["", "-1s", "1000000h", "soon"][..]),
    );
    let recover = mostly(
        prop::sample::select(vec![
            Value::Null,
            json!({"type": "Manual"}),
            json!({"type": "SleepingWindow", "sleepingWindowSize": "1ms"}),
        ]),
        prop::sample::select(vec![json!({"type": "SleepingWindow"}), json!({"type": 7}), json!([])]),
    );
    let rule = (
        prop::collection::vec(row(), 1..3),
        (number(2), interval, number(0)),
        word(&["Normal", "LimiterOnly", "ForceOpened", "ForceClosed"]),
        recover,
        word(&["PerRouter", "Shared"]),
        mostly(0..2_i64, any::<i64>()),
    );
    rule.prop_map(|(rows, (burst, interval, limit), trigger, recover, scope, cost)| {
        json!({
            "resourceRules": rows, "triggerPolicy": trigger, "recoverPolicy": recover, "scope": scope,
            "bucket": {"burst": burst, "interval": interval, "limit": limit}, "cost": {"get": cost},
        })
    })
}

/// Documents, good and broken: cut short, with fields of another kind, numbers out of all bounds, words that mean nothing.
fn document() -> impl Strategy<Value = String> {
    use proptest::prelude::*;
    let name = mostly("[a-z]{6}", "\\PC{0,2}");
    let named = (name, rule()).prop_map(|(name, rule)| with(rule, "name", json!(name)));
    let ratio = mostly(0.1..1.0_f64, any::<f64>());
    let failures = mostly(1..5_i64, any::<i64>());
    let time = mostly("[1-9]{1,2}(s|ms)", "[0-9]{1,3}x");
    let breaker = (failures, ratio, time).prop_map(|(failures, ratio, time)| {
        json!({"name": "breaker", "consecutiveFailures": failures, "failureRatio": ratio, "openFor": "1ms", "window": time})
    });
    let whole = (prop::collection::vec(named, 0..4), prop::collection::vec(breaker, 0..2));
    let whole = whole.prop_map(|(limits, breakers)| {
        json!({"selector": {}, "rateLimitings": limits, "breakers": breakers}).to_string()
    });
    let cut = prop::option::weighted(0.1, any::<prop::sample::Index>());
    (whole, cut).prop_map(|(whole, cut)| match cut {
        Some(cut) => whole.chars().take(cut.index(whole.len())).collect(),
        None => whole,
    })
}

#[test]
fn a_thousand_documents_under_load_panic_nothing_and_lose_no_good_one() {
    let seed = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), seed);
    let mut world = World::new(&[limit("all", "LimiterOnly", 5, 5)]);
    let published = Published::new(&world);
    let (mut good, mut bad) = (0, 0);
    let asked = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for uid in ["1", "2", "1"] {
            let (published, asked) = (&published, &asked);
            scope.spawn(move || {
                let east = "east".into();
                published.until_over(|| {
                    drop(published.ask(uid));
                    let now = published.now.read().clone();
                    let view = now.callers.values().next().unwrap();
                    drop(published.policies.ask_breakers((view, now.generation), &east, false));
                    asked.fetch_add(1, Ordering::Relaxed);
                });
            });
        }
        for _ in 0..1_000 {
            let spec = document().new_tree(&mut runner).unwrap().current();
            let before = world.snapshot.policies[BREAKER].clone();
            let wire = v1::Policy {
                spec_json: spec,
                ..policy("u1", &Value::Null)
            };
            let beside = caller("3", &[]);
            let rejected = world.told([Body::Policy(wire), beside]);
            published.publish(&world);
            if rejected.is_empty() {
                good += 1;
            } else {
                bad += 1;
                assert!(
                    Arc::ptr_eq(&before, &world.snapshot.policies[BREAKER]),
                    "the last good one stays"
                );
            }
            drop(world.report());
            drop(world.policies.page(&world.snapshot));
        }
        published.over.store(true, Ordering::Relaxed);
    });
    assert!(good > 200 && bad > 200, "{good} good, {bad} bad");
    assert!(asked.into_inner() > 1_000);
    world.edit(&[limit("all", "LimiterOnly", 3, 0)]);
    assert_eq!(world.pass("1", 9), 3, "and the next good one is in force");
}
