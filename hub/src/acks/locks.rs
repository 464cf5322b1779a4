//! How far handovers of leader locks are in routers, as these report it.

use std::collections::BTreeMap;

use portolan_crds::ShardName;
use tokio::time::Instant;

use super::{Acks, RouterState};
use crate::compile::{LockUsersAway, Ref};

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
#[expect(
    clippy::struct_excessive_bools,
    reason = "what all routers say and what some do, each apart"
)]
pub(crate) struct LockSeen {
    pub(crate) closed: bool,
    /// Some router may let it be used that has not said of this handover that nobody does.
    pub(crate) open: bool,
    pub(crate) brought: bool,
    pub(crate) others: bool,
}

impl RouterState {
    /// Whether callers of `shard` may use its leader lock by this router: it holds the rules of the shard or is being sent them.
    fn may_use_lock(&self, shard: &ShardName) -> bool {
        self.offered.contains(shard) || self.held.contains_key(&Ref::Shard(shard.clone()))
    }

    /// What `earlier` of its name said of locks, of shards of which it holds the same rules still.
    pub(super) fn locks_known_of(&self, earlier: &Self) -> BTreeMap<ShardName, LockStanding> {
        let is_same = |shard: &ShardName| {
            let name = Ref::Shard(shard.clone());
            self.held.get(&name) == earlier.held.get(&name) && !earlier.offered.contains(shard)
        };
        let closed = earlier.locks.iter().filter(|(_, standing)| standing.closed);
        let same = closed.filter(|(shard, _)| is_same(shard));
        same.map(|(shard, standing)| (shard.clone(), *standing)).collect()
    }

    /// Whether somebody may use the leader lock of `shard` by this router, as far as is known, although it is to be closed.
    pub(crate) fn may_use_closed_lock(&self, shard: &ShardName, generation: u64) -> bool {
        let standing = self.locks.get(shard);
        let is_closed = standing.is_some_and(|standing| standing.closed && standing.generation == generation);
        self.may_use_lock(shard) && !(is_closed && self.left.is_none())
    }
}

impl Acks {
    /// Whether all routers hand leader locks over. Of those that may come back it is not known.
    pub(crate) fn hand_locks_over(&self) -> bool {
        let returning = Instant::now() < *self.returning_until.read();
        !returning && self.routers.read().values().all(|state| state.hands_locks_over)
    }

    /// Shards whose leader lock may be used by routers that left and are not forgotten, or that may come back.
    pub(crate) fn lock_users_away(&self) -> LockUsersAway {
        let routers = self.routers.read();
        let left = routers.values().filter(|state| state.left.is_some());
        let shards = left.flat_map(|state| {
            let held = state.held.common().keys().filter_map(|name| match name {
                Ref::Shard(shard) => Some(shard),
                _ => None,
            });
            held.chain(&state.offered).cloned()
        });
        LockUsersAway {
            unknown: Instant::now() < *self.returning_until.read(),
            shards: shards.collect(),
        }
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
        let said_closed = |state: &RouterState| {
            let standing = state.locks.get(shard);
            standing.is_some_and(|standing| standing.closed && standing.generation == generation)
        };
        let open = returning || serving.clone().any(|state| !said_closed(state));
        let mut told = routers.values().filter_map(standing);
        LockSeen {
            closed: !returning && serving.all(|state| standing(state).is_some_and(|standing| standing.closed)),
            open,
            brought: told.clone().any(|standing| !standing.closed),
            others: told.any(|standing| standing.others),
        }
    }
}
