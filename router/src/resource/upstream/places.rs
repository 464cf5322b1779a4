//! Lists and starts of watches under way at one member, so many of each tenant, watches that run first, fair between a tenant's
//! callers.
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

use crate::resource::fair::{FairPermit, FairPermits};
use crate::resource::keyed::{Entry, Keyed};
use crate::value::snapshot::Caller;

/// Lists of one tenant at a time, and starts of its watches. An idle API server of default size has two dozen seats for all
/// ServiceAccounts. A caller takes all but one of them: that is for another replica, which need not wait for an answer to end.
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
    new: FairPermits,
    running: FairPermits,
    /// Those that were taken, by when they end. A mutex: held for a look at the first.
    taken: Mutex<VecDeque<(Instant, Taken)>>,
    /// Of one among those who wait: it takes places back when their time is over, and the others need not wake. Held across an
    /// await, of its own sleep alone: whoever gets its place or goes away hands it on.
    reaping: tokio::sync::Mutex<()>,
}

/// Emptied by its owner, or by who waits when its time is over.
type Taken = Arc<Mutex<Option<FairPermit>>>;

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
    /// Waits for a place for a list. `running`: of a watch whose client was answered. Any number may wait: `admit` bounds them.
    /// Safe to drop. `None` never comes: nobody asks for more than there is.
    pub(crate) async fn list(&self, caller: &Caller, running: bool) -> Option<Place> {
        let of = self.lists.entry(caller.tenant(), Tenant::new);
        Place::take(of, (caller, running), None).await
    }

    /// As [`Self::list`], for the start of a watch.
    pub(crate) async fn start(&self, caller: &Caller, running: bool) -> Option<Place> {
        let of = self.starts.entry(caller.tenant(), Tenant::new);
        let quiet = Box::pin(sleep_until(Instant::now() + QUIET));
        Place::take(of, (caller, running), Some(quiet)).await
    }
}

impl Tenant {
    fn new() -> Self {
        Self {
            new: FairPermits::new(TENANT_PLACES),
            running: FairPermits::new(RUNNING_PLACES),
            taken: Mutex::default(),
            reaping: tokio::sync::Mutex::default(),
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

    async fn enter(&self, caller: &Arc<str>, running: bool) -> Option<FairPermit> {
        let permits = if running { &self.running } else { &self.new };
        self.reap(Instant::now());
        let reaping = async {
            let _turn = self.reaping.lock().await;
            loop {
                let next = self.reap(Instant::now());
                sleep_until(next.unwrap_or_else(|| Instant::now() + LASTS)).await;
            }
        };
        tokio::select! {
            biased;
            permit = permits.take(caller, 1) => permit,
            () = reaping => None,
        }
    }
}

/// Of one tenant's callers.
fn name(caller: &Caller) -> Arc<str> {
    match caller {
        Caller::Pod(view) => view.key.pod_uid.clone(),
        Caller::Person { user, .. } => user.as_str().into(),
    }
}

impl Place {
    async fn take(
        of: Entry<Arc<str>, Tenant>,
        (caller, running): (&Caller, bool),
        quiet: Option<Pin<Box<Sleep>>>,
    ) -> Option<Self> {
        let permit = of.enter(&name(caller), running).await?;
        let taken = Arc::new(Mutex::new(Some(permit)));
        of.taken.lock().push_back((Instant::now() + LASTS, taken.clone()));
        Some(Self { quiet, taken, _of: of })
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
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};

    use futures::poll;

    use super::*;
    use crate::value::snapshot::{Binding, CallerKey, CallerView};

    /// What one caller takes of [`TENANT_PLACES`].
    const OWN_PLACES: usize = TENANT_PLACES - 1;

    /// Wakes nobody, and counts how often it should have.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn person(user: &str) -> Caller {
        Caller::Person {
            user: user.to_owned(),
            groups: Vec::new(),
        }
    }

    /// All of one tenant.
    fn replica(pod: &str) -> Caller {
        Caller::Pod(Arc::new(CallerView {
            key: CallerKey {
                home_cluster: "east".into(),
                pod_uid: pod.into(),
            },
            namespace: "ops".into(),
            pod: pod.to_owned(),
            service_account: "op".to_owned(),
            user: CallerView::user_of("ops", "op"),
            created_unix_seconds: None,
            held_elsewhere: None,
            policy_names: Arc::default(),
            policies: None,
            binding: Binding::None,
        }))
    }

    #[tokio::test]
    async fn tenants_wait_for_themselves_alone() {
        let (places, [many, few]) = (Places::default(), ["many", "few"].map(person));
        let mut held = Vec::new();
        for _ in 0..OWN_PLACES {
            held.push(places.list(&many, false).await.unwrap());
        }
        let mut next = Box::pin(places.list(&many, false));
        assert!(poll!(&mut next).is_pending());
        drop(places.list(&few, false).await.unwrap());
        drop(places.start(&many, false).await.unwrap());
        held.pop();
        drop(next.await.unwrap());
        drop(held);
        assert_eq!((places.lists.len(), places.starts.len()), (0, 0));
    }

    #[tokio::test]
    async fn a_broken_replica_does_not_keep_its_siblings_waiting() {
        let places = Places::default();
        let [broken, second, third] = ["broken", "second", "third"].map(replica);
        let mut held = Vec::new();
        for _ in 0..OWN_PLACES {
            held.push(places.start(&broken, false).await.unwrap());
        }
        let mut waiting: Vec<_> = (0..500).map(|_| Box::pin(places.start(&broken, false))).collect();
        for start in &mut waiting {
            assert!(poll!(start).is_pending());
        }
        let Poll::Ready(Some(kept)) = poll!(Box::pin(places.start(&second, false))) else {
            panic!("there is one for it");
        };
        let mut last = Box::pin(places.start(&third, false));
        assert!(poll!(&mut last).is_pending(), "all are taken");
        held.pop();
        assert!(poll!(&mut waiting[0]).is_pending());
        assert!(poll!(&mut last).is_ready(), "it came last, and is next");
        drop((kept, waiting, last, held));
        assert_eq!(places.starts.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn only_who_gets_a_place_wakes_when_one_is_over() {
        let (places, one) = (Places::default(), person("one"));
        let held = places.list(&one, false).await.unwrap();
        tokio::time::advance(LASTS / 2).await;
        let mut rest = Vec::new();
        for _ in 1..OWN_PLACES {
            rest.push(places.list(&one, false).await.unwrap());
        }
        let mut waiting: Vec<_> = (0..50)
            .map(|_| (Box::pin(places.list(&one, false)), Arc::new(Woken::default())))
            .collect();
        for (list, woken) in &mut waiting {
            let waker = Waker::from(woken.clone());
            assert!(list.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        tokio::time::sleep(LASTS / 2).await;
        let (first, woken) = &mut waiting[0];
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        // It takes the place back, and is then given it.
        let mut polls = (0..2).map(|_| first.as_mut().poll(&mut Context::from_waker(Waker::noop())));
        assert!(polls.any(|poll| poll.is_ready()));
        tokio::time::sleep(LASTS / 4).await;
        let awake = |(_, woken): &&(_, Arc<Woken>)| woken.0.load(Ordering::Relaxed) > 0;
        assert_eq!(waiting[1..].iter().filter(awake).count(), 1, "who looks next");
        drop((held, rest));
    }

    #[tokio::test]
    async fn a_watch_that_runs_waits_behind_nobody_who_comes_new() {
        let (places, one) = (Places::default(), person("one"));
        let mut held = Vec::new();
        for _ in 0..OWN_PLACES {
            held.push(places.start(&one, false).await.unwrap());
        }
        let mut new: Vec<_> = (0..50).map(|_| Box::pin(places.start(&one, false))).collect();
        for start in &mut new {
            assert!(poll!(start).is_pending());
        }
        let mut legs = Vec::new();
        for _ in 0..RUNNING_PLACES - 1 {
            let Poll::Ready(leg) = poll!(Box::pin(places.start(&one, true))) else {
                panic!("it comes last, and is first");
            };
            legs.push(leg.unwrap());
        }
        let mut next = Box::pin(places.start(&one, true));
        assert!(poll!(&mut next).is_pending());
        held.pop();
        assert!(poll!(&mut next).is_pending(), "nor is it before who comes new");
        legs.pop();
        assert!(poll!(&mut next).is_ready());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_read_keeps_a_place_for_some_seconds_only() {
        let (places, one) = (Places::default(), person("one"));
        let begun = Instant::now();
        let mut held = Vec::new();
        for _ in 0..OWN_PLACES * 3 {
            held.push(places.start(&one, false).await.unwrap());
        }
        assert_eq!(begun.elapsed().as_secs(), LASTS.as_secs() * 2);
        drop(held);
        assert_eq!(places.starts.len(), 0);
        for _ in 0..10_000 {
            drop(places.list(&one, false).await.unwrap());
        }
        let kept = places.list(&one, false).await.unwrap();
        for _ in 0..10_000 {
            drop(places.list(&one, false).await.unwrap());
        }
        let known = places.lists.find(&one.tenant()).unwrap();
        assert!(known.taken.lock().len() < 10_002, "none is remembered for ever");
        tokio::time::advance(LASTS).await;
        drop(places.list(&one, false).await.unwrap());
        assert!(known.taken.lock().len() <= 1, "{}", known.taken.lock().len());
        drop(kept);
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_has_started_when_it_is_waited_at() {
        let (places, one) = (Places::default(), person("one"));
        let cx = &mut Context::from_waker(Waker::noop());
        let mut place = places.start(&one, false).await.unwrap();
        assert!(!place.is_over(false, cx), "its first objects may be on their way");
        tokio::time::advance(QUIET).await;
        assert!(!place.is_over(true, cx), "there they are");
        assert!(!place.is_over(false, cx));
        tokio::time::advance(QUIET).await;
        assert!(place.is_over(false, cx));
        let mut list = places.list(&one, false).await.unwrap();
        tokio::time::advance(QUIET).await;
        assert!(!list.is_over(false, cx));
    }
}
