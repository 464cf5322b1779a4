//! Requests whose callers are not known yet.
//!
//! Who is known already does not come here. What a token's first request waits for is a review at a member, and many may
//! wait at a time: for a member that is slow, or for one that somebody keeps busy. So their number is bounded, and what
//! one connection, the callers of one member and, while they are scarce, one source address may take of it. Caller:
//! `identify`.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;

use super::Admit;
use super::bounds::Bound;
use super::reviews::{Share, Shares};
use crate::resource::bulkhead::{Bulkhead, Full, Permit};
use crate::resource::keyed::{Entry, Keyed};
use crate::value::classify::ApiRequest;
use crate::value::fault::Fault;

/// One connection has this part of all at a time, the rest of its streams waits.
const CONNECTION_PART: usize = 8;
/// Those who wait for one member have this part of all, and as many wait for that: one that is slow, or lies, keeps
/// nobody of another from being known.
const MEMBER_PART: usize = 4;
/// Leases of the callers of one member beyond these: some dozen operators that start together.
const MEMBER_LEASES: usize = 64;
/// Streams of one connection that wait: all that it may have.
const CONNECTION_QUEUE: usize = 4096;
/// For one's turn. Longer than what a member takes for a review that it makes at all.
const WAIT: Duration = Duration::from_secs(5);

/// Where requests come from: one connection.
#[derive(Debug)]
pub(crate) struct Downstream {
    pub(crate) address: IpAddr,
    arriving: Bulkhead,
}

/// All requests that arrive.
#[derive(Debug)]
pub(super) struct Arrivals {
    shares: Shares,
    /// Requests of one connection whose callers are being found out.
    per_connection: usize,
    /// Requests whose callers one member knows.
    per_member: usize,
    members: Keyed<Arc<str>, Waiting>,
}

/// Requests that wait for the word of one member.
#[derive(Debug)]
struct Waiting {
    all: Bulkhead,
    /// For Leases alone, where there is no room among all.
    leases: Bulkhead,
}

/// Held until the caller is known. The permits are dropped before the entry that they are counted in.
pub(crate) struct Arrived {
    _permits: ArrivalPermits,
    _member: Entry<Arc<str>, Waiting>,
}

/// What it took, of the member and of all.
struct ArrivalPermits {
    _member: Permit,
    /// Of the connection and of all; not for Leases that take the reserve.
    _others: Option<(Permit, Share)>,
}

impl Arrivals {
    pub(super) fn new(requests: usize) -> Self {
        Self {
            shares: Shares::new(requests, requests),
            per_connection: requests / CONNECTION_PART,
            per_member: requests / MEMBER_PART,
            members: Keyed::default(),
        }
    }
}

impl Waiting {
    fn new(most: usize) -> Self {
        Self {
            all: Bulkhead::new(most, most),
            leases: Bulkhead::new(MEMBER_LEASES, 0),
        }
    }
}

impl Admit {
    /// A connection's own bounds.
    pub(crate) fn downstream(&self, address: IpAddr) -> Downstream {
        Downstream {
            address,
            arriving: Bulkhead::new(self.arrivals.per_connection, CONNECTION_QUEUE),
        }
    }

    /// Waits for the right to have `member` asked who sends a request; 429 if too many wait for that. Safe to drop.
    pub(crate) async fn arrive(
        &self,
        downstream: &Downstream,
        member: &Arc<str>,
        asked: &ApiRequest,
    ) -> Result<Arrived, Fault> {
        let most = self.arrivals.per_member;
        let member = self.arrivals.members.entry(member.clone(), || Waiting::new(most));
        match self.place(downstream, &member, asked.is_lease()).await {
            Ok(permits) => Ok(Arrived {
                _permits: permits,
                _member: member,
            }),
            Err(Full) => Err(self.refused(Bound::Arrivals)),
        }
    }

    /// A Lease waits for its turn only where the reserve is empty too: an election is lost within seconds.
    async fn place(&self, downstream: &Downstream, member: &Waiting, lease: bool) -> Result<ArrivalPermits, Full> {
        let mut turn = std::pin::pin!(self.turn(downstream, member));
        let full = match turn.as_mut().now_or_never() {
            Some(Ok(permits)) => return Ok(permits),
            outcome => outcome.is_some(),
        };
        if let Some(reserve) = lease.then(|| member.leases.try_enter()).flatten() {
            return Ok(ArrivalPermits {
                _member: reserve,
                _others: None,
            });
        }
        if full {
            return Err(Full);
        }
        tokio::time::timeout(WAIT, turn).await.unwrap_or(Err(Full))
    }

    async fn turn(&self, downstream: &Downstream, member: &Waiting) -> Result<ArrivalPermits, Full> {
        let connection = downstream.arriving.enter().await?;
        let member = member.all.enter().await?;
        let all = self.arrivals.shares.enter(downstream.address).await?;
        Ok(ArrivalPermits {
            _member: member,
            _others: Some((connection, all)),
        })
    }
}
