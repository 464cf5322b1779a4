//! Policies on their way to routers over the real port.

use portolan_wire::v1::resource::Body;

use super::*;
use crate::facts::{FaultsStopped, PolicyKind};
use crate::index::Change;

const CALM: &str = "CircuitBreaker/ops/calm";

pub(super) fn policy(hub: &TestHub, kind: PolicyKind, name: &str, generation: i64, spec: serde_json::Value) {
    use kube::api::DynamicObject;
    let mut object = DynamicObject::new(name, &kind.resource())
        .within("ops")
        .data(json!({"spec": spec}));
    object.metadata.uid = Some(format!("object-{name}"));
    object.metadata.generation = Some(generation);
    hub.index.write(|facts| facts.apply_policy(kind, &object));
}

fn policies(received: &Received) -> Vec<&v1::Policy> {
    let bodies = received.upserted.iter().filter_map(|resource| resource.body.as_ref());
    bodies
        .filter_map(|body| match body {
            Body::Policy(policy) => Some(policy),
            _ => None,
        })
        .collect()
}

fn views(received: &Received) -> Vec<&v1::CallerView> {
    let bodies = received.upserted.iter().filter_map(|resource| resource.body.as_ref());
    bodies
        .filter_map(|body| match body {
            Body::CallerView(view) => Some(view),
            _ => None,
        })
        .collect()
}

#[tokio::test]
async fn a_policy_and_whom_it_holds_come_together_and_go_together() {
    let hub = TestHub::start().await;
    let _agents = two_shards(&hub).await;
    let mut router = hub.router("gateway", Vec::new()).await;
    let spec = |app: &str| json!({"selector": {"matchLabels": {"app": app}}});
    settle(&hub, &mut router, &["ops/a", "east/p"]).await;
    policy(&hub, PolicyKind::CircuitBreaker, "calm", 1, spec("op"));
    let received = router.transaction().await;
    assert_eq!(policies(&received)[0].name, CALM);
    let held = views(&received);
    assert!(
        !held.is_empty() && held.iter().all(|view| view.policies == [CALM]),
        "{held:?}"
    );
    router.ack(received.nonce).await;

    // A bad edit is told to nobody; the next good one is.
    let mut bad = spec("op");
    bad["rateLimitings"] = json!(7);
    policy(&hub, PolicyKind::CircuitBreaker, "calm", 2, bad);
    let mut edit = spec("op");
    edit["rateLimitings"] = json!([{
        "name": "slow", "bucket": {"burst": 1, "interval": "1s", "limit": 1},
        "resourceRules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"], "namespaces": ["*"]}],
    }]);
    policy(&hub, PolicyKind::CircuitBreaker, "calm", 3, edit);
    let received = router.transaction().await;
    assert_eq!(policies(&received)[0].generation, 3);
    assert!(views(&received).is_empty(), "whom it holds is the same");
    router.ack(received.nonce).await;

    policy(&hub, PolicyKind::FaultInjection, "shake", 1, spec("op"));
    let received = router.transaction().await;
    assert_eq!(policies(&received).len(), 1);
    router.ack(received.nonce).await;
    hub.index.write(|facts| {
        facts.faults_stopped = Some(FaultsStopped::default());
        Change::Compile
    });
    let received = router.transaction().await;
    let removed: Vec<_> = received.removed.iter().map(|name| name.name.as_str()).collect();
    assert_eq!(removed, ["FaultInjection/ops/shake"]);
    assert!(views(&received).iter().all(|view| view.policies == [CALM]));
}

#[tokio::test]
async fn a_router_keeps_what_this_hub_knows_no_good_spec_of() {
    let hub = TestHub::start().await;
    let _agents = two_shards(&hub).await;
    policy(
        &hub,
        PolicyKind::CircuitBreaker,
        "calm",
        7,
        json!({"selector": {}, "rateLimitings": 7}),
    );
    let known = |name: &str| v1::KnownResource {
        r#ref: Some(Ref::Policy(name.parse().unwrap()).to_wire()),
        version: "of an earlier hub".into(),
    };
    hub.until("it is known", |hub| {
        let worlds = hub.worlds.borrow();
        worlds
            .as_ref()?
            .world
            .policies
            .contains_key(&CALM.parse().unwrap())
            .then_some(())
    })
    .await;
    let mut router = hub
        .router("gateway", vec![known(CALM), known("CircuitBreaker/ops/gone")])
        .await;
    let received = router.transaction().await;
    let removed: Vec<_> = received.removed.iter().map(|name| name.name.as_str()).collect();
    assert_eq!(removed, ["CircuitBreaker/ops/gone"]);
    assert!(policies(&received).is_empty());
    router.ack(received.nonce).await;
}

#[tokio::test]
async fn a_fault_is_taken_back_when_its_time_is_over() {
    let hub = TestHub::start().await;
    let _agents = two_shards(&hub).await;
    let mut router = hub.router("gateway", Vec::new()).await;
    settle(&hub, &mut router, &["ops/a", "east/p"]).await;
    let until = jiff::Timestamp::now() + jiff::SignedDuration::from_millis(700);
    let spec = json!({"selector": {}, "until": until.to_string()});
    policy(&hub, PolicyKind::FaultInjection, "shake", 1, spec);
    let received = router.transaction().await;
    assert_eq!(policies(&received).len(), 1);
    router.ack(received.nonce).await;
    let received = router.transaction().await;
    assert_eq!(received.removed[0].name, "FaultInjection/ops/shake");
    assert!(jiff::Timestamp::now() >= until);
}
