//! Leader locks under callers that run: where the lock of a shard is, and how it gets to another place
//! (`docs/semantics.md#leader-election`). Pure.
//!
//! The place of a lock is its shard's like a pair: it is *closed* in all routers before any may let somebody use the next
//! place, and what is recorded there is *brought* by routers. What cannot be brought (the old place is away, the lock is of
//! another kind, callers lead by other Leases) has to run out: the longest time that any lock is held without a renewal.
//! Callers: `arbitrate` begins a handover with the spec that asks for it, `compile` moves it on, `shards` tells routers.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use portolan_crds::ledger::{LockHandover, LockInForce, LockPhase, LockPlace, Vacancy};
use portolan_crds::{ShardName, ShardingConfigSpec};
use portolan_wire::v1;

use super::Accepted;

/// What is known of one handover, by a clock that does not jump.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LockNews {
    /// For how long no router has let anybody use the lock; `None`: some may.
    pub(crate) closed_for: Option<Duration>,
    /// A router has brought what is recorded of it.
    pub(crate) brought: bool,
    /// Callers lead by other Leases, or did when it was closed.
    pub(crate) others: bool,
    /// How long it has been in this phase, as far as this process knows.
    pub(crate) lasts: Duration,
}

/// Where the spec has the lock; `None`: it names none, or each caller's home has one.
pub(crate) fn place(spec: &ShardingConfigSpec) -> Option<LockPlace> {
    Some(LockPlace {
        cluster: spec.primary_cluster()?.to_owned(),
        name: spec.leader_election_name()?.to_owned(),
        resource: spec.resource_lock().core_resource().map(str::to_owned),
    })
}

/// The lock after its place has changed. `from`: there are callers that may hold it there.
pub(super) fn moved(
    before: &LockInForce,
    from: Option<LockPlace>,
    to: Option<&LockPlace>,
    now: Timestamp,
) -> LockInForce {
    // Also after a ledger that was set back or made anew no two are the same: routers mark old places by it.
    let since_1970 = u64::try_from(now.as_second()).unwrap_or_default();
    let renamed = |from: &LockPlace| to.is_some_and(|to| to.name != from.name).then(|| from.name.clone());
    let former_name = match &from {
        Some(from) => renamed(from).or_else(|| before.former_name.clone()),
        None => None,
    };
    LockInForce {
        generation: since_1970.max(before.generation + 1),
        former_name,
        // Where nobody runs, nobody holds the new place; who held the old one may be back before that has run out.
        vacancy: from.is_none().then_some(Vacancy::Open),
        handover: from.map(|from| LockHandover {
            from,
            phase: LockPhase::Closing,
        }),
    }
}

/// The place that is left by a handover of which routers know nothing yet but that the lock is closed.
pub(super) fn left_while_closing(lock: &LockInForce) -> Option<&LockPlace> {
    let handover = lock.handover.as_ref()?;
    (handover.phase == LockPhase::Closing).then_some(&handover.from)
}

/// The lock where it was, in place of its way from there `to` another place.
pub(super) fn returned(before: &LockInForce, to: &LockPlace, from: &LockPlace, now: Timestamp) -> LockInForce {
    let renamed = to.name != from.name;
    LockInForce {
        vacancy: before.vacancy,
        former_name: renamed.then(|| to.name.clone()).or_else(|| before.former_name.clone()),
        ..moved(before, None, Some(from), now)
    }
}

/// Moves all handovers on. `longest`: what no lock is held for without a renewal.
pub(super) fn advance(
    accepted: &mut BTreeMap<ShardName, Accepted>,
    news: &BTreeMap<ShardName, LockNews>,
    longest: Duration,
) {
    for (shard, accepted) in accepted {
        if let Some(news) = news.get(shard) {
            let is_same_kind = |from: &LockPlace| {
                let to = place(&accepted.spec);
                to.is_some_and(|to| to.resource == from.resource)
            };
            let lock = &mut accepted.lock;
            let Some(handover) = &mut lock.handover else { continue };
            let next = next(handover.phase, news, longest, is_same_kind(&handover.from));
            match next {
                Some(phase) if phase == handover.phase => {}
                Some(phase) => {
                    // What routers say of one closing is not said of the other.
                    lock.generation += u64::from(phase == LockPhase::Ending);
                    handover.phase = phase;
                }
                None => lock.handover = None,
            }
        }
    }
}

/// The phase that follows; `None`: it is over.
fn next(phase: LockPhase, news: &LockNews, longest: Duration, is_same_kind: bool) -> Option<LockPhase> {
    let ran_out = news.closed_for.is_some_and(|closed| closed >= longest);
    match phase {
        LockPhase::Closing if news.closed_for.is_some() && is_same_kind && !news.others => Some(LockPhase::Bringing),
        LockPhase::Closing => (!ran_out).then_some(LockPhase::Closing),
        LockPhase::Bringing if news.brought => None,
        LockPhase::Bringing if news.lasts >= longest => Some(LockPhase::Ending),
        LockPhase::Bringing => Some(LockPhase::Bringing),
        LockPhase::Ending => news.closed_for.is_none().then_some(LockPhase::Ending),
    }
}

/// The lock of a shard that is new.
pub(super) fn new() -> LockInForce {
    LockInForce {
        vacancy: Some(Vacancy::Open),
        ..LockInForce::default()
    }
}

/// What routers are told; nothing of a lock that has never moved.
pub(super) fn told(accepted: &Accepted) -> Option<v1::Lock> {
    let lock = &accepted.lock;
    let is_closed = lock.vacancy == Some(Vacancy::Closed);
    let was_moved = |lock: &LockInForce| {
        LockInForce {
            vacancy: None,
            ..lock.clone()
        } != LockInForce::default()
    };
    if !is_closed && !was_moved(lock) {
        return None;
    }
    let phase = lock.handover.as_ref().map(|handover| handover.phase);
    let state = match phase {
        None if is_closed => v1::LockState::Closed,
        None => v1::LockState::Open,
        Some(LockPhase::Closing | LockPhase::Ending) => v1::LockState::Closed,
        Some(LockPhase::Bringing) => v1::LockState::Bringing,
    };
    let from = lock.handover.as_ref().map(|handover| v1::LockPlace {
        cluster: handover.from.cluster.clone(),
        leader_election_name: handover.from.name.clone(),
        lock_resource: handover.from.resource.clone().unwrap_or_default(),
    });
    Some(v1::Lock {
        generation: lock.generation,
        state: state.into(),
        from,
        former_name: lock.former_name.clone().unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_mins(3);

    fn after(phase: LockPhase, news: &LockNews) -> Option<LockPhase> {
        next(phase, news, LONGEST, true)
    }

    #[test]
    fn a_lock_is_closed_before_it_is_brought_and_what_is_not_brought_runs_out() {
        use LockPhase::{Bringing, Closing, Ending};
        let open = LockNews {
            lasts: LONGEST * 100,
            brought: false,
            ..LockNews::default()
        };
        let closed = |time| LockNews {
            closed_for: Some(time),
            ..LockNews::default()
        };
        let now = closed(Duration::ZERO);
        assert_eq!(after(Closing, &open), Some(Closing), "some router may let it be used");
        assert_eq!(after(Ending, &open), Some(Ending), "some router may let it be used");
        assert_eq!(after(Closing, &now), Some(Bringing));
        let others = |time| LockNews {
            others: true,
            ..closed(time)
        };
        assert_eq!(
            after(Closing, &others(LONGEST / 2)),
            Some(Closing),
            "nothing is brought"
        );
        assert_eq!(after(Closing, &others(LONGEST)), None, "nobody leads any more");
        assert_eq!(
            next(Closing, &closed(LONGEST / 2), LONGEST, false),
            Some(Closing),
            "another kind"
        );
        assert_eq!(next(Closing, &closed(LONGEST), LONGEST, false), None);
        assert_eq!(after(Bringing, &now), Some(Bringing));
        let brought = LockNews {
            brought: true,
            ..now.clone()
        };
        assert_eq!(after(Bringing, &brought), None);
        let late = LockNews {
            lasts: LONGEST,
            ..LockNews::default()
        };
        assert_eq!(after(Bringing, &late), Some(Ending));
        assert_eq!(after(Ending, &now), None, "it ran out while it was being brought");
    }

    #[test]
    fn no_two_handovers_have_one_number() {
        let east = LockPlace {
            cluster: "east".to_owned(),
            name: "op".to_owned(),
            resource: None,
        };
        let west = LockPlace {
            cluster: "west".to_owned(),
            ..east.clone()
        };
        let now = Timestamp::from_second(1_000).unwrap();
        let one = moved(&LockInForce::default(), Some(east.clone()), Some(&west), now);
        assert_eq!((one.generation, one.former_name.clone()), (1_000, None));
        let two = moved(&one, Some(west.clone()), Some(&east), now);
        assert_eq!(two.generation, 1_001);
        let other = LockPlace {
            name: "other".to_owned(),
            ..east.clone()
        };
        let three = moved(&two, Some(east.clone()), Some(&other), now);
        assert_eq!(three.former_name.as_deref(), Some("op"));
        let four = moved(&three, Some(other.clone()), None, now);
        assert_eq!(four.former_name.as_deref(), Some("op"), "who asked by it goes on");
        assert_eq!(left_while_closing(&three), Some(&east));
        let back = returned(&three, &other, &east, now);
        assert_eq!((back.generation, &back.handover), (three.generation + 1, &None));
        assert_eq!(
            back.former_name.as_deref(),
            Some("other"),
            "who asks by it already goes on"
        );
        let set_back = moved(
            &LockInForce::default(),
            Some(west),
            Some(&east),
            now + jiff::SignedDuration::from_secs(9),
        );
        assert_eq!(set_back.generation, 1_009, "a ledger that does not know of them");
        assert_eq!(moved(&set_back, None, Some(&east), now).handover, None, "nobody runs");
    }
}
