//! `make bench`: the router against direct, in one run, with a plain forwarder beside it as the floor.
//!
//! Two places: our own fast backend, where the router's cost shows, and a real API server, where it matters. How to run
//! it and what the rows mean: `tests/BENCHMARKS.md`.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the benchmark is what it prints"
)]

mod backend;
mod child;
mod federated;
mod forwarder;
mod hub;
mod load;
mod pace;
mod place;
mod pods;
mod real;
mod real_federated;
mod report;
mod run;
mod scripted;
mod served;
mod usage;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Measures the router against direct.
#[derive(Debug, Parser)]
#[command(name = "portolan-bench", version)]
struct Args {
    #[command(flatten)]
    run: RunArgs,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Clone, clap::Args)]
struct RunArgs {
    /// Small counts: whether it works, not how fast it is
    #[arg(long)]
    quick: bool,
    /// Write the figures to this file too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only this place
    #[arg(long, value_name = "PLACE")]
    only: Option<Place>,
    /// Rounds in which the subjects take turns
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// GETs of one subject in one round at the backend; the API server gets a tenth
    #[arg(long, default_value_t = 40_000)]
    requests: usize,
    /// GETs a second of the latency rows
    #[arg(long, default_value_t = 1_000)]
    rate: u32,
    /// Seconds of one subject in one round of the latency rows
    #[arg(long, default_value_t = 6)]
    latency_seconds: u32,
    /// Idle watches at the backend
    #[arg(long, default_value_t = 10_000)]
    watches: usize,
    /// Idle watches at the API server
    #[arg(long, default_value_t = 1_000)]
    apiserver_watches: usize,
    /// Member clusters of the merged rows
    #[arg(long, default_value_t = 5)]
    members: usize,
    /// Pods of 3 KB in each of them
    #[arg(long, default_value_t = 10_000)]
    pods: usize,
    /// Idle merged watches, each over all members
    #[arg(long, default_value_t = 1_000)]
    merged_watches: usize,
    /// Events of each member in a burst
    #[arg(long, default_value_t = 20_000)]
    events: u64,
    /// Events a second of the paced burst, over all members
    #[arg(long, default_value_t = 10_000)]
    event_rate: u64,
    /// ConfigMaps of 3 KB in each of several real API servers
    #[arg(long, default_value_t = 2_000)]
    apiserver_objects: usize,
    /// Idle merged watches over them
    #[arg(long, default_value_t = 200)]
    apiserver_merged_watches: usize,
    /// Events of each of them
    #[arg(long, default_value_t = 500)]
    apiserver_events: u64,
    /// Events a second over all of them
    #[arg(long, default_value_t = 250)]
    apiserver_event_rate: u64,
    /// Watches that a client opens on one connection
    #[arg(long, default_value_t = 100)]
    watches_per_connection: usize,
    /// Flags for the router at the backend, for example --router-flag=--log-level=warn
    #[arg(long, value_name = "FLAG", allow_hyphen_values = true)]
    router_flag: Vec<String>,
}

/// Where to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Place {
    Backend,
    Federated,
    Apiserver,
    Apiservers,
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
