//! Requests that wait, for whatever: how much memory they may take.
//!
//! Not how many: when a router starts again all its clients come at once, and each would be served a moment later. What one
//! costs is its task and its head, whose length is its client's to say. Callers: `admit`, and `arrive` for those who are not
//! known yet; `app` says how much there may be.

use std::sync::Arc;

use http::HeaderMap;
use http::request::Parts;
use prometheus_client::metrics::gauge::Gauge;

use crate::resource::fair::{FairPermit, FairPermits};

/// Of a request that waits, beside its head: its task with all that a request is on its way through the stages, its stream's
/// state, and its connection where it is the only one on that.
pub(crate) const REQUEST_BYTES: usize = 20 << 10;
/// A header's own, beside its bytes.
const HEADER_BYTES: usize = 64;

/// Of the memory limit of this process, what waits has at most this part.
const LIMIT_PART: u64 = 8;

/// A request that is to wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting(usize);

/// The memory for all who wait, shared by tenants.
#[derive(Debug)]
pub(super) struct Queue {
    memory: FairPermits,
    held: Gauge,
}

/// Memory of a request that waits, free again when dropped.
#[derive(Debug)]
pub(super) struct Memory {
    _permit: FairPermit,
    bytes: i64,
    held: Gauge,
}

impl Waiting {
    /// With a head of so many bytes.
    pub(super) fn of_head(head: usize) -> Self {
        Self(REQUEST_BYTES + head)
    }

    pub(super) fn memory(self) -> usize {
        self.0
    }
}

impl Queue {
    /// `held`: is told what is taken.
    pub(super) fn new(memory: usize, held: Gauge) -> Self {
        Self {
            memory: FairPermits::new(memory),
            held,
        }
    }

    /// `None`: there is no more, or no more for this tenant.
    pub(super) fn try_take(&self, tenant: &Arc<str>, waiting: Waiting) -> Option<Memory> {
        let permit = self.memory.try_take(tenant, waiting.memory())?;
        let bytes = i64::try_from(waiting.memory()).unwrap_or(i64::MAX);
        self.held.inc_by(bytes);
        Some(Memory {
            _permit: permit,
            bytes,
            held: self.held.clone(),
        })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.held.dec_by(self.bytes);
    }
}

/// Memory that requests that wait may have: what is wanted, or less where this process has little (`limit`).
pub(crate) fn within_memory(wanted: usize, limit: Option<u64>) -> usize {
    let part = limit.and_then(|limit| usize::try_from(limit / LIMIT_PART).ok());
    part.map_or(wanted, |part| wanted.min(part))
}

/// What the head of a request takes.
pub(crate) fn head_bytes(head: &Parts) -> usize {
    let target = head.uri.path_and_query().map_or(0, |target| target.as_str().len());
    // Once as it came, once as it was read.
    2 * target + headers_bytes(&head.headers)
}

/// What headers take.
fn headers_bytes(headers: &HeaderMap) -> usize {
    let one = |(name, value): (&http::HeaderName, &http::HeaderValue)| name.as_str().len() + value.len() + HEADER_BYTES;
    headers.iter().map(one).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_has_an_eighth_of_a_small_memory() {
        for (limit, bytes) in [(None, 512), (Some(8 << 30), 512), (Some(1 << 30), 128)] {
            assert_eq!(within_memory(512 << 20, limit), bytes << 20, "{limit:?}");
        }
    }
}
