//! What shards have in a member, as the hub's ledger says, and how they are made to let go of it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};
use portolan_crds::{ShardName, ShardingConfig};

use super::POLL;
use crate::ledger::Found;
use crate::shards::{Edit, find, write};

/// A spec that is refused for so long is not taken by itself.
const REFUSED_FOR: Duration = Duration::from_secs(10);

/// Namespaces by shard.
pub(super) type Held = BTreeMap<ShardName, Vec<String>>;

/// Namespaces of the member that shards have, or that are still being released.
pub(super) async fn held(hub: &Client, cluster: &str) -> anyhow::Result<Held> {
    let found = Found::read(hub).await?;
    if let Some((name, reason)) = found.damaged.iter().next() {
        bail!(
            "what shards have is not known: ConfigMap {name} of the hub's ledger {reason}; try again, and see portolanctl ledger show"
        );
    }
    let mut held = Held::new();
    for chunk in found.chunks().filter(|chunk| chunk.cluster == cluster) {
        for (namespace, pairs) in &chunk.pairs {
            for owner in pairs.values().filter_map(|pair| pair.owner.as_ref()) {
                held.entry(owner.clone()).or_default().push(namespace.clone());
            }
        }
    }
    Ok(held)
}

/// What keeps a member: namespaces of shards whose ShardingConfig is there, and shards that name it and have nothing there yet. Of a
/// ShardingConfig that is gone the hub is about to release the rest.
pub(super) async fn claimed(hub: &Client, cluster: &str) -> anyhow::Result<Held> {
    let mut claimed = Held::new();
    for (shard, namespaces) in held(hub, cluster).await? {
        let api = Api::<ShardingConfig>::namespaced(hub.clone(), shard.namespace());
        let found = api.get_metadata_opt(shard.name()).await;
        if found
            .with_context(|| format!("cannot read ShardingConfig {shard}"))?
            .is_some()
        {
            claimed.insert(shard, namespaces);
        }
    }
    for edit in edits(hub, cluster).await? {
        claimed.entry(edit.name).or_default();
    }
    Ok(claimed)
}

/// The edit of each ShardingConfig that names the member, but for those that roots make: without it.
async fn edits(hub: &Client, cluster: &str) -> anyhow::Result<Vec<Edit>> {
    let all = Api::<ShardingConfig>::all(hub.clone())
        .list(&ListParams::default())
        .await;
    let mut edits = Vec::new();
    for config in all.context("cannot list ShardingConfigs")?.items {
        let is_made = config
            .owner_references()
            .iter()
            .any(|owner| owner.controller == Some(true));
        if is_made
            || config
                .spec
                .clusters
                .iter()
                .all(|one| one.name.as_deref() != Some(cluster))
        {
            continue;
        }
        let name = ShardName::new(config.namespace().unwrap_or_default(), config.name_any())?;
        let object = find(hub, &name).await?;
        let mut spec = object.data["spec"].clone();
        if let Some(clusters) = spec["clusters"].as_array_mut() {
            clusters.retain(|one| one["name"] != cluster);
        }
        edits.push(Edit { name, object, spec });
    }
    Ok(edits)
}

/// Takes the member out of each ShardingConfig that names it: all of them, or none.
pub(super) async fn take_out(hub: &Client, cluster: &str) -> anyhow::Result<()> {
    let edits = edits(hub, cluster).await?;
    let is_empty = |edit: &&Edit| edit.spec["clusters"].as_array().is_none_or(Vec::is_empty);
    if let Some(alone) = edits.iter().find(is_empty) {
        bail!(
            "nothing was done: {cluster} is the only member of ShardingConfig {}: give it another, or delete it",
            alone.name
        );
    }
    write(hub, &edits).await?;
    for Edit { name, .. } in &edits {
        println!("ShardingConfig {name} names {cluster} no more");
    }
    Ok(())
}

/// Waits until no shard has anything there.
pub(super) async fn released(hub: &Client, cluster: &str, patience: Duration) -> anyhow::Result<()> {
    let deadline = Instant::now() + patience;
    let mut refused_since = None::<Instant>;
    loop {
        let held = held(hub, cluster).await?;
        if held.is_empty() {
            return Ok(());
        }
        match refused(hub, &held).await? {
            None => refused_since = None,
            Some(reason) => {
                // A verdict may be about to be another: the hub judges anew what others have just mended.
                if refused_since.get_or_insert_with(Instant::now).elapsed() >= REFUSED_FOR {
                    bail!("{cluster} stays a member: {reason}");
                }
            }
        }
        if Instant::now() >= deadline {
            bail!(
                "not all of {cluster} is released, and it stays a member; the same command goes on:\n  {}\nshards that take it by a \
                 label of the MemberCluster keep it until the label goes; portolanctl shards status says what else is waited for",
                super::words(&held).join("\n  ")
            );
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Why the hub goes on with an earlier spec of a shard, and lets go of nothing.
async fn refused(hub: &Client, held: &Held) -> anyhow::Result<Option<String>> {
    for shard in held.keys() {
        let config = Api::<ShardingConfig>::namespaced(hub.clone(), shard.namespace())
            .get_opt(shard.name())
            .await;
        let Some(config) = config.with_context(|| format!("cannot read ShardingConfig {shard}"))? else {
            continue;
        };
        let conditions = config.status.iter().flat_map(|status| &status.conditions);
        let verdict = conditions.into_iter().find(|condition| {
            condition.type_ == "Accepted" && condition.observed_generation == config.metadata.generation
        });
        if let Some(verdict) = verdict.filter(|verdict| verdict.status == "False") {
            return Ok(Some(format!(
                "the hub refuses the spec of {shard}: {}",
                verdict.message
            )));
        }
    }
    Ok(None)
}
