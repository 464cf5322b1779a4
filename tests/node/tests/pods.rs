//! Pods on a node, on a real control plane.
#![allow(clippy::unwrap_used, reason = "also in functions that only tests call")]

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use portolan_node::{Images, Node, Options, Pace};
use portolan_testbed::{Options as Clusters, Pods, Testbed, eventually};
use serde_json::json;

#[tokio::test]
async fn a_pod_runs_to_its_end_and_is_deleted() {
    let testbed = Testbed::start_with(Clusters {
        clusters: vec!["east".to_owned()],
        pods: Pods::OnNodes,
        ..Clusters::default()
    })
    .await
    .unwrap();
    let east = testbed.cluster("east");
    let node = Node::start(Options {
        name: "node-1".to_owned(),
        kubeconfig: east.direct_kubeconfig_path().to_owned(),
        images: Images::new().with("sh", "/bin/sh"),
        network: None,
        folder: testbed.dir().join("node-1"),
        pace: Pace::default(),
    })
    .await
    .unwrap();
    println!("{:?}", node.shares());
    let pods = Api::<Pod>::namespaced(east.client().await.unwrap(), "default");
    for (name, script) in [
        ("short", "echo hello; exit 0"),
        ("long", "trap 'exit 3' TERM; sleep 100 & wait"),
    ] {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {
                "automountServiceAccountToken": false, "restartPolicy": "Never",
                "containers": [{"name": "main", "image": "sh", "args": ["-c", script]}],
            },
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        pods.create(&PostParams::default(), &pod).await.unwrap();
        let wanted = if name == "short" { "Succeeded" } else { "Running" };
        eventually("the phase", || async {
            let pod = pods.get(name).await.map_err(|error| error.to_string())?;
            let status = pod.status.unwrap();
            if status.phase.as_deref() == Some(wanted) {
                Ok(())
            } else {
                Err(format!("{status:?}"))
            }
        })
        .await;
        println!("{name} {:?}", pods.get(name).await.unwrap().status);
        pods.delete(name, &DeleteParams::default()).await.unwrap();
        eventually("it is gone", || async { pods.get_opt(name).await.unwrap().is_none() }).await;
    }
    drop(node);
}
