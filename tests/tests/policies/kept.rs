//! A policy that is not good never takes the place of one that was.

use kube::api::{Patch, PatchParams};
use portolan_crds::CircuitBreaker;
use portolan_testbed::eventually;
use serde_json::json;

use crate::{assert_opened, delete_pod, ground};

const STOP: &str = "CircuitBreaker/operators/kept/deletes";

#[tokio::test]
async fn a_bad_edit_leaves_the_good_one_in_force_and_says_why() {
    let ground = ground().await;
    let door = ground.caller("kept").await;
    let rule = json!({
        "name": "deletes", "triggerPolicy": "ForceOpened",
        "resourceRules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"], "namespaces": ["*"]}],
    });
    let policy: CircuitBreaker = ground.hold("kept", json!({"rateLimitings": [rule]})).await;
    assert_opened(&delete_pod(&door, "kept-e").await, STOP);

    let policies = ground.policies::<CircuitBreaker>().await;
    // The schema has them, as the original's manifests do; nobody serves them yet.
    let mut other = rule.clone();
    other["triggerPolicy"] = json!("ForceClosed");
    other["restRules"] = json!([{"url": "https://example.com/*", "method": "GET"}]);
    other.as_object_mut().unwrap().remove("resourceRules");
    let patch = Patch::Merge(json!({"spec": {"rateLimitings": [other]}}));
    let edited = policies.patch("kept", &PatchParams::default(), &patch).await.unwrap();
    assert!(edited.metadata.generation > policy.metadata.generation);
    eventually("it is refused, and said why", || async {
        let listed = ground.said(&["get", "policies"]).await;
        let words = ["operators/kept: Accepted=False NotImplemented", "restRules"];
        words
            .iter()
            .all(|word| listed.contains(word))
            .then_some(())
            .ok_or(listed)
    })
    .await;
    assert_opened(&delete_pod(&door, "kept-e").await, STOP);
    let served = ground.served(&edited).await.unwrap();
    assert_eq!(
        served["generation"],
        json!(policy.metadata.generation),
        "the one that was good"
    );

    // What no schema lets in is refused before.
    let mut twice = rule.clone();
    twice["name"] = json!("");
    let patch = Patch::Merge(json!({"spec": {"rateLimitings": [twice]}}));
    let refused = policies
        .patch("kept", &PatchParams::default(), &patch)
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("name"), "{refused}");

    ground.delete(&edited).await;
    assert_eq!(delete_pod(&door, "kept-e").await.status, 404);
}
