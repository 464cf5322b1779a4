//! The command line of `portolanctl shards`.

use std::path::PathBuf;

use clap::{Args, Subcommand, value_parser};
use portolan_crds::ShardName;

use super::{HubArgs, OutputArgs};

const SHARDS_HELP: &str = "\
What shards are and would be is the hub's to tell, by its admin port: --hub-admin HOST:PORT (by
kubectl port-forward where the hub is a Pod), or --dir DIR. Move, promote, force, rollback and
separate also write to the hub: --hub-kubeconfig FILE, or --dir DIR. They show what would come
of it, and write nothing without --yes.";

const PLAN_HELP: &str = "\
The hub's own compiler is run over what it knows, with the ShardingConfigs of the files in place
of those that it has; each is taken as it is written, whole. Nothing is written. What is under way
already is no part of the plan. Agents do not count objects by namespace, so none are told. Of a
root the children are told too, and what they get is among what moves.

The exit code is 0 if the hub has exactly this already, 1 if something would change, and 2 if a
spec would be refused, or no plan could be made.

Examples:
  $ portolanctl shards plan -f shards.yaml --dir fleet
  CLUSTER   FROM    TO      NAMESPACES
  east      ops/a   ops/b   2: shop-c, shop-d
  $ portolanctl shards plan -f - -o json < shards.yaml";

const WHO_HELP: &str = "\
Examples:
  $ portolanctl shards who shop-c --dir fleet
  CLUSTER   OWNER   STATE     SINCE   FIELD
  east      ops/b   Granted   41      spec.clusters[0].namespaces[1]
SINCE is the view revision at which it came to its owner. Below the table: why it is so, who waits
for it, and which routers have not acknowledged yet that its owner lets go of it.";

const STATUS_HELP: &str = "\
PAIRS: namespaces that the shard has. WAITS FOR and LETS GO OF: pairs that are being handed over
to it, or from it. ROUTERS BEHIND: those that do not serve the shard as it is. CALLERS: those that
are current, of all. LEASE: by which its callers elect their leader, and where.

Examples:
  $ portolanctl shards status --dir fleet
  $ portolanctl shards status ops/a -w    # goes on, and prints what changes";

const DIFF_HELP: &str = "\
From every router the hub knows what it has acknowledged, and compares that with what it should
hold. A router whose admin port is given is asked itself, too: which namespaces it serves to
callers, in which state. Hub and router are asked one after the other, so that a handover may show
as a difference for a moment.

The exit code is 0 if there is no difference, 1 if there is one, and 2 if they could not be asked.

Examples:
  $ portolanctl shards diff --dir fleet
  $ portolanctl shards diff --router-admin 127.0.0.1:8444";

const MOVE_HELP: &str = "\
An edit of two ShardingConfigs: the owner's is written first, so that no namespace is asked for by
two, then that of the new owner; if that fails, the first is put back. Where the owner has the
namespace by a selector, the selector is narrowed by the label kubernetes.io/metadata.name. Both
are tried by a server-side dry run before, and neither is written if somebody else has changed it
meanwhile. Whoever keeps these objects in files or in git changes them there too: the next apply
would move the namespace back.

Examples:
  $ portolanctl shards move shop-c --cluster east --to ops/b --dir fleet
  $ portolanctl shards move shop-c --cluster east --to ops/b --dir fleet --yes";

const PROMOTE_HELP: &str = "\
The canary of a root becomes the rule, step by step. With --percent it gets so many percent of
all buckets, beside what it takes by name and by hash; what a smaller part had it keeps. Without,
it gives back all that it takes: the other shards share that out, and nothing else moves but to
keep them equal. It stays, with its Pods and nothing to own, as without it every Pod of the
StatefulSet would be another shard's.

Which version a Pod runs is the StatefulSet's affair: before the canary gives back, the Pods of
the others have to run what it runs. What moves is handed over: for some seconds nobody writes
there.

It is one edit of the root, which must be in force as it stands, and is not written if somebody
else has changed it meanwhile. Whoever keeps the root in a file changes it there too.

Examples:
  $ portolanctl shards promote ops/root --percent 25 --dir fleet
  $ portolanctl shards promote ops/root --percent 25 --dir fleet --yes
  $ portolanctl shards promote ops/root --dir fleet --yes";

const ROLLBACK_HELP: &str = "\
Puts the spec back that was accepted last, as the hub keeps it in its ledger: the one in force if
the present one is refused, else the one that was in force before. An earlier spec is kept as long
as the object is the same, and if both fit into one record of the ledger.

Examples:
  $ portolanctl shards rollback ops/a --dir fleet
  $ portolanctl shards rollback ops/a --dir fleet --yes";

const FORCE_HELP: &str = "\
A release waits until every router has let go, and until the member refuses late writes. A router
that is not heard is waited for 10 minutes, and so is an agent. Forced, the release waits for no
router: one that is still there goes on writing for the old owner until it hears of it, where its
writes are not fenced. What is waited for stands in status.releases, and in `shards status`. It
is recorded in annotation ctrlmesh.kusionstack.io/force-release, with who did it and why.

Examples:
  $ portolanctl shards force ops/a --reason 'gateway-2 burnt' --dir fleet
  $ portolanctl shards force ops/a --pair east/shop-c --reason 'gateway-2 burnt' --dir fleet --yes";

const SEPARATE_HELP: &str = "\
For fleets whose ledger is one of before spec.operator: a namespace has one owner there, and
that name waits. It lists each namespace that would get a second owner. With --yes the hub
switches, once each router that is not forgotten is of this release; else it says whom it waits
for, and changes nothing. Whoever has a namespace keeps it, with its epoch; no watch ends. There
is no way back: a hub of before does not read the ledger any more.

Examples:
  $ portolanctl shards separate --dir fleet
  CLUSTER   NAMESPACE   OWNER   SECOND   OPERATOR
  east      shop-a      ops/a   ops/c    prometheus
  $ portolanctl shards separate --dir fleet --yes";

/// What is asked of shards, or done to them.
#[derive(Debug, Subcommand)]
#[command(after_help = SHARDS_HELP)]
pub(crate) enum ShardsCommand {
    /// Show what applying files would move, from whom to whom, and what would be refused
    #[command(after_help = PLAN_HELP)]
    Plan(PlanArgs),
    /// Show whose a namespace is, why, since when, and who waits for it
    #[command(after_help = WHO_HELP)]
    Who(WhoArgs),
    /// Show what each shard has, waits for and lets go of, and which routers are behind
    #[command(after_help = STATUS_HELP)]
    Status(ShardsStatusArgs),
    /// Show where routers do not hold what the hub would have them hold
    #[command(after_help = DIFF_HELP)]
    Diff(DiffArgs),
    /// Move one namespace of one member to another shard
    #[command(after_help = MOVE_HELP)]
    Move(MoveArgs),
    /// Give the canary of a root a larger part, or have it give back all: its version has become the rule
    #[command(after_help = PROMOTE_HELP)]
    Promote(PromoteArgs),
    /// Wait no longer for routers to let go of what a shard is to give to others
    #[command(after_help = FORCE_HELP)]
    Force(ForceArgs),
    /// Put the spec of a shard back that was accepted last
    #[command(after_help = ROLLBACK_HELP)]
    Rollback(RollbackArgs),
    /// Have namespaces owned by a shard of each operator, in a ledger of before spec.operator
    #[command(after_help = SEPARATE_HELP)]
    Separate(SeparateArgs),
}

impl ShardsCommand {
    /// Whether exit code 1 says that there is a difference, as of `kubectl diff`.
    pub(crate) fn compares(&self) -> bool {
        matches!(self, Self::Plan(_) | Self::Diff(_))
    }
}

/// Which hub to ask, by its admin port.
#[derive(Debug, Clone, Args)]
pub(crate) struct HubAdminArgs {
    /// Admin address of the hub
    #[arg(
        long,
        env = "PORTOLAN_HUB_ADMIN",
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:7444"
    )]
    pub(crate) hub_admin: String,
    /// Folder of a running `dev up`, whose hub is asked
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct PlanArgs {
    /// Manifests with ShardingConfigs; `-` is stdin; repeatable
    #[arg(short = 'f', long = "filename", value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) hub: HubAdminArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct WhoArgs {
    /// The namespace
    #[arg(value_name = "NAMESPACE")]
    pub(crate) namespace: String,
    /// Only in this member cluster [default: in all that have it]
    #[arg(long, value_name = "NAME")]
    pub(crate) cluster: Option<String>,
    #[command(flatten)]
    pub(crate) hub: HubAdminArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ShardsStatusArgs {
    /// Only this shard [default: all]
    #[arg(value_name = "NAMESPACE/NAME")]
    pub(crate) shard: Option<ShardName>,
    /// Go on, and print what changes
    #[arg(long, short)]
    pub(crate) watch: bool,
    #[command(flatten)]
    pub(crate) hub: HubAdminArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DiffArgs {
    /// Admin address of a router that is asked itself; repeatable [default: that of the fleet in --dir, if any]
    #[arg(long = "router-admin", value_name = "HOST:PORT")]
    pub(crate) routers: Vec<String>,
    #[command(flatten)]
    pub(crate) hub: HubAdminArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// What all that writes has: where, and whether at all.
#[derive(Debug, Clone, Args)]
pub(crate) struct EditArgs {
    #[command(flatten)]
    pub(crate) kubeconfig: HubArgs,
    #[command(flatten)]
    pub(crate) hub: HubAdminArgs,
    /// Write it; without it only what would come of it is shown
    #[arg(long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct MoveArgs {
    /// The namespace
    #[arg(value_name = "NAMESPACE")]
    pub(crate) namespace: String,
    /// The member cluster that it is in
    #[arg(long, value_name = "NAME")]
    pub(crate) cluster: String,
    /// The shard that is to have it
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pub(crate) to: ShardName,
    #[command(flatten)]
    pub(crate) edit: EditArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct PromoteArgs {
    /// The root
    #[arg(value_name = "NAMESPACE/NAME")]
    pub(crate) root: ShardName,
    /// Part of all buckets that the canary is to have, more than now [default: it gives back all]
    #[arg(long, value_name = "N", value_parser = value_parser!(u8).range(1..=100))]
    pub(crate) percent: Option<u8>,
    #[command(flatten)]
    pub(crate) edit: EditArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct RollbackArgs {
    /// The shard
    #[arg(value_name = "NAMESPACE/NAME")]
    pub(crate) shard: ShardName,
    #[command(flatten)]
    pub(crate) edit: EditArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct SeparateArgs {
    #[command(flatten)]
    pub(crate) edit: EditArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ForceArgs {
    /// The shard that lets go
    #[arg(value_name = "NAMESPACE/NAME")]
    pub(crate) shard: ShardName,
    /// Only this pair; repeatable [default: all that it lets go of]
    #[arg(long = "pair", value_name = "CLUSTER/NAMESPACE")]
    pub(crate) pairs: Vec<String>,
    /// Why: whoever looks is told
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    #[command(flatten)]
    pub(crate) edit: EditArgs,
}
