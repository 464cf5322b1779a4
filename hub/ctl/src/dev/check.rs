//! What `dev up` can find wrong before it changes anything, here or in a cluster. Called by `up` alone.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use jiff::{SignedDuration, Timestamp};
use kube::api::{Api, DynamicObject};
use kube::{Client, ResourceExt as _};
use portolan_crds::{MemberCluster, Problem, ShardingConfig, labels, validate, validate_sharding};

use crate::apply;
use crate::connect::Cluster;
use crate::dev::callers::Placeholder;

/// A member heard of more lately has a hub and an agent at work.
const HEARD_LATELY: SignedDuration = SignedDuration::from_secs(30);

/// Names of the members, each given once.
pub(crate) fn member_names(members: &[(String, PathBuf)]) -> anyhow::Result<Vec<String>> {
    let names: Vec<String> = members.iter().map(|(name, _)| name.clone()).collect();
    for (at, name) in names.iter().enumerate() {
        if names[..at].contains(name) {
            bail!("--member {name} is given twice: give each member cluster a name of its own");
        }
    }
    Ok(names)
}

/// The ShardingConfigs among the manifests, each valid by itself.
pub(crate) fn sharding_configs(manifests: &[DynamicObject]) -> anyhow::Result<Vec<ShardingConfig>> {
    let of_kind = manifests.iter().filter(|object| {
        object
            .types
            .as_ref()
            .is_some_and(|types| types.kind == "ShardingConfig")
    });
    of_kind.map(sharding_config).collect()
}

fn sharding_config(object: &DynamicObject) -> anyhow::Result<ShardingConfig> {
    let config: ShardingConfig = serde_path_to_error::deserialize(serde_json::to_value(object)?)
        .with_context(|| format!("{} does not have the fields of its kind", apply::describe(object)))?;
    let mut problems = validate_sharding(&config.name_any(), &namespace_of(&config), &config.spec);
    problems.retain(Problem::refuses);
    if !problems.is_empty() {
        bail!(
            "{} would not be accepted: {}",
            what(&config),
            validate::summary(&problems)
        );
    }
    Ok(config)
}

/// A placeholder caller for each; their kubeconfigs are named by the shard alone.
pub(crate) fn placeholders(configs: &[ShardingConfig], members: &[String]) -> anyhow::Result<Vec<Placeholder>> {
    let mut seen = BTreeMap::new();
    for config in configs {
        if let Some(other) = seen.insert(config.name_any(), namespace_of(config)) {
            bail!(
                "ShardingConfigs {other}/{0} and {1}/{0} would both be merged-{0}.kubeconfig: give one another name",
                config.name_any(),
                namespace_of(config)
            );
        }
    }
    configs.iter().map(|config| Placeholder::of(config, members)).collect()
}

/// Members that the shards name are given, or are the hub's already.
pub(crate) async fn clusters_named(hub: &Client, configs: &[ShardingConfig], members: &[String]) -> anyhow::Result<()> {
    let known = Api::<MemberCluster>::all(hub.clone());
    for config in configs {
        for (field, name) in config.spec.named_clusters() {
            if members.iter().any(|member| member == name) {
                continue;
            }
            match known.get_metadata(name).await {
                Ok(_) => {}
                // No such member, or not even the kind yet.
                Err(kube::Error::Api(status)) if status.code == 404 => bail!(
                    "{}: {field}: {name:?} is none of --member {}, and the hub has no MemberCluster of that name",
                    what(config),
                    members.join(", ")
                ),
                Err(error) => return Err(error).context("cannot read MemberClusters"),
            }
        }
    }
    Ok(())
}

/// The hub serves every kind of the manifests; ours are yet to be installed.
pub(crate) async fn kinds_served(hub: &Client, manifests: &[DynamicObject]) -> anyhow::Result<()> {
    let ours = format!("{}/{}", labels::GROUP, labels::VERSION);
    for object in manifests {
        if object.types.as_ref().is_none_or(|types| types.api_version != ours) {
            apply::served(hub, object).await?;
        }
    }
    Ok(())
}

/// No cluster is given under two names.
pub(crate) async fn distinct(members: &BTreeMap<String, Cluster>) -> anyhow::Result<()> {
    let mut seen = BTreeMap::new();
    for (name, member) in members {
        let uid = member.uid().await.with_context(|| format!("member cluster {name}"))?;
        if let Some(other) = seen.insert(uid, name) {
            bail!("--member {other} and --member {name} are the same cluster: a cluster is a member once");
        }
    }
    Ok(())
}

/// No other hub and agent are at work on these members: two of each would fight over labels and policies, and `dev down`
/// would take from the other fleet what it needs.
pub(crate) async fn unattended(hub: &Client, members: &[String]) -> anyhow::Result<()> {
    let known = Api::<MemberCluster>::all(hub.clone());
    for name in members {
        let member = match known.get(name).await {
            Ok(member) => member,
            Err(kube::Error::Api(status)) if status.code == 404 => continue,
            Err(error) => return Err(error).context("cannot read MemberClusters"),
        };
        let heard = member.status.and_then(|status| status.last_heartbeat);
        if heard.is_some_and(|heard| Timestamp::now().duration_since(heard.0) < HEARD_LATELY) {
            bail!(
                "a hub and an agent are at work for member cluster {name} already: end them first, or take another hub cluster"
            );
        }
    }
    Ok(())
}

fn namespace_of(config: &ShardingConfig) -> String {
    config.namespace().unwrap_or_else(|| "default".to_owned())
}

fn what(config: &ShardingConfig) -> String {
    format!("ShardingConfig {}/{}", namespace_of(config), config.name_any())
}
