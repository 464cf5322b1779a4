//! Pods with good tokens that are in no shard, in two, or whose ServiceAccount the member does not allow.

use serde_json::json;

use crate::{WHERE, ask_with, pod_with_token, told, world};

const ACCOUNT: &str = "portolan-dev-alpha";

#[tokio::test]
async fn in_no_shard() {
    let token = pod_with_token("east", "stray", ACCOUNT, json!({"shard": "none"})).await;
    told(&token, WHERE, 403, &["operators/stray", "east", "no shard"]).await;
    told(&token, "/clusters/east/version", 403, &["operators/stray", "no shard"]).await;
    told(&token, "/version", 403, &["no shard"]).await;
}

#[tokio::test]
async fn in_two_shards() {
    let labels = json!({"shard": "alpha", "also": "double"});
    let token = pod_with_token("east", "torn", ACCOUNT, labels).await;
    told(
        &token,
        WHERE,
        403,
        &["operators/torn", "operators/alpha", "operators/double"],
    )
    .await;
    told(
        &token,
        "/clusters/east/version",
        403,
        &["operators/alpha", "operators/double"],
    )
    .await;
}

#[tokio::test]
async fn at_home_elsewhere() {
    // The same labels in a cluster that is no callerCluster of the shard.
    let token = pod_with_token("west", "exile", ACCOUNT, json!({"shard": "alpha"})).await;
    told(&token, WHERE, 403, &["operators/exile", "west", "no shard"]).await;
}

#[tokio::test]
async fn a_replica_has_its_shards_view_and_no_other() {
    let token = pod_with_token("east", "replica", ACCOUNT, json!({"shard": "beta"})).await;
    // The ServiceAccount is alpha's; the Pod is beta's, and the Pod decides.
    told(
        &token,
        WHERE,
        403,
        &["namespace ia-1", "operators/beta", "operators/alpha"],
    )
    .await;
    let own = ask_with(&token, "/api/v1/namespaces/ib-1/configmaps").await;
    assert_eq!(own.status, 200, "{:?}", own.body);
}

#[tokio::test]
async fn a_member_decides_whom_the_router_may_be() {
    let world = world().await;
    let token = pod_with_token("east", "unasked", "unasked", json!({"shard": "alpha"})).await;
    let words = ["member cluster east", "operators/unasked", "portolanctl allow"];
    told(&token, WHERE, 403, &words).await;
    // East allows it, west does not; and east's own RBAC still has its say.
    let file = portolan_tests::programs::argument(world.cluster("east").direct_kubeconfig_path());
    let allow = ["allow", "--member-kubeconfig", &file, "operators/unasked"];
    world.fleet.run(&allow.map(ToOwned::to_owned)).await.unwrap();
    let own_words = "User \"system:serviceaccount:operators:unasked\" cannot list resource \"configmaps\"";
    told(&token, WHERE, 403, &[own_words]).await;
    let west = ask_with(&token, "/api/v1/namespaces/ia-2/configmaps").await;
    west.expect_status(403, &["member cluster west", "operators/unasked", "portolanctl allow"])
        .unwrap();
    let role = "--serviceaccount=operators:unasked";
    let binding = [
        "create",
        "rolebinding",
        "unasked",
        "-n",
        "ia-1",
        "--clusterrole=view",
        role,
    ];
    world.direct("east").ok(&binding).await.unwrap();
    portolan_testbed::eventually("east's RBAC lets it", || async {
        ask_with(&token, WHERE).await.status == 200
    })
    .await;
}
