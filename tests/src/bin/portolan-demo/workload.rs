//! What the demo puts into the clusters: namespaces, a workload, Greetings; and the truth it reads back, past the router.

use anyhow::{Context as _, bail};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use portolan_tests::programs::program;
use serde_json::json;

const MANAGER: &str = "portolan-demo";

/// The Greeting kind, asked of the operator itself.
pub(crate) async fn install_crd(client: &Client) -> anyhow::Result<()> {
    let output = tokio::process::Command::new(program("portolan-example-operator")?)
        .arg("--crd")
        .output()
        .await?;
    let crd: CustomResourceDefinition =
        serde_json::from_slice(&output.stdout).context("the operator prints its CRD")?;
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let name = crd.metadata.name.clone().context("a CRD has a name")?;
    crds.patch(&name, &PatchParams::apply(MANAGER), &Patch::Apply(&crd))
        .await?;
    Ok(())
}

/// A namespace with a Deployment in it.
pub(crate) async fn namespace(client: &Client, name: &str) -> anyhow::Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    namespaces
        .patch(name, &PatchParams::apply(MANAGER), &Patch::Apply(&body))
        .await?;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), name);
    let labels = json!({"app": "web"});
    let body = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {
            "replicas": 2, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "web", "image": "example.com/web:1"}]}},
        },
    });
    deployments
        .patch("web", &PatchParams::apply(MANAGER), &Patch::Apply(&body))
        .await?;
    Ok(())
}

/// Creates or changes a Greeting in a member, as its user would: straight at that cluster.
pub(crate) async fn greet(client: &Client, namespace: &str, message: &str) -> anyhow::Result<()> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("examples.portolan.dev", "v1", "Greeting"));
    let greetings: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let body = json!({
        "apiVersion": "examples.portolan.dev/v1", "kind": "Greeting",
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
