//! Leader locks whose record this router has brought to their present place, or found there: what need not be done again, and
//! what the hub is told (`docs/semantics.md#leader-election`).
//!
//! Lost with the process, at no harm: that a record was brought is marked where it was. Writer: `preflight`; reader:
//! `subscribe`, which says how far each handover is.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use portolan_wire::v1;
use tokio::sync::Notify;

use super::held::HeldLocks;
use super::writes::Writes;
use crate::value::snapshot::Snapshot;

/// What was brought, by ShardingConfig.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    // A mutex: held to compare or note a word.
    brought: Mutex<BTreeMap<String, Brought>>,
    /// A lock was brought: one waits, the hub's stream.
    news: Notify,
}

/// Of the last handover.
#[derive(Debug, Default)]
struct Brought {
    /// Which handover it is.
    mark: String,
    /// Collections whose lock is where it is to be.
    collections: BTreeSet<String>,
    /// All of the shard's.
    whole: bool,
}

impl Locks {
    /// Whether the lock in this collection is where the handover of this mark brings it.
    pub(crate) fn is_brought(&self, shard: &str, mark: &str, collection: &str) -> bool {
        let brought = self.brought.lock();
        let of_shard = brought.get(shard).filter(|of_shard| of_shard.mark == mark);
        of_shard.is_some_and(|of_shard| of_shard.collections.contains(collection))
    }

    /// The locks in these collections are; `whole`: and there are no others.
    pub(crate) fn brought(&self, shard: &str, mark: &str, collections: Vec<String>, whole: bool) {
        let mut brought = self.brought.lock();
        let of_shard = brought.entry(shard.to_owned()).or_default();
        if of_shard.mark != mark {
            *of_shard = Brought {
                mark: mark.to_owned(),
                ..Brought::default()
            };
        }
        of_shard.collections.extend(collections);
        of_shard.whole |= whole;
        drop(brought);
        self.news.notify_one();
    }

    /// How far all handovers are. Of a lock that is closed nothing is said before all of its writes are over.
    pub(crate) fn report(&self, snapshot: &Snapshot, writes: &Writes, held: &HeldLocks) -> v1::LockReport {
        let mut brought = self.brought.lock();
        let moved: BTreeMap<_, _> = snapshot.moved_locks().map(|lock| (lock.shard, lock)).collect();
        // What no shard is about any more is forgotten.
        brought.retain(|shard, of_shard| moved.get(&**shard).is_some_and(|lock| lock.mark == of_shard.mark));
        let others = held.beside();
        let others: BTreeSet<_> = others.keys().map(|other| other.shard.as_str()).collect();
        let standing = moved.into_values().filter_map(|lock| {
            let state = match lock.state {
                v1::LockState::Open => return None,
                v1::LockState::Bringing => brought
                    .get(lock.shard)
                    .filter(|of_shard| of_shard.whole)
                    .map(|_| lock.state)?,
                v1::LockState::Closed | v1::LockState::Unspecified => {
                    writes.is_lock_idle(lock.shard).then_some(v1::LockState::Closed)?
                }
            };
            Some(v1::LockStanding {
                shard: lock.shard.to_owned(),
                generation: lock.generation,
                state: state.into(),
                other_leases: others.contains(lock.shard),
            })
        });
        // By the names of the shards.
        v1::LockReport {
            locks: standing.collect(),
        }
    }

    /// Wakes when [`Self::report`] may say more of what was brought.
    pub(crate) async fn changed(&self) {
        self.news.notified().await;
    }
}
