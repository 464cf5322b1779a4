//! `portolanctl uninstall`: takes the hub out of its cluster again; the chart's pre-delete Job runs it too.
//!
//! The hub ends first, as it would put its finalizers back. What people wrote stays, and what a hub that is installed again goes on
//! from; all that is kept is told.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::{Client, ResourceExt as _};
use portolan_crds::labels::{FINALIZER_SHARD, SERVICE_HUB, SYSTEM_NAMESPACE};
use portolan_crds::{MemberCluster, ShardingConfig};
use serde_json::json;

use crate::cli::UninstallArgs;
use crate::connect::connect;
use crate::steps::Steps;
use crate::{apply, install, leader, pods, rights};

const POLL: Duration = Duration::from_millis(300);
/// Deployment of the hub, as its chart names it.
const DEPLOYMENT: &str = SERVICE_HUB;

pub(crate) async fn run(args: &UninstallArgs) -> anyhow::Result<()> {
    let mut steps = Steps::begin();
    let hub = connect("the hub", args.hub.hub_kubeconfig.as_deref()).await?.client;
    let missing = rights::missing_to_uninstall(&hub, args.delete_shards).await?;
    if !missing.is_empty() {
        bail!("nothing was done, as rights are missing:\n  {}", missing.join("\n  "));
    }
    let by = Instant::now() + args.timeout;
    if args.delete_shards {
        release(&hub, Instant::now() + args.timeout / 2, &mut steps).await?;
    }
    end(&hub, by).await?;
    steps.done("no hub runs any more");
    let freed = free(&hub, by).await?;
    steps.done(&format!("finalizers are off {freed} ShardingConfigs"));
    if !args.leave_rbac {
        let mut objects = install::authors(None, None)?;
        objects.extend(install::rbac()?.into_iter().filter(|object| !is_namespace(object)));
        apply::delete(&hub, &objects).await?;
        steps.done("RBAC and the webhook are gone");
    }
    tell_kept(&hub).await
}

fn is_namespace(object: &DynamicObject) -> bool {
    object.types.as_ref().is_some_and(|types| types.kind == "Namespace")
}

/// Deletes all ShardingConfigs, and waits while a hub leads that releases what they have, once routers have let go.
async fn release(hub: &Client, by: Instant, steps: &mut Steps) -> anyhow::Result<()> {
    let led = leader::look(hub).await;
    let led = led.with_context(|| format!("cannot read {}", leader::object()))?;
    for config in shards(hub).await? {
        // Children go with their roots.
        if config
            .owner_references()
            .iter()
            .any(|owner| owner.controller == Some(true))
        {
            continue;
        }
        let (namespace, name) = (config.namespace().unwrap_or_default(), config.name_any());
        let api = Api::<ShardingConfig>::namespaced(hub.clone(), &namespace);
        match api.delete(&name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            deleted => drop(deleted.with_context(|| format!("cannot delete ShardingConfig {namespace}/{name}"))?),
        }
    }
    if let Err(why) = led {
        println!(
            "no hub leads that would release what shards have ({}: {why})",
            leader::object()
        );
        return Ok(());
    }
    loop {
        let left = shards(hub).await?.len();
        if left == 0 {
            steps.done("all shards are deleted, and what they had is released");
            return Ok(());
        }
        if Instant::now() >= by {
            println!(
                "{left} ShardingConfigs are not released yet: routers may go on writing there until their tokens end"
            );
            return Ok(());
        }
        tokio::time::sleep(POLL).await;
    }
}

/// All ShardingConfigs; none if their kind is gone.
async fn shards(hub: &Client) -> anyhow::Result<Vec<PartialObjectMeta<ShardingConfig>>> {
    let listed = Api::<ShardingConfig>::all(hub.clone())
        .list_metadata(&ListParams::default())
        .await;
    match listed {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        listed => Ok(listed.context("cannot list ShardingConfigs")?.items),
    }
}

/// Ends the hub's replicas, and makes sure that none leads, wherever it runs.
async fn end(hub: &Client, by: Instant) -> anyhow::Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(hub.clone(), SYSTEM_NAMESPACE);
    let scaled = Patch::Merge(json!({"spec": {"replicas": 0}}));
    match deployments.patch(DEPLOYMENT, &PatchParams::default(), &scaled).await {
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        patched => drop(patched.context("cannot end the hub")?),
    }
    while pods::are_there(hub, SYSTEM_NAMESPACE, pods::OF_HUB)
        .await
        .context("cannot list Pods")?
    {
        if Instant::now() >= by {
            bail!("the hub has not ended yet; the same command goes on");
        }
        tokio::time::sleep(POLL).await;
    }
    let led = leader::look(hub).await;
    if let Ok(holder) = led.with_context(|| format!("cannot read {}", leader::object()))? {
        bail!(
            "a hub that runs elsewhere leads ({holder}) and puts back what is taken off: end it, then run this again"
        );
    }
    Ok(())
}

/// Takes the hub's finalizer off all ShardingConfigs, so that they can be deleted without it. Returns off how many.
async fn free(hub: &Client, by: Instant) -> anyhow::Result<usize> {
    let mut freed = 0;
    loop {
        let mut held = shards(hub).await?;
        held.retain(|config| config.finalizers().iter().any(|one| one == FINALIZER_SHARD));
        if held.is_empty() {
            return Ok(freed);
        }
        if Instant::now() >= by {
            bail!(
                "{} ShardingConfigs have the hub's finalizer still; the same command goes on",
                held.len()
            );
        }
        for config in held {
            let (namespace, name) = (config.namespace().unwrap_or_default(), config.name_any());
            let others: Vec<_> = config
                .finalizers()
                .iter()
                .filter(|one| *one != FINALIZER_SHARD)
                .collect();
            // Of the version that was read: others may have a finalizer there.
            let patch = json!({"metadata": {"resourceVersion": config.resource_version(), "finalizers": others}});
            let api = Api::<ShardingConfig>::namespaced(hub.clone(), &namespace);
            match api
                .patch_metadata(&name, &PatchParams::default(), &Patch::Merge(patch))
                .await
            {
                Ok(_) => freed += 1,
                Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => {}
                Err(error) => {
                    return Err(error)
                        .with_context(|| format!("cannot take the finalizer off ShardingConfig {namespace}/{name}"));
                }
            }
        }
    }
}

/// What is left, and how it goes.
async fn tell_kept(hub: &Client) -> anyhow::Result<()> {
    println!(
        "kept: CustomResourceDefinitions of ctrlmesh.kusionstack.io, and all objects of them: kubectl delete crd NAME"
    );
    println!(
        "kept: the CA and the ledger, from which a hub that is installed again goes on: kubectl delete namespace {SYSTEM_NAMESPACE}"
    );
    let members = Api::<MemberCluster>::all(hub.clone())
        .list_metadata(&ListParams::default())
        .await;
    let members = match members {
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
        members => members.context("cannot list MemberClusters")?.items,
    };
    for member in members {
        println!(
            "kept: what is in member {0}, labels and policies among it, and routers that still run go on there until their tokens end: \
             portolanctl unregister --member-alone --kubeconfig FILE, or helm uninstall portolan-agent",
            member.name_any()
        );
    }
    Ok(())
}
