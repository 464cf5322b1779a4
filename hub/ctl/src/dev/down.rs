//! `portolanctl dev down`: ends the programs, takes labels and objects back, removes the folder's files.
//!
//! A cluster that cannot be reached does not keep the rest from being undone; it is named at the end.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use futures::future::join_all;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use portolan_crds::ShardingConfig;
use portolan_crds::labels::FINALIZER_SHARD;
use serde_json::json;

use crate::apply;
use crate::cli::DevDownArgs;
use crate::connect::Clients;
use crate::dev::fleet::{Fleet, FleetMember};
use crate::dev::programs::{find, text};

/// How long it is waited until what was deleted is gone. A namespace with finalizers of others in it may take for ever.
const GONE_PATIENCE: Duration = Duration::from_mins(1);
const GONE_POLL: Duration = Duration::from_millis(200);

pub(crate) async fn run(args: &DevDownArgs) -> anyhow::Result<()> {
    let dir = args.fleet.dir.canonicalize().unwrap_or_else(|_| args.fleet.dir.clone());
    let fleet = Fleet::read(&dir)?;
    // Routers and agents end before the hub, so that nothing reports or labels while it is taken back.
    for process in fleet.processes.iter().rev() {
        println!("- stopping {}", process.name);
        process.stop().await;
    }
    if !args.local_only {
        take_back(&fleet).await?;
    }
    remove_files(&fleet)
}

/// Undoes what was done to the clusters; what could not be undone is named, and the record stays for another try.
async fn take_back(fleet: &Fleet) -> anyhow::Result<()> {
    let uninstalled = join_all(fleet.members.iter().map(|member| async move {
        println!("- member {}: taking labels and policies back", member.name);
        let outcome = uninstall(fleet, member).await;
        outcome.err().map(|error| format!("member {}: {error:#}", member.name))
    }));
    let mut left: Vec<String> = uninstalled.await.into_iter().flatten().collect();
    left.extend(let_go(fleet).await.err().map(|error| format!("{error:#}")));
    println!("- deleting what dev up created");
    left.extend(delete_created(fleet).await);
    if left.is_empty() {
        println!("- waiting until it is gone");
        left.extend(still_there(fleet).await);
    }
    if !left.is_empty() {
        bail!(
            "not everything could be taken back; repeat when the clusters answer:\n  {}",
            left.join("\n  ")
        );
    }
    Ok(())
}

/// ShardingConfigs wait for the hub before they go, and it runs no more; neither does any router that could still grant.
async fn let_go(fleet: &Fleet) -> anyhow::Result<()> {
    let client = client_of(&mut Clients::default(), fleet, None).await?;
    let all = Api::<ShardingConfig>::all(client.clone());
    let shards = match all.list_metadata(&ListParams::default()).await {
        Ok(shards) => shards,
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
        Err(error) => return Err(error).context("cannot list ShardingConfigs"),
    };
    for shard in shards {
        let (name, mut finalizers) = (shard.name_any(), shard.metadata.finalizers.unwrap_or_default());
        let before = finalizers.len();
        finalizers.retain(|one| one != FINALIZER_SHARD);
        if finalizers.len() == before {
            continue;
        }
        let namespace = shard.metadata.namespace.unwrap_or_default();
        let metadata = json!({"resourceVersion": shard.metadata.resource_version, "finalizers": finalizers});
        let patch = Patch::Merge(json!({"metadata": metadata}));
        let api = Api::<ShardingConfig>::namespaced(client.clone(), &namespace);
        match api.patch_metadata(&name, &PatchParams::default(), &patch).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot let go of ShardingConfig {namespace}/{name}"));
            }
        }
    }
    Ok(())
}

/// The agent knows what it labelled. As whoever ran `up`: the agent's own token may be over.
async fn uninstall(fleet: &Fleet, member: &FleetMember) -> anyhow::Result<()> {
    if !fleet.path(&format!("agent-{}.kubeconfig", member.name)).exists() {
        return Ok(());
    }
    let output = tokio::process::Command::new(find("portolan-agent")?)
        .args(["uninstall", "--kubeconfig", &text(&member.kubeconfig)])
        .stdin(Stdio::null())
        .output()
        .await
        .context("cannot run portolan-agent uninstall")?;
    if !output.status.success() {
        bail!(
            "portolan-agent uninstall: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

/// Deletes in reverse order of creation; returns what could not be deleted.
async fn delete_created(fleet: &Fleet) -> Vec<String> {
    let mut clients = Clients::default();
    let mut left = Vec::new();
    for created in fleet.created.iter().rev() {
        let deleted = match client_of(&mut clients, fleet, created.cluster.as_deref()).await {
            Ok(client) => apply::delete(&client, std::slice::from_ref(&created.object)).await,
            Err(error) => Err(error.context(apply::describe(&created.object))),
        };
        if let Err(error) = deleted {
            left.push(format!("{error:#}"));
        }
    }
    left
}

/// Namespaces and definitions empty themselves first, and nothing of the same name can be made meanwhile.
async fn still_there(fleet: &Fleet) -> Vec<String> {
    let mut clients = Clients::default();
    let mut left = Vec::new();
    let started = Instant::now();
    for created in fleet.created.iter().rev() {
        loop {
            let found = match client_of(&mut clients, fleet, created.cluster.as_deref()).await {
                Ok(client) => apply::exists(&client, &created.object).await,
                Err(error) => Err(error),
            };
            let problem = match found {
                Ok(false) => break,
                Ok(true) => "is being deleted still".to_owned(),
                Err(error) => format!("{error:#}"),
            };
            if started.elapsed() > GONE_PATIENCE {
                left.push(format!("{} {problem}", apply::describe(&created.object)));
                break;
            }
            tokio::time::sleep(GONE_POLL).await;
        }
    }
    left
}

/// A client of a recorded cluster; `None` is the hub.
async fn client_of(clients: &mut Clients, fleet: &Fleet, cluster: Option<&str>) -> anyhow::Result<Client> {
    let Some(name) = cluster else {
        return clients.of("the hub", &fleet.hub_kubeconfig).await;
    };
    let kubeconfig = &fleet.member(name)?.kubeconfig;
    clients.of(&format!("member cluster {name}"), kubeconfig).await
}

/// Removes the files that `up` and the programs wrote, and the folder if nothing else is in it.
fn remove_files(fleet: &Fleet) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(&fleet.dir).with_context(|| format!("cannot read {}", fleet.dir.display()))? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let ours = name == "router-state"
            || [
                ".log",
                ".token",
                ".kubeconfig",
                ".addresses.json",
                ".bootstrap",
                "hub-ca.crt",
            ]
            .iter()
            .any(|end| name.ends_with(end));
        if ours && path.is_dir() {
            std::fs::remove_dir_all(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        } else if ours {
            std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    fleet.remove()?;
    let _ = std::fs::remove_dir(&fleet.dir);
    Ok(())
}
