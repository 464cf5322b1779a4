//! Running pods without a container runtime: KWOK plays the kubelet of one Node. Pods become Running at once, and
//! logs, attach, exec and port-forward answer.
//!
//! Its limits: attach, `exec -i` and `logs -f` never end by themselves, exit codes are lost, Job pods complete at
//! once, and exec runs its command on this machine, so keep to harmless ones. Port-forward echoes, on every port.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::control_plane::ControlPlane;

/// The one Node of a cluster.
pub(crate) const NODE: &str = "node-1";

/// What every container has printed so far, in CRI format.
const LOG: &str = "2026-01-01T00:00:00.000000000Z stdout F hello from the testbed\n\
                   2026-01-01T00:00:01.000000000Z stderr F this line went to stderr\n";

/// Writes KWOK's configuration: the stages of its own module, and what its endpoints answer.
pub(crate) fn write_config(plane: &ControlPlane) -> Result<PathBuf> {
    let log = plane.folder.join("containers.log");
    fs::write(&log, LOG).with_context(|| format!("writing {}", log.display()))?;
    let mut documents = stages(plane)?;
    let endpoints = [
        ("ClusterExec", json!({"execs": [{"local": {"workDir": plane.folder}}]})),
        ("ClusterLogs", json!({"logs": [{"logsFile": log}]})),
        ("ClusterAttach", json!({"attaches": [{"logsFile": log}]})),
        ("ClusterPortForward", json!({"forwards": [{"command": ["cat"]}]})),
    ];
    for (kind, spec) in endpoints {
        let endpoint: Value = json!({
            "apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": kind, "metadata": {"name": "all"}, "spec": spec,
        });
        documents.push(endpoint.to_string());
    }
    let config = plane.folder.join("kwok.yaml");
    fs::write(&config, documents.join("\n---\n")).with_context(|| format!("writing {}", config.display()))?;
    Ok(config)
}

fn stages(plane: &ControlPlane) -> Result<Vec<String>> {
    let folder = plane.tools.join("extras");
    let entries = fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?;
    let read = |entry: std::io::Result<fs::DirEntry>| Ok(fs::read_to_string(entry?.path())?);
    entries.map(read).collect()
}

/// Creates the Node, or leaves it as it is.
pub(crate) async fn apply_node(client: Client) -> Result<(), kube::Error> {
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": NODE,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {"kubernetes.io/hostname": NODE, "kubernetes.io/os": "linux"},
        },
    });
    let params = PatchParams::apply("portolan-testbed").force();
    Api::<Node>::all(client)
        .patch(NODE, &params, &Patch::Apply(node))
        .await
        .map(drop)
}

/// Ready, and free of the taint that new nodes carry.
pub(crate) fn is_schedulable(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True") && taints.count() == 0
}
