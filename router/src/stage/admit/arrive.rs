//! Requests whose callers are not known yet.
//!
//! Who is known already is looked up at once and waits for nothing here. What a token's first request waits for is a
//! review at a member, and many may wait at a time: for a member that is slow, or for one that somebody keeps busy. So
//! their number is bounded, and what one connection and, while they are scarce, one source address may take of it.

use std::net::IpAddr;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;

use super::bounds::Bound;
use super::reviews::{Share, Shares};
use super::{Admit, is_lease};
use crate::resource::bulkhead::{Bulkhead, Permit};
use crate::value::classify::ApiRequest;
use crate::value::fault::Fault;

/// One connection has this part of all at a time, the rest of its streams waits.
const CONNECTION_PART: usize = 8;
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
}

/// Held until the caller is known.
pub(crate) struct Arrived {
    _connection: Permit,
    _all: Result<Share, OwnedSemaphorePermit>,
}

impl Arrivals {
    pub(super) fn new(requests: usize) -> Self {
        Self {
            shares: Shares::new(requests, requests),
            per_connection: requests / CONNECTION_PART,
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

    /// Waits for the right to find out who sends a request; 429 if too many do. Safe to drop.
    pub(crate) async fn arrive(&self, source: &Source, asked: &ApiRequest) -> Result<Arrived, Fault> {
        let turn = tokio::time::timeout(WAIT, self.turn(source));
        let outcome = turn.await.unwrap_or(Err(Bound::Arrivals));
        let reserve = |bound| match self.shared.lease().filter(|_| is_lease(asked)) {
            Some(lease) => Ok(Arrived {
                _connection: Permit::default(),
                _all: Err(lease),
            }),
            None => Err(self.refused(bound)),
        };
        outcome.or_else(reserve)
    }

    async fn turn(&self, source: &Source) -> Result<Arrived, Bound> {
        let full = |_| Bound::Arrivals;
        let connection = source.arriving.enter().await.map_err(full)?;
        let all = self.arrivals.shares.enter(source.address).await.map_err(full)?;
        Ok(Arrived {
            _connection: connection,
            _all: Ok(all),
        })
    }
}
