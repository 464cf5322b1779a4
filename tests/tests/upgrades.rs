//! Into Pods: logs, exec, attach, port-forward and cp through both views, as kubectl and kube-rs do them. KWOK plays the
//! kubelet; that bytes pass exactly and half-closes too is proved in the router against a scripted backend.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "also in functions that only tests call"
)]

use std::process::Stdio;

use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::AttachParams;
use portolan_testbed::{eventually, patience};
use portolan_tests::door::Door;
use portolan_tests::kubectl::Kubectl;
use portolan_tests::shard::federated;
use portolan_tests::world::{Plan, Shared, World};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;

static WORLD: Shared = Shared::const_new();
static POD: OnceCell<()> = OnceCell::const_new();

const EXECS: usize = 36;
const AT_A_TIME: usize = 12;

async fn world() -> &'static World {
    let manifests = federated("ops", "east", &[("east", &["pods-a"])]);
    let plan = Plan {
        members: &["east"],
        namespaces: &["east/pods-a", "east/pods-b"],
        manifests: &manifests,
        pods: true,
        ..Plan::default()
    };
    let world = World::shared(&WORLD, plan).await;
    POD.get_or_init(|| async {
        for namespace in ["pods-a", "pods-b"] {
            let pod = json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "box", "namespace": namespace},
                "spec": {"containers": [{"name": "main", "image": "x:1", "ports": [{"containerPort": 80}]}]},
            });
            let direct = world.direct("east");
            // The controllers need a moment to make the namespace's ServiceAccount.
            let apply = async || direct.ok_with(&["apply", "-f", "-"], &pod.to_string()).await;
            eventually("the Pod is made", apply).await;
            let ready = [
                "wait",
                "--for=condition=Ready",
                "pod/box",
                "-n",
                namespace,
                "--timeout=240s",
            ];
            direct.ok(&ready).await.unwrap();
        }
    })
    .await;
    world
}

/// kubectl on both views, in the Pod's namespace.
async fn views() -> [Kubectl; 2] {
    let world = world().await;
    [world.explicit("east"), world.merged("ops")].map(|kubectl| kubectl.with("--namespace=pods-a"))
}

#[tokio::test]
async fn logs_are_read_and_followed() {
    for kubectl in views().await {
        let logs = kubectl.ok(&["logs", "box"]).await.unwrap();
        assert!(
            logs.contains("hello from the testbed") && logs.contains("went to stderr"),
            "{logs}"
        );
        let tail = kubectl.ok(&["logs", "box", "--tail=1"]).await.unwrap();
        assert!(!tail.contains("hello from the testbed"), "{tail}");
        let line = first_line(&kubectl, &["logs", "box", "-f"]).await;
        assert_eq!(line, "hello from the testbed");
    }
}

/// What a command that does not end prints first.
async fn first_line(kubectl: &Kubectl, arguments: &[&str]) -> String {
    let mut child = kubectl.command(arguments).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = tokio::time::timeout(patience(), lines.next_line()).await;
    child.kill().await.unwrap();
    line.unwrap().unwrap().unwrap()
}

#[tokio::test]
async fn exec_by_websocket_and_spdy() {
    for kubectl in views().await {
        let hi = kubectl.ok(&["exec", "box", "--", "echo", "hi there"]).await.unwrap();
        assert_eq!(hi, "hi there\n");
        let large = kubectl.ok(&["exec", "box", "--", "seq", "1", "40000"]).await.unwrap();
        assert!(
            large.ends_with("\n39999\n40000\n") && large.len() == 228_894,
            "{}",
            large.len()
        );
        let spdy = kubectl
            .command(&["exec", "box", "--", "echo", "by spdy"])
            .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false")
            .output()
            .await
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&spdy.stdout), "by spdy\n", "{:?}", spdy.stderr);
        let missing = kubectl.refused(&["exec", "none", "--", "true"]).await.unwrap();
        assert!(missing.contains("pods \"none\" not found"), "{missing}");
    }
}

#[tokio::test]
async fn files_are_copied_out() {
    let folder = tempfile::tempdir().unwrap();
    // exec runs on this machine, in a folder of the testbed's.
    let source = folder.path().join("source");
    let content = "a line of the file\n".repeat(20_000);
    std::fs::write(&source, &content).unwrap();
    for (at, kubectl) in views().await.into_iter().enumerate() {
        let target = folder.path().join(format!("target-{at}"));
        let from = format!("box:{}", source.display());
        kubectl.ok(&["cp", &from, target.to_str().unwrap()]).await.unwrap();
        assert_eq!(std::fs::read_to_string(&target).unwrap(), content);
    }
}

#[tokio::test]
async fn ports_are_forwarded() {
    for kubectl in views().await {
        for websockets in ["true", "false"] {
            let mut child = kubectl
                .command(&["port-forward", "pod/box", ":80", "--address=127.0.0.1"])
                .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", websockets)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            let line = tokio::time::timeout(patience(), lines.next_line())
                .await
                .unwrap()
                .unwrap()
                .unwrap();
            let port: u16 = line
                .split("127.0.0.1:")
                .nth(1)
                .unwrap()
                .split(' ')
                .next()
                .unwrap()
                .parse()
                .unwrap();
            for round in 0..3_u8 {
                let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                let sent: Vec<u8> = (round..=250).cycle().take(100_000).collect();
                let (mut read_half, mut write_half) = stream.split();
                let mut echoed = vec![0; sent.len()];
                let both = async {
                    tokio::try_join!(write_half.write_all(&sent), read_half.read_exact(&mut echoed)).unwrap();
                };
                tokio::time::timeout(patience(), both).await.unwrap();
                assert!(echoed == sent, "round {round}");
            }
            child.kill().await.unwrap();
        }
    }
}

#[tokio::test]
async fn dozens_of_execs_at_a_time() {
    let world = world().await;
    let explicit = world
        .client(world.fleet.explicit_kubeconfig(), Some("east"))
        .await
        .unwrap();
    let merged = world.client(world.fleet.merged_kubeconfig("ops"), None).await.unwrap();
    let one = |number: usize| {
        let client = if number.is_multiple_of(2) { &explicit } else { &merged };
        let pods: Api<Pod> = Api::namespaced(client.clone(), "pods-a");
        async move {
            let word = format!("number {number}");
            let mut process = pods
                .exec("box", ["echo", &word], &AttachParams::default().stderr(false))
                .await
                .unwrap();
            let mut said = String::new();
            process.stdout().unwrap().read_to_string(&mut said).await.unwrap();
            assert_eq!(said, format!("{word}\n"));
        }
    };
    let all = stream::iter((0..EXECS).map(one)).buffer_unordered(AT_A_TIME).count();
    assert_eq!(tokio::time::timeout(patience(), all).await.unwrap(), EXECS);
}

#[tokio::test]
async fn enforcement_holds_for_exec_too() {
    let world = world().await;
    for arguments in [
        &["exec", "box", "--", "echo", "in"][..],
        &["logs", "box"],
        &["attach", "box"],
    ] {
        let refusal = world
            .merged("ops")
            .with("--namespace=pods-b")
            .refused(arguments)
            .await
            .unwrap();
        assert!(
            refusal.contains("namespace pods-b is outside shard operators/ops"),
            "{arguments:?}: {refusal}"
        );
    }
    let door = world.merged_door("ops").await.unwrap();
    let answer = upgrade(&door, "/api/v1/namespaces/pods-b/pods/box/exec?command=echo&stdout=1")
        .await
        .1;
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
}

/// KWOK's attach says nothing, but it switches protocols, and stays.
#[tokio::test]
async fn attach_is_a_connection() {
    let world = world().await;
    let path = "/api/v1/namespaces/pods-a/pods/box/attach?stdout=true";
    for door in [
        world.explicit_door("east").await.unwrap(),
        world.merged_door("ops").await.unwrap(),
    ] {
        let (_stream, head) = upgrade(&door, path).await;
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    }
}

/// A WebSocket as Java clients open their watches.
#[tokio::test]
async fn watches_by_websocket() {
    let world = world().await;
    let door = world.explicit_door("east").await.unwrap();
    let path = "/api/v1/namespaces/pods-a/configmaps?watch=true&labelSelector=by-websocket&timeoutSeconds=600";
    let (mut stream, head) = upgrade(&door, path).await;
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    let make = ["create", "configmap", "framed", "-n", "pods-a"];
    world.direct("east").ok(&make).await.unwrap();
    let label = ["label", "configmap", "framed", "by-websocket=1", "-n", "pods-a"];
    world.direct("east").ok(&label).await.unwrap();
    let mut seen = head.into_bytes();
    let contains = |seen: &[u8]| String::from_utf8_lossy(seen).contains("\"name\":\"framed\"");
    while !contains(&seen) {
        let mut more = vec![0; 4096];
        let read = tokio::time::timeout(patience(), stream.read(&mut more))
            .await
            .unwrap()
            .unwrap();
        assert!(read > 0, "it ended: {:?}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&more[..read]);
    }
    assert!(String::from_utf8_lossy(&seen).contains("\"type\":\"ADDED\""));
}

type Tls = tokio_rustls::client::TlsStream<TcpStream>;

/// Asks for a WebSocket; the connection, and what came first.
async fn upgrade(door: &Door, path: &str) -> (Tls, String) {
    let mut stream = door.connect("http/1.1").await.unwrap();
    let token = door
        .token
        .as_ref()
        .map(|token| format!("Authorization: Bearer {}\r\n", token.trim()));
    let head = format!(
        "GET {}{path} HTTP/1.1\r\nHost: {}\r\nOrigin: https://example\r\n{}Connection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
        door.prefix,
        door.address,
        token.unwrap_or_default()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut first = vec![0; 4096];
    let read = tokio::time::timeout(patience(), stream.read(&mut first))
        .await
        .unwrap()
        .unwrap();
    (stream, String::from_utf8_lossy(&first[..read]).into_owned())
}
