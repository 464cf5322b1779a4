//! A leader lock on its way: whence, whither, and for what that waits. Pure. Callers: `status`, and `admin` of shards.

use std::collections::BTreeMap;

use portolan_crds::ledger::{LockPhase, Vacancy};
use portolan_crds::{LockStatus, ShardName};

use super::RouterState;
use crate::compile::{Accepted, lock_place, some_of};

/// `None`: it is where it is to be.
pub(crate) fn moving(
    name: &ShardName,
    accepted: &Accepted,
    routers: &BTreeMap<String, RouterState>,
) -> Option<LockStatus> {
    let lock = &accepted.lock;
    let Some(handover) = &lock.handover else {
        return (lock.vacancy == Some(Vacancy::Closed)).then(|| awaited(accepted));
    };
    let to = lock_place(&accepted.spec)?;
    let open = routers
        .iter()
        .filter(|(_, router)| router.may_use_closed_lock(name, lock.generation));
    let open: Vec<_> = open.map(|(router, _)| router.as_str()).collect();
    let older = routers
        .iter()
        .filter(|(_, router)| !router.hands_locks_over && router.left.is_none());
    let older: Vec<_> = older.map(|(router, _)| router.as_str()).collect();
    let from = &handover.from;
    let mut waits_for = match handover.phase {
        LockPhase::Closing | LockPhase::Ending if !open.is_empty() => {
            format!("routers {} to let nobody use it", some_of(open, ", "))
        }
        LockPhase::Closing if to.resource != from.resource => "what was held before to run out".to_owned(),
        LockPhase::Closing => {
            "the record to be brought, or to run out where callers lead by other Leases too".to_owned()
        }
        LockPhase::Bringing => format!(
            "a caller to ask for it, and a router to bring its record from {}; else for that to run out",
            from.cluster
        ),
        LockPhase::Ending => "the hub to begin anew without the record, which could not be brought".to_owned(),
    };
    if !older.is_empty() {
        // What they hold of the shard stays as it is.
        let older = some_of(older, ", ");
        waits_for = format!(
            "{waits_for}; routers {older} are of a release that hands no lock over, and are not told of this: upgrade them"
        );
    }
    Some(LockStatus {
        from: from.to_string(),
        to: to.to_string(),
        waits_for,
    })
}

/// A lock that nobody has held yet, for callers that may lead by another one.
fn awaited(accepted: &Accepted) -> LockStatus {
    let name = || accepted.spec.leader_election_name().unwrap_or_default();
    let to = lock_place(&accepted.spec).map_or_else(|| format!("{} in each home cluster", name()), |to| to.to_string());
    LockStatus {
        from: "another lock".to_owned(),
        to,
        waits_for: "what callers of the shard renewed as callers of another one, or before its lock had this place, to run out; \
                    where a router cannot say what that is, for the longest lease"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use portolan_crds::ledger::{LockHandover, LockInForce, LockPlace};
    use serde_json::json;

    use super::*;
    use crate::acks::LockStanding;
    use crate::compile::Ref;

    #[test]
    fn a_lock_on_its_way_tells_whom_it_waits_for() {
        let spec = json!({
            "selector": {}, "callerClusters": ["east", "west"], "primaryCluster": "west",
            "controller": {"leaderElectionName": "op"},
        });
        let mut accepted = Accepted {
            spec: Arc::new(serde_json::from_value(spec).unwrap()),
            ..Accepted::default()
        };
        let name = ShardName::new("ops", "blue").unwrap();
        let held = [(Ref::Shard(name.clone()), "1".to_owned())].into();
        let mut routers = BTreeMap::from([("gateway".to_owned(), RouterState::new(1, held))]);
        assert_eq!(moving(&name, &accepted, &routers), None);
        accepted.lock = LockInForce {
            generation: 7,
            former_name: None,
            vacancy: None,
            handover: Some(LockHandover {
                from: LockPlace {
                    cluster: "east".to_owned(),
                    name: "op".to_owned(),
                    resource: None,
                },
                phase: LockPhase::Closing,
            }),
        };
        let told = moving(&name, &accepted, &routers).unwrap();
        assert_eq!((told.from.as_str(), told.to.as_str()), ("op in east", "op in west"));
        assert_eq!(told.waits_for, "routers gateway to let nobody use it");
        let standing = |generation| LockStanding {
            generation,
            closed: true,
            others: false,
        };
        let gateway = routers.get_mut("gateway").unwrap();
        gateway.locks.insert(name.clone(), standing(6));
        assert!(
            moving(&name, &accepted, &routers)
                .unwrap()
                .waits_for
                .contains("gateway"),
            "of an earlier one"
        );
        routers
            .get_mut("gateway")
            .unwrap()
            .locks
            .insert(name.clone(), standing(7));
        assert!(
            !moving(&name, &accepted, &routers)
                .unwrap()
                .waits_for
                .contains("gateway")
        );
        routers.get_mut("gateway").unwrap().hands_locks_over = false;
        let told = moving(&name, &accepted, &routers).unwrap().waits_for;
        assert!(
            told.contains("routers gateway are of a release that hands no lock over"),
            "{told}"
        );
    }
}
