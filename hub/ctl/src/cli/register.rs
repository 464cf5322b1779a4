//! The command line of `portolanctl register` and `unregister`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use portolan_crds::duration::parse_duration;

use super::{HubArgs, MembershipArgs};

pub(super) const REGISTER_HELP: &str = "\
In the member: namespaces, ServiceAccounts, RBAC, admission policies and the agent's Deployment.
On the hub: the MemberCluster, accepted, and a bootstrap token, which the agent spends. Rights are
checked in both clusters before anything is written. The kubeconfig is used once and kept nowhere.
Run again it changes nothing that is as it should be, and goes on where it broke off.

Routers must reach the API server too: a kubeconfig that names it as localhost, or does not verify
it, is refused until --endpoint says how routers call it, and --ca-file which CA signs for that.

Examples:
  $ portolanctl register east --kubeconfig east.kubeconfig --hub-address hub.example.com:7443
  $ portolanctl register west --kubeconfig all.kubeconfig --context west --allow shop/my-operator
  $ portolanctl register --all-contexts --kubeconfig all.kubeconfig          # shows which
  $ portolanctl register --all-contexts --kubeconfig all.kubeconfig --yes";

pub(super) const UNREGISTER_HELP: &str = "\
Refuses while shards have namespaces of the member, and names them. With --release the member is
taken out of their spec.clusters first; the hub then releases each namespace once no router lets
its callers write there any more, and the member refuses what still arrives.

Without --kubeconfig, for a member that cannot be reached, --force deletes the MemberCluster alone
and says what is left in the member.

With --member-alone the hub is not asked, because it is gone: only what is in the member goes.

Examples:
  $ portolanctl unregister west --kubeconfig west.kubeconfig
  $ portolanctl unregister west --kubeconfig west.kubeconfig --release
  $ portolanctl unregister west --force
  $ portolanctl unregister --member-alone --kubeconfig west.kubeconfig";

#[derive(Debug, Clone, Args)]
pub(crate) struct RegisterArgs {
    /// Name of the member cluster: the word in ShardingConfigs and in /clusters/<NAME>
    #[arg(required_unless_present = "all_contexts", conflicts_with = "all_contexts")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
    /// Kubeconfig of the member cluster; used once and kept nowhere
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: PathBuf,
    /// Context of it [default: the current one]
    #[arg(long, value_name = "CONTEXT", conflicts_with = "all_contexts")]
    pub(crate) context: Option<String>,
    /// Register the cluster of every context of the kubeconfig under the context's name, but the hub's and those that are members
    /// already; shows them, and registers them with --yes
    #[arg(long, conflicts_with_all = ["endpoint", "ca_file"])]
    pub(crate) all_contexts: bool,
    /// Do what --all-contexts shows
    #[arg(long, requires = "all_contexts")]
    pub(crate) yes: bool,
    /// Address at which the agent reaches the hub [default: that of LoadBalancer Service portolan-system/portolan-hub]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) hub_address: Option<String>,
    /// URL at which routers reach the member's API server [default: as it is registered, else that of its kubeconfig]
    #[arg(long, value_name = "URL")]
    pub(crate) endpoint: Option<String>,
    /// CA certificates of the API server at that URL [default: those of the kubeconfig]
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,
    /// Image of the agent [default: beside the one that Deployment portolan-system/portolan-hub of the hub cluster runs]
    #[arg(long, value_name = "IMAGE", conflicts_with = "without_agent")]
    pub(crate) agent_image: Option<String>,
    /// Leave the agent to somebody else, as `helm install portolan-agent`; it is waited for all the same
    #[arg(long)]
    pub(crate) without_agent: bool,
    #[command(flatten)]
    pub(crate) membership: MembershipArgs,
    /// Check everything that can be checked without writing, and say what would be written
    #[arg(long, value_name = "server", value_parser = ["server"])]
    pub(crate) dry_run: Option<String>,
    /// How long it is waited until the member serves
    #[arg(long, default_value = "5m", value_parser = parse_duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct UnregisterArgs {
    /// Name of the member cluster
    #[arg(
        required_unless_present = "member_alone",
        conflicts_with = "member_alone",
        default_value = ""
    )]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
    /// Kubeconfig of the member cluster
    #[arg(long, value_name = "FILE", required_unless_present_any = ["force", "member_alone"])]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context of it [default: the current one]
    #[arg(long, value_name = "CONTEXT", requires = "kubeconfig")]
    pub(crate) context: Option<String>,
    /// Take the member out of the ShardingConfigs that name it, and wait until each of its namespaces is released
    #[arg(long)]
    pub(crate) release: bool,
    /// For a member that cannot be reached: forget it on the hub, whatever shards have there
    #[arg(long, conflicts_with_all = ["kubeconfig", "release"])]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) alone: AloneArgs,
    /// How long releases, and the agent's last work, are waited for
    #[arg(long, default_value = "5m", value_parser = parse_duration)]
    pub(crate) timeout: Duration,
}

/// Without the hub.
#[derive(Debug, Clone, Args)]
pub(crate) struct AloneArgs {
    /// For a member whose hub is gone: the hub is not asked, whatever shards have there. Without --kubeconfig it is the cluster
    /// that kubectl finds, or that of the Pod's ServiceAccount
    #[arg(long, conflicts_with_all = ["force", "release", "hub_kubeconfig"])]
    pub(crate) member_alone: bool,
    /// Leave RBAC and namespaces to Helm, whose pre-delete Job this is
    #[arg(long, requires = "member_alone")]
    pub(crate) leave_rbac: bool,
}
