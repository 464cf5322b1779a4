//! The charts of `deploy/charts` as Helm sees them, and a real API server that would store what they render. What runs of them
//! is the matter of `node_charts`.
#![allow(clippy::unwrap_used, reason = "also in functions that only tests call")]

#[path = "charts/taken_over.rs"]
mod taken_over;

use std::fs;
use std::path::{Path, PathBuf};

use portolan_testbed::{Bundle, Testbed};
use portolan_tests::helm::{self, SYSTEM, chart, objects};
use portolan_tests::kubectl::Kubectl;
use serde_json::{Value, json};

const CHARTS: [&str; 3] = ["portolan", "portolan-router", "portolan-agent"];
const CA: &str = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
/// As Helm is told that an API server serves it.
const MUTATING: &str = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy";
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
            let mut found = unkept(find(&rendered, &object));
            if object["kind"] == "Service" {
                found["spec"].as_object_mut().unwrap().remove("type");
            }
            assert_eq!(found, object);
            rights += usize::from(object["apiVersion"] == "rbac.authorization.k8s.io/v1");
        }
        let of_rbac = |object: &&Value| object["apiVersion"] == "rbac.authorization.k8s.io/v1";
        // What a hook has goes with it.
        let stays = |object: &&Value| object["metadata"]["annotations"]["helm.sh/hook"].is_null();
        assert_eq!(
            rendered.iter().filter(of_rbac).filter(stays).count(),
            rights,
            "{name} gives no others"
        );
    }
}

/// What Helm alone is told of an object is no part of it.
fn unkept(object: &Value) -> Value {
    let mut object = object.clone();
    let metadata = object["metadata"].as_object_mut().unwrap();
    if metadata.get("annotations") == Some(&json!({"helm.sh/resource-policy": "keep"})) {
        metadata.remove("annotations");
    }
    object
}

/// Those that mutate only where the API server serves them.
#[tokio::test]
async fn the_agents_chart_has_the_policies_that_portolanctl_writes() {
    let mut written = read("deploy/member/policies.yaml");
    let injection = read("deploy/member/injection.yaml");
    written.extend(injection[0]["items"].as_array().unwrap().iter().cloned());
    assert_eq!(written.len(), 14);
    let (_folder, file) = values_file("portolan-agent", &json!({}));
    let template = [
        "template",
        "portolan-agent",
        &path(&chart("portolan-agent")),
        "--values",
        &file,
    ];
    let serves = ["--api-versions", MUTATING];
    let rendered = helm::ok(None, &[&template[..], &serves].concat()).await.unwrap();
    let rendered = objects(&rendered).unwrap();
    for policy in &written {
        assert_eq!(unkept(find(&rendered, policy)), *policy);
    }
    let older = objects(&helm::ok(None, &template).await.unwrap()).unwrap();
    let policies: Vec<_> = older.iter().filter(|object| is_policy(object)).collect();
    let validating = written
        .iter()
        .filter(|policy| policy["kind"].as_str().unwrap().starts_with("Validating"));
    assert_eq!(policies.len(), validating.count());
    let none = render("portolan-agent", &json!({"admission": {"enabled": false}}))
        .await
        .unwrap();
    assert!(!none.iter().any(is_policy));
}

fn is_policy(object: &Value) -> bool {
    object["apiVersion"]
        .as_str()
        .unwrap_or_default()
        .starts_with("admissionregistration.k8s.io/")
}

/// As what the Job before an uninstall acts: as `portolanctl unregister` applies it.
#[tokio::test]
async fn an_uninstall_has_the_rights_that_unregister_gives_it() {
    let rendered = render("portolan-agent", &json!({})).await.unwrap();
    for object in read("deploy/member/uninstall.yaml") {
        let mut found = find(&rendered, &object).clone();
        let annotations = found["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("annotations")
            .unwrap();
        assert_eq!(annotations["helm.sh/hook"], "pre-delete");
        assert_eq!(found, object);
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
    for (name, values, field) in cases.into_iter().chain(impossible_in_members()) {
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

/// Of gateways and of what comes before an uninstall.
fn impossible_in_members() -> [(&'static str, Value, &'static str); 4] {
    [
        (
            "portolan-agent",
            json!({"gateway": {"host": "https://gw"}}),
            "/gateway/host",
        ),
        ("portolan-agent", json!({"gateway": {"port": 0}}), "/gateway/port"),
        (
            "portolan-agent",
            json!({"uninstall": {"timeoutSeconds": 1}}),
            "/uninstall/timeoutSeconds",
        ),
        (
            "portolan",
            json!({"uninstall": {"enabled": "no"}}),
            "/uninstall/enabled",
        ),
    ]
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
        let mut rendered = render(name, &values).await.unwrap();
        // Whose account must be there, also for a dry run.
        rendered.retain(|object| object["kind"] != "Pod");
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
    what_was_told_join_stays(&kubectl, kubeconfig).await;
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

/// What the agent's chart has with these values where an API server can be asked what is there.
async fn render_there(kubeconfig: &Path, values: &Value) -> Vec<Value> {
    let (_folder, file) = values_file("portolan-agent", values);
    let chart = path(&chart("portolan-agent"));
    let server = [
        "template",
        "portolan-agent",
        &chart,
        "--dry-run=server",
        "--take-ownership",
        "--values",
        &file,
    ];
    objects(&helm::ok(Some(kubeconfig), &server).await.unwrap()).unwrap()
}

/// More kinds and another prefix of labels, the gateway, and the CA that it has by now.
async fn what_was_told_join_stays(kubectl: &Kubectl, kubeconfig: &Path) {
    let named = json!({"gateway": {"host": "gateway.example.com", "ca": CA}});
    let first = render_there(kubeconfig, &named).await;
    let map = json!({"kind": "ConfigMap", "metadata": {"name": "portolan-injection", "namespace": SYSTEM}});
    let data = json!({"host": "gateway.example.com", "port": "443", "ca.crt": CA});
    assert_eq!(find(&first, &map)["data"], data);
    let unnamed = render_there(kubeconfig, &json!({})).await;
    assert!(!unnamed.iter().any(|object| key(object) == key(&map)));

    let labels = json!({"kind": "MutatingAdmissionPolicy", "metadata": {"name": "portolan-labels"}});
    let usual = find(&first, &labels);
    let mut policy = usual.clone();
    let more = json!({"apiGroups": ["example.com"], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"],
        "resources": ["greetings"], "scope": "*"});
    rules(&mut policy).push(more.clone());
    let prefix = policy["spec"]["variables"][0]["expression"].as_str().unwrap();
    policy["spec"]["variables"][0]["expression"] = json!(prefix.replace("ctrlmesh.kusionstack.io/", "example.com/"));
    let mut map = find(&first, &map).clone();
    map["data"]["ca.crt"] = json!(CA.replace("MIIB", "MIIC"));
    let there = json!({"apiVersion": "v1", "kind": "List", "items": [policy, map]}).to_string();
    kubectl.ok_with(&["create", "-f", "-"], &there).await.unwrap();
    let again = render_there(kubeconfig, &json!({})).await;
    assert_eq!(find(&again, &map)["data"], map["data"]);
    let mut found = find(&again, &labels).clone();
    assert_eq!(found["spec"]["variables"][0], policy["spec"]["variables"][0]);
    assert!(rules(&mut found).contains(&more));
    rules(&mut found).retain(|rule| *rule != more);
    assert_eq!(rules(&mut found), rules(&mut usual.clone()));
    kubectl.ok_with(&["delete", "-f", "-"], &there).await.unwrap();
}

/// For which kinds a policy is.
fn rules(policy: &mut Value) -> &mut Vec<Value> {
    let rules = policy.pointer_mut("/spec/matchConstraints/resourceRules");
    rules.and_then(Value::as_array_mut).unwrap()
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
