//! The Go program of `tests/clients` as a child process: informers and pagers as Go operators have them, asked what they
//! hold so that a test can compare it with the truth. `tests/clients/lines.go` has the protocol.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context as _, bail};
use serde::Deserialize;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::programs::program;

/// A running client; dropping it kills it.
#[derive(Debug)]
pub struct GoClient {
    _child: Child,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
    seen: Vec<Value>,
}

/// What a client holds, and how often it was told what.
#[derive(Clone, Debug, Deserialize)]
pub struct Dump {
    /// Sorted by key.
    pub items: Vec<Item>,
    /// Lines by type, requests by verb (`list`, `watch`, `watch-list`; with `-ok` those answered 200).
    pub counts: BTreeMap<String, u64>,
}

/// One object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub struct Item {
    /// `namespace/name`, or the name.
    pub key: String,
    /// Its uid.
    pub uid: String,
    /// Its resourceVersion.
    pub rv: String,
}

impl Dump {
    /// How often, 0 if never.
    pub fn count(&self, of: &str) -> u64 {
        self.counts.get(of).copied().unwrap_or(0)
    }
}

impl GoClient {
    /// Starts `portolan-go-client` with a subcommand and its flags.
    pub fn start(kubeconfig: &Path, arguments: &[&str]) -> anyhow::Result<Self> {
        let mut child = Command::new(program("portolan-go-client")?)
            .args(arguments)
            .env("KUBECONFIG", kubeconfig)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("cannot run portolan-go-client")?;
        let stdin = child.stdin.take().context("a piped stdin")?;
        let stdout = BufReader::new(child.stdout.take().context("a piped stdout")?).lines();
        Ok(Self {
            _child: child,
            stdin,
            stdout,
            seen: Vec::new(),
        })
    }

    /// Starts one and waits until its cache holds the initial state.
    pub async fn synced(kubeconfig: &Path, arguments: &[&str]) -> anyhow::Result<Self> {
        let mut client = Self::start(kubeconfig, arguments)?;
        client.wait_type("synced").await?;
        Ok(client)
    }

    /// Reads on until a line is as wanted, within the patience of tests.
    pub async fn wait(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> anyhow::Result<Value> {
        let deadline = Instant::now() + portolan_testbed::patience();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(line) = tokio::time::timeout(left, self.stdout.next_line()).await else {
                bail!("the Go client never printed {what}; its last lines: {:?}", self.last());
            };
            let Some(line) = line? else {
                bail!("the Go client ended before {what}; its last lines: {:?}", self.last());
            };
            let line: Value = serde_json::from_str(&line).with_context(|| format!("not a JSON line: {line}"))?;
            self.seen.push(line.clone());
            if wanted(&line) {
                return Ok(line);
            }
        }
    }

    /// The next line of a type.
    pub async fn wait_type(&mut self, of: &str) -> anyhow::Result<Value> {
        self.wait(&format!("a line {of:?}"), |line| line["type"] == of).await
    }

    /// Sends a command.
    pub async fn tell(&mut self, command: &str) -> anyhow::Result<()> {
        self.stdin.write_all(format!("{command}\n").as_bytes()).await?;
        Ok(self.stdin.flush().await?)
    }

    /// What it holds now.
    pub async fn dump(&mut self) -> anyhow::Result<Dump> {
        self.tell("dump").await?;
        let line = self.wait_type("dump").await?;
        serde_json::from_value(line).context("a dump")
    }

    /// Every line read so far.
    pub fn seen(&self) -> &[Value] {
        &self.seen
    }

    fn last(&self) -> &[Value] {
        &self.seen[self.seen.len().saturating_sub(10)..]
    }
}
