//! From what `portolanctl` made to releases of Helm.

use portolan_testbed::Testbed;
use portolan_tests::ctl;
use portolan_tests::daemon::{Daemon, Launch};
use portolan_tests::helm::{self, SYSTEM, chart};
use portolan_tests::kubectl::Kubectl;
use serde_json::{Value, json};

use crate::{CHARTS, key, path, render, values_file};

/// Who began with `portolanctl install` and `join` goes on by Helm, without a word about predecessors, and loses nothing.
#[tokio::test]
async fn what_portolanctl_made_becomes_helms() {
    let testbed = Testbed::start(&["hub"]).await.unwrap();
    let kubeconfig = testbed.cluster("hub").direct_kubeconfig_path();
    let kubectl = Kubectl::new(kubeconfig);
    let _hub = install_by_portolanctl(&testbed).await;
    let before = uids(&kubectl).await;
    for name in CHARTS {
        let (_folder, values) = values_file(name, &json!({}));
        let chart = path(&chart(name));
        let install = ["install", name, &chart, "--values", &values];
        let install = [&install[..], &helm::take_over()].concat();
        helm::ok(Some(kubeconfig), &install).await.unwrap();
        let rendered = render(name, &json!({})).await.unwrap();
        // What is made for a test or an uninstall alone is no part of a release.
        let stays = |object: &&Value| object["metadata"]["annotations"]["helm.sh/hook"].is_null();
        for object in rendered.iter().filter(stays) {
            let (kind, namespace, object) = key(object);
            let owner = "jsonpath={.metadata.annotations.meta\\.helm\\.sh/release-name}";
            let namespace = if namespace.is_empty() { SYSTEM } else { &namespace };
            let get = ["get", &kind, &object, "-n", namespace, "-o", owner];
            assert_eq!(kubectl.ok(&get).await.unwrap(), name, "{kind} {object}");
        }
    }
    assert_eq!(uids(&kubectl).await, before);
    // The CA by which the API server verifies the webhooks is the hub's to write, and stays.
    let bundles = "jsonpath={.webhooks[*].clientConfig.caBundle}";
    let bundles = [
        "get",
        "validatingwebhookconfiguration",
        "portolan-authors",
        "-o",
        bundles,
    ];
    assert_eq!(kubectl.ok(&bundles).await.unwrap().split_whitespace().count(), 2);
}

/// A hub that runs beside the cluster, and a member that has joined.
async fn install_by_portolanctl(testbed: &Testbed) -> Daemon {
    let file = path(testbed.cluster("hub").direct_kubeconfig_path());
    ctl::ok(&["install", "--hub-kubeconfig", &file]).await.unwrap();
    let hub = Daemon::start(Launch {
        name: "hub".to_owned(),
        program: "portolan-hub".to_owned(),
        arguments: ["--kubeconfig", &file, "--bind", "127.0.0.1:0"]
            .map(str::to_owned)
            .to_vec(),
        env: Vec::new(),
        dir: testbed.dir().to_owned(),
    });
    let hub = hub.await.unwrap();
    hub.ready().await;
    let clusters = ["--hub-kubeconfig", &file, "--member-kubeconfig", &file, "--accept"];
    let join = [&["join", "home", "--hub-address", hub.bind()], &clusters[..]].concat();
    ctl::ok(&join).await.unwrap();
    hub
}

/// Of what a release that takes over must not make anew.
async fn uids(kubectl: &Kubectl) -> Vec<String> {
    let mut uids = Vec::new();
    for (kind, name) in [
        ("secret", "portolan-ca"),
        ("configmap", "portolan-ca"),
        ("secret", "portolan-agent-bootstrap"),
        ("membercluster", "home"),
    ] {
        let get = ["get", kind, name, "-n", SYSTEM, "-o", "jsonpath={.metadata.uid}"];
        uids.push(kubectl.ok(&get).await.unwrap());
    }
    uids
}
