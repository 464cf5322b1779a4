//! Which of a stream's parts want to be read: one bit each, so that a wake-up costs one read and not one per leg.
//!
//! The parts are polled with wakers of their own, which set their bit and wake the task of the whole. Caller: `stream`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Wake, Waker};

use futures::task::AtomicWaker;

const BITS: usize = u64::BITS as usize;

/// Bits of all parts, and the task that reads them.
#[derive(Debug)]
pub(super) struct Wakes {
    bits: Box<[AtomicU64]>,
    task: AtomicWaker,
}

#[derive(Debug)]
struct Part {
    all: Arc<Wakes>,
    index: usize,
}

impl Wakes {
    /// All bits set: everything is read once.
    pub(super) fn new(parts: usize) -> Arc<Self> {
        let bits = (0..parts.div_ceil(BITS)).map(|_| AtomicU64::new(u64::MAX)).collect();
        Arc::new(Self {
            bits,
            task: AtomicWaker::new(),
        })
    }

    /// Of one part.
    pub(super) fn waker(self: &Arc<Self>, index: usize) -> Waker {
        let all = self.clone();
        Waker::from(Arc::new(Part { all, index }))
    }

    /// To be called before the bits are looked at.
    pub(super) fn register(&self, task: &Waker) {
        self.task.register(task);
    }

    pub(super) fn set(&self, index: usize) {
        if let Some(bits) = self.bits.get(index / BITS) {
            bits.fetch_or(1 << (index % BITS), Ordering::AcqRel);
        }
    }

    /// Whether it was set; it is not any more.
    pub(super) fn take(&self, index: usize) -> bool {
        let mask = 1 << (index % BITS);
        let Some(bits) = self.bits.get(index / BITS) else {
            return false;
        };
        // Most are not: reading a line that nobody writes is cheap.
        bits.load(Ordering::Acquire) & mask != 0 && bits.fetch_and(!mask, Ordering::AcqRel) & mask != 0
    }
}

impl Wake for Part {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.all.set(self.index);
        self.all.task.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_read_once_per_wake_up() {
        let wakes = Wakes::new(70);
        assert!(wakes.take(0) && wakes.take(69));
        assert!(!wakes.take(0) && !wakes.take(69));
        let waker = wakes.waker(69);
        waker.wake_by_ref();
        assert!(!wakes.take(5 + 64) || !wakes.take(69));
        waker.wake();
        assert!(wakes.take(69) && !wakes.take(69) && !wakes.take(0));
    }
}
