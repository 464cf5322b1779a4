//! The command line of `portolanctl dev`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use portolan_crds::duration::parse_duration;

use super::{GatewayAddress, OutputArgs, parse_member, parse_webhook_host};

#[derive(Debug, Subcommand)]
pub(crate) enum DevCommand {
    /// Start hub, agents and one gateway router; wait until all is ready; write kubeconfigs
    Up(Box<DevUpArgs>),
    /// Show what runs and whether it is well
    Status(DevStatusArgs),
    /// Start programs of the fleet anew, at the ports that they have
    Restart(DevProgramArgs),
    /// Stop programs of the fleet until `dev restart`, to see what the others do without
    Stop(DevProgramArgs),
    /// Stop everything and remove what `dev up` installed
    Down(DevDownArgs),
    /// Start programs again that end, and renew tokens (started by `dev up`)
    #[command(hide = true)]
    Supervise(DevDirArgs),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DevUpArgs {
    /// Kubeconfig of the hub cluster
    #[arg(long, value_name = "FILE")]
    pub(crate) hub: PathBuf,
    /// Member cluster and its kubeconfig; repeatable
    #[arg(long = "member", value_name = "NAME=FILE", required = true, value_parser = parse_member)]
    pub(crate) members: Vec<(String, PathBuf)>,
    /// Manifests to apply to the hub once it runs (ShardingConfigs); repeatable
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// OTLP gRPC endpoint for the traces of all programs
    #[arg(long, value_name = "URL")]
    pub(crate) otlp: Option<String>,
    /// Folder for kubeconfigs, logs and state
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Address the router listens on
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    pub(crate) router_bind: SocketAddr,
    /// Name by which Pods of members reach the router, of a Service with its address for example: members point Pods at it by
    /// label ctrlmesh.kusionstack.io/enable-proxy
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) gateway: Option<GatewayAddress>,
    /// Name or address of this machine by which the hub cluster's API server reaches it, if that is not 127.0.0.1, as where the API server
    /// runs in a container: it asks the hub about whoever writes ShardingConfigs. The hub then listens for that at all IPv4 addresses, and
    /// whoever reaches that port may ask who may shard what
    #[arg(long, value_name = "HOST", value_parser = parse_webhook_host)]
    pub(crate) webhook_host: Option<String>,
    /// Serve the explicit view of member M at host M.SUFFIX too, with a context of that name in explicit.kubeconfig; the
    /// names have to lead to the router
    #[arg(long, env = "PORTOLAN_EXPLICIT_HOST", value_name = "SUFFIX")]
    pub(crate) explicit_host: Option<String>,
    /// ClusterRole that the callers of merged-*.kubeconfig get in every member
    #[arg(long, value_name = "CLUSTERROLE", default_value = "cluster-admin")]
    pub(crate) caller_role: String,
    /// ClusterRole that the user of explicit.kubeconfig, portolan:dev, gets in every member
    #[arg(long, value_name = "CLUSTERROLE", default_value = "cluster-admin")]
    pub(crate) user_role: String,
    /// Prefix of the shard labels, also the hub's
    #[arg(long, env = "PORTOLAN_LABEL_PREFIX", hide = true)]
    pub(crate) label_prefix: Option<String>,
    /// How long to wait until all is ready; what the agents have to label comes on top, as long as it becomes less
    #[arg(long, default_value = "120s", value_parser = parse_duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DevDirArgs {
    /// Folder given to `dev up`
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DevStatusArgs {
    #[command(flatten)]
    pub(crate) fleet: DevDirArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DevProgramArgs {
    /// Names of programs, as `dev status` lists them
    #[arg(value_name = "NAME", required = true)]
    pub(crate) programs: Vec<String>,
    #[command(flatten)]
    pub(crate) fleet: DevDirArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DevDownArgs {
    #[command(flatten)]
    pub(crate) fleet: DevDirArgs,
    /// Leave the programs' logs in the folder; so it is anyway when `dev up` failed or a program ended by itself
    #[arg(long)]
    pub(crate) keep_logs: bool,
    /// Only end the programs and remove the folder's files, for clusters that no longer exist
    #[arg(long)]
    pub(crate) local_only: bool,
}
