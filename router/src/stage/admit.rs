//! Admission: the one place where a request waits or is turned away, before the first byte of its body is read.
//!
//! Everything that leads to a member passes [`Admit::admit`] once its plan is known and before anything is spent on it:
//! requests to one member, fan-outs, discovery, upgrades, with all the questions that are asked on their behalf. What it
//! took is given back when the answer is over. The order of the checks is that of [`Admit::admit`]; what can be judged
//! without waiting and concerns the one caller comes first, so that nobody holds what others need while it waits for its
//! own:
//!
//! 1. Whether this router is so loaded that it sheds such requests.
//! 2. The caller's bytes: bodies that this router may have to hold at a time.
//! 3. The caller's bulkhead and its queue, in order of arrival.
//! 4. Room at the member, of what goes to one: so many as are served or wait there at a time, shared fairly by shards. A member
//!    that is slow has its callers wait here, where they take nothing that others need; and of each its bulkhead's half at most, so
//!    that its requests to other members go on.
//! 5. Bytes and permits of all callers. A caller's own bounds are a share of these, so none takes them all; and shards share
//!    them fairly, so that one with many callers does not, either.
//!
//! Who must wait waits up to its deadline, and is turned away at once only where too much waits already: counted by the memory
//! that it takes (`waiting`), not by number, for when a router starts again all its clients come at once.
//!
//! Injected faults ([`Admit::put_off`]) stand before these: what a test of an operator breaks must break whatever else is going on.
//! The limits of CircuitBreakers (`resource::policies`) come once nothing is shed: who is over one waits in no queue, and takes
//! nothing of others'. What a later check refuses, or whose client goes before, gets its tokens back.
//!
//! Two bounds come before a caller is known, because finding out who it is costs a member a review: [`arrive`] and
//! [`reviews`]. Leases have a reserve in each of them, which they take before they wait: a router that sheds must not make
//! every operator lose its leadership. Not here: the queues before a member (`dispatch`, leg by leg). Callers: `edge`,
//! `identify`.

mod arrive;
mod body;
mod bounds;
mod delay;
pub(crate) mod metrics;
mod reviews;
mod shares;
#[cfg(test)]
mod tests;
mod waiting;

use std::sync::Arc;

use http::request::Parts;
use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

pub(crate) use self::arrive::Arrival;
use self::arrive::Arrivals;
pub(crate) use self::body::{Arriving, CONNECTION_WINDOW, Passage, STREAM_WINDOW};
use self::bounds::{Bound, CallerBounds, LEASE_BYTES, Place, Shared};
use self::metrics::AdmitMetrics;
use self::reviews::Reviews;
pub(crate) use self::shares::{Share, Shares};
#[cfg(test)]
pub(crate) use self::waiting::REQUEST_BYTES;
use self::waiting::Waiting;
pub(crate) use self::waiting::{head_bytes, within_memory};
use crate::resource::bulkhead::Permit;
use crate::resource::fair::FairPermit;
use crate::resource::keyed::{Entry, Keyed};
use crate::resource::load::{Level, Load};
use crate::resource::policies::{Judging, Policies};
use crate::resource::queues::{Class, QueueKind, Room};
use crate::resource::upstream::Body;
use crate::value::classify::{ApiRequest, Verb};
use crate::value::fault::Fault;
use crate::value::snapshot::{Caller, CallerId};

/// Bounds that users set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Unary requests in flight.
    pub(crate) requests: usize,
    /// Watches and upgrades in flight.
    pub(crate) streams: usize,
    /// Memory of requests that wait, in bytes.
    pub(crate) waiting: usize,
}

impl Limits {
    /// Of it for requests whose callers are known.
    fn waiting_known(self) -> usize {
        self.waiting - self.waiting_unknown()
    }

    /// Of it for those whose callers are not known yet.
    fn waiting_unknown(self) -> usize {
        self.waiting / 2
    }
}

#[cfg(test)]
impl Default for Limits {
    fn default() -> Self {
        Self {
            requests: 1_000,
            streams: 10_000,
            waiting: 64 << 20,
        }
    }
}

/// The stage. One per process.
pub(crate) struct Admit {
    limits: Limits,
    load: Load,
    arrivals: Arrivals,
    reviews: Reviews,
    callers: Keyed<CallerId, CallerBounds>,
    shared: Shared,
    metrics: AdmitMetrics,
}

/// How long a request goes on, as far as permits are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    /// It ends by itself.
    Unary,
    /// A watch, a followed log, an upgrade.
    Stream {
        /// Members are asked something before it begins.
        asks: bool,
    },
}

/// A request that wants to be admitted.
#[derive(Debug)]
pub(crate) struct Admission<'a> {
    pub(crate) caller: &'a Caller,
    pub(crate) asked: &'a ApiRequest,
    pub(crate) life: Life,
    /// As it came: what it takes is counted where it waits.
    pub(crate) head: &'a Parts,
    /// Bytes of its body that the router may have to hold.
    pub(crate) bytes: u32,
    /// Room at the member that it goes to; `None`: it may go to several, or goes on.
    pub(crate) room: Option<&'a Room>,
    /// It waits no longer.
    pub(crate) deadline: Instant,
    /// What its connection keeps of its last request's caller.
    pub(crate) kept: Option<&'a KeptBounds>,
    /// Who judges it by the limits that hold its caller; `None`: people are held by none.
    pub(crate) judging: Option<(&'a Policies, Judging<'a>)>,
}

/// What a request holds until its answer is over. The permits are dropped before the entry that they are counted in.
#[derive(Debug)]
pub(crate) struct Admitted {
    _permits: Permits,
    /// The caller's and those of all.
    bytes: Option<Box<(OwnedSemaphorePermit, FairPermit)>>,
    /// Of a stream while its questions are asked, which are unary requests; to its end if its body was gathered for them.
    asking: Option<Box<Permits>>,
    /// At its member.
    _room: Option<FairPermit>,
    _caller: Arc<Entry<CallerId, CallerBounds>>,
}

/// What the caller of a connection's last request may take: kept while the connection is open, so that a caller with one
/// request at a time has not all of it made and dropped again for each.
#[derive(Debug, Default)]
pub(crate) struct KeptBounds {
    /// A mutex: held for a comparison.
    last: Mutex<Option<Arc<Entry<CallerId, CallerBounds>>>>,
}

/// The caller's permit and one of all.
type Permits = (Permit, Place);

impl Life {
    /// Of a request to one member.
    pub(crate) fn of_one(long: bool) -> Self {
        if long { Self::Stream { asks: true } } else { Self::Unary }
    }

    /// Of a request to several members, whose legs ask for themselves each time they connect.
    pub(crate) fn of_fan(watch: bool) -> Self {
        if watch {
            Self::Stream { asks: false }
        } else {
            Self::Unary
        }
    }
}

impl Admission<'_> {
    /// Of an election: never shed, and with a reserve of its own in every bound.
    fn is_lease(&self) -> bool {
        let named = self
            .asked
            .resource
            .as_ref()
            .is_some_and(|resource| resource.named_by_path);
        let judging = self.judging.as_ref();
        let election = judging.is_some_and(|(_, judging)| judging.asked.election);
        let lock = election && named && self.asked.verb != Verb::Watch;
        (lock || self.asked.is_lease()) && self.bytes <= LEASE_BYTES
    }

    /// What it takes if it waits, and of its body what it leaves unread then.
    fn waiting(&self) -> (Waiting, u32) {
        (Waiting::of_head(head_bytes(self.head)), self.bytes)
    }

    fn class(&self) -> Class {
        match self.asked.verb {
            _ if self.is_lease() => Class::Lease,
            Verb::List | Verb::Watch => Class::List,
            _ => Class::Single,
        }
    }

    /// From which load on it is not served; `None`: it always is. What watches that run ask does not come here.
    fn sheds_from(&self) -> Option<Level> {
        sheds_from(self.asked.verb, self.is_lease())
    }
}

fn sheds_from(verb: Verb, lease: bool) -> Option<Level> {
    match verb {
        _ if lease => None,
        Verb::List => Some(Level::Lists),
        Verb::Watch => Some(Level::WatchStarts),
        _ => Some(Level::Singles),
    }
}

impl Admitted {
    /// All that is asked before the request leaves has been asked, and this body is left to be sent: one that was gathered
    /// takes what it is long, whatever its client said of it.
    pub(crate) fn asked(&mut self, body: &Body) {
        let gathered = match body {
            Body::Whole(bytes) => bytes.len(),
            _ => 0,
        };
        if gathered == 0 {
            self.asking = None;
        }
        if !matches!(body, Body::Empty | Body::Whole(_)) {
            return;
        }
        if let Some((own, all)) = self.bytes.as_deref_mut() {
            let spare = own.num_permits().saturating_sub(gathered);
            drop(own.split(spare));
            all.keep(gathered);
        }
    }
}

impl Admit {
    pub(crate) fn new(limits: Limits, load: Load, metrics: AdmitMetrics) -> Arc<Self> {
        Arc::new(Self {
            limits,
            load,
            arrivals: Arrivals::new(limits, metrics.waiting.clone()),
            reviews: Reviews::default(),
            callers: Keyed::default(),
            shared: Shared::new(limits, metrics.waiting.clone()),
            metrics,
        })
    }

    /// Waits until the request may go on, up to its deadline; 429 if it may not. Safe to drop.
    pub(crate) async fn admit(&self, admission: &Admission<'_>) -> Result<Admitted, Fault> {
        let modest = || self.shared.is_modest(&admission.caller.tenant());
        let shed = admission
            .sheds_from()
            .and_then(|level| bounds::shed(level, &self.load, modest));
        if let Some(fault) = shed {
            return Err(fault);
        }
        let judged = admission
            .judging
            .as_ref()
            .map(|(policies, judging)| policies.admit(judging));
        let judged = judged.transpose();
        // Given back if what follows refuses, or its client goes while it waits.
        let taken = judged.map_err(|fault| fault.of_request(|| admission.asked.about()))?;
        let admitted = self.checks(admission).await.map_err(|bound| self.refused(bound))?;
        if let Some(taken) = taken {
            taken.keep();
        }
        Ok(admitted)
    }

    /// Bytes of request bodies that are here, or for which there is room kept.
    pub(crate) fn bytes_held(&self) -> usize {
        self.shared.bytes.held()
    }

    async fn checks(&self, admission: &Admission<'_>) -> Result<Admitted, Bound> {
        let caller = self.bounds_of(admission);
        let tenant = admission.caller.tenant();
        let (lease, class, waits) = (admission.is_lease(), admission.class(), &self.metrics.waits);
        let own = async {
            let bytes = self.caller_bytes(&caller, admission, lease).await?;
            let permit = match admission.life {
                Life::Stream { asks: false } => None,
                _ => Some(self.caller_permit(&caller, admission, lease).await?),
            };
            Ok((bytes, permit))
        };
        let (own_bytes, own) = waits.waited(QueueKind::Caller, class, own).await?;
        let room = match admission.room.filter(|_| !lease) {
            Some(room) => Some(self.room(room, &tenant, &caller, admission).await?),
            None => None,
        };
        let all = async {
            let bytes = match own_bytes {
                Some(own) => Some(Box::new((own, self.all_bytes(&tenant, &caller, admission).await?))),
                None => None,
            };
            let unary = match own {
                Some(own) => Some((own, self.request_place(&tenant, &caller, admission, lease).await?)),
                None => None,
            };
            Ok((bytes, unary))
        };
        let (bytes, unary) = waits.waited(QueueKind::Tenant, class, all).await?;
        let (permits, asking) = match (admission.life, unary) {
            (Life::Unary, Some(unary)) => (unary, None),
            (_, asking) => {
                let own = caller.streams.try_enter().ok_or(Bound::CallerStreams)?;
                ((own, self.shared.stream(&tenant)?), asking.map(Box::new))
            }
        };
        Ok(Admitted {
            _permits: permits,
            bytes,
            asking,
            _room: room,
            _caller: caller,
        })
    }

    /// Where it may be served, or wait for that while it holds what others may need.
    async fn room(
        &self,
        room: &Room,
        tenant: &Arc<str>,
        caller: &CallerBounds,
        admission: &Admission<'_>,
    ) -> Result<FairPermit, Bound> {
        if let Some(permit) = room.permits.try_take(tenant, 1) {
            return Ok(permit);
        }
        // It keeps its permit of the bulkhead meanwhile.
        let _own = caller.rooms.try_enter().ok_or(Bound::Caller)?;
        let waiting = self.wait(caller, admission, room.permits.take(tenant, 1));
        let member = QueueKind::Member(&room.cluster);
        let waited = self.metrics.waits.waited(member, admission.class(), waiting);
        waited.await?.ok_or(Bound::Time)
    }

    fn bounds_of(&self, admission: &Admission<'_>) -> Arc<Entry<CallerId, CallerBounds>> {
        let kept = || admission.kept?.last.lock().clone();
        if let Some(bounds) = kept().filter(|bounds| bounds.key().is_of(admission.caller)) {
            return bounds;
        }
        let id = CallerId::of(admission.caller);
        let bounds = Arc::new(self.callers.entry(id, || CallerBounds::new(self.limits)));
        if let Some(kept) = admission.kept {
            // What was kept before is dropped without the lock.
            let _before = kept.last.lock().replace(bounds.clone());
        }
        bounds
    }

    /// `None` for what has no body, and for Leases, whose number and size bound their bytes.
    async fn caller_bytes(
        &self,
        caller: &CallerBounds,
        admission: &Admission<'_>,
        lease: bool,
    ) -> Result<Option<OwnedSemaphorePermit>, Bound> {
        if admission.bytes == 0 || lease {
            return Ok(None);
        }
        let of = &caller.bytes;
        if let Ok(bytes) = of.clone().try_acquire_many_owned(admission.bytes) {
            return Ok(Some(bytes));
        }
        // Never closed.
        let waiting = async { of.clone().acquire_many_owned(admission.bytes).await.ok() };
        let bytes = self.wait(caller, admission, waiting).await?;
        bytes.map(Some).ok_or(Bound::Bytes)
    }

    async fn all_bytes(
        &self,
        tenant: &Arc<str>,
        caller: &CallerBounds,
        admission: &Admission<'_>,
    ) -> Result<FairPermit, Bound> {
        let (of, bytes) = (&self.shared.bytes, admission.bytes as usize);
        if let Some(bytes) = of.try_take(tenant, bytes) {
            return Ok(bytes);
        }
        let waited = self.wait(caller, admission, of.take(tenant, bytes)).await?;
        waited.ok_or(Bound::Bytes)
    }

    async fn request_place(
        &self,
        tenant: &Arc<str>,
        caller: &CallerBounds,
        admission: &Admission<'_>,
        lease: bool,
    ) -> Result<Place, Bound> {
        if let Some(place) = self.shared.try_request(tenant, lease) {
            return Ok(place);
        }
        let waited = self.wait(caller, admission, self.shared.requests.take(tenant, 1));
        waited.await?.ok_or(Bound::Time)
    }

    async fn caller_permit(
        &self,
        caller: &CallerBounds,
        admission: &Admission<'_>,
        lease: bool,
    ) -> Result<Permit, Bound> {
        let leases = lease.then_some(&caller.leases);
        let free = caller.unary.try_enter().or_else(|| leases?.try_enter());
        if let Some(permit) = free {
            return Ok(permit);
        }
        let entered = self.wait(caller, admission, async { caller.unary.enter().await.ok() });
        entered.await?.ok_or(Bound::Caller)
    }

    /// In the queue, which is bounded: by memory, by bytes that wait unread in the client's connection, by time.
    async fn wait<T>(
        &self,
        caller: &CallerBounds,
        admission: &Admission<'_>,
        waiting: impl Future<Output = Option<T>>,
    ) -> Result<Option<T>, Bound> {
        let _queued = self
            .shared
            .queue(&admission.caller.tenant(), caller, admission.waiting())?;
        let waited = tokio::time::timeout_at(admission.deadline, waiting).await;
        waited.map_err(|_| Bound::Time)
    }

    fn refused(&self, bound: Bound) -> Fault {
        self.metrics.refused(bound);
        bound.fault()
    }
}
