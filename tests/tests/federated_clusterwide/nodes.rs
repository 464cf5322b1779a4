//! Nodes, volumes and other objects of one name in both members: what a name does not tell apart is not written.

use http::Method;
use portolan_testbed::{Fault, eventually};
use portolan_tests::door::request;
use serde_json::{Value, json};

use crate::{MEMBERS, ROLES, direct, door, merge_patch, role, world};

const NODES: &str = "/api/v1/nodes";
const VIEWS: [&str; 2] = ["/clusters/east/", "/clusters/west/"];

/// Makes a Node in a member, past the router.
async fn node(member: &str, name: &str) {
    let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    let made = direct(member).await.post(NODES, &object).await.unwrap();
    assert_eq!(made.status, 201, "{}", made.message());
}

/// Makes a Pod on a Node in a member, past the router; returns its path.
async fn pod(member: &str, namespace: &str, node: &str) -> String {
    let object = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": node},
        "spec": {
            "nodeName": node, "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "registry.k8s.io/pause:3.10"}],
        },
    });
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let door = direct(member).await;
    eventually("a Pod is made", || async {
        let made = door.post(&pods, &object).await.unwrap();
        (made.status == 201).then_some(())
    })
    .await;
    format!("{pods}/{node}")
}

fn on(node: &str) -> String {
    format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}")
}

async fn is_cordoned(member: &str, name: &str) -> bool {
    let node = direct(member).await.get(&format!("{NODES}/{name}"), &[]).await.unwrap();
    node.json()["spec"]["unschedulable"] == json!(true)
}

#[tokio::test]
async fn a_node_of_two_members_is_not_drained() {
    let _calm = MEMBERS.read().await;
    let (twice, once) = ("cn-twice", "cn-once");
    for (member, name) in [("east", twice), ("west", twice), ("west", once)] {
        node(member, name).await;
    }
    let pods = [
        ("east", pod("east", "cw-e", twice).await),
        ("west", pod("west", "cw-w", twice).await),
    ];
    let single = pod("west", "cw-w", once).await;
    let door = door("wide").await;
    let refused = eventually("the Nodes' names are told", || async {
        let answer = door.get(&on(twice), &[]).await.unwrap();
        (answer.status != 200).then_some(answer)
    })
    .await;
    refused.expect_status(400, &VIEWS).unwrap();
    let watched = door.get(&format!("{}&watch=1", on(twice)), &[]).await.unwrap();
    watched.expect_status(400, &VIEWS).unwrap();
    let taken = door
        .call(
            Method::DELETE,
            &on(twice).replace("/v1/", "/v1/namespaces/cw-w/"),
            &[],
            &[],
        )
        .await
        .unwrap();
    taken.expect_status(400, &VIEWS).unwrap();
    let shown = door.get(&format!("{NODES}/{twice}"), &[]).await.unwrap();
    assert_eq!(shown.status, 200, "{}", shown.message());
    assert!(
        shown.header("warning").contains("/clusters/west/"),
        "{:?}",
        shown.header("warning")
    );

    let kubectl = world().await.merged("wide");
    let drain = |name| {
        [
            "drain",
            name,
            "--ignore-daemonsets",
            "--force",
            "--disable-eviction",
            "--grace-period=0",
        ]
    };
    let said = kubectl.refused(&drain(twice)).await.unwrap();
    assert!(said.contains("/clusters/east/"), "{said}");
    for (member, path) in &pods {
        assert!(!is_cordoned(member, twice).await, "{member}");
        assert_eq!(direct(member).await.get(path, &[]).await.unwrap().status, 200, "{path}");
    }
    // A name of one member is drained as ever.
    kubectl.ok(&drain(once)).await.unwrap();
    assert!(is_cordoned("west", once).await);
    assert_eq!(direct("west").await.get(&single, &[]).await.unwrap().status, 404);
}

#[tokio::test]
async fn a_volume_of_two_members_is_not_written() {
    const VOLUMES: &str = "/api/v1/persistentvolumes";
    let _calm = MEMBERS.read().await;
    let volume = |member: &str| {
        json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "cn-volume", "labels": {"of": member}},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "hostPath": {"path": format!("/tmp/{member}")},
            },
        })
    };
    for member in ["east", "west"] {
        let made = direct(member).await.post(VOLUMES, &volume(member)).await.unwrap();
        assert_eq!(made.status, 201, "{}", made.message());
    }
    let (door, path) = (door("wide").await, format!("{VOLUMES}/cn-volume"));
    let refused = merge_patch(&door, &path, &json!({"metadata": {"labels": {"a": "b"}}})).await;
    refused.expect_status(403, &[VIEWS[0], VIEWS[1], "cn-volume"]).unwrap();
    let shown = door.get(&path, &[]).await.unwrap();
    assert_eq!(shown.json()["metadata"]["labels"]["of"], "east");
}

#[tokio::test]
async fn what_another_member_has_is_not_made_again() {
    let _calm = MEMBERS.read().await;
    let door = door("wide").await;
    role("west", "twins", "twin-west").await;
    let new = |metadata: &Value| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": metadata, "rules": []});
    for path in [ROLES.to_owned(), format!("{ROLES}?dryRun=All")] {
        let refused = door.post(&path, &new(&json!({"name": "twin-west"}))).await.unwrap();
        refused
            .expect_status(409, &["\"twin-west\" already exists", "west"])
            .unwrap();
        assert_eq!(refused.json()["reason"], "AlreadyExists");
    }
    let kubectl = world().await.merged("wide");
    let said = kubectl
        .refused(&["create", "clusterrole", "twin-west", "--verb=get", "--resource=pods"])
        .await
        .unwrap();
    assert!(said.contains("already exists"), "{said}");
    let east = direct("east").await;
    assert_eq!(east.get(&format!("{ROLES}/twin-west"), &[]).await.unwrap().status, 404);
    for metadata in [json!({"name": "twin-new"}), json!({"generateName": "twin-"})] {
        let made = door.post(ROLES, &new(&metadata)).await.unwrap();
        assert_eq!((made.status, made.header("warning")), (201, ""), "{}", made.message());
    }
}

#[tokio::test]
async fn while_a_member_is_away_its_names_are_known_and_nothing_is_made_beside_it() {
    let _alone = MEMBERS.write().await;
    let name = "cn-away";
    for member in ["east", "west"] {
        node(member, name).await;
    }
    let door = door("wide").await;
    eventually("the Nodes' names are told", || async {
        (door.get(&on(name), &[]).await.unwrap().status == 400).then_some(())
    })
    .await;
    let west = world().await.cluster("west");
    west.fault(Fault::Reset).await.unwrap();
    let cordon = json!({"spec": {"unschedulable": true}});
    let refused = merge_patch(&door, &format!("{NODES}/{name}"), &cordon).await;
    refused.expect_status(403, &VIEWS).unwrap();
    let object = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "twin-away"}, "rules": [],
    });
    let asked = request(
        Method::POST,
        ROLES,
        &[("content-type", "application/json")],
        object.to_string().as_bytes(),
    );
    let refused = door.ask(asked.unwrap()).await.unwrap();
    refused
        .expect_status(503, &["twin-away", "member cluster west"])
        .unwrap();
    west.fault(Fault::None).await.unwrap();
    assert!(!is_cordoned("east", name).await);
    eventually("west is back", || async {
        let made = door.post(ROLES, &object).await.unwrap();
        (made.status == 201).then_some(())
    })
    .await;
}
