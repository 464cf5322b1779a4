//! The agent's Deployment in a member, and what keeps its Pod from running.

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::api::{Api, DynamicObject, ListParams};
use kube::{Client, ResourceExt as _};
use portolan_crds::labels::SYSTEM_NAMESPACE;
use serde_json::Value;

use crate::apply;

const MANIFEST: &str = include_str!("../../../../deploy/member/agent.yaml");
/// Where the image stands in it.
const IMAGE: &str = "/spec/template/spec/containers/0/image";
/// Which Pods are the agent's.
const PODS: &str = "app.kubernetes.io/name=portolan-agent";
/// What a container waits for that is only begun.
const BEGINS: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// The Deployment with this image.
pub(super) fn deployment(image: &str) -> anyhow::Result<DynamicObject> {
    let mut objects = apply::parse("deploy/member/agent.yaml", MANIFEST)?;
    let mut agent = objects.pop().context("deploy/member/agent.yaml is empty")?;
    let place = agent
        .data
        .pointer_mut(IMAGE)
        .context("deploy/member/agent.yaml has no image")?;
    *place = Value::from(image);
    Ok(agent)
}

/// Its image.
pub(super) fn image(deployment: &DynamicObject) -> &str {
    deployment
        .data
        .pointer(IMAGE)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// Why an agent's Pod does not run, as far as the cluster says.
pub(super) async fn trouble(member: &Client) -> Option<String> {
    let pods = Api::<Pod>::namespaced(member.clone(), SYSTEM_NAMESPACE);
    let pods = pods.list(&ListParams::default().labels(PODS)).await.ok()?;
    pods.items.iter().find_map(|pod| {
        let status = pod.status.as_ref()?;
        let waits = status.container_statuses.iter().flatten().find_map(waits);
        let unscheduled = || {
            let conditions = status.conditions.iter().flatten();
            let mut failed = conditions.filter(|one| one.type_ == "PodScheduled" && one.status == "False");
            failed.next().and_then(|one| one.message.clone())
        };
        let why = waits.or_else(unscheduled)?;
        Some(format!("Pod {SYSTEM_NAMESPACE}/{}: {why}", pod.name_any()))
    })
}

fn waits(container: &ContainerStatus) -> Option<String> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref().filter(|reason| !BEGINS.contains(reason))?;
    Some(match &waiting.message {
        Some(message) => format!("{reason}, {message}"),
        None => reason.to_owned(),
    })
}
