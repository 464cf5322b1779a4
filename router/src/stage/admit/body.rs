//! A client's body before its request is admitted: how much of it there may be, and nothing of it is read.
//!
//! What was admitted has bytes reserved for all that the router may have to gather of it: what the client says of its
//! length, or, where it says nothing, the most that there may be at a time. Not in steps as it comes: bodies that hold some
//! and wait for more would wait for each other.

use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http_body::Body as _;
use hyper::body::Incoming;
use tokio::time::Instant;

use crate::resource::upstream::{Body, ClientBody, MAX_BODY_BYTES};
use crate::value::fault::Fault;

/// Request bytes under way to us and not read yet, per stream of an HTTP/2 connection.
pub(crate) const STREAM_WINDOW: u32 = 256 << 10;
/// Request bytes under way to us and not read yet, over all streams of an HTTP/2 connection.
pub(crate) const CONNECTION_WINDOW: u32 = 4 << 20;

/// Of a streamed body whose length is not known no more is here at a time: the client's window, and what is buffered for
/// the member.
const STREAMED_BYTES: u64 = 1 << 20;

/// What becomes of a body, and with it how much of it the router holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passage {
    /// It is read to its end before any of it is sent.
    Gathered,
    /// It is sent on as it comes, and ends.
    Streamed,
    /// It is sent on for as long as the client likes: into a Pod.
    Endless,
}

impl Passage {
    /// `long`: of a stream. `gathers`: by its plan.
    pub(crate) fn of(long: bool, gathers: bool) -> Self {
        match (gathers, long) {
            (true, _) => Self::Gathered,
            (false, false) => Self::Streamed,
            (false, true) => Self::Endless,
        }
    }

    /// The most that it may be long, and the bytes to be reserved, of a body whose client says this length.
    fn bounds(self, length: Option<u64>) -> Result<(u64, u64), Fault> {
        let (limit, most) = match self {
            Self::Gathered => (MAX_BODY_BYTES, length.unwrap_or(MAX_BODY_BYTES)),
            Self::Streamed => (MAX_BODY_BYTES, length.unwrap_or(STREAMED_BYTES)),
            Self::Endless => (u64::MAX, 0),
        };
        match length {
            Some(length) if length > limit => Err(Fault::TooLarge { limit }),
            _ => Ok((limit, most)),
        }
    }
}

/// A body of which nothing is read yet.
#[derive(Debug)]
pub(crate) struct Arriving {
    /// `None`: there is none.
    incoming: Option<Incoming>,
    limit: u64,
    bytes: u32,
}

impl Arriving {
    /// A length that is over the bound is refused at once.
    pub(crate) fn bounded(passage: Passage, head: &Parts, incoming: Incoming) -> Result<Self, Fault> {
        let length = head.headers.get(CONTENT_LENGTH);
        let (limit, most) = passage.bounds(length.and_then(|value| value.to_str().ok()?.parse().ok()))?;
        if incoming.is_end_stream() {
            return Ok(Self {
                incoming: None,
                limit,
                bytes: 0,
            });
        }
        Ok(Self {
            incoming: Some(incoming),
            limit,
            bytes: u32::try_from(most).unwrap_or(u32::MAX),
        })
    }

    /// To be reserved for it.
    pub(crate) fn bytes(&self) -> u32 {
        self.bytes
    }

    /// To be read from now on. One that ends must have come until then.
    pub(crate) fn admitted(self, until: Instant) -> Body {
        let until = (self.limit != u64::MAX).then_some(until);
        match self.incoming {
            None => Body::Empty,
            Some(incoming) => Body::Client(ClientBody::new(incoming, self.limit, until)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_gathered_is_reserved_for() {
        let reserved = |long, gathers, length| Passage::of(long, gathers).bounds(length).map(|(_, most)| most);
        for long in [false, true] {
            assert_eq!(reserved(long, true, Some(10)), Ok(10));
            assert_eq!(reserved(long, true, None), Ok(MAX_BODY_BYTES));
            let large = reserved(long, true, Some(MAX_BODY_BYTES + 1));
            assert!(matches!(large, Err(Fault::TooLarge { .. })), "{large:?}");
        }
        assert_eq!(reserved(true, false, None), Ok(0));
        assert_eq!(reserved(true, false, Some(u64::MAX)), Ok(0));
        assert_eq!(reserved(false, false, Some(10)), Ok(10));
        assert_eq!(reserved(false, false, None), Ok(STREAMED_BYTES));
    }
}
