//! An author who asks for more than an agent can be told, or whose Pods are more than it can tell: other tenants' new Pods
//! are known as without it, also after the hub has started anew.

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use portolan_testbed::eventually;
use portolan_tests::kubectl::Kubectl;
use portolan_tests::programs::argument;
use portolan_tests::world::{HUB, PodSpec, World, create_namespace};
use serde_json::{Value, json};

use crate::authors::{HUB_RUNS, world};

const APPLY: [&str; 3] = ["apply", "-f", "-"];
/// Two of them are told by name; their labels are not.
const FAT_PODS: usize = 2;

/// A ShardingConfig of namespace `evil`, which owns a namespace of east.
fn evil(name: &str, more: Value) -> Value {
    let mut spec = json!({
        "selector": {"matchLabels": {"app": "evil"}},
        "callerClusters": ["east"],
        "clusters": [{"name": "east", "namespaces": [format!("h-{name}")]}],
    });
    let (spec, more) = (spec.as_object_mut().unwrap(), more.as_object().unwrap().clone());
    spec.extend(more);
    json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1", "kind": "ShardingConfig",
        "metadata": {"name": name, "namespace": "evil"}, "spec": spec,
    })
}

/// 33 KB of YAML that name 16,384 kinds.
fn many_kinds() -> Value {
    let label = "x".repeat(58);
    let groups: Vec<_> = (0..64).map(|at| format!("g{at:03}.{label}.{label}.{label}")).collect();
    let resources: Vec<_> = (0..256).map(|at| format!("r{at:03}{label}")).collect();
    json!([{"relateResources": [{"apiGroups": groups, "resources": resources}], "selector": {"matchLabels": {"a": "b"}}}])
}

#[tokio::test]
async fn what_one_author_asks_for_keeps_nobody_elses_pods_from_being_known() {
    let world = world().await;
    let _alone = HUB_RUNS.write().await;
    let hub = world.direct(HUB);
    hub.ok(&["create", "namespace", "evil"]).await.unwrap();
    create_namespace(world.cluster("east"), "evil").await.unwrap();
    hub.ok_with(&APPLY, &evil("kinds", json!({"limits": many_kinds()})).to_string())
        .await
        .unwrap();
    let values: Vec<_> = (0..2_000).map(|value| format!("{value:040}")).collect();
    let long = json!({"selector": {"matchExpressions": [{"key": "x", "operator": "In", "values": values}]}});
    hub.ok_with(&APPLY, &evil("long", long).to_string()).await.unwrap();
    says(&hub, "long", "Accepted", "spec.selector: has").await;
    says(&hub, "kinds", "Accepted", "in force").await;
    fat_pods(world).await;
    says(
        &hub,
        "kinds",
        "Distributed",
        "Pods of this namespace with more than 65536 bytes of labels",
    )
    .await;
    says(
        &hub,
        "kinds",
        "Distributed",
        "kinds more than are labelled for one in east",
    )
    .await;
    looks_after_east(&hub, "evil/fat-0 (").await;
    looks_after_east(&hub, "of namespace evil").await;
    becomes_a_caller(world, "before").await;
    let dir = argument(world.fleet.dir());
    let restart = ["dev", "restart", "hub", "--dir", &dir].map(ToOwned::to_owned);
    world.fleet.run(&restart).await.unwrap();
    becomes_a_caller(world, "after").await;
    says(&hub, "kinds", "Distributed", "fat-0 in east").await;
    for name in ["kinds", "long"] {
        let delete = ["delete", "shardingconfig", name, "-n", "evil", "--wait=false"];
        eventually("it is deleted", || hub.ok(&delete)).await;
    }
}

async fn fat_pods(world: &World) {
    let pods = Api::<Pod>::namespaced(world.cluster("east").client().await.unwrap(), "evil");
    let mut labels: serde_json::Map<_, _> = (0..14_000)
        .map(|at| (format!("k{at:05}"), json!("v".repeat(63))))
        .collect();
    labels.insert("app".to_owned(), json!("evil"));
    for at in 0..FAT_PODS {
        let pod = json!({
            "metadata": {"name": format!("fat-{at}"), "labels": labels},
            "spec": {
                "schedulerName": "none", "automountServiceAccountToken": false,
                "containers": [{"name": "c", "image": "x"}],
            },
        });
        let pod = serde_json::from_value(pod).unwrap();
        let create = || async { pods.create(&PostParams::default(), &pod).await };
        eventually("a fat Pod is made", create).await;
    }
}

/// Whoever looks after the member is told, too.
async fn looks_after_east(hub: &Kubectl, words: &str) {
    let path = "jsonpath={.status.conditions[?(@.type==\"NothingLeftOut\")].message}";
    let look = ["get", "membercluster", "east", "-o", path];
    eventually("it is told of the member", || async {
        let said = hub.ok(&look).await.map_err(|error| error.to_string())?;
        if said.contains(words) { Ok(()) } else { Err(said) }
    })
    .await;
}

/// The condition's message has these words.
async fn says(hub: &Kubectl, name: &str, condition: &str, words: &str) {
    let path = format!("jsonpath={{.status.conditions[?(@.type==\"{condition}\")].message}}");
    let look = ["get", "shardingconfig", name, "-n", "evil", "-o", &path];
    eventually("the author is told", || async {
        let said = hub.ok(&look).await.map_err(|error| error.to_string())?;
        if said.contains(words) { Ok(()) } else { Err(said) }
    })
    .await;
}

/// A new Pod of another tenant is served.
async fn becomes_a_caller(world: &World, name: &str) {
    let pod = PodSpec {
        namespace: "operators",
        name,
        service_account: "portolan-dev-gamma",
        labels: json!({"shard": "gamma"}),
    };
    let uid = world.pod("east", pod.clone()).await.unwrap();
    let token = world.token("east", &pod, &uid).await.unwrap();
    let door = world.token_door(Some(&token)).await.unwrap();
    eventually("a new Pod of another tenant is served", || async {
        let answer = door
            .get("/api/v1/namespaces/h-gamma/configmaps", &[])
            .await
            .map_err(|error| error.to_string())?;
        if answer.status == 200 {
            Ok(())
        } else {
            Err(answer.message())
        }
    })
    .await;
}
