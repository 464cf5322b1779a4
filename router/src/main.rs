//! `portolan-router`: its flags, two runtimes, and the frame that every program has. Everything else is `app`.

use std::process::ExitCode;

use clap::Parser;
use mimalloc::MiMalloc;
use portolan_router::app;
use portolan_router::args::{Args, Config};
use portolan_runtime::{Tasks, program};
use tokio::runtime::{Builder, Runtime};

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let args = Args::parse();
    let telemetry = args.telemetry.clone();
    // Requests never wait behind a scrape, a dump or a large snapshot, and those never behind requests.
    let (control, traffic) = (runtime("control", Some(1)), runtime("traffic", None));
    let code = control.block_on(program::run("portolan-router", &telemetry, async |telemetry| {
        let config = Config::try_from(args)?;
        tracing::info!(?config, version = env!("CARGO_PKG_VERSION"), "portolan-router starts");
        let router = app::build(config, &Tasks::new(), traffic.handle().clone(), telemetry).await?;
        router.drain.when_stopped().await
    }));
    // Its tasks were drained or cut; what a destructor still does must not hold the process.
    traffic.shutdown_background();
    code
}

fn runtime(name: &'static str, workers: Option<usize>) -> Runtime {
    let mut builder = Builder::new_multi_thread();
    if let Some(workers) = workers {
        builder.worker_threads(workers);
    }
    let runtime = builder.thread_name(name).enable_all().build();
    runtime.expect("a process has threads and an event queue, as for #[tokio::main]")
}
