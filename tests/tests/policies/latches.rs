//! Rules that open and stay so: until a person closes them, over edits of others, and not against a caller's own election.

use std::time::Duration;

use futures::future::join_all;
use http::Method;
use portolan_crds::CircuitBreaker;
use portolan_testbed::eventually;
use portolan_tests::door::{Door, json};
use serde_json::{Value, json};

use crate::{assert_limited, assert_opened, delete_pod, ground};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/operators/leases";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/operators/leases/greeting-operator";
const MAPS: &str = "/api/v1/configmaps";

/// Three at once and ten a second, for verbs of Pods; opened until somebody closes it.
fn latch(name: &str, verbs: &[&str]) -> Value {
    json!({
        "name": name, "triggerPolicy": "Normal", "recoverPolicy": {"type": "Manual"},
        "bucket": {"burst": 3, "interval": "100ms", "limit": 1},
        "resourceRules": [{"apiGroups": [""], "resources": ["pods"], "verbs": verbs, "namespaces": ["*"]}],
    })
}

/// Asks until a rule opens.
async fn open(door: &Door, namespace: &str) {
    let line = door.open().await.unwrap();
    let path = format!("/api/v1/namespaces/{namespace}/pods/nobody");
    // At a time: tokens come back while one waits for the other.
    let delete = || async {
        let delete = portolan_tests::door::request(Method::DELETE, &path, &[], &[]).unwrap();
        line.ask(delete).await.unwrap().status
    };
    for _ in 0..5 {
        let answers = join_all((0..10).map(|_| delete())).await;
        // 503: it has opened.
        assert!(
            answers.iter().all(|status| [404, 429, 503].contains(status)),
            "{answers:?}"
        );
        if answers.contains(&429) {
            return;
        }
    }
    panic!("fifty at once are not too many");
}

#[tokio::test]
async fn an_opened_rule_stays_so_until_a_person_closes_it() {
    const RULE: &str = "CircuitBreaker/operators/latched/deletes";
    let ground = ground().await;
    let door = ground.caller("latched").await;
    let spec = json!({"rateLimitings": [latch("deletes", &["delete", "list", "watch"])]});
    let policy: CircuitBreaker = ground.hold("latched", spec).await;
    open(&door, "latched-e").await;
    // Tokens are there again.
    tokio::time::sleep(Duration::from_millis(40)).await;
    eventually("it is opened although it has tokens", || async {
        let answer = delete_pod(&door, "latched-e").await;
        assert_opened(&answer, RULE);
        let told = ground.said(&["policies", "status", "operators/latched"]).await;
        let line = told.lines().find(|line| line.contains("deletes")).unwrap_or_default();
        let words = ["Opened", "LimitExceeded", "east/portolan-dev-latched"];
        let tokens: u64 = line
            .split_whitespace()
            .last()
            .and_then(|word| word.parse().ok())
            .unwrap_or_default();
        (tokens > 0 && words.iter().all(|word| line.contains(word)))
            .then_some(())
            .ok_or(told)
    })
    .await;
    // What clients ask again by themselves is told when.
    for path in ["/api/v1/pods", "/api/v1/namespaces/latched-w/pods?watch=true"] {
        assert_limited(&door.get(path, &[]).await.unwrap(), RULE);
    }
    let listed = ground.said(&["get", "policies"]).await;
    let line = listed.lines().find(|line| line.contains("operators/latched")).unwrap();
    assert!(line.contains("1 opened"), "{listed}");

    let told = ground.refused(&["breaker", "close", "operators/latched/creates"]).await;
    assert!(told.contains("has no rule \"creates\"; it has: deletes"), "{told}");
    let told = ground.refused(&["breaker", "close", "operators/nobody/deletes"]).await;
    assert!(told.contains("there is no CircuitBreaker operators/nobody"), "{told}");
    let told = ground
        .said(&["breaker", "close", "operators/latched/deletes", "--reason", "mended"])
        .await;
    assert_eq!(
        told,
        "rule deletes of CircuitBreaker operators/latched closed in every router\n"
    );
    eventually("it is closed", || async {
        delete_pod(&door, "latched-e").await.status == 404
    })
    .await;
    ground
        .told("operators/latched", &["deletes", "Closed", "ClosedByHand"])
        .await;
    // The same word is carried out once: what opens later stays opened.
    open(&door, "latched-w").await;
    assert_opened(&delete_pod(&door, "latched-e").await, RULE);
    ground.delete(&policy).await;
    assert_eq!(delete_pod(&door, "latched-e").await.status, 404);
}

#[tokio::test]
async fn an_edit_keeps_what_it_does_not_change() {
    const RULE: &str = "CircuitBreaker/operators/edited/deletes";
    let ground = ground().await;
    let door = ground.caller("edited").await;
    let reads = |burst: u64| {
        json!({
            "name": "reads", "triggerPolicy": "LimiterOnly", "bucket": {"burst": burst, "interval": "1h", "limit": 1},
            "resourceRules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"], "namespaces": ["*"]}],
        })
    };
    let map = "/api/v1/namespaces/edited-e/configmaps/kube-root-ca.crt";
    let deletes = latch("deletes", &["delete"]);
    let spec = json!({"rateLimitings": [deletes, reads(1)]});
    let _: CircuitBreaker = ground.hold("edited", spec).await;
    open(&door, "edited-e").await;
    assert_eq!(door.get(map, &[]).await.unwrap().status, 200);
    assert_limited(
        &door.get(map, &[]).await.unwrap(),
        "CircuitBreaker/operators/edited/reads",
    );

    // Another order, and another bucket of the other rule, which begins anew.
    let _: CircuitBreaker = ground
        .hold("edited", json!({"rateLimitings": [reads(2), deletes]}))
        .await;
    assert_opened(&delete_pod(&door, "edited-e").await, RULE);
    for _ in 0..2 {
        assert_eq!(door.get(map, &[]).await.unwrap().status, 200);
    }
    assert_limited(
        &door.get(map, &[]).await.unwrap(),
        "CircuitBreaker/operators/edited/reads",
    );

    // A rule that is changed is a new one.
    let spec = json!({"rateLimitings": [reads(2), latch("deletes", &["delete", "create"])]});
    let policy: CircuitBreaker = ground.hold("edited", spec).await;
    assert_eq!(delete_pod(&door, "edited-e").await.status, 404);
    assert_limited(
        &door.get(map, &[]).await.unwrap(),
        "CircuitBreaker/operators/edited/reads",
    );

    open(&door, "edited-e").await;
    ground.delete(&policy).await;
    assert_eq!(delete_pod(&door, "edited-e").await.status, 404, "nothing is left of it");
}

#[tokio::test]
async fn a_rule_for_everything_leaves_the_election_alone() {
    let ground = ground().await;
    let door = ground.caller("elected").await;
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "greeting-operator"},
        "spec": {"holderIdentity": "test", "leaseDurationSeconds": 15},
    });
    let made = door.post(LEASES, &lease).await.unwrap();
    assert!(matches!(made.status, 201 | 409), "{}", made.message());
    let anything: Value = serde_json::from_str(crate::ANYTHING).unwrap();
    let limit = |rules: Value| {
        json!({"rateLimitings": [{
            "name": "all", "triggerPolicy": "LimiterOnly", "bucket": {"burst": 1, "interval": "1h", "limit": 1},
            "resourceRules": rules,
        }]})
    };
    let _: CircuitBreaker = ground.hold("elected", limit(json!([anything]))).await;
    let mut held = door.get(LEASE, &[]).await.unwrap().json();
    for number in 0..10 {
        held["spec"]["leaseTransitions"] = number.into();
        let renewed = door.ask(json(Method::PUT, LEASE, &held).unwrap()).await.unwrap();
        assert_eq!(renewed.status, 200, "{}", renewed.message());
        held = renewed.json();
    }
    // The one token is still there.
    assert_eq!(door.get(MAPS, &[]).await.unwrap().status, 200);
    assert_limited(
        &door.get(MAPS, &[]).await.unwrap(),
        "CircuitBreaker/operators/elected/all",
    );

    let mut leases = anything;
    leases["resources"] = json!(["leases"]);
    let policy: CircuitBreaker = ground.hold("elected", limit(json!([leases]))).await;
    assert_eq!(door.get(LEASE, &[]).await.unwrap().status, 200);
    let renewed = door.ask(json(Method::PUT, LEASE, &held).unwrap()).await.unwrap();
    assert_limited(&renewed, "CircuitBreaker/operators/elected/all");
    ground.delete(&policy).await;
}
