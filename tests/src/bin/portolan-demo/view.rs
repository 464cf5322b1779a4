//! kubectl on the merged view: each command is shown as it is typed, with what it printed, and a watch that stays open.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, bail, ensure};
use portolan_tests::kubectl::Kubectl;
use tokio::process::Child;

use crate::account::quote;
use crate::wait::wait_for;

/// The merged view as kubectl shows it.
pub(crate) struct View(Kubectl);

impl View {
    pub(crate) fn new(kubeconfig: &Path) -> Self {
        Self(Kubectl::new(kubeconfig))
    }

    /// Runs a command, shows it and returns what it printed.
    pub(crate) async fn show(&self, arguments: &[&str]) -> anyhow::Result<String> {
        self.show_with(arguments, "").await
    }

    /// The same with a manifest on stdin.
    pub(crate) async fn show_with(&self, arguments: &[&str], input: &str) -> anyhow::Result<String> {
        typed(arguments);
        let printed = self.0.ok_with(arguments, input).await?;
        quote(&printed);
        Ok(printed)
    }

    /// The same, but only what it printed from the first line that begins with `from` on.
    pub(crate) async fn show_from(&self, arguments: &[&str], from: &str) -> anyhow::Result<()> {
        typed(arguments);
        let printed = self.0.ok(arguments).await?;
        let tail: Vec<&str> = printed.lines().skip_while(|line| !line.starts_with(from)).collect();
        ensure!(!tail.is_empty(), "it has no line {from:?}:\n{printed}");
        quote("[…]");
        quote(&tail.join("\n"));
        Ok(())
    }

    /// Starts a watch that goes on until it is dropped; it prints into a file.
    pub(crate) fn watch(&self, arguments: &[&str], file: &Path) -> anyhow::Result<Watch> {
        typed(arguments);
        let into = || File::create(file).with_context(|| format!("cannot create {}", file.display()));
        let child = self
            .0
            .command(arguments)
            .stdin(Stdio::null())
            .stdout(into()?)
            .stderr(Stdio::null())
            .spawn()
            .context("cannot run kubectl")?;
        Ok(Watch {
            child,
            file: file.to_owned(),
        })
    }
}

/// A kubectl that watches, and what it has printed so far.
pub(crate) struct Watch {
    child: Child,
    file: PathBuf,
}

impl Watch {
    /// Waits for a line that has all the words, and returns it.
    pub(crate) async fn sees(&self, words: &[&str]) -> anyhow::Result<String> {
        wait_for(&format!("a line of kubectl's watch with {words:?}"), || async {
            let seen = self.seen()?;
            let mut lines = seen.lines().rev();
            let found = lines.find(|line| words.iter().all(|word| line.contains(word)));
            found
                .map(ToOwned::to_owned)
                .with_context(|| format!("it printed {seen}"))
        })
        .await
    }

    /// An error if it has ended, or was ever told that something is gone.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        let seen = self.seen()?;
        if let Some(status) = self.child.try_wait()? {
            bail!("kubectl's watch ended ({status}): {seen}");
        }
        let gone = seen.lines().find(|line| line.starts_with("DELETED"));
        ensure!(gone.is_none(), "kubectl's watch was told {gone:?}");
        Ok(())
    }

    fn seen(&self) -> anyhow::Result<String> {
        std::fs::read_to_string(&self.file).with_context(|| format!("cannot read {}", self.file.display()))
    }
}

fn typed(arguments: &[&str]) {
    println!("   $ kubectl {}", arguments.join(" "));
}
