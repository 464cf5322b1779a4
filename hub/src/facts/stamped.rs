//! A fact that is too large to be compared with itself, run by run: whoever has seen it goes by its stamp.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers all that is stamped in this process.
// An atomic: facts are made in tests and plans too, without any index.
static STAMPS: AtomicU64 = AtomicU64::new(1);

/// A value with the number of its last change. Clones have the same number; no two that differ do.
#[derive(Debug, Clone)]
pub(crate) struct Stamped<T> {
    value: T,
    stamp: u64,
}

impl<T> Stamped<T> {
    /// Two of the same stamp are the same.
    pub(crate) fn stamp(&self) -> u64 {
        self.stamp
    }

    /// Lets the value be changed by what says whether it did.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut T) -> bool) {
        if change(&mut self.value) {
            self.stamp = next();
        }
    }
}

fn next() -> u64 {
    STAMPS.fetch_add(1, Ordering::Relaxed)
}

impl<T> From<T> for Stamped<T> {
    fn from(value: T) -> Self {
        Self { value, stamp: next() }
    }
}

impl<T: Default> Default for Stamped<T> {
    fn default() -> Self {
        T::default().into()
    }
}

impl<T: PartialEq> PartialEq for Stamped<T> {
    fn eq(&self, other: &Self) -> bool {
        self.stamp == other.stamp || self.value == other.value
    }
}

impl<T> Deref for Stamped<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// Whoever may change it is taken to do so.
impl<T> DerefMut for Stamped<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.stamp = next();
        &mut self.value
    }
}
