//! The command line of `portolanctl router`.

use clap::{Args, Subcommand};

use super::FleetHubArgs;

const FORGET_HELP: &str = "\
Deletes the Router object on the hub, as kubectl delete rt -n portolan-system NAME does. Its
streams to the hub end within seconds, its certificate is refused although it is good for days,
and the agents take its tokens back: members refuse new requests with them within 15 seconds.
Watches, execs and port-forwards that it has open in members last until they end. The bootstrap
token that it enrolled with makes no other router. A router that is to serve again enrols anew:
with a new token from `portolanctl router-token NAME`, and an empty state folder.

Examples:
  $ portolanctl get routers --hub-kubeconfig hub.kubeconfig
  $ portolanctl router forget gateway --hub-kubeconfig hub.kubeconfig";

#[derive(Debug, Subcommand)]
pub(crate) enum RouterCommand {
    /// Refuse a router from now on, and take its tokens in the members back
    #[command(after_help = FORGET_HELP)]
    Forget(ForgetArgs),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ForgetArgs {
    /// Names of routers, as `get routers` lists them
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) hub: FleetHubArgs,
}
