//! The command line of `portolanctl check`.

use std::path::PathBuf;

use clap::Args;

use super::{FleetHubArgs, OutputArgs};

pub(super) const CHECK_HELP: &str = "\
Each line says what was looked at and by what it is known: ✓ it is well, ✗ it is not, and what to
do, ? it cannot be told. Nothing is written. In a Pod its ServiceAccount asks.

What the hub says of members and routers counts only while a hub leads. Inside of a member it is
looked only by its own kubeconfig: accounts, admission policies, the agent's Deployment.

Ends with 0 if there is no ✗; with --strict only if there is no ? either.

Examples:
  $ portolanctl check
  $ portolanctl check --hub-kubeconfig hub.kubeconfig --member-kubeconfig east.kubeconfig
  $ portolanctl check --member-alone        # in a member, without the hub";

#[derive(Debug, Clone, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) hub: FleetHubArgs,
    /// Kubeconfig of a member, to look into it as well; repeatable
    #[arg(long = "member-kubeconfig", value_name = "FILE")]
    pub(crate) member_kubeconfigs: Vec<PathBuf>,
    /// Look into a member alone, that of the kubeconfig that kubectl finds or of the Pod's ServiceAccount; the hub is not asked
    #[arg(long, conflicts_with_all = ["member_kubeconfigs", "hub_kubeconfig", "dir"])]
    pub(crate) member_alone: bool,
    /// What cannot be told fails as well
    #[arg(long)]
    pub(crate) strict: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
