//! What is told of one object over its life.

use serde_json::json;

use super::*;
use crate::facts::PolicyKind;

/// A FaultInjection in facts, with this status.
fn object(kind: PolicyKind, status: &serde_json::Value) -> PolicyObject {
    let mut facts = crate::facts::Facts::default();
    let mut object = kube::api::DynamicObject::new("one", &kind.resource())
        .within("ops")
        .data(json!({"spec": {"selector": {}, "httpFault": [{"name": "late", "delay": {"fixedDelay": "1s"}}]}, "status": status}));
    object.metadata.uid = Some("uid".to_owned());
    facts.apply_policy(kind, &object);
    facts.policies.into_values().next().unwrap()
}

fn condition(status: &str, reason: &str) -> serde_json::Value {
    json!([{
        "type": "Active", "status": status, "reason": reason, "message": "m", "lastTransitionTime": "1970-01-01T00:00:00Z",
    }])
}

fn stands(status: &str, reason: &str) -> Option<Stands> {
    let status = json!({"conditions": condition(status, reason)});
    Stands::of(&object(PolicyKind::FaultInjection, &status).status)
}

fn reasons(events: &[Event]) -> Vec<&str> {
    events.iter().map(|event| event.reason.as_str()).collect()
}

#[test]
fn the_first_fault_is_told_of_each_time_that_it_is_in_force() {
    let mut told = Told::found(&object(PolicyKind::FaultInjection, &json!({})));
    let routers = Presences::default();
    let hit = || Injected::from([("late".to_owned(), "caller p in east".to_owned())]);
    let mut now = |status: &str, reason: &str, injected: Injected| {
        told.now.stands = stands(status, reason);
        told.now.injected = injected;
        let events = told.tell(&routers);
        let reasons = reasons(&events);
        reasons.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(now("True", "Ok", Injected::new()), ["InForce"]);
    assert_eq!(now("True", "Ok", hit()), ["FaultInjected"]);
    assert!(now("True", "Ok", hit()).is_empty());
    assert!(
        now("Unknown", "Invalid", hit()).is_empty(),
        "what is not known is no news"
    );
    assert_eq!(now("False", "NotNow", hit()), ["WindowEnded"]);
    assert_eq!(now("True", "Ok", hit()), ["WindowBegan"], "nothing of it was over");
    assert_eq!(
        now("False", "Stopped", hit()),
        ["Stopped"],
        "what was heard before does not count"
    );
    assert_eq!(now("True", "Ok", Injected::new()), ["InForce"]);
    assert_eq!(now("True", "Ok", hit()), ["FaultInjected"]);
    assert_eq!(now("False", "Expired", Injected::new()), ["Expired"]);
}

#[test]
fn what_an_earlier_process_has_told_is_not_told_again() {
    let status = json!({
        "conditions": condition("True", "Ok"),
        "targetStatus": [{"name": "late", "injectedTotal": 1}],
    });
    let mut told = Told::found(&object(PolicyKind::FaultInjection, &status));
    told.now.stands = stands("True", "Ok");
    told.now.injected = Injected::from([("late".to_owned(), "caller p in east".to_owned())]);
    assert!(told.tell(&Presences::default()).is_empty());
}

#[test]
fn what_opened_in_a_router_closes_with_it_once_it_is_gone() {
    let opened = json!({"podName": "p", "cluster": "east", "router": "r", "limitingSnapshots": [{"name": "slow", "state": "Opened"}]});
    let mut told = Told::found(&object(PolicyKind::CircuitBreaker, &json!({"targetStatus": [opened]})));
    told.now.opened.clear();
    let away = Presences::all_away(["r"]);
    assert!(told.forget_gone(&away).is_empty() && told.tell(&away).is_empty());
    assert_eq!(told.opened.len(), 1, "it may come back");
    let events = told.forget_gone(&Presences::default());
    assert_eq!(reasons(&events), ["RuleClosed"]);
    assert!(told.opened.is_empty());
    assert!(told.forget_gone(&Presences::default()).is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_a_full_status_may_have_told_is_not_told_again() {
    let opened = json!({"podName": "p", "cluster": "east", "router": "r", "limitingSnapshots": [{"name": "slow", "state": "Opened"}]});
    let found = |count: i64| {
        let status = json!({"opened": count, "targetStatus": [opened]});
        Told::found(&object(PolicyKind::CircuitBreaker, &status))
    };
    let rule = |name: &str| {
        let key = ("r".to_owned(), "p in east".to_owned(), name.to_owned());
        (key, "LimitExceeded".to_owned())
    };
    let says = |told: &mut Told, rules: &[&str]| {
        told.now.opened = rules.iter().map(|name| rule(name)).collect();
        told.settle();
        told.tell(&Presences::default()).len()
    };
    let mut whole = found(1);
    assert_eq!(says(&mut whole, &["slow", "fast"]), 1);
    let mut full = found(300);
    assert_eq!(says(&mut full, &["slow", "fast"]), 0);
    tokio::time::advance(SETTLED_AFTER).await;
    assert_eq!(says(&mut full, &["slow", "fast", "late"]), 1);
}
