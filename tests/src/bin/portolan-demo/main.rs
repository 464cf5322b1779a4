//! `make demo`: the main job of Portolan, shown on real control planes started here.
//!
//! Every step checks what it shows; the first one that is not as it should be ends the demo with a reason and a
//! non-zero exit code.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the demo is what it prints")]

mod account;
mod args;
mod canary;
mod cut;
mod operator;
mod policies;
mod steps;
mod traced;
mod view;
mod wait;
mod workload;

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser as _;

use crate::args::Args;

#[tokio::main]
async fn main() -> ExitCode {
    portolan_runtime::tls::install_crypto_provider();
    let args = Args::parse();
    let started = Instant::now();
    let outcome = tokio::select! {
        outcome = run(&args) => outcome,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
    };
    match outcome {
        Ok(kept) => {
            if kept.is_some() {
                let _ = tokio::signal::ctrl_c().await;
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("\nThe demo failed after {} s: {error:#}", started.elapsed().as_secs());
            ExitCode::FAILURE
        }
    }
}

/// What it returns keeps everything running.
async fn run(args: &Args) -> anyhow::Result<Option<steps::Kept>> {
    if args.canary {
        canary::go_inside()?;
        canary::run().await?;
        return Ok(None);
    }
    steps::run(args).await
}
