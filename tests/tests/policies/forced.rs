//! ForceOpened and ForceClosed: which word counts.

use portolan_crds::CircuitBreaker;
use serde_json::{Value, json};

use crate::{assert_limited, assert_opened, delete_pod, ground};

const STOP: &str = "CircuitBreaker/operators/forced/stop";

#[tokio::test]
async fn force_opened_on_everything_beats_a_narrow_rule_in_both_views() {
    let ground = ground().await;
    let door = ground.caller("forced").await;
    let anything: Value = serde_json::from_str(crate::ANYTHING).unwrap();
    let narrow = |trigger: &str| {
        json!({
            "name": "deletes", "triggerPolicy": trigger, "bucket": {"burst": 100, "interval": "1s", "limit": 100},
            "resourceRules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"], "namespaces": ["forced-e"]}],
        })
    };
    let stop = json!({"name": "stop", "triggerPolicy": "ForceOpened", "resourceRules": [anything]});
    for trigger in ["LimiterOnly", "ForceClosed"] {
        let spec = json!({"rateLimitings": [narrow(trigger), stop]});
        let _: CircuitBreaker = ground.hold("forced", spec).await;
        for door in [&door, &door.with_prefix("/clusters/east")] {
            assert_opened(&delete_pod(door, "forced-e").await, STOP);
            let map = "/api/v1/namespaces/forced-e/configmaps/kube-root-ca.crt";
            assert_opened(&door.get(map, &[]).await.unwrap(), STOP);
            for path in ["/api/v1/configmaps", "/api/v1/namespaces/forced-e/configmaps"] {
                for query in ["", "?watch=true&resourceVersion=0"] {
                    let answer = door.get(&format!("{path}{query}"), &[]).await.unwrap();
                    assert_limited(&answer, STOP);
                }
            }
        }
    }
    ground
        .told("operators/forced", &["stop", "Opened", "ForceOpened"])
        .await;
    // Nobody's hand closes what the object says itself.
    ground.said(&["breaker", "close", "operators/forced/stop"]).await;
    assert_opened(&delete_pod(&door, "forced-e").await, STOP);
    // Its member is another: the rule is of requests that go to west.
    let mut west = serde_json::from_str::<Value>(crate::ANYTHING).unwrap();
    west["clusters"] = json!(["west"]);
    let spec = json!({"rateLimitings": [{"name": "stop", "triggerPolicy": "ForceOpened", "resourceRules": [west]}]});
    let policy: CircuitBreaker = ground.hold("forced", spec).await;
    assert_eq!(delete_pod(&door, "forced-e").await.status, 404);
    assert_opened(&delete_pod(&door, "forced-w").await, STOP);
    assert_limited(&door.get("/api/v1/configmaps", &[]).await.unwrap(), STOP);
    ground.delete(&policy).await;
    assert_eq!(delete_pod(&door, "forced-w").await.status, 404);
}
