//! From `up` to `down`, with a program that dies in between, and from an `up` that fails to `down`.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use portolan_testbed::eventually;
use portolan_tests::ctl;
use portolan_tests::kubectl::Kubectl;
use portolan_tests::programs::argument;
use portolan_tests::shard::federated;
use serde_json::Value;

use crate::{Ground, ground, words};

fn record(dir: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(dir.join("fleet.json")).unwrap()).unwrap()
}

fn pid(dir: &Path, name: &str) -> Pid {
    let record = record(dir);
    let processes = record["processes"].as_array().unwrap();
    let process = processes.iter().find(|process| process["name"] == name).unwrap();
    Pid::from_raw(process["pid"].as_i64().unwrap().try_into().unwrap())
}

#[tokio::test]
async fn from_up_to_down() {
    let ground = ground().await;
    let scratch = tempfile::tempdir().unwrap();
    let (dir, manifest) = (scratch.path().join("fleet"), scratch.path().join("shards.yaml"));
    std::fs::write(
        &manifest,
        federated("alpha", "east", &[("east", &["team-a"]), ("west", &["team-b"])]),
    )
    .unwrap();
    let (_guard, up) = ground.up(&dir, Some(&manifest));
    let told = ctl::ok(&words(&up)).await.unwrap();
    for word in [
        "https://127.0.0.1:",
        "merged-alpha.kubeconfig",
        "explicit.kubeconfig",
        "dev down",
    ] {
        assert!(told.contains(word), "{word} is not in {told}");
    }

    only_its_owner_reads(&dir);
    both_views_work(&dir).await;
    a_second_up_is_refused(&ground, &dir, &up).await;
    let dir_text = argument(&dir);
    let status = ["dev", "status", "--dir", &dir_text];
    let well = ctl::ok(&status).await.unwrap();
    for program in ["hub", "agent-east", "agent-west", "router", "renew"] {
        assert!(well.lines().any(|line| line.starts_with(program)), "{program}: {well}");
    }

    let agent = pid(&dir, "agent-west");
    kill(agent, Signal::SIGKILL).unwrap();
    let unwell = eventually("status notices the end", || async {
        let unwell = ctl::refused(&status).await?;
        let line = unwell.lines().find(|line| line.starts_with("agent-west"));
        anyhow::ensure!(line.is_some_and(|line| line.contains("ended")), "{unwell}");
        Ok(unwell)
    })
    .await;
    assert!(
        unwell
            .lines()
            .any(|line| line.starts_with("agent-east") && line.contains("ready")),
        "{unwell}"
    );

    let pids: Vec<Pid> = ["hub", "agent-east", "router", "renew"]
        .map(|name| pid(&dir, name))
        .to_vec();
    ctl::ok(&["dev", "down", "--dir", &dir_text]).await.unwrap();
    for pid in pids {
        assert!(!is_running(pid), "process {pid} still runs");
    }
    let left =
        std::fs::read_dir(&dir).map(|entries| entries.map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>());
    assert!(left.is_err(), "the folder is still there, with {left:?}");
    ground.assert_as_before().await;
    let nothing = ctl::refused(&status).await.unwrap();
    assert!(nothing.contains("no fleet in"), "{nothing}");
}

/// Everything with a secret in it, and the folder.
fn only_its_owner_reads(dir: &Path) {
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(dir), 0o700);
    let mut looked_at = 0;
    for folder in [dir.to_path_buf(), dir.join("router-state")] {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let harmless = [".log", ".addresses.json", "hub-ca.crt"]
                .iter()
                .any(|end| name.ends_with(end));
            if path.is_file() && !harmless {
                assert_eq!(mode(&path), 0o600, "{name}");
                looked_at += 1;
            }
        }
    }
    // explicit, merged, one for each program; their tokens; the record; identity and state of the router.
    assert!(looked_at >= 12, "only {looked_at} files");
}

async fn both_views_work(dir: &Path) {
    // kubectl keeps what it discovers beside a kubeconfig: not in the folder that is to disappear.
    let scratch = tempfile::tempdir().unwrap();
    let copy = |name: &str| {
        let to = scratch.path().join(name);
        std::fs::copy(dir.join(name), &to).unwrap();
        Kubectl::new(&to)
    };
    let merged = copy("merged-alpha.kubeconfig");
    merged
        .ok(&["get", "configmap", "settings", "-n", "team-b"])
        .await
        .unwrap();
    let explicit = copy("explicit.kubeconfig");
    for (member, namespace) in [("east", "team-a"), ("west", "team-b")] {
        let context = format!("--context={member}");
        let names = explicit
            .ok(&[&context, "get", "deployments", "-n", namespace, "-o", "name"])
            .await
            .unwrap();
        assert!(names.contains("deployment.apps/shop"), "{names}");
    }
}

async fn a_second_up_is_refused(ground: &Ground, dir: &Path, up: &[String]) {
    let (before, running) = (record(dir), pid(dir, "router"));
    let refusal = ctl::refused(&words(up)).await.unwrap();
    for word in ["holds a fleet already", "dev status", "dev down"] {
        assert!(refusal.contains(word), "{refusal}");
    }
    assert_eq!(record(dir), before, "the record is untouched");
    assert!(is_running(running));
    let _ = ground;
}

fn is_running(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ")
        .next()
        .is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

/// Two shards want one namespace: the second is never accepted, `up` says so as soon as it knows, `down` undoes what was
/// done.
#[tokio::test]
async fn an_up_that_fails_can_be_undone() {
    let ground = ground().await;
    let scratch = tempfile::tempdir().unwrap();
    let (dir, manifest) = (scratch.path().join("fleet"), scratch.path().join("shards.yaml"));
    let shards =
        federated("first", "east", &[("east", &["team-a"])]) + &federated("second", "east", &[("east", &["team-a"])]);
    std::fs::write(&manifest, shards).unwrap();
    let (_guard, up) = ground.up(&dir, Some(&manifest));
    let told = ctl::refused(&words(&up)).await.unwrap();
    for word in [
        "ShardingConfig operators/second",
        "Overlap",
        "east/team-a",
        "operators/first",
        "dev down",
    ] {
        assert!(told.contains(word), "{word} is not in {told}");
    }
    ctl::ok(&["dev", "down", "--dir", &argument(&dir)]).await.unwrap();
    assert!(!dir.exists());
    ground.assert_as_before().await;
}
