//! `make bench`: the router against direct, in one run, with a plain forwarder beside it as the floor.
//!
//! Two places: our own fast backend, where the router's cost shows, and a real API server, where it matters; and the hub
//! with a large shard. How to run it and what the rows mean: `tests/BENCHMARKS.md`.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the benchmark is what it prints"
)]

mod args;
mod backend;
mod child;
mod control;
mod cores;
mod counter;
mod federated;
mod fleet;
mod forwarder;
mod growth;
mod hub;
mod hub_plane;
mod instructions;
mod lists;
mod load;
mod pace;
mod peers;
mod place;
mod pods;
mod policies;
mod real;
mod real_federated;
mod relay;
mod report;
mod run;
mod scripted;
mod served;
mod subscribers;
mod usage;
mod writers;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing::subscriber::NoSubscriber;

use crate::args::RunArgs;

/// Measures the router against direct.
#[derive(Debug, Parser)]
#[command(name = "portolan-bench", version)]
struct Args {
    #[command(flatten)]
    run: RunArgs,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(hide = true)]
    Backend(backend::BackendArgs),
    #[command(hide = true)]
    Forwarder(forwarder::ForwarderArgs),
}

fn main() -> ExitCode {
    portolan_runtime::tls::install_crypto_provider();
    // Without any, each span of hyper and h2 is told to `log`, which nobody hears: forwarder and backend would pay for it.
    let _ = tracing::subscriber::set_global_default(NoSubscriber::new());
    let args = Args::parse();
    match start(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("portolan-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(args: Args) -> anyhow::Result<()> {
    if args.run.end_gently {
        child::end_gently();
    }
    let servers = || tokio::runtime::Builder::new_multi_thread().enable_all().build();
    match args.command {
        Some(Command::Backend(args)) => servers()?.block_on(backend::run(&args)),
        Some(Command::Forwarder(args)) => servers()?.block_on(forwarder::run(&args)),
        // One thread: the client leaves the other cores to what it measures, and wakes nobody.
        None => tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(run::run(&args.run)),
    }
}
