//! Labelling, repair, admission and uninstall.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use portolan_agent::app::Bound;
use portolan_crds::GroupResource;
use portolan_testbed::eventually;
use serde_json::json;

use crate::DAY;
use crate::hub::{CLUSTER, TOKEN};
use crate::scene::{Scene, config, ours, repository};

#[tokio::test]
async fn labels_repairs_and_takes_back() {
    let scene = Scene::start(config(&[("", "configmaps"), ("demo.example.com", "*")]), DAY)
        .await
        .unwrap();
    scene.namespace("ns-b").await.unwrap();
    create(&scene, "ns-b", "old").await;
    let agent = scene.joined_agent().await.unwrap();
    old_objects_are_labelled_until_coverage_is_complete(&scene).await;
    new_objects_are_labelled_at_admission(&scene).await;
    writers_without_labels_are_not_broken(&scene).await;
    tampering_is_overwritten_or_refused(&scene).await;
    drift_is_repaired(&scene).await;
    what_is_deleted_stays_deleted(&scene).await;
    kinds_come_and_go(&scene).await;
    policies_that_are_gone_or_changed_are_told(&scene).await;
    agent.drain.now().await.into_result().unwrap();
    a_restart_patches_only_what_is_wrong(&scene).await;
    uninstall_leaves_nothing(&scene).await;
}

async fn create(scene: &Scene, namespace: &str, name: &str) -> ConfigMap {
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        ..ObjectMeta::default()
    };
    let object = ConfigMap {
        metadata,
        ..ConfigMap::default()
    };
    scene
        .config_maps(namespace)
        .create(&PostParams::default(), &object)
        .await
        .unwrap()
}

async fn old_objects_are_labelled_until_coverage_is_complete(scene: &Scene) {
    let told = &scene.hub.told;
    eventually("coverage of configmaps is complete", || async {
        told.read(|told| told.covered("configmaps").2)
    })
    .await;
    let labels = scene.labels("", "v1", "ConfigMap").await.unwrap();
    assert!(labels.contains(&"ns-b/old: 16 ns-b true".to_owned()), "{labels:?}");
    assert!(
        labels.contains(&"default/kube-root-ca.crt: 5 default true".to_owned()),
        "{labels:?}"
    );
    let system = labels.iter().filter(|line| line.starts_with("kube-system/"));
    assert!(
        system.clone().count() > 0 && system.clone().all(|line| line.ends_with(": - - -")),
        "{labels:?}"
    );
    let namespaces = scene.labels("", "v1", "Namespace").await.unwrap();
    assert!(namespaces.contains(&"/ns-b: 16 ns-b true".to_owned()), "{namespaces:?}");
    assert!(namespaces.contains(&"/kube-system: - - -".to_owned()), "{namespaces:?}");
    let secrets = scene.labels("", "v1", "ServiceAccount").await.unwrap();
    assert!(
        secrets.iter().all(|line| line.ends_with(": - - -")),
        "a kind that was not asked for: {secrets:?}"
    );
    coverage_is_complete(scene).await;
}

/// Waits until the hub is told of as many ConfigMaps as have labels, and that these are all.
async fn coverage_is_complete(scene: &Scene) {
    let told = &scene.hub.told;
    eventually("coverage is complete", || async {
        let labels = scene.labels("", "v1", "ConfigMap").await.unwrap();
        let labelled = labels.iter().filter(|line| !line.ends_with(": - - -"));
        let total = labelled.count() as u64;
        told.read(|told| told.covered("configmaps")) == (total, total, true)
    })
    .await;
}

async fn new_objects_are_labelled_at_admission(scene: &Scene) {
    // What the answer to the create says: no watch of the agent was in between.
    assert_eq!(ours(create(scene, "ns-b", "new").await.labels()), "16 ns-b true");
}

async fn writers_without_labels_are_not_broken(scene: &Scene) {
    let objects = scene.config_maps("ns-b");
    let mut object = objects.get("new").await.unwrap();
    object.metadata.labels = Some([("own".to_owned(), "1".to_owned())].into());
    object.metadata.managed_fields = None;
    let replaced = objects.replace("new", &PostParams::default(), &object).await.unwrap();
    assert_eq!(
        (ours(replaced.labels()).as_str(), replaced.labels().contains_key("own")),
        ("16 ns-b true", true)
    );
    let applied =
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "new" }, "data": { "k": "v" } });
    let applied = objects
        .patch("new", &PatchParams::apply("gitops"), &Patch::Apply(applied))
        .await
        .unwrap();
    assert_eq!(ours(applied.labels()), "16 ns-b true");
    // A manifest of a Namespace replaces what is there, labels and all.
    let namespaces = Api::<Namespace>::all(scene.client.clone());
    let manifest = serde_json::from_value(json!({ "metadata": { "name": "ns-b" } })).unwrap();
    let replaced = namespaces
        .replace("ns-b", &PostParams::default(), &manifest)
        .await
        .unwrap();
    assert_eq!(ours(replaced.labels()), "16 ns-b true");
    // A backup of another cluster brings labels of its own.
    let foreign = json!({ "metadata": { "name": "restored", "labels": {
        "ctrlmesh.kusionstack.io/sharding-hash": "99", "ctrlmesh.kusionstack.io/namespace": "restored", "keep": "1" } } });
    let restored = namespaces
        .create(&PostParams::default(), &serde_json::from_value(foreign).unwrap())
        .await
        .unwrap();
    assert!(
        restored.labels().contains_key("keep") && ours(restored.labels()) == "- - -",
        "{:?}",
        restored.labels()
    );
    eventually("the agent labels it", || async {
        ours(namespaces.get("restored").await.unwrap().labels()).ends_with("restored true")
    })
    .await;
}

async fn tampering_is_overwritten_or_refused(scene: &Scene) {
    let forged = json!({ "metadata": { "labels": { "ctrlmesh.kusionstack.io/namespace": "ns-a" } } });
    let (params, forged) = (PatchParams::default(), Patch::Merge(forged));
    let object = scene.config_maps("ns-b").patch("new", &params, &forged).await.unwrap();
    assert_eq!(ours(object.labels()), "16 ns-b true");
    let hidden = scene
        .config_maps("kube-system")
        .patch("kube-root-ca.crt", &params, &forged)
        .await
        .unwrap();
    assert_eq!(
        ours(hidden.labels()),
        "- - -",
        "an object of a system namespace cannot slip into a shard"
    );
    let namespaces = Api::<Namespace>::all(scene.client.clone());
    let refused = namespaces
        .patch("ns-b", &params, &forged)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("ctrlmesh.kusionstack.io/namespace") && refused.contains("reserved"),
        "{refused}"
    );
    let removed = Patch::Merge(json!({ "metadata": { "labels": { "ctrlmesh.kusionstack.io/namespace": null } } }));
    let kept = namespaces.patch("ns-b", &params, &removed).await.unwrap();
    assert_eq!(ours(kept.labels()), "16 ns-b true");
}

/// Under the agent's own name, as nobody else can cause any.
async fn drift_is_repaired(scene: &Scene) {
    let objects = Api::<ConfigMap>::namespaced(scene.as_agent.clone(), "ns-b");
    let drift = json!({ "metadata": { "labels": {
        "ctrlmesh.kusionstack.io/namespace": "elsewhere", "ctrlmesh.kusionstack.io/control": null } } });
    let drifted = objects
        .patch("old", &PatchParams::default(), &Patch::Merge(&drift))
        .await
        .unwrap();
    assert_eq!(ours(drifted.labels()), "16 elsewhere -");
    eventually("an object's drift is repaired", || async {
        ours(objects.get("old").await.unwrap().labels()) == "16 ns-b true"
    })
    .await;
    let namespaces = Api::<Namespace>::all(scene.as_agent.clone());
    namespaces
        .patch("ns-b", &PatchParams::default(), &Patch::Merge(&drift))
        .await
        .unwrap();
    eventually("a namespace's too", || async {
        ours(namespaces.get("ns-b").await.unwrap().labels()) == "16 ns-b true"
    })
    .await;
}

/// Objects that come unlabelled and go at once, many times over: none may come back by a patch that was under way.
async fn what_is_deleted_stays_deleted(scene: &Scene) {
    let objects = Api::<ConfigMap>::namespaced(scene.as_agent.clone(), "ns-b");
    for round in 0..300 {
        let name = format!("churn-{}", round % 10);
        let object = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
        let created: ConfigMap = objects.create(&PostParams::default(), &object).await.unwrap();
        assert_eq!(ours(created.labels()), "- - -");
        if round % 3 == 0 {
            tokio::time::sleep(Duration::from_millis(round % 7)).await;
        }
        objects.delete(&name, &DeleteParams::default()).await.unwrap();
    }
    coverage_is_complete(scene).await;
    let left = scene.labels("", "v1", "ConfigMap").await.unwrap();
    assert!(!left.iter().any(|line| line.contains("churn-")), "{left:?}");
}

async fn kinds_come_and_go(scene: &Scene) {
    let told = &scene.hub.told;
    assert!(told.read(|told| !told.coverage.contains_key("widgets.demo.example.com")));
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "widgets.demo.example.com" },
        "spec": {
            "group": "demo.example.com", "scope": "Namespaced",
            "names": { "kind": "Widget", "plural": "widgets", "singular": "widget" },
            "versions": [{ "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } } }],
        },
    });
    // What `portolanctl join --label-kind widgets.demo.example.com` gives.
    let role = [
        "create",
        "clusterrole",
        "portolan-agent-kinds",
        "--verb=get,list,watch,patch",
    ];
    let kinds = [&role[..], &["--resource=widgets.demo.example.com"]].concat();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), definition.to_string()).unwrap();
    let file = file.path().to_str().unwrap().to_owned();
    scene.kubectl(&["apply", "-f", &file]).await.unwrap();
    let widget = tempfile::NamedTempFile::new().unwrap();
    let object = json!({ "apiVersion": "demo.example.com/v1", "kind": "Widget", "metadata": { "name": "w", "namespace": "ns-b" } });
    std::fs::write(widget.path(), object.to_string()).unwrap();
    let apply = ["apply", "-f", widget.path().to_str().unwrap()];
    eventually("a widget can be made", || scene.kubectl(&apply)).await;
    scene.kubectl(&kinds).await.unwrap();
    scene
        .policies(&[GroupResource::new("demo.example.com", "widgets")])
        .await
        .unwrap();
    let binding = [
        "create",
        "clusterrolebinding",
        "portolan-agent-kinds",
        "--clusterrole=portolan-agent-kinds",
    ];
    let bound = [&binding[..], &["--serviceaccount=portolan-system:portolan-agent"]].concat();
    scene.kubectl(&bound).await.unwrap();
    eventually("widgets are covered", || async {
        told.read(|told| told.covered("widgets.demo.example.com") == (1, 1, true))
    })
    .await;
    let labels = scene.labels("demo.example.com", "v1", "Widget").await.unwrap();
    assert_eq!(labels, ["ns-b/w: 16 ns-b true"]);
    scene.kubectl(&["delete", "-f", &file]).await.unwrap();
    eventually("and no longer told", || async {
        told.read(|told| !told.coverage.contains_key("widgets.demo.example.com"))
    })
    .await;
}

async fn policies_that_are_gone_or_changed_are_told(scene: &Scene) {
    let told = &scene.hub.told;
    let fault = || told.read(|told| told.policies.clone().unwrap_or_default());
    eventually("nothing is wrong", || async {
        told.read(|told| told.policies.as_deref() == Some(""))
    })
    .await;
    let gone = [
        "delete",
        "mutatingadmissionpolicy,mutatingadmissionpolicybinding",
        "portolan-labels",
    ];
    scene.kubectl(&gone).await.unwrap();
    eventually("coverage says so", || async {
        told.read(|told| !told.covered("configmaps").2)
    })
    .await;
    eventually("and which policy is gone, and what to do", || async {
        let fault = fault();
        fault.contains("MutatingAdmissionPolicy portolan-labels is missing: run portolanctl join again")
    })
    .await;
    scene.policies(&[]).await.unwrap();
    eventually("they are back", || async {
        told.read(|told| told.covered("configmaps").2) && fault().is_empty()
    })
    .await;
    assert_eq!(ours(create(scene, "ns-b", "after").await.labels()), "16 ns-b true");
    let never = r#"{"spec":{"matchConditions":[{"name":"never","expression":"false"}]}}"#;
    for name in ["portolan-reserved-labels", "portolan-agent-writes"] {
        let patch = ["patch", "validatingadmissionpolicy", name, "--type=merge", "-p", never];
        scene.kubectl(&patch).await.unwrap();
        eventually("one that was edited is told", || async {
            let fault = fault();
            fault.contains(name) && fault.contains("spec.matchConditions")
        })
        .await;
        let delete = ["delete", "validatingadmissionpolicy", name];
        scene.kubectl(&delete).await.unwrap();
        scene.policies(&[]).await.unwrap();
        eventually("and that it is as it was", || async { fault().is_empty() }).await;
    }
}

async fn a_restart_patches_only_what_is_wrong(scene: &Scene) {
    let objects = Api::<ConfigMap>::namespaced(scene.as_agent.clone(), "ns-b");
    let removed = json!({ "metadata": { "labels": { "ctrlmesh.kusionstack.io/control": null } } });
    objects
        .patch("old", &PatchParams::default(), &Patch::Merge(removed))
        .await
        .unwrap();
    let untouched = objects.get("new").await.unwrap().resource_version();
    let told = &scene.hub.told;
    told.with(|told| told.coverage.clear());
    let agent = scene.agent().await.unwrap();
    eventually("coverage is complete", || async {
        told.read(|told| told.covered("configmaps").2)
    })
    .await;
    assert_eq!(ours(objects.get("old").await.unwrap().labels()), "16 ns-b true");
    assert_eq!(objects.get("new").await.unwrap().resource_version(), untouched);
    let configz = configz(&agent).await;
    assert_eq!(configz["cluster"], CLUSTER);
    assert!(!configz.to_string().contains("PRIVATE KEY") && !configz.to_string().contains(TOKEN));
    let token = told.read(|told| told.tokens.last().cloned()).unwrap().token;
    assert!(!configz.to_string().contains(&token));
    agent.drain.now().await.into_result().unwrap();
}

async fn configz(agent: &Bound) -> serde_json::Value {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(agent.admin).await.unwrap();
    stream.write_all(b"GET /configz HTTP/1.0\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

async fn uninstall_leaves_nothing(scene: &Scene) {
    let injection = repository("deploy/member/injection.yaml");
    scene.kubectl(&["apply", "-f", &injection]).await.unwrap();
    scene.uninstall().await.unwrap();
    let kinds = "mutatingadmissionpolicies,mutatingadmissionpolicybindings,validatingadmissionpolicies,validatingadmissionpolicybindings";
    assert_eq!(scene.kubectl(&["get", kinds, "-o", "name"]).await.unwrap(), "");
    for kind in ["ConfigMap", "Namespace"] {
        let labels = scene.labels("", "v1", kind).await.unwrap();
        assert!(labels.iter().all(|line| line.ends_with(": - - -")), "{labels:?}");
    }
    let policies = scene.kubectl(&["get", "-o", "name",
        "mutatingadmissionpolicies,mutatingadmissionpolicybindings,validatingadmissionpolicies,validatingadmissionpolicybindings"]).await.unwrap();
    assert!(!policies.contains("portolan"), "{policies}");
    let secrets = Api::<Secret>::namespaced(scene.client.clone(), "portolan-system");
    assert!(secrets.get_opt("portolan-agent-identity").await.unwrap().is_none());
    assert_eq!(ours(create(scene, "ns-b", "free").await.labels()), "- - -");
}

/// An API server that serves the policy and does not apply it; one before Kubernetes 1.36 does not serve it at all.
#[tokio::test]
async fn without_mutating_policies_the_sweep_labels_and_coverage_is_never_complete() {
    let without = "--feature-gates=MutatingAdmissionPolicy=false";
    let scene = Scene::start_with(config(&[("", "configmaps")]), DAY, &[without])
        .await
        .unwrap();
    scene.namespace("ns-b").await.unwrap();
    let agent = scene.joined_agent().await.unwrap();
    let told = &scene.hub.told;
    let all = || told.read(|told| told.covered("configmaps"));
    eventually("old objects are labelled", || async {
        matches!(all(), (labelled, total, _) if total > 0 && labelled == total)
    })
    .await;
    let objects = scene.config_maps("ns-b");
    assert_eq!(ours(create(&scene, "ns-b", "new").await.labels()), "- - -");
    let labelled = || async { ours(objects.get("new").await.unwrap().labels()) == "16 ns-b true" };
    eventually("a new one is, too", labelled).await;

    // Whoever leaves the labels out is not refused, whoever forges them is.
    let (params, label) = (PatchParams::default(), "ctrlmesh.kusionstack.io/namespace");
    let labels = |value: serde_json::Value| Patch::Merge(json!({ "metadata": { "labels": { label: value } } }));
    eventually("forging is refused", || async {
        let forged = objects.patch("new", &params, &labels(json!("ns-a"))).await;
        forged.is_err_and(|error| error.to_string().contains("reserved"))
    })
    .await;
    objects.patch("new", &params, &labels(json!(null))).await.unwrap();
    eventually("what was left out is put back", labelled).await;
    assert!(!all().2);
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(!all().2, "the policy is installed and does nothing");
    agent.drain.now().await.into_result().unwrap();
}
