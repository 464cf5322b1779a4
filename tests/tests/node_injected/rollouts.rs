//! An operator of others as its makers ship it: Argo Rollouts.

use anyhow::ensure;
use portolan_testbed::{Bundle, Image, eventually, inside};
use portolan_tests::ctl;
use portolan_tests::programs::argument;
use serde_json::{Value, json};

use super::world::{ASKS, HOME, World, shard};

const NAME: &str = "argo-rollouts";
const IMAGE: &str = "registry.example.com/argo-rollouts:1.10";
const LOCK: &str = "argo-rollouts-controller-lock";
/// Whose Rollouts it has.
const PLACES: [(&str, &str); 2] = [("east", "shop-a"), ("west", "shop-b")];

#[test]
#[ignore = "builds Argo Rollouts, which takes minutes: make operators"]
fn argo_rollouts_is_sharded_by_a_label() {
    inside(async {
        let bundle = Bundle::ROLLOUTS.built().unwrap().unwrap();
        let image = Image::new(IMAGE, bundle.join("bin/rollouts-controller"));
        let world = World::start(vec![image]).await.unwrap();
        for member in ["east", "west"] {
            let kubectl = world.kubectl(member);
            let kinds = argument(&bundle.join("extras"));
            kubectl.ok(&["apply", "--server-side", "-f", &kinds]).await.unwrap();
            kubectl.ok_with(&["apply", "-f", "-"], &account()).await.unwrap();
            let file = argument(world.cluster(member).direct_kubeconfig_path());
            let account = format!("{HOME}/{NAME}");
            ctl::ok(&["allow", "--member-kubeconfig", &file, &account])
                .await
                .unwrap();
        }
        let apply = ["apply", "-f", "-"];
        world.kubectl("hub").ok_with(&apply, &shard(NAME, LOCK)).await.unwrap();
        world.kubectl("east").ok_with(&apply, &deployment()).await.unwrap();
        for (member, namespace) in PLACES {
            world
                .kubectl(member)
                .ok_with(&apply, &rollout(namespace))
                .await
                .unwrap();
        }
        for (member, namespace) in PLACES {
            eventually(&format!("the Rollout of {member} is done"), || async {
                let get = ["get", "rollout", "hello", "-n", namespace, "-o", "json"];
                let rollout: Value = serde_json::from_str(&world.kubectl(member).ok(&get).await?)?;
                let generation = rollout["metadata"]["generation"].to_string();
                ensure!(
                    rollout["status"]["observedGeneration"] == generation.as_str(),
                    "{}",
                    rollout["status"]
                );
                let get = [
                    "get",
                    "replicasets",
                    "-n",
                    namespace,
                    "-l",
                    "rollouts-pod-template-hash",
                    "-o",
                    "name",
                ];
                ensure!(!world.kubectl(member).ok(&get).await?.is_empty(), "no ReplicaSet");
                Ok(())
            })
            .await;
        }
    });
}

fn account() -> String {
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"});
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": NAME},
        "roleRef": role, "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": HOME}],
    });
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAME, "namespace": HOME}});
    json!({"apiVersion": "v1", "kind": "List", "items": [account, binding]}).to_string()
}

/// Argo Rollouts' Deployment as its manifests have it: without a kubeconfig.
fn deployment() -> String {
    let labels = json!({"app": NAME, ASKS: "true"});
    let container = json!({"name": NAME, "image": IMAGE, "imagePullPolicy": "Never"});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": NAME, "namespace": HOME},
        "spec": {
            "selector": {"matchLabels": {"app": NAME}},
            "template": {"metadata": {"labels": labels}, "spec": {"serviceAccountName": NAME, "containers": [container]}},
        },
    })
    .to_string()
}

fn rollout(namespace: &str) -> String {
    let template = json!({
        "metadata": {"labels": {"app": "hello"}},
        "spec": {"containers": [{"name": "hello", "image": "registry.example.com/hello:1"}]},
    });
    json!({
        "apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "metadata": {"name": "hello", "namespace": namespace},
        "spec": {
            "replicas": 0, "selector": {"matchLabels": {"app": "hello"}}, "template": template,
            "strategy": {"canary": {}},
        },
    })
    .to_string()
}
