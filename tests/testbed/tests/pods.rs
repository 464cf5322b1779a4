//! Pods that run, as far as an API client can tell.
#![allow(clippy::unwrap_used, reason = "also in functions that only tests call")]

use std::process::Stdio;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use portolan_testbed::{Cluster, Options, Pods, Testbed, eventually, kubectl};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

async fn output(cluster: &Cluster, args: &[&str]) -> String {
    let output = kubectl(cluster.kubeconfig_path()).args(args).output().await.unwrap();
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

/// Sends `question` to a port of the pod through `kubectl port-forward` and reads as many bytes back.
async fn ask_through_port_forward(cluster: &Cluster, question: &[u8]) -> Vec<u8> {
    let mut kubectl = kubectl(cluster.kubeconfig_path());
    let mut forward = kubectl
        .args(["port-forward", "pod/web", ":8080"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(forward.stdout.take().unwrap()).lines();
    let line = lines.next_line().await.unwrap().unwrap();
    let address = line
        .split(' ')
        .find(|word| word.starts_with("127.0.0.1:"))
        .unwrap()
        .to_owned();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(question).await.unwrap();
    let mut answer = vec![0; question.len()];
    stream.read_exact(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn pods_run_log_exec_and_forward() {
    let clusters = vec!["east".to_owned()];
    let testbed = Testbed::start_with(Options {
        clusters,
        pods: Pods::Pretended,
        ..Options::default()
    })
    .await
    .unwrap();
    let east = testbed.cluster("east");
    let pods = Api::<Pod>::namespaced(east.client().await.unwrap(), "default");
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
        "spec": {"containers": [{"name": "web", "image": "none"}]},
    });
    let pod: Pod = serde_json::from_value(pod).unwrap();
    let uid = pods
        .create(&PostParams::default(), &pod)
        .await
        .unwrap()
        .metadata
        .uid
        .unwrap();
    eventually("the pod runs", || async {
        let pod = pods.get("web").await.map_err(|error| error.to_string())?;
        let phase = pod.status.and_then(|status| status.phase);
        if phase.as_deref() == Some("Running") {
            Ok(())
        } else {
            Err(format!("{phase:?}"))
        }
    })
    .await;

    let logs = output(east, &["logs", "web"]).await;
    assert!(logs.contains("hello from the testbed"), "{logs}");
    let said = output(east, &["exec", "web", "--", "echo", "from the pod"]).await;
    assert!(said.contains("from the pod"), "{said}");
    assert_eq!(ask_through_port_forward(east, b"an echo?").await, b"an echo?");
    let token = east
        .issue_token("default", "default", &["portolan"], Some(("web", &uid)))
        .await;
    assert!(token.is_ok(), "{token:?}");
}
