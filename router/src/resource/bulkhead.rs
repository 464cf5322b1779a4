//! A bulkhead: so many requests at a time, so many waiting, the rest is told to come again.
//!
//! One per member cluster (`upstream`) and one per caller (`admit`), so that a slow member or a noisy operator takes no
//! one else down. How many is the owner's to say.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Unary requests at one member at a time. An API server's own default is 400 reads and 200 writes in flight, so a
/// healthy member is never kept from work by this.
pub(crate) const TARGET_IN_FLIGHT: usize = 1024;
/// Unary requests that wait for one member.
pub(crate) const TARGET_QUEUE: usize = 1024;
/// Between two looks of what comes last.
const LAST_EVERY: Duration = Duration::from_millis(50);

/// One bulkhead.
#[derive(Debug)]
pub(crate) struct Bulkhead {
    /// A semaphore: waiters are served in order.
    permits: Arc<Semaphore>,
    waiting: AtomicUsize,
    in_flight: usize,
    queue: usize,
}

/// A permit of a bulkhead, free again when dropped. Requests that go past the bulkhead have an empty one.
#[derive(Debug, Default)]
pub(crate) struct Permit(#[allow(dead_code)] Option<OwnedSemaphorePermit>);

/// When a request's turn comes at a bulkhead that is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// At once, past the bound: Lease renewals, which are few, and a lost lease costs more than one request over the bound;
    /// and reviews of tokens, which `admit` bounds.
    First,
    /// After those who wait already, while the queue is not full.
    InOrder,
    /// When nobody else waits: what the router asks of its own accord, which bounds how long it waits. It looks again from
    /// time to time: a place at the end of a queue that others overtake would cost every request.
    Last,
}

/// The bulkhead and its queue are full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

impl Turn {
    /// Of a caller's request.
    pub(crate) fn of(priority: bool) -> Self {
        if priority { Self::First } else { Self::InOrder }
    }
}

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
        Some(Permit(Some(permit)))
    }

    /// Takes a permit, waiting for one while the queue is not full. Safe to drop.
    pub(crate) async fn enter(&self) -> Result<Permit, Full> {
        if let Some(permit) = self.try_enter() {
            return Ok(permit);
        }
        let _waiting = Waiting::join(&self.waiting, self.queue)?;
        // The semaphore is never closed.
        let permit = self.permits.clone().acquire_owned().await;
        permit.map(|permit| Permit(Some(permit))).map_err(|_| Full)
    }

    /// Takes a permit when it is the request's turn. Safe to drop.
    pub(crate) async fn take(&self, turn: Turn) -> Result<Permit, Full> {
        match turn {
            Turn::First => Ok(self.try_enter().unwrap_or_default()),
            Turn::InOrder => self.enter().await,
            Turn::Last => loop {
                if let Some(permit) = self.try_enter() {
                    return Ok(permit);
                }
                tokio::time::sleep(LAST_EVERY).await;
            },
        }
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
    async fn takes_so_many_queues_so_many_and_sheds_the_rest() {
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
        let Permit(past) = bulkhead.take(Turn::First).await.unwrap();
        assert!(past.is_none(), "lease renewals pass");
        drop(held);
        queued.await.unwrap();
        assert!(bulkhead.try_enter().is_some());
        assert_eq!(bulkhead.waiting.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_last_waits_for_all_who_wait() {
        let bulkhead = Bulkhead::new(1, 2);
        let held = bulkhead.enter().await.unwrap();
        let mut last = Box::pin(bulkhead.take(Turn::Last));
        assert!(futures::poll!(&mut last).is_pending());
        let mut waits = Box::pin(bulkhead.take(Turn::InOrder));
        assert!(futures::poll!(&mut waits).is_pending());
        drop(held);
        tokio::time::sleep(LAST_EVERY).await;
        assert!(futures::poll!(&mut last).is_pending(), "it came first and is last");
        drop(waits.await.unwrap());
        last.await.unwrap();
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
