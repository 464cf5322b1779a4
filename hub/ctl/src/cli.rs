//! The command line of `portolanctl`: what a user may type. Meaning is in the module of each command.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use portolan_crds::duration::parse_duration;
use portolan_crds::names::{check_dns_label, is_dns_subdomain};
use portolan_crds::{BucketAlgorithm, Bucketing, ShardName};
use portolan_wire::subscription::CallerPod;
use serde::Serialize;

mod apply;
mod breaker;
mod ca;
mod check;
mod dev;
mod faults;
mod inject;
mod join;
mod policies;
mod register;
mod router;
mod shards;
mod uninstall;

pub(crate) use self::apply::{ApplyArgs, DryRun};
pub(crate) use self::breaker::{BreakerCommand, BreakersArgs, CloseArgs, Closed, HeldArgs, HoldArgs, RuleName};
pub(crate) use self::ca::{CaCommand, RotateArgs, StepArgs};
pub(crate) use self::check::CheckArgs;
pub(crate) use self::dev::{DevCommand, DevDirArgs, DevDownArgs, DevProgramArgs, DevStatusArgs, DevUpArgs};
pub(crate) use self::faults::{FaultsArgs, FaultsCommand};
pub(crate) use self::inject::{GatewayAddress, InjectArgs};
pub(crate) use self::join::{GrantArgs, JoinArgs, MembershipArgs};
pub(crate) use self::policies::{PoliciesCommand, PolicyName, StatusArgs, TryArgs};
pub(crate) use self::register::{RegisterArgs, UnregisterArgs};
pub(crate) use self::router::{ForgetArgs, RouterCommand};
pub(crate) use self::shards::{
    DiffArgs, EditArgs, ForceArgs, HubAdminArgs, MoveArgs, PlanArgs, PromoteArgs, RollbackArgs, SeparateArgs,
    ShardsCommand, ShardsStatusArgs, WhoArgs,
};

pub(crate) use self::uninstall::UninstallArgs;

/// Joins member clusters to a Portolan hub, shows what it decided and why, and runs a whole fleet locally.
///
/// Installed as `kubectl-portolan` on the PATH it is also `kubectl portolan`.
#[derive(Debug, Parser)]
#[command(name = "portolanctl", version, propagate_version = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Install the CustomResourceDefinitions, the hub's RBAC and its webhook into the hub cluster
    Install(InstallArgs),
    /// Make a cluster a member, with its kubeconfig: agent, certificate and acceptance, until it serves
    #[command(after_help = register::REGISTER_HELP)]
    Register(Box<RegisterArgs>),
    /// Take a member cluster out again: its shards' namespaces, its agent, and all that was written there
    #[command(after_help = register::UNREGISTER_HELP)]
    Unregister(UnregisterArgs),
    /// Take the hub out of its cluster again; what is kept is told
    #[command(after_help = uninstall::UNINSTALL_HELP)]
    Uninstall(UninstallArgs),
    /// Both halves of a registration without the agent, which somebody else installs
    Join(JoinArgs),
    /// Let the router act as more ServiceAccounts, users, groups, uids or extras in a member cluster
    Allow(AllowArgs),
    /// Judge manifests by the rules of hub and routers, and apply them to the hub
    Apply(ApplyArgs),
    /// Point the Pods of manifests at a gateway, as the label does where the API server serves it
    Inject(InjectArgs),
    /// Write a kubeconfig with a client certificate of the hub CA, for a person
    Kubeconfig(KubeconfigArgs),
    /// Make a bootstrap token for a gateway router
    RouterToken(RouterTokenArgs),
    /// Check an installation: programs, versions, rights, certificates, who reaches whom, the webhook
    #[command(after_help = check::CHECK_HELP)]
    Check(CheckArgs),
    /// Show members, shards, callers, routers, policies, or kinds that not all members serve
    Get(GetArgs),
    /// Show whose namespaces are and what an edit would move; move one, or roll a shard back
    #[command(visible_alias = "shard")]
    Shards {
        #[command(subcommand)]
        command: ShardsCommand,
    },
    /// Forget a router that is gone or was stolen
    Router {
        #[command(subcommand)]
        command: RouterCommand,
    },
    /// Show breakers that are not closed, and those that are held by hand
    Breakers(BreakersArgs),
    /// Hold a member's breakers open or closed, or set them back, in every router; close a policy's rule
    Breaker {
        #[command(subcommand)]
        command: BreakerCommand,
    },
    /// Show how the rules of CircuitBreakers and FaultInjections stand, or what they would have done
    #[command(visible_alias = "policy")]
    Policies {
        #[command(subcommand)]
        command: PoliciesCommand,
    },
    /// Show whether ordered faults happen; stop all of them, or let them happen again
    Faults(FaultsArgs),
    /// Show the hub's CA, or replace it by another without an outage
    Ca {
        #[command(subcommand)]
        command: CaCommand,
    },
    /// Show who has which namespace as the hub keeps it, or take it over where that is lost
    Ledger {
        #[command(subcommand)]
        command: LedgerCommand,
    },
    /// Print the plan of a request and why
    Explain(ExplainArgs),
    /// Show the merged watches that are open on a router, and how each of their legs is
    #[command(visible_alias = "watches", after_help = WATCH_STATE_HELP)]
    WatchState(WatchStateArgs),
    /// Run hub, agents and one gateway router as local processes against existing clusters
    Dev {
        #[command(subcommand)]
        command: DevCommand,
    },
}

// Help is wrapped at 100 columns, also where its lines are meant as they are: they stay below.
const WATCH_STATE_HELP: &str = "\
A merged watch has one leg per member. STATE: live (its stream is open), held (the member is
away: the client's stream goes on, nothing of the member is taken for deleted), relisting (its
objects are read anew), absent (the member does not serve the kind). SLOT is the member's
resourceVersion in the client's cursor, LAG the time since the member's last word.

Example:
  $ portolanctl watch-state --dir fleet
  ID   CALLER         SHARD   RESOURCE   AGE   EVENTS   CLUSTER   STATE   SLOT   LAG   RESTARTS
  7    east/ops/a-0   ops/a   pods       42s   31       east      live    8121   3s    0
                                                        west      held    901    12s   5
  watch 7, west: connection refused";

const LEDGER_ADOPT_HELP: &str = "\
For a hub that refuses to start because it cannot know who has what: its ledger (ConfigMaps
portolan-ledger… in portolan-system) is lost or was changed, or statuses of a hub before ledgers
do not name all namespaces. Stop the hub first.

A namespace that one shard claims, by what is left of the ledger, by its status or by its spec in
force, is granted to it. What several claim is listed and granted to nobody: a hub that starts
from an adopted ledger grants what it does not name only when every router has let go of it, by
the usual rules. Selectors need the namespaces that there are: give the members with --member.

Examples:
  $ portolanctl ledger adopt --hub-kubeconfig hub.kubeconfig --member east=east.kubeconfig
  $ portolanctl ledger adopt --hub-kubeconfig hub.kubeconfig --member east=east.kubeconfig --yes";

const GET_HELP: &str = "\
All but kinds are the hub's to tell: --hub-kubeconfig FILE, or --dir DIR.
Kinds are a router's to tell: --router-admin HOST:PORT, or --dir DIR.

Examples:
  $ portolanctl get shards --hub-kubeconfig hub.kubeconfig
  $ portolanctl get clusters --dir fleet    # the fleet that `dev up --dir fleet` started
  $ portolanctl get policies -o wide        # CircuitBreakers and FaultInjections
  $ portolanctl get kinds --dir fleet       # what its members do not all serve alike";

/// Where the hub answers questions about writes.
pub(crate) const WEBHOOK_PATH: &str = "/shardingconfigs";

/// How to print an answer.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct OutputArgs {
    /// Format of what is printed
    #[arg(long, short, value_enum, default_value = "table")]
    pub(crate) output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Output {
    /// For people
    Table,
    /// For people, with more columns where there are some
    Wide,
    /// For programs
    Json,
}

impl OutputArgs {
    /// Prints `answer`, for people as `table` writes it.
    pub(crate) fn print<T: Serialize>(self, answer: &T, table: impl FnOnce(&T) -> String) -> anyhow::Result<()> {
        match self.output {
            Output::Table | Output::Wide => print!("{}", table(answer)),
            Output::Json => println!("{}", serde_json::to_string_pretty(answer)?),
        }
        Ok(())
    }
}

/// Which router to ask.
#[derive(Debug, Clone, Args)]
pub(crate) struct RouterArgs {
    /// Admin address of a router
    #[arg(
        long,
        env = "PORTOLAN_ROUTER_ADMIN",
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:8444"
    )]
    pub(crate) router_admin: String,
    /// Folder of a running `dev up`: its router is asked, or its hub where the hub is whom to ask
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

/// Which cluster is the hub.
#[derive(Debug, Clone, Args)]
pub(crate) struct HubArgs {
    /// Kubeconfig of the hub cluster; its current context is used [default: as kubectl finds it]
    #[arg(long, env = "PORTOLAN_HUB_KUBECONFIG", value_name = "FILE")]
    pub(crate) hub_kubeconfig: Option<PathBuf>,
}

/// Which cluster is the hub, also by the folder of a fleet.
#[derive(Debug, Clone, Args)]
pub(crate) struct FleetHubArgs {
    #[command(flatten)]
    pub(crate) hub: HubArgs,
    /// Folder of a fleet of `dev up`, whose hub is asked
    #[arg(long, value_name = "DIR", conflicts_with = "hub_kubeconfig")]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct InstallArgs {
    #[command(flatten)]
    pub(crate) hub: HubArgs,
    /// URL at which the hub cluster's API server reaches the webhook of a hub that runs outside of the cluster (its
    /// --webhook-bind) [default: Service portolan-system/portolan-hub, port 7445]
    #[arg(long, value_name = "https://HOST:PORT/shardingconfigs", value_parser = parse_webhook_url)]
    pub(crate) webhook_url: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct AllowArgs {
    /// Kubeconfig of the member cluster
    #[arg(long, value_name = "FILE")]
    pub(crate) member_kubeconfig: PathBuf,
    /// ServiceAccounts the router may act as
    #[arg(value_name = "NAMESPACE/SERVICEACCOUNT")]
    pub(crate) service_accounts: Vec<String>,
    /// User (a person's certificate name) the router may act as; repeatable
    #[arg(long = "user", value_name = "USER")]
    pub(crate) users: Vec<String>,
    /// Group that a request may name with one of these (kubectl --as-group); repeatable
    #[arg(long = "group", value_name = "GROUP")]
    pub(crate) groups: Vec<String>,
    /// Uid that a request may name (kubectl --as-uid); repeatable
    #[arg(long = "uid", value_name = "UID")]
    pub(crate) uids: Vec<String>,
    /// Key of an extra that a request may name, with any value (Impersonate-Extra-KEY); repeatable
    #[arg(long = "extra", value_name = "KEY")]
    pub(crate) extras: Vec<String>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct KubeconfigArgs {
    /// User name: the certificate's CN, checked by the hub's RBAC (verb proxy on memberclusters). The hub signs for the
    /// user that --hub-kubeconfig is of; for another only what is approved (verb approve on signers
    /// ctrlmesh.kusionstack.io/person)
    pub(crate) user: String,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
    /// Address of the router
    #[arg(long, value_name = "https://HOST:PORT")]
    pub(crate) router: String,
    /// Member clusters to write a context for; repeatable
    #[arg(long = "cluster", value_name = "NAME", required = true)]
    pub(crate) clusters: Vec<String>,
    /// Write a context NAME.SUFFIX too, which reaches the member by host name; what the router has as --explicit-host
    #[arg(long, value_name = "SUFFIX")]
    pub(crate) explicit_host: Option<String>,
    /// How long the certificate is good for: ten minutes to a week
    #[arg(long, default_value = "24h", value_parser = parse_duration)]
    pub(crate) ttl: Duration,
    /// File to write, mode 0600
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: PathBuf,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct RouterTokenArgs {
    /// Name of the router
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
    /// Host name or address that callers reach the router at, for its certificate; repeatable
    #[arg(long = "san", value_name = "HOST", required = true)]
    pub(crate) sans: Vec<String>,
    /// Shard that the router serves, and the only one it is told of; repeatable. Neither this nor --caller: all of them
    #[arg(long = "shard", value_name = "NAMESPACE/NAME")]
    pub(crate) shards: Vec<ShardName>,
    /// The one caller that the router serves, a Pod in a member cluster: it is told of nothing else, and given no token
    /// that may act as others
    #[arg(long, value_name = "CLUSTER/NAMESPACE/POD", conflicts_with = "shards")]
    pub(crate) caller: Option<CallerPod>,
    /// How long the token is good for
    #[arg(long, default_value = "1h", value_parser = parse_duration)]
    pub(crate) token_ttl: Duration,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = GET_HELP)]
pub(crate) struct GetArgs {
    /// What to show
    #[arg(value_enum)]
    pub(crate) what: GetWhat,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
    #[command(flatten)]
    pub(crate) router: RouterArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum GetWhat {
    /// Member clusters: conditions, version, latency, breakers
    Clusters,
    /// ShardingConfigs: conditions, who owns which namespaces
    Shards,
    /// Callers: replicas of operators, their shard and version
    Callers,
    /// Routers that enrolled: what they see, when they were seen last
    Routers,
    /// CircuitBreakers and FaultInjections: conditions, whom they reach, what they did
    Policies,
    /// Kinds that the members of a shard do not all serve alike
    Kinds,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LedgerCommand {
    /// Show who has which namespace of which member, and since which view revision
    Show(LedgerShowArgs),
    /// Make a ledger that a hub can start from, of what can be told for certain
    #[command(after_help = LEDGER_ADOPT_HELP)]
    Adopt(LedgerAdoptArgs),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct LedgerShowArgs {
    #[command(flatten)]
    pub(crate) hub: FleetHubArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct LedgerAdoptArgs {
    #[command(flatten)]
    pub(crate) hub: FleetHubArgs,
    /// Member cluster and its kubeconfig, to read which namespaces there are; repeatable
    #[arg(long = "member", value_name = "NAME=FILE", value_parser = parse_member)]
    pub(crate) members: Vec<(String, PathBuf)>,
    /// Number of buckets that the hub is started with, or legacy for its algorithm of that name
    #[arg(long, value_name = "N|legacy", value_parser = parse_buckets, default_value = "32")]
    pub(crate) buckets: Bucketing,
    /// Write the ledger; without it only what would be written is shown
    #[arg(long)]
    pub(crate) yes: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ExplainArgs {
    /// Verb: get, list, watch, create, update, patch, delete or deletecollection
    pub(crate) verb: String,
    /// Path and query of the request, as in /api/v1/namespaces/ns-a/pods?labelSelector=app
    pub(crate) path: String,
    /// The caller: <home cluster>/<namespace>/<pod>, as `get callers` lists it
    #[arg(long = "as", value_name = "CALLER")]
    pub(crate) caller: String,
    #[command(flatten)]
    pub(crate) router: RouterArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct WatchStateArgs {
    #[command(flatten)]
    pub(crate) router: RouterArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text
        .split_once('=')
        .ok_or_else(|| format!("{text:?} is not KEY=VALUE"))?;
    Ok((key.to_owned(), value.to_owned()))
}

fn parse_webhook_url(text: &str) -> Result<String, String> {
    let ok = text.starts_with("https://") && text.parse::<http::Uri>().is_ok_and(|url| url.path() == WEBHOOK_PATH);
    let wrong = || format!("{text:?} is not https://HOST:PORT{WEBHOOK_PATH}");
    ok.then(|| text.to_owned()).ok_or_else(wrong)
}

/// The hub listens at IPv4 addresses for it.
fn parse_webhook_host(text: &str) -> Result<String, String> {
    let ok = is_dns_subdomain(text) || text.parse::<std::net::Ipv4Addr>().is_ok();
    let wrong = || format!("{text:?} is neither a DNS name nor an IPv4 address; the port is the hub's to choose");
    ok.then(|| text.to_owned()).ok_or_else(wrong)
}

/// The rule by which a hub assigns namespaces to buckets.
fn parse_buckets(text: &str) -> Result<Bucketing, String> {
    if text == "legacy" {
        return Ok(Bucketing::legacy());
    }
    let buckets = text
        .parse()
        .map_err(|_| format!("{text:?} is neither a number nor legacy"))?;
    Bucketing::new(BucketAlgorithm::Xxh3, buckets).map_err(|error| error.to_string())
}

fn parse_member(text: &str) -> Result<(String, PathBuf), String> {
    let (name, file) = text
        .split_once('=')
        .ok_or_else(|| format!("{text:?} is not NAME=FILE"))?;
    check_dns_label(name).map_err(|error| error.to_string())?;
    Ok((name.to_owned(), PathBuf::from(file)))
}

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory as _};

    use super::*;

    /// Where clap wraps when it does not know the width of the terminal.
    const WRAPPED_AT: usize = 100;
    const WIDEST: usize = 98;

    fn each(command: &Command, found: &mut Vec<Command>) {
        found.push(command.clone());
        for command in command.get_subcommands() {
            each(command, found);
        }
    }

    #[test]
    fn examples_are_printed_as_they_are_written() {
        let mut root = Cli::command();
        root.build();
        let mut commands = Vec::new();
        each(&root, &mut commands);
        let mut seen = 0;
        for command in commands {
            let texts = [
                command.get_before_help(),
                command.get_before_long_help(),
                command.get_after_help(),
                command.get_after_long_help(),
            ];
            let written: Vec<_> = texts.iter().flatten().map(ToString::to_string).collect();
            let printed = command.clone().term_width(WRAPPED_AT).render_long_help().to_string();
            for line in written.iter().flat_map(|text| text.lines()) {
                let name = command.get_name();
                assert!(line.chars().count() <= WIDEST, "{name} --help: too wide: {line}");
                assert!(
                    printed.lines().any(|other| other == line),
                    "{name} --help: mangled: {line}"
                );
                seen += 1;
            }
        }
        assert!(seen > 0, "no command has examples");
    }
}
