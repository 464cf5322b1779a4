//! What the router reads in one way and an API server in another: limits hold for what the API server makes of it.

use http::Method;
use portolan_tests::door::request;
use serde_json::json;

use crate::world;

const PODS: &str = "/api/v1/namespaces/h-limited/pods";
const MAPS: &str = "/api/v1/namespaces/h-limited/configmaps";

#[tokio::test]
async fn a_pod_by_its_port_is_that_pod() {
    let (world, _) = world().await;
    let direct = world.direct_door("east").await.unwrap();
    let other = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other", "labels": {"app": "bar"}},
        "spec": {"containers": [{"name": "c", "image": "none"}]},
    });
    let made = direct.post(PODS, &other).await.unwrap();
    assert_eq!(made.status, 201, "{}", made.message());
    let door = world.listed_door("gamma", MAPS).await.unwrap();
    for name in ["other", "other:8080", "http:other:8080", "https:other:"] {
        let answer = door.get(&format!("{PODS}/{name}/proxy/"), &[]).await.unwrap();
        answer.expect_status(403, &["operators/gamma", "app=foo"]).unwrap();
    }
    for name in ["a:b:other:8080", "other%3A8080%3Ax%3Ay"] {
        let answer = door.get(&format!("{PODS}/{name}/proxy/"), &[]).await.unwrap();
        answer.expect_status(404, &["to connect to"]).unwrap();
    }
}

#[tokio::test]
async fn a_tagged_key_hides_no_labels() {
    let (world, _) = world().await;
    let door = world.listed_door("gamma", MAPS).await.unwrap();
    // `metadata`, to a reader that knows the tag.
    let body = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: hidden, labels: {app: foo}}\n\
                !!binary bWV0YWRhdGE=: {name: hidden, labels: {app: bar}}\n";
    let path = format!("{MAPS}/hidden?fieldManager=t&force=true");
    let headers = [("content-type", "application/apply-patch+yaml")];
    let apply = request(Method::PATCH, &path, &headers, body.as_bytes()).unwrap();
    let answer = door.ask(apply).await.unwrap();
    answer.expect_status(400, &["tags"]).unwrap();
    let direct = world.direct_door("east").await.unwrap();
    assert_eq!(direct.get(&format!("{MAPS}/hidden"), &[]).await.unwrap().status, 404);
}
