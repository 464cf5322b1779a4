//! `portolanctl breaker open|close|reset`: what people say of a member's breakers, for every router, by way of its
//! MemberCluster; and of a rule of a CircuitBreaker, see `rule`.

mod rule;

use std::time::Duration;

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, Error as KubeError};
use portolan_crds::duration::format_duration;
use portolan_crds::{HandState, HeldBreaker, LONGEST_BY_HAND, MemberCluster, TrafficClass};
use serde_json::json;

use crate::cli::{BreakerCommand, CloseArgs, Closed, HeldArgs, HoldArgs};
use crate::hub;
use crate::whoami::whoami;

/// Of a name, in bytes (spec.breaker.byHand[].by).
const MAX_BY: usize = 256;
/// Tries at an object that others write meanwhile.
const TRIES: usize = 5;
/// How long a member's breakers are held closed unless something else is said.
const CLOSED_FOR: Duration = Duration::from_hours(1);

pub(crate) async fn run(command: &BreakerCommand) -> anyhow::Result<()> {
    match command {
        BreakerCommand::Open(HoldArgs { held, lasts }) => hold(HandState::Open, held, Some(*lasts)).await,
        BreakerCommand::Close(args) => close(args).await,
        BreakerCommand::Reset(args) => hold(HandState::Reset, &args.held, None).await,
    }
}

async fn close(args: &CloseArgs) -> anyhow::Result<()> {
    match &args.what {
        Closed::Member(member) => {
            let Some(reason) = args.reason.clone() else {
                bail!("--reason is needed for a member's breakers: whoever looks is told why they are held");
            };
            let held = HeldArgs {
                member: member.clone(),
                class: args.class,
                reason,
                hub: args.hub.clone(),
            };
            hold(HandState::Closed, &held, Some(args.lasts.unwrap_or(CLOSED_FOR))).await
        }
        Closed::Rule(_) if args.class.is_some() || args.lasts.is_some() => {
            bail!("--class and --for are for a member's breakers: a rule is closed once, for all that it counts")
        }
        Closed::Rule(rule) => {
            let hub = hub::of(&args.hub).await?;
            rule::close(&hub, rule, args.reason.as_deref()).await
        }
    }
}

async fn hold(state: HandState, args: &HeldArgs, lasts: Option<Duration>) -> anyhow::Result<()> {
    if lasts.is_some_and(|lasts| lasts.is_zero() || lasts > LONGEST_BY_HAND) {
        bail!("--for must be longer than nothing and at most 720h");
    }
    let hub = hub::of(&args.hub).await?;
    let now = Timestamp::from_second(Timestamp::now().as_second()).context("now is a time")?;
    let until = lasts
        .map(|lasts| now.saturating_add(lasts))
        .transpose()
        .context("--for is too long")?;
    let held = HeldBreaker {
        traffic_class: args.class,
        state,
        reason: args.reason.clone(),
        by: whoami(&hub, MAX_BY).await,
        since: Some(Time(now)),
        until: until.map(Time),
    };
    say(&hub, &args.member, &held).await?;
    println!("{}", words(&args.member, &held));
    Ok(())
}

/// Puts it in the place of what was said of the same class.
async fn say(hub: &Client, name: &str, held: &HeldBreaker) -> anyhow::Result<()> {
    let members = Api::<MemberCluster>::all(hub.clone());
    let cannot = || format!("cannot write MemberCluster {name}");
    for _ in 0..TRIES {
        let Some(member) = members.get_opt(name).await.with_context(cannot)? else {
            bail!("there is no MemberCluster {name}: see portolanctl get clusters");
        };
        let mut all = member.spec.breaker.unwrap_or_default().by_hand;
        said(&mut all, held);
        // What a newer hub knows of it stays as it is.
        let patch = json!({
            "metadata": {"resourceVersion": member.metadata.resource_version},
            "spec": {"breaker": {"byHand": all}},
        });
        match members.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Err(KubeError::Api(status)) if status.code == 409 => {}
            written => return written.map(drop).with_context(cannot),
        }
    }
    bail!("MemberCluster {name} is written by others all the time: try again")
}

/// What is said of all ends what was said of each, but for reviews of tokens, which only a reset of all ends; what is over is
/// left out.
fn said(all: &mut Vec<HeldBreaker>, held: &HeldBreaker) {
    let replaced = |other: &HeldBreaker| match held.traffic_class {
        None if held.state == HandState::Reset => true,
        None => other.traffic_class != Some(TrafficClass::TokenReview),
        of => other.traffic_class == of,
    };
    let over = |other: &HeldBreaker| other.state != HandState::Reset && other.until < held.since;
    all.retain(|other| !replaced(other) && !over(other));
    all.push(held.clone());
}

fn words(member: &str, held: &HeldBreaker) -> String {
    let of = match held.traffic_class {
        Some(class) => format!("{member}'s {class:?} breaker"),
        None => format!("{member}'s breakers, but for TokenReview,"),
    };
    let seconds = |time: &Option<Time>| time.as_ref().map_or(0, |time| time.0.as_second());
    let lasts = u64::try_from(seconds(&held.until) - seconds(&held.since)).unwrap_or_default();
    let lasts = format_duration(Duration::from_secs(lasts));
    match held.state {
        HandState::Open => {
            format!("{of} held open in every router for {lasts}: nothing but renewals of leader elections passes")
        }
        HandState::Closed => format!("{of} held closed in every router for {lasts}"),
        HandState::Reset => format!("{of} set back in every router"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(traffic_class: Option<TrafficClass>, state: HandState) -> HeldBreaker {
        HeldBreaker {
            traffic_class,
            state,
            ..HeldBreaker::default()
        }
    }

    #[test]
    fn one_word_for_each_class_and_a_reset_of_all_ends_all() {
        let (list, unary) = (Some(TrafficClass::List), Some(TrafficClass::Unary));
        let mut all = Vec::new();
        for one in [
            held(list, HandState::Open),
            held(unary, HandState::Open),
            held(list, HandState::Closed),
        ] {
            said(&mut all, &one);
        }
        assert_eq!(all, [held(unary, HandState::Open), held(list, HandState::Closed)]);
        said(&mut all, &held(unary, HandState::Reset));
        assert_eq!(all.len(), 2);
        said(&mut all, &held(None, HandState::Reset));
        assert_eq!(all, [held(None, HandState::Reset)]);
        said(&mut all, &held(list, HandState::Reset));
        said(&mut all, &held(Some(TrafficClass::TokenReview), HandState::Closed));
        said(&mut all, &held(None, HandState::Open));
        assert_eq!(all.len(), 2, "nothing of old keeps lists out of what is said of all");
        assert_eq!(all[1], held(None, HandState::Open));
    }
}
