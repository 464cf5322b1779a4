//! A child process that outlives neither its handle nor this process, and whose exit code is known: each runs under a small
//! shell that holds one end of a pipe (`scripts/supervise.sh`).

use std::collections::BTreeMap;
use std::process::Stdio;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

const SUPERVISOR: &str = include_str!("scripts/supervise.sh");

/// Exit code of a program that could not be waited for.
const UNKNOWN: i32 = 255;

/// What to run.
#[derive(Debug)]
pub(crate) struct Line {
    /// Absolute path, arguments.
    pub(crate) argv: Vec<String>,
    /// All variables that it has.
    pub(crate) env: BTreeMap<String, String>,
}

/// A running program. Dropping it kills it, and all of its process group.
#[derive(Debug)]
pub(crate) struct Process {
    supervisor: Child,
    group: Pid,
    /// Our end of the pipe; apart from `supervisor`, whose wait() would close it first.
    leash: Option<ChildStdin>,
}

/// What a program writes.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) stdout: ChildStdout,
    pub(crate) stderr: ChildStderr,
}

impl Process {
    pub(crate) fn spawn(sh: &str, line: &Line) -> Result<(Self, Output)> {
        let name = line.argv.first().context("nothing to run")?;
        let mut supervisor = Command::new(sh)
            .args(["-c", SUPERVISOR, "sh"])
            .args(&line.argv)
            .env_clear()
            .envs(&line.env)
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        let pid = supervisor.id().context("the supervisor has no process id")?;
        let leash = supervisor.stdin.take();
        let output = Output {
            stdout: supervisor.stdout.take().context("the supervisor has no stdout")?,
            stderr: supervisor.stderr.take().context("the supervisor has no stderr")?,
        };
        let process = Self {
            supervisor,
            group: Pid::from_raw(pid.cast_signed()),
            leash,
        };
        Ok((process, output))
    }

    /// Its exit code, once it has ended; 128 and the number of the signal if it was ended by one. Safe to cancel.
    pub(crate) async fn wait(&mut self) -> i32 {
        let ended = self.supervisor.wait().await;
        ended.ok().and_then(|status| status.code()).unwrap_or(UNKNOWN)
    }

    /// SIGKILL for all of its process group.
    pub(crate) fn kill(&mut self) {
        self.leash = None;
        // An error: nobody is left in it.
        let _ = killpg(self.group, Signal::SIGKILL);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends a signal to a process that need not be there any more.
pub(crate) fn signal(pid: i32, signal: Signal) {
    let _ = kill(Pid::from_raw(pid), signal);
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    const SH: &str = "/bin/sh";

    fn spawn(script: &str) -> (Process, Output) {
        let argv = [SH, "-c", script].map(String::from).to_vec();
        let env = BTreeMap::from([("GREETING".to_owned(), "hello".to_owned())]);
        Process::spawn(SH, &Line { argv, env }).unwrap()
    }

    #[tokio::test]
    async fn exit_codes_output_and_environment_are_the_programs() {
        let (mut process, mut output) = spawn("echo $GREETING; echo oh >&2; exit 7");
        let (mut said, mut complained) = (String::new(), String::new());
        output.stdout.read_to_string(&mut said).await.unwrap();
        output.stderr.read_to_string(&mut complained).await.unwrap();
        assert_eq!((said.as_str(), complained.as_str()), ("hello\n", "oh\n"));
        assert_eq!(process.wait().await, 7);
        let (mut process, _output) = spawn("kill -TERM $$");
        assert_eq!(process.wait().await, 128 + 15);
    }

    #[tokio::test]
    async fn a_dropped_process_is_gone_with_its_children() {
        let (process, mut output) = spawn("sleep 100 & echo started; wait");
        let mut started = [0; 8];
        output.stdout.read_exact(&mut started).await.unwrap();
        drop(process);
        // Its end is the end of all who hold the pipe: the sleep too.
        assert_eq!(output.stdout.read_to_end(&mut Vec::new()).await.unwrap(), 0);
    }
}
