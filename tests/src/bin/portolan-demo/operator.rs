//! An example operator as a process: started with nothing but a kubeconfig.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use portolan_tests::programs::program;
use tokio::process::{Child, Command};

/// The same operator, twice.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Kind {
    /// examples/operator-rs
    Rs,
    /// examples/operator-go
    Go,
}

impl Kind {
    fn program(self) -> &'static str {
        match self {
            Self::Rs => "greeting-operator",
            Self::Go => "greeting-operator-go",
        }
    }

    /// What it calls a reconcile in traces.
    pub(crate) fn reconcile(self) -> &'static str {
        match self {
            Self::Rs => "reconciling object",
            Self::Go => "reconcile Greeting",
        }
    }

    pub(crate) fn made_with(self) -> &'static str {
        match self {
            Self::Rs => "kube-rs (examples/operator-rs)",
            Self::Go => "controller-runtime (examples/operator-go)",
        }
    }
}

/// A running operator; dropping it kills it.
pub(crate) struct Operator {
    child: Child,
    pub(crate) log: PathBuf,
}

impl Operator {
    /// `otlp`: where it sends its spans.
    pub(crate) fn start(kind: Kind, kubeconfig: &Path, log: &Path, otlp: &str) -> anyhow::Result<Self> {
        let open = || {
            File::options()
                .create(true)
                .append(true)
                .open(log)
                .with_context(|| format!("cannot open {}", log.display()))
        };
        let child = Command::new(program(kind.program())?)
            .env("KUBECONFIG", kubeconfig)
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", otlp)
            .stdin(Stdio::null())
            .stdout(open()?)
            .stderr(open()?)
            .kill_on_drop(true)
            .spawn()
            .context("cannot start the operator")?;
        Ok(Self {
            child,
            log: log.to_path_buf(),
        })
    }

    /// An error if it has ended.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            bail!(
                "the operator ended ({status}):\n{}",
                lines[lines.len().saturating_sub(10)..].join("\n")
            );
        }
        Ok(())
    }
}
