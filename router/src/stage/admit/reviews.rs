//! TokenReviews at members: a bound of their own for each member, because they come before a caller is known.
//!
//! Only tokens that a member's own key signed come as far as a review, one at a time each, however many requests have the
//! token. So what a token says of its owner is true, if not new: whose turn is next goes by the tenants that tokens are of.
//! Whoever can have many signed keeps those of its own shard waiting, and Pods of no shard wait for each other. No queue is
//! bounded here: who waits for a review has arrived (`arrive`), which is.

use std::sync::Arc;
use std::time::Duration;

use super::Admit;
use super::bounds::Bound;
use crate::resource::bulkhead::{Bulkhead, Permit};
use crate::resource::fair::{FairPermit, FairPermits};
use crate::resource::keyed::{Entry, Keyed};
use crate::value::fault::Fault;

/// Reviews at one member at a time. A review takes it some milliseconds, so these are thousands a second.
const IN_FLIGHT: usize = 64;
/// Reviews at one member beyond these that Leases wait for, and as many that wait for this.
const LEASES: usize = 8;
/// How long a review waits for its turn: as long as a client has to become known. When a router starts again, the tokens of
/// all callers of a member are new to it.
const WAIT: Duration = Duration::from_secs(10);

/// The reviews under way, by member.
pub(super) type Reviews = Keyed<Arc<str>, AtMember>;

/// The reviews at one member.
#[derive(Debug)]
pub(crate) struct AtMember {
    all: FairPermits,
    /// For those that Leases wait for.
    leases: Bulkhead,
}

/// The right to one review. The permit is dropped before what it is counted in.
pub(crate) struct ReviewPermit {
    _permit: Result<FairPermit, Permit>,
    _member: Entry<Arc<str>, AtMember>,
}

impl AtMember {
    fn new() -> Self {
        Self {
            all: FairPermits::new(IN_FLIGHT),
            leases: Bulkhead::new(LEASES, LEASES),
        }
    }
}

impl Admit {
    /// Waits for the right to have `member` review a token of this tenant; 429 if that takes too long. `lease`: is over when a
    /// Lease waits for this review, for which there is a reserve. Safe to drop.
    pub(crate) async fn review(
        &self,
        member: &Arc<str>,
        tenant: &Arc<str>,
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
                Ok(reserve) = reserve => Some(Err(reserve)),
                // Always some: nobody takes more than there are.
                turn = member.all.take(tenant, 1) => turn.map(Ok),
            }
        };
        match tokio::time::timeout(WAIT, entered).await {
            Ok(Some(permit)) => Ok(ReviewPermit {
                _permit: permit,
                _member: member,
            }),
            Ok(None) | Err(_) => Err(self.refused(Bound::Reviews)),
        }
    }
}
