//! What may be asked of the demo. Called by `main` and `steps`.

use std::path::PathBuf;

use clap::Parser;

use crate::operator::Kind;

/// Shows Portolan on a hub and two member clusters started on this machine.
#[derive(Debug, Parser)]
#[command(name = "portolan-demo", version)]
pub(crate) struct Args {
    /// Leave everything running at the end and print commands to try
    #[arg(long)]
    pub(crate) keep: bool,
    /// Which of the two example operators to run: in kube-rs, or in controller-runtime
    #[arg(long, value_enum, default_value_t = Kind::Rs)]
    pub(crate) operator: Kind,
    /// Upgrade an operator by its canary instead: its Pods run here as processes, in a network of their own
    #[arg(long, conflicts_with_all = ["keep", "operator"])]
    pub(crate) canary: bool,
    /// A Jaeger with web pages to use in place of the one built here
    #[arg(long, env = "JAEGER_BIN", value_name = "FILE")]
    pub(crate) jaeger_bin: Option<PathBuf>,
}
