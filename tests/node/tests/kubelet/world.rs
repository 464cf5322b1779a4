//! One control plane with one node, for all tests of the suite; each has a namespace of its own.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use portolan_node::{Apart, Images, Lan, Node, Options, Pace, inside};
use portolan_testbed::{Cluster, Options as Clusters, Pods, Testbed, eventually, kubectl, tool};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;

/// The node that most Pods are on.
pub(crate) const NODE: &str = "node-1";
/// Image of a shell.
pub(crate) const SH: &str = "registry.example.com/sh:1";
/// Image of kubectl, a client that finds its cluster as all do that are made with client-go.
pub(crate) const KUBECTL: &str = "registry.example.com/kubectl:1";
/// Image of `pod-program`.
pub(crate) const PROGRAM: &str = "registry.example.com/pod-program:1";

pub(crate) struct World {
    pub(crate) node: Node,
    testbed: Testbed,
}

/// A namespace of one test.
pub(crate) struct Room {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) pods: Api<Pod>,
}

/// Runs a test of Pods that need networks and mounts; where those are refused there is nothing to see but what `nodes` tests.
#[track_caller]
pub(crate) fn in_networks(test: impl Future<Output = ()>) {
    // It has said why on standard error.
    if Lan::refused().is_none() {
        inside(test);
    }
}

impl World {
    pub(crate) async fn shared() -> &'static Self {
        static WORLD: OnceCell<World> = OnceCell::const_new();
        WORLD.get_or_init(|| async { Self::start().await.unwrap() }).await
    }

    async fn start() -> anyhow::Result<Self> {
        let lan = Lan::here();
        let testbed = Testbed::start_with(Clusters {
            clusters: vec!["east".to_owned()],
            pods: Pods::OnNodes,
            address: Some(lan.address()),
            ..Clusters::default()
        })
        .await?;
        let node = Node::start(options(&testbed, NODE, lan.apart())).await?;
        Ok(Self { node, testbed })
    }

    /// One more node. Pods come to it by its name alone.
    pub(crate) async fn node(&self, name: &str, apart: Apart) -> Node {
        Node::start(options(&self.testbed, name, apart)).await.unwrap()
    }

    pub(crate) fn east(&self) -> &Cluster {
        self.testbed.cluster("east")
    }

    /// A namespace with its ServiceAccount.
    pub(crate) async fn room(&self, name: &str) -> Room {
        let client = self.east().client().await.unwrap();
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        let namespace: Namespace = serde_json::from_value(namespace).unwrap();
        Api::all(client.clone())
            .create(&PostParams::default(), &namespace)
            .await
            .unwrap();
        let accounts = Api::<ServiceAccount>::namespaced(client.clone(), name);
        eventually("its ServiceAccount", || accounts.get("default")).await;
        Room {
            pods: Api::namespaced(client.clone(), name),
            client,
            namespace: name.to_owned(),
        }
    }

    /// What kubectl prints; stderr too.
    pub(crate) async fn kubectl(&self, args: &[&str]) -> String {
        let output = kubectl(self.east().kubeconfig_path())
            .args(args)
            .output()
            .await
            .unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    }
}

fn options(testbed: &Testbed, name: &str, apart: Apart) -> Options {
    Options {
        name: name.to_owned(),
        kubeconfig: testbed.cluster("east").direct_kubeconfig_path().to_owned(),
        images: Images::new()
            .with(SH, "/bin/sh")
            .with(KUBECTL, tool("kubectl"))
            .with(PROGRAM, env!("CARGO_BIN_EXE_pod-program")),
        apart,
        folder: testbed.dir().join(name),
        pace: Pace {
            first_pause: Duration::from_millis(200),
            refresh: Duration::from_millis(500),
            token_age: Duration::from_secs(2),
            ..Pace::default()
        },
    }
}

/// Selects a node.
pub(crate) fn on(node: &str) -> Value {
    json!({"kubernetes.io/hostname": node})
}

impl Room {
    pub(crate) async fn create(&self, name: &str, mut spec: Value) -> Pod {
        if spec.get("nodeName").is_none() {
            spec["nodeSelector"] = on(NODE);
        }
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": spec});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        self.pods.create(&PostParams::default(), &pod).await.unwrap()
    }

    /// Creates a Pod of one container that runs `script`.
    pub(crate) async fn sh(&self, name: &str, script: &str) -> Pod {
        let main = json!({"name": "main", "image": SH, "args": ["-c", script]});
        self.create(
            name,
            json!({"restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "containers": [main]}),
        )
        .await
    }

    /// Waits until `is` of the Pod.
    pub(crate) async fn until(&self, name: &str, what: &str, is: impl Fn(&Pod) -> bool) -> Pod {
        eventually(what, || async {
            let pod = self.pods.get(name).await.map_err(|error| error.to_string())?;
            if is(&pod) {
                Ok(pod)
            } else {
                Err(serde_json::to_string(&pod.status).unwrap())
            }
        })
        .await
    }

    pub(crate) async fn until_phase(&self, name: &str, phase: &str) -> Pod {
        self.until(name, &format!("{name} is {phase}"), |pod| self::phase(pod) == phase)
            .await
    }

    pub(crate) async fn until_ready(&self, name: &str) -> Pod {
        self.until(name, &format!("{name} is ready"), |pod| {
            condition(pod, "Ready") == "True"
        })
        .await
    }

    pub(crate) async fn delete(&self, name: &str) {
        self.pods.delete(name, &DeleteParams::default()).await.unwrap();
        self.until_gone(name).await;
    }

    pub(crate) async fn until_gone(&self, name: &str) {
        eventually("the Pod is gone", || async {
            self.pods.get_opt(name).await.is_ok_and(|found| found.is_none())
        })
        .await;
    }
}

pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

/// `True`, `False`, or nothing.
pub(crate) fn condition<'a>(pod: &'a Pod, kind: &str) -> &'a str {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let found = conditions.find(|condition| condition.type_ == kind);
    found.map(|condition| condition.status.as_str()).unwrap_or_default()
}

/// The address of a Pod that runs.
pub(crate) fn ip(pod: &Pod) -> Ipv4Addr {
    pod.status.as_ref().unwrap().pod_ip.as_deref().unwrap().parse().unwrap()
}

/// Asks `pod-program` for a path; the text of its answer, or the error that it told.
pub(crate) async fn ask(address: impl Into<SocketAddr>, path: &str) -> Result<String, String> {
    let address = address.into();
    let answer = async {
        let mut stream = TcpStream::connect(address).await?;
        stream
            .write_all(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes())
            .await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    let answer = answer.await.map_err(|error| format!("{address}: {error}"))?;
    let (head, text) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
    if head.starts_with("HTTP/1.1 200") {
        Ok(text.to_owned())
    } else {
        Err(text.to_owned())
    }
}
