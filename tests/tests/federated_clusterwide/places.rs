//! Which member an object without a namespace is read from and written to, and where a new Namespace goes.

use serde_json::json;

use crate::{MEMBERS, ROLES, delete, direct, door, merge_patch, put, role, world};

#[tokio::test]
async fn an_object_is_read_and_written_where_it_is() {
    let _calm = MEMBERS.read().await;
    let (door, west, east) = (door("wide").await, direct("west").await, direct("east").await);
    let path = format!("{ROLES}/places-west");
    let uid = role("west", "places", "places-west").await;
    let got = door.get(&path, &[]).await.unwrap();
    assert_eq!(got.json()["metadata"]["uid"], *uid, "{}", got.message());
    let patched = merge_patch(&door, &path, &json!({"metadata": {"labels": {"patched": "yes"}}})).await;
    assert_eq!(patched.status, 200, "{}", patched.message());
    let mut object = west.get(&path, &[]).await.unwrap().json();
    assert_eq!(object["metadata"]["labels"]["patched"], "yes");
    object["metadata"]["labels"]["put"] = json!("yes");
    let updated = put(&door, &path, &object).await;
    assert_eq!(updated.status, 200, "{}", updated.message());
    let object = west.get(&path, &[]).await.unwrap().json();
    assert_eq!(
        (&object["metadata"]["labels"]["put"], &object["metadata"]["uid"]),
        (&json!("yes"), &json!(uid))
    );
    assert_eq!(east.get(&path, &[]).await.unwrap().status, 404, "never the primary's");
    let deleted = delete(&door, &path).await;
    assert_eq!(deleted.status, 200, "{}", deleted.message());
    assert_eq!(west.get(&path, &[]).await.unwrap().status, 404);
    door.get(&path, &[])
        .await
        .unwrap()
        .expect_status(404, &["places-west"])
        .unwrap();
}

#[tokio::test]
async fn what_both_have_is_the_primarys() {
    let _calm = MEMBERS.read().await;
    let (door, west) = (door("wide").await, direct("west").await);
    let path = format!("{ROLES}/places-both");
    let first = role("east", "places", "places-both").await;
    let second = role("west", "places", "places-both").await;
    let got = door.get(&path, &[]).await.unwrap().json();
    assert_eq!(got["metadata"]["uid"], *first);
    assert_eq!(delete(&door, &path).await.status, 200);
    // The other one was not touched, and is now what the name says.
    assert_eq!(west.get(&path, &[]).await.unwrap().json()["metadata"]["uid"], *second);
    let got = door.get(&path, &[]).await.unwrap().json();
    assert_eq!(got["metadata"]["uid"], *second);
}

#[tokio::test]
async fn what_nobody_has_is_applied_to_the_primary() {
    let _calm = MEMBERS.read().await;
    let world = world().await;
    let role = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: places-new}\nrules: []\n";
    let apply = ["apply", "--server-side", "-f", "-"];
    // Created, and then found where it was.
    for _ in 0..2 {
        world.merged("wide").ok_with(&apply, role).await.unwrap();
        world
            .direct("east")
            .ok(&["get", "clusterrole", "places-new"])
            .await
            .unwrap();
        world
            .direct("west")
            .refused(&["get", "clusterrole", "places-new"])
            .await
            .unwrap();
    }
    // What the other member has is applied there.
    world
        .direct("west")
        .ok_with(&apply, &role.replace("new", "old"))
        .await
        .unwrap();
    let more = role.replace("new", "old").replace("}\n", ", labels: {a: b}}\n");
    world.merged("wide").ok_with(&apply, &more).await.unwrap();
    let label = [
        "get",
        "clusterrole",
        "places-old",
        "-o",
        "jsonpath={.metadata.labels.a}",
    ];
    assert_eq!(world.direct("west").ok(&label).await.unwrap(), "b");
    world.direct("east").refused(&label).await.unwrap();
}

#[tokio::test]
async fn a_namespace_goes_where_its_annotation_says() {
    let _calm = MEMBERS.read().await;
    let door = door("chosen").await;
    let namespace = |name: &str, cluster: &str| {
        json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {
                "name": name, "labels": {"crew": "chosen"},
                "annotations": {"ctrlmesh.kusionstack.io/cluster": cluster},
            },
        })
    };
    let refused = door
        .post("/api/v1/namespaces", &namespace("cc-none", "north"))
        .await
        .unwrap();
    refused.expect_status(400, &["north", "east, west"]).unwrap();
    let made = door
        .post("/api/v1/namespaces", &namespace("cc-new", "west"))
        .await
        .unwrap();
    assert_eq!(made.status, 201, "{}", made.message());
    let path = "/api/v1/namespaces/cc-new";
    let there = direct("west").await.get(path, &[]).await.unwrap();
    assert_eq!(there.json()["metadata"]["uid"], made.json()["metadata"]["uid"]);
    assert_eq!(direct("east").await.get(path, &[]).await.unwrap().status, 404);
    // The answer came when the hub had given it to the shard: it is the caller's to write to, at once.
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "in-it"}});
    let maps = format!("{path}/configmaps");
    let inside = door.post(&maps, &object).await.unwrap();
    assert_eq!(inside.status, 201, "{}", inside.message());
    let stored = direct("west").await.get(&format!("{maps}/in-it"), &[]).await.unwrap();
    assert_eq!(stored.status, 200, "{}", stored.message());
}

const CREW: &str = "apiVersion: v1\nkind: Namespace\nmetadata: {name: NAME, labels: {crew: chosen}}\n";

#[tokio::test]
async fn a_namespace_comes_and_goes_as_on_one_api_server() {
    let _calm = MEMBERS.read().await;
    let (world, door) = (world().await, door("chosen").await);
    let path = |name: &str| format!("/api/v1/namespaces/{name}");
    for (name, apply) in [
        ("cc-client", &["apply", "-f", "-"][..]),
        ("cc-server", &["apply", "--server-side", "-f", "-"][..]),
    ] {
        let got = door.get(&path(name), &[]).await.unwrap();
        got.expect_status(404, &[&format!("namespaces \"{name}\" not found")])
            .unwrap();
        assert_eq!(delete(&door, &path(name)).await.status, 404);
        // West takes what is labelled so, and east does not. Whoever comes back finds it.
        for _ in 0..2 {
            world
                .merged("chosen")
                .ok_with(apply, &CREW.replace("NAME", name))
                .await
                .unwrap();
        }
        world
            .merged("chosen")
            .ok(&["create", "configmap", "a", "-n", name])
            .await
            .unwrap();
        let there = direct("west").await.get(&path(name), &[]).await.unwrap();
        assert_eq!(there.status, 200, "{}", there.message());
        assert_eq!(delete(&door, &path(name)).await.status, 200);
    }
    let untaken = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "cc-untaken"}});
    let refused = door.post("/api/v1/namespaces", &untaken).await.unwrap();
    refused
        .expect_status(403, &["cc-untaken", "cc-e", "crew=chosen"])
        .unwrap();
    // There, and nobody's.
    let refused = door.get(&path("default"), &[]).await.unwrap();
    refused.expect_status(403, &["default", "no shard owns it"]).unwrap();
}

#[tokio::test]
async fn a_collection_is_deleted_in_every_member() {
    let _calm = MEMBERS.read().await;
    let door = door("wide").await;
    for (member, name) in [
        ("east", "gone-east"),
        ("west", "gone-west"),
        ("west", "gone-both"),
        ("east", "gone-both"),
    ] {
        role(member, "gone", name).await;
    }
    role("west", "stays", "stays-west").await;
    // A cursor says nothing to a member.
    let list = door.get(ROLES, &[]).await.unwrap().json();
    let cursor = list["metadata"]["resourceVersion"].as_str().unwrap();
    let got = door
        .get(&format!("{ROLES}/gone-west?resourceVersion={cursor}"), &[])
        .await
        .unwrap();
    assert_eq!(got.status, 200, "{}", got.message());
    let gone = format!("{ROLES}?labelSelector=test%3Dgone&resourceVersion={cursor}&resourceVersionMatch=NotOlderThan");
    let deleted = delete(&door, &gone).await;
    assert_eq!(deleted.status, 200, "{}", deleted.message());
    assert_eq!(deleted.json()["status"], "Success");
    for member in ["east", "west"] {
        let left = direct(member)
            .await
            .get(&format!("{ROLES}?labelSelector=test%3Dgone"), &[])
            .await
            .unwrap();
        assert_eq!(left.json()["items"], json!([]), "{member}");
    }
    let stays = door.get(&format!("{ROLES}/stays-west"), &[]).await.unwrap();
    assert_eq!(stays.status, 200, "{}", stays.message());
    // As any API server says it.
    let refused = delete(&door, "/api/v1/configmaps").await;
    refused.expect_status(405, &["namespace in the path"]).unwrap();
    assert_eq!(delete(&direct("east").await, "/api/v1/configmaps").await.status, 405);
}
