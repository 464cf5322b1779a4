//! Where the leader lock of a shard is, and how it came there. What that means for requests is said by `plan`.

use std::sync::Arc;

use portolan_wire::v1;

use super::{LeaseName, Shard, Snapshot};

/// How a leader lock came to be where it is (`docs/semantics.md#leader-election`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lock {
    /// Counts handovers of the shard's lock.
    pub(crate) generation: u64,
    pub(crate) state: LockState,
    /// The lock by the name that callers knew it by before, and may go on to ask for.
    pub(crate) former: Option<LeaseName>,
}

/// How far the handover of a leader lock is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LockState {
    /// The lock is used where it is.
    Open,
    /// Nothing about it is sent to any member.
    Closed(Option<LockPlace>),
    /// What is recorded there is brought before the lock is used.
    Bringing(LockPlace),
}

/// Where a leader lock was before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LockPlace {
    pub(crate) cluster: Arc<str>,
    /// The lock's name in the member.
    pub(crate) member: String,
    /// The resource of the core group that carried it beside a Lease.
    pub(crate) resource: Option<&'static str>,
}

/// What the hub tells of a lock that has moved, or is about to.
#[derive(Debug, Clone)]
pub(crate) struct MovedLock<'a> {
    /// `namespace/name` of the ShardingConfig.
    pub(crate) shard: &'a str,
    pub(crate) generation: u64,
    pub(crate) state: v1::LockState,
    /// What marks the lock where it was, once it was brought.
    pub(crate) mark: String,
}

impl Snapshot {
    /// Locks that have moved or are about to, of all shards that the router is told of, whether or not it serves a caller of theirs.
    pub(crate) fn moved_locks(&self) -> impl Iterator<Item = MovedLock<'_>> {
        self.rules.values().filter_map(|rules| {
            let lock = rules.lock.as_ref()?;
            Some(MovedLock {
                shard: &rules.name,
                generation: lock.generation,
                state: lock.state(),
                mark: mark(&rules.uid, lock.generation),
            })
        })
    }
}

impl Shard {
    /// What marks its leader lock where that was before the present handover.
    pub(crate) fn lock_mark(&self) -> Option<String> {
        let lock = self.lock.as_ref()?;
        Some(mark(&self.made_of.rules.uid, lock.generation))
    }
}

/// What marks a leader lock that was brought away, where it was.
pub(crate) fn mark(uid: &str, generation: u64) -> String {
    format!("{uid}/{generation}")
}
