//! Lists and starts of watches under way at one member, so many of each tenant, watches that run first, fair between a tenant's
//! callers.
//!
//! An API server gives each priority level some dozen seats at a time when it is idle, and more of them ten seconds after
//! they are asked for (API Priority and Fairness borrows in periods). A list keeps its seats until the last of its answer is
//! taken, and a watch until its first objects are, so a tenant that asks for much and reads none of it would have everybody
//! else wait and be refused. Whoever reads what it asked for hardly notices: that takes some milliseconds.
//!
//! A watch that goes on from a version has a place until its head; one that begins with the state, until that is read. What
//! has come since that version follows the head unannounced, and is for the member as a state is. So a watch that began has
//! its place again while something of it is not read, though there be none free: whoever comes next waits for it.
//!
//! Nobody keeps a place for longer than [`LASTS`], whatever it waits for: an answer that waits for another member's must not
//! keep its tenant from this one. What is not read by then is cut soon after by `edge`. Caller: `dispatch`.

mod marker;

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep_until};

use self::marker::Marker;
use crate::resource::fair::{FairPermit, FairPermits};
use crate::resource::keyed::{Entry, Keyed};
use crate::value::snapshot::Caller;

/// Lists of one tenant at a time, and starts of its watches. An idle API server of default size has two dozen seats for all
/// ServiceAccounts. A caller takes all but one of them: that is for another replica, which need not wait for an answer to end.
pub(crate) const TENANT_PLACES: usize = 8;
/// Beside these, of watches that run already, whose legs begin anew: they wait behind nobody who comes new.
const RUNNING_PLACES: usize = 8;
/// Longest time with a place, and how long after its head a watch may have one again.
const LASTS: Duration = Duration::from_secs(5);
/// A watch that is waited at for so long has no first objects left to be read, where no marker says so.
const QUIET: Duration = Duration::from_millis(50);

/// Of one member.
#[derive(Debug, Default)]
pub(crate) struct Places {
    lists: Keyed<Arc<str>, Tenant>,
    starts: Keyed<Arc<str>, Tenant>,
}

/// What the start of a watch has to tell first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum First {
    /// The state, as events: behind the last of them comes a marker, if the member was asked for one and knows of it.
    State,
    /// What happens from a version on, or from now on.
    Changes,
}

/// One tenant's.
#[derive(Debug)]
struct Tenant {
    new: FairPermits,
    running: FairPermits,
    /// Those that were taken. A mutex: held for a look at the first, and now and then at all.
    taken: Mutex<Queue>,
    /// Of one among those who wait: it takes places back when their time is over, and the others need not wake. Held across an
    /// await, of its own sleep alone: whoever gets its place or goes away hands it on. One that nobody polls keeps it, so the others
    /// look for themselves after [`LASTS`].
    reaping: tokio::sync::Mutex<()>,
}

/// What a place has of its tenant's. Emptied by its owner, or by who waits when its time is over. Locked after the queue of
/// those that were taken, where both are.
#[derive(Debug)]
struct Taken {
    permit: Option<FairPermit>,
    /// It is in the queue, once at most.
    queued: bool,
}

/// What was taken, by when it ends.
#[derive(Debug, Default)]
struct Queue {
    all: VecDeque<(Instant, Arc<Mutex<Taken>>)>,
    /// With so many, those that are given back already are dropped: thousands of watches begin within [`LASTS`].
    full: usize,
}

/// A tenant's place.
#[derive(Debug)]
pub(crate) struct Place {
    stage: Stage,
    running: bool,
    caller: Arc<str>,
    taken: Arc<Mutex<Taken>>,
    of: Entry<Arc<str>, Tenant>,
}

/// For what there is a place.
#[derive(Debug)]
enum Stage {
    /// A list, whose place is its own to the end of its answer.
    List,
    /// A watch of whose head nothing is known, and which has nothing to tell before.
    Head,
    /// A watch whose state comes. Boxed: it is soon over.
    State(Box<Coming>),
    /// A watch that has begun: it has a place while something of it is not read, up to a time.
    Begun(Instant),
}

/// A state that comes as events.
#[derive(Debug)]
struct Coming {
    marker: Marker,
    quiet: Pin<Box<Sleep>>,
}

impl Places {
    /// Waits for a place for a list. `running`: of a watch whose client was answered. Any number may wait: `admit` bounds them.
    /// Safe to drop. `None` never comes: nobody asks for more than there is.
    pub(crate) async fn list(&self, caller: &Caller, running: bool) -> Option<Place> {
        let of = self.lists.entry(caller.tenant(), Tenant::new);
        Place::take(of, (caller, running), Stage::List).await
    }

    /// As [`Self::list`], for the start of a watch.
    pub(crate) async fn start(&self, caller: &Caller, running: bool, first: First) -> Option<Place> {
        let of = self.starts.entry(caller.tenant(), Tenant::new);
        let stage = match first {
            First::Changes => Stage::Head,
            First::State => Stage::State(Box::new(Coming {
                marker: Marker::default(),
                quiet: Box::pin(sleep_until(Instant::now() + QUIET)),
            })),
        };
        Place::take(of, (caller, running), stage).await
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

    fn permits(&self, running: bool) -> &FairPermits {
        if running { &self.running } else { &self.new }
    }

    /// Takes back those whose time is over; when that of the next is.
    fn reap(&self, now: Instant) -> Option<Instant> {
        let mut queue = self.taken.lock();
        while let Some((ends, taken)) = queue.all.front() {
            let mut taken = taken.lock();
            if *ends > now && taken.permit.is_some() {
                return Some(*ends);
            }
            *taken = Taken {
                permit: None,
                queued: false,
            };
            drop(taken);
            queue.all.pop_front();
        }
        None
    }

    async fn enter(&self, caller: &Arc<str>, running: bool) -> Option<FairPermit> {
        let permits = self.permits(running);
        self.reap(Instant::now());
        let reaping = async {
            let mut turn = Box::pin(self.reaping.lock());
            let _turn = loop {
                match tokio::time::timeout(LASTS, turn.as_mut()).await {
                    Ok(turn) => break turn,
                    Err(_) => self.reap(Instant::now()),
                };
            };
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

impl Queue {
    fn push(&mut self, taken: Arc<Mutex<Taken>>, now: Instant) {
        if self.all.len() >= self.full {
            self.all.retain(|(_, taken)| {
                let mut taken = taken.lock();
                taken.queued = taken.permit.is_some();
                taken.queued
            });
            self.full = 2 * (self.all.len() + TENANT_PLACES + RUNNING_PLACES);
        }
        self.all.push_back((now + LASTS, taken));
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
    async fn take(of: Entry<Arc<str>, Tenant>, (caller, running): (&Caller, bool), stage: Stage) -> Option<Self> {
        let caller = name(caller);
        let permit = of.enter(&caller, running).await?;
        let taken = Arc::new(Mutex::new(Taken {
            permit: Some(permit),
            queued: true,
        }));
        of.taken.lock().push(taken.clone(), Instant::now());
        Some(Self {
            stage,
            running,
            caller,
            taken,
            of,
        })
    }

    /// The head of the answer is here.
    pub(crate) fn begun(&mut self) {
        let now = Instant::now();
        match &mut self.stage {
            Stage::Head => self.stage = Stage::Begun(now + LASTS),
            Stage::State(coming) => coming.quiet.as_mut().reset(now + QUIET),
            Stage::List | Stage::Begun(_) => {}
        }
    }

    /// The answer was asked for more: `data`, if there was more. True: there is nothing that it could have a place for again.
    ///
    /// A place is given back when nothing is left to read, never because the last of it was handed on: whoever asks for no
    /// more has not read it.
    pub(super) fn is_over(&mut self, data: Option<&[u8]>, cx: &mut Context<'_>) -> bool {
        let now = Instant::now();
        if let Stage::State(coming) = &mut self.stage {
            if !coming.is_over(data, now, cx) {
                return false;
            }
            self.stage = Stage::Begun(now + LASTS);
        }
        let Stage::Begun(until) = self.stage else {
            return false;
        };
        match data {
            _ if now >= until => return true,
            Some(_) => self.retake(now),
            None => self.give_back(),
        }
        false
    }

    fn give_back(&self) {
        let permit = self.taken.lock().permit.take();
        drop(permit);
    }

    /// Whether or not there is a place free.
    fn retake(&self, now: Instant) {
        if self.taken.lock().permit.is_some() {
            return;
        }
        let mut queue = self.of.taken.lock();
        let known = {
            let mut taken = self.taken.lock();
            taken.permit = Some(self.of.permits(self.running).overdraw(&self.caller));
            std::mem::replace(&mut taken.queued, true)
        };
        if !known {
            queue.push(self.taken.clone(), now);
        }
    }
}

impl Coming {
    /// Whether the state has come, after the answer was asked for more.
    fn is_over(&mut self, data: Option<&[u8]>, now: Instant, cx: &mut Context<'_>) -> bool {
        let Some(data) = data else {
            return self.quiet.as_mut().poll(cx) == Poll::Ready(());
        };
        self.quiet.as_mut().reset(now + QUIET);
        self.marker.is_in(data)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests;
