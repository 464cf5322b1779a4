//! In which member an object without a namespace is made: that of its owners, else that of its annotation, else the primary. By POST
//! and by apply, in JSON, YAML and protobuf, and never in two.

use http::Method;
use portolan_testbed::{Fault, eventually};
use portolan_tests::door::{Answer, request};
use serde_json::{Value, json};

use crate::{MEMBERS, ROLES, direct, door, merge_patch, role, world};

const APPLY: &str = "application/apply-patch+yaml";
const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// A ClusterRole with these owners: kind, name and uid.
fn new(name: &str, owners: &[(&str, &str, &str)]) -> Value {
    let owners = owners.iter().map(|(kind, name, uid)| {
        let group = if *kind == "ClusterRole" {
            "rbac.authorization.k8s.io/"
        } else {
            ""
        };
        json!({"apiVersion": format!("{group}v1"), "kind": kind, "name": name, "uid": uid})
    });
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": name, "ownerReferences": owners.collect::<Vec<_>>()}, "rules": [],
    })
}

fn annotated(name: &str, cluster: &str) -> Value {
    let mut object = new(name, &[]);
    object["metadata"]["annotations"] = json!({"ctrlmesh.kusionstack.io/cluster": cluster});
    object
}

async fn post(object: &Value) -> Answer {
    door("wide").await.post(ROLES, object).await.unwrap()
}

async fn send(method: Method, path: &str, content_type: &str, body: &[u8]) -> Answer {
    let asked = request(method, path, &[("content-type", content_type)], body);
    door("wide").await.ask(asked.unwrap()).await.unwrap()
}

async fn uid_in(member: &str, path: &str) -> String {
    let object = direct(member).await.get(path, &[]).await.unwrap();
    assert_eq!(object.status, 200, "{path} in {member}: {}", object.message());
    object.json()["metadata"]["uid"].as_str().unwrap().to_owned()
}

/// The members that have a ClusterRole of this name.
async fn members_with(name: &str) -> Vec<&'static str> {
    let mut have = Vec::new();
    for member in ["east", "west"] {
        let path = format!("{ROLES}/{name}");
        match direct(member).await.get(&path, &[]).await.unwrap().status {
            200 => have.push(member),
            status => assert_eq!(status, 404, "{member}"),
        }
    }
    have
}

#[tokio::test]
async fn an_object_is_made_beside_its_owners() {
    let _calm = MEMBERS.read().await;
    let far = role("west", "beside", "beside-west").await;
    let namespace = uid_in("west", "/api/v1/namespaces/cw-w").await;
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "beside-volume"},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/nowhere"}},
    });
    let volume = direct("west")
        .await
        .post("/api/v1/persistentvolumes", &volume)
        .await
        .unwrap();
    let volume = volume.json()["metadata"]["uid"].as_str().unwrap().to_owned();
    let role = ("ClusterRole", "beside-west", &*far);
    let (namespace, volume) = (
        ("Namespace", "cw-w", &*namespace),
        ("PersistentVolume", "beside-volume", &*volume),
    );
    for (name, owners) in [
        ("beside-role", &[role][..]),
        ("beside-namespace", &[namespace]),
        ("beside-all", &[role, namespace, volume]),
    ] {
        let dry = format!("{ROLES}?dryRun=All");
        let tried = door("wide").await.post(&dry, &new(name, owners)).await.unwrap();
        assert_eq!(tried.status, 201, "{}", tried.message());
        assert!(members_with(name).await.is_empty(), "{name}");
        let made = post(&new(name, owners)).await;
        assert_eq!(
            (made.status, made.header("warning")),
            (201, ""),
            "{name}: {}",
            made.message()
        );
        assert_eq!(members_with(name).await, ["west"], "{name}");
    }
    let mut unnamed = new("", &[volume]);
    unnamed["metadata"] = json!({"generateName": "beside-", "ownerReferences": unnamed["metadata"]["ownerReferences"]});
    let made = post(&unnamed).await;
    assert_eq!(made.status, 201, "{}", made.message());
    let name = made.json()["metadata"]["name"].as_str().unwrap().to_owned();
    assert_eq!(members_with(&name).await, ["west"]);

    // What is made in protobuf, as client-go does it: its bytes are those of a dry run of west's API server.
    let headers = [("content-type", JSON), ("accept", PROTOBUF)];
    let object = new("beside-bytes", &[role]).to_string();
    let dry = format!("{ROLES}?dryRun=All");
    let west = direct("west").await;
    let bytes = west.call(Method::POST, &dry, &headers, object.as_bytes());
    let bytes = bytes.await.unwrap().body;
    assert!(bytes.starts_with(b"k8s\0"));
    let made = send(Method::POST, ROLES, PROTOBUF, &bytes).await;
    assert_eq!(made.status, 201, "{}", made.message());
    assert_eq!(members_with("beside-bytes").await, ["west"]);
    // An update finds it there.
    let path = format!("{ROLES}/beside-bytes");
    let changed = merge_patch(&door("wide").await, &path, &json!({"metadata": {"labels": {"a": "b"}}})).await;
    assert_eq!(changed.status, 200, "{}", changed.message());
}

#[tokio::test]
async fn owners_in_two_members_are_refused() {
    let _calm = MEMBERS.read().await;
    let near = role("east", "beside", "apart-east").await;
    let far = role("west", "beside", "apart-west").await;
    let object = new(
        "apart",
        &[
            ("ClusterRole", "apart-east", &near),
            ("ClusterRole", "apart-west", &far),
        ],
    );
    let refused = post(&object).await;
    refused
        .expect_status(
            422,
            &[
                "apart-east is in member cluster east",
                "apart-west is in member cluster west",
            ],
        )
        .unwrap();
    let status = refused.json();
    assert_eq!(status["reason"], "Invalid");
    let causes = status["details"]["causes"].as_array().unwrap();
    assert_eq!(causes.len(), 2, "{causes:?}");
    for cause in causes {
        assert_eq!(cause["field"], "metadata.ownerReferences");
    }
    let path = format!("{ROLES}/apart?fieldManager=tests");
    let applied = send(Method::PATCH, &path, APPLY, object.to_string().as_bytes()).await;
    applied.expect_status(422, &["east", "west"]).unwrap();
    assert!(members_with("apart").await.is_empty());
    // kubectl says why.
    let kubectl = world().await.merged("wide");
    let ended = kubectl.run(&["create", "-f", "-"], &object.to_string()).await.unwrap();
    let said = ended.stderr;
    assert!(said.contains("apart-east is in member cluster east"), "{said}");
}

#[tokio::test]
async fn an_annotation_names_the_member() {
    let _calm = MEMBERS.read().await;
    let made = post(&annotated("named-west", "west")).await;
    assert_eq!(made.status, 201, "{}", made.message());
    assert_eq!(members_with("named-west").await, ["west"]);
    let refused = post(&annotated("named-mars", "mars")).await;
    refused
        .expect_status(
            422,
            &["metadata.annotations", "\"mars\"", "operators/wide", "east, west"],
        )
        .unwrap();
    assert!(members_with("named-mars").await.is_empty());
    // An owner comes first.
    let near = role("east", "beside", "named-owner").await;
    let mut object = new("named-owned", &[("ClusterRole", "named-owner", &near)]);
    object["metadata"]["annotations"] = annotated("", "west")["metadata"]["annotations"].clone();
    assert_eq!(post(&object).await.status, 201);
    assert_eq!(members_with("named-owned").await, ["east"]);
    // And nothing moves.
    let path = format!("{ROLES}/named-owned");
    let note =
        json!({"metadata": {"ownerReferences": null, "annotations": {"ctrlmesh.kusionstack.io/cluster": "west"}}});
    assert_eq!(merge_patch(&door("wide").await, &path, &note).await.status, 200);
    assert_eq!(members_with("named-owned").await, ["east"]);
}

#[tokio::test]
async fn an_apply_makes_an_object_beside_its_owners() {
    let _calm = MEMBERS.read().await;
    let far = role("west", "beside", "applied-owner").await;
    let object = new("applied", &[("ClusterRole", "applied-owner", &far)]);
    let path = format!("{ROLES}/applied?fieldManager=tests");
    for status in [201, 200] {
        let applied = send(Method::PATCH, &path, APPLY, object.to_string().as_bytes()).await;
        assert_eq!(applied.status, status, "{}", applied.message());
        assert_eq!(members_with("applied").await, ["west"]);
    }
    let yaml = serde_yaml_ng::to_string(&annotated("applied-yaml", "west")).unwrap();
    let kubectl = world().await.merged("wide");
    kubectl
        .ok_with(&["apply", "--server-side", "-f", "-"], &yaml)
        .await
        .unwrap();
    assert_eq!(members_with("applied-yaml").await, ["west"]);
    // One that is there stays, whatever is applied says by now.
    let moved = yaml.replace(": west", ": east");
    kubectl
        .ok_with(&["apply", "--server-side", "-f", "-"], &moved)
        .await
        .unwrap();
    assert_eq!(members_with("applied-yaml").await, ["west"]);
}

#[tokio::test]
async fn an_owner_that_may_be_in_a_member_that_is_away_is_waited_for() {
    let _alone = MEMBERS.write().await;
    let far = role("west", "beside", "away-owner").await;
    let west = world().await.cluster("west");
    let mut object = new("", &[("ClusterRole", "away-owner", &far)]);
    // Of a name that the API server makes no member is asked.
    object["metadata"]["generateName"] = json!("away-");
    object["metadata"].as_object_mut().unwrap().remove("name");
    let door = door("wide").await;
    let post = async |object: &Value| door.post(ROLES, object).await.unwrap();
    west.fault(Fault::Reset).await.unwrap();
    let refused = post(&object).await;
    refused
        .expect_status(503, &["away-owner", "member cluster west"])
        .unwrap();
    let near = role("east", "beside", "away-near").await;
    object["metadata"]["ownerReferences"] =
        new("", &[("ClusterRole", "away-near", &near)])["metadata"]["ownerReferences"].clone();
    let made = post(&object).await;
    assert_eq!(made.status, 201, "one that is found is in no other: {}", made.message());
    west.fault(Fault::None).await.unwrap();
    object["metadata"]["ownerReferences"][0] = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "name": "away-owner", "uid": far,
    });
    eventually("west is back", || async {
        let made = post(&object).await;
        (made.status == 201).then_some(())
    })
    .await;
}
