//! Lists and starts of watches under way at one member, so many of each tenant, watches that run first.
//!
//! An API server gives each priority level some dozen seats at a time when it is idle, and more of them ten seconds after
//! they are asked for (API Priority and Fairness borrows in periods). A list keeps its seats until the last of its answer is
//! taken, and a watch until its first objects are, so a tenant that asks for much and reads none of it would have everybody
//! else wait and be refused. Whoever reads what it asked for hardly notices: that takes some milliseconds.
//!
//! Nobody keeps a place for longer than [`LASTS`], whatever it waits for: an answer that waits for another member's must not
//! keep its tenant from this one. What is not read by then is cut soon after by `edge`. Caller: `dispatch`.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::resource::bulkhead::{Bulkhead, Full, Permit};
use crate::resource::keyed::{Entry, Keyed};

/// Lists of one tenant at a time, and starts of its watches. An idle API server of default size has two dozen seats for all
/// ServiceAccounts.
pub(crate) const TENANT_PLACES: usize = 8;
/// Beside these, of watches that run already, whose legs begin anew: they wait behind nobody who comes new.
const RUNNING_PLACES: usize = 8;
/// Longest time with a place.
const LASTS: Duration = Duration::from_secs(5);
/// A watch that is waited at for so long has no first objects left to be read.
const QUIET: Duration = Duration::from_millis(50);

/// Of one member.
#[derive(Debug, Default)]
pub(crate) struct Places {
    lists: Keyed<Arc<str>, Tenant>,
    starts: Keyed<Arc<str>, Tenant>,
}

/// One tenant's.
#[derive(Debug)]
struct Tenant {
    new: Bulkhead,
    running: Bulkhead,
    /// Those that were taken, by when they end. A mutex: held for a look at the first.
    taken: Mutex<VecDeque<(Instant, Taken)>>,
}

/// Emptied by its owner, or by who waits when its time is over.
type Taken = Arc<Mutex<Option<Permit>>>;

/// A tenant's place.
#[derive(Debug)]
pub(crate) struct Place {
    /// Of the start of a watch: when it was quiet for long enough. Of a list nothing, whose place is its own to the end of
    /// its answer.
    quiet: Option<Pin<Box<Sleep>>>,
    taken: Taken,
    _of: Entry<Arc<str>, Tenant>,
}

impl Places {
    /// Waits for a place for a list. `running`: of a watch whose client was answered. Safe to drop.
    pub(crate) async fn list(&self, tenant: Arc<str>, running: bool) -> Result<Place, Full> {
        Place::take(self.lists.entry(tenant, Tenant::new), running, None).await
    }

    /// As [`Self::list`], for the start of a watch.
    pub(crate) async fn start(&self, tenant: Arc<str>, running: bool) -> Result<Place, Full> {
        let quiet = Box::pin(sleep_until(Instant::now() + QUIET));
        Place::take(self.starts.entry(tenant, Tenant::new), running, Some(quiet)).await
    }
}

impl Tenant {
    /// Any number may wait: `admit` bounds them.
    fn new() -> Self {
        Self {
            new: Bulkhead::new(TENANT_PLACES, usize::MAX),
            running: Bulkhead::new(RUNNING_PLACES, usize::MAX),
            taken: Mutex::default(),
        }
    }

    /// Takes back those whose time is over; when that of the next is.
    fn reap(&self, now: Instant) -> Option<Instant> {
        let mut taken = self.taken.lock();
        while let Some((ends, place)) = taken.front() {
            if *ends > now && place.lock().is_some() {
                return Some(*ends);
            }
            place.lock().take();
            taken.pop_front();
        }
        None
    }

    async fn enter(&self, running: bool) -> Result<Permit, Full> {
        let bulkhead = if running { &self.running } else { &self.new };
        let mut entering = std::pin::pin!(bulkhead.enter());
        loop {
            let next = self.reap(Instant::now()).unwrap_or_else(|| Instant::now() + LASTS);
            if let Ok(entered) = tokio::time::timeout_at(next, entering.as_mut()).await {
                return entered;
            }
        }
    }
}

impl Place {
    async fn take(of: Entry<Arc<str>, Tenant>, running: bool, quiet: Option<Pin<Box<Sleep>>>) -> Result<Self, Full> {
        let taken = Arc::new(Mutex::new(Some(of.enter(running).await?)));
        of.taken.lock().push_back((Instant::now() + LASTS, taken.clone()));
        Ok(Self { quiet, taken, _of: of })
    }

    /// The head of the answer is here.
    pub(crate) fn begun(&mut self) {
        if let Some(quiet) = &mut self.quiet {
            quiet.as_mut().reset(Instant::now() + QUIET);
        }
    }

    /// Whether a place is given back, after the answer was asked for more: `some`, if there was more.
    pub(super) fn is_over(&mut self, some: bool, cx: &mut Context<'_>) -> bool {
        let Some(quiet) = &mut self.quiet else {
            return false;
        };
        if !some {
            return quiet.as_mut().poll(cx) == Poll::Ready(());
        }
        quiet.as_mut().reset(Instant::now() + QUIET);
        false
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.taken.lock().take();
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use futures::poll;

    use super::*;

    #[tokio::test]
    async fn tenants_wait_for_themselves_alone() {
        let (places, [many, few]) = (Places::default(), ["many", "few"].map(Arc::<str>::from));
        let mut held = Vec::new();
        for _ in 0..TENANT_PLACES {
            held.push(places.list(many.clone(), false).await.unwrap());
        }
        let mut next = Box::pin(places.list(many.clone(), false));
        assert!(poll!(&mut next).is_pending());
        drop(places.list(few, false).await.unwrap());
        drop(places.start(many, false).await.unwrap());
        held.pop();
        drop(next.await.unwrap());
        drop(held);
        assert_eq!((places.lists.len(), places.starts.len()), (0, 0));
    }

    #[tokio::test]
    async fn a_watch_that_runs_waits_behind_nobody_who_comes_new() {
        let (places, one) = (Places::default(), Arc::<str>::from("one"));
        let mut held = Vec::new();
        for _ in 0..TENANT_PLACES {
            held.push(places.start(one.clone(), false).await.unwrap());
        }
        let mut new: Vec<_> = (0..50).map(|_| Box::pin(places.start(one.clone(), false))).collect();
        for start in &mut new {
            assert!(poll!(start).is_pending());
        }
        let mut legs = Vec::new();
        for _ in 0..RUNNING_PLACES {
            let Poll::Ready(leg) = poll!(Box::pin(places.start(one.clone(), true))) else {
                panic!("it comes last, and is first");
            };
            legs.push(leg.unwrap());
        }
        let mut next = Box::pin(places.start(one.clone(), true));
        assert!(poll!(&mut next).is_pending());
        held.pop();
        assert!(poll!(&mut next).is_pending(), "nor is it before who comes new");
        legs.pop();
        assert!(poll!(&mut next).is_ready());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_read_keeps_a_place_for_some_seconds_only() {
        let (places, one) = (Places::default(), Arc::<str>::from("one"));
        let begun = Instant::now();
        let mut held = Vec::new();
        for _ in 0..TENANT_PLACES * 3 {
            held.push(places.start(one.clone(), false).await.unwrap());
        }
        assert_eq!(begun.elapsed().as_secs(), LASTS.as_secs() * 2);
        drop(held);
        assert_eq!(places.starts.len(), 0);
        for _ in 0..10_000 {
            drop(places.list(one.clone(), false).await.unwrap());
        }
        let kept = places.list(one.clone(), false).await.unwrap();
        for _ in 0..10_000 {
            drop(places.list(one.clone(), false).await.unwrap());
        }
        let known = places.lists.find(&one).unwrap();
        assert!(known.taken.lock().len() < 10_002, "none is remembered for ever");
        tokio::time::advance(LASTS).await;
        drop(places.list(one, false).await.unwrap());
        assert!(known.taken.lock().len() <= 1, "{}", known.taken.lock().len());
        drop(kept);
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_has_started_when_it_is_waited_at() {
        let places = Places::default();
        let cx = &mut Context::from_waker(Waker::noop());
        let mut place = places.start("one".into(), false).await.unwrap();
        assert!(!place.is_over(false, cx), "its first objects may be on their way");
        tokio::time::advance(QUIET).await;
        assert!(!place.is_over(true, cx), "there they are");
        assert!(!place.is_over(false, cx));
        tokio::time::advance(QUIET).await;
        assert!(place.is_over(false, cx));
        let mut list = places.list("one".into(), false).await.unwrap();
        tokio::time::advance(QUIET).await;
        assert!(!list.is_over(false, cx));
    }
}
