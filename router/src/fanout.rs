//! Runs a plan over members of a shard: a LIST or WATCH of the merged view, one answer made of many (design 5).
//!
//! Also of one member: the same code serves one leg and many. `leg` asks a member, `list` and `watch` make the answer with
//! the pure core of `portolan-merge`; both are bodies that read their legs when hyper reads them, without a task of their
//! own, so back-pressure needs no code. Not here: which members (`plan`), connections and retries (`dispatch`). Caller:
//! `edge`, which has asked for what the plan wants checked.

pub(crate) mod find;
pub(crate) mod leg;
mod list;

use std::sync::Arc;

use http::Response;

pub(crate) use self::leg::Asking;
use crate::dispatch::{Dispatcher, Places};
use crate::fault::Fault;
use crate::plan::FanOut;
use crate::snapshot::{Snapshot, SnapshotStore};
use crate::upstream::Body;

/// The stage. One per process.
pub(crate) struct FanOuts {
    pub(crate) dispatcher: Arc<Dispatcher>,
    /// For reconnects of watches: credentials are of their time.
    pub(crate) snapshots: Arc<SnapshotStore>,
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
        let place = self
            .dispatcher
            .caller_place(&fan.asking.caller, fan.plan.watch, false)
            .await?;
        let response = list::list(self, fan).await?;
        Ok(Fanned {
            response,
            places: Places::of_caller(place),
        })
    }
}
