//! `portolan-node`: one node by hand, and the network that it wants around it.

mod args;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use portolan_node::{Node, enter};
use portolan_runtime::{Tasks, program};

use args::{Args, Command};

const NAME: &str = "portolan-node";

#[tokio::main]
async fn main() -> ExitCode {
    match Args::parse().command {
        Command::Enter { program } => {
            let error = enter(&program);
            let _ = writeln!(std::io::stderr(), "{NAME}: {error:#}");
            ExitCode::FAILURE
        }
        Command::Run(flags) => {
            let telemetry = flags.telemetry.clone();
            program::run(NAME, &telemetry, async |_| {
                let node = Node::start(flags.options()).await?;
                tracing::info!(node = node.name(), shares = node.shares(), "taking Pods");
                Tasks::new().until_stopped().await;
                node.stop().await;
                Ok(())
            })
            .await
        }
    }
}
