//! `portolanctl breakers`: which are not closed, in which router, since when and why, once or for as long as one looks.

use std::collections::BTreeMap;

use futures::TryStreamExt as _;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, ResourceExt as _};
use portolan_crds::{HandState, MemberCluster};

use crate::cli::{BreakersArgs, Output};
use crate::connect::list;
use crate::hub;
use crate::table::{Table, age};

pub(crate) async fn run(args: &BreakersArgs) -> anyhow::Result<()> {
    let hub = hub::of(&args.hub).await?;
    if !args.watch {
        return args.output.print(&list::<MemberCluster>(&hub).await?, |members| {
            report(members, Timestamp::now())
        });
    }
    let mut members = BTreeMap::<String, MemberCluster>::new();
    let mut last = None;
    let events = watcher(Api::<MemberCluster>::all(hub), watcher::Config::default()).default_backoff();
    let mut events = std::pin::pin!(events);
    // The first list is one picture.
    let mut listing = true;
    while let Some(event) = events.try_next().await? {
        match event {
            watcher::Event::Init => (listing, members) = (true, BTreeMap::new()),
            watcher::Event::InitDone => listing = false,
            watcher::Event::Apply(member) | watcher::Event::InitApply(member) => {
                members.insert(member.name_any(), member);
            }
            watcher::Event::Delete(member) => drop(members.remove(&member.name_any())),
        }
        let all: Vec<MemberCluster> = members.values().cloned().collect();
        let picture = facts(&all, Timestamp::now());
        if listing || last.as_ref() == Some(&picture) {
            continue;
        }
        last = Some(picture);
        if args.output.output == Output::Table {
            println!("{:.0}", Timestamp::now());
        }
        args.output.print(&all, |members| report(members, Timestamp::now()))?;
    }
    Ok(())
}

/// One row: member, class, router, state, since when, and why.
type Fact = (String, String, String, String, Option<Time>, String);

fn facts(members: &[MemberCluster], now: Timestamp) -> Vec<Fact> {
    let mut facts = Vec::new();
    for member in members {
        let name = member.name_any();
        for breaker in member.status.iter().flat_map(|status| &status.breakers) {
            facts.push((
                name.clone(),
                format!("{:?}", breaker.traffic_class),
                breaker.router.clone(),
                format!("{:?}", breaker.state),
                breaker.since.clone(),
                breaker.reason.clone(),
            ));
        }
        let held = member.spec.breaker.iter().flat_map(|breaker| &breaker.by_hand);
        let holds = |until: &Option<Time>| until.as_ref().is_some_and(|until| until.0 > now);
        for held in held.filter(|held| held.state != HandState::Reset && holds(&held.until)) {
            let until = held
                .until
                .as_ref()
                .map(|until| format!(" until {}", until.0))
                .unwrap_or_default();
            let class = held
                .traffic_class
                .map_or_else(|| "all".to_owned(), |class| format!("{class:?}"));
            let state = format!("held {:?}", held.state).to_lowercase();
            let reason = format!("{}{until}: {}", held.by, held.reason);
            facts.push((name.clone(), class, "all".to_owned(), state, held.since.clone(), reason));
        }
    }
    facts
}

fn report(members: &[MemberCluster], now: Timestamp) -> String {
    let facts = facts(members, now);
    if facts.is_empty() {
        return format!("all breakers of {} members are closed\n", members.len());
    }
    let mut table = Table::new(&["MEMBER", "CLASS", "ROUTER", "STATE", "SINCE", "REASON"]);
    for (member, class, router, state, since, reason) in facts {
        let since = since.map(|since| age(now, since.0));
        table.row(vec![member, class, router, state, since.unwrap_or_default(), reason]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use portolan_crds::{
        Breaker, BreakerState, BreakerStatus, HeldBreaker, MemberClusterSpec, MemberClusterStatus, TrafficClass,
    };

    use super::*;

    #[test]
    fn what_is_not_closed_and_what_is_held_is_told() {
        let at = |second| Some(Time(Timestamp::from_second(second).unwrap()));
        let mut member = MemberCluster::new("east", MemberClusterSpec::default());
        assert_eq!(
            report(std::slice::from_ref(&member), Timestamp::UNIX_EPOCH),
            "all breakers of 1 members are closed\n"
        );
        member.status = Some(MemberClusterStatus {
            breakers: vec![BreakerStatus {
                router: "gateway".to_owned(),
                traffic_class: TrafficClass::List,
                state: BreakerState::HalfOpen,
                reason: "why".to_owned(),
                since: at(60),
            }],
            ..MemberClusterStatus::default()
        });
        member.spec.breaker = Some(Breaker {
            by_hand: vec![HeldBreaker {
                state: HandState::Closed,
                reason: "lists".to_owned(),
                by: "ada".to_owned(),
                until: at(120),
                ..HeldBreaker::default()
            }],
            ..Breaker::default()
        });
        let told = report(&[member], Timestamp::from_second(72).unwrap());
        let lines: Vec<Vec<&str>> = told.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["east", "List", "gateway", "HalfOpen", "12s", "why"]);
        assert_eq!(lines[2][..5], ["east", "all", "all", "held", "closed"]);
        assert!(told.contains("ada until 1970-01-01T00:02:00Z: lists"), "{told}");
    }
}
