//! Long requests that a new snapshot would plan otherwise: their answers are ended, or go on under the new plan.
//!
//! A request is ruled by its routing to its end, but a watch, a followed log or a shell has no end of its own: after each
//! swap, and when a member serves their kind otherwise than before, they are planned anew. One whose caller has vanished or may no longer ask ends as if the member had ended
//! it; a watch of one member that would now be of another, or of other objects, ends with 410, because a client that merely
//! watched again would go on from where it was and never see what came or went with the change. A merged watch is handed
//! its new plan instead and mends itself. Temporary refusals (a cordon, a version that a member does not serve yet) end
//! nothing that runs. A merged watch of a namespace that was nowhere ends when the hub says that it is somewhere. Not asked again here: `access`, whose answers no swap changes. Callers: `edge` registers, its
//! answers and `fanout` poll; `dispatch` asks for a write that is about to leave.

mod seen;
mod somewhere;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use dashmap::DashMap;
use futures::task::AtomicWaker;
use parking_lot::Mutex;
use portolan_crds::selector::Selector;
use portolan_runtime::Tasks;
use tokio::sync::watch;

pub(crate) use self::seen::current;
use self::seen::{Basis, OneLeg, Seen};
use crate::decision::plan::choose::By;
use crate::decision::plan::{self, FanOut, Forward, Need, Plan};
use crate::resource::routing::{Routing, RoutingStore};
use crate::resource::writes::Writes;
use crate::stage::reply;
use crate::value::classify::ApiRequest;
use crate::value::fault::Fault;
use crate::value::media::Media;
use crate::value::snapshot::{Caller, Snapshot};

const UNTOLD: &str = "the hub does not tell of this caller any more";

/// Why an answer is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The caller may not ask this any more, or not of this router.
    Withdrawn,
    /// It would be answered by another member, or with other objects.
    Changed,
}

impl Verdict {
    /// What a watch says before it ends: nothing, or the error that makes its client list again.
    pub(crate) fn last_event(self, format: Media) -> Option<Bytes> {
        let fault = || Fault::Expired("the caller's shard has changed: list again".to_owned());
        (self == Self::Changed).then(|| reply::error_event(&fault(), format))
    }
}

/// What is to become of a merged watch.
#[derive(Debug, Clone)]
pub(crate) enum FanVerdict {
    /// To end, see [`Verdict`]. `Changed`: with 410.
    Over(Verdict),
    /// Targets, holds or what members serve are new: reconnect with these from now on. No stream is touched.
    Renewed(Arc<FanOut>),
    /// Other legs, or other objects of some: hand it to the merge core.
    Replanned(Arc<FanOut>),
}

/// All long requests of this process.
#[derive(Debug)]
pub(crate) struct Replanner {
    routing: Arc<RoutingStore>,
    // Sharded locks: each request adds and removes itself; nothing is planned under them.
    open: DashMap<u64, Arc<Open>>,
    /// Number of the next one.
    next: AtomicU64,
    /// Nothing is planned any more: what may end is to.
    drains: AtomicBool,
}

/// One of them. Small: there is one per watch.
#[derive(Debug)]
struct Open {
    asked: ApiRequest,
    /// A mutex: one task plans, and the request itself when it begins and takes its new plan.
    seen: Mutex<Seen>,
    /// A [`Word`]: polled with every frame, so it must cost nothing.
    word: AtomicU8,
    waker: AtomicWaker,
}

/// What was found last. The order is the order of weight: a lighter word never replaces a heavier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
enum Word {
    Same,
    Renewed,
    Replanned,
    Changed,
    Withdrawn,
}

/// A registered request; dropped, it is forgotten.
#[derive(Debug)]
pub(crate) struct Watched {
    id: u64,
    open: Arc<Open>,
    all: Arc<Replanner>,
}

/// A registered merged watch.
#[derive(Debug)]
pub(crate) struct WatchedFan(Watched);

impl Replanner {
    pub(crate) fn new(routing: Arc<RoutingStore>) -> Arc<Self> {
        Arc::new(Self {
            routing,
            open: DashMap::new(),
            next: AtomicU64::new(0),
            drains: AtomicBool::new(false),
        })
    }

    /// Plans all of them anew after each swap and each change of kinds, until cancelled: then it tells them to end.
    pub(crate) async fn run(self: Arc<Self>, tasks: Tasks) {
        let stop = tasks.token();
        let runs = async {
            tokio::select! {
                () = self.follow() => {}
                never = self.look_for_namespaces() => match never {},
            }
        };
        stop.run_until_cancelled(runs).await;
        self.drains.store(true, Ordering::SeqCst);
        let open: Vec<_> = self.open.iter().map(|request| request.clone()).collect();
        for request in open {
            request.waker.wake();
        }
    }

    async fn follow(&self) {
        let (mut swaps, mut kinds) = (self.routing.subscribe(), self.routing.kinds_changes());
        let mut changed = async || {
            tokio::select! {
                changed = swaps.changed() => changed,
                changed = kinds.changed() => changed,
            }
        };
        while let Ok(()) = changed().await {
            let routing = self.routing.load();
            let open: Vec<_> = self.open.iter().map(|request| request.clone()).collect();
            for request in open {
                request.replan(&routing);
            }
        }
    }

    /// Registers a request that was planned with `routing`. What has changed since then is not missed.
    pub(crate) fn watch(
        self: &Arc<Self>,
        forward: &Forward,
        asked: &ApiRequest,
        caller: &Caller,
        routing: &Routing,
    ) -> Watched {
        self.register(Basis::One(OneLeg::of(forward)), asked, caller, routing)
    }

    /// Registers a merged watch.
    pub(crate) fn watch_fan(
        self: &Arc<Self>,
        plan: Arc<FanOut>,
        asked: &ApiRequest,
        caller: &Caller,
        routing: &Routing,
    ) -> WatchedFan {
        WatchedFan(self.register(Basis::Fan(plan), asked, caller, routing))
    }

    /// Counts writes that are open at members.
    pub(crate) fn writes(&self) -> &Arc<Writes> {
        &self.routing.writes
    }

    /// Wakes after each swap.
    pub(crate) fn swaps(&self) -> watch::Receiver<u64> {
        self.routing.subscribe()
    }

    /// Whether a request that `snapshot` planned as `forward` would go out so now; else what a fresh one is answered.
    pub(crate) fn still(
        &self,
        forward: &Forward,
        asked: &ApiRequest,
        caller: &Caller,
        snapshot: &Snapshot,
    ) -> Result<(), Fault> {
        let now = self.routing.load();
        if now.snapshot.generation == snapshot.generation {
            return Ok(());
        }
        let Some(caller) = current(caller, &now.snapshot) else {
            return Err(Fault::Forbidden(UNTOLD.to_owned()));
        };
        let caller = if asked.is_read() {
            caller
        } else {
            self.routing.writing(caller)
        };
        let same = match plan::plan(&caller, asked, &now.snapshot, &now.kinds).plan {
            Plan::Refuse(fault) => return Err(fault),
            Plan::Forward(next) => alike(forward, &next),
            // An object does not move: where it was found it stays. Nor does the body name another Lease. But what was written by a
            // grant is not written without one.
            Plan::Choose(choose) => {
                let same = choose.candidates.iter().any(|next| alike(forward, &next.forward));
                match &choose.by {
                    By::Unowned(unowned) if !same || forward.grant.is_some() => return Err(unowned.refused()),
                    _ => same,
                }
            }
            Plan::DeleteEach(parts) => parts.iter().any(|next| alike(forward, &next.forward)),
            Plan::FanOut(_) | Plan::Review(_) | Plan::Discovery(_) | Plan::Local(_) => false,
        };
        if same {
            return Ok(());
        }
        Err(forward.unavailable(format!(
            "the shard has changed while the request waited to be sent to member cluster {}: send it again",
            forward.target.cluster
        )))
    }

    /// The caller and the merged plan of a request as they are now, and what they were made with; else what a fresh one is
    /// answered.
    pub(crate) fn merged_now(
        &self,
        asked: &ApiRequest,
        caller: &Caller,
    ) -> Result<(Caller, FanOut, Arc<Routing>), Fault> {
        let now = self.routing.load();
        let Some(caller) = current(caller, &now.snapshot) else {
            return Err(Fault::Forbidden(UNTOLD.to_owned()));
        };
        match plan::plan(&caller, asked, &now.snapshot, &now.kinds).plan {
            Plan::FanOut(plan) => Ok((caller, *plan, now)),
            Plan::Refuse(fault) => Err(fault),
            _ => Err(Fault::Expired("the caller's shard has changed: list again".to_owned())),
        }
    }

    fn register(self: &Arc<Self>, rests_on: Basis, asked: &ApiRequest, caller: &Caller, routing: &Routing) -> Watched {
        let open = Arc::new(Open {
            asked: asked.clone(),
            seen: Mutex::new(Seen::new(rests_on, asked, caller, routing)),
            word: AtomicU8::new(Word::Same as u8),
            waker: AtomicWaker::new(),
        });
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.insert(id, open.clone());
        // Registered first: a change from now on is seen by `run`, an earlier one here.
        let now = self.routing.load();
        let revision = |routing: &Routing| (routing.snapshot.generation, routing.kinds.revision());
        if revision(&now) != revision(routing) {
            open.replan(&now);
        }
        let all = self.clone();
        Watched { id, open, all }
    }
}

impl Watched {
    /// The verdict, or a wake-up when there is one.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Option<Verdict> {
        self.open.waker.register(cx.waker());
        self.open.verdict()
    }

    /// Whether the router drains. To be asked after [`Self::poll`], which is woken then as well.
    pub(crate) fn drains(&self) -> bool {
        self.all.drains.load(Ordering::SeqCst)
    }

    /// Waits for a verdict.
    pub(crate) async fn ended(&self) -> Verdict {
        std::future::poll_fn(|cx| self.poll(cx).map_or(Poll::Pending, Poll::Ready)).await
    }
}

impl WatchedFan {
    /// What is new, once; or a wake-up when there is something. The end is told again and again.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Option<FanVerdict> {
        self.0.open.waker.register(cx.waker());
        self.0.open.take()
    }

    /// As [`Watched::drains`].
    pub(crate) fn drains(&self) -> bool {
        self.0.drains()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.all.open.remove(&self.id);
    }
}

impl Open {
    fn word(&self) -> Word {
        match self.word.load(Ordering::Acquire) {
            1 => Word::Renewed,
            2 => Word::Replanned,
            3 => Word::Changed,
            4 => Word::Withdrawn,
            _ => Word::Same,
        }
    }

    fn verdict(&self) -> Option<Verdict> {
        match self.word() {
            Word::Withdrawn => Some(Verdict::Withdrawn),
            Word::Changed => Some(Verdict::Changed),
            Word::Same | Word::Renewed | Word::Replanned => None,
        }
    }

    fn take(&self) -> Option<FanVerdict> {
        if self.word() == Word::Same {
            return None;
        }
        // Under the lock, so that no newer plan's word is wiped out.
        let seen = self.seen.lock();
        if let Some(over) = self.verdict() {
            return Some(FanVerdict::Over(over));
        }
        let word = self.word();
        self.word.store(Word::Same as u8, Ordering::Release);
        let Basis::Fan(plan) = &seen.rests_on else { return None };
        match word {
            Word::Replanned => Some(FanVerdict::Replanned(plan.clone())),
            _ => Some(FanVerdict::Renewed(plan.clone())),
        }
    }

    fn replan(&self, routing: &Routing) {
        if self.verdict().is_some() {
            return;
        }
        {
            let mut seen = self.seen.lock();
            let word = seen.replan(&self.asked, routing);
            if word <= self.word() {
                return;
            }
            self.say(word);
        }
        self.waker.wake();
    }

    /// Under the lock of `seen`.
    fn say(&self, word: Word) {
        self.word.store(word as u8, Ordering::Release);
    }
}

/// Whether two plans of one request send the same to the same member, after the same looks.
fn alike(one: &Forward, other: &Forward) -> bool {
    one.target.cluster == other.target.cluster
        && one.target.cluster_uid == other.target.cluster_uid
        && one.rewrite == other.rewrite
        && looks(one) == looks(other)
        && one.act_as == other.act_as
        && (!says_its_epoch(one) || one.grant == other.grant)
}

/// A write that would say another epoch by now would be refused by its member.
fn says_its_epoch(forward: &Forward) -> bool {
    forward.grant.as_ref().is_some_and(|grant| grant.fenced)
}

/// By what the object is looked at, before and after. What the router itself sends for a caller looks at less of it, as the rest was
/// looked at before, and at an object's path where the caller's request had another.
fn looks(forward: &Forward) -> BTreeSet<&Selector> {
    let looks = forward.needs.iter().filter_map(|need| match need {
        Need::Labels(check) => Some(&check.selector),
        Need::Body(rule) => Some(&rule.selector),
        _ => None,
    });
    looks.collect()
}
