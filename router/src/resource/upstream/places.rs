//! Lists and starts of watches under way at one member, so many of each tenant.
//!
//! An API server gives each priority level some dozen seats at a time when it is idle, and more of them ten seconds after
//! they are asked for (API Priority and Fairness borrows in periods). A list keeps its seats until the last of its answer is
//! taken, and a watch until its first objects are, so a tenant that asks for much and reads none of it would have everybody
//! else wait and be refused. Whoever reads what it asked for hardly notices: that takes some milliseconds. Caller: `dispatch`.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use crate::resource::bulkhead::{Bulkhead, Full, Permit, TARGET_QUEUE};
use crate::resource::keyed::{Entry, Keyed};

/// Lists of one tenant at a time. An idle API server of default size has two dozen seats for all ServiceAccounts.
pub(crate) const TENANT_LISTS: usize = 8;
/// Starts of watches of one tenant at a time.
pub(crate) const TENANT_STARTS: usize = 12;
/// A watch that is waited at for so long has no first objects left to be read.
const QUIET: Duration = Duration::from_millis(50);
/// Of a watch that is never quiet and goes on being read.
const STARTED: Duration = Duration::from_secs(2);

/// Of one member.
#[derive(Debug, Default)]
pub(crate) struct Places {
    lists: Keyed<Arc<str>, Bulkhead>,
    starts: Keyed<Arc<str>, Bulkhead>,
}

/// A tenant's place.
#[derive(Debug)]
pub(crate) struct Place {
    /// Of the start of a watch: since when it goes on, and until when it was quiet for long enough. Of a list nothing, which
    /// has its place until its answer is over.
    start: Option<(Instant, Pin<Box<Sleep>>)>,
    _permit: Permit,
    _of: Entry<Arc<str>, Bulkhead>,
}

impl Places {
    /// Waits for a place for a list, in order of arrival; an error when as many wait as may. Safe to drop.
    pub(crate) async fn list(&self, tenant: Arc<str>) -> Result<Place, Full> {
        let of = self.lists.entry(tenant, || Bulkhead::new(TENANT_LISTS, TARGET_QUEUE));
        Ok(Place {
            start: None,
            _permit: of.enter().await?,
            _of: of,
        })
    }

    /// As [`Self::list`], for the start of a watch. Any number may wait: `admit` bounds them.
    pub(crate) async fn start(&self, tenant: Arc<str>) -> Result<Place, Full> {
        let of = self.starts.entry(tenant, || Bulkhead::new(TENANT_STARTS, usize::MAX));
        let permit = of.enter().await?;
        let now = Instant::now();
        Ok(Place {
            start: Some((now, Box::pin(sleep_until(now + QUIET)))),
            _permit: permit,
            _of: of,
        })
    }
}

impl Place {
    /// The head of the answer is here.
    pub(crate) fn begun(&mut self) {
        if let Some((since, quiet)) = &mut self.start {
            *since = Instant::now();
            quiet.as_mut().reset(*since + QUIET);
        }
    }

    /// Whether a place is given back, after the answer was asked for more: `some`, if there was more.
    pub(super) fn is_over(&mut self, some: bool, cx: &mut Context<'_>) -> bool {
        let Some((since, quiet)) = &mut self.start else {
            return false;
        };
        if !some {
            return quiet.as_mut().poll(cx) == Poll::Ready(());
        }
        let now = Instant::now();
        quiet.as_mut().reset(now + QUIET);
        now.saturating_duration_since(*since) > STARTED
    }
}

#[cfg(test)]
mod tests {
    use futures::poll;

    use super::*;

    #[tokio::test]
    async fn tenants_wait_for_themselves_alone() {
        let (places, [many, few]) = (Places::default(), ["many", "few"].map(Arc::<str>::from));
        let mut held = Vec::new();
        for _ in 0..TENANT_LISTS {
            held.push(places.list(many.clone()).await.unwrap());
        }
        let mut next = Box::pin(places.list(many.clone()));
        assert!(poll!(&mut next).is_pending());
        drop(places.list(few).await.unwrap());
        drop(places.start(many).await.unwrap());
        held.pop();
        drop(next.await.unwrap());
        drop(held);
        assert_eq!((places.lists.len(), places.starts.len()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_has_started_when_it_is_waited_at() {
        let places = Places::default();
        let mut place = places.start("one".into()).await.unwrap();
        let mut is_over = |some| place.is_over(some, &mut Context::from_waker(std::task::Waker::noop()));
        assert!(!is_over(false), "its first objects may be on their way");
        tokio::time::advance(QUIET).await;
        assert!(!is_over(true), "there they are");
        assert!(!is_over(false));
        tokio::time::advance(QUIET).await;
        assert!(is_over(false));
        let mut list = places.list("one".into()).await.unwrap();
        tokio::time::advance(STARTED).await;
        assert!(is_over(true), "it goes on for long");
        assert!(!list.is_over(true, &mut Context::from_waker(std::task::Waker::noop())));
    }
}
