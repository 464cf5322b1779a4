//! `portolan-hub`: parse, telemetry, build, wait.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use portolan_hub::{Args, Config, build};
use portolan_runtime::{Tasks, telemetry, tls};

/// What sessions get to end by themselves; streams carry nothing that would be lost.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> ExitCode {
    tls::install_crypto_provider();
    let args = Args::parse();
    match run(args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Telemetry may be what failed, so the log cannot be relied on.
            let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("portolan-hub: {error:#}\n"));
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> anyhow::Result<()> {
    let telemetry = telemetry::init("portolan-hub", &args.telemetry)?;
    let config = Config::try_from(args)?;
    tracing::info!(?config, "starting");
    let tasks = Tasks::new();
    let bound = build(config, telemetry.clone(), &tasks).await?;
    let cause = tasks.until_stopped().await;
    tracing::info!(?cause, "stopping");
    let report = bound.shutdown(SHUTDOWN_DEADLINE).await;
    telemetry.shutdown().await;
    Ok(report.into_result()?)
}
