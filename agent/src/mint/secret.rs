//! The Secrets that routers' tokens are bound to: without data, one for each router, in a namespace of their own.
//!
//! The API server takes a token for as long as the Secret that it is bound to is there, by name and uid. Callers: `mint`,
//! `uninstall`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, ListParams, ObjectMeta, PartialObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt};
use portolan_crds::labels::{ANNOTATION_ROUTER, LABEL_ROUTER_UID, ROUTERS_NAMESPACE};

use crate::member::{CallError, bounded};
use crate::settings::RouterId;

/// What each name begins with; the router's uid follows.
const PREFIX: &str = "router-";
/// Objects per page.
const PAGE: u32 = 500;
/// HTTP statuses.
const NOT_FOUND: u16 = 404;
const CONFLICT: u16 = 409;

/// A Secret as far as it matters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RouterSecret {
    pub(crate) name: String,
    pub(crate) uid: String,
    /// Name and uid of the Router on the hub.
    pub(crate) router: String,
    pub(crate) router_uid: String,
}

/// The Secrets of all routers.
#[derive(Clone)]
pub(crate) struct RouterSecrets {
    api: Api<Secret>,
}

impl RouterSecrets {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            api: Api::namespaced(client, ROUTERS_NAMESPACE),
        }
    }

    /// The router's, made if it is not there.
    pub(crate) async fn ensure(&self, router: &RouterId) -> Result<RouterSecret, CallError> {
        let secret = new_secret(router);
        let made = bounded(self.api.create(&PostParams::default(), &secret)).await;
        match made {
            Ok(made) => Ok(read(&made.metadata)),
            Err(error) if error.status() == Some(CONFLICT) => {
                let present = bounded(self.api.get_metadata(&secret.name_any())).await?;
                Ok(read(&present.metadata))
            }
            Err(error) => Err(error),
        }
    }

    /// All of them.
    pub(crate) async fn list(&self) -> Result<Vec<RouterSecret>, CallError> {
        let mut params = ListParams::default().labels(LABEL_ROUTER_UID).limit(PAGE);
        let mut found = Vec::new();
        loop {
            let page = bounded(self.api.list_metadata(&params)).await?;
            found.extend(
                page.items
                    .iter()
                    .map(|secret: &PartialObjectMeta<Secret>| read(&secret.metadata)),
            );
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(found),
            }
        }
    }

    /// Deletes one; one that is gone is fine.
    pub(crate) async fn delete(&self, name: &str) -> Result<(), CallError> {
        match bounded(self.api.delete(name, &DeleteParams::default())).await {
            Err(error) if error.status() != Some(NOT_FOUND) => Err(error),
            _ => Ok(()),
        }
    }
}

fn new_secret(router: &RouterId) -> Secret {
    let labels = [
        (LABEL_ROUTER_UID, router.uid.as_str()),
        ("app.kubernetes.io/managed-by", "portolan"),
    ];
    let annotations = [(ANNOTATION_ROUTER, router.name.as_str())];
    let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    Secret {
        metadata: ObjectMeta {
            name: Some(format!("{PREFIX}{}", router.uid)),
            labels: Some(labels.into_iter().map(owned).collect()),
            annotations: Some(annotations.into_iter().map(owned).collect()),
            ..ObjectMeta::default()
        },
        ..Secret::default()
    }
}

fn read(metadata: &ObjectMeta) -> RouterSecret {
    let of = |map: &Option<BTreeMap<String, String>>, key: &str| map.as_ref().and_then(|map| map.get(key).cloned());
    RouterSecret {
        name: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
        router: of(&metadata.annotations, ANNOTATION_ROUTER).unwrap_or_default(),
        router_uid: of(&metadata.labels, LABEL_ROUTER_UID).unwrap_or_default(),
    }
}
