//! Writes the status of one Pod, and at its end takes the object away: whatever the API server says meanwhile, the newest
//! status is what counts, and no container waits for it.

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client};
use portolan_runtime::{Backoff, Chain};
use serde_json::json;
use tokio::sync::watch;

/// Field manager of all that the node writes.
pub(crate) const MANAGER: &str = "portolan-node";
const NOT_FOUND: u16 = 404;

/// What is to be told of a Pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Told {
    pub(crate) status: Option<PodStatus>,
    /// Nothing of it runs any more, and it is to be deleted.
    pub(crate) finished: bool,
}

/// Writes until the other end is gone, or the object. A conflict is no end: it may be another write in between. If it is another
/// Pod of the same name, the worker learns of it by the watch, and ends this.
pub(crate) async fn run(client: Client, pod: &Pod, mut told: watch::Receiver<Told>) {
    let (name, namespace) = (pod.metadata.name.as_deref(), pod.metadata.namespace.as_deref());
    let (name, namespace) = (name.unwrap_or_default(), namespace.unwrap_or_default());
    let pods = Api::<Pod>::namespaced(client, namespace);
    let mut written = Told::default();
    let mut backoff = Backoff::default();
    loop {
        let now = told.borrow_and_update().clone();
        match write(&pods, pod, &written, &now).await {
            Ok(true) => {
                backoff.reset();
                written = now;
            }
            Ok(false) => return,
            Err(error) => {
                tracing::warn!(namespace, pod = name, error = %Chain(&error), "cannot write the status yet");
                backoff.sleep().await;
                continue;
            }
        }
        if told.changed().await.is_err() {
            return;
        }
    }
}

/// Writes what is new; false once there is no such Pod.
async fn write(pods: &Api<Pod>, pod: &Pod, written: &Told, now: &Told) -> Result<bool, kube::Error> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    if now.status != written.status {
        // The uid: what has the same name later is another Pod.
        let patch = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "uid": pod.metadata.uid},
            "status": now.status,
        });
        let params = PatchParams::apply(MANAGER).force();
        match pods.patch_status(name, &params, &Patch::Apply(patch)).await {
            Err(kube::Error::Api(status)) if status.code == NOT_FOUND => return Ok(false),
            outcome => drop(outcome?),
        }
    }
    if now.finished && !written.finished {
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions {
                uid: pod.metadata.uid.clone(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        match pods.delete(name, &params).await {
            Err(kube::Error::Api(status)) if status.code == NOT_FOUND => return Ok(false),
            outcome => drop(outcome?),
        }
    }
    Ok(true)
}
