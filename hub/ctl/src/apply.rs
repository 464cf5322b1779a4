//! Server-side apply and deletion of manifests of any kind. Called by install, join, dev and `apply_files`.

use anyhow::{Context as _, anyhow, bail};
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams};
use kube::discovery::{self, Scope};
use kube::{Client, ResourceExt as _};
use serde::Deserialize as _;

/// Field manager of everything portolanctl applies.
pub(crate) const MANAGER: &str = "portolanctl";

/// The objects of a YAML stream; `origin` is named in errors.
pub(crate) fn parse(origin: &str, yaml: &str) -> anyhow::Result<Vec<DynamicObject>> {
    let mut objects = Vec::new();
    for document in serde_yaml_ng::Deserializer::from_str(yaml) {
        let value = serde_yaml_ng::Value::deserialize(document).with_context(|| format!("{origin} is not YAML"))?;
        if value.is_null() {
            continue;
        }
        let object: DynamicObject = serde_yaml_ng::from_value(value)
            .with_context(|| format!("{origin} has a document that is no Kubernetes object"))?;
        if object.types.is_none() || object.metadata.name.is_none() {
            bail!(
                "{origin} has a document that is no Kubernetes object: apiVersion, kind and metadata.name are needed"
            );
        }
        objects.push(object);
    }
    Ok(objects)
}

/// Applies the objects in order, each as its whole intent.
pub(crate) async fn apply(client: &Client, objects: &[DynamicObject]) -> anyhow::Result<()> {
    for object in objects {
        apply_one(client, object).await?;
    }
    Ok(())
}

/// Applies one object and returns what the API server made of it.
pub(crate) async fn apply_one(client: &Client, object: &DynamicObject) -> anyhow::Result<DynamicObject> {
    // Strict: a field that the kind does not have is an error here, instead of dropped without a word.
    apply_as(client, object, &PatchParams::apply(MANAGER).force().validation_strict()).await
}

/// Applies one object as `parameters` say, and returns what the API server made of it.
pub(crate) async fn apply_as(
    client: &Client,
    object: &DynamicObject,
    parameters: &PatchParams,
) -> anyhow::Result<DynamicObject> {
    let api = api_of(client, object).await?;
    api.patch(&object.name_any(), parameters, &Patch::Apply(object))
        .await
        .with_context(|| format!("cannot apply {}", describe(object)))
}

/// Deletes the objects in reverse order; what is gone already is fine.
pub(crate) async fn delete(client: &Client, objects: &[DynamicObject]) -> anyhow::Result<()> {
    for object in objects.iter().rev() {
        let api = match api_of(client, object).await {
            Ok(api) => api,
            // Its CRD is gone, and so is the object.
            Err(error) if is_not_found(&error) => continue,
            Err(error) => return Err(error),
        };
        match api.delete(&object.name_any(), &DeleteParams::background()).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error).with_context(|| format!("cannot delete {}", describe(object))),
        }
    }
    Ok(())
}

/// "Kind namespace/name", for messages.
pub(crate) fn describe(object: &DynamicObject) -> String {
    let kind = object.types.as_ref().map_or("object", |types| types.kind.as_str());
    match object.namespace() {
        Some(namespace) => format!("{kind} {namespace}/{}", object.name_any()),
        None => format!("{kind} {}", object.name_any()),
    }
}

/// Where the object is.
pub(crate) async fn api_of(client: &Client, object: &DynamicObject) -> anyhow::Result<Api<DynamicObject>> {
    let (resource, scope) = resource_of(client, object).await?;
    Ok(match scope {
        Scope::Cluster => Api::all_with(client.clone(), &resource),
        Scope::Namespaced => {
            let namespace = object.namespace().unwrap_or_else(|| "default".to_owned());
            Api::namespaced_with(client.clone(), &namespace, &resource)
        }
    })
}

/// The object's kind as the cluster serves it.
pub(crate) async fn resource_of(client: &Client, object: &DynamicObject) -> anyhow::Result<(ApiResource, Scope)> {
    let types = object
        .types
        .as_ref()
        .ok_or_else(|| anyhow!("{} has no apiVersion and kind", describe(object)))?;
    let gvk = kube::core::GroupVersionKind::try_from(types)
        .with_context(|| format!("{} has a bad apiVersion", describe(object)))?;
    let (resource, capabilities): (ApiResource, _) = discovery::pinned_kind(client, &gvk)
        .await
        .with_context(|| format!("the cluster does not serve {} {}", types.api_version, types.kind))?;
    Ok((resource, capabilities.scope))
}

fn is_not_found(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| match cause.downcast_ref::<kube::Error>() {
        Some(kube::Error::Api(status)) => status.code == 404,
        Some(kube::Error::Discovery(_)) => true,
        _ => false,
    })
}

/// An error that names the kind if the cluster does not serve it.
pub(crate) async fn served(client: &Client, object: &DynamicObject) -> anyhow::Result<()> {
    api_of(client, object).await.map(drop)
}

/// Whether the cluster serves the object's kind.
pub(crate) async fn is_served(client: &Client, object: &DynamicObject) -> anyhow::Result<bool> {
    match api_of(client, object).await {
        Ok(_) => Ok(true),
        Err(error) if is_not_found(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The object as it is, if it is there.
pub(crate) async fn get(client: &Client, object: &DynamicObject) -> anyhow::Result<Option<DynamicObject>> {
    let found = api_of(client, object).await?.get_opt(&object.name_any()).await;
    found.with_context(|| format!("cannot read {}", describe(object)))
}

/// Whether the object is there. A kind that the cluster does not serve has no objects.
pub(crate) async fn exists(client: &Client, object: &DynamicObject) -> anyhow::Result<bool> {
    match api_of(client, object).await {
        Ok(api) => Ok(api.get_metadata_opt(&object.name_any()).await?.is_some()),
        Err(error) if is_not_found(&error) => Ok(false),
        Err(error) => Err(error),
    }
}
