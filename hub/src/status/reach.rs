//! Which members routers do not get through to, and what that holds back: condition MembersReachable and its metric
//! (`docs/semantics.md#unreachable-is-not-deleted`). Pure; called by `shard` and by the writer's loop.
//!
//! The routers decide by their breakers, not the agents: a member whose agent is well may still be cut off from a router.

use std::collections::{BTreeMap, BTreeSet};

use portolan_crds::{ConditionReason, ConditionType, Finding, ShardName, Unavailable};
use portolan_wire::v1;

use super::Routers;
use super::finding::nothing_in_force;
use crate::compile::{Accepted, Ref, Verdict, World, some_of};

const TYPE: ConditionType = ConditionType::MembersReachable;

/// A router's name, and one of its breakers.
pub(super) type OfRouter<'a> = (&'a str, &'a v1::BreakerState);

/// What connected routers report of their breakers, by member: looked through once for the statuses of all objects.
#[derive(Debug, Default)]
pub(super) struct Breakers<'a>(BTreeMap<&'a str, Vec<OfRouter<'a>>>);

impl<'a> Breakers<'a> {
    pub(super) fn of(routers: &'a Routers) -> Self {
        let mut by_member = BTreeMap::<_, Vec<_>>::new();
        for (router, state) in routers.iter().filter(|(_, state)| state.left.is_none()) {
            for breaker in &state.reported.breakers {
                let of_member = by_member.entry(breaker.cluster.as_str()).or_default();
                of_member.push((router.as_str(), breaker));
            }
        }
        Self(by_member)
    }

    pub(super) fn of_member(&self, cluster: &str) -> &[OfRouter<'a>] {
        self.0.get(cluster).map_or(&[], Vec::as_slice)
    }

    /// Members that some connected router does not get through to.
    pub(super) fn unreached(&self) -> impl Iterator<Item = &'a str> {
        let unreached = |breakers: &[OfRouter<'_>]| breakers.iter().any(|(_, breaker)| cuts_off(breaker));
        let members = self.0.iter().filter(move |(_, breakers)| unreached(breakers));
        members.map(|(cluster, _)| *cluster)
    }

    /// The routers that do not get through to a member, and why.
    fn that_cut_off(&self, cluster: &str) -> BTreeMap<&'a str, &'a str> {
        let mut reasons = BTreeMap::new();
        for (router, breaker) in self.of_member(cluster).iter().filter(|(_, breaker)| cuts_off(breaker)) {
            reasons.entry(*router).or_insert(breaker.reason.as_str());
        }
        reasons
    }
}

/// A shell that cannot be opened holds no objects back.
fn cuts_off(breaker: &v1::BreakerState) -> bool {
    breaker.traffic_class != "upgrade" && matches!(breaker.state.as_str(), "open" | "half-open")
}

pub(super) fn members_reachable(
    (world, name, verdict): (&World, &ShardName, &Verdict),
    accepted: Option<&Accepted>,
    routers: &Routers,
    breakers: &Breakers<'_>,
) -> Finding {
    let Some(accepted) = accepted else {
        return nothing_in_force(TYPE);
    };
    if routers.values().all(|router| router.left.is_some()) {
        let message = "no router is connected to the hub that could tell";
        return Finding::unknown(TYPE, ConditionReason::WaitingForRouter, message);
    }
    reachable(&members(world, name, verdict, accepted), accepted, breakers)
}

/// The members of the shard and the primary cluster; without `clusters`, where its callers run.
fn members<'a>(world: &'a World, name: &ShardName, verdict: &'a Verdict, accepted: &'a Accepted) -> BTreeSet<&'a str> {
    let mut members: BTreeSet<&str> = verdict
        .wanted
        .members
        .iter()
        .map(|member| member.cluster.as_str())
        .collect();
    members.extend(accepted.spec.primary_cluster());
    if accepted.spec.clusters.is_empty() {
        let callers = world.callers.get(name).into_iter().flatten();
        members.extend(callers.filter_map(Ref::cluster));
    }
    members
}

fn reachable(members: &BTreeSet<&str>, accepted: &Accepted, breakers: &Breakers<'_>) -> Finding {
    let cut_off: Vec<_> = members
        .iter()
        .filter_map(|member| {
            let routers = breakers.that_cut_off(member);
            let (_, reason) = routers.iter().next()?;
            let names = routers.keys().copied().collect::<Vec<_>>().join(", ");
            Some(format!("{member} (router {names}: {reason})"))
        })
        .collect();
    if cut_off.is_empty() {
        let message = format!("routers get through to {}", some_of(members, ", "));
        return Finding::holds(TYPE, message);
    }
    let lists = match accepted.spec.unavailable {
        Unavailable::Hold => "lists over it answer 429",
        Unavailable::PartialStart => "first lists go without it",
    };
    let message = format!(
        "routers do not get through to {}: until it is back its objects stay as clients last saw them, running watches \
         go on without its events, and {lists}",
        some_of(cut_off, ", ")
    );
    Finding::fails(TYPE, ConditionReason::Unreachable, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acks::{Reported, RouterState};

    fn router(breakers: &[(&str, &str, &str)], connected: bool) -> RouterState {
        let breaker = |(cluster, class, state): &(&str, &str, &str)| v1::BreakerState {
            cluster: (*cluster).to_owned(),
            traffic_class: (*class).to_owned(),
            state: (*state).to_owned(),
            reason: format!("{class} {state}"),
            since_unix_seconds: 1,
        };
        RouterState {
            left: (!connected).then(tokio::time::Instant::now),
            reported: Reported {
                breakers: breakers.iter().map(breaker).collect(),
                ..Reported::default()
            }
            .into(),
            ..RouterState::new(1, BTreeMap::new())
        }
    }

    #[test]
    fn a_member_is_unreached_while_a_connected_router_does_not_get_through() {
        let routers = Routers::from([
            ("gone".to_owned(), router(&[("east", "unary", "open")], false)),
            (
                "here".to_owned(),
                router(&[("west", "watch", "half-open"), ("north", "upgrade", "open")], true),
            ),
            ("well".to_owned(), router(&[("west", "unary", "closed")], true)),
        ]);
        let breakers = Breakers::of(&routers);
        assert_eq!(breakers.unreached().collect::<Vec<_>>(), ["west"]);
        let expected = BTreeMap::from([("here", "watch half-open")]);
        assert_eq!(breakers.that_cut_off("west"), expected);
        assert_eq!(breakers.of_member("west").len(), 2);
    }

    #[test]
    fn what_is_held_back_depends_on_the_shard() {
        let routers = Routers::from([("r".to_owned(), router(&[("west", "unary", "open")], true))]);
        let members = BTreeSet::from(["east", "west"]);
        for (unavailable, lists) in [
            (Unavailable::Hold, "429"),
            (Unavailable::PartialStart, "first lists go without"),
        ] {
            let mut accepted = Accepted {
                uid: String::new(),
                generation: 1,
                spec: std::sync::Arc::default(),
                ..Accepted::default()
            };
            std::sync::Arc::make_mut(&mut accepted.spec).unavailable = unavailable;
            let found = reachable(&members, &accepted, &Breakers::of(&routers));
            assert_eq!(
                (found.status, found.reason),
                (Some(false), ConditionReason::Unreachable)
            );
            let message = found.message;
            assert!(
                message.contains("west (router r: unary open)") && message.contains(lists),
                "{message}"
            );
            let found = reachable(&members, &accepted, &Breakers::default());
            assert_eq!(found.status, Some(true));
        }
    }
}
