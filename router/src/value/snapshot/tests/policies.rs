//! Policies: what is refused and keeps its last good, and who is held by what.

use serde_json::{Value, json};

use super::*;
use crate::value::policy::CallerPolicies;

const BREAKER: &str = "CircuitBreaker/ops/calm";
const FAULTS: &str = "FaultInjection/ops/storm";

fn policy(name: &str, spec: &Value) -> v1::Policy {
    v1::Policy {
        name: name.into(),
        uid: "p1".into(),
        generation: 1,
        spec_json: spec.to_string(),
        closed: Vec::new(),
    }
}

/// A limit of so many requests a second.
fn limit(limit: i64) -> Value {
    json!({
        "selector": {},
        "rateLimitings": [{
            "name": "all",
            "resourceRules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "namespaces": ["*"]}],
            "bucket": {"burst": limit, "interval": "1s", "limit": limit},
            "triggerPolicy": "LimiterOnly",
        }],
    })
}

fn faults() -> Value {
    json!({"selector": {}, "httpFault": [{"name": "slow", "delay": {"fixedDelay": "1s"}}]})
}

fn held_caller(uid: &str, policies: &[&str]) -> Body {
    let Body::CallerView(view) = caller(uid) else { panic!() };
    Body::CallerView(v1::CallerView {
        policies: policies.iter().map(|name| (*name).to_owned()).collect(),
        ..view
    })
}

fn held(snapshot: &Snapshot, uid: &str) -> Option<Arc<CallerPolicies>> {
    let key = CallerKey {
        pod_uid: uid.into(),
        ..key()
    };
    snapshot.callers[&key].policies.clone()
}

fn names(policies: &CallerPolicies) -> Vec<&str> {
    policies.policies().iter().map(|policy| &*policy.name).collect()
}

#[test]
fn callers_of_the_same_policies_share_them() {
    let bodies = [
        held_caller("u1", &[FAULTS, BREAKER, BREAKER]),
        held_caller("u2", &[BREAKER, FAULTS]),
        held_caller("u3", &[BREAKER]),
        held_caller("u4", &[]),
        held_caller("u5", &["CircuitBreaker/ops/untold"]),
        Body::Policy(policy(BREAKER, &limit(1))),
        Body::Policy(policy(FAULTS, &faults())),
    ];
    let applied = upsert(&good(), "2", bodies);
    assert_eq!(applied.rejected, []);
    let of = |uid| held(&applied.snapshot, uid);
    let both = of("u1").unwrap();
    assert_eq!(names(&both), [BREAKER, FAULTS]);
    assert!(Arc::ptr_eq(&both, &of("u2").unwrap()));
    assert_eq!(names(&of("u3").unwrap()), [BREAKER]);
    assert!(of("u4").is_none() && of("u5").is_none());
}

#[test]
fn policies_of_callers_are_made_anew_only_where_one_of_them_changed() {
    let other = "CircuitBreaker/ops/other";
    let bodies = [
        held_caller("u1", &[BREAKER]),
        held_caller("u2", &[other]),
        Body::Policy(policy(BREAKER, &limit(1))),
        Body::Policy(policy(other, &limit(1))),
    ];
    let first = upsert(&good(), "2", bodies).snapshot;
    // The caller is told anew, its policy is told again as it was, and the other one changes.
    let bodies = [
        held_caller("u1", &[BREAKER]),
        Body::Policy(policy(BREAKER, &limit(1))),
        Body::Policy(policy(other, &limit(2))),
    ];
    let next = upsert(&first, "3", bodies).snapshot;
    let same = |uid| Arc::ptr_eq(&held(&first, uid).unwrap(), &held(&next, uid).unwrap());
    assert!(same("u1") && !same("u2"));
    assert_eq!(held(&next, "u2").unwrap().policies()[0].limits()[0].rate.limit, 2);
    let gone = apply(&next, &removed(v1::ResourceKind::Policy, BREAKER)).snapshot;
    assert!(held(&gone, "u1").is_none() && held(&gone, "u2").is_some());
    let again = upsert(&gone, "4", [Body::Policy(policy(BREAKER, &limit(1)))]).snapshot;
    assert!(held(&again, "u1").is_some(), "it was named all the time");
}

#[test]
fn a_bad_policy_is_refused_and_its_last_good_stays() {
    let good = upsert(
        &good(),
        "2",
        [held_caller("u1", &[BREAKER]), Body::Policy(policy(BREAKER, &limit(1)))],
    );
    let told = policy(BREAKER, &limit(2));
    let bad = [
        v1::Policy {
            spec_json: "{".into(),
            ..told.clone()
        },
        v1::Policy {
            spec_json: "[]".into(),
            ..told.clone()
        },
        v1::Policy {
            spec_json: r#"{"rateLimitings": [{"name": 1}]}"#.into(),
            ..told.clone()
        },
        v1::Policy {
            spec_json: r#"{"rateLimitings": [{"name": "a", "triggerPolicy": "Whatever"}]}"#.into(),
            ..told.clone()
        },
        v1::Policy {
            uid: String::new(),
            ..told.clone()
        },
    ];
    for bad in bad {
        let applied = upsert(&good.snapshot, "3", [Body::Policy(bad.clone()), caller("beside")]);
        assert_eq!(applied.rejected.len(), 1, "{bad:?}");
        assert_eq!(applied.rejected[0].r#ref.as_ref().unwrap().name, BREAKER);
        let same = Arc::ptr_eq(
            &held(&good.snapshot, "u1").unwrap(),
            &held(&applied.snapshot, "u1").unwrap(),
        );
        assert!(same, "{bad:?}");
        assert!(
            applied
                .snapshot
                .callers
                .values()
                .any(|view| &*view.key.pod_uid == "beside")
        );
    }
    for name in [
        "",
        "a/b",
        "CircuitBreaker/ops",
        "CircuitBreaker/Ops/a",
        "CircuitBreaker/ops/a/b",
        "Novelty/ops/a",
    ] {
        let applied = upsert(&good.snapshot, "3", [Body::Policy(policy(name, &limit(1)))]);
        assert_eq!(applied.rejected.len(), 1, "{name:?}");
    }
}
