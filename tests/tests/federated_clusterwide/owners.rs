//! A child beside another member's owner would be collected as an orphan, so it is not written: on create and on update,
//! in JSON and in protobuf, through a router.

use http::Method;
use portolan_tests::door::{Answer, request};
use serde_json::{Value, json};

use crate::{MEMBERS, direct, door, role};

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const MAPS: &str = "/api/v1/namespaces/cw-w/configmaps";

fn child(name: &str, owner: (&str, &str)) -> Value {
    let (owner, uid) = owner;
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": name, "namespace": "cw-w",
            "ownerReferences": [
                {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "name": owner, "uid": uid},
            ],
        },
    })
}

/// The object in this format. For protobuf west's own API server is asked, which stores nothing of a dry run.
async fn encoded(method: &Method, path: &str, object: &Value, format: &str) -> Vec<u8> {
    let body = object.to_string().into_bytes();
    if format == JSON {
        return body;
    }
    let headers = [("content-type", JSON), ("accept", PROTOBUF)];
    let dry = format!("{path}?dryRun=All");
    let answer = direct("west")
        .await
        .call(method.clone(), &dry, &headers, &body)
        .await
        .unwrap();
    assert!(answer.status < 300 && answer.body.starts_with(b"k8s\0"), "{answer:?}");
    answer.body.to_vec()
}

async fn write(method: Method, path: &str, object: &Value, format: &str) -> Answer {
    let body = encoded(&method, path, object, format).await;
    let asked = request(method, path, &[("content-type", format)], &body);
    door("wide").await.ask(asked.unwrap()).await.unwrap()
}

#[tokio::test]
async fn a_child_of_another_members_owner_is_refused() {
    let _calm = MEMBERS.read().await;
    let (far, near) = ("owners-east", "owners-west");
    let far = (far, &*role("east", "owners", far).await);
    let near = (near, &*role("west", "owners", near).await);
    let words = ["ClusterRole owners-east", "east", "west", "garbage collector"];
    for (name, format) in [("in-json", JSON), ("in-protobuf", PROTOBUF)] {
        let path = format!("{MAPS}/{name}");
        let refused = write(Method::POST, MAPS, &child(name, far), format).await;
        refused.expect_status(403, &words).unwrap();
        assert_eq!(
            direct("west").await.get(&path, &[]).await.unwrap().status,
            404,
            "{name}"
        );

        let made = write(Method::POST, MAPS, &child(name, near), format).await;
        assert!(made.status == 201, "{name}: {}", made.message());
        let refused = write(Method::PUT, &path, &child(name, far), format).await;
        refused.expect_status(403, &words).unwrap();
        let stored = direct("west").await.get(&path, &[]).await.unwrap().json();
        assert_eq!(stored["metadata"]["ownerReferences"][0]["name"], near.0, "{name}");
        let updated = write(Method::PUT, &path, &child(name, near), format).await;
        assert!(updated.status == 200, "{name}: {}", updated.message());
    }
    // A patch that sets it, and an apply that would create it.
    for (name, kind) in [
        ("in-json", "application/merge-patch+json"),
        ("applied", "application/apply-patch+yaml"),
    ] {
        let (path, body) = (
            format!("{MAPS}/{name}?fieldManager=tests"),
            child(name, far).to_string(),
        );
        let asked = request(Method::PATCH, &path, &[("content-type", kind)], body.as_bytes());
        let refused = door("wide").await.ask(asked.unwrap()).await.unwrap();
        refused.expect_status(403, &words).unwrap();
    }
    let applied = direct("west").await.get(&format!("{MAPS}/applied"), &[]).await.unwrap();
    assert_eq!(applied.status, 404);
}
