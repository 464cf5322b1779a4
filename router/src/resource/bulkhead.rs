//! A bulkhead: so many requests at a time, so many waiting, the rest is told to come again.
//!
//! One per member cluster and one per caller, so that a slow member or a noisy operator takes no one else down.
//! Lease renewals never wait here: they are few, and a lost lease costs more than one request over the bound.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Unary requests at one member at a time. An API server's own default is 400 reads and 200 writes in flight, so a
/// healthy member is never kept from work by this.
pub(crate) const TARGET_IN_FLIGHT: usize = 1024;
/// Unary requests that wait for one member.
pub(crate) const TARGET_QUEUE: usize = 1024;
/// Unary requests of one caller at a time.
pub(crate) const CALLER_IN_FLIGHT: usize = 512;
/// Unary requests of one caller that wait.
pub(crate) const CALLER_QUEUE: usize = 1024;
/// Watches, logs and upgrades of one caller. Operators have some dozen; this is for those that are broken.
pub(crate) const CALLER_STREAMS: usize = 20_000;

/// One bulkhead.
#[derive(Debug)]
pub(crate) struct Bulkhead {
    /// A semaphore: waiters are served in order.
    permits: Arc<Semaphore>,
    waiting: AtomicUsize,
    queue: usize,
}

/// A place in a bulkhead, free again when dropped. Requests that go past the bulkhead have an empty one.
#[derive(Debug, Default)]
pub(crate) struct Permit(#[allow(dead_code)] Option<OwnedSemaphorePermit>);

/// The bulkhead and its queue are full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

impl Bulkhead {
    pub(crate) fn new(in_flight: usize, queue: usize) -> Arc<Self> {
        Arc::new(Self {
            permits: Arc::new(Semaphore::new(in_flight)),
            waiting: AtomicUsize::new(0),
            queue,
        })
    }

    /// Takes a place, waiting for one while the queue is not full. `first` takes one if there is one, and passes anyway.
    pub(crate) async fn enter(&self, first: bool) -> Result<Permit, Full> {
        if let Ok(permit) = self.permits.clone().try_acquire_owned() {
            return Ok(Permit(Some(permit)));
        }
        if first {
            return Ok(Permit(None));
        }
        let _waiting = Waiting::join(&self.waiting, self.queue)?;
        // The semaphore is never closed.
        self.permits
            .clone()
            .acquire_owned()
            .await
            .map(|permit| Permit(Some(permit)))
            .map_err(|_| Full)
    }

    /// Places taken of all, which is as many as it was made with.
    pub(crate) fn taken(&self, all: usize) -> usize {
        all.saturating_sub(self.permits.available_permits())
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
        let gate = Bulkhead::new(1, 1);
        let held = gate.enter(false).await.unwrap();
        let queued = crate::resource::upstream::scripted::spawn({
            let gate = gate.clone();
            async move { drop(gate.enter(false).await.unwrap()) }
        });
        while gate.waiting.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(gate.enter(false).await.unwrap_err(), Full);
        assert!(gate.enter(true).await.is_ok(), "lease renewals pass");
        drop(held);
        queued.await.unwrap();
        assert_eq!((gate.taken(1), gate.waiting.load(Ordering::Relaxed)), (0, 0));
    }

    #[tokio::test]
    async fn a_waiter_that_goes_away_leaves_the_queue() {
        let gate = Bulkhead::new(1, 1);
        let _held = gate.enter(false).await.unwrap();
        let waiting = tokio::time::timeout(std::time::Duration::from_millis(1), gate.enter(false)).await;
        assert!(waiting.is_err());
        assert_eq!(gate.waiting.load(Ordering::Relaxed), 0);
    }
}
