//! The frame of a program, the same for hub, agent and router: crypto provider, telemetry, work, drain, last spans, exit
//! code.
//!
//! `main` parses flags and calls [`run`]; `app` says by a [`Drain`] in which order what it has started ends.

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use crate::files::{self, FileError};
use crate::tasks::ShutdownReport;
use crate::{Readiness, Tasks, Telemetry, TelemetryArgs, telemetry, tls};

/// Runs a program from its flags to its exit code. `work` ends when the program shall.
pub async fn run(
    name: &'static str,
    args: &TelemetryArgs,
    work: impl AsyncFnOnce(Telemetry) -> anyhow::Result<()>,
) -> ExitCode {
    tls::install_crypto_provider();
    match observed(name, args, work).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Telemetry may be what failed, so the log cannot be relied on; and nobody is left to tell of a broken stderr.
            let _ = writeln!(std::io::stderr(), "{name}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn observed(
    name: &'static str,
    args: &TelemetryArgs,
    work: impl AsyncFnOnce(Telemetry) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let telemetry = telemetry::init(name, args)?;
    let outcome = work(telemetry.clone()).await;
    telemetry.shutdown().await;
    outcome
}

/// How a running program ends: not ready, then one set of tasks after the other, the root set last.
#[derive(Debug)]
pub struct Drain {
    readiness: Readiness,
    root: Tasks,
    root_deadline: Duration,
    before: Vec<(Tasks, Duration)>,
}

impl Drain {
    /// `root` is the program's: the admin server is in it, so that `/readyz` is seen to fail to the end.
    pub fn new(readiness: Readiness, root: Tasks, deadline: Duration) -> Self {
        Self {
            readiness,
            root,
            root_deadline: deadline,
            before: Vec::new(),
        }
    }

    /// Ends `part`, a child of the root, after the parts named earlier: what still runs at `deadline` is cut.
    pub fn after(mut self, part: Tasks, deadline: Duration) -> Self {
        self.before.push((part, deadline));
        self
    }

    /// Waits for a signal or for a critical task that ends, then drains. The error is that task's.
    pub async fn when_stopped(self) -> anyhow::Result<()> {
        let cause = self.root.until_stopped().await;
        tracing::info!(?cause, "stopping");
        let report = self.now().await;
        tracing::info!(?report, "stopped");
        Ok(report.into_result()?)
    }

    /// Drains.
    pub async fn now(self) -> ShutdownReport {
        self.readiness.begin_shutdown();
        for (part, deadline) in &self.before {
            part.shutdown(*deadline).await;
        }
        self.root.shutdown(self.root_deadline).await
    }
}

/// Writes where a program listens, by purpose, as a JSON object: for those who let it choose its ports.
pub fn write_addresses<const N: usize>(
    file: Option<&Path>,
    addresses: [(&str, SocketAddr); N],
) -> Result<(), FileError> {
    let Some(file) = file else { return Ok(()) };
    let object: serde_json::Map<_, _> = addresses
        .into_iter()
        .map(|(purpose, address)| (purpose.to_owned(), address.to_string().into()))
        .collect();
    files::write_public(file, format!("{}\n", serde_json::Value::Object(object)))
}
