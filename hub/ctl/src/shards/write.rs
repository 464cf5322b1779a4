//! Writes edits of ShardingConfigs: tried by a dry run of all first, then one after the other; if one cannot be written those
//! before it are put back.

use anyhow::{Context as _, anyhow, bail};
use kube::api::{Api, ApiResource, DynamicObject, PostParams};
use kube::{Client, ResourceExt as _};
use portolan_crds::{ShardName, ShardingConfig};
use serde_json::Value;

/// Field manager of edits by command.
const MANAGER: &str = "portolanctl-shards";

/// The object as it was read, and the spec that it is to have.
#[derive(Debug, Clone)]
pub(super) struct Edit {
    pub(super) name: ShardName,
    pub(super) object: DynamicObject,
    pub(super) spec: Value,
}

impl Edit {
    /// The object as it is to be. It has the resourceVersion that it was read with: nothing of anybody else is overwritten.
    pub(super) fn edited(&self) -> DynamicObject {
        let mut edited = self.object.clone();
        edited.data["spec"] = self.spec.clone();
        edited
    }
}

/// The object of a shard, which nothing else makes.
pub(super) async fn read(hub: &Client, name: &ShardName) -> anyhow::Result<DynamicObject> {
    let found = api(hub, name).get_opt(name.name()).await;
    let found = found.with_context(|| format!("cannot read ShardingConfig {name}"))?;
    let object = found.with_context(|| format!("there is no ShardingConfig {name}: see portolanctl get shards"))?;
    let owners = object.owner_references().iter();
    let mut makers = owners.filter(|owner| owner.controller == Some(true));
    if let Some(maker) = makers.next() {
        bail!(
            "ShardingConfig {name} is made by {} {:?}, which would undo the edit: edit that one",
            maker.kind,
            maker.name
        );
    }
    if object.metadata.deletion_timestamp.is_some() {
        bail!("ShardingConfig {name} is being deleted");
    }
    Ok(object)
}

/// Writes them in order, all or none as far as it can be had.
pub(super) async fn write(hub: &Client, edits: &[Edit]) -> anyhow::Result<()> {
    for edit in edits {
        let tried = replace(hub, &edit.name, &edit.edited(), true).await;
        tried.with_context(|| {
            format!(
                "ShardingConfig {} would not be taken, and nothing was written",
                edit.name
            )
        })?;
    }
    let mut written = Vec::new();
    for edit in edits {
        match replace(hub, &edit.name, &edit.edited(), false).await {
            Ok(object) => written.push((edit, object)),
            Err(error) => {
                let error = anyhow!(error).context(format!("cannot write ShardingConfig {}", edit.name));
                return Err(error.context(put_back(hub, written).await));
            }
        }
    }
    Ok(())
}

/// Puts back what was written, the last first. Returns what to tell.
async fn put_back(hub: &Client, written: Vec<(&Edit, DynamicObject)>) -> String {
    let mut told = "nothing was changed".to_owned();
    for (edit, mut object) in written.into_iter().rev() {
        object.data["spec"] = edit.object.data["spec"].clone();
        let name = &edit.name;
        told = match replace(hub, name, &object, false).await {
            Ok(_) => format!("ShardingConfig {name} was written, and put back"),
            Err(error) => {
                format!(
                    "ShardingConfig {name} was written and could not be put back ({error}): see portolanctl shards rollback {name}"
                )
            }
        };
    }
    told
}

async fn replace(
    hub: &Client,
    name: &ShardName,
    object: &DynamicObject,
    dry_run: bool,
) -> Result<DynamicObject, kube::Error> {
    let parameters = PostParams {
        dry_run,
        field_manager: Some(MANAGER.to_owned()),
    };
    api(hub, name).replace(name.name(), &parameters, object).await
}

fn api(hub: &Client, name: &ShardName) -> Api<DynamicObject> {
    let kind = ApiResource::erase::<ShardingConfig>(&());
    Api::namespaced_with(hub.clone(), name.namespace(), &kind)
}
