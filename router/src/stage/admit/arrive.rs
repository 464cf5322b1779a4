//! Requests whose callers are not known yet.
//!
//! Who is known already does not come here. What a token's first request waits for is a review at a member, and many may
//! wait at a time: for a member that is slow, or all at once when this router has just started. They are bounded by the
//! memory that they take, of which they have a part of their own: callers that are known and have much waiting keep nobody from
//! being known. All that wait for one member share theirs, fairly by the tenants that their tokens are of. Those of one token
//! wait for one review (`identify`). A router that is overloaded sheds here what it would shed later anyway. Caller: `identify`.

use std::sync::Arc;

use prometheus_client::metrics::gauge::Gauge;

use super::bounds::{self, Bound};
use super::waiting::{Memory, Queue, Waiting};
use super::{Admit, Limits, sheds_from};
use crate::resource::bulkhead::{Bulkhead, Permit};
use crate::resource::fair::{FairPermit, FairPermits};
use crate::resource::keyed::{Entry, Keyed};
use crate::resource::load::Level;
use crate::value::classify::{ApiRequest, ResourceRequest, Verb};
use crate::value::fault::Fault;

/// Those who wait for one member have this part of the memory for all who arrive: one that is slow, or lies, keeps nobody of
/// another from being known.
const MEMBER_PART: usize = 2;
/// Leases of the callers of one member beyond these: some dozen operators that start together.
const MEMBER_LEASES: usize = 64;

/// All requests that arrive.
#[derive(Debug)]
pub(super) struct Arrivals {
    /// Shared by members.
    queue: Queue,
    /// Memory of requests whose callers one member knows.
    per_member: usize,
    members: Keyed<Arc<str>, AtMember>,
}

/// Requests that wait for the word of one member.
#[derive(Debug)]
struct AtMember {
    /// Shared by tenants.
    memory: FairPermits,
    /// For Leases alone, where there is no room.
    leases: Bulkhead,
}

/// What is known of a request before its member was asked.
#[derive(Debug)]
pub(crate) struct Arrival<'a> {
    /// Whose key signed its token.
    pub(crate) member: &'a Arc<str>,
    /// What its token says it is of.
    pub(crate) tenant: &'a Arc<str>,
    /// Bytes of its head.
    pub(crate) head: usize,
    pub(crate) asked: &'a ApiRequest,
}

/// Held until the caller is known. The permits are dropped before the entry that they are counted in.
pub(crate) struct Arrived {
    _permit: ArrivalPermit,
    _member: Entry<Arc<str>, AtMember>,
}

/// What it took.
enum ArrivalPermit {
    /// Of its member's memory, and of that of all who wait.
    Memory { _member: FairPermit, _all: Memory },
    /// Of the reserve of Leases.
    Reserve { _lease: Permit },
}

impl Arrivals {
    /// `held`: is told what requests that wait take.
    pub(super) fn new(limits: Limits, held: Gauge) -> Self {
        let memory = limits.waiting_unknown();
        Self {
            queue: Queue::new(memory, held),
            per_member: memory / MEMBER_PART,
            members: Keyed::default(),
        }
    }

    /// Members that are waited for.
    #[cfg(test)]
    pub(super) fn members(&self) -> usize {
        self.members.len()
    }
}

impl Arrival<'_> {
    /// As in [`Admit::admit`], but for what may be of an election: which lock is one is known with its caller.
    fn sheds_from(&self) -> Option<Level> {
        let resource = self.asked.resource.as_ref();
        let other = self.asked.verb != Verb::Watch && resource.is_some_and(ResourceRequest::may_be_lock);
        let lock = other || self.asked.is_lease();
        sheds_from(self.asked.verb, lock)
    }
}

impl AtMember {
    fn new(memory: usize) -> Self {
        Self {
            memory: FairPermits::new(memory),
            leases: Bulkhead::new(MEMBER_LEASES, 0),
        }
    }
}

impl Admit {
    /// The right to wait until a member has said who sends a request; 429 if too much waits for that, or the router sheds it.
    pub(crate) fn arrive(&self, request: &Arrival<'_>) -> Result<Arrived, Fault> {
        let modest = || self.shared.is_modest(request.tenant);
        let shed = request
            .sheds_from()
            .and_then(|level| bounds::shed(level, &self.load, modest));
        if let Some(fault) = shed {
            return Err(fault);
        }
        let most = self.arrivals.per_member;
        let member = self
            .arrivals
            .members
            .entry(request.member.clone(), || AtMember::new(most));
        let memory = || {
            let waiting = Waiting::of_head(request.head);
            Some(ArrivalPermit::Memory {
                _member: member.memory.try_take(request.tenant, waiting.memory())?,
                _all: self.arrivals.queue.try_take(request.member, waiting)?,
            })
        };
        let reserve = || {
            let lease = request.asked.is_lease().then(|| member.leases.try_enter())??;
            Some(ArrivalPermit::Reserve { _lease: lease })
        };
        match memory().or_else(reserve) {
            Some(permit) => Ok(Arrived {
                _permit: permit,
                _member: member,
            }),
            None => Err(self.refused(Bound::Arrivals)),
        }
    }
}
