//! A client's body before its request is admitted: how much of it there may be, and nothing of it is read.
//!
//! What was admitted has bytes reserved for all that the router may have to gather of it: what the client says of its
//! length, or, where it says nothing, the most that there may be.

use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http_body::Body as _;
use hyper::body::Incoming;

use crate::resource::upstream::{Body, ClientBody, MAX_BODY_BYTES};
use crate::value::fault::Fault;

/// Request bytes under way to us and not read yet, per stream of an HTTP/2 connection.
pub(crate) const STREAM_WINDOW: u32 = 256 << 10;
/// Request bytes under way to us and not read yet, over all streams of an HTTP/2 connection.
pub(crate) const CONNECTION_WINDOW: u32 = 4 << 20;

/// A body of which nothing is read yet.
#[derive(Debug)]
pub(crate) struct Arriving {
    /// `None`: there is none.
    incoming: Option<Incoming>,
    limit: u64,
    bytes: u32,
}

impl Arriving {
    /// A length that is over the bound is refused at once. `long`: a stream, of which nothing is gathered.
    pub(crate) fn bounded(long: bool, head: &Parts, incoming: Incoming) -> Result<Self, Fault> {
        let limit = if long { u64::MAX } else { MAX_BODY_BYTES };
        let length = head.headers.get(CONTENT_LENGTH);
        let length: Option<u64> = length.and_then(|value| value.to_str().ok()?.parse().ok());
        if length.is_some_and(|length| length > limit) {
            return Err(Fault::TooLarge { limit });
        }
        if incoming.is_end_stream() {
            return Ok(Self {
                incoming: None,
                limit,
                bytes: 0,
            });
        }
        let most = if long { 0 } else { length.unwrap_or(limit) };
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

    /// To be read from now on.
    pub(crate) fn admitted(self) -> Body {
        match self.incoming {
            None => Body::Empty,
            Some(incoming) => Body::Client(ClientBody::new(incoming, self.limit)),
        }
    }
}
