//! Local processes that outlive the command that started them, found again by pid *and* start time.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

const POLL: Duration = Duration::from_millis(50);
/// Programs drain on SIGTERM; one that does not end in this time is killed.
const STOP_PATIENCE: Duration = Duration::from_secs(15);
const TAIL_LINES: usize = 12;
const TAIL_WIDTH: usize = 300;

/// A program of the fleet.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Process {
    pub(crate) name: String,
    pub(crate) pid: i32,
    /// Start time in the kernel's words; a pid used again by another program has another one.
    started: String,
    pub(crate) log: PathBuf,
    /// Admin address, once known.
    #[serde(default)]
    pub(crate) admin: String,
}

/// Starts `program` in a process group of its own, its output appended to `log`.
pub(crate) fn spawn(name: &str, program: &Path, arguments: &[String], log: &Path) -> anyhow::Result<Process> {
    let open = || {
        File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("cannot open {}", log.display()))
    };
    let child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(open()?)
        .stderr(open()?)
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let pid = i32::try_from(child.id()).context("a pid fits an i32")?;
    let started = start_time(pid).with_context(|| format!("{name} ended at once:\n{}", tail(log)))?;
    Ok(Process {
        name: name.to_owned(),
        pid,
        started,
        log: log.to_path_buf(),
        admin: String::new(),
    })
}

impl Process {
    pub(crate) fn is_running(&self) -> bool {
        start_time(self.pid).is_some_and(|started| started == self.started)
    }

    /// An error with the end of the log if it has ended.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if self.is_running() {
            return Ok(());
        }
        bail!(
            "{} has ended; the end of {}:\n{}",
            self.name,
            self.log.display(),
            tail(&self.log)
        );
    }

    /// Asks it to end, once, and waits; kills it when it does not. Who is asked twice does not finish what it is doing.
    pub(crate) async fn stop(&self) {
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            let started = Instant::now();
            if self.is_running() {
                let _ = kill(Pid::from_raw(self.pid), signal);
            }
            while self.is_running() && started.elapsed() < STOP_PATIENCE {
                tokio::time::sleep(POLL).await;
            }
        }
    }
}

/// Field 22 of /proc/<pid>/stat; `None` for no such process and for a zombie.
fn start_time(pid: i32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses and may contain anything.
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
    let state = fields.next()?;
    (state != "Z").then(|| fields.nth(18).map(ToOwned::to_owned))?
}

/// The end of a log, for messages.
pub(crate) fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<String> = text
        .lines()
        .map(|line| line.chars().take(TAIL_WIDTH).collect())
        .collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_process_is_known_by_its_start_time() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let process = spawn("sleep", Path::new("sleep"), &["60".into()], &log).unwrap();
        assert!(process.is_running());
        let other = Process {
            started: "1".into(),
            ..process.clone()
        };
        assert!(!other.is_running(), "same pid, other start");
        process.stop().await;
        assert!(!process.is_running());
        assert!(process.check().is_err());
    }

    #[tokio::test]
    async fn who_is_stopped_is_asked_once_and_may_finish() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let script = "trap 'echo asked; sleep 0.5; echo done; exit' TERM; echo ready; while :; do sleep 0.01; done";
        let process = spawn("script", Path::new("sh"), &["-c".into(), script.into()], &log).unwrap();
        while !tail(&log).contains("ready") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        process.stop().await;
        assert_eq!(tail(&log), "ready\nasked\ndone");
    }
}
