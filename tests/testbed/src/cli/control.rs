//! Talking to the daemon: one JSON line each way over a Unix socket in the testbed's folder, and starting and ending
//! the daemon itself.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use portolan_testbed::{Bundle, Fault};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

/// A restart waits for an API server, which has the tests' patience; this is only for a daemon that hangs.
const ANSWER_LIMIT: Duration = Duration::from_mins(5);
/// Ending takes well under a second.
const DOWN_LIMIT: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(50);
/// Lines of the daemon's log that an error quotes.
const LOG_TAIL_LINES: usize = 40;

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    Status,
    Kill(String),
    Restart(String),
    Freeze(String),
    Thaw(String),
    Fault(String, Fault),
    Down,
}

/// What the daemon answers: all clusters after the request was carried out, or why it was not.
pub(super) type Answer = Result<Vec<ClusterReport>, String>;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ClusterReport {
    pub(super) name: String,
    pub(super) url: String,
    pub(super) direct_url: String,
    pub(super) kubeconfig: PathBuf,
    pub(super) direct_kubeconfig: PathBuf,
    pub(super) running: bool,
    pub(super) fault: Fault,
}

pub(super) fn socket(dir: &Path) -> PathBuf {
    dir.join("control.sock")
}

/// Sends one request to the daemon of `dir`.
pub(super) async fn ask(dir: &Path, request: Request) -> Result<Vec<ClusterReport>> {
    let stream = UnixStream::connect(socket(dir)).await;
    let stream = stream.with_context(|| format!("no testbed is running in {}", dir.display()))?;
    converse(stream, request).await
}

async fn converse(mut stream: UnixStream, request: Request) -> Result<Vec<ClusterReport>> {
    let line = serde_json::to_string(&request)? + "\n";
    stream.write_all(line.as_bytes()).await?;
    let mut answer = String::new();
    let mut stream = BufReader::new(stream);
    timeout(ANSWER_LIMIT, stream.read_line(&mut answer))
        .await
        .context("the testbed does not answer")??;
    if answer.is_empty() {
        bail!("the testbed ended without an answer");
    }
    serde_json::from_str::<Answer>(&answer)?.map_err(|refusal| anyhow!(refusal))
}

/// Starts the daemon of `dir` with `args` and waits until its clusters are ready. One that runs already will do if
/// it has all the clusters.
pub(super) async fn up(dir: &Path, names: &[String], args: Vec<OsString>) -> Result<Vec<ClusterReport>> {
    if let Ok(running) = ask(dir, Request::Status).await {
        if names
            .iter()
            .all(|name| running.iter().any(|cluster| &cluster.name == name))
        {
            return Ok(running);
        }
        bail!(
            "a testbed with other clusters is running in {}: take it down first",
            dir.display()
        );
    }
    // Here rather than in the daemon, whose stderr nobody sees.
    Bundle::CONTROL_PLANE.ensure()?;
    fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    let log = dir.join("daemon.log");
    let mut daemon = start_daemon(dir, args, &log)?;
    loop {
        if let Some(status) = daemon.try_wait()? {
            let text = fs::read_to_string(&log).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            bail!(
                "{status}:\n{}",
                lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
            );
        }
        if let Ok(clusters) = ask(dir, Request::Status).await {
            release(&mut daemon)?;
            return Ok(clusters);
        }
        sleep(POLL).await;
    }
}

/// Until [`release`], the daemon ends when we do, for it sees the end of its stdin.
fn start_daemon(dir: &Path, args: Vec<OsString>, log: &Path) -> Result<Child> {
    let output = fs::File::create(log).with_context(|| format!("creating {}", log.display()))?;
    let errors = output.try_clone()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("serve").arg("--dir").arg(dir).args(args);
    command
        .stdin(Stdio::piped())
        .stdout(output)
        .stderr(errors)
        .process_group(0);
    command.spawn().context("starting the daemon")
}

fn release(daemon: &mut Child) -> Result<()> {
    let stdin = daemon.stdin.take().context("the daemon has no stdin")?;
    { stdin }.write_all(b"stay\n").context("the daemon has just ended")
}

/// Ends the daemon of `dir` and with it everything it runs.
pub(super) async fn down(dir: &Path) -> Result<()> {
    let Ok(stream) = UnixStream::connect(socket(dir)).await else {
        return writeln!(io::stderr(), "no testbed is running in {}", dir.display()).context("writing to stderr");
    };
    // The kernel says who listens there, so this can be nobody else's process.
    let daemon = stream.peer_cred()?.pid().map(Pid::from_raw);
    match timeout(DOWN_LIMIT, converse(stream, Request::Down)).await {
        Ok(ended) => ended.map(drop),
        Err(_) => kill(daemon.context("the daemon hangs and has no pid")?, Signal::SIGKILL).context("killing it"),
    }
}

/// Removes the folders of clusters in `dir`, and nothing else.
pub(super) fn wipe(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))? {
        let folder = entry?.path();
        if folder.join("ports.json").exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
        }
    }
    Ok(())
}
