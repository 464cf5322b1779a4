//! The command line of `portolanctl apply`.

use std::path::PathBuf;

use clap::Args;

use super::HubArgs;

const APPLY_HELP: &str = "\
Each document of ours (ShardingConfig, MemberCluster, CircuitBreaker, FaultInjection) is judged
first by the same rules as in the hub and in routers, and everything that is wrong is told, with
the field and the fix. If something is, nothing is sent and the exit code is 1. What is right but
not served yet is applied all the same, and told. Documents of other kinds, such as Namespaces,
are the API server's to judge.

--dry-run=client asks no cluster, and fails of what is not served yet too: for pipelines.
--dry-run=server asks the hub's API server as well, which stores nothing: for conflicts, rights.
It misses a Namespace that the same file would make.

Objects are applied by server-side apply. Fields that somebody else has set to something else are
a conflict; --force-conflicts takes them over.

Examples:
  $ portolanctl apply -f examples/circuit-breaker.yaml --dry-run=client
  Namespace/operator-demo: not of Portolan, not judged
  CircuitBreaker/operator-demo/runaway: accepted
  $ portolanctl apply -f policies.yaml -f shards.yaml --hub-kubeconfig hub.kubeconfig
  $ kubectl get fj rehearsal -n ops -o yaml | portolanctl apply -f - --dry-run=client";

#[derive(Debug, Clone, Args)]
#[command(after_help = APPLY_HELP)]
pub(crate) struct ApplyArgs {
    /// File with documents of YAML or JSON, `-` for what comes in; repeatable
    #[arg(long = "filename", short = 'f', value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Only tell what would come of it
    #[arg(long, value_enum, default_value = "none")]
    pub(crate) dry_run: DryRun,
    /// Take over fields that somebody else has set
    #[arg(long)]
    pub(crate) force_conflicts: bool,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
    /// Folder of a fleet of `dev up`, to whose hub it is applied
    #[arg(long, value_name = "DIR", conflicts_with = "hub_kubeconfig")]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DryRun {
    /// Apply
    None,
    /// By what this program knows; no cluster is asked
    Client,
    /// By the hub's API server too, which stores nothing
    Server,
}
