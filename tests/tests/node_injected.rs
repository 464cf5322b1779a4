//! Operators that know nothing of Portolan, as Pods on a node: by one label their clients, of client-go and of kube-rs, reach the
//! gateway instead of their API server, and they work over both members. What such a Pod finds in itself, also after the hub's CA was
//! replaced; and what becomes of one while agent, hub or gateway are away.
#![allow(clippy::unwrap_used, reason = "also in functions that only tests call")]

#[path = "node_injected/rollouts.rs"]
mod rollouts;
#[path = "node_injected/world.rs"]
mod world;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use portolan_testbed::{eventually, inside};
use portolan_tests::ctl;
use portolan_tests::kubectl::Kubectl;
use portolan_tests::programs::{admin_get, argument};
use serde_json::{Value, json};

use self::world::{ASKS, GO, HOME, KEEPS, OPERATOR, PROBE, World};

const CA: &str = "ctrlmesh.kusionstack.io/gateway-ca";
const ACCOUNT: &str = "/read/var/run/secrets/kubernetes.io/serviceaccount";

#[test]
fn operators_are_sharded_by_a_label() {
    inside(async {
        let world = World::start(Vec::new()).await.unwrap();
        world.works("works over both members").await;
        metrics_are_for_those_whom_the_api_server_lets(&world).await;
        a_pod_finds_the_gateway_and_nothing_of_its_api_server(&world).await;
        what_runs_learns_of_another_ca(&world).await;
        nobody_but_the_api_server_is_needed_to_create_it(&world).await;
        without_the_gateway_nothing_gets_through(&world).await;
        who_was_there_before_is_named(&world).await;
    });
}

/// A Pod that tells what it sees: of one container that asks, and one that keeps the token of its account.
async fn probe(world: &World, name: &str) -> [String; 2] {
    let container =
        |name: &str, port: &str| json!({"name": name, "image": PROBE, "imagePullPolicy": "Never", "args": [port]});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {ASKS: "true"}, "annotations": {KEEPS: "keeps"}},
        "spec": {"serviceAccountName": OPERATOR, "terminationGracePeriodSeconds": 0, "containers": [
            container("asks", "8080"), container("keeps", "8081"),
        ]},
    });
    let kubectl = world.kubectl("east");
    kubectl
        .ok_with(&["create", "-n", HOME, "-f", "-"], &pod.to_string())
        .await
        .unwrap();
    let ip = eventually("the probe answers", || async {
        let get = ["get", "pod", "-n", HOME, name, "-o", "jsonpath={.status.podIP}"];
        let ip = kubectl.ok(&get).await?;
        for port in [8080, 8081] {
            admin_get(&format!("{ip}:{port}"), "/status/200").await?;
        }
        anyhow::Ok(ip)
    })
    .await;
    [format!("{ip}:8080"), format!("{ip}:8081")]
}

/// What a token says.
fn claims(token: &str) -> Value {
    let part = token.split('.').nth(1).unwrap();
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap()
}

async fn a_pod_finds_the_gateway_and_nothing_of_its_api_server(world: &World) {
    let [asks, keeps] = probe(world, "probe").await;
    let found = async |at: &str, path: &str| admin_get(at, path).await.unwrap();
    assert_eq!(found(&asks, "/env/KUBERNETES_SERVICE_HOST").await, world::GATEWAY);
    assert_eq!(found(&asks, "/env/KUBERNETES_SERVICE_PORT").await, "443");
    let token = claims(&found(&asks, &format!("{ACCOUNT}/token")).await);
    assert_eq!(token["aud"], json!(["portolan"]));
    assert_eq!(token["kubernetes.io"]["pod"]["name"], "probe");
    assert_eq!(found(&asks, &format!("{ACCOUNT}/namespace")).await, HOME);
    assert_eq!(
        found(&asks, &format!("{ACCOUNT}/ca.crt")).await,
        world.fleet.ca_pem().unwrap()
    );
    assert_ne!(found(&keeps, "/env/KUBERNETES_SERVICE_HOST").await, world::GATEWAY);
    let token = claims(&found(&keeps, &format!("{ACCOUNT}/token")).await);
    assert_ne!(token["aud"], json!(["portolan"]));
    assert_ne!(
        found(&keeps, &format!("{ACCOUNT}/ca.crt")).await,
        world.fleet.ca_pem().unwrap()
    );
}

/// By the filter that kubebuilder gives each operator: it asks its API server, so the gateway, who a token is and what they may.
async fn metrics_are_for_those_whom_the_api_server_lets(world: &World) {
    let ip = world.pod(GO).await["status"]["podIP"].as_str().unwrap().to_owned();
    let ask = async |account: &str| {
        let token = world
            .cluster("east")
            .issue_token(HOME, account, &[], None)
            .await
            .unwrap();
        let cluster = json!({"server": format!("https://{ip}:8443"), "insecure-skip-tls-verify": true});
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "clusters": [{"name": "it", "cluster": cluster}], "users": [{"name": "it", "user": {"token": token}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        });
        let file = world.testbed().join(format!("{account}.kubeconfig"));
        std::fs::write(&file, config.to_string()).unwrap();
        Kubectl::new(&file)
            .run(&["get", "--raw", "/metrics"], "")
            .await
            .unwrap()
    };
    let told = ask("scraper").await;
    assert!(told.stdout.contains("controller_runtime_reconcile_total"), "{told:?}");
    let refused = ask("default").await;
    assert!(!refused.ok && refused.stderr.contains("orbidden"), "{refused:?}");
}

async fn what_runs_learns_of_another_ca(world: &World) {
    let kubectl = world.kubectl("east");
    let get = ["get", "pod", "-n", HOME, "probe", "-o", "jsonpath={.status.podIP}"];
    let asks = format!("{}:8080", kubectl.ok(&get).await.unwrap());
    let member = argument(world.cluster("east").direct_kubeconfig_path());
    let dir = argument(world.fleet.dir());
    let rotate = async |step: &[&str]| {
        let arguments = ["ca", "rotate", "--dir", &dir, "--member-kubeconfig", &member];
        ctl::ok(&[&arguments[..], step].concat()).await.unwrap()
    };
    let trusts = async |count: usize| {
        eventually(&format!("the Pod that runs trusts {count} CAs"), || async {
            let ca = admin_get(&asks, &format!("{ACCOUNT}/ca.crt")).await?;
            let found = ca.matches("BEGIN CERTIFICATE").count();
            anyhow::ensure!(found == count, "{found}");
            Ok(())
        })
        .await;
    };
    let said = rotate(&[]).await;
    assert!(said.contains("Pods have been given these CA certificates"), "{said}");
    trusts(2).await;
    world.renew(OPERATOR).await;
    let pod = world.pod(OPERATOR).await;
    let ca = pod["metadata"]["annotations"][CA].as_str().unwrap();
    assert_eq!(ca.matches("BEGIN CERTIFICATE").count(), 2, "new ones too");
    rotate(&["--abort"]).await;
    trusts(1).await;
}

async fn nobody_but_the_api_server_is_needed_to_create_it(world: &World) {
    let dir = argument(world.fleet.dir());
    ctl::ok(&["dev", "stop", "agent-east", "hub", "--dir", &dir])
        .await
        .unwrap();
    world.renew(OPERATOR).await;
    world.renew(GO).await;
    for operator in [OPERATOR, GO] {
        let pod = world.pod(operator).await;
        assert!(pod.to_string().contains(world::GATEWAY), "{pod}");
    }
    ctl::ok(&["dev", "restart", "hub", "agent-east", "--dir", &dir])
        .await
        .unwrap();
    world.works("works once the hub knows it").await;
}

/// The API server's own audit log says who came. Through the gateway a client is told apart by its name, which stays.
async fn without_the_gateway_nothing_gets_through(world: &World) {
    let came = || world.audited("greeting-operator-go/").unwrap();
    assert!(came() > 0, "the audit log shows who comes");
    let dir = argument(world.fleet.dir());
    ctl::ok(&["dev", "stop", "router", "--dir", &dir]).await.unwrap();
    world.scale(GO, 0).await;
    let before = came();
    world.scale(GO, 1).await;
    eventually("it has tried in vain, more than once", || async {
        let pod = world.try_pod(GO).await?;
        let restarts = pod["status"]["containerStatuses"][0]["restartCount"].as_u64();
        anyhow::ensure!(restarts > Some(1), "{}", pod["status"]);
        Ok(())
    })
    .await;
    assert_eq!(came(), before);
    ctl::ok(&["dev", "restart", "router", "--dir", &dir]).await.unwrap();
    world.works("goes on when the gateway is back").await;
}

/// A Pod that is labelled once it runs goes on as it was created: its shard says so until it is gone.
async fn who_was_there_before_is_named(world: &World) {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "late", "labels": {"app": GO}},
        "spec": {"serviceAccountName": OPERATOR, "terminationGracePeriodSeconds": 0, "containers": [
            {"name": "main", "image": PROBE, "imagePullPolicy": "Never"},
        ]},
    });
    let kubectl = world.kubectl("east");
    let create = ["create", "-n", HOME, "-f", "-"];
    kubectl.ok_with(&create, &pod.to_string()).await.unwrap();
    let condition = async || {
        let path = "jsonpath={.status.conditions[?(@.type=='CallersInjected')].message}";
        let get = ["get", "shardingconfig", "-n", HOME, GO, "-o", path];
        world.kubectl("hub").ok(&get).await.unwrap()
    };
    assert_eq!(condition().await, "");
    let label = ["label", "pod", "late", "-n", HOME, &format!("{ASKS}=true")];
    kubectl.ok(&label).await.unwrap();
    eventually("its shard names it", || async {
        let message = condition().await;
        anyhow::ensure!(message.ends_with(": operators/late in east"), "{message}");
        Ok(())
    })
    .await;
    kubectl.ok(&["delete", "pod", "late", "-n", HOME]).await.unwrap();
    eventually("nothing is said any more", || async { condition().await.is_empty() }).await;
}
