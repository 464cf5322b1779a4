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
        .data(json!({"spec": spec, "status": {"observedGeneration": 1}}));
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

/// A CircuitBreaker with a limit that routers have together.
fn shared() -> serde_json::Value {
    json!({"selector": {}, "rateLimitings": [{
        "name": "all", "scope": "Shared", "triggerPolicy": "LimiterOnly",
        "bucket": {"burst": 100, "interval": "1s", "limit": 100},
        "resourceRules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "namespaces": ["*"]}],
    }]})
}

fn demand(share: u32, revision: u64, asked: u64) -> v1::SharedDemand {
    v1::SharedDemand {
        policy: CALM.to_owned(),
        rule: "all".to_owned(),
        share_millionths: share,
        revision,
        asked_per_second_thousandths: asked,
        uid: "object-calm".to_owned(),
    }
}

async fn says(router: &crate::testing::TestRouter, demands: Vec<v1::SharedDemand>) {
    let report = v1::PolicyReport {
        demands,
        ..v1::PolicyReport::default()
    };
    router.say(RouterSaid::Policies(report)).await;
}

/// The next shares that it is told; transactions are acknowledged meanwhile.
async fn shares(router: &mut crate::testing::TestRouter) -> v1::Shares {
    loop {
        match router.hear().await.unwrap() {
            RouterTold::Shares(shares) => return shares,
            RouterTold::Commit(commit) => router.ack(commit.nonce).await,
            _ => {}
        }
    }
}

#[tokio::test]
async fn routers_are_told_their_shares_and_grow_only_after_others_have_shrunk() {
    let hub = TestHub::start().await;
    let _agents = two_shards(&hub).await;
    let serving = || v1::RouterHello {
        protocol: portolan_wire::protocol::PROTOCOL,
        capabilities: [OPERATORS, portolan_wire::protocol::POLICIES].map(str::to_owned).into(),
        ..Default::default()
    };
    let router = async |name: &str| {
        let identity = Identity::Router(name.to_owned());
        hub.router_as(&identity, serving()).await.unwrap()
    };
    let (mut one, mut two) = (router("gateway").await, router("other").await);
    says(&one, vec![]).await;
    says(&two, vec![]).await;
    policy(&hub, PolicyKind::CircuitBreaker, "calm", 1, shared());
    let (of_one, of_two) = (shares(&mut one).await, shares(&mut two).await);
    let share = |shares: &v1::Shares| shares.shares.iter().map(|share| share.millionths).sum::<u32>();
    let told = &of_one.shares[0];
    assert_eq!(
        (told.policy.as_str(), told.uid.as_str(), told.rule.as_str()),
        (CALM, "object-calm", "all")
    );
    // The second may be heard later than the first is told, and both settle on halves.
    let mut last = (of_one, of_two);
    while (share(&last.0), share(&last.1)) != (500_000, 500_000) {
        says(&one, vec![demand(share(&last.0), last.0.revision, 0)]).await;
        says(&two, vec![demand(share(&last.1), last.1.revision, 0)]).await;
        tokio::select! {
            told = shares(&mut one) => last.0 = told,
            told = shares(&mut two) => last.1 = told,
        }
    }
    says(&two, vec![demand(500_000, last.1.revision, 0)]).await;
    says(&one, vec![demand(500_000, last.0.revision, 200_000)]).await;
    let shrunk = shares(&mut two).await;
    assert_eq!(share(&shrunk), 25_000);
    let early = tokio::time::timeout(std::time::Duration::from_millis(400), shares(&mut one)).await;
    assert!(early.is_err(), "the other has not said that it has shrunk: {early:?}");
    says(&two, vec![demand(25_000, shrunk.revision, 0)]).await;
    assert_eq!(share(&shares(&mut one).await), 975_000);
}

#[tokio::test]
async fn how_rules_stand_is_kept_as_far_as_the_router_knows_them() {
    let hub = TestHub::start().await;
    let _agents = two_shards(&hub).await;
    policy(&hub, PolicyKind::CircuitBreaker, "calm", 1, shared());
    let mut router = hub.router("gateway", Vec::new()).await;
    settle(&hub, &mut router, &["ops/a", "east/p", CALM]).await;
    let state = |policy: &str, caller: &str| v1::RuleState {
        policy: policy.to_owned(),
        rule: "all".to_owned(),
        caller: caller.to_owned(),
        opened: true,
        ..v1::RuleState::default()
    };
    let rules = vec![
        state(CALM, "east/p"),
        state("CircuitBreaker/ops/gone", "east/p"),
        state(CALM, "east/nobody"),
        state(CALM, ""),
    ];
    let mut rules_changed = hub.acks.status_changes();
    rules_changed.mark_unchanged();
    let report = v1::PolicyReport {
        rules,
        ..v1::PolicyReport::default()
    };
    router.say(RouterSaid::Policies(report)).await;
    hub.until("the report is known", |hub| {
        let kept = hub.acks.read(|routers| routers["gateway"].rules.clone());
        (kept
            .states
            .iter()
            .map(|state| state.caller.as_str())
            .collect::<Vec<_>>()
            == ["east/p", ""])
        .then_some(())
    })
    .await;
    assert!(rules_changed.has_changed().unwrap(), "that something opened is news");
}

/// As after a start of the hub: a router of a shard comes back before the agent of its callers' home.
#[tokio::test]
async fn a_report_of_a_router_whose_callers_are_not_known_yet_counts() {
    let hub = TestHub::start().await;
    shard(&hub, "a", 1, json!([{"name": "west", "namespaces": ["ns"]}]));
    policy(&hub, PolicyKind::CircuitBreaker, "calm", 1, shared());
    hub.until("all but callers is known", |hub| {
        let worlds = hub.worlds.borrow();
        let world = &worlds.as_ref()?.world;
        let there = !world.is_gone(&Ref::Policy(CALM.parse().unwrap()))
            && world.state.accepted.contains_key(&"ops/a".parse().unwrap());
        (there && world.is_unknown(v1::ResourceKind::CallerView, "east")).then_some(())
    })
    .await;
    let of_a = subscriptions::subscription(&["shard:ops/a"]);
    let router = hub.subscriber(&of_a, &[]).await.unwrap();
    let opened = v1::RuleState {
        policy: CALM.to_owned(),
        rule: "all".to_owned(),
        opened: true,
        ..v1::RuleState::default()
    };
    let gone = v1::RuleState {
        policy: "CircuitBreaker/ops/gone".to_owned(),
        ..opened.clone()
    };
    let report = v1::PolicyReport {
        rules: vec![gone, opened.clone()],
        ..v1::PolicyReport::default()
    };
    router.say(RouterSaid::Policies(report)).await;
    let kept = hub
        .until("the report is known", |hub| {
            hub.acks.read(|routers| {
                let state = routers.get("part")?;
                state.told_rules.map(|_| state.rules.states.clone())
            })
        })
        .await;
    assert_eq!(kept, [opened]);
}
