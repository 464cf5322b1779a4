//! Flags and environment → a checked [`Config`]. Binds nothing, reads no file but the flags' own values.
//!
//! Caller: `main`.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

use anyhow::bail;
use clap::{Args, Parser, Subcommand};
use portolan_crds::labels::{DEFAULT_PREFIX, LabelKeys, SYSTEM_NAMESPACE};
use portolan_crds::names::is_dns_label;
use portolan_runtime::TelemetryArgs;
use portolan_runtime::admin::AdminArgs;
use portolan_wire::client::host_of;
use serde::Serialize;

/// Address of the admin server unless a flag says otherwise.
pub const DEFAULT_ADMIN_BIND: &str = "127.0.0.1:7464";
/// Patches of labels per second over all kinds, where the API server is free: a first sweep of 100,000 objects takes two
/// minutes.
pub const DEFAULT_LABELS_PER_SECOND: u32 = 1000;

/// Name of an agent that is the only one of its cluster.
pub const DEFAULT_REPLICA: &str = "agent";

/// What a user types.
#[derive(Debug, Parser)]
#[command(name = "portolan-agent", version, about, args_conflicts_with_subcommands = true)]
pub struct AgentArgs {
    #[command(flatten)]
    pub run: RunArgs,
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// What to do instead of running.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Remove everything the agent has written to this cluster: admission policies, labels, identity. Stop the agent first
    Uninstall(UninstallArgs),
}

/// Flags of the running agent.
#[derive(Debug, Args)]
#[command(mut_arg("admin_bind", |arg| arg.default_value(DEFAULT_ADMIN_BIND)))]
pub struct RunArgs {
    #[command(flatten)]
    pub member: MemberArgs,

    /// Address of the hub; else key `hub` of Secret portolan-agent-bootstrap
    #[arg(long, env = "PORTOLAN_HUB", value_name = "HOST:PORT")]
    pub hub: Option<String>,

    /// File with the hub's CA certificate; else key `ca.crt` of that Secret
    #[arg(long, env = "PORTOLAN_HUB_CA", value_name = "FILE")]
    pub hub_ca: Option<PathBuf>,

    /// File with the bootstrap token; else key `token` of that Secret
    #[arg(long, env = "PORTOLAN_BOOTSTRAP_TOKEN_FILE", value_name = "FILE")]
    pub bootstrap_token_file: Option<PathBuf>,

    /// Name of this one among the agents of this cluster, of which one works and the others stand by: each needs its own, and
    /// keeps it when it is started anew
    #[arg(long, env = "PORTOLAN_REPLICA", value_name = "NAME", default_value = DEFAULT_REPLICA)]
    pub replica: String,

    /// Write the bound addresses to this file as JSON, once bound
    #[arg(long, env = "PORTOLAN_ADDRESSES_FILE", value_name = "FILE")]
    pub addresses_file: Option<PathBuf>,

    #[command(flatten)]
    pub admin: AdminArgs,

    #[command(flatten)]
    pub telemetry: TelemetryArgs,
}

/// Flags of `uninstall`.
#[derive(Debug, Args)]
pub struct UninstallArgs {
    #[command(flatten)]
    pub member: MemberArgs,

    /// Prefix of the label keys to remove, with its slash
    #[arg(long, env = "PORTOLAN_LABEL_PREFIX", default_value = DEFAULT_PREFIX)]
    pub label_prefix: String,

    #[command(flatten)]
    pub telemetry: TelemetryArgs,
}

/// Which cluster the agent works on, and how gently.
#[derive(Debug, Args)]
pub struct MemberArgs {
    /// Kubeconfig of the member cluster; default: the Pod's own, else the user's
    #[arg(long, env = "PORTOLAN_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Namespace of Portolan's own objects in the member
    #[arg(long, env = "PORTOLAN_NAMESPACE", default_value = SYSTEM_NAMESPACE)]
    pub namespace: String,

    /// Most patches of labels per second, over all kinds together; fewer while the API server is busy
    #[arg(long, env = "PORTOLAN_LABELS_PER_SECOND", default_value_t = DEFAULT_LABELS_PER_SECOND)]
    pub labels_per_second: u32,
}

/// [`MemberArgs`] as checked.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberConfig {
    pub(crate) kubeconfig: Option<PathBuf>,
    pub(crate) namespace: String,
    pub(crate) labels_per_second: NonZeroU32,
}

/// The running agent's flags as checked. Holds no secret: tokens and keys stay in files and Secrets.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Config {
    pub(crate) member: MemberConfig,
    pub(crate) hub: Option<String>,
    pub(crate) hub_ca: Option<PathBuf>,
    pub(crate) bootstrap_token_file: Option<PathBuf>,
    pub(crate) replica: String,
    pub(crate) addresses_file: Option<PathBuf>,
    pub(crate) admin_bind: SocketAddr,
    pub(crate) admin_remote: bool,
}

/// [`UninstallArgs`] as checked.
#[derive(Debug, Clone)]
pub struct UninstallConfig {
    pub(crate) member: MemberConfig,
    pub(crate) keys: LabelKeys,
}

impl TryFrom<RunArgs> for Config {
    type Error = anyhow::Error;

    /// Reports everything wrong at once.
    fn try_from(args: RunArgs) -> anyhow::Result<Self> {
        let mut faults = Vec::new();
        let member = args.member.check(&mut faults);
        let hub = args.hub.filter(|hub| !hub.is_empty());
        if let Some(hub) = hub.as_ref().filter(|hub| host_of(hub).is_none()) {
            faults.push(format!("--hub {hub:?} is not host:port"));
        }
        if args.replica.is_empty() {
            faults.push("--replica is empty".to_owned());
        }
        let Some(member) = member.filter(|_| faults.is_empty()) else {
            bail!("{}", faults.join("; "));
        };
        let admin_default = || DEFAULT_ADMIN_BIND.parse().expect("the default is an address");
        Ok(Self {
            member,
            hub,
            hub_ca: args.hub_ca,
            bootstrap_token_file: args.bootstrap_token_file,
            replica: args.replica,
            addresses_file: args.addresses_file,
            admin_bind: args.admin.admin_bind.unwrap_or_else(admin_default),
            admin_remote: args.admin.admin_remote,
        })
    }
}

impl TryFrom<UninstallArgs> for UninstallConfig {
    type Error = anyhow::Error;

    /// Reports everything wrong at once.
    fn try_from(args: UninstallArgs) -> anyhow::Result<Self> {
        let mut faults = Vec::new();
        let member = args.member.check(&mut faults);
        let keys = LabelKeys::new(&args.label_prefix);
        let keys = keys.map_err(|error| faults.push(format!("--label-prefix: {error}")));
        match (member, keys) {
            (Some(member), Ok(keys)) => Ok(Self { member, keys }),
            _ => bail!("{}", faults.join("; ")),
        }
    }
}

impl MemberArgs {
    /// `None`, and why, if anything is wrong.
    fn check(self, faults: &mut Vec<String>) -> Option<MemberConfig> {
        let before = faults.len();
        if !is_dns_label(&self.namespace) {
            faults.push(format!(
                "--namespace {:?} is not the name of a namespace",
                self.namespace
            ));
        }
        let labels_per_second = NonZeroU32::new(self.labels_per_second);
        if labels_per_second.is_none() {
            faults.push("--labels-per-second must be at least 1".to_owned());
        }
        let labels_per_second = labels_per_second.filter(|_| faults.len() == before)?;
        Some(MemberConfig {
            kubeconfig: self.kubeconfig,
            namespace: self.namespace,
            labels_per_second,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn config(flags: &[&str]) -> anyhow::Result<Config> {
        let args = AgentArgs::try_parse_from([&["portolan-agent"], flags].concat()).unwrap();
        Config::try_from(args.run)
    }

    #[test]
    fn flags_are_consistent() {
        AgentArgs::command().debug_assert();
    }

    #[test]
    fn help_tells_the_default_of_the_admin_server() {
        let help = AgentArgs::command().render_long_help().to_string();
        assert!(help.contains("[default: 127.0.0.1:7464]"), "{help}");
    }

    #[test]
    fn defaults_need_no_flag() {
        let config = config(&[]).unwrap();
        assert_eq!(config.admin_bind.to_string(), "127.0.0.1:7464");
        assert_eq!(config.member.namespace, "portolan-system");
    }

    #[test]
    fn all_faults_are_told_at_once() {
        let faults = config(&[
            "--namespace",
            "No",
            "--labels-per-second",
            "0",
            "--hub",
            "nowhere",
            "--replica",
            "",
        ])
        .unwrap_err();
        assert_eq!(
            faults.to_string(),
            "--namespace \"No\" is not the name of a namespace; --labels-per-second must be at least 1; \
             --hub \"nowhere\" is not host:port; --replica is empty"
        );
    }

    #[test]
    fn uninstall_takes_the_member_flags() {
        let args = AgentArgs::try_parse_from(["portolan-agent", "uninstall", "--kubeconfig", "k"]).unwrap();
        let Some(Command::Uninstall(args)) = args.command else {
            panic!("no command")
        };
        assert_eq!(UninstallConfig::try_from(args).unwrap().keys.prefix(), DEFAULT_PREFIX);
    }
}
