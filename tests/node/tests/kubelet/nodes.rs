//! Nodes that come and go, and nodes that have less than others.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use portolan_node::{Apart, ISOLATION, Lan, inside};
use serde_json::{Value, json};

use crate::world::{KUBECTL, SH, World, ip};

fn sleeper(node: &str) -> Value {
    let main = json!({"name": "main", "image": SH, "args": ["-c", "echo here; sleep 1000"]});
    json!({"nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [main]})
}

/// Asks the API server who it is.
fn whoami(node: &str) -> Value {
    let main = json!({"name": "main", "image": KUBECTL, "args": ["auth", "whoami"]});
    json!({"nodeName": node, "restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [main]})
}

#[test]
fn pods_of_a_node_that_comes_back_run_again() {
    inside(async {
        let world = World::shared().await;
        let room = world.room("nodes").await;
        let node = world.node("node-2", Lan::here().apart()).await;
        room.create("sleeper", sleeper("node-2")).await;
        room.create("done", whoami("node-2")).await;
        let before = room.until_ready("sleeper").await;
        room.until_phase("done", "Succeeded").await;
        node.stop().await;
        assert!(tokio::net::TcpStream::connect((ip(&before), 80)).await.is_err());
        let _node = world.node("node-2", Lan::here().apart()).await;
        let runs_again = |pod: &Pod| {
            let status = &pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0];
            status.restart_count == 1 && status.ready
        };
        room.until("sleeper", "it runs again", runs_again).await;
        // What had ended has ended.
        room.until_phase("done", "Succeeded").await;
        room.delete("done").await;
        room.delete("sleeper").await;
    });
}

#[test]
fn what_a_pod_of_a_cluster_reads_leads_it_to_its_api_server() {
    inside(async {
        let world = World::shared().await;
        let room = world.room("clients").await;
        for (node, apart, level) in [
            ("with-mounts", Some(Apart::Mounts), "mounts: "),
            ("with-nothing", Some(Apart::Nothing), "none: "),
            (crate::world::NODE, None, "full"),
        ] {
            let _node = match apart {
                Some(apart) => Some(world.node(node, apart).await),
                None => None,
            };
            let object = Api::<Node>::all(room.client.clone()).get(node).await.unwrap();
            let said = &object.metadata.annotations.unwrap()[ISOLATION];
            assert!(said.starts_with(level) || Lan::here().shared().is_some(), "{said}");
            room.create(node, whoami(node)).await;
            room.until_phase(node, "Succeeded").await;
            let said = world.kubectl(&["logs", "-n", "clients", node]).await;
            assert!(said.contains("system:serviceaccount:clients:default"), "{node}: {said}");
            room.delete(node).await;
        }
    });
}

#[test]
fn what_cannot_be_had_without_namespaces_is_told() {
    inside(async {
        let world = World::shared().await;
        let room = world.room("refused").await;
        let node = world.node("bare", Apart::Nothing).await;
        assert!(node.shares().is_some());
        let mut pod = sleeper("bare");
        pod["volumes"] = json!([{"name": "scratch", "emptyDir": {}}]);
        pod["containers"][0]["volumeMounts"] = json!([{"name": "scratch", "mountPath": "/scratch"}]);
        room.create("mounts", pod).await;
        let told = |pod: &Pod| format!("{:?}", pod.status).contains("nothing can be mounted at /scratch");
        room.until("mounts", "it says what is refused", told).await;
        room.delete("mounts").await;
        room.create("plain", sleeper("bare")).await;
        room.until_ready("plain").await;
        assert_eq!(
            world
                .kubectl(&["exec", "-n", "refused", "plain", "--", "echo", "hi"])
                .await,
            "hi\n"
        );
        room.delete("plain").await;
    });
}
