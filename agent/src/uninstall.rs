//! Takes back everything the agent has written: policies, routers' tokens, labels of objects and of namespaces, the fence's
//! annotation, its identity, its Lease.
//!
//! Needs no hub. Works by what is labelled, not by any configuration: every kind that can be listed and patched is asked
//! for objects that bear one of the keys. Safe to repeat. The agent must not run meanwhile, or it labels again. Left
//! are ServiceAccounts, RBAC and the bootstrap Secret, which `portolanctl` installed. Caller: `main`.

use std::time::Duration;

use anyhow::{Context, ensure};
use futures::StreamExt;
use futures::stream;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, ListParams};
use kube::core::DynamicObject;
use kube::{Api, Client};
use portolan_crds::labels::FENCE_EPOCH;
use tokio::time::Instant;

use crate::admission;
use crate::args::UninstallConfig;
use crate::join::identity::IdentitySecret;
use crate::kinds;
use crate::lead;
use crate::member::{self, CallError, Repeats, bounded};
use crate::metrics::{Metrics, Patched};
use crate::mint::secret::RouterSecrets;
use crate::sweep::inventory::{Subject, Todo};
use crate::sweep::pacer::Pacer;
use crate::sweep::patch::Patcher;

/// A removed policy still works for a moment and puts labels back: wait, and look again so many times.
const ROUNDS: usize = 5;
const PAUSE: Duration = Duration::from_secs(2);
/// Objects per page.
const PAGE: u32 = 500;
/// HTTP status of a request that the agent's RBAC does not allow.
const FORBIDDEN: u16 = 403;
/// Patches under way or waiting for their turn.
const CONCURRENCY: usize = 64;
/// How often it is told how far it is.
const TELL_EVERY: Duration = Duration::from_secs(5);

struct Uninstall {
    client: Client,
    /// For patches.
    paced_client: Client,
    config: UninstallConfig,
    pacer: Pacer,
}

/// Removes all of it, or says what is left.
pub async fn run(config: UninstallConfig) -> anyhow::Result<()> {
    let kubeconfig = config.member.kubeconfig.as_deref();
    let client = member::connect(kubeconfig, Repeats::Client).await?;
    let paced_client = member::connect(kubeconfig, Repeats::Caller).await?;
    admission::remove(&client)
        .await
        .context("removing the admission policies")?;
    tracing::info!("admission policies removed");
    take_tokens_back(&client)
        .await
        .context("deleting the Secrets of routers' tokens")?;
    tokio::time::sleep(PAUSE).await;
    let pacer = Pacer::new(config.member.labels_per_second);
    let uninstall = Uninstall {
        client: client.clone(),
        paced_client,
        config,
        pacer,
    };
    let mut left = 0;
    for _ in 0..ROUNDS {
        // Namespaces first: an agent of another user, or a policy that still works, labels objects by them.
        left = uninstall.unlabel(&namespaces(), Subject::Namespaces).await?;
        for resource in uninstall.kinds().await? {
            left += uninstall.unlabel(&resource, Subject::Objects).await?;
        }
        if left == 0 {
            break;
        }
        tracing::info!(removed = left, "labels removed, looking again");
        tokio::time::sleep(PAUSE).await;
    }
    ensure!(
        left == 0,
        "some of {left} objects may still be labelled: is an agent running, or a webhook in the way? Stop it and try again"
    );
    let namespace = &uninstall.config.member.namespace;
    let store = IdentitySecret::new(client.clone(), namespace);
    store.delete().await.context("removing the agent's identity")?;
    lead::forget(client, namespace)
        .await
        .context("removing the Lease of the agents")?;
    tracing::info!("nothing of the agent is left but what portolanctl installed");
    Ok(())
}

/// No router has a token of this member any more.
async fn take_tokens_back(client: &Client) -> Result<(), CallError> {
    let secrets = RouterSecrets::new(client.clone());
    for secret in secrets.list().await? {
        secrets.delete(&secret.name).await?;
    }
    tracing::info!("tokens of routers taken back");
    Ok(())
}

impl Uninstall {
    /// Every namespaced kind that can hold labels, excluded ones too: they may have been labelled by an older rule.
    async fn kinds(&self) -> anyhow::Result<Vec<ApiResource>> {
        let served = kinds::discover(self.client.clone())
            .await
            .context("discovering the member's kinds")?;
        Ok(served
            .into_iter()
            .filter(|kind| kind.namespaced && kind.labelable)
            .map(|kind| kind.resource)
            .collect())
    }

    /// How many objects of the kind bore a key.
    async fn unlabel(&self, resource: &ApiResource, subject: Subject) -> anyhow::Result<usize> {
        let mut todos = Vec::new();
        let reserved = self.config.keys.reserved();
        // A Namespace that bears no label may bear the fence's annotation, by which nothing can be selected.
        let selectors = match subject {
            Subject::Objects => &reserved[..],
            Subject::Namespaces => &[""],
        };
        for key in selectors {
            match self.labelled(resource, subject, key).await {
                Ok(found) => todos.extend(found),
                // What the agent may not list it has not labelled either, unless it was allowed more before.
                Err(error) if error.status() == Some(FORBIDDEN) && matches!(subject, Subject::Objects) => {
                    tracing::warn!(
                        kind = resource.plural,
                        group = resource.group,
                        "may not be listed, left as it is"
                    );
                    break;
                }
                Err(error) => return Err(error).with_context(|| format!("listing {}", resource.plural)),
            }
        }
        todos.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        todos.dedup();
        let patcher = Patcher {
            client: self.paced_client.clone(),
            resource: resource.clone(),
            subject,
            pacer: self.pacer.clone(),
            metrics: Metrics::default(),
        };
        let patches = stream::iter(&todos).map(async |todo| {
            if patcher.unlabel(todo, &self.config.keys).await == Patched::failed {
                tracing::warn!(kind = resource.kind, namespace = %todo.namespace, name = %todo.name, "labels could not be removed");
            }
        });
        let mut patches = std::pin::pin!(patches.buffer_unordered(CONCURRENCY).enumerate());
        let mut told = Instant::now();
        while let Some((before, ())) = patches.next().await {
            if told.elapsed() > TELL_EVERY {
                told = Instant::now();
                let (kind, per_second) = (&resource.plural, self.pacer.per_second());
                tracing::info!(
                    kind,
                    done = before + 1,
                    all = todos.len(),
                    per_second,
                    "taking labels back"
                );
            }
        }
        Ok(todos.len())
    }

    fn bears_ours(&self, object: &ObjectMeta) -> bool {
        let has = |key: &str| object.labels.as_ref().is_some_and(|labels| labels.contains_key(key));
        let annotations = object.annotations.as_ref();
        self.config.keys.reserved().into_iter().any(has)
            || annotations.is_some_and(|annotations| annotations.contains_key(FENCE_EPOCH))
    }

    async fn labelled(&self, resource: &ApiResource, subject: Subject, key: &str) -> Result<Vec<Todo>, CallError> {
        let api = Api::<DynamicObject>::all_with(self.client.clone(), resource);
        let mut params = ListParams::default().labels(key).limit(PAGE);
        let mut todos = Vec::new();
        loop {
            let page = bounded(api.list_metadata(&params)).await?;
            let ours = page
                .items
                .into_iter()
                .filter(|object| self.bears_ours(&object.metadata));
            todos.extend(ours.map(|object| {
                let name: Box<str> = object.metadata.name.unwrap_or_default().into();
                Todo {
                    namespace: match subject {
                        Subject::Objects => object.metadata.namespace.unwrap_or_default().into(),
                        Subject::Namespaces => name.clone(),
                    },
                    name,
                    uid: object.metadata.uid.unwrap_or_default().into(),
                }
            }));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(todos),
            }
        }
    }
}

fn namespaces() -> ApiResource {
    ApiResource::erase::<Namespace>(&())
}
