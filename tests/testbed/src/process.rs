//! A child process that cannot outlive us. Every program runs under a small `sh` that holds one end of a pipe: when
//! our end closes, for whatever reason (drop, panic, Ctrl-C, SIGKILL), the shell kills its whole process group.
//! It needs no unsafe code, no helper binary, and works where PR_SET_PDEATHSIG does not (that signal follows the
//! spawning *thread*, and an async runtime's threads come and go).

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

/// Prints the program's pid, then waits for its end or ours. `kill -9 0` ends the group: the program, what it
/// started, the reader and the shell itself.
const SUPERVISOR: &str = r#"
exec 3<&0 </dev/null
"$@" 3<&- >&2 &
child=$!
echo $child
exec >&2
{ read -r line <&3; kill -9 0; } &
wait $child
echo "testbed: $1 ended with status $?"
kill -9 0
"#;

/// Removes a folder when our end of the pipe closes; a few tries, because dying programs may still write to it.
const SWEEPER: &str = r#"
read -r line
tries=0
while ! rm -rf "$1" 2>/dev/null && [ $tries -lt 50 ]; do tries=$((tries + 1)); sleep 0.1; done
"#;

/// Lines of a log that an error message quotes.
const LOG_TAIL_LINES: usize = 25;

/// A running program. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    supervisor: Child,
    /// Our end of the pipe; apart from `supervisor`, whose wait() would close it first.
    _leash: ChildStdin,
    pid: Pid,
    log: PathBuf,
}

impl Process {
    /// Starts `program`; both its output streams are appended to `log`.
    pub(crate) fn spawn(program: &Path, args: &[String], log: &Path) -> Result<Self> {
        Self::spawn_in(program, args, &[], log)
    }

    /// The same, with these variables besides our own.
    pub(crate) fn spawn_in(program: &Path, args: &[String], env: &[(&str, &str)], log: &Path) -> Result<Self> {
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let output = File::options().create(true).append(true).open(log);
        let output = output.with_context(|| format!("opening {}", log.display()))?;
        let mut supervisor = shell(SUPERVISOR)
            .arg(program)
            .args(args)
            .envs(env.iter().copied())
            .stdout(Stdio::piped())
            .stderr(output)
            .spawn()
            .with_context(|| format!("starting {name} under sh"))?;
        let leash = supervisor.stdin.take().context("the supervisor has no stdin")?;
        let mut line = String::new();
        let stdout = supervisor.stdout.take().context("the supervisor has no stdout")?;
        BufReader::new(stdout)
            .read_line(&mut line)
            .with_context(|| format!("reading the pid of {name}"))?;
        let pid = line
            .trim()
            .parse()
            .with_context(|| format!("{name} did not start: {}", tail(log)))?;
        Ok(Self {
            name,
            supervisor,
            _leash: leash,
            pid: Pid::from_raw(pid),
            log: log.to_owned(),
        })
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// Sends `signal` to the program alone, not to its supervisor.
    pub(crate) fn signal(&mut self, signal: Signal) -> Result<()> {
        if !self.is_running() {
            bail!("{} is not running", self.name);
        }
        kill(self.pid, signal).with_context(|| format!("sending {signal} to {}", self.name))
    }

    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.supervisor.try_wait(), Ok(None))
    }

    /// Whether every thread has stopped after a SIGSTOP. Where there is no /proc, the signal is taken at its word.
    pub(crate) fn is_stopped(&self) -> bool {
        let Ok(threads) = fs::read_dir(format!("/proc/{}/task", self.pid)) else {
            return !cfg!(target_os = "linux");
        };
        let stats = threads
            .flatten()
            .filter_map(|thread| fs::read_to_string(thread.path().join("stat")).ok());
        // "pid (name) state ...", and the name may contain anything.
        stats
            .into_iter()
            .all(|stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T')))
    }

    /// SIGKILL, and returns when the program is gone and its ports and locks are free.
    pub(crate) fn kill(&mut self) {
        if self.is_running() {
            // An error means it has just died by itself: the supervisor ends in both cases.
            let _ = kill(self.pid, Signal::SIGKILL);
            let _ = self.supervisor.wait();
        }
    }

    /// The end of its log, for error messages.
    pub(crate) fn describe(&self) -> String {
        format!("{}:\n{}", self.name, tail(&self.log))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A temporary folder that disappears also when we are killed. `PORTOLAN_TESTBED_KEEP=1` keeps it, to read the logs.
#[derive(Debug)]
pub(crate) struct Scratch {
    folder: Option<TempDir>,
    kept: Option<PathBuf>,
    sweeper: Option<Child>,
}

impl Scratch {
    pub(crate) fn new() -> Result<Self> {
        let folder = TempDir::with_prefix("portolan-testbed-").context("creating a temporary folder")?;
        if std::env::var_os("PORTOLAN_TESTBED_KEEP").is_some() {
            return Ok(Self {
                folder: None,
                kept: Some(folder.keep()),
                sweeper: None,
            });
        }
        let sweeper = shell(SWEEPER)
            .arg(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let sweeper = sweeper.context("starting sh")?;
        Ok(Self {
            folder: Some(folder),
            kept: None,
            sweeper: Some(sweeper),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        let folder = self.folder.as_ref().map(TempDir::path);
        folder
            .or(self.kept.as_deref())
            .expect("a scratch folder is temporary or kept")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(mut sweeper) = self.sweeper.take() {
            drop(sweeper.stdin.take());
            let _ = sweeper.wait();
        }
    }
}

/// `sh -c script sh`, in a process group of its own so that Ctrl-C reaches only us, with a pipe as its stdin.
fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", script, "sh"])
        .process_group(0)
        .stdin(Stdio::piped());
    command
}

fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spawn(folder: &Path, script: &str) -> Process {
        let args = ["-c".to_owned(), script.to_owned()];
        Process::spawn(Path::new("/bin/sh"), &args, &folder.join("log")).unwrap()
    }

    fn alive(pid: i32) -> bool {
        kill(Pid::from_raw(pid), None).is_ok()
    }

    #[test]
    fn a_dropped_process_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let process = spawn(folder.path(), "exec sleep 100");
        let pid = process.pid();
        assert!(alive(pid));
        drop(process);
        assert!(!alive(pid));
    }

    #[test]
    fn a_frozen_process_can_be_killed() {
        let folder = tempfile::tempdir().unwrap();
        let mut process = spawn(folder.path(), "exec sleep 100");
        assert!(!process.is_stopped());
        process.signal(Signal::SIGSTOP).unwrap();
        while !process.is_stopped() {
            std::thread::yield_now();
        }
        process.kill();
        assert!(!process.is_running());
        assert!(process.signal(Signal::SIGCONT).is_err());
    }

    #[test]
    fn an_early_end_is_noticed_and_explained() {
        let folder = tempfile::tempdir().unwrap();
        let mut process = spawn(folder.path(), "echo no such flag; exit 3");
        let _ = process.supervisor.wait();
        assert!(!process.is_running());
        let story = process.describe();
        assert!(story.contains("no such flag") && story.contains("status 3"), "{story}");
    }

    #[test]
    fn a_scratch_folder_is_removed() {
        let scratch = Scratch::new().unwrap();
        let path = scratch.path().to_owned();
        fs::write(path.join("file"), "x").unwrap();
        drop(scratch);
        assert!(!path.exists());
    }
}
