//! Runs a plan over members of a shard: a LIST or WATCH of the merged view, one answer made of many
//! (`docs/semantics.md#lists`, `docs/semantics.md#watches`).
//!
//! Also of one member: the same code serves one leg and many. `leg` asks a member, `list` and `watch` make the answer with
//! the pure core of `portolan-merge`; both are bodies that read their legs when hyper reads them, without a task of their
//! own, so back-pressure needs no code. `leg` has `preflight` ask what the plan needs of each member, before it is sent
//! anything: legs come and connect anew while a watch runs. Not here: which members (`plan`), connections and retries
//! (`dispatch`). Caller: `edge`.

mod absence;
mod connect;
mod delete;
pub(crate) mod fence;
mod gzip;
pub(crate) mod leg;
mod list;
pub(crate) mod listing;
pub(crate) mod metrics;
pub(crate) mod open;
mod partial;
pub(crate) mod replicate;
pub(crate) mod socket;
mod stream;
pub(crate) mod table;
mod watch;
pub(crate) mod young;

use std::sync::Arc;

use http::header::WARNING;
use http::{Response, StatusCode};
use parking_lot::Mutex;
use portolan_merge::cursor::Cursor;
use portolan_merge::query::CollectionQuery;
use portolan_merge::resume::{Comeback, Resume, Resumed, Stream};
use portolan_merge::watch::{Budget, Sent};
use tokio::sync::Semaphore;

pub(crate) use self::leg::Asking;
use self::listing::Turns;
use self::open::OpenWatches;
use self::young::YoungKinds;
use crate::decision::plan::FanOut;
use crate::decision::rewrite;
use crate::resource::routing::{Routing, RoutingStore};
use crate::resource::upstream::Body;
use crate::stage::dispatch::Dispatcher;
use crate::stage::preflight::Preflight;
use crate::stage::replan::Replanner;
use crate::stage::reply;
use crate::value::fault::Fault;
use crate::value::media::Media;

/// What all open watches may remember of keys together: some 100 bytes per object, so half a million of them.
pub(crate) const SHADOW_BYTES: usize = 64 << 20;
/// What all unions of names may remember together, which end without it: apart, so that others' memories never end them, and
/// larger, because
/// a relist of many is the dearer thing.
pub(crate) const NAMES_BYTES: usize = 256 << 20;

/// What all open watches may hold of large events that are not whole yet, together: some of the largest there are.
pub(crate) const FRAME_BYTES: usize = 64 << 20;

/// What all lists may hold of members that they have not come to yet, together: ten of those that hold the most.
pub(crate) const AHEAD_BYTES: usize = 256 << 20;

/// Until a client asks again that has seen more than this router can know without the hub.
const HUB_AWAY_SECONDS: u32 = 2;

/// The stage. One per process.
pub(crate) struct FanOuts {
    pub(crate) dispatcher: Arc<Dispatcher>,
    /// Asked about each leg.
    pub(crate) preflight: Arc<Preflight>,
    /// For reconnects of watches: connections and credentials are of their time.
    pub(crate) routing: Arc<RoutingStore>,
    /// Tells open watches of swaps.
    pub(crate) replanner: Arc<Replanner>,
    pub(crate) open: Arc<OpenWatches>,
    /// What watches have sent. A mutex: taken when a watch begins and ends, for a look at its caller's others.
    pub(crate) resume: Mutex<Resume>,
    /// What open watches remember of keys, together.
    pub(crate) shadows: Budget,
    /// What unions remember of names, together.
    pub(crate) names: Budget,
    /// What they hold of events that are not whole yet, together.
    pub(crate) frames: Budget,
    /// Of members that list what clients hold.
    pub(crate) turns: Turns,
    /// Kinds that were brought to the members a moment ago.
    pub(crate) young: YoungKinds,
    /// Bytes that lists may read ahead, together.
    pub(crate) ahead: Arc<Semaphore>,
}

/// One request to several members.
pub(crate) struct Fan {
    pub(crate) plan: FanOut,
    pub(crate) asking: Asking,
    /// The one that it was planned with.
    pub(crate) routing: Arc<Routing>,
}

impl FanOuts {
    /// One permit of the caller is for the whole, however many legs; `admit` gave it.
    pub(crate) async fn run(self: &Arc<Self>, fan: Fan) -> Result<Response<Body>, Fault> {
        let fan = self.caught_up(fan).await?;
        if fan.plan.watch {
            watch::watch(self, fan).await
        } else {
            list::list(self, fan).await
        }
    }

    /// A client that was told by another router of a newer view of its shard is answered once this router has it too: its own
    /// would take back what the client was told.
    async fn caught_up(&self, fan: Fan) -> Result<Fan, Fault> {
        let query = &fan.asking.asked.query;
        let query = CollectionQuery::parse(|key| query.first(key).map(Into::into));
        if !query.may_be_newer(&fan.plan.universe) {
            return Ok(fan);
        }
        self.routing.catch_up.wait().await.map_err(|_| Fault::TooManyRequests {
            message:
                "the client has seen a newer view of its shard at another router, and the hub cannot be asked for it"
                    .to_owned(),
            retry_after_seconds: HUB_AWAY_SECONDS,
            cluster: None,
        })?;
        let Fan { asking, .. } = fan;
        let (caller, plan, routing) = self.replanner.merged_now(&asking.asked, &asking.caller)?;
        let asking = Asking { caller, ..asking };
        Ok(Fan { plan, asking, routing })
    }

    fn memory(&self, plan: &FanOut) -> &Budget {
        if plan.unique { &self.names } else { &self.shadows }
    }

    /// A watch begins.
    fn begin(self: &Arc<Self>, asking: &Asking, plan: &FanOut) -> Told {
        let stream = self.resume.lock().begin(list::whose(asking, plan));
        Told::new(self, stream)
    }

    /// Where a client stands whose last object had this version, and the watch that goes on from there.
    fn resume(self: &Arc<Self>, asking: &Asking, plan: &FanOut, raw: u64) -> Option<(Cursor, Told)> {
        let comes = Comeback {
            whose: list::whose(asking, plan),
            version: raw,
            universe: &plan.universe,
            alone: self.routing.alone.lasts(),
        };
        match self.resume.lock().find(self.open.uptime(), comes) {
            Resumed::At(cursor, stream) => Some((cursor, Told::new(self, stream))),
            Resumed::Gone | Resumed::Unknown => None,
        }
    }
}

/// What one watch tells its client, which may come back with the version of an object of it. It ends when this is dropped.
struct Told {
    fanouts: Arc<FanOuts>,
    stream: Option<Stream>,
}

impl Told {
    fn new(fanouts: &Arc<FanOuts>, stream: Stream) -> Self {
        Self {
            fanouts: fanouts.clone(),
            stream: Some(stream),
        }
    }

    /// For what writes it.
    fn sent(&self) -> Sent {
        self.stream.as_ref().map(Stream::sent).unwrap_or_default()
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take() {
            self.fanouts.resume.lock().end(self.fanouts.open.uptime(), stream);
        }
    }
}

/// A member's own answer. Where several were asked, it says whose it is: the Status does not, and each decides for itself
/// who may, which fields it selects by, which versions it keeps. What none of them serves is none's alone.
fn named(plan: &FanOut, cluster: &str, response: Response<Body>) -> Response<Body> {
    let own = response.status().is_client_error() && response.status() != StatusCode::NOT_FOUND;
    signed(plan, cluster, response, own)
}

/// A refusal of one member that was asked for all: what is wrong with the words of a request is so everywhere, so only what
/// is its own says whose it is.
fn refused_by(plan: &FanOut, cluster: &str, response: Response<Body>) -> Response<Body> {
    let own = [
        StatusCode::UNAUTHORIZED,
        StatusCode::FORBIDDEN,
        StatusCode::TOO_MANY_REQUESTS,
    ];
    let own = own.contains(&response.status());
    signed(plan, cluster, response, own)
}

fn signed(plan: &FanOut, cluster: &str, mut response: Response<Body>, own: bool) -> Response<Body> {
    if own && plan.legs.len() > 1 {
        let text = format!("member cluster {cluster} answered {}", response.status());
        let warning = rewrite::warning(&text).map(|value| (WARNING, value));
        response.headers_mut().extend(warning);
    }
    response
}

/// An answer of the router's own among those of members.
fn own_answer(fault: &Fault, media: Media) -> Response<Body> {
    reply::reply(fault, media).map(Body::from)
}

#[cfg(test)]
mod tests;
