//! What the hub says about a router. Pure.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use portolan_crds::{ConditionReason, ConditionType, Finding, RouterStatus};

use super::Sources;
use super::finding::set;
use crate::facts::RouterObject;

/// Written no finer: a router that stays costs one write a minute.
const SEEN_TO_SECONDS: i64 = 60;

/// The status that the router ought to have.
pub(super) fn status(sources: Sources<'_>, name: &str, router: &RouterObject) -> RouterStatus {
    let Sources { routers, now, .. } = sources;
    let mut status = router.status.clone();
    status.observed_generation = Some(router.generation);
    let state = routers.get(name);
    let connected = state.is_some_and(|state| state.left.is_none());
    if let Some(state) = state.filter(|_| connected) {
        status.version = Some(state.version.clone()).filter(|version| !version.is_empty());
        status.last_seen = to_the_minute(now);
    }
    let finding = if connected {
        Finding::holds(ConditionType::Connected, "its stream is open")
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

fn to_the_minute(now: Timestamp) -> Option<Time> {
    let seconds = now.as_second();
    Timestamp::from_second(seconds - seconds.rem_euclid(SEEN_TO_SECONDS))
        .ok()
        .map(Time)
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
    fn a_router_that_stays_is_worth_one_write_a_minute() {
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
        let first = at(600, Some(connected()), RouterStatus::default());
        assert_eq!(first.conditions[0].status, "True");
        assert_eq!(at(659, Some(connected()), first.clone()), first);
        let later = at(660, Some(connected()), first.clone());
        assert_ne!(later.last_seen, first.last_seen);
        let left = RouterState {
            left: Some(Instant::now()),
            ..connected()
        };
        let gone = at(900, Some(left), later.clone());
        assert_eq!(
            (gone.conditions[0].status.as_str(), gone.last_seen),
            ("False", later.last_seen.clone())
        );
        assert_eq!(at(900, None, later).conditions[0].status, "Unknown");
    }
}
