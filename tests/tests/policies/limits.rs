//! A limit of one caller: what is over it, who is beside it, what is told of it, and what it would have done before.

use http::Method;
use portolan_crds::CircuitBreaker;
use portolan_tests::door::{json, request};
use serde_json::json;

use crate::{assert_limited, delete_pod, ground};

const DELETES: &str = "CircuitBreaker/operators/limited/deletes";

#[tokio::test]
async fn a_limit_of_deletions_holds_its_caller_and_nobody_else() {
    let ground = ground().await;
    let (door, other) = (ground.caller("limited").await, ground.caller("bystander").await);
    let limit = json!({"rateLimitings": [{
        "name": "deletes", "triggerPolicy": "LimiterOnly", "bucket": {"burst": 3, "interval": "1h", "limit": 1},
        "resourceRules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"], "namespaces": ["*"]}],
    }]});
    let policy: CircuitBreaker = ground.hold("limited", limit).await;
    for namespace in ["limited-e", "limited-w", "limited-e"] {
        assert_eq!(delete_pod(&door, namespace).await.status, 404, "the member is asked");
    }
    for namespace in ["limited-e", "limited-w"] {
        assert_limited(&delete_pod(&door, namespace).await, DELETES);
    }
    // Over the explicit view too, whose path is another one.
    assert_limited(
        &delete_pod(&door.with_prefix("/clusters/east"), "limited-e").await,
        DELETES,
    );
    let maps = door.get("/api/v1/configmaps", &[]).await.unwrap();
    assert_eq!(maps.status, 200, "{}", maps.message());
    for _ in 0..5 {
        assert_eq!(delete_pod(&other, "bystander-e").await.status, 404);
    }
    // Three refused, for want of tokens: not opened.
    let words = ["deletes east/portolan-dev-limited", "Closed", " 3 0"];
    ground.told("operators/limited", &words).await;
    ground.delete(&policy).await;
    assert_eq!(delete_pod(&door, "limited-e").await.status, 404, "it is gone");
}

/// A list of any kind of pods.
const TRIED: &str = "\
apiVersion: ctrlmesh.kusionstack.io/v1alpha1
kind: CircuitBreaker
metadata: {name: tried, namespace: operators}
spec:
  selector: {matchLabels: {shard: tried}}
  rateLimitings:
  - name: creations
    bucket: {burst: 2, interval: 1h, limit: 1}
    triggerPolicy: Normal
    resourceRules:
    - {apiGroups: [''], resources: [configmaps], verbs: [create], namespaces: ['*']}
";

#[tokio::test]
async fn a_policy_is_tried_on_what_was_asked_before_it_is_applied() {
    let ground = ground().await;
    let door = ground.caller("tried").await;
    let line = door.open().await.unwrap();
    for number in 0..6 {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("made-{number}")}});
        let create = json(Method::POST, "/api/v1/namespaces/tried-e/configmaps", &object).unwrap();
        assert_eq!(line.ask(create).await.unwrap().status, 201);
    }
    let file = ground.file("tried.yaml", TRIED);
    let caller = "east/operators/portolan-dev-tried";
    let told = ground.said(&["policies", "try", "-f", &file, "--caller", caller]).await;
    let row = |name: &str| {
        let mut lines = told.lines().filter(|line| line.starts_with(name));
        let line = lines.next().unwrap_or_else(|| panic!("no {name} in {told}"));
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(row("creations")[1..6], ["6", "4", "1", "3", "0"], "{told}");
    assert_eq!(row(caller)[2..], ["4", "creations", "4"], "{told}");
    assert!(ground.served(&named("tried")).await.is_none(), "nothing is applied");

    let explained = [
        "explain",
        "create",
        "/api/v1/namespaces/tried-e/configmaps",
        "--as",
        caller,
    ];
    let told = ground.said(&explained).await;
    assert!(told.contains("policies meets no rule of any"), "{told}");
    let policy: CircuitBreaker = ground
        .hold(
            "tried",
            serde_yaml_ng::from_str::<serde_json::Value>(TRIED).unwrap()["spec"].clone(),
        )
        .await;
    let told = ground.said(&explained).await;
    assert!(told.contains("policies no rule refuses it"), "{told}");
    assert!(
        told.contains("CircuitBreaker/operators/tried/creations (Normal): passes; costs 1 of 2 tokens"),
        "{told}"
    );
    // It is asked and nothing is taken.
    for _ in 0..2 {
        ground.said(&explained).await;
    }
    let get = request(Method::GET, "/api/v1/namespaces/tried-e/configmaps/made-1", &[], &[]).unwrap();
    assert_eq!(line.ask(get).await.unwrap().status, 200);
    assert!(ground.said(&explained).await.contains("of 2 tokens"));
    ground.delete(&policy).await;
}

/// An object that nobody has made.
fn named(name: &str) -> CircuitBreaker {
    let mut object = CircuitBreaker::new(name, portolan_crds::CircuitBreakerSpec::default());
    object.metadata.namespace = Some("operators".to_owned());
    object
}
