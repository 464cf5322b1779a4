//! A CircuitBreaker and a FaultInjection on their way: what routers are told, what stays when a spec is broken, what statuses
//! and Events say, and what stops faults.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use portolan_crds::labels::{CONFIG_MAP_FAULTS, LABEL_CIRCUIT_BREAKER_DISABLE, SYSTEM_NAMESPACE};
use portolan_testbed::eventually;
use portolan_wire::v1;
use portolan_wire::v1::router_message::Kind;
use serde_json::{Value, json};

use crate::scene::{Router, Scene, says, shard_spec};

const CALM: &str = "CircuitBreaker/ops/calm";
const SHAKE: &str = "FaultInjection/ops/shake";

async fn api(scene: &Scene, kind: &str) -> Api<DynamicObject> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("ctrlmesh.kusionstack.io", "v1alpha1", kind));
    Api::namespaced_with(scene.client().await, "ops", &kind)
}

/// Creates or changes a policy, by its name on the wire.
async fn put(scene: &Scene, name: &str, spec: &Value, labels: &Value) -> kube::Result<()> {
    let (kind, name) = (name.split('/').next().unwrap(), name.rsplit('/').next().unwrap());
    let object = json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1", "kind": kind,
        "metadata": {"name": name, "namespace": "ops", "labels": labels}, "spec": spec,
    });
    let params = PatchParams::apply("test").force();
    api(scene, kind)
        .await
        .patch(name, &params, &Patch::Apply(object))
        .await?;
    Ok(())
}

/// Waits until a condition of a policy is so, of its present generation; the router follows meanwhile.
async fn policy_says(scene: &Scene, router: &mut Router, name: &str, condition: &str, wanted: &str) -> String {
    let api = api(scene, name.split('/').next().unwrap()).await;
    let short = name.rsplit('/').next().unwrap();
    let status = || async {
        let object = api.get(short).await.ok()?;
        let status = object.data.get("status")?.clone();
        (status["observedGeneration"] == json!(object.metadata.generation)).then_some(status)
    };
    let what = format!("{name}: {condition} {wanted}");
    router.during(says(&what, condition, wanted, status)).await
}

fn limit(burst: u32) -> Value {
    json!({
        "selector": {"matchLabels": {"app": "operator"}},
        "rateLimitings": [{
            "name": "slow", "triggerPolicy": "Normal", "scope": "Shared",
            "bucket": {"burst": burst, "interval": "1s", "limit": 10},
            "resourceRules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["*"], "namespaces": ["*"]}],
        }],
    })
}

/// What is understood, stored, and not served, beside a limit that is.
fn served_in_part(limit: Value) -> Value {
    let mut spec = limit;
    spec["rateLimitings"][0]["restRules"] = json!([{"url": "https://shop.example/*", "method": "GET"}]);
    spec
}

/// What is understood and stored, and of which nothing is served.
fn not_served() -> Value {
    let mut spec = served_in_part(limit(10));
    spec["rateLimitings"][0]
        .as_object_mut()
        .unwrap()
        .remove("resourceRules");
    spec
}

/// A hub with a caller, and a router that holds its view.
async fn begun() -> (Scene, impl Sized, Router) {
    let scene = Scene::start().await.unwrap();
    let agent = scene.join("east").await;
    agent.report(&["ns-a"], &["operator-0"]).await;
    scene.shard("shard", shard_spec("east", &["ns-a"])).await;
    let mut router = scene.router("gateway", Vec::new()).await;
    router
        .follow("the caller's view", |router| router.holds("east/uid-operator-0"))
        .await;
    (scene, agent, router)
}

#[tokio::test]
async fn a_circuit_breaker_is_told_kept_and_taken_back() {
    let (scene, _agent, mut router) = begun().await;
    put(&scene, CALM, &limit(10), &json!({})).await.unwrap();
    router
        .follow("the policy and whom it holds", |router| {
            router.holds(CALM) && router.held_by("east/uid-operator-0") == [CALM]
        })
        .await;
    for condition in ["Accepted", "Active", "Distributed", "CallersFound"] {
        policy_says(&scene, &mut router, CALM, condition, "True/Ok").await;
    }
    shares_are_told(&mut router).await;
    what_opens_is_told(&scene, &mut router).await;

    // An edit that cannot be served: the good one stays.
    let good = router.version(CALM);
    put(&scene, CALM, &not_served(), &json!({})).await.unwrap();
    let message = policy_says(&scene, &mut router, CALM, "Accepted", "False/NotImplemented").await;
    assert!(
        message.contains("the last accepted spec stays in force, of generation 1"),
        "{message}"
    );
    policy_says(&scene, &mut router, CALM, "Distributed", "True/Ok").await;
    assert_eq!(router.version(CALM), good);

    put(&scene, CALM, &served_in_part(limit(20)), &json!({})).await.unwrap();
    router
        .follow("the mended spec", |router| router.version(CALM) != good)
        .await;
    let message = policy_says(&scene, &mut router, CALM, "RulesServed", "False/NotImplemented").await;
    assert!(message.contains("spec.rateLimitings[0].restRules"), "{message}");
    policy_says(&scene, &mut router, CALM, "Accepted", "True/Ok").await;
    put(&scene, CALM, &limit(20), &json!({LABEL_CIRCUIT_BREAKER_DISABLE: ""}))
        .await
        .unwrap();
    router
        .follow("it is withdrawn", |router| {
            !router.holds(CALM) && router.held_by("east/uid-operator-0").is_empty()
        })
        .await;
    policy_says(&scene, &mut router, CALM, "Active", "False/Disabled").await;
    put(&scene, CALM, &limit(20), &json!({})).await.unwrap();
    router.follow("it is back", |router| router.holds(CALM)).await;
    let params = DeleteParams::default();
    api(&scene, "CircuitBreaker")
        .await
        .delete("calm", &params)
        .await
        .unwrap();
    router.follow("it is gone", |router| !router.holds(CALM)).await;
}

/// The router has all of a limit that is its alone.
async fn shares_are_told(router: &mut Router) {
    let report = v1::PolicyReport {
        demands: vec![v1::SharedDemand {
            policy: CALM.to_owned(),
            rule: "slow".to_owned(),
            ..v1::SharedDemand::default()
        }],
        ..v1::PolicyReport::default()
    };
    router.say(Kind::Policies(report)).await;
    router
        .follow("its share", |router| {
            let mut shares = router.shares.iter().flat_map(|told| &told.shares);
            shares.any(|share| share.rule == "slow" && share.millionths == 1_000_000)
        })
        .await;
}

async fn what_opens_is_told(scene: &Scene, router: &mut Router) {
    let opened = v1::RuleState {
        policy: CALM.to_owned(),
        rule: "slow".to_owned(),
        opened: true,
        reason: "LimitExceeded".to_owned(),
        since_unix_milliseconds: 1_700_000_000_000,
        last_minute: 3,
        total: 4,
        ..v1::RuleState::default()
    };
    let report = v1::PolicyReport {
        rules: vec![opened],
        ..v1::PolicyReport::default()
    };
    router.say(Kind::Policies(report)).await;
    let breakers = api(scene, "CircuitBreaker").await;
    let events = Api::<Event>::namespaced(scene.client().await, "ops");
    let told = async {
        eventually("the status tells", || async {
            let status = breakers.get("calm").await.ok()?.data["status"].clone();
            let rule = &status["targetStatus"][0]["limitingSnapshots"][0];
            let found = (&status["opened"], &rule["name"], &rule["state"], &rule["refusedTotal"]);
            (found == (&json!(1), &json!("slow"), &json!("Opened"), &json!(4))).then_some(())
        })
        .await;
        eventually("an Event tells", || async {
            let events = events.list(&ListParams::default()).await.ok()?;
            let mut told = events
                .items
                .iter()
                .filter(|event| event.reason.as_deref() == Some("RuleOpened"));
            let note = told.next()?.note.clone()?;
            note.contains("gateway: LimitExceeded").then_some(())
        })
        .await;
    };
    router.during(told).await;
}

#[tokio::test]
async fn faults_are_stopped_by_hand_and_a_hub_that_starts_takes_nothing() {
    let (mut scene, agent, mut router) = begun().await;
    let spec = json!({
        "selector": {}, "httpFault": [{"name": "late", "delay": {"fixedDelay": "1s", "percent": "50"}}],
    });
    put(&scene, SHAKE, &spec, &json!({})).await.unwrap();
    let mut bad = spec.clone();
    bad["httpFault"][0]["match"] = json!({"httpMatch": [{"path": {"regex": "("}}]});
    let kube::Error::Api(refusal) = put(&scene, SHAKE, &bad, &json!({})).await.unwrap_err() else {
        panic!("the API server answers");
    };
    assert_eq!(refusal.code, 422, "{refusal:?}");
    let text = "spec.httpFault[0].match.httpMatch[0].path: regex";
    assert!(refusal.message.contains(text), "what no schema can say: {refusal:?}");
    put(&scene, CALM, &limit(10), &json!({})).await.unwrap();
    router
        .follow("both", |router| router.holds(SHAKE) && router.holds(CALM))
        .await;
    let client = scene.client().await;
    let maps = Api::<ConfigMap>::namespaced(client, SYSTEM_NAMESPACE);
    let switch = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CONFIG_MAP_FAULTS},
        "data": {"stopped": "true", "by": "ada", "reason": "an incident"},
    });
    let params = PatchParams::apply("test").force();
    maps.patch(CONFIG_MAP_FAULTS, &params, &Patch::Apply(switch))
        .await
        .unwrap();
    router.follow("no faults", |router| !router.holds(SHAKE)).await;
    assert!(router.holds(CALM), "what is no fault stays");
    let message = policy_says(&scene, &mut router, SHAKE, "Active", "False/Stopped").await;
    assert!(message.contains("by ada: an incident"), "{message}");
    maps.delete(CONFIG_MAP_FAULTS, &DeleteParams::default()).await.unwrap();
    router.follow("faults again", |router| router.holds(SHAKE)).await;

    // While the hub is away the CircuitBreaker is broken: the next hub knows no good spec of it, and takes nothing.
    let seen = router.transactions;
    router
        .follow("its commit", |router| router.transactions > seen || router.holds(SHAKE))
        .await;
    let (held, identity) = (router.held.clone(), router.identity.clone());
    drop((router, agent));
    scene.hub.stop().await.unwrap();
    put(&scene, CALM, &not_served(), &json!({}))
        .await
        .expect("nobody is there to be asked, and nothing is refused for that");
    scene.hub.start_again().await.unwrap();
    scene.hub.ready().await;
    let agent = scene.agent("east").await;
    agent.report(&["ns-a"], &["operator-0"]).await;
    let mut router = scene.router_of(identity, held).await;
    router
        .follow("the first commit", |router| router.transactions > 0)
        .await;
    let message = policy_says(&scene, &mut router, CALM, "Accepted", "False/NotImplemented").await;
    assert!(message.contains("routers that have one keep it"), "{message}");
    assert!(router.holds(CALM) && router.holds(SHAKE));
    put(&scene, CALM, &limit(30), &json!({})).await.unwrap();
    policy_says(&scene, &mut router, CALM, "Distributed", "True/Ok").await;
    scene.leaks_nothing().await;
}

/// How often each Event of namespace `ops` was told, by reason.
async fn told_events(scene: &Scene) -> BTreeMap<String, i32> {
    let events = Api::<Event>::namespaced(scene.client().await, "ops");
    let mut told = BTreeMap::new();
    for event in events.list(&ListParams::default()).await.unwrap().items {
        let times = event.series.map_or(1, |series| series.count);
        *told.entry(event.reason.unwrap_or_default()).or_default() += times;
    }
    told
}

/// Waits until so many Events were told; the router follows meanwhile.
async fn events_say(scene: &Scene, router: &mut Router, wanted: &[(&str, i32)]) {
    let wanted: BTreeMap<_, _> = wanted
        .iter()
        .map(|(reason, times)| ((*reason).to_owned(), *times))
        .collect();
    let what = format!("Events are {wanted:?}");
    let told = eventually(&what, || async {
        let told = told_events(scene).await;
        if told == wanted { Ok(()) } else { Err(told) }
    });
    router.during(told).await;
}

/// A limit that refuses all, or does no more, and a fault that was injected.
fn did(opened: bool) -> Kind {
    let limit = v1::RuleState {
        policy: CALM.to_owned(),
        rule: "slow".to_owned(),
        opened,
        reason: "LimitExceeded".to_owned(),
        total: 4,
        ..v1::RuleState::default()
    };
    let fault = v1::RuleState {
        policy: SHAKE.to_owned(),
        rule: "late".to_owned(),
        caller: "east/uid-operator-0".to_owned(),
        total: 3,
        ..v1::RuleState::default()
    };
    Kind::Policies(v1::PolicyReport {
        rules: vec![limit, fault],
        ..v1::PolicyReport::default()
    })
}

#[tokio::test]
async fn each_change_is_an_event_once_also_over_a_restart_of_the_hub() {
    let (mut scene, agent, mut router) = begun().await;
    let fault = json!({"selector": {}, "httpFault": [{"name": "late", "delay": {"fixedDelay": "1s"}}]});
    put(&scene, SHAKE, &fault, &json!({})).await.unwrap();
    put(&scene, CALM, &limit(10), &json!({})).await.unwrap();
    router
        .follow("both", |router| router.holds(SHAKE) && router.holds(CALM))
        .await;
    policy_says(&scene, &mut router, CALM, "Distributed", "True/Ok").await;
    policy_says(&scene, &mut router, SHAKE, "Distributed", "True/Ok").await;
    events_say(&scene, &mut router, &[("InForce", 2)]).await;
    router.say(did(true)).await;
    let opened = [("InForce", 2), ("RuleOpened", 1), ("FaultInjected", 1)];
    events_say(&scene, &mut router, &opened).await;
    // It is written after the Events.
    let policies = api(&scene, "CircuitBreaker").await;
    let stands = eventually("the status says so", || async {
        let calm = policies.get("calm").await.unwrap();
        let opened = calm.data["status"]["opened"].clone();
        if opened == json!(1) { Ok(()) } else { Err(opened) }
    });
    router.during(stands).await;

    let (held, identity) = (router.held.clone(), router.identity.clone());
    drop((router, agent));
    scene.hub.stop().await.unwrap();
    scene.hub.start_again().await.unwrap();
    scene.hub.ready().await;
    let agent = scene.agent("east").await;
    agent.report(&["ns-a"], &["operator-0"]).await;
    let mut router = scene.router_of(identity, held).await;
    router
        .follow("the first commit", |router| router.transactions > 0)
        .await;
    // An edit shows that this hub writes the status; the router has not spoken yet.
    put(&scene, CALM, &limit(20), &json!({})).await.unwrap();
    policy_says(&scene, &mut router, CALM, "Distributed", "True/Ok").await;
    let calm = api(&scene, "CircuitBreaker").await.get("calm").await.unwrap();
    assert_eq!(calm.data["status"]["opened"], json!(1), "what it said stands");
    router.say(did(true)).await;
    put(&scene, CALM, &limit(30), &json!({})).await.unwrap();
    policy_says(&scene, &mut router, CALM, "Distributed", "True/Ok").await;
    router.say(did(false)).await;
    let closed = [
        ("InForce", 2),
        ("RuleOpened", 1),
        ("FaultInjected", 1),
        ("RuleClosed", 1),
    ];
    events_say(&scene, &mut router, &closed).await;
}
