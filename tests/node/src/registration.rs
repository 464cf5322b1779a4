//! The Node object: what others see of the node, and the heartbeat by which they know that it is there.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use portolan_runtime::backoff::until_ok;
use portolan_runtime::{Backoff, Chain};
use serde_json::{Value, json};

use crate::isolation::Isolation;
use crate::machine::Machine;
use crate::reporter::MANAGER;

/// Annotation that says how far Pods are apart: `full`, `mounts` or `none`, and why it is not more.
pub const ISOLATION: &str = "node.portolan.dev/isolation";
/// Namespace of the heartbeats of nodes.
const LEASES: &str = "kube-node-lease";
/// As the kubelet has it: four beats in the life of a Lease.
const LEASE_SECONDS: u16 = 40;
const BEAT: Duration = Duration::from_secs(10);
/// How often the status is written when nothing changes.
const STATUS: Duration = Duration::from_mins(1);
/// More than any test asks for: nothing is enforced.
const CAPACITY: [(&str, &str); 4] = [
    ("cpu", "64"),
    ("memory", "256Gi"),
    ("ephemeral-storage", "1Ti"),
    ("pods", "250"),
];

/// What the Node says of itself.
#[derive(Clone, Debug)]
pub(crate) struct Presence {
    pub(crate) kubelet_port: u16,
    /// Why Pods are not as far apart as they might be.
    pub(crate) less: Option<String>,
}

/// Makes the Node what it says, and ready; tried until it works.
pub(crate) async fn register(machine: &Machine, presence: &Presence) {
    until_ok("register the Node", || async {
        let nodes = Api::<Node>::all(machine.client.clone());
        let params = PatchParams::apply(MANAGER).force();
        nodes
            .patch(&machine.node, &params, &Patch::Apply(node(machine, presence)))
            .await?;
        beat(machine).await?;
        write_status(machine, presence).await
    })
    .await;
}

/// Tells for ever that the node is there.
pub(crate) async fn keep(machine: &Machine, presence: &Presence) {
    let mut written = tokio::time::Instant::now();
    let mut backoff = Backoff::new(Duration::from_millis(200), BEAT);
    loop {
        tokio::time::sleep(BEAT).await;
        while let Err(error) = beat(machine).await {
            tracing::warn!(error = %Chain(&error), "cannot renew the Lease of the Node yet");
            backoff.sleep().await;
        }
        backoff.reset();
        if written.elapsed() >= STATUS {
            match write_status(machine, presence).await {
                Ok(()) => written = tokio::time::Instant::now(),
                Err(error) => tracing::warn!(error = %Chain(&error), "cannot write the status of the Node yet"),
            }
        }
    }
}

async fn beat(machine: &Machine) -> Result<(), kube::Error> {
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": machine.node},
        "spec": {
            "holderIdentity": machine.node,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": format!("{:.6}", Timestamp::now()),
        },
    });
    let leases = Api::<Lease>::namespaced(machine.client.clone(), LEASES);
    let params = PatchParams::apply(MANAGER).force();
    leases
        .patch(&machine.node, &params, &Patch::Apply(lease))
        .await
        .map(drop)
}

async fn write_status(machine: &Machine, presence: &Presence) -> Result<(), kube::Error> {
    let nodes = Api::<Node>::all(machine.client.clone());
    let params = PatchParams::apply(MANAGER).force();
    nodes
        .patch_status(&machine.node, &params, &Patch::Apply(status(machine, presence)))
        .await
        .map(drop)
}

fn node(machine: &Machine, presence: &Presence) -> Value {
    let level = match machine.isolation {
        Isolation::Full(_) => "full",
        Isolation::Mounts(_) => "mounts",
        Isolation::None => "none",
    };
    let less = presence.less.as_ref().map(|why| format!("{level}: {why}"));
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": machine.node,
            "annotations": {ISOLATION: less.as_deref().unwrap_or(level)},
            "labels": {
                "kubernetes.io/hostname": machine.node,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": architecture(),
            },
        },
    })
}

fn status(machine: &Machine, presence: &Presence) -> Value {
    let capacity: Value = CAPACITY
        .iter()
        .map(|(name, amount)| ((*name).to_owned(), Value::from(*amount)))
        .collect();
    let now = Timestamp::now().to_string();
    let condition = |kind: &str, holds: &str, reason: &str, message: &str| {
        json!({
            "type": kind, "status": holds, "reason": reason, "message": message,
            "lastHeartbeatTime": now, "lastTransitionTime": now,
        })
    };
    let shared = presence.less.as_deref().unwrap_or_default();
    let is_shared = if matches!(machine.isolation, Isolation::Full(_)) {
        "False"
    } else {
        "True"
    };
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": machine.node},
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": machine.address},
                {"type": "Hostname", "address": machine.node},
            ],
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": [
                condition("Ready", "True", "KubeletReady", "portolan-node runs Pods as processes"),
                condition("SharedNetwork", is_shared, "Namespaces", shared),
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": presence.kubelet_port}},
            // Without it the API server would speak SPDY to it.
            "declaredFeatures": ["ExtendWebSocketsToKubelet"],
            "nodeInfo": node_info(machine),
        },
    })
}

/// Much of it must be there, and nobody reads it.
fn node_info(machine: &Machine) -> Value {
    json!({
        "machineID": machine.node, "systemUUID": machine.node, "bootID": machine.node,
        "kernelVersion": "", "osImage": "this machine", "containerRuntimeVersion": "process://1",
        "kubeletVersion": "v1.36.3", "kubeProxyVersion": "",
        "operatingSystem": "linux", "architecture": architecture(),
    })
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
