//! A bulkhead: so many requests at a time, so many waiting, the rest is told to come again.
//!
//! One per caller, and where callers are not known yet (`admit`), so that a noisy operator takes no one else down. How many is
//! the owner's to say. Before a member stand `queues`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// One bulkhead.
#[derive(Debug)]
pub(crate) struct Bulkhead {
    /// A semaphore: waiters are served in order.
    permits: Arc<Semaphore>,
    waiting: AtomicUsize,
    in_flight: usize,
    queue: usize,
}

/// A permit of a bulkhead, free again when dropped.
#[derive(Debug)]
pub(crate) struct Permit(#[allow(dead_code, reason = "held, not looked at")] OwnedSemaphorePermit);

/// The bulkhead and its queue are full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

impl Bulkhead {
    /// At least one permit, whatever is asked for.
    pub(crate) fn new(in_flight: usize, queue: usize) -> Self {
        let in_flight = in_flight.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            permits: Arc::new(Semaphore::new(in_flight)),
            waiting: AtomicUsize::new(0),
            in_flight,
            queue,
        }
    }

    /// A permit if there is one for who does not wait; requests that wait already come first.
    pub(crate) fn try_enter(&self) -> Option<Permit> {
        let permit = self.permits.clone().try_acquire_owned().ok()?;
        Some(Permit(permit))
    }

    /// Takes a permit, waiting for one while the queue is not full. Safe to drop.
    pub(crate) async fn enter(&self) -> Result<Permit, Full> {
        if let Some(permit) = self.try_enter() {
            return Ok(permit);
        }
        let _waiting = Waiting::join(&self.waiting, self.queue)?;
        // The semaphore is never closed.
        let permit = self.permits.clone().acquire_owned().await;
        permit.map(Permit).map_err(|_| Full)
    }

    /// Whether less than half of the permits are left.
    pub(crate) fn is_scarce(&self) -> bool {
        self.permits.available_permits() < self.in_flight.div_ceil(2)
    }
}

/// Counts one waiter for as long as it waits.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn join(waiting: &'a AtomicUsize, queue: usize) -> Result<Self, Full> {
        let waiter = Self(waiting);
        // Counted before it is judged, so that two who come at once cannot both take the last place.
        if waiting.fetch_add(1, Ordering::Relaxed) >= queue {
            return Err(Full);
        }
        Ok(waiter)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn takes_so_many_queues_so_many_and_refuses_the_rest() {
        let bulkhead = Arc::new(Bulkhead::new(1, 1));
        let held = bulkhead.enter().await.unwrap();
        let queued = crate::resource::upstream::scripted::spawn({
            let bulkhead = bulkhead.clone();
            async move { drop(bulkhead.enter().await.unwrap()) }
        });
        while bulkhead.waiting.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(bulkhead.enter().await.unwrap_err(), Full);
        drop(held);
        queued.await.unwrap();
        assert!(bulkhead.try_enter().is_some());
        assert_eq!(bulkhead.waiting.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_waiter_that_goes_away_leaves_the_queue() {
        let bulkhead = Bulkhead::new(1, 1);
        let _held = bulkhead.enter().await.unwrap();
        let waiting = tokio::time::timeout(std::time::Duration::from_millis(1), bulkhead.enter()).await;
        assert!(waiting.is_err());
        assert_eq!(bulkhead.waiting.load(Ordering::Relaxed), 0);
    }
}
