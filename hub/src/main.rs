//! `portolan-hub`: its flags, and the frame that every program has.

use std::process::ExitCode;

use clap::Parser;
use mimalloc::MiMalloc;
use portolan_hub::{Args, Config, build};
use portolan_runtime::{Tasks, program};

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let telemetry = args.telemetry.clone();
    program::run("portolan-hub", &telemetry, async |telemetry| {
        let config = Config::try_from(args)?;
        tracing::info!(?config, version = env!("CARGO_PKG_VERSION"), "portolan-hub starts");
        build(config, telemetry, &Tasks::new()).await?.when_stopped().await
    })
    .await
}
