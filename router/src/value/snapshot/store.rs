//! Where the current snapshot is kept, and who is woken when it changes. No part of what it says.
//!
//! Writer: `subscribe`. Readers: every request, once.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::watch;

use super::Snapshot;

/// Where the current snapshot is kept.
///
/// `ArcSwap` because every request reads it and nobody may wait; the `watch` because few tasks must notice a swap, and
/// only the newest matters to them.
#[derive(Debug)]
pub(crate) struct SnapshotStore {
    current: ArcSwap<Snapshot>,
    generation: watch::Sender<u64>,
}

impl SnapshotStore {
    /// A store that holds the empty snapshot.
    pub(crate) fn new() -> Self {
        Self {
            current: ArcSwap::default(),
            generation: watch::Sender::new(0),
        }
    }

    /// The current snapshot. Load it once per request.
    pub(crate) fn load(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// Replaces the current snapshot, then wakes the subscribers. There must be one writer.
    pub(crate) fn swap(&self, snapshot: Snapshot) {
        let generation = snapshot.generation;
        self.current.store(Arc::new(snapshot));
        self.generation.send_replace(generation);
    }

    /// Wakes after each swap with the new snapshot's generation.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }
}

impl Default for SnapshotStore {
    fn default() -> Self {
        Self::new()
    }
}
