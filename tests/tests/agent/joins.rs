//! Joining, reporting, reviewing and minting.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Pod, Secret};
use k8s_openapi::api::rbac::v1::Role;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt as _};
use portolan_runtime::Readiness;
use portolan_testbed::{Fault, eventually, patience};
use portolan_wire::v1 as wire;
use portolan_wire::v1::enroll_request::Proof;
use serde_json::json;

use crate::DAY;
use crate::crowds;
use crate::hub::{NONCE, TOKEN};
use crate::scene::{self, Scene, config};

#[tokio::test]
async fn joins_reports_and_comes_back() {
    let mut scene = Scene::start(config(&[]), DAY).await.unwrap();
    a_wrong_token_is_asked_with_again_after_it_was_replaced(&scene).await;
    tells_what_its_cluster_is(&scene).await;
    tells_namespaces_as_they_change(&scene).await;
    tells_callers_as_selected(&scene).await;
    reviews_tokens_of_its_cluster(&scene).await;
    mints_tokens_that_the_member_takes(&scene).await;
    tells_whom_the_router_may_act_as(&scene).await;
    tells_everything_again_to_a_hub_that_restarted(&mut scene).await;
    crowds::nobody_elses_callers_are_held_back(&mut scene).await;
    beats_on_while_its_api_server_is_away(&scene).await;
}

/// Bad token, then a good one, then acceptance: no restart in between, and one key throughout.
async fn a_wrong_token_is_asked_with_again_after_it_was_replaced(scene: &Scene) {
    scene.bootstrap("abc123.wrongwrongwrong00").await.unwrap();
    let agent = scene.agent().await.unwrap();
    let told = &scene.hub.told;
    eventually("the hub refuses the token", || async {
        told.read(|told| !told.enrolments.is_empty())
    })
    .await;
    scene.bootstrap(TOKEN).await.unwrap();
    let good = |request: &wire::EnrollRequest| request.proof == Some(Proof::BootstrapToken(TOKEN.to_owned()));
    eventually("it asks with the good token and is not accepted", || async {
        told.read(|told| told.enrolments.iter().any(good))
    })
    .await;
    assert!(!agent.readiness.is_ready());

    // A crash between asking and being accepted: the next process must ask with the key that the token is spent on.
    agent.drain.now().await.into_result().unwrap();
    let keys = Api::<Secret>::namespaced(scene.client.clone(), "portolan-system");
    let before = keys.get("portolan-agent-identity").await.unwrap().data.unwrap();
    assert_eq!(before.keys().collect::<Vec<_>>(), ["tls.key"]);
    scene.hub.accept();
    let agent = scene.agent().await.unwrap();
    ready(&agent.readiness).await;
    let after = keys.get("portolan-agent-identity").await.unwrap().data.unwrap();
    assert_eq!(before["tls.key"], after["tls.key"]);

    // A restart needs the identity alone.
    agent.drain.now().await.into_result().unwrap();
    keys.delete("portolan-agent-bootstrap", &DeleteParams::default())
        .await
        .unwrap();
    let enrolments = told.read(|told| told.enrolments.len());
    let agent = scene.agent().await.unwrap();
    ready(&agent.readiness).await;
    assert_eq!(told.read(|told| told.enrolments.len()), enrolments);
    // It runs on to the end of the test.
    std::mem::forget(agent);
}

async fn ready(readiness: &Readiness) {
    tokio::time::timeout(patience(), readiness.wait_ready())
        .await
        .expect("the agent is ready");
}

async fn tells_what_its_cluster_is(scene: &Scene) {
    let system = Api::<Namespace>::all(scene.client.clone())
        .get("kube-system")
        .await
        .unwrap();
    let hello = scene.hub.told.read(|told| told.hellos.last().cloned()).unwrap();
    assert_eq!(
        (hello.protocol, hello.cluster_uid),
        (portolan_wire::protocol::PROTOCOL, system.uid().unwrap())
    );
    assert!(
        hello.jwks.contains("\"keys\"") && hello.kubernetes_version.starts_with("v1."),
        "{}",
        hello.kubernetes_version
    );
    let told = &scene.hub.told;
    eventually("its key is shown", || async { told.read(|told| !told.keys.is_empty()) }).await;
    told.read(|told| {
        let shown = &told.keys[0];
        let claims: serde_json::Value = claims_of(&shown.proof);
        assert_eq!(claims["aud"], json!([format!("portolan-proof:{NONCE}")]));
        assert_eq!(claims["sub"], "system:serviceaccount:portolan-system:portolan-proof");
        assert!(shown.jwks.contains("\"keys\"") && told.keys.len() == 1);
    });
    let first = told.read(|told| told.heartbeats.len());
    eventually("heartbeats come", || async {
        told.read(|told| told.heartbeats.len() > first + 1)
    })
    .await;
    told.read(|told| {
        let beat = told.heartbeats.last().unwrap();
        assert!(
            beat.api_ready && beat.kubernetes_version.starts_with("v1.") && beat.message.is_empty(),
            "{beat:?}"
        );
    });
}

fn claims_of(token: &str) -> serde_json::Value {
    use base64::Engine as _;
    let claims = base64::prelude::BASE64_URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap());
    serde_json::from_slice(&claims.unwrap()).unwrap()
}

async fn tells_namespaces_as_they_change(scene: &Scene) {
    let told = &scene.hub.told;
    scene.namespace("ns-a").await.unwrap();
    let labels = || told.read(|told| told.namespaces.get("ns-a").map(|fact| fact.labels.clone()));
    let bucket = format!("{}sharding-hash", scene::PREFIX);
    eventually("a new namespace is told with its labels", || async {
        labels().is_some_and(|labels| labels.get(&bucket).map(String::as_str) == Some("15"))
    })
    .await;
    assert!(told.read(|told| !told.namespaces["kube-system"].labels.contains_key(&bucket)));
    scene.namespace("short-lived").await.unwrap();
    eventually("it is told", || async {
        told.read(|told| told.namespaces.contains_key("short-lived"))
    })
    .await;
    Api::<Namespace>::all(scene.client.clone())
        .delete("short-lived", &DeleteParams::default())
        .await
        .unwrap();
    eventually("its end is told", || async {
        told.read(|told| !told.namespaces.contains_key("short-lived"))
    })
    .await;
}

async fn pod(scene: &Scene, name: &str, labels: serde_json::Value) -> Pod {
    let pod = json!({
        "metadata": { "name": name, "labels": labels },
        "spec": { "containers": [{ "name": "c", "image": "none" }] },
    });
    let pods = Api::<Pod>::namespaced(scene.client.clone(), "ns-a");
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap())
        .await
        .unwrap()
}

async fn tells_callers_as_selected(scene: &Scene) {
    let told = &scene.hub.told;
    let account = ["get", "serviceaccount", "-n", "ns-a", "default"];
    eventually("ns-a has its ServiceAccount", || scene.kubectl(&account)).await;
    let operator = pod(scene, "operator-0", json!({ "app": "operator", "tier": "1" })).await;
    pod(scene, "bystander", json!({ "app": "other" })).await;
    let select = |selectors: &[&str]| {
        let selectors = selectors.iter().map(|selector| wire::CallerSelector {
            namespace: "ns-a".to_owned(),
            selector: (*selector).to_owned(),
        });
        let selectors: Vec<_> = selectors.collect();
        scene.hub.configure(|config| config.caller_selectors = selectors);
    };
    select(&["app=operator", "tier in (1, 2)"]);
    eventually("the operator's Pod is told", || async {
        told.read(|told| !told.callers.is_empty())
    })
    .await;
    told.read(|told| {
        let fact = told.callers.values().next().unwrap();
        assert_eq!(told.callers.len(), 1);
        assert_eq!((fact.pod.as_str(), fact.namespace.as_str()), ("operator-0", "ns-a"));
        assert_eq!(Some(fact.uid.clone()), operator.uid());
        assert_eq!(
            (fact.service_account.as_str(), fact.phase.as_str()),
            ("default", "Pending")
        );
    });
    select(&["app in (other)"]);
    eventually("another selector, other Pods", || async {
        told.read(|told| told.callers.values().map(|fact| fact.pod.clone()).collect::<Vec<_>>() == ["bystander"])
    })
    .await;
    let pods = Api::<Pod>::namespaced(scene.client.clone(), "ns-a");
    pods.delete("bystander", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    eventually("a Pod that is gone is withdrawn", || async {
        told.read(|told| told.callers.is_empty())
    })
    .await;
    // Bad config never replaces good config.
    scene
        .hub
        .configure(|config| "not a selector".clone_into(&mut config.caller_selectors[0].selector));
    scene.hub.ask(100, "no.such.token", &[]);
    eventually("the bad one has passed", || async {
        told.with(|told| told.reviewed.pop().is_some())
    })
    .await;
    select(&["app=operator"]);
    eventually("it goes on after a bad one", || async {
        told.read(|told| told.callers.len() == 1)
    })
    .await;
}

async fn reviews_tokens_of_its_cluster(scene: &Scene) {
    let told = &scene.hub.told;
    let pod = Api::<Pod>::namespaced(scene.client.clone(), "ns-a")
        .get("operator-0")
        .await
        .unwrap();
    let uid = pod.uid().unwrap();
    let bound = Some(("operator-0", uid.as_str()));
    let token = scene
        .member()
        .issue_token("ns-a", "default", &["portolan"], bound)
        .await
        .unwrap();
    scene.hub.ask(1, &token, &["portolan"]);
    scene.hub.ask(2, &token, &["another"]);
    scene.hub.ask(3, "no.such.token", &["portolan"]);
    eventually("three answers", || async { told.read(|told| told.reviewed.len() == 3) }).await;
    told.read(|told| {
        let answer = |id| told.reviewed.iter().find(|answer| answer.id == id).unwrap();
        let good = answer(1);
        assert!(good.authenticated, "{good:?}");
        assert_eq!(good.username, "system:serviceaccount:ns-a:default");
        assert_eq!((good.pod.as_str(), good.pod_uid.as_str()), ("operator-0", uid.as_str()));
        for id in [2, 3] {
            let bad = answer(id);
            assert!(
                !bad.authenticated && bad.username.is_empty() && !bad.error.contains(&token),
                "{bad:?}"
            );
        }
    });
}

async fn mints_tokens_that_the_member_takes(scene: &Scene) {
    let told = &scene.hub.told;
    eventually("a router token is told", || async {
        told.read(|told| !told.tokens.is_empty())
    })
    .await;
    let minted = told.read(|told| told.tokens.last().cloned()).unwrap();
    scene.hub.ask(10, &minted.token, &[]);
    let answer = || told.read(|told| told.reviewed.iter().find(|answer| answer.id == 10).cloned());
    let answer = eventually("the member knows it", || async { answer() }).await;
    assert_eq!(
        answer.username,
        "system:serviceaccount:portolan-routers:portolan-router"
    );
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let life = minted.expires_unix_seconds - i64::try_from(now.as_secs()).unwrap();
    assert!(life > 23 * 3600 && life <= 24 * 3600, "{life} s");
}

async fn tells_whom_the_router_may_act_as(scene: &Scene) {
    let told = &scene.hub.told;
    eventually("nobody yet", || async {
        told.read(|told| {
            let allowed = told.allowed.as_ref();
            allowed.is_some_and(|allowed| allowed.service_accounts.is_empty() && allowed.users.is_empty())
        })
    })
    .await;
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": { "name": "portolan-router-impersonate", "labels": { "app.kubernetes.io/managed-by": "portolan" } },
        "rules": [{ "apiGroups": [""], "resources": ["serviceaccounts"], "verbs": ["impersonate"], "resourceNames": ["default"] }],
    });
    let roles = Api::<Role>::namespaced(scene.client.clone(), "ns-a");
    roles
        .create(&PostParams::default(), &serde_json::from_value(role).unwrap())
        .await
        .unwrap();
    let accounts = || told.read(|told| told.allowed.clone().unwrap().service_accounts);
    eventually("ns-a/default is told", || async { accounts() == ["ns-a/default"] }).await;
    roles
        .delete("portolan-router-impersonate", &DeleteParams::default())
        .await
        .unwrap();
    eventually("and withdrawn", || async { accounts().is_empty() }).await;
}

async fn tells_everything_again_to_a_hub_that_restarted(scene: &mut Scene) {
    let before = scene
        .hub
        .told
        .read(|told| (told.resets, told.hellos.len(), told.tokens.len()));
    scene.hub.restart().await.unwrap();
    scene.hub.told.with(|told| {
        told.namespaces.clear();
        told.callers.clear();
        told.coverage.clear();
        told.allowed = None;
    });
    let told = &scene.hub.told;
    eventually("all subjects are told anew", || async {
        told.read(|told| {
            told.resets == before.0 + 1
                && told.hellos.len() == before.1 + 1
                && told.tokens.len() == before.2 + 1
                && told.allowed.is_some()
                && told.callers.len() == 1
                && told.coverage.contains_key("namespaces")
        })
    })
    .await;
    assert!(told.read(|told| told.namespaces.contains_key("ns-a")));
}

async fn beats_on_while_its_api_server_is_away(scene: &Scene) {
    let told = &scene.hub.told;
    let sessions = told.read(|told| told.hellos.len());
    // Silence, not refusal: heartbeats must not wait for an answer.
    scene.member().fault(Fault::Blackhole).await.unwrap();
    eventually("heartbeats say that the API server is away", || async {
        told.read(|told| {
            told.heartbeats
                .last()
                .is_some_and(|beat| !beat.api_ready && !beat.message.is_empty())
        })
    })
    .await;
    assert!(
        told.read(|told| told.namespaces.contains_key("ns-a")),
        "unreachable is not deleted"
    );
    scene.member().fault(Fault::None).await.unwrap();
    eventually("and that it is back", || async {
        told.read(|told| told.heartbeats.last().unwrap().api_ready)
    })
    .await;
    assert_eq!(
        told.read(|told| told.hellos.len()),
        sessions,
        "the stream to the hub does not depend on it"
    );
}

#[tokio::test]
async fn renews_its_identity_in_time() {
    // Backdating by five minutes makes half of a ten-minute life over at once.
    let scene = Scene::start(config(&[]), Duration::from_mins(5)).await.unwrap();
    let agent = scene.joined_agent().await.unwrap();
    ready(&agent.readiness).await;
    let told = &scene.hub.told;
    eventually("a renewal, and a stream by the new identity", || async {
        told.read(|told| told.renewals >= 1 && told.hellos.len() >= 2)
    })
    .await;
    assert_eq!(told.read(|told| told.enrolments.len()), 1);
    agent.drain.now().await.into_result().unwrap();
}

#[tokio::test]
async fn joins_again_when_the_hub_has_forgotten_it() {
    let scene = Scene::start(config(&[]), DAY).await.unwrap();
    let agent = scene.joined_agent().await.unwrap();
    ready(&agent.readiness).await;
    let told = &scene.hub.told;
    scene.hub.forget_members();
    eventually("it is refused", || async { !agent.readiness.is_ready() }).await;
    assert_eq!(told.read(|told| told.enrolments.len()), 1, "the token it has is spent");

    // `portolanctl join` once more; the agent is not restarted.
    let another = "def456.0123456789abcdef";
    scene.hub.invite(another);
    scene.bootstrap(another).await.unwrap();
    ready(&agent.readiness).await;
    assert_eq!(told.read(|told| told.enrolments.len()), 2);
    agent.drain.now().await.into_result().unwrap();
}
