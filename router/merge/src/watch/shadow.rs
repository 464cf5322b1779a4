//! What the client holds of one member, keys only: enough to tell what a member's own relist changes for it.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// Bytes that all shadows of a process may take together. Clones share it.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Account>);

#[derive(Debug)]
struct Account {
    limit: usize,
    used: AtomicUsize,
}

impl Budget {
    /// Of so many bytes.
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Account {
            limit,
            used: AtomicUsize::new(0),
        }))
    }

    /// Bytes in use.
    pub fn used(&self) -> usize {
        self.0.used.load(std::sync::atomic::Ordering::Relaxed).min(self.0.limit)
    }
}
