//! Local processes that outlive the command that started them, found again by pid *and* start time.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use jiff::Timestamp;
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
    /// What it was started with, and is started with again.
    #[serde(default)]
    pub(crate) launch: Launch,
    #[serde(default)]
    pub(crate) ends: Ends,
    /// Ended because somebody asked for it: it stays so until it is asked for again.
    #[serde(default)]
    pub(crate) stopped: bool,
}

/// The command line of a program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Launch {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    /// Beside what is inherited.
    pub(crate) env: BTreeMap<String, String>,
}

/// How often a program ended unasked, and when it is started again. Times are Unix seconds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Ends {
    pub(crate) all: u32,
    /// The last ones, each soon after a start.
    pub(crate) in_a_row: u32,
    pub(crate) last_start: i64,
    /// `None` while it runs.
    pub(crate) next_start: Option<i64>,
}

/// Starts a program in a process group of its own, its output appended to `log`.
pub(crate) fn spawn(name: &str, launch: Launch, log: &Path) -> anyhow::Result<Process> {
    let open = || {
        File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("cannot open {}", log.display()))
    };
    let child = Command::new(&launch.program)
        .args(&launch.arguments)
        .envs(&launch.env)
        .stdin(Stdio::null())
        .stdout(open()?)
        .stderr(open()?)
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {}", launch.program.display()))?;
    let pid = i32::try_from(child.id()).context("a pid fits an i32")?;
    let process = Process::of(name, pid, launch, log);
    process.with_context(|| format!("{name} ended at once:\n{}", tail(log)))
}

impl Process {
    /// What runs as `pid`; `None` if nothing does.
    pub(crate) fn of(name: &str, pid: i32, launch: Launch, log: &Path) -> Option<Self> {
        Some(Self {
            name: name.to_owned(),
            pid,
            started: start_time(pid)?,
            log: log.to_path_buf(),
            admin: String::new(),
            launch,
            ends: Ends {
                last_start: Timestamp::now().as_second(),
                ..Ends::default()
            },
            stopped: false,
        })
    }

    /// The same run of the same program.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (self.pid, &self.started) == (other.pid, &other.started)
    }

    pub(crate) fn is_running(&self) -> bool {
        start_time(self.pid).is_some_and(|started| started == self.started)
    }

    /// An error with the end of the log if it has ended.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if self.is_running() { Ok(()) } else { self.has_ended() }
    }

    pub(crate) fn has_ended(&self) -> anyhow::Result<()> {
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

impl Launch {
    /// Its pid, if it runs whoever started it: the same program with the same arguments. What ends between a start and the
    /// record of it leaves such a one.
    pub(crate) fn running(&self) -> Option<i32> {
        if *self == Self::default() {
            return None;
        }
        let pids = std::fs::read_dir("/proc").ok()?.filter_map(|entry| {
            let name = entry.ok()?.file_name();
            name.to_str()?.parse::<i32>().ok()
        });
        let program = std::iter::once(self.program.to_string_lossy().into_owned());
        let words: Vec<String> = program.chain(self.arguments.iter().cloned()).collect();
        let mut same = pids.filter(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line);
            line.trim_end_matches('\0').split('\0').eq(&words)
        });
        same.find(|pid| start_time(*pid).is_some())
    }
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

    fn launch(program: &str, arguments: &[&str]) -> Launch {
        Launch {
            program: program.into(),
            arguments: arguments.iter().map(|word| (*word).to_owned()).collect(),
            env: BTreeMap::new(),
        }
    }

    #[tokio::test]
    async fn a_process_is_known_by_its_start_time() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let process = spawn("sleep", launch("sleep", &["60"]), &log).unwrap();
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
    async fn what_runs_is_found_by_its_command_line() {
        let dir = tempfile::tempdir().unwrap();
        // Like no other on this machine.
        let seconds = format!("60.{}", std::process::id());
        let (this, other) = (launch("sleep", &[&seconds]), launch("sleep", &[&seconds, "1"]));
        assert_eq!(this.running(), None);
        let process = spawn("sleep", this.clone(), &dir.path().join("log")).unwrap();
        // The kernel lets the parent go on before the child's new command line can be read.
        while this.running().is_none() && process.is_running() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!((this.running(), other.running()), (Some(process.pid), None));
        process.stop().await;
        assert_eq!(this.running(), None, "a zombie does not run");
    }

    #[tokio::test]
    async fn who_is_stopped_is_asked_once_and_may_finish() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let script = "trap 'echo asked; sleep 0.5; echo done; exit' TERM; echo ready; while :; do sleep 0.01; done";
        let process = spawn("script", launch("sh", &["-c", script]), &log).unwrap();
        while !tail(&log).contains("ready") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        process.stop().await;
        assert_eq!(tail(&log), "ready\nasked\ndone");
    }
}
