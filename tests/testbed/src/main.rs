//! `portolan-testbed`: real control planes on this machine, for trying things out by hand and for the demo.

mod cli;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

#[tokio::main]
async fn main() -> ExitCode {
    match cli::run(cli::Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "portolan-testbed: {error:#}");
            ExitCode::FAILURE
        }
    }
}
