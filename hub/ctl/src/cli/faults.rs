//! The command line of `portolanctl faults`.

use clap::{Args, Subcommand};

use super::{FleetHubArgs, OutputArgs};

const FAULTS_HELP: &str = "\
Stopped is for all FaultInjections of the hub, also for those that are made later, until `faults
resume`; routers that cannot reach the hub keep what they were told last. What says so is
ConfigMap portolan-faults in namespace portolan-system: it needs the right to patch that, and
stays when hub and routers start anew. Limits (CircuitBreakers) go on. To end one FaultInjection:
spec.disabled.

Examples:
  $ portolanctl faults stop --reason 'a real outage has begun'
  $ portolanctl faults
  all ordered faults are stopped since 2026-03-01T10:00:00Z by ada: a real outage has begun
  $ portolanctl faults resume";

/// `faults` by itself tells.
#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true, after_help = FAULTS_HELP)]
pub(crate) struct FaultsArgs {
    #[command(subcommand)]
    pub(crate) command: Option<FaultsCommand>,
    #[command(flatten)]
    pub(crate) hub: FleetHubArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// What is to become of all ordered faults.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum FaultsCommand {
    /// Nothing of any FaultInjection happens from now on
    #[command(after_help = FAULTS_HELP)]
    Stop(StopArgs),
    /// FaultInjections are in force again, as far as they are
    Resume(ResumeArgs),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct StopArgs {
    /// Why: whoever looks is told
    #[arg(long)]
    pub(crate) reason: String,
    #[command(flatten)]
    pub(crate) hub: FleetHubArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    pub(crate) hub: FleetHubArgs,
}
