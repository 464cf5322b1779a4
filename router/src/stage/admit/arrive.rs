//! Requests whose callers are not known yet.
//!
//! Who is known already does not come here. What a token's first request waits for is a review at a member, and many may
//! wait at a time: for a member that is slow, or all at once when this router has just started. They are bounded by the
//! memory that they take, all that wait for one member together and fairly by the tenants that their tokens are of. Those of
//! one token wait for one review (`identify`). Caller: `identify`.

use std::sync::Arc;

use super::Admit;
use super::bounds::Bound;
use super::waiting::{Memory, Waiting};
use crate::resource::bulkhead::{Bulkhead, Permit};
use crate::resource::fair::{FairPermit, FairPermits};
use crate::resource::keyed::{Entry, Keyed};
use crate::value::fault::Fault;

/// Those who wait for one member have this part of the memory for all who wait: one that is slow, or lies, keeps nobody of
/// another from being known.
const MEMBER_PART: usize = 4;
/// Leases of the callers of one member beyond these: some dozen operators that start together.
const MEMBER_LEASES: usize = 64;

/// All requests that arrive.
#[derive(Debug)]
pub(super) struct Arrivals {
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
    pub(crate) lease: bool,
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
    pub(super) fn new(memory: usize) -> Self {
        Self {
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

impl AtMember {
    fn new(memory: usize) -> Self {
        Self {
            memory: FairPermits::new(memory),
            leases: Bulkhead::new(MEMBER_LEASES, 0),
        }
    }
}

impl Admit {
    /// The right to wait until a member has said who sends a request; 429 if too much waits for that.
    pub(crate) fn arrive(&self, request: &Arrival<'_>) -> Result<Arrived, Fault> {
        let most = self.arrivals.per_member;
        let member = self
            .arrivals
            .members
            .entry(request.member.clone(), || AtMember::new(most));
        let memory = || {
            let waiting = Waiting::of_head(request.head);
            // As one among tenants: no shard's name, nor a person's, is like this.
            let all = format!("member {}", request.member).into();
            Some(ArrivalPermit::Memory {
                _member: member.memory.try_take(request.tenant, waiting.memory())?,
                _all: self.shared.queue.try_take(&all, waiting)?,
            })
        };
        let reserve = || {
            let lease = request.lease.then(|| member.leases.try_enter())??;
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
