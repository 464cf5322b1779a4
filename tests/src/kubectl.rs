//! kubectl as people type it, against a member directly or through the router.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use anyhow::{Context as _, bail};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// kubectl with a kubeconfig and flags that every call gets.
#[derive(Clone, Debug)]
pub struct Kubectl {
    kubeconfig: PathBuf,
    flags: Vec<String>,
}

/// How a call ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Exit code 0.
    pub ok: bool,
    /// The exit code, unless a signal ended it.
    pub code: Option<i32>,
    /// What it printed.
    pub stdout: String,
    /// What it complained.
    pub stderr: String,
}

impl Ended {
    /// How a program ended that has printed this.
    pub(crate) fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            ok: output.status.success(),
            code: output.status.code(),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        }
    }
}

impl Kubectl {
    /// The current context of a kubeconfig.
    pub fn new(kubeconfig: &Path) -> Self {
        Self {
            kubeconfig: kubeconfig.to_owned(),
            flags: Vec::new(),
        }
    }

    /// With one more flag on every call.
    pub fn with(&self, flag: &str) -> Self {
        let mut more = self.clone();
        more.flags.push(flag.to_owned());
        more
    }

    /// The command itself, for what must be spoken with while it runs; killed when dropped.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = portolan_testbed::kubectl(&self.kubeconfig);
        command.args(&self.flags).args(arguments).kill_on_drop(true);
        command
    }

    /// Runs to its end, with `input` on stdin.
    pub async fn run(&self, arguments: &[&str], input: &str) -> anyhow::Result<Ended> {
        let mut child = self
            .command(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run kubectl")?;
        let mut stdin = child.stdin.take().context("a piped stdin")?;
        let write = async {
            // A command that does not read its input closes it.
            let _ = stdin.write_all(input.as_bytes()).await;
            drop(stdin);
        };
        let ((), output) = tokio::join!(write, child.wait_with_output());
        Ok(Ended::of(&output?))
    }

    /// What it printed; an error carries what it complained.
    pub async fn ok(&self, arguments: &[&str]) -> anyhow::Result<String> {
        self.ok_with(arguments, "").await
    }

    /// The same with something on stdin.
    pub async fn ok_with(&self, arguments: &[&str], input: &str) -> anyhow::Result<String> {
        let ended = self.run(arguments, input).await?;
        if !ended.ok {
            bail!("kubectl {}: {}{}", arguments.join(" "), ended.stdout, ended.stderr);
        }
        Ok(ended.stdout)
    }

    /// What it complained; an error if it went well.
    pub async fn refused(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let ended = self.run(arguments, "").await?;
        if ended.ok {
            bail!(
                "kubectl {} was to be refused, but: {}",
                arguments.join(" "),
                ended.stdout
            );
        }
        Ok(ended.stderr)
    }
}
