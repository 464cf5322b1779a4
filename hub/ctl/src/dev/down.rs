//! `portolanctl dev down`: ends the programs, takes labels and objects back, removes the folder's files.
//!
//! A cluster that cannot be reached does not keep the rest from being undone; it is named at the end.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use futures::future::join_all;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use portolan_crds::ShardingConfig;
use portolan_crds::labels::FINALIZER_SHARD;
use serde_json::{Value, json};

use crate::apply;
use crate::cli::DevDownArgs;
use crate::connect::Clients;
use crate::dev::fleet::{FAILURE, Fleet, FleetMember, SUPERVISOR};
use crate::dev::process::{Process, tail};
use crate::dev::programs::{find, text};

/// How long it is waited until what was deleted is gone. A namespace with finalizers of others in it may take for ever.
const GONE_PATIENCE: Duration = Duration::from_mins(1);
const GONE_POLL: Duration = Duration::from_millis(200);
const TELL_EVERY: Duration = Duration::from_secs(5);
/// How names of logs end.
const LOG: &str = ".log";

pub(crate) async fn run(args: &DevDownArgs) -> anyhow::Result<()> {
    let dir = args.fleet.dir.canonicalize().unwrap_or_else(|_| args.fleet.dir.clone());
    // First of all who would start them again. What it started last is recorded then.
    if let Some(supervisor) = Fleet::read(&dir)?.supervisor() {
        println!("- stopping {SUPERVISOR}");
        supervisor.stop().await;
    }
    let fleet = Fleet::read(&dir)?;
    let keep_logs = args.keep_logs || has_failed(&fleet);
    stop_programs(&fleet).await;
    if !args.local_only {
        take_back(&fleet).await?;
    }
    remove_files(&fleet, keep_logs)
}

/// Routers and agents end before the hub, so that nothing reports or labels while it is taken back.
async fn stop_programs(fleet: &Fleet) {
    for process in fleet
        .processes
        .iter()
        .filter(|process| process.name != SUPERVISOR)
        .rev()
    {
        println!("- stopping {}", process.name);
        process.stop().await;
        // Started by a supervisor that was killed before it could write that down.
        let launch = &process.launch;
        if let Some(again) = launch
            .running()
            .and_then(|pid| Process::of(&process.name, pid, launch.clone(), &process.log))
        {
            again.stop().await;
        }
    }
}

/// Whether somebody will want to read what the programs logged.
fn has_failed(fleet: &Fleet) -> bool {
    let ended = |process: &Process| process.ends.all > 0 || !(process.stopped || process.is_running());
    fleet.path(FAILURE).exists()
        || fleet
            .processes
            .iter()
            .any(|process| process.name != SUPERVISOR && ended(process))
}

/// Undoes what was done to the clusters; what could not be undone is named, and the record stays for another try.
async fn take_back(fleet: &Fleet) -> anyhow::Result<()> {
    let uninstalled = join_all(fleet.members.iter().map(|member| async move {
        println!("- member {}: taking labels and policies back", member.name);
        let outcome = tokio::select! {
            outcome = uninstall(fleet, member) => outcome,
            () = tell_progress(fleet, member) => Ok(()),
        };
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
    let log = uninstall_log(fleet, member);
    let file = std::fs::File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let status = tokio::process::Command::new(find("portolan-agent")?)
        .args([
            "uninstall",
            "--log-format",
            "json",
            "--kubeconfig",
            &text(&member.kubeconfig),
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(file)
        .kill_on_drop(true)
        .status()
        .await
        .context("cannot run portolan-agent uninstall")?;
    if !status.success() {
        bail!("portolan-agent uninstall: {}", tail(&log));
    }
    Ok(())
}

fn uninstall_log(fleet: &Fleet, member: &FleetMember) -> PathBuf {
    fleet.path(&format!("uninstall-{}.log", member.name))
}

/// Prints how far it is now and then, for ever.
async fn tell_progress(fleet: &Fleet, member: &FleetMember) {
    let mut told = String::new();
    loop {
        tokio::time::sleep(TELL_EVERY).await;
        let log = std::fs::read_to_string(uninstall_log(fleet, member)).unwrap_or_default();
        if let Some(line) = log.lines().rev().find_map(progress).filter(|line| *line != told) {
            println!("- member {}: {line}", member.name);
            told = line;
        }
    }
}

/// What a line of the log says of how far it is.
fn progress(line: &str) -> Option<String> {
    let line: Value = serde_json::from_str(line).ok()?;
    let (done, all) = (line["done"].as_u64()?, line["all"].as_u64()?);
    Some(format!(
        "labels of {done} of {all} {} taken back",
        line["kind"].as_str()?
    ))
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

/// Removes the files that `up` and the programs wrote, but for logs that are to be kept, and the folder if nothing else is in
/// it.
fn remove_files(fleet: &Fleet, keep_logs: bool) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(&fleet.dir).with_context(|| format!("cannot read {}", fleet.dir.display()))? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if !is_ours(name) || (keep_logs && name.ends_with(LOG)) {
            continue;
        }
        let removed = if path.is_dir() {
            std::fs::remove_dir_all(&path)
        } else {
            std::fs::remove_file(&path)
        };
        removed.with_context(|| format!("cannot remove {}", path.display()))?;
    }
    fleet.remove()?;
    if keep_logs {
        println!("- logs are kept in {}", fleet.dir.display());
    }
    let _ = std::fs::remove_dir(&fleet.dir);
    Ok(())
}

fn is_ours(name: &str) -> bool {
    let ends = [
        LOG,
        ".token",
        ".kubeconfig",
        ".addresses.json",
        ".bootstrap",
        ".request",
        ".lock",
        "hub-ca.crt",
    ];
    name == "router-state" || ends.iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn fleet(dir: &Path) -> Fleet {
        let fleet = Fleet {
            dir: dir.join("fleet"),
            ..Fleet::default()
        };
        std::fs::create_dir(&fleet.dir).unwrap();
        for name in ["hub.log", "hub.token", "router.request", "supervisor.lock"] {
            std::fs::write(fleet.path(name), name).unwrap();
        }
        fleet.create().unwrap();
        fleet
    }

    #[test]
    fn logs_are_kept_when_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let fleet = fleet(dir.path());
        remove_files(&fleet, true).unwrap();
        let left: Vec<_> = std::fs::read_dir(&fleet.dir)
            .unwrap()
            .map(|file| file.unwrap().file_name())
            .collect();
        assert_eq!(left, ["hub.log"]);
    }

    #[test]
    fn nothing_is_left_otherwise() {
        let dir = tempfile::tempdir().unwrap();
        let fleet = fleet(dir.path());
        assert!(!has_failed(&fleet));
        std::fs::write(fleet.path(FAILURE), "dev up failed").unwrap();
        assert!(has_failed(&fleet));
        remove_files(&fleet, false).unwrap();
        assert!(!fleet.dir.exists());
    }

    #[test]
    fn progress_is_read_from_the_log() {
        let line = r#"{"level":"INFO","message":"taking labels back","kind":"configmaps","done":12,"all":30}"#;
        assert_eq!(progress(line).unwrap(), "labels of 12 of 30 configmaps taken back");
        assert_eq!(progress("thread panicked"), None);
    }
}
