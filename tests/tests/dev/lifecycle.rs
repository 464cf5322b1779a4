//! From `up` to `down`, with programs that die in between, and from an `up` that fails to `down`.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

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

const PROGRAMS: [&str; 5] = ["hub", "agent-east", "agent-west", "router", "supervisor"];

#[tokio::test]
async fn from_up_to_down() {
    let ground = ground().await;
    let scratch = tempfile::tempdir().unwrap();
    let (dir, manifest) = (scratch.path().join("fleet"), scratch.path().join("shards.yaml"));
    let shard = federated("alpha", "east", &[("east", &["team-a"]), ("west", &["team-b"])]);
    std::fs::write(
        &manifest,
        shard.replace("callerClusters: [east]", "callerClusters: [east, west]"),
    )
    .unwrap();
    let (_guard, up) = ground.up(&dir, Some(&manifest));
    let told = ctl::ok(&words(&up)).await.unwrap();
    for word in [
        "https://127.0.0.1:",
        "merged-alpha.kubeconfig (shard operators/alpha, caller in east)",
        "merged-alpha@west.kubeconfig (shard operators/alpha, caller in west)",
        "explicit.kubeconfig",
        "portolan:dev, the user of explicit.kubeconfig, is cluster-admin",
        "--user-role",
        "--caller-role",
        "dev down",
    ] {
        assert!(told.contains(word), "{word} is not in {told}");
    }

    only_its_owner_reads(&dir);
    both_views_work(&dir).await;
    a_second_up_is_refused(&ground, &dir, &up).await;
    let fleet = Running { dir: &dir };
    let well = fleet.ok(&["status"]).await;
    for program in PROGRAMS {
        assert!(well.lines().any(|line| line.starts_with(program)), "{program}: {well}");
    }
    assert!(well.contains("5 of 5 programs run"), "{well}");

    fleet.what_is_killed_comes_back().await;
    both_views_work(&dir).await;
    fleet.without_its_supervisor().await;
    fleet.ok(&["restart", "agent-west"]).await;
    both_views_work(&dir).await;
    fleet.status_says("5 of 5 programs run").await;

    let pids: Vec<Pid> = PROGRAMS.map(|name| pid(&dir, name)).to_vec();
    let told = fleet.ok(&["down"]).await;
    assert!(told.contains("logs are kept in"), "{told}");
    for pid in pids {
        assert!(!is_running(pid), "process {pid} still runs");
    }
    let left = std::fs::read_dir(&dir).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().path()).collect();
    let is_log = |path: &PathBuf| path.extension().is_some_and(|end| end == "log");
    assert!(left.iter().all(is_log), "{left:?}");
    assert!(left.contains(&dir.join("router.log")), "{left:?}");
    ground.assert_as_before().await;
    let nothing = fleet.refused(&["status"]).await;
    assert!(nothing.contains("no fleet in"), "{nothing}");
}

/// A fleet by its folder.
struct Running<'a> {
    dir: &'a Path,
}

impl Running<'_> {
    async fn ok(&self, words: &[&str]) -> String {
        let dir = argument(self.dir);
        ctl::ok(&[&["dev"], words, &["--dir", &dir]].concat()).await.unwrap()
    }

    async fn refused(&self, words: &[&str]) -> String {
        let dir = argument(self.dir);
        ctl::refused(&[&["dev"], words, &["--dir", &dir]].concat())
            .await
            .unwrap()
    }

    async fn status_says(&self, what: &str) -> String {
        let dir = argument(self.dir);
        eventually(&format!("status says {what}"), || async {
            let ended = ctl::portolanctl(&["dev", "status", "--dir", &dir]).await?;
            let said = ended.stdout + &ended.stderr;
            anyhow::ensure!(said.contains(what), "{said}");
            Ok(said)
        })
        .await
    }

    /// At the same addresses, so that nobody who uses them need know.
    async fn what_is_killed_comes_back(&self) {
        let before = record(self.dir);
        for name in ["router", "hub", "agent-west"] {
            let killed = pid(self.dir, name);
            kill(killed, Signal::SIGKILL).unwrap();
            eventually(&format!("{name} comes back"), || {
                let now = pid(self.dir, name);
                std::future::ready(now != killed && is_running(now))
            })
            .await;
        }
        let well = self.status_says("5 of 5 programs run").await;
        let line = well.lines().find(|line| line.starts_with("router ")).unwrap();
        assert_eq!(line.split_whitespace().nth(3), Some("1"), "restarts: {line}");
        let replaced = pid(self.dir, "router");
        self.ok(&["restart", "router"]).await;
        assert_ne!(pid(self.dir, "router"), replaced);
        let now = record(self.dir);
        for key in ["routerUrl", "routerAdmin", "hubAddress"] {
            assert_eq!(now[key], before[key], "{key}");
        }
        let ports = |record: &Value| -> Vec<Value> {
            let processes = record["processes"].as_array().unwrap().iter();
            processes.map(|process| process["admin"].clone()).collect()
        };
        assert_eq!(ports(&now), ports(&before));
        let unknown = self.refused(&["restart", "rooter"]).await;
        assert!(
            unknown.contains("no program rooter") && unknown.contains("agent-east"),
            "{unknown}"
        );
    }

    /// Killed like any other. Nothing is started again until there is a new one, which goes on from the record.
    async fn without_its_supervisor(&self) {
        self.ok(&["stop", "agent-west"]).await;
        let second = self.refused(&["supervise"]).await;
        assert!(second.contains("another supervisor is at work"), "{second}");
        kill(pid(self.dir, "supervisor"), Signal::SIGKILL).unwrap();
        let router = pid(self.dir, "router");
        kill(router, Signal::SIGKILL).unwrap();
        let unwell = self.status_says("2 of 5 programs run").await;
        for word in [
            "supervisor ended: nothing is started again",
            "dev restart supervisor",
            "router ended: nobody",
            "agent-west stopped: ",
        ] {
            assert!(unwell.contains(word), "{word} is not in {unwell}");
        }
        self.ok(&["restart", "supervisor"]).await;
        let said = self.status_says("4 of 5 programs run").await;
        assert!(said.contains("agent-west stopped: "), "{said}");
        assert_ne!(pid(self.dir, "router"), router);
    }
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
        let get = [&context, "get", "deployments", "-n", namespace, "-o", "name"];
        // The hub is asked whether a person may: one that was killed leads again once its Lease has run out.
        eventually(&format!("the explicit view of {member} answers"), || async {
            let names = explicit.ok(&get).await?;
            anyhow::ensure!(names.contains("deployment.apps/shop"), "{names}");
            anyhow::Ok(())
        })
        .await;
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
    let why = std::fs::read_to_string(dir.join("up.log")).unwrap();
    assert!(why.contains("Overlap"), "{why}");
    assert!(dir.join("hub.log").exists() && !dir.join("fleet.json").exists());
    ground.assert_as_before().await;
}
