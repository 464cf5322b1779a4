//! `portolan-agent`: parse, telemetry, build, wait.

use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use portolan_agent::args::{AgentArgs, ArgsError, Command, Config, RunArgs, UninstallArgs, UninstallConfig};
use portolan_agent::{app, uninstall};
use portolan_runtime::{telemetry, tls};

#[tokio::main]
async fn main() -> ExitCode {
    tls::install_crypto_provider();
    let args = AgentArgs::parse();
    let outcome = match args.command {
        Some(Command::Uninstall(args)) => take_back(args).await,
        None => run(args.run).await,
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "portolan-agent ends");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: RunArgs) -> anyhow::Result<()> {
    let telemetry = telemetry::init("portolan-agent", &args.telemetry)?;
    let config = Config::try_from(args).map_err(faults)?;
    tracing::info!(?config, version = env!("CARGO_PKG_VERSION"), "portolan-agent starts");
    let bound = app::build(config, telemetry.clone()).await.context("cannot start")?;
    let cause = bound.tasks.until_stopped().await;
    tracing::info!(?cause, "portolan-agent stops");
    let outcome = bound.shutdown().await;
    telemetry.shutdown().await;
    outcome
}

async fn take_back(args: UninstallArgs) -> anyhow::Result<()> {
    let telemetry = telemetry::init("portolan-agent", &args.telemetry)?;
    let outcome = uninstall::run(UninstallConfig::try_from(args).map_err(faults)?).await;
    telemetry.shutdown().await;
    outcome
}

fn faults(faults: Vec<ArgsError>) -> anyhow::Error {
    let texts: Vec<String> = faults.iter().map(ToString::to_string).collect();
    anyhow::anyhow!(texts.join("; "))
}
