//! Lists and watches over all namespaces, which shard `gamma` may have: it lives in one member. What they show is chosen
//! by the labels that the agent writes, so they wait until those are complete.

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::runtime::{WatchStreamExt as _, watcher};
use portolan_testbed::{eventually, patience};
use portolan_tests::door::Door;
use serde_json::{Value, json};

use crate::world;

/// `namespace/name` of a list.
fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().unwrap_or_else(|| panic!("no list: {list}"));
    let text = |item: &Value, key: &str| item["metadata"][key].as_str().unwrap_or_default().to_owned();
    items
        .iter()
        .map(|item| format!("{}/{}", text(item, "namespace"), text(item, "name")))
        .collect()
}

async fn gamma() -> Door {
    let door = world().await.merged_door("gamma").await.unwrap();
    eventually("labels are complete", || async {
        let answer = door.get("/api/v1/configmaps", &[]).await.unwrap();
        if answer.status == 200 { Ok(()) } else { Err(answer.body) }
    })
    .await;
    door
}

#[tokio::test]
async fn one_member_lists_its_namespaces_and_no_other() {
    let door = gamma().await;
    for path in [
        "/api/v1/configmaps",
        "/api/v1/configmaps?labelSelector=app%3Dfoo",
        "/api/v1/configmaps?labelSelector=ctrlmesh.kusionstack.io/namespace%20in%20(mc-1,mc-2,mb-1,default)",
        "/api/v1/configmaps?limit=500&resourceVersion=0",
    ] {
        let seen = names(&door.get(path, &[]).await.unwrap().json());
        let wheres = seen.iter().filter(|name| name.ends_with("/where")).count();
        assert_eq!(wheres, 2, "{path}: {seen:?}");
        assert!(seen.iter().all(|name| name.starts_with("mc-")), "{path}: {seen:?}");
    }
    for path in [
        "/api/v1/configmaps?labelSelector=ctrlmesh.kusionstack.io/namespace%3Ddefault",
        "/api/v1/configmaps?labelSelector=!ctrlmesh.kusionstack.io/namespace",
        "/api/v1/configmaps?fieldSelector=metadata.namespace%3Ddefault",
    ] {
        assert_eq!(names(&door.get(path, &[]).await.unwrap().json()), [""; 0], "{path}");
    }
    let namespaces = names(&door.get("/api/v1/namespaces", &[]).await.unwrap().json());
    assert_eq!(namespaces, ["/mc-1", "/mc-2"]);
    let shown = world()
        .await
        .merged("gamma")
        .ok(&["get", "configmaps", "-A", "--no-headers"])
        .await
        .unwrap();
    assert!(shown.lines().all(|line| line.starts_with("mc-")), "{shown}");
}

#[tokio::test]
async fn one_member_watches_its_namespaces() {
    gamma().await;
    let world = world().await;
    let client = world
        .client(world.fleet.merged_kubeconfig("gamma"), None)
        .await
        .unwrap();
    let config = watcher::Config::default().labels("watched");
    let mut stream = watcher(Api::<ConfigMap>::all(client), config).applied_objects().boxed();
    let direct = world.direct_door("east").await.unwrap();
    for namespace in ["mb-1", "mc-1", "ma-1", "mc-2"] {
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "seen", "labels": {"watched": "1"}},
        });
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        assert_eq!(direct.post(&path, &object).await.unwrap().status, 201);
    }
    let mut seen = Vec::new();
    while seen.len() < 2 {
        let next = tokio::time::timeout(patience(), stream.try_next()).await;
        let object = next.unwrap_or_else(|_| panic!("only {seen:?}")).unwrap().unwrap();
        let namespace = object.metadata.namespace.unwrap();
        assert!(namespace.starts_with("mc-"), "{namespace}");
        if !seen.contains(&namespace) {
            seen.push(namespace);
        }
    }
}

/// The router filters where labels cannot be trusted: agents do not label Leases.
#[tokio::test]
async fn kinds_without_labels_are_filtered_by_the_router() {
    let door = gamma().await;
    let direct = world().await.direct_door("east").await.unwrap();
    for namespace in ["mc-1", "mb-1"] {
        let object =
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "unlabelled"}});
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
        assert_eq!(direct.post(&path, &object).await.unwrap().status, 201);
    }
    let leases = door.get("/apis/coordination.k8s.io/v1/leases", &[]).await.unwrap();
    assert_eq!(names(&leases.json()), ["mc-1/unlabelled"]);
    let absent = door.get("/apis/flowcontrol.example/v1/things", &[]).await.unwrap();
    assert_eq!(absent.status, 404, "{}", absent.message());
    // Kinds without namespace have no shard labels either, and need none.
    assert_eq!(
        door.get("/apis/rbac.authorization.k8s.io/v1/clusterroles", &[])
            .await
            .unwrap()
            .status,
        200
    );
}

/// One informer for each namespace, as operators without cluster-wide rights have them.
#[tokio::test]
async fn informers_of_both_members_side_by_side() {
    let world = world().await;
    let client = world.client(world.fleet.merged_kubeconfig("beta"), None).await.unwrap();
    for (namespace, member) in [("mb-1", "east"), ("mb-2", "west")] {
        let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        let config = watcher::Config::default().labels("informed").streaming_lists();
        let mut stream = watcher(api, config).applied_objects().boxed();
        let direct = world.direct_door(member).await.unwrap();
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "news", "labels": {"informed": "1"}},
            "data": {"from": member},
        });
        assert_eq!(direct.post(&path, &object).await.unwrap().status, 201);
        let seen = tokio::time::timeout(patience(), stream.try_next())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        assert_eq!(seen.data.unwrap()["from"], member);
    }
}
