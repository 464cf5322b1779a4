//! `portolan-agent`: its flags and commands, and the frame that every program has.

use std::process::ExitCode;

use clap::Parser;
use portolan_agent::args::{AgentArgs, Command, Config, UninstallConfig};
use portolan_agent::{app, uninstall};
use portolan_runtime::program;

const NAME: &str = "portolan-agent";

#[tokio::main]
async fn main() -> ExitCode {
    let AgentArgs { command, run } = AgentArgs::parse();
    let Some(Command::Uninstall(args)) = command else {
        let telemetry = run.telemetry.clone();
        return program::run(NAME, &telemetry, async |telemetry| {
            let config = Config::try_from(run)?;
            tracing::info!(?config, version = env!("CARGO_PKG_VERSION"), "portolan-agent starts");
            app::build(config, telemetry).await?.drain.when_stopped().await
        })
        .await;
    };
    let telemetry = args.telemetry.clone();
    program::run(NAME, &telemetry, async |_| {
        uninstall::run(UninstallConfig::try_from(args)?).await
    })
    .await
}
