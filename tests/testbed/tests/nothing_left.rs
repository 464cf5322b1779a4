//! Whatever happens to the process that holds a testbed, nothing of it is left. The process is this test program
//! itself, run again for the one test that is ignored here.
#![cfg(target_os = "linux")] // looks processes up in /proc
#![allow(clippy::unwrap_used, reason = "also in functions that only tests call")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use portolan_testbed::{Testbed, eventually};

const MARK: &str = "testbed in ";

/// Processes with `dir` on their command line: every program of a testbed, and the shells that guard them.
fn processes_of(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| fs::read_to_string(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.contains(&*dir.to_string_lossy())).collect()
}

/// Starts this program again to hold a testbed; returns it with the testbed's folder.
fn start_holder() -> (Child, PathBuf) {
    // A program started in the background ignores Ctrl-C, and so would what it starts.
    let mut holder = Command::new("env")
        .arg("--default-signal=INT")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "hold_a_testbed", "--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    let dir = lines
        .map_while(Result::ok)
        .find_map(|line| line.split_once(MARK).map(|(_, dir)| PathBuf::from(dir)));
    (holder, dir.expect("the holder did not start its testbed"))
}

async fn expect_nothing(dir: &Path) {
    let left = || processes_of(dir);
    eventually("all processes are gone", || async {
        if left().is_empty() { Ok(()) } else { Err(left()) }
    })
    .await;
    eventually("the folder is gone", || async { !dir.exists() }).await;
}

/// Not a test: the process that the others kill.
#[tokio::test]
#[ignore = "run by the other tests"]
async fn hold_a_testbed() {
    let testbed = Testbed::start(&["hub"]).await.unwrap();
    println!("{MARK}{}", testbed.dir().display());
    let _ = std::io::stdin().read_line(&mut String::new());
    panic!("a failing test");
}

#[tokio::test]
async fn after_sigkill() {
    let (mut holder, dir) = start_holder();
    let running = processes_of(&dir);
    for program in ["etcd", "kube-apiserver", "kube-controller-manager"] {
        assert!(
            running.iter().any(|line| line.contains(&format!("/{program}\0"))),
            "{program}: {running:?}"
        );
    }
    holder.kill().unwrap();
    assert_eq!(holder.wait().unwrap().signal(), Some(9));
    expect_nothing(&dir).await;
}

#[tokio::test]
async fn after_ctrl_c() {
    let (mut holder, dir) = start_holder();
    kill(Pid::from_raw(holder.id().cast_signed()), Signal::SIGINT).unwrap();
    assert_eq!(holder.wait().unwrap().signal(), Some(2));
    expect_nothing(&dir).await;
}

#[tokio::test]
async fn after_a_failed_test() {
    let (mut holder, dir) = start_holder();
    drop(holder.stdin.take());
    assert!(!holder.wait().unwrap().success());
    expect_nothing(&dir).await;
}
