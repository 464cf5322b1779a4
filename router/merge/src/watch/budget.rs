//! A bound of memory that many streams share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that all watches of a process may take together for one purpose. Clones share it.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Account>);

#[derive(Debug)]
struct Account {
    limit: usize,
    /// A counter and no lock: it guards nothing but itself.
    used: AtomicUsize,
}

impl Budget {
    /// A budget of so many bytes.
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Account {
            limit,
            used: AtomicUsize::new(0),
        }))
    }

    /// Whether less than an eighth is left: no time to begin what cannot do without.
    pub fn is_short(&self) -> bool {
        self.used() > self.0.limit - self.0.limit / 8
    }

    /// Whether less than half is left: what may be asked for again gives way to what is under way.
    pub(super) fn is_half_used(&self) -> bool {
        self.used() > self.0.limit / 2
    }

    /// Bytes in use.
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    pub(super) fn take(&self, bytes: usize) -> bool {
        let within = |used: usize| used.checked_add(bytes).filter(|used| *used <= self.0.limit);
        self.0
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, within)
            .is_ok()
    }

    pub(super) fn give(&self, bytes: usize) {
        self.0.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}
