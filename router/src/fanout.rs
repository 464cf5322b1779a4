//! Runs a plan over members of a shard: a LIST or WATCH of the merged view, one answer made of many (design 5).
//!
//! Also of one member: the same code serves one leg and many. `leg` asks a member, `list` and `watch` make the answer with
//! the pure core of `portolan-merge`; both are bodies that read their legs when hyper reads them, without a task of their
//! own, so back-pressure needs no code. Not here: which members (`plan`), connections and retries (`dispatch`). Caller:
//! `edge`, which has asked for what the plan wants checked.

mod accept;
mod connect;
pub(crate) mod fence;
pub(crate) mod find;
mod gzip;
pub(crate) mod leg;
mod list;
pub(crate) mod open;
mod owners;
pub(crate) mod socket;
mod stream;
mod wake;
mod watch;

use std::sync::Arc;

use http::Response;
use parking_lot::Mutex;
use portolan_merge::cursor::Cursor;
use portolan_merge::resume::Resume;
use portolan_merge::watch::{Budget, WatchMerge};
use portolan_runtime::Tasks;

pub(crate) use self::leg::Asking;
use self::open::OpenWatches;
use crate::dispatch::gate::Place;
use crate::dispatch::{Dispatcher, Places};
use crate::fault::Fault;
use crate::plan::FanOut;
use crate::recheck::Recheck;
use crate::reply::{self, Format};
use crate::snapshot::{Snapshot, SnapshotStore};
use crate::upstream::Body;

/// What all open watches may remember of keys together: some 100 bytes per object, so half a million of them.
pub(crate) const SHADOW_BYTES: usize = 64 << 20;

/// What all open watches may hold of large events that are not whole yet, together: some of the largest there are.
pub(crate) const FRAME_BYTES: usize = 64 << 20;

/// The stage. One per process.
pub(crate) struct FanOuts {
    pub(crate) dispatcher: Arc<Dispatcher>,
    /// For reconnects of watches: credentials are of their time.
    pub(crate) snapshots: Arc<SnapshotStore>,
    /// Tells open watches of swaps.
    pub(crate) recheck: Arc<Recheck>,
    pub(crate) open: Arc<OpenWatches>,
    /// What ended watches had sent. A mutex: taken when a watch ends, and when a client has no cursor to go on from.
    pub(crate) resume: Mutex<Resume>,
    /// What open watches remember of keys, together.
    pub(crate) shadows: Budget,
    /// What they hold of events that are not whole yet, together.
    pub(crate) frames: Budget,
    /// Cancelled when the router drains.
    pub(crate) tasks: Tasks,
}

/// One request to several members.
pub(crate) struct Fan {
    pub(crate) plan: FanOut,
    pub(crate) asking: Asking,
    /// The one that it was planned with.
    pub(crate) snapshot: Arc<Snapshot>,
}

/// The answer, and what it holds of the caller's bulkhead.
pub(crate) struct Fanned {
    pub(crate) response: Response<Body>,
    pub(crate) places: Places,
}

impl FanOuts {
    /// One place of the caller for the whole, however many legs.
    pub(crate) async fn run(self: &Arc<Self>, fan: Fan) -> Result<Fanned, Fault> {
        let place = self.caller_place(&fan).await?;
        let response = if fan.plan.watch {
            watch::watch(self, fan).await?
        } else {
            list::list(self, fan).await?
        };
        Ok(Fanned {
            response,
            places: Places::of_caller(place),
        })
    }

    async fn caller_place(&self, fan: &Fan) -> Result<Place, Fault> {
        let entering = self.dispatcher.caller_place(&fan.asking.caller, fan.plan.watch, false);
        let Some(deadline) = fan.asking.deadline else {
            return entering.await;
        };
        let late = |_| Fault::TooManyRequests {
            message: "this caller's other requests left no room for this one in time".to_owned(),
            retry_after_seconds: 1,
            cluster: None,
        };
        tokio::time::timeout_at(deadline, entering).await.map_err(late)?
    }

    fn remember(&self, asking: &Asking, plan: &FanOut, merge: &WatchMerge) {
        let binding = list::binding(asking, plan);
        self.resume
            .lock()
            .remember(self.open.uptime(), &binding, merge.sent().clone());
    }

    /// Where a client stands whose last object had this version.
    fn resume(&self, asking: &Asking, plan: &FanOut, raw: u64) -> Option<Cursor> {
        let binding = list::binding(asking, plan);
        let cursor = self.resume.lock().find(self.open.uptime(), &binding, raw)?;
        (cursor.epoch() == plan.universe.epoch()).then_some(cursor)
    }
}

/// An answer of the router's own among those of members.
fn own_answer(fault: &Fault, format: Format) -> Response<Body> {
    reply::reply(fault, format).map(Body::from)
}

#[cfg(test)]
mod tests;
