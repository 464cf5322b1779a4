//! The custom resource and its reconciler: Greeting → ConfigMap (server-side apply, owned) → status.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::{Api, Client, CustomResource, Resource as _, ResourceExt as _};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use thiserror::Error;

const FIELD_MANAGER: &str = "greeting-operator";
const RETRY: Duration = Duration::from_secs(2);

/// What to say.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema, CustomResource)]
#[kube(
    group = "examples.portolan.dev",
    version = "v1",
    kind = "Greeting",
    namespaced,
    status = "GreetingStatus"
)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GreetingSpec {
    /// The text that lands in the ConfigMap's `message`.
    pub(crate) message: String,
}

/// What was said.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GreetingStatus {
    /// metadata.generation that the children reflect.
    pub(crate) observed_generation: Option<i64>,
    /// Name of the ConfigMap.
    pub(crate) config_map: Option<String>,
}

/// What reconciling needs.
pub(crate) struct Context {
    pub(crate) client: Client,
}

/// Why a reconcile failed.
#[derive(Debug, Error)]
pub(crate) enum Error {
    #[error("greeting has no {0}")]
    Incomplete(&'static str),
    #[error(transparent)]
    Kube(#[from] kube::Error),
}

/// Makes the ConfigMap say what the Greeting says, then records it in the status.
pub(crate) async fn reconcile(greeting: Arc<Greeting>, context: Arc<Context>) -> Result<Action, Error> {
    let namespace = greeting.namespace().ok_or(Error::Incomplete("namespace"))?;
    let name = greeting.metadata.name.clone().ok_or(Error::Incomplete("name"))?;
    let owner = greeting.controller_owner_ref(&()).ok_or(Error::Incomplete("uid"))?;
    let child = ConfigMap {
        metadata: kube::api::ObjectMeta {
            name: Some(name.clone()),
            namespace: Some(namespace.clone()),
            owner_references: Some(vec![owner]),
            ..Default::default()
        },
        data: Some(BTreeMap::from([("message".to_owned(), greeting.spec.message.clone())])),
        ..Default::default()
    };
    let apply = PatchParams::apply(FIELD_MANAGER).force();
    let children: Api<ConfigMap> = Api::namespaced(context.client.clone(), &namespace);
    children.patch(&name, &apply, &Patch::Apply(&child)).await?;

    let observed = greeting.metadata.generation;
    if greeting.status.as_ref().and_then(|status| status.observed_generation) != observed {
        let greetings: Api<Greeting> = Api::namespaced(context.client.clone(), &namespace);
        let status =
            json!({"status": GreetingStatus { observed_generation: observed, config_map: Some(name.clone()) }});
        greetings
            .patch_status(&name, &PatchParams::default(), &Patch::Merge(status))
            .await?;
    }
    Ok(Action::await_change())
}

/// Tries again soon: a demo should show recovery within seconds.
pub(crate) fn on_error(_: Arc<Greeting>, _: &Error, _: Arc<Context>) -> Action {
    Action::requeue(RETRY)
}
