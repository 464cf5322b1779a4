//! The agent's chart in a member that `portolanctl register` made: what either of them writes the other one leaves.

use k8s_openapi::api::admissionregistration::v1::MutatingAdmissionPolicy;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use portolan_tests::helm;

use super::*;

#[tokio::test]
async fn a_release_takes_over_and_sets_nothing_back() {
    let ground = Ground::start(&["east"]).await;
    let endpoint = url(ground.cluster("east"));
    let flags = ["--endpoint", &endpoint, "--gateway", "localhost"];
    let (registered, _agent) = tokio::join!(ground.run("register", "east", &flags), ground.agent("east"));
    says(&registered, true, &["member cluster east serves"]);

    let chart = argument(&helm::chart("portolan-agent"));
    let install = ["install", "portolan-agent", &chart];
    in_east(&ground, &[&install[..], &helm::take_over()].concat()).await;
    let kinds = ["--label-kind", "greetings.example.com"];
    says(&ground.run("register", "east", &kinds).await, true, &["serves"]);
    let (hub, east) = (kubeconfig(&ground, "hub"), kubeconfig(&ground, "east"));
    let rotate = ["ca", "rotate", "--hub-kubeconfig", &hub, "--member-kubeconfig", &east];
    ctl::ok(&rotate).await.unwrap();
    let written = injected(&ground).await;
    assert_eq!(written.matches("BEGIN CERTIFICATE").count(), 2, "{written}");

    // Nothing is forced, as nothing differs.
    in_east(&ground, &["upgrade", "portolan-agent", &chart]).await;
    assert_eq!(injected(&ground).await, written);
    let client = ground.cluster("east").client().await.unwrap();
    let labels = Api::<MutatingAdmissionPolicy>::all(client)
        .get("portolan-labels")
        .await
        .unwrap();
    assert_eq!(labels.annotations()["meta.helm.sh/release-name"], "portolan-agent");
    let constraints = serde_json::to_string(&labels.spec.unwrap().match_constraints).unwrap();
    assert!(
        constraints.contains("greetings") && constraints.contains("statefulsets"),
        "{constraints}"
    );
}

async fn in_east(ground: &Ground, arguments: &[&str]) {
    let kubeconfig = ground.cluster("east").kubeconfig_path();
    helm::ok(Some(kubeconfig), arguments).await.unwrap();
}

fn kubeconfig(ground: &Ground, cluster: &str) -> String {
    argument(ground.cluster(cluster).kubeconfig_path())
}

/// The CA certificates by which Pods know the gateway.
async fn injected(ground: &Ground) -> String {
    let maps = Api::<ConfigMap>::namespaced(ground.cluster("east").client().await.unwrap(), SYSTEM);
    maps.get("portolan-injection").await.unwrap().data.unwrap()["ca.crt"].clone()
}
