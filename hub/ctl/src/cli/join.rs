//! The command line of `portolanctl join`, and what `register` has of it.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use portolan_crds::duration::parse_duration;

use super::{GatewayAddress, HubArgs, parse_label};

#[derive(Debug, Clone, Args)]
pub(crate) struct JoinArgs {
    /// Name of the member cluster: the word in ShardingConfigs and in /clusters/<NAME>
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
    /// Kubeconfig of the member cluster; used once and not kept
    #[arg(long, value_name = "FILE")]
    pub(crate) member_kubeconfig: PathBuf,
    /// Address at which the agent reaches the hub
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) hub_address: String,
    /// URL at which routers reach the member's API server; the CA certificates of its kubeconfig are registered with it
    /// [default: both as they are registered, else those of its kubeconfig]
    #[arg(long, value_name = "URL")]
    pub(crate) endpoint: Option<String>,
    /// Also accept the member on the hub; without it somebody sets spec.accept later
    #[arg(long)]
    pub(crate) accept: bool,
    /// How long the bootstrap token is good for
    #[arg(long, default_value = "1h", value_parser = parse_duration)]
    pub(crate) token_ttl: Duration,
    #[command(flatten)]
    pub(crate) membership: MembershipArgs,
}

/// What a member is called and lets be done, whoever installs its agent.
#[derive(Debug, Clone, Args)]
pub(crate) struct MembershipArgs {
    /// Label of the MemberCluster, matched by clusters[].selector; repeatable
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
    pub(crate) labels: Vec<(String, String)>,
    /// Kind that the agent may label beside the usual ones, as kubectl writes it; needed for kinds that limits or the
    /// hub's --label-kinds name; repeatable
    #[arg(long = "label-kind", value_name = "RESOURCE.GROUP")]
    pub(crate) label_kinds: Vec<String>,
    /// Prefix of the shard labels, as the hub has it [default: the one that the member's policies have, else the usual one]
    #[arg(long, env = "PORTOLAN_LABEL_PREFIX", value_name = "PREFIX/")]
    pub(crate) label_prefix: Option<String>,
    /// Gateway that Pods of this member are pointed at by label ctrlmesh.kusionstack.io/enable-proxy, as they reach it: a
    /// name that its certificate has, of a Service on port 443 for example [default: the one that the member names]
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) gateway: Option<GatewayAddress>,
    #[command(flatten)]
    pub(crate) grants: GrantArgs,
}

/// Whom the member lets the router act as. Nobody by default.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct GrantArgs {
    /// ServiceAccount the router may act as in this member; repeatable
    #[arg(long = "allow", value_name = "NAMESPACE/SERVICEACCOUNT")]
    pub(crate) service_accounts: Vec<String>,
    /// User (a person's certificate name) the router may act as in this member; repeatable
    #[arg(long = "allow-user", value_name = "USER")]
    pub(crate) users: Vec<String>,
}
