//! The command line of `portolanctl ca`.

use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use portolan_crds::duration::parse_duration;

use super::HubArgs;

const ROTATE_HELP: &str = "\
In three steps, each of which may be repeated and waits for agents and routers to have followed:

  1. portolanctl ca rotate            a new CA beside the old one; hub, agents and routers trust
                                      both. Then give both to whoever else verifies routers: people
                                      (portolanctl kubeconfig) and operators' Pods (ca.crt of
                                      ConfigMap portolan-system/portolan-ca has both).
  2. portolanctl ca rotate --issue    certificates by the new one; hub, agents and routers renew
                                      theirs at once. Then wait until people's certificates by the
                                      old one have expired (a day, a week at most), or let them get
                                      new ones.
  3. portolanctl ca rotate --finish   the old one is trusted no more.

The new CA is made by the hub, and its key never leaves the hub cluster. One of your own is replaced
by one of your own: put it into Secret portolan-system/portolan-ca as next.crt and next.key first.";

#[derive(Debug, Subcommand)]
pub(crate) enum CaCommand {
    /// Show the hub's CAs, how far a rotation is, and whom it waits for
    Show(HubArgs),
    /// Replace the hub's CA by a new one, both being trusted in between
    #[command(after_help = ROTATE_HELP)]
    Rotate(RotateArgs),
}

#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("step"))]
pub(crate) struct RotateArgs {
    #[command(flatten)]
    pub(crate) hub: HubArgs,
    /// Issue by the new CA, once all trust it
    #[arg(long, group = "step")]
    pub(crate) issue: bool,
    /// Drop the old CA, once nobody has a certificate of it
    #[arg(long, group = "step")]
    pub(crate) finish: bool,
    /// Drop the new CA again, before --issue
    #[arg(long, group = "step")]
    pub(crate) abort: bool,
    /// Do not wait for agents and routers that are not connected: they are locked out, and have to join or enrol anew
    #[arg(long)]
    pub(crate) drop_absent: bool,
    /// Longest wait for hub, agents and routers
    #[arg(long, default_value = "60s", value_parser = parse_duration)]
    pub(crate) timeout: Duration,
}
