//! The charts of `deploy/charts` as Helm sees them, and a real API server that would store what they render. What runs of them
//! is the matter of `node_charts`.
#![allow(clippy::unwrap_used, reason = "also in functions that only tests call")]

use std::fs;
use std::path::{Path, PathBuf};

use portolan_testbed::{Bundle, Testbed};
use portolan_tests::ctl;
use portolan_tests::daemon::{Daemon, Launch};
use portolan_tests::helm::{self, SYSTEM, chart, objects};
use portolan_tests::kubectl::Kubectl;
use serde_json::{Value, json};

const CHARTS: [&str; 3] = ["portolan", "portolan-router", "portolan-agent"];
const CA: &str = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
/// Every option, and how many objects of other kinds than a cluster has by itself it comes to.
const OPTIONS: [(&str, &str, usize); 3] = [
    (
        "portolan",
        r#"{"networkPolicy": {"enabled": true, "from": ["10.0.0.0/8"]}, "hub": {"advertise": ["hub.example.com:7443"]},
            "podMonitor": {"enabled": true, "labels": {"release": "prometheus"}}, "prometheusRule": {"enabled": true},
            "dashboards": {"enabled": true, "annotations": {"grafana_folder": "Portolan"}}}"#,
        2,
    ),
    (
        "portolan-router",
        r#"{"networkPolicy": {"enabled": true}, "autoscaling": {"enabled": true}, "podMonitor": {"enabled": true},
            "tlsRoute": {"enabled": true, "hostnames": ["routers.example.com"],
                "parentRefs": [{"name": "edge", "namespace": "gateways", "sectionName": "tls"}]}}"#,
        2,
    ),
    (
        "portolan-agent",
        r#"{"networkPolicy": {"enabled": true}, "podMonitor": {"enabled": true}}"#,
        1,
    ),
];

/// A chart with what it cannot do without, and more values.
async fn render(name: &str, values: &Value) -> anyhow::Result<Vec<Value>> {
    let (folder, file) = values_file(name, values);
    let rendered = helm::ok(None, &["template", name, &path(&chart(name)), "--values", &file]).await;
    drop(folder);
    objects(&rendered?)
}

fn values_file(name: &str, values: &Value) -> (tempfile::TempDir, String) {
    let mut values = values.clone();
    if name == "portolan-router" {
        for (key, value) in [("cluster", json!("east")), ("hub", json!({"ca": CA}))] {
            if values.get(key).is_none() {
                values[key] = value;
            }
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("values.json");
    fs::write(&file, values.to_string()).unwrap();
    (folder, path(&file))
}

fn path(path: &Path) -> String {
    path.display().to_string()
}

fn repository(file: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(file)
}

fn read(file: &str) -> Vec<Value> {
    objects(&fs::read_to_string(repository(file)).unwrap()).unwrap()
}

/// Kind, namespace and name of an object.
fn key(object: &Value) -> (String, String, String) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let metadata = &object["metadata"];
    (
        text(&object["kind"]),
        text(&metadata["namespace"]),
        text(&metadata["name"]),
    )
}

fn find<'a>(objects: &'a [Value], wanted: &Value) -> &'a Value {
    let found: Vec<_> = objects.iter().filter(|object| key(object) == key(wanted)).collect();
    assert_eq!(found.len(), 1, "{:?}", key(wanted));
    found[0]
}

#[tokio::test]
async fn charts_pass_lint() {
    for name in CHARTS {
        let (_folder, file) = values_file(name, &json!({}));
        helm::ok(None, &["lint", "--strict", &path(&chart(name)), "--values", &file])
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn charts_give_the_rights_that_portolanctl_gives() {
    let applied = [
        (
            "portolan",
            &[
                "deploy/hub/rbac.yaml",
                "deploy/hub/roles.yaml",
                "deploy/hub/webhook.yaml",
            ][..],
        ),
        ("portolan-agent", &["deploy/member/rbac.yaml"]),
    ];
    for (name, files) in applied {
        let rendered = render(name, &json!({})).await.unwrap();
        let mut rights = 0;
        for object in files.iter().flat_map(|file| read(file)) {
            if object["kind"] == "Namespace" && object["metadata"]["name"] == SYSTEM {
                continue;
            }
            let mut found = find(&rendered, &object).clone();
            if object["kind"] == "Service" {
                found["spec"].as_object_mut().unwrap().remove("type");
            }
            assert_eq!(found, object);
            rights += usize::from(object["apiVersion"] == "rbac.authorization.k8s.io/v1");
        }
        let of_rbac = |object: &&Value| object["apiVersion"] == "rbac.authorization.k8s.io/v1";
        assert_eq!(
            rendered.iter().filter(of_rbac).count(),
            rights,
            "{name} gives no others"
        );
    }
}

/// But for the labels that Helm adds.
#[tokio::test]
async fn register_installs_the_agent_that_the_chart_installs() {
    let rendered = render("portolan-agent", &json!({})).await.unwrap();
    let mut applied = read("deploy/member/agent.yaml");
    let applied = &mut applied[0];
    let mut found = find(&rendered, applied).clone();
    for object in [&mut found, applied] {
        for labels in ["/metadata", "/spec/template/metadata"] {
            object
                .pointer_mut(labels)
                .unwrap()
                .as_object_mut()
                .unwrap()
                .remove("labels");
        }
        object["spec"]["template"]["spec"]["containers"][0]["image"] = json!("");
    }
    assert_eq!(found, *applied);
}

#[tokio::test]
async fn kinds_are_the_generated_ones_and_stay() {
    let rendered = render("portolan", &json!({})).await.unwrap();
    let manifests = fs::read_dir(repository("crds/manifests")).unwrap();
    let mut count = 0;
    for manifest in manifests {
        let text = fs::read_to_string(manifest.unwrap().path()).unwrap();
        for mut kind in objects(&text).unwrap() {
            kind["metadata"]["annotations"]["helm.sh/resource-policy"] = json!("keep");
            assert!(*find(&rendered, &kind) == kind, "{:?} is another", key(&kind));
            count += 1;
        }
    }
    assert_eq!(count, 5);
}

#[tokio::test]
async fn impossible_values_are_refused_by_field() {
    let cases = [
        ("portolan", json!({"hub": {"replicas": 0}}), "/hub/replicas"),
        ("portolan", json!({"hub": {"replica": 2}}), "/hub"),
        (
            "portolan",
            json!({"hub": {"advertise": ["https://hub:7443"]}}),
            "/hub/advertise/0",
        ),
        (
            "portolan",
            json!({"hub": {"extraArgs": ["buckets=64"]}}),
            "/hub/extraArgs/0",
        ),
        (
            "portolan",
            json!({"hub": {"service": {"type": "ExternalName"}}}),
            "/hub/service/type",
        ),
        ("portolan", json!({"image": {"tag": "a b"}}), "/image/tag"),
        ("portolan", json!({"crds": {"adopt": "yes"}}), "/crds/adopt"),
        ("portolan-router", json!({"cluster": "East"}), "/cluster"),
        (
            "portolan-router",
            json!({"hub": {"address": "https://hub", "ca": CA}}),
            "/hub/address",
        ),
        ("portolan-router", json!({"hub": {"ca": "/etc/ca.crt"}}), "/hub/ca"),
        ("portolan-router", json!({"drainSeconds": -1}), "/drainSeconds"),
        ("portolan-router", json!({"maxConnectionAge": "5"}), "/maxConnectionAge"),
        (
            "portolan-router",
            json!({"maxConnectionAge": "10ms"}),
            "/maxConnectionAge",
        ),
        (
            "portolan-router",
            json!({"autoscaling": {"targetCPU": 101}}),
            "/autoscaling/targetCPU",
        ),
        (
            "portolan-router",
            json!({"tlsRoute": {"enabled": true, "parentRefs": [{"name": "edge"}]}}),
            "/tlsRoute",
        ),
        ("portolan-agent", json!({"resources": {"memory": "1Gi"}}), "/resources"),
        ("portolan-agent", json!({"replicas": 0}), "/replicas"),
        ("portolan-agent", json!({"replica": 2}), "replica"),
    ];
    for (name, values, field) in cases {
        let refused = render(name, &values).await.unwrap_err().to_string();
        assert!(refused.contains(field), "{values}: {refused}");
    }
    let nobody = render("portolan-router", &json!({"cluster": ""}))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        nobody.contains("the name by which this cluster is a member"),
        "{nobody}"
    );
}

/// The API server knows every field of what is rendered, with every option.
#[tokio::test]
async fn an_api_server_takes_what_is_rendered() {
    let testbed = Testbed::start(&["hub"]).await.unwrap();
    let kubeconfig = testbed.cluster("hub").direct_kubeconfig_path();
    let kubectl = Kubectl::new(kubeconfig);
    for namespace in [SYSTEM, "portolan-routers"] {
        kubectl.ok(&["create", "namespace", namespace]).await.unwrap();
    }
    let kinds = path(&Bundle::KINDS.ensure().unwrap().join("extras"));
    kubectl.ok(&["apply", "--server-side", "-f", &kinds]).await.unwrap();
    let served = ["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"];
    kubectl.ok(&served).await.unwrap();
    for (name, options, others) in OPTIONS {
        let values: Value = serde_json::from_str(options).unwrap();
        let rendered = render(name, &values).await.unwrap();
        let all = json!({"apiVersion": "v1", "kind": "List", "items": rendered}).to_string();
        let apply = [
            "apply",
            "--server-side",
            "--dry-run=server",
            "--validate=strict",
            "-f",
            "-",
        ];
        kubectl.ok_with(&apply, &all).await.unwrap();
        let of_others = |object: &&Value| {
            let version = object["apiVersion"].as_str().unwrap_or_default();
            ["monitoring.coreos.com/v1", "gateway.networking.k8s.io/v1"].contains(&version)
        };
        assert_eq!(rendered.iter().filter(of_others).count(), others, "{name}");
    }
    a_predecessor_is_not_overwritten(&kubectl, kubeconfig).await;
}

#[tokio::test]
async fn rules_and_dashboards_are_those_of_the_repository() {
    let values = json!({"prometheusRule": {"enabled": true}, "dashboards": {"enabled": true}});
    let rendered = render("portolan", &values).await.unwrap();
    let rule = rendered
        .iter()
        .find(|object| object["kind"] == "PrometheusRule")
        .unwrap();
    assert_eq!(rule["spec"], read("deploy/observability/alerts.yaml")[0]);
    for name in ["overview", "member", "control"] {
        let map = json!({"kind": "ConfigMap", "metadata": {"name": format!("portolan-dashboard-{name}"), "namespace": SYSTEM}});
        let map = find(&rendered, &map);
        assert_eq!(map["metadata"]["labels"]["grafana_dashboard"], "1");
        let said = map["data"][format!("portolan-{name}.json")].as_str().unwrap();
        let file = repository("deploy/observability/dashboards").join(format!("{name}.json"));
        assert_eq!(said.trim_end(), fs::read_to_string(file).unwrap().trim_end(), "{name}");
    }
}

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
        let install = ["install", name, &chart, "--take-ownership", "--values", &values];
        helm::ok(Some(kubeconfig), &install).await.unwrap();
        for object in render(name, &json!({})).await.unwrap() {
            let (kind, namespace, object) = key(&object);
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

async fn a_predecessor_is_not_overwritten(kubectl: &Kubectl, kubeconfig: &Path) {
    let theirs = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "shardingconfigs.ctrlmesh.kusionstack.io"},
        "spec": {
            "group": "ctrlmesh.kusionstack.io", "scope": "Namespaced",
            "names": {"kind": "ShardingConfig", "plural": "shardingconfigs", "singular": "shardingconfig"},
            "versions": [{"name": "v1alpha1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}],
        },
    });
    kubectl
        .ok_with(&["apply", "-f", "-"], &theirs.to_string())
        .await
        .unwrap();
    let install = [
        "install",
        "portolan",
        &path(&chart("portolan")),
        "--dry-run=server",
        "--take-ownership",
    ];
    let refused = helm::helm(Some(kubeconfig), &install).await.unwrap();
    assert!(!refused.ok, "{}", refused.stdout);
    let why = "CustomResourceDefinition shardingconfigs.ctrlmesh.kusionstack.io is there already";
    assert!(
        refused.stderr.contains(why) && refused.stderr.contains("crds.adopt=true"),
        "{}",
        refused.stderr
    );
    let adopted = [&install[..], &["--set", "crds.adopt=true"]].concat();
    helm::ok(Some(kubeconfig), &adopted).await.unwrap();
}
