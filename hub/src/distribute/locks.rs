//! For how long each handover of a leader lock is where it is, by a clock that does not jump. After a restart of the hub all
//! times begin anew: what has to run out runs longer. Caller: `distribute`.

use std::collections::BTreeMap;

use portolan_crds::ShardName;
use portolan_crds::ledger::LockPhase;
use tokio::time::Instant;

use crate::acks::Acks;
use crate::compile::{LockNews, State};

/// The handovers that are under way.
#[derive(Debug, Default)]
pub(super) struct LockClocks(BTreeMap<ShardName, LockClock>);

#[derive(Debug)]
struct LockClock {
    generation: u64,
    phase: LockPhase,
    since: Instant,
    /// Since when no router lets anybody use the lock.
    closed: Option<Instant>,
    /// Callers led by other Leases at any time since then.
    others: bool,
}

impl LockClocks {
    /// Looks at what is known by now.
    pub(super) fn observe(&mut self, state: &State, acks: &Acks, now: Instant) -> BTreeMap<ShardName, LockNews> {
        let mut clocks = BTreeMap::new();
        let mut news = BTreeMap::new();
        for (shard, lock) in state.moving_locks() {
            let Some(handover) = &lock.handover else { continue };
            let before = self.0.remove(shard);
            let before = before.filter(|clock| clock.generation == lock.generation && clock.phase == handover.phase);
            let mut clock = before.unwrap_or(LockClock {
                generation: lock.generation,
                phase: handover.phase,
                since: now,
                closed: None,
                others: false,
            });
            let seen = acks.lock(shard, lock.generation);
            // A router that comes back with other rules than those by which it let nobody use it may have let it be used. One
            // that left since it said so has not, but for now it cannot be asked.
            clock.closed = clock.closed.filter(|_| !seen.open).or(seen.closed.then_some(now));
            clock.others |= seen.others;
            let told = LockNews {
                closed_for: clock.closed.filter(|_| seen.closed).map(|since| now - since),
                brought: seen.brought,
                others: clock.others,
                lasts: now - clock.since,
            };
            news.insert(shard.clone(), told);
            clocks.insert(shard.clone(), clock);
        }
        self.0 = clocks;
        news
    }
}
