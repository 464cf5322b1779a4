//! How much there is to give out: to one caller, to all of them, and what a refusal says.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::Semaphore;

use super::Limits;
use super::body::{CONNECTION_WINDOW, STREAM_WINDOW};
use super::waiting::{Memory, Queue, Waiting};
use crate::resource::bulkhead::Bulkhead;
use crate::resource::fair::{FairPermit, FairPermits};
use crate::resource::load::{Level, Load};
use crate::value::fault::{AGAIN_SECONDS, Fault};

/// Unary requests of one caller at a time, and at most half of all.
const CALLER_IN_FLIGHT: usize = 512;
/// Of the memory for requests that wait and whose callers are known, one caller has at most this part: its shard has seven eighths, so an eighth is left to
/// its siblings.
const CALLER_QUEUE: (usize, usize) = (3, 4);
/// Watches, logs and upgrades of one caller, and at most half of all. Operators have some dozen; this is for those that
/// are broken.
const CALLER_STREAMS: usize = 20_000;
/// Lease requests of one caller beyond its bulkhead: an operator has a handful of elections, each with one request at a
/// time.
const CALLER_LEASES: usize = 16;
/// Lease requests beyond the bound on requests: one at a time from as many operators, twice.
const LEASE_RESERVE: usize = 256;
/// A Lease is less than a kilobyte; whoever sends more as one waits like everybody.
pub(super) const LEASE_BYTES: u32 = 64 << 10;
/// Bodies of one caller that the router holds at a time: of the largest four, of the usual 10 KiB more than its bulkhead
/// lets in.
pub(super) const CALLER_BYTES: usize = 32 << 20;
/// Bodies of all callers: eight that send as much as they may leave the memory of a small router in peace.
const ALL_BYTES: usize = 256 << 20;
/// Bytes that may wait unread in a caller's connection: while half of its window is free, the bodies of what was admitted
/// come through past those of what waits.
const QUEUED_BYTES: usize = CONNECTION_WINDOW as usize / 2;

/// What one caller may take.
#[derive(Debug)]
pub(crate) struct CallerBounds {
    pub(super) unary: Bulkhead,
    /// For Leases alone, where `unary` is full.
    pub(super) leases: Bulkhead,
    pub(super) streams: Bulkhead,
    /// Of `unary`, for those that wait for room at a member: the rest is left for other members.
    pub(super) rooms: Bulkhead,
    /// A semaphore of bytes: waiters are served in order, so a large body is not passed for ever by small ones.
    pub(super) bytes: Arc<Semaphore>,
    /// Memory of its requests that may wait, for whatever of these.
    queue: usize,
    waiting: AtomicUsize,
    /// Bytes of the bodies of those who wait.
    queued: AtomicUsize,
}

/// What all callers may take together, shards alike. Permits go with the answers' bodies.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) requests: FairPermits,
    leases: FairPermits,
    streams: FairPermits,
    pub(super) bytes: FairPermits,
    /// Of requests that wait and whose callers are known. Full, whoever need not wait is served on.
    pub(super) queue: Queue,
}

/// A place among all requests, or all streams. Held, not looked at.
pub(super) type Place = FairPermit;

/// A request that waits: counted by its memory, with the bytes that it leaves unread.
pub(super) struct Queued<'a> {
    _memory: Memory,
    caller: &'a CallerBounds,
    waiting: usize,
    bytes: usize,
}

/// What there is no more of. A closed set: the words of the metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bound {
    /// Streams of all.
    Streams,
    /// The caller's requests that wait.
    Caller,
    CallerStreams,
    /// Bytes that wait, of the caller.
    Bytes,
    /// Requests that wait, of all.
    Queue,
    /// It waited up to its deadline.
    Time,
    /// Requests whose callers are not known yet.
    Arrivals,
    /// TokenReviews at one member.
    Reviews,
    /// Requests that a FaultInjection delays.
    Delayed,
}

/// What a request is told that is shed at this load, if it is. Nothing was sent. Those who come again do not come all at once.
pub(super) fn shed(from: Level, load: &Load, modest: impl FnOnce() -> bool) -> Option<Fault> {
    let why = load.sheds(from, modest)?;
    let what = match from {
        Level::Nothing | Level::Singles => "all requests but Leases and what runs already",
        Level::WatchStarts => "lists and starts of watches",
        Level::Lists => "lists",
    };
    Some(Fault::TooManyRequests {
        message: format!("this router is overloaded and sheds {what} for now: {why}"),
        retry_after_seconds: again(),
        cluster: None,
    })
}

/// When to come again.
fn again() -> u32 {
    rand::random_range(1..=AGAIN_SECONDS)
}

impl CallerBounds {
    pub(super) fn new(limits: Limits) -> Self {
        let in_flight = CALLER_IN_FLIGHT.min(limits.requests / 2);
        Self {
            // Those who wait are counted in `Shared::queue`.
            unary: Bulkhead::new(in_flight, usize::MAX),
            rooms: Bulkhead::new(in_flight / 2, 0),
            leases: Bulkhead::new(CALLER_LEASES, 0),
            streams: Bulkhead::new(CALLER_STREAMS.min(limits.streams / 2), 0),
            bytes: Arc::new(Semaphore::new(CALLER_BYTES)),
            queue: limits.waiting_known() / CALLER_QUEUE.1 * CALLER_QUEUE.0,
            waiting: AtomicUsize::new(0),
            queued: AtomicUsize::new(0),
        }
    }
}

impl Shared {
    /// `waiting`: is told what requests that wait take.
    pub(super) fn new(limits: Limits, waiting: Gauge) -> Self {
        Self {
            requests: FairPermits::new(limits.requests),
            leases: FairPermits::new(LEASE_RESERVE),
            streams: FairPermits::new(limits.streams),
            bytes: FairPermits::new(ALL_BYTES),
            queue: Queue::new(limits.waiting_known(), waiting),
        }
    }

    /// Whether what keeps this router busy is not the tenant's doing: its requests are not many, and its streams are not either,
    /// unless others' requests are what is too much.
    pub(super) fn is_modest(&self, tenant: &str) -> bool {
        self.requests.is_modest(tenant) && (self.requests.has_excess() || self.streams.is_modest(tenant))
    }

    /// One of all requests, without waiting. Full, a Lease has the reserve.
    pub(super) fn try_request(&self, tenant: &Arc<str>, lease: bool) -> Option<Place> {
        let free = self.requests.try_take(tenant, 1);
        free.or_else(|| lease.then(|| self.leases.try_take(tenant, 1)).flatten())
    }

    /// A stream may go on for hours: nobody waits for its end.
    pub(super) fn stream(&self, tenant: &Arc<str>) -> Result<Place, Bound> {
        self.streams.try_take(tenant, 1).ok_or(Bound::Streams)
    }

    /// A place among those who wait, with a body of so many bytes.
    pub(super) fn queue<'a>(
        &self,
        tenant: &Arc<str>,
        caller: &'a CallerBounds,
        (waiting, bytes): (Waiting, u32),
    ) -> Result<Queued<'a>, Bound> {
        let memory = self.queue.try_take(tenant, waiting).ok_or(Bound::Queue)?;
        let (waiting, bytes) = (waiting.memory(), bytes.min(STREAM_WINDOW) as usize);
        // Counted before they are judged, and given back by the drop if that is too much.
        let others = caller.waiting.fetch_add(waiting, Ordering::Relaxed);
        let before = caller.queued.fetch_add(bytes, Ordering::Relaxed);
        let queued = Queued {
            _memory: memory,
            caller,
            waiting,
            bytes,
        };
        if others + waiting > caller.queue {
            return Err(Bound::Caller);
        }
        if bytes > 0 && before + bytes > QUEUED_BYTES {
            return Err(Bound::Bytes);
        }
        Ok(queued)
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.caller.waiting.fetch_sub(self.waiting, Ordering::Relaxed);
        self.caller.queued.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Bound {
    pub(super) const ALL: [Self; 9] = [
        Self::Streams,
        Self::Caller,
        Self::CallerStreams,
        Self::Bytes,
        Self::Queue,
        Self::Time,
        Self::Arrivals,
        Self::Reviews,
        Self::Delayed,
    ];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Streams => "streams",
            Self::Caller => "caller",
            Self::CallerStreams => "caller_streams",
            Self::Bytes => "bytes",
            Self::Queue => "queue",
            Self::Time => "time",
            Self::Arrivals => "arrivals",
            Self::Reviews => "reviews",
            Self::Delayed => "delayed",
        }
    }

    /// What the client is told. Nothing was sent, so it may come again.
    pub(super) fn fault(self) -> Fault {
        let message = match self {
            Self::Streams => "this router serves as many streams as it may, or as many of this shard",
            Self::Caller => {
                "this caller has as many requests under way and waiting as it may, or as many at slow members"
            }
            Self::CallerStreams => "this caller has as many streams open as it may",
            Self::Bytes => "this caller has as many bytes of request bodies under way as it may",
            Self::Queue => "as many requests wait in this router as may",
            Self::Time => "other requests left no room for this one in time",
            Self::Arrivals => "this router is finding out the callers of as many requests as it may",
            Self::Reviews => "the tokens of other callers left no time for their member cluster to review this one",
            Self::Delayed => "a FaultInjection delays as many requests of this caller as may wait",
        };
        Fault::TooManyRequests {
            message: message.to_owned(),
            retry_after_seconds: again(),
            cluster: None,
        }
    }
}
