//! The command line of `portolanctl ca`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use portolan_crds::duration::parse_duration;

use super::FleetHubArgs;

const ROTATE_HELP: &str = "\
In three steps. Each may be repeated, and waits until agents and routers have followed.

portolanctl ca rotate
  The hub makes a new CA beside the old one. Hub, agents and routers trust both. Then give both to
  whoever else verifies routers: people (portolanctl kubeconfig) and operators' Pods (ca.crt of
  ConfigMap portolan-system/portolan-ca has both). Pods that were pointed at a gateway by label
  get both by --member-kubeconfig FILE, in each step; clients that read their CA file once, as
  most do, have to start again before --issue.

portolanctl ca rotate --issue
  Certificates are by the new CA. Hub, agents and routers renew theirs at once. Then wait until
  people's certificates by the old one have ended (a day, a week at most), or they have new ones.

portolanctl ca rotate --finish
  The old CA is trusted no more.

The key of the new CA is made by the hub and never leaves the hub cluster. A CA of your own is
replaced by one of your own: first put that into Secret portolan-system/portolan-ca as next.crt
and next.key.";

#[derive(Debug, Subcommand)]
pub(crate) enum CaCommand {
    /// Show the hub's CAs, how far a rotation is, and whom it waits for
    Show(FleetHubArgs),
    /// Replace the hub's CA by a new one, both being trusted in between
    #[command(after_help = ROTATE_HELP)]
    Rotate(RotateArgs),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct RotateArgs {
    #[command(flatten)]
    pub(crate) hub: FleetHubArgs,
    #[command(flatten)]
    pub(crate) step: StepArgs,
    /// Kubeconfig of a member whose Pods are pointed at a gateway by label: they are given the CA certificates too, those that
    /// run as well; repeatable
    #[arg(long = "member-kubeconfig", value_name = "FILE")]
    pub(crate) member_kubeconfigs: Vec<PathBuf>,
    /// Do not wait for agents and routers that are not connected: they are locked out, and have to join or enrol anew
    #[arg(long)]
    pub(crate) drop_absent: bool,
    /// Longest wait for hub, agents and routers
    #[arg(long, default_value = "60s", value_parser = parse_duration)]
    pub(crate) timeout: Duration,
}

/// Which step; none of them: the first.
#[derive(Debug, Clone, Args)]
#[group(multiple = false)]
pub(crate) struct StepArgs {
    /// Issue by the new CA, once all trust it
    #[arg(long)]
    pub(crate) issue: bool,
    /// Drop the old CA, once nobody has a certificate of it
    #[arg(long)]
    pub(crate) finish: bool,
    /// Drop the new CA again, before --issue
    #[arg(long)]
    pub(crate) abort: bool,
}
