//! How far handovers of leader locks are in routers, as these report it.

use portolan_crds::ShardName;
use tokio::time::Instant;

use super::{Acks, RouterState};
use crate::compile::Ref;

/// How far the handover of one leader lock is in a router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LockStanding {
    pub(crate) generation: u64,
    /// Nobody uses it, and nothing is under way; else it was brought.
    pub(crate) closed: bool,
    /// Callers lead by other Leases.
    pub(crate) others: bool,
}

/// How far the handover of one leader lock is in all routers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LockSeen {
    pub(crate) closed: bool,
    pub(crate) brought: bool,
    pub(crate) others: bool,
}

impl RouterState {
    /// Whether callers of `shard` may use its leader lock by this router.
    pub(crate) fn may_use_lock(&self, shard: &ShardName) -> bool {
        self.may_serve(shard) || self.held.contains_key(&Ref::Shard(shard.clone()))
    }

    /// Whether somebody may use the leader lock of `shard` by this router, as far as is known, although it is to be closed.
    pub(crate) fn may_use_closed_lock(&self, shard: &ShardName, generation: u64) -> bool {
        let standing = self.locks.get(shard);
        let is_closed = standing.is_some_and(|standing| standing.closed && standing.generation == generation);
        self.may_use_lock(shard) && !(is_closed && self.left.is_none())
    }
}

impl Acks {
    /// Whether all routers hand leader locks over. Of those that may come back nobody knows.
    pub(crate) fn hand_locks_over(&self) -> bool {
        let returning = Instant::now() < *self.returning_until.read();
        !returning && self.routers.read().values().all(|state| state.hands_locks_over)
    }

    /// How far this handover of the leader lock of `shard` is. Of a router that left nobody knows, until it is forgotten.
    pub(crate) fn lock(&self, shard: &ShardName, generation: u64) -> LockSeen {
        let returning = Instant::now() < *self.returning_until.read();
        let routers = self.routers.read();
        let standing = |state: &RouterState| {
            let standing = state.locks.get(shard).copied();
            standing.filter(|standing| standing.generation == generation && state.left.is_none())
        };
        let mut serving = routers.values().filter(|state| state.may_use_lock(shard));
        let mut told = routers.values().filter_map(standing);
        LockSeen {
            closed: !returning && serving.all(|state| standing(state).is_some_and(|standing| standing.closed)),
            brought: told.clone().any(|standing| !standing.closed),
            others: told.any(|standing| standing.others),
        }
    }
}
