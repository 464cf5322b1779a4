//! A program that keeps many clients and tells of them by JSON lines: `report` on its stdin, one `report` line on its stdout.
//! The Go program of `tests/clients` speaks so, and those in other languages beside it.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::Report;

/// A machine under load is slow, and so is a program that has just started.
const PATIENCE: Duration = Duration::from_mins(1);

/// A running program; dropping it kills it.
pub(super) struct Program {
    name: String,
    _child: Child,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl Program {
    /// `name` comes before its clients' own.
    pub(super) fn start(name: &str, program: &Path, arguments: &[&str], kubeconfig: &Path) -> anyhow::Result<Self> {
        let mut child = Command::new(program)
            .args(arguments)
            .env("KUBECONFIG", kubeconfig)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot run {}", program.display()))?;
        Ok(Self {
            name: name.to_owned(),
            stdin: child.stdin.take().context("a piped stdin")?,
            stdout: BufReader::new(child.stdout.take().context("a piped stdout")?).lines(),
            _child: child,
        })
    }

    /// What all of its clients tell; lines of other types are passed over.
    pub(super) async fn report(&mut self) -> anyhow::Result<Vec<Report>> {
        self.stdin.write_all(b"report\n").await.context("it has ended")?;
        let told = async {
            loop {
                let line = self.stdout.next_line().await?.context("it has ended")?;
                let mut line: Value = serde_json::from_str(&line).with_context(|| format!("not JSON: {line}"))?;
                match line["type"].as_str() {
                    Some("report") => return Ok(serde_json::from_value::<Vec<Report>>(line["clients"].take())?),
                    Some("fatal") => bail!("{line}"),
                    _ => {}
                }
            }
        };
        let told = tokio::time::timeout(PATIENCE, told)
            .await
            .context("no report")
            .flatten();
        let mut told = told.with_context(|| self.name.clone())?;
        for report in &mut told {
            report.name = format!("{} {}", self.name, report.name);
        }
        Ok(told)
    }
}
