//! Whether the Deployment that runs this replica runs it as it is to be from now on: then a replica of before that leads by other
//! settings gives way. A rolling update waits for new Pods to be ready before it ends old ones, and a replica whose settings differ
//! from the leader's never is.

use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Client};
use portolan_runtime::Chain;
use tokio::time::Instant;

/// Counts the templates of a Deployment, on it and on the ReplicaSet of each; a template of before that is taken up again has the
/// next number.
const REVISION: &str = "deployment.kubernetes.io/revision";
/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// A request that takes longer has failed.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// One of a Deployment's templates, as a Pod is of it.
struct Template {
    deployment: String,
    revision: String,
    /// A container of the Pod has ended before.
    restarted: bool,
}

/// Why it is not known.
#[derive(Debug, thiserror::Error)]
enum LookError {
    #[error("cannot read the Pod, its ReplicaSet or their Deployment")]
    Kube(#[from] kube::Error),
    #[error("the Pod, its ReplicaSet or their Deployment was not read in time")]
    Late,
}

/// The Deployment of one replica, as far as it is one of a Deployment.
pub(super) struct Rollout {
    client: Client,
    namespace: String,
    /// Of this replica.
    pod: Option<String>,
    next: Instant,
}

impl Rollout {
    pub(super) fn new(client: Client, namespace: &str, pod: Option<String>) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            pod,
            next: Instant::now(),
        }
    }

    /// Whether this replica is of the Deployment's present template, and the Pod `theirs` of one before; also false where that is not known,
    /// and when it was just looked. One that has ended before may be unable to lead, and takes no other down.
    pub(super) async fn replaces(&mut self, theirs: &str) -> bool {
        let Some(ours) = self.pod.clone().filter(|_| Instant::now() >= self.next) else {
            return false;
        };
        self.next = Instant::now() + LOOK_EVERY;
        Box::pin(self.look(&ours, theirs)).await.unwrap_or_else(|error| {
            tracing::warn!(error = %Chain(&error), "it is not known whether the Deployment of this replica is to run it");
            false
        })
    }

    async fn look(&self, ours: &str, theirs: &str) -> Result<bool, LookError> {
        let (Some(ours), Some(theirs)) = (self.template(ours).await?, self.template(theirs).await?) else {
            return Ok(false);
        };
        if ours.restarted || ours.deployment != theirs.deployment {
            return Ok(false);
        }
        let deployment = within(self.api::<Deployment>().get(&ours.deployment)).await?;
        let present = revision(&deployment.metadata);
        Ok(present == Some(&ours.revision) && present != Some(&theirs.revision))
    }

    /// What a Pod is of, if a Deployment runs it.
    async fn template(&self, pod: &str) -> Result<Option<Template>, LookError> {
        let pod = within(self.api::<Pod>().get(pod)).await?;
        let Some(set) = owner(&pod.metadata, "ReplicaSet") else {
            return Ok(None);
        };
        let set = within(self.api::<ReplicaSet>().get(set)).await?;
        let of = owner(&set.metadata, "Deployment").zip(revision(&set.metadata));
        let statuses = pod
            .status
            .and_then(|status| status.container_statuses)
            .unwrap_or_default();
        Ok(of.map(|(deployment, revision)| Template {
            deployment: deployment.to_owned(),
            revision: revision.clone(),
            restarted: statuses.iter().any(|container| container.restart_count > 0),
        }))
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }
}

/// The name of its controller, if that is of this kind.
fn owner<'a>(metadata: &'a ObjectMeta, kind: &str) -> Option<&'a str> {
    let mut owners = metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.controller == Some(true) && owner.kind == kind)?;
    Some(&owner.name)
}

async fn within<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, LookError> {
    match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
        Ok(outcome) => Ok(outcome?),
        Err(_) => Err(LookError::Late),
    }
}

fn revision(metadata: &ObjectMeta) -> Option<&String> {
    metadata.annotations.as_ref()?.get(REVISION)
}
