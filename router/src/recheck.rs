//! Long requests that a new snapshot would plan otherwise: their answers are ended.
//!
//! A request is ruled by its snapshot to its end, but a watch, a followed log or a shell has no end of its own: after
//! each swap they are planned anew. One whose caller has vanished or may no longer ask ends as if the member had ended
//! it; a watch that would now be of another member or selector ends with 410, because a client that merely watched again
//! would go on from where it was and never see what came or went with the change. Temporary refusals (a cordon, labels
//! that are not complete) end nothing that runs. Not asked again here: `access`, whose answers no swap changes. Callers:
//! `edge` registers, its answers poll.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};

use futures::task::AtomicWaker;
use parking_lot::Mutex;
use portolan_crds::selector::Selector;
use portolan_runtime::Tasks;

use crate::classify::{ApiRequest, Impersonation};
use crate::plan::{self, Forward, Plan, Rule};
use crate::snapshot::{Caller, Snapshot, SnapshotStore};

/// Why an answer is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The caller may not ask this any more, or not of this router.
    Withdrawn,
    /// It would be answered by another member, or with other objects.
    Changed,
}

/// All long requests of this process.
#[derive(Debug)]
pub(crate) struct Recheck {
    snapshots: Arc<SnapshotStore>,
    // A mutex: held to add, remove or copy the list; nothing is planned under it.
    open: Mutex<Registered>,
}

#[derive(Debug, Default)]
struct Registered {
    next: u64,
    requests: HashMap<u64, Arc<Open>>,
}

/// One of them. Small: there is one per watch.
#[derive(Debug)]
struct Open {
    asked: ApiRequest,
    /// A mutex: one task judges, and the request itself once when it begins.
    seen: Mutex<Seen>,
    /// A [`Verdict`], or 0.
    verdict: AtomicU8,
    waker: AtomicWaker,
}

/// What the plan in force rests on. Holds no target: an old one would live as long as the watch.
#[derive(Debug)]
struct Seen {
    caller: Caller,
    cluster: Arc<str>,
    cluster_uid: String,
    /// Of the target.
    version: String,
    selector: Option<Selector>,
    act_as: Impersonation,
}

/// A registered request; dropped, it is forgotten.
#[derive(Debug)]
pub(crate) struct Watched {
    id: u64,
    open: Arc<Open>,
    all: Arc<Recheck>,
}

impl Recheck {
    pub(crate) fn new(snapshots: Arc<SnapshotStore>) -> Arc<Self> {
        let open = Mutex::default();
        Arc::new(Self { snapshots, open })
    }

    /// Judges all of them after each swap, until cancelled.
    pub(crate) async fn run(self: Arc<Self>, tasks: Tasks) {
        let mut swaps = self.snapshots.subscribe();
        let stop = tasks.token();
        while let Some(Ok(())) = stop.run_until_cancelled(swaps.changed()).await {
            swaps.borrow_and_update();
            let snapshot = self.snapshots.load();
            let open: Vec<_> = self.open.lock().requests.values().cloned().collect();
            for request in open {
                request.judge(&snapshot);
            }
        }
    }

    /// Registers a request that was planned with `snapshot`. Swaps since then are not missed.
    pub(crate) fn watch(
        self: &Arc<Self>,
        forward: &Forward,
        asked: &ApiRequest,
        caller: &Caller,
        snapshot: &Snapshot,
    ) -> Watched {
        let open = Arc::new(Open {
            asked: asked.clone(),
            seen: Mutex::new(Seen::new(forward, caller)),
            verdict: AtomicU8::new(0),
            waker: AtomicWaker::new(),
        });
        let id = {
            let mut registered = self.open.lock();
            registered.next += 1;
            let id = registered.next;
            registered.requests.insert(id, open.clone());
            id
        };
        // Registered first: a swap from now on is seen by `run`, an earlier one here.
        let now = self.snapshots.load();
        if now.generation != snapshot.generation {
            open.judge(&now);
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

    /// Waits for a verdict.
    pub(crate) async fn ended(&self) -> Verdict {
        std::future::poll_fn(|cx| self.poll(cx).map_or(Poll::Pending, Poll::Ready)).await
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.all.open.lock().requests.remove(&self.id);
    }
}

impl Open {
    fn verdict(&self) -> Option<Verdict> {
        match self.verdict.load(Ordering::Acquire) {
            1 => Some(Verdict::Withdrawn),
            2 => Some(Verdict::Changed),
            _ => None,
        }
    }

    fn judge(&self, snapshot: &Snapshot) {
        if self.verdict().is_some() {
            return;
        }
        let Some(verdict) = self.seen.lock().judge(&self.asked, snapshot) else {
            return;
        };
        let word = match verdict {
            Verdict::Withdrawn => 1,
            Verdict::Changed => 2,
        };
        self.verdict.store(word, Ordering::Release);
        self.waker.wake();
    }
}

impl Seen {
    fn new(forward: &Forward, caller: &Caller) -> Self {
        Self {
            caller: caller.clone(),
            cluster: forward.target.cluster.clone(),
            cluster_uid: forward.target.cluster_uid.clone(),
            version: forward.target.version.clone(),
            selector: forward.rewrite.selector.clone(),
            act_as: forward.act_as.clone(),
        }
    }

    /// What `snapshot` makes of the request; remembers it if it may go on.
    fn judge(&mut self, asked: &ApiRequest, snapshot: &Snapshot) -> Option<Verdict> {
        let caller = match &self.caller {
            Caller::Person { .. } => self.caller.clone(),
            Caller::Pod(view) => match snapshot.callers.get(&view.key) {
                Some(now) => Caller::Pod(now.clone()),
                None => return Some(Verdict::Withdrawn),
            },
        };
        let same_view = same(&caller, &self.caller);
        // Of the usual swap most of them need no more than this.
        let target = snapshot.targets.get(&self.cluster);
        if same_view && target.is_some_and(|target| target.version == self.version) {
            return None;
        }
        let planned = plan::plan(&caller, asked, snapshot);
        let forward = match planned.plan {
            Plan::Forward(forward) => forward,
            Plan::Refuse(_) if matches!(planned.rule, Rule::Cordoned | Rule::LabelsIncomplete) => {
                // What it would be filtered by then is not known.
                return (!same_view).then_some(Verdict::Changed);
            }
            Plan::Refuse(_) | Plan::Local(_) => return Some(Verdict::Withdrawn),
        };
        let next = Self::new(&forward, &caller);
        if next.act_as != self.act_as {
            return Some(Verdict::Withdrawn);
        }
        let kept =
            next.cluster == self.cluster && next.cluster_uid == self.cluster_uid && next.selector == self.selector;
        *self = next;
        (!kept).then_some(Verdict::Changed)
    }
}

fn same(one: &Caller, other: &Caller) -> bool {
    match (one, other) {
        (Caller::Pod(one), Caller::Pod(other)) => Arc::ptr_eq(one, other) || one == other,
        _ => one == other,
    }
}
