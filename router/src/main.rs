//! The router's process: flags, telemetry, two runtimes, and the wait for its end. Everything else is `app`.

use anyhow::Context;
use clap::Parser;
use portolan_router::app;
use portolan_router::args::{Args, Config};
use portolan_runtime::{Tasks, telemetry, tls};
use tokio::runtime::{Builder, Runtime};

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let telemetry_args = args.telemetry.clone();
    let config = Config::try_from(args)?;
    tls::install_crypto_provider();
    // Requests never wait behind a scrape, a dump or a large snapshot, and those never behind requests.
    let control = runtime("control", Some(1)).context("no runtime for the control tasks")?;
    let traffic = runtime("traffic", None).context("no runtime for the traffic")?;
    let outcome = control.block_on(async {
        let telemetry = telemetry::init("portolan-router", &telemetry_args)?;
        tracing::info!(?config, version = env!("CARGO_PKG_VERSION"), "portolan-router starts");
        let outcome = app::run(config, Tasks::new(), traffic.handle().clone(), telemetry.clone()).await;
        telemetry.shutdown().await;
        outcome
    });
    // Its tasks were drained or cut; what a destructor still does must not hold the process.
    traffic.shutdown_background();
    outcome
}

fn runtime(name: &'static str, workers: Option<usize>) -> std::io::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    if let Some(workers) = workers {
        builder.worker_threads(workers);
    }
    builder.thread_name(name).enable_all().build()
}
