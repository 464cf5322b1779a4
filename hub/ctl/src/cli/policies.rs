//! The command line of `portolanctl policies`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand};
use portolan_crds::names::{is_dns_label, is_dns_subdomain};

use super::{FleetHubArgs, OutputArgs, RouterArgs};

const STATUS_HELP: &str = "\
One row for each rule and caller that is not as it was in the beginning, the worst first, as the
hub writes it into the object's status at most every five seconds. CALLER: <cluster>/<pod>, or all
for a limit of scope Shared, which its callers have together. LAST MINUTE and TOTAL: requests that
a rule refused, or that a fault was injected into, since the router knows the rule. TOKENS: what
is left in its bucket. A rule that is opened by an empty bucket with recoverPolicy Manual, or
none, stays so until `portolanctl breaker close NAMESPACE/NAME/RULE`.

Examples:
  $ portolanctl policies status ops/runaway
  POLICY                       RULE      CALLER      ROUTER    STATE    SINCE   REASON
  CircuitBreaker/ops/runaway   deletes   east/op-0   gateway   Opened   12s     LimitExceeded
  $ portolanctl policies status -w    # goes on, and prints what changes";

const TRY_HELP: &str = "\
The router keeps the last five minutes of what its callers asked for, as far as rules speak of it;
each CircuitBreaker of the file is played over that, from full buckets and by itself. Nothing is
changed. It cannot know how an operator would have gone on after a refusal, nor the labels that
spec.selector selects by: without --caller it is played over all callers of its namespace.
FaultInjections are passed over, there is nothing to foresee: they hit what they match.

Examples:
  $ portolanctl policies try -f runaway.yaml --dir fleet
  $ portolanctl policies try -f runaway.yaml --caller east/operators/greeter-0
  $ portolanctl policies try -f - -o json < runaway.yaml";

/// What is asked about policies.
#[derive(Debug, Subcommand)]
pub(crate) enum PoliciesCommand {
    /// Show how each rule stands for each caller
    #[command(after_help = STATUS_HELP)]
    Status(StatusArgs),
    /// Play policies over a router's last minutes: what would have been refused, for whom
    #[command(after_help = TRY_HELP)]
    Try(TryArgs),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct StatusArgs {
    /// Policies of this name, of both kinds [default: all]
    #[arg(value_name = "NAMESPACE/NAME")]
    pub(crate) policy: Option<PolicyName>,
    /// Go on, and print what changes
    #[arg(long, short)]
    pub(crate) watch: bool,
    #[command(flatten)]
    pub(crate) hub: FleetHubArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct TryArgs {
    /// Manifests with CircuitBreakers; `-` is stdin; repeatable
    #[arg(short = 'f', long = "filename", value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Whose requests, as `get callers` lists them; repeatable [default: all callers of the object's namespace]
    #[arg(long = "caller", value_name = "CALLER")]
    pub(crate) callers: Vec<String>,
    #[command(flatten)]
    pub(crate) router: RouterArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `NAMESPACE/NAME` of a CircuitBreaker or a FaultInjection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PolicyName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl PolicyName {
    /// Refuses what Kubernetes would.
    pub(crate) fn new(namespace: &str, name: &str) -> Result<Self, String> {
        if !is_dns_label(namespace) {
            return Err(format!("{namespace:?} is no name of a namespace"));
        }
        if !is_dns_subdomain(name) {
            return Err(format!("{name:?} is no name of an object"));
        }
        Ok(Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }
}

impl FromStr for PolicyName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (namespace, name) = text
            .split_once('/')
            .ok_or_else(|| format!("{text:?} is not NAMESPACE/NAME"))?;
        Self::new(namespace, name)
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
