//! Requests whose callers are not known yet.
//!
//! Who is known already does not come here. What a token's first request waits for is a review at a member, and many may
//! wait at a time: for a member that is slow, or for one that somebody keeps busy. So their number is bounded, and what
//! one connection, the callers of one member and, while they are scarce, one source address may take of it. Caller:
//! `identify`.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;

use super::Admit;
use super::bounds::Bound;
use super::reviews::{Share, Shares};
use crate::resource::bulkhead::{Bulkhead, Permit};
use crate::resource::keyed::{Entry, Keyed};
use crate::value::classify::ApiRequest;
use crate::value::fault::Fault;

/// One connection has this part of all at a time, the rest of its streams waits.
const CONNECTION_PART: usize = 8;
/// Those who wait for one member have this part of all, and as many wait for that: one that is slow, or lies, keeps
/// nobody of another from being known.
const MEMBER_PART: usize = 4;
/// Streams of one connection that wait: all that it may have.
const CONNECTION_QUEUE: usize = 4096;
/// For one's turn. Longer than what a member takes for a review that it makes at all.
const WAIT: Duration = Duration::from_secs(5);

/// Where requests come from: one connection.
#[derive(Debug)]
pub(crate) struct Source {
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
    members: Keyed<Arc<str>, Bulkhead>,
}

/// Held until the caller is known.
pub(crate) struct Arrived {
    _held: Result<Turn, OwnedSemaphorePermit>,
}

/// A place among all that arrive. The permit of the member is dropped before the entry that it is counted in.
struct Turn {
    _connection: Permit,
    _member: (Permit, Entry<Arc<str>, Bulkhead>),
    _all: Share,
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

impl Admit {
    /// A connection's own bounds.
    pub(crate) fn source(&self, address: IpAddr) -> Source {
        Source {
            address,
            arriving: Bulkhead::new(self.arrivals.per_connection, CONNECTION_QUEUE),
        }
    }

    /// Waits for the right to have `member` asked who sends a request; 429 if too many wait for that. Safe to drop.
    pub(crate) async fn arrive(
        &self,
        source: &Source,
        member: &Arc<str>,
        asked: &ApiRequest,
    ) -> Result<Arrived, Fault> {
        let turn = tokio::time::timeout(WAIT, self.turn(source, member));
        let outcome = turn.await.unwrap_or(Err(Bound::Arrivals));
        let held = outcome.map(Ok).or_else(|bound| {
            let lease = self.shared.lease().filter(|_| asked.is_lease());
            lease.map(Err).ok_or_else(|| self.refused(bound))
        })?;
        Ok(Arrived { _held: held })
    }

    async fn turn(&self, source: &Source, member: &Arc<str>) -> Result<Turn, Bound> {
        let full = |_| Bound::Arrivals;
        let connection = source.arriving.enter().await.map_err(full)?;
        let most = self.arrivals.per_member;
        let entry = self
            .arrivals
            .members
            .entry(member.clone(), || Bulkhead::new(most, most));
        let member = entry.enter().await.map_err(full)?;
        let all = self.arrivals.shares.enter(source.address).await.map_err(full)?;
        Ok(Turn {
            _connection: connection,
            _member: (member, entry),
            _all: all,
        })
    }
}
