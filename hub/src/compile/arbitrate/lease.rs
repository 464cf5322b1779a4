//! Whether the leader lock may be where a new spec wants it, and how it gets there.

use portolan_crds::ledger::LockInForce;
use portolan_crds::{ConditionReason, ShardName, ShardingConfigSpec};

use super::{Given, Refusal};
use crate::compile::callers::running;
use crate::compile::{Accepted, lock_place, locks};

/// The lock under a new spec, in place of the `accepted` one. It is handed over where callers run, if it has a place before
/// and after, one handover at a time.
pub(super) fn judge(
    given: Given<'_>,
    name: &ShardName,
    accepted: &Accepted,
    spec: &ShardingConfigSpec,
) -> Result<LockInForce, Refusal> {
    let before = &accepted.spec;
    let (current, wanted) = (Words::of(before), Words::of(spec));
    let lock = &accepted.lock;
    if wanted == current {
        return Ok(lock.clone());
    }
    let moved = |from| Ok(locks::moved(lock, from, lock_place(spec).as_ref(), given.now));
    let caller = current.name.and_then(|_| running(given.facts, name, accepted));
    // A root has no callers of its own: its children have a lock each.
    let Some(caller) = caller.filter(|_| spec.root.is_none() || lock_place(spec).is_none()) else {
        return moved(None);
    };
    // No router has been told anything of the next place yet: what some have closed opens where it was.
    if let (Some(from), Some(to)) = (locks::left_while_closing(lock), lock_place(before))
        && lock_place(spec).as_ref() == Some(from)
    {
        return Ok(locks::returned(lock, &to, from, given.now));
    }
    let why = match (lock_place(before), lock_place(spec)) {
        _ if lock.handover.is_some() => "the last handover of it is not over: this edit waits for that, or",
        // Before the next, which is false as well while routers may come back.
        (Some(_), Some(_)) if given.released.away.is_of(name) => {
            "a router that may let callers use it is away: this edit waits until that is back or forgotten, or"
        }
        (Some(_), Some(_)) if !given.released.locks_are_handed_over => {
            "some router is of a release that hands no lock over: upgrade it, or"
        }
        (Some(from), Some(_)) => return moved(Some(from)),
        _ => "it is not in one place before and after:",
    };
    Err(refuse(before, spec, why, &caller))
}

fn refuse(before: &ShardingConfigSpec, spec: &ShardingConfigSpec, why: &str, caller: &str) -> Refusal {
    let field = if spec.leader_election_name() != before.leader_election_name() {
        "spec.controller.leaderElectionName"
    } else if spec.resource_lock().core_resource() != before.resource_lock().core_resource() {
        "spec.controller.leaderElectionResourceLock"
    } else if spec.primary_cluster == before.primary_cluster {
        "spec.callerClusters"
    } else {
        "spec.primaryCluster"
    };
    Refusal {
        reason: ConditionReason::Invalid,
        message: format!(
            "{field}: the leader-election Lease is {}, and changing it to {} while callers run ({caller}) could make \
             two of them leaders; {why} scale the operator to 0 first, and set spec.accept of the MemberCluster to false where \
             one is lost with its callers",
            Words::of(before).said(),
            Words::of(spec).said()
        ),
    }
}

/// A lock as a spec names it.
#[derive(Debug, PartialEq, Eq)]
struct Words<'a> {
    name: Option<&'a str>,
    kind: Option<&'static str>,
    cluster: Option<&'a str>,
}

impl<'a> Words<'a> {
    fn of(spec: &'a ShardingConfigSpec) -> Self {
        Self {
            name: spec.leader_election_name(),
            kind: spec.resource_lock().core_resource(),
            cluster: spec.primary_cluster(),
        }
    }

    fn said(&self) -> String {
        let Some(name) = self.name else {
            return "none of the shard's own".to_owned();
        };
        let kind = self.kind.map_or_else(String::new, |kind| format!(" ({kind} too)"));
        match self.cluster {
            Some(cluster) => format!("{name}{kind} in {cluster}"),
            None => format!("{name}{kind} in each caller's home cluster"),
        }
    }
}
