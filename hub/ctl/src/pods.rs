//! What keeps Pods of Portolan in a member from running.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};
use portolan_crds::labels::SYSTEM_NAMESPACE;

/// Which Pods are the agent's.
pub(crate) const OF_AGENT: &str = "app.kubernetes.io/name=portolan-agent";
/// Which Pods are the hub's.
pub(crate) const OF_HUB: &str = "app.kubernetes.io/name=portolan-hub";
/// What a container waits for that is only begun.
const BEGINS: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// Whether there are such Pods, also such that are about to end.
pub(crate) async fn are_there(member: &Client, namespace: &str, selector: &str) -> Result<bool, kube::Error> {
    let pods = Api::<Pod>::namespaced(member.clone(), namespace);
    let found = pods
        .list_metadata(&ListParams::default().labels(selector).limit(1))
        .await?;
    Ok(!found.items.is_empty())
}

/// Why one of these Pods does not run, as far as the cluster says.
pub(crate) async fn trouble(member: &Client, selector: &str) -> Option<String> {
    let pods = Api::<Pod>::namespaced(member.clone(), SYSTEM_NAMESPACE);
    let pods = pods.list(&ListParams::default().labels(selector)).await.ok()?;
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
