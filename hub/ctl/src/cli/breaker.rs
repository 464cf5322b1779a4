//! The command lines of `portolanctl breaker` and `portolanctl breakers`.

use std::fmt;
use std::time::Duration;

use clap::{Args, Subcommand};
use portolan_crds::TrafficClass;
use portolan_crds::duration::parse_duration;

use super::policies::PolicyName;
use super::{FleetHubArgs, OutputArgs};

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

const CLOSE_HELP: &str = "\
MEMBER: as `breaker open` does, but everything is sent. Needs --reason.

NAMESPACE/NAME/RULE: a rule of a CircuitBreaker that opened because its bucket was empty is
closed, for all its callers and in every router, within a second. It is closed once and not
held: an empty bucket opens it again, and closing fills none. A breaker of the object
(spec.breakers) is closed for all its member clusters, or for one as
NAMESPACE/NAME/BREAKER@CLUSTER. Written into the object's annotation
ctrlmesh.kusionstack.io/close: it needs the right to patch the CircuitBreaker. Rules of
triggerPolicy ForceOpened stay open until the object says otherwise.

Examples:
  $ portolanctl breaker close east --class List --reason 'slow lists are better than none'
  $ portolanctl policies status operators/runaway      # which rules are opened, and why
  $ portolanctl breaker close operators/runaway/deletes --reason 'the loop is fixed'";

/// What is to become of breakers.
#[derive(Debug, Subcommand)]
pub(crate) enum BreakerCommand {
    /// Send nothing to a member
    #[command(after_help = BREAKER_HELP)]
    Open(HoldArgs),
    /// Send everything to a member, whatever it does; or close a rule of a CircuitBreaker that opened
    #[command(after_help = CLOSE_HELP)]
    Close(CloseArgs),
    /// Close breakers once, forget what they counted, and end what is held by hand
    #[command(after_help = BREAKER_HELP)]
    Reset(ResetArgs),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct HoldArgs {
    #[command(flatten)]
    pub(crate) held: HeldArgs,
    /// Until it ends by itself; at most 30 days
    #[arg(long = "for", value_name = "DURATION", default_value = "1h", value_parser = parse_duration)]
    pub(crate) lasts: Duration,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct CloseArgs {
    /// Member cluster, as `get clusters` lists it, or a rule of a CircuitBreaker, as `policies status` lists it
    #[arg(value_name = "MEMBER|NAMESPACE/NAME/RULE", value_parser = parse_closed)]
    pub(crate) what: Closed,
    /// Of a member, class of requests: Unary, List, WatchStart, Upgrade, TokenReview [default: all but TokenReview]
    #[arg(long, value_parser = parse_class)]
    pub(crate) class: Option<TrafficClass>,
    /// Why: whoever looks is told; needed for a member
    #[arg(long)]
    pub(crate) reason: Option<String>,
    #[command(flatten)]
    pub(crate) hub: FleetHubArgs,
    /// Of a member, until it ends by itself; at most 30 days [default: 1h]
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) lasts: Option<Duration>,
}

/// What `breaker close` is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Closed {
    /// All that goes to a member cluster.
    Member(String),
    /// One rule of one CircuitBreaker.
    Rule(RuleName),
}

/// `NAMESPACE/NAME/RULE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RuleName {
    pub(crate) policy: PolicyName,
    /// As in `policies status`: of `rateLimitings`, a breaker's, or `<breaker>@<cluster>`.
    pub(crate) rule: String,
}

impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.policy, self.rule)
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ResetArgs {
    #[command(flatten)]
    pub(crate) held: HeldArgs,
}

/// Whose breakers, and why.
#[derive(Debug, Clone, Args)]
pub(crate) struct HeldArgs {
    /// Member cluster, as `get clusters` lists it
    #[arg(value_parser = parse_held)]
    pub(crate) member: String,
    /// Class of requests: Unary, List, WatchStart, Upgrade, TokenReview [default: all but TokenReview]
    #[arg(long, value_parser = parse_class)]
    pub(crate) class: Option<TrafficClass>,
    /// Why: whoever is refused is told
    #[arg(long)]
    pub(crate) reason: String,
    #[command(flatten)]
    pub(crate) hub: FleetHubArgs,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = BREAKERS_HELP)]
pub(crate) struct BreakersArgs {
    /// Go on, and print what changes
    #[arg(long, short)]
    pub(crate) watch: bool,
    #[command(flatten)]
    pub(crate) hub: FleetHubArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// One word is a member cluster, three are a rule.
fn parse_closed(text: &str) -> Result<Closed, String> {
    let Some((namespace, rest)) = text.split_once('/') else {
        return Ok(Closed::Member(text.to_owned()));
    };
    let wanted = || format!("{text:?} is neither a member cluster nor NAMESPACE/NAME/RULE");
    let (name, rule) = rest.split_once('/').ok_or_else(wanted)?;
    if rule.is_empty() || rule.contains('/') {
        return Err(wanted());
    }
    Ok(Closed::Rule(RuleName {
        policy: PolicyName::new(namespace, name)?,
        rule: rule.to_owned(),
    }))
}

/// Rules of policies have no breaker to be held.
fn parse_held(text: &str) -> Result<String, String> {
    if text.contains('/') {
        return Err(
            "only a member cluster's breakers are held and set back; `breaker close` closes a policy's rule, and \
             triggerPolicy ForceOpened in the CircuitBreaker holds one open"
                .to_owned(),
        );
    }
    Ok(text.to_owned())
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

    #[test]
    fn one_word_is_a_member_and_three_are_a_rule() {
        assert_eq!(parse_closed("east"), Ok(Closed::Member("east".to_owned())));
        let Ok(Closed::Rule(rule)) = parse_closed("ops/calm/west fails@west") else {
            unreachable!("a rule");
        };
        assert_eq!(rule.to_string(), "ops/calm/west fails@west");
        for wrong in [
            "ops/calm",
            "ops/calm/",
            "/calm/r",
            "ops//r",
            "ops/calm/r/s",
            "Ops/calm/r",
        ] {
            assert!(parse_closed(wrong).is_err(), "{wrong}");
        }
        assert!(parse_held("ops/calm/r").unwrap_err().contains("ForceOpened"));
    }
}
