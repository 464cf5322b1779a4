//! The command line of `portolanctl uninstall`.

use std::time::Duration;

use clap::Args;
use portolan_crds::duration::parse_duration;

use super::HubArgs;

pub(super) const UNINSTALL_HELP: &str = "\
Ends the hub's Deployment, takes its finalizer off all ShardingConfigs, and deletes its RBAC and
webhook. Kept are the CustomResourceDefinitions and all objects of them, the CA and the ledger: a
hub that is installed again goes on from there. Take members out first (portolanctl unregister):
shards are then released in order. A chart does all of it by itself: helm uninstall.

Example:
  $ portolanctl uninstall --hub-kubeconfig hub.kubeconfig";

#[derive(Debug, Clone, Args)]
pub(crate) struct UninstallArgs {
    #[command(flatten)]
    pub(crate) hub: HubArgs,
    /// Delete all ShardingConfigs first, and wait, for half the time, until the hub has released what they have
    #[arg(long)]
    pub(crate) delete_shards: bool,
    /// Leave RBAC and webhook to Helm, whose pre-delete Job this is
    #[arg(long)]
    pub(crate) leave_rbac: bool,
    /// How long the hub's end is waited for
    #[arg(long, default_value = "4m", value_parser = parse_duration)]
    pub(crate) timeout: Duration,
}
