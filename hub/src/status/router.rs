//! What the hub says about a router. Pure.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use portolan_crds::{ConditionReason, ConditionType, Finding, RouterStatus};

use super::Sources;
use super::finding::set;
use crate::facts::RouterObject;

/// A router that stays costs one write in so long, as the kubelet writes a Node's status: a thousand would keep an API server busy.
const SEEN_EACH: SignedDuration = SignedDuration::from_mins(5);
/// When one that left was seen last is told no finer.
const LEFT_TO: SignedDuration = SignedDuration::from_mins(1);

/// The status that the router ought to have.
pub(super) fn status(sources: Sources<'_>, name: &str, router: &RouterObject) -> RouterStatus {
    let Sources {
        facts, routers, now, ..
    } = sources;
    let mut status = router.status.clone();
    status.observed_generation = Some(router.generation);
    let state = routers.get(name);
    let connected = state.is_some_and(|state| state.left.is_none());
    if let Some(state) = state.filter(|_| connected) {
        status.version = Some(state.version.clone()).filter(|version| !version.is_empty());
        status.process = state.believed_process().map(str::to_owned);
    }
    if let Some(state) = state {
        let left = state.left.map(|left| left.elapsed());
        let (seen, to) = left.map_or((now, SEEN_EACH), |left| (now - left, LEFT_TO));
        let known = status.last_seen.as_ref();
        // A hub whose clock was ahead may have written it.
        let is_old = |Time(known): &Time| seen.duration_since(*known) >= to || *known > now;
        if known.is_none_or(is_old) {
            // Objects know seconds.
            status.last_seen = Timestamp::from_second(seen.as_second()).ok().map(Time);
        }
    }
    let finding = if connected {
        Finding::holds(ConditionType::Connected, "its stream is open")
    } else if let Some(refusal) = facts.router_refusals.get(name) {
        Finding::fails(ConditionType::Connected, ConditionReason::Refused, refusal)
    } else if state.is_some() {
        let message = "its stream has ended, and it has not come back: see its log";
        Finding::fails(ConditionType::Connected, ConditionReason::StreamEnded, message)
    } else {
        let message = "it has not opened a stream since the hub started";
        Finding::unknown(ConditionType::Connected, ConditionReason::WaitingForRouter, message)
    };
    set(&mut status.conditions, [finding], router.generation, now);
    status
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tokio::time::Instant;

    use super::*;
    use crate::acks::RouterState;
    use crate::compile::World;
    use crate::facts::Facts;
    use crate::status::reach::Breakers;

    #[test]
    fn a_router_that_stays_is_worth_one_write_in_five_minutes() {
        let at = |second: i64, state: Option<RouterState>, before: RouterStatus| {
            let routers = state.map(|state| ("gateway".to_owned(), state)).into_iter().collect();
            let (facts, world) = (Facts::default(), World::default());
            let sources = Sources {
                facts: &facts,
                world: &world,
                routers: &routers,
                breakers: &Breakers::default(),
                now: Timestamp::from_second(second).unwrap(),
            };
            let router = RouterObject {
                uid: "uid".to_owned(),
                generation: 1,
                key_hashes: Vec::new(),
                subscription: None,
                status: before,
            };
            status(sources, "gateway", &router)
        };
        let connected = || RouterState::new(1, BTreeMap::new());
        let seen = |status: &RouterStatus| status.last_seen.as_ref().map(|seen| seen.0.as_second());
        let first = at(600, Some(connected()), RouterStatus::default());
        assert_eq!((&*first.conditions[0].status, seen(&first)), ("True", Some(600)));
        assert_eq!(at(899, Some(connected()), first.clone()), first);
        let later = at(900, Some(connected()), first);
        assert_eq!(seen(&later), Some(900));
        let left = || RouterState {
            left: Some(Instant::now()),
            ..connected()
        };
        let at_once = at(959, Some(left()), later.clone());
        assert_eq!((&*at_once.conditions[0].status, seen(&at_once)), ("False", Some(900)));
        assert_eq!(
            seen(&at(1100, Some(left()), later.clone())),
            Some(1099),
            "by when it left"
        );
        assert_eq!(at(1100, None, later.clone()).conditions[0].status, "Unknown");
        assert_eq!(
            seen(&at(700, Some(connected()), later)),
            Some(700),
            "written by a clock that is ahead"
        );
    }

    #[test]
    fn a_router_that_is_told_nothing_says_why() {
        let mut facts = Facts::default();
        facts.note_router_refusal("gateway", Some("upgrade it".to_owned()));
        let left = RouterState {
            left: Some(Instant::now()),
            ..RouterState::new(1, BTreeMap::new())
        };
        for routers in [BTreeMap::new(), [("gateway".to_owned(), left)].into()] {
            let sources = Sources {
                facts: &facts,
                world: &World::default(),
                routers: &routers,
                breakers: &Breakers::default(),
                now: Timestamp::now(),
            };
            let router = RouterObject {
                uid: "uid".to_owned(),
                generation: 1,
                key_hashes: Vec::new(),
                subscription: None,
                status: RouterStatus::default(),
            };
            let connected = &status(sources, "gateway", &router).conditions[0];
            let said = (&*connected.status, &*connected.reason, &*connected.message);
            assert_eq!(said, ("False", "Refused", "upgrade it"));
        }
    }
}
