//! What the demo puts into the clusters: the Greeting kind, namespaces, Greetings; and the truth it reads back, past the
//! router.

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use serde_json::json;

const MANAGER: &str = "portolan-demo";
const CRD: &str = include_str!("../../../../examples/greeting-crd.yaml");

/// The Greeting kind, as users of the example operators install it.
pub(crate) async fn install_crd(client: &Client) -> anyhow::Result<()> {
    let crd: CustomResourceDefinition = serde_yaml_ng::from_str(CRD).context("examples/greeting-crd.yaml")?;
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let name = crd.metadata.name.clone().context("a CRD has a name")?;
    crds.patch(&name, &PatchParams::apply(MANAGER), &Patch::Apply(&crd))
        .await?;
    Ok(())
}

pub(crate) async fn namespace(client: &Client, name: &str) -> anyhow::Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    namespaces
        .patch(name, &PatchParams::apply(MANAGER), &Patch::Apply(&body))
        .await?;
    Ok(())
}

/// One Greeting called `hello` in each namespace, as a manifest.
pub(crate) fn greetings(namespaces: &[&str], message: &str) -> String {
    let greeting = |namespace: &&str| {
        format!(
            "apiVersion: example.com/v1\nkind: Greeting\nmetadata: {{name: hello, namespace: {namespace}}}\n\
             spec: {{message: {message}}}\n"
        )
    };
    namespaces.iter().map(greeting).collect::<Vec<_>>().join("---\n")
}

/// Changes a Greeting in a member, as its user would: straight at that cluster.
pub(crate) async fn greet(client: &Client, namespace: &str, message: &str) -> anyhow::Result<()> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Greeting"));
    let greetings: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let body = json!({
        "apiVersion": "example.com/v1", "kind": "Greeting",
        "metadata": {"name": "hello"}, "spec": {"message": message},
    });
    greetings
        .patch("hello", &PatchParams::apply(MANAGER).force(), &Patch::Apply(&body))
        .await?;
    Ok(())
}

/// Whether the operator's ConfigMap says the message, in the cluster itself.
pub(crate) async fn is_said(client: &Client, namespace: &str, message: &str) -> anyhow::Result<()> {
    let children: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let child = children.get_opt("hello").await?.context("no ConfigMap yet")?;
    match child.data.and_then(|data| data.get("message").cloned()) {
        Some(said) if said == message => Ok(()),
        said => bail!("the ConfigMap says {said:?}"),
    }
}
