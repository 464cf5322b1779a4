//! TokenReviews at members: a bound of their own for each member, because they come before a caller is known.
//!
//! Only tokens that a member's own key signed come as far as a review, one at a time each. Whoever can have many signed
//! must not keep others from being known: while permits are scarce, one source address has a part of them. Only then,
//! because many clients share one address behind a balancer. All wait before they are refused.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::Admit;
use super::bounds::Bound;
use crate::resource::bulkhead::{Bulkhead, Full, Permit};
use crate::resource::keyed::{Entry, Keyed};
use crate::value::fault::Fault;

/// Reviews at one member at a time. A review takes it some milliseconds, so these are thousands a second.
const IN_FLIGHT: usize = 64;
/// Reviews that wait for one member.
const QUEUE: usize = 1024;
/// Reviews at one member beyond these that Leases wait for, and as many that wait for this.
const LEASES: usize = 8;
/// How long a review waits for its turn.
const WAIT: Duration = Duration::from_secs(5);
/// One source address has this part of all while they are scarce.
const ADDRESS_PART: usize = 8;

/// The reviews under way, by member.
pub(super) type Reviews = Keyed<Arc<str>, AtMember>;

/// The reviews at one member.
#[derive(Debug)]
pub(crate) struct AtMember {
    all: Shares,
    /// For those that Leases wait for.
    leases: Bulkhead,
}

/// Permits of which no source address takes all.
#[derive(Debug)]
pub(crate) struct Shares {
    all: Bulkhead,
    /// Permits of one address while they are scarce.
    in_flight: usize,
    queue: usize,
    addresses: Keyed<IpAddr, Bulkhead>,
}

/// One permit of [`Shares`].
pub(crate) struct Share {
    _all: Permit,
    _own: Option<(Permit, Entry<IpAddr, Bulkhead>)>,
}

/// The right to one review. The permit is dropped before what it is counted in.
pub(crate) struct ReviewPermit {
    _permit: Result<Share, Permit>,
    _member: Entry<Arc<str>, AtMember>,
}

impl AtMember {
    fn new() -> Self {
        Self {
            all: Shares::new(IN_FLIGHT, QUEUE),
            leases: Bulkhead::new(LEASES, LEASES),
        }
    }
}

impl Shares {
    pub(crate) fn new(in_flight: usize, queue: usize) -> Self {
        Self {
            all: Bulkhead::new(in_flight, queue),
            in_flight: (in_flight / ADDRESS_PART).max(1),
            queue: queue / ADDRESS_PART,
            addresses: Keyed::default(),
        }
    }

    pub(crate) async fn enter(&self, address: IpAddr) -> Result<Share, Full> {
        if !self.all.is_scarce()
            && let Some(all) = self.all.try_enter()
        {
            return Ok(Share { _all: all, _own: None });
        }
        let entry = self
            .addresses
            .entry(address, || Bulkhead::new(self.in_flight, self.queue));
        let own = entry.enter().await?;
        let all = self.all.enter().await?;
        Ok(Share {
            _all: all,
            _own: Some((own, entry)),
        })
    }
}

impl Admit {
    /// Waits for the right to have `member` review a token; 429 if too many do. `lease`: is over when a Lease waits for this
    /// review, for which there is a reserve. Safe to drop.
    pub(crate) async fn review(
        &self,
        member: &Arc<str>,
        address: IpAddr,
        lease: impl Future<Output = ()>,
    ) -> Result<ReviewPermit, Fault> {
        let member = self.reviews.entry(member.clone(), AtMember::new);
        let reserve = async {
            lease.await;
            member.leases.enter().await
        };
        let entered = async {
            tokio::select! {
                biased;
                Ok(reserve) = reserve => Ok(Err(reserve)),
                share = member.all.enter(address) => share.map(Ok),
            }
        };
        match tokio::time::timeout(WAIT, entered).await {
            Ok(Ok(permit)) => Ok(ReviewPermit {
                _permit: permit,
                _member: member,
            }),
            Ok(Err(Full)) | Err(_) => Err(self.refused(Bound::Reviews)),
        }
    }
}
