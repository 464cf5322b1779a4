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

async fn patch(path: &str, kind: &str, body: &str) -> Answer {
    let asked = request(Method::PATCH, path, &[("content-type", kind)], body.as_bytes());
    door("wide").await.ask(asked.unwrap()).await.unwrap()
}

#[tokio::test]
async fn an_owner_is_seen_however_it_is_written() {
    const JSON_PATCH: &str = "application/json-patch+json";
    let _calm = MEMBERS.read().await;
    let (far, near) = ("spelled-east", "spelled-west");
    let far = (far, &*role("east", "owners", far).await);
    let near = (near, &*role("west", "owners", near).await);
    let crosses = ["ClusterRole spelled-east", "east", "west", "garbage collector"];
    let post = async |body: String| {
        let asked = request(Method::POST, MAPS, &[("content-type", JSON)], body.as_bytes());
        door("wide").await.ask(asked.unwrap()).await.unwrap()
    };
    let escaped = child("spelled", far)
        .to_string()
        .replace("ownerReferences", "ownerReference\\u0073");
    post(escaped).await.expect_status(403, &crosses).unwrap();
    let twice = child("spelled", far)
        .to_string()
        .replace("\"name\":\"spelled\"", "\"ownerReferences\":[],\"name\":\"spelled\"");
    post(twice).await.expect_status(400, &["ownerReferences"]).unwrap();
    let mut many = child("spelled", near);
    many["metadata"]["ownerReferences"] = json!(vec![many["metadata"]["ownerReferences"][0].clone(); 65]);
    post(many.to_string())
        .await
        .expect_status(422, &["metadata.ownerReferences", "64"])
        .unwrap();

    let path = format!("{MAPS}/spelled");
    let made = post(child("spelled", near).to_string()).await;
    assert_eq!(made.status, 201, "{}", made.message());
    let becomes = |owner: (&str, &str)| {
        let (name, uid) = owner;
        json!([
            {"op": "replace", "path": "/metadata/ownerReferences/0/name", "value": name},
            {"op": "replace", "path": "/metadata/ownerReferences/0/uid", "value": uid},
        ])
        .to_string()
    };
    let refused = patch(&path, JSON_PATCH, &becomes(far)).await;
    refused.expect_status(403, &crosses).unwrap();
    let partly = json!({"metadata": {"ownerReferences": [{"uid": near.1, "name": far.0}]}}).to_string();
    let refused = patch(&path, "application/strategic-merge-patch+json", &partly).await;
    refused.expect_status(422, &["metadata.ownerReferences[0]"]).unwrap();
    let stored = direct("west").await.get(&path, &[]).await.unwrap().json();
    assert_eq!(stored["metadata"]["ownerReferences"][0]["uid"], near.1);
    // What changes no owner, and what takes one away.
    let kept = patch(&path, JSON_PATCH, &becomes(near)).await;
    assert_eq!(kept.status, 200, "{}", kept.message());
    let none = json!({"metadata": {"ownerReferences": [{"$patch": "delete", "uid": near.1}]}}).to_string();
    let freed = patch(&path, "application/strategic-merge-patch+json", &none).await;
    assert_eq!(
        (freed.status, &freed.json()["metadata"]["ownerReferences"]),
        (200, &Value::Null)
    );
}

/// What a JSON patch that was judged rests on.
#[tokio::test]
async fn a_patch_for_another_version_is_a_conflict() {
    let _calm = MEMBERS.read().await;
    let west = direct("west").await;
    let made = west
        .post(
            MAPS,
            &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "version"}}),
        )
        .await
        .unwrap();
    assert_eq!(made.status, 201, "{}", made.message());
    let operations = json!([
        {"op": "add", "path": "/data", "value": {"a": "b"}},
        {"op": "add", "path": "/metadata/resourceVersion", "value": "1"},
    ]);
    let headers = [("content-type", "application/json-patch+json")];
    let body = operations.to_string().into_bytes();
    let answer = west
        .call(Method::PATCH, &format!("{MAPS}/version"), &headers, &body)
        .await
        .unwrap();
    assert_eq!(answer.status, 409, "{}", answer.message());
}

#[tokio::test]
async fn an_owner_outside_the_shard_is_never_asked_for() {
    let _calm = MEMBERS.read().await;
    crate::world().await.namespace("west", "cw-victim").await.unwrap();
    let west = direct("west").await;
    let victim = west.get("/api/v1/namespaces/cw-victim", &[]).await.unwrap().json();
    let owned = |api_version: &str, kind: &str, name: &str, uid: &Value| {
        let mut object = child("outside", ("any", "any"));
        object["metadata"]["ownerReferences"] =
            json!([{"apiVersion": api_version, "kind": kind, "name": name, "uid": uid}]);
        object
    };
    let mut answers = Vec::new();
    for uid in [victim["metadata"]["uid"].clone(), json!("wrong")] {
        let refused = write(Method::POST, MAPS, &owned("v1", "Namespace", "cw-victim", &uid), JSON).await;
        refused
            .expect_status(403, &["Namespace cw-victim", "outside the caller's shard"])
            .unwrap();
        answers.push(refused.message());
    }
    assert_eq!(answers[0], answers[1], "no uid is told");
    for (api_version, kind, name) in [
        ("v1", "Namespace", "cw-victim/secrets/s1"),
        (
            "rbac.authorization.k8s.io/v1/namespaces/cw-victim/roles/x?",
            "ClusterRole",
            "x",
        ),
    ] {
        let refused = write(Method::POST, MAPS, &owned(api_version, kind, name, &json!("u")), JSON).await;
        refused.expect_status(422, &["metadata.ownerReferences"]).unwrap();
    }
}
