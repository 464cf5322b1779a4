//! The command lines of `portolanctl breaker` and `portolanctl breakers`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use portolan_crds::TrafficClass;
use portolan_crds::duration::parse_duration;

use super::{HubArgs, OutputArgs};

const BREAKERS_HELP: &str = "\
One row for each breaker that is not closed, as routers report them every three seconds, and one
for each that is held by hand. CLASS: Unary, List, WatchStart, Upgrade, TokenReview.

Examples:
  $ portolanctl breakers --hub-kubeconfig hub.kubeconfig
  MEMBER   CLASS   ROUTER    STATE   SINCE   REASON
  east     List    gateway   Open    12s     it answers nobody, and takes no new connection either
  $ portolanctl breakers -w    # goes on, and prints what changes";

const BREAKER_HELP: &str = "\
Written into the member's MemberCluster (spec.breaker.byHand): it needs the right to update that,
is seen by all who read it, and is in force in every router within a second, also in one that
starts later. It ends by itself after --for: the time when is written by this machine's clock, and
kept by each router's. Machines whose clocks differ hold it for so much longer or shorter.

Without --class it is for all requests but reviews of callers' tokens, without which nobody is
known; name TokenReview to hold those. A breaker that is held open lets renewals of leader
elections through.

Examples:
  $ portolanctl breaker open east --reason 'etcd is being repaired' --for 30m
  $ portolanctl breaker close east --class List --reason 'slow lists are better than none'
  $ portolanctl breaker reset east --reason 'repaired'    # also ends what is held";

/// What is to become of breakers.
#[derive(Debug, Subcommand)]
pub(crate) enum BreakerCommand {
    /// Send nothing to a member
    #[command(after_help = BREAKER_HELP)]
    Open(HoldArgs),
    /// Send everything to a member, whatever it does
    #[command(after_help = BREAKER_HELP)]
    Close(HoldArgs),
    /// Close breakers once, forget what they counted, and end what is held by hand
    #[command(after_help = BREAKER_HELP)]
    Reset(ResetArgs),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct HoldArgs {
    #[command(flatten)]
    pub(crate) which: ResetArgs,
    /// Until it ends by itself; at most 30 days
    #[arg(long = "for", value_name = "DURATION", default_value = "1h", value_parser = parse_duration)]
    pub(crate) lasts: Duration,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ResetArgs {
    /// Member cluster, as `get clusters` lists it
    pub(crate) member: String,
    /// Class of requests: Unary, List, WatchStart, Upgrade, TokenReview [default: all but TokenReview]
    #[arg(long, value_parser = parse_class)]
    pub(crate) class: Option<TrafficClass>,
    /// Why: whoever is refused is told
    #[arg(long)]
    pub(crate) reason: String,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
    /// Folder of a fleet of `dev up`, whose hub is asked
    #[arg(long, value_name = "DIR", conflicts_with = "hub_kubeconfig")]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = BREAKERS_HELP)]
pub(crate) struct BreakersArgs {
    /// Go on, and print what changes
    #[arg(long, short)]
    pub(crate) watch: bool,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
    /// Folder of a fleet of `dev up`, whose hub is asked
    #[arg(long, value_name = "DIR", conflicts_with = "hub_kubeconfig")]
    pub(crate) dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

fn parse_class(name: &str) -> Result<TrafficClass, String> {
    // The second is the word of routers, in metrics and messages.
    let all = [
        (TrafficClass::Unary, "unary"),
        (TrafficClass::List, "list"),
        (TrafficClass::WatchStart, "watch"),
        (TrafficClass::Upgrade, "upgrade"),
        (TrafficClass::TokenReview, "token-review"),
    ];
    let is_named = |(class, word): &(TrafficClass, &str)| {
        format!("{class:?}").eq_ignore_ascii_case(name) || word.eq_ignore_ascii_case(name)
    };
    let named = all.into_iter().find(is_named).map(|(class, _)| class);
    named.ok_or_else(|| {
        "must be Unary, List, WatchStart (or watch), Upgrade or TokenReview (or token-review)".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_goes_by_the_word_of_metrics_as_well() {
        for (name, class) in [
            ("WatchStart", TrafficClass::WatchStart),
            ("watch", TrafficClass::WatchStart),
            ("token-review", TrafficClass::TokenReview),
            ("tokenreview", TrafficClass::TokenReview),
            ("list", TrafficClass::List),
        ] {
            assert_eq!(parse_class(name), Ok(class));
        }
        assert!(parse_class("lists").is_err());
    }
}
