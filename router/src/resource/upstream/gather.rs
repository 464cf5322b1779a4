//! Bodies whole in memory, bounded: what must be read before it goes on. Everything else streams.
//!
//! Callers: `preflight` and `dispatch` for requests, whoever asks a member something of the router's own for answers.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;

use super::{Body, BodyError, MAX_BODY_BYTES};
use crate::value::fault::Fault;

/// The whole body of a client's request, which stays there to be sent.
pub(crate) async fn gather_request(body: &mut Body) -> Result<Bytes, Fault> {
    let limit = usize::try_from(MAX_BODY_BYTES).unwrap_or(usize::MAX);
    let bytes = gather(std::mem::take(body), limit).await.map_err(|error| match error {
        BodyError::TooLarge { limit } => Fault::TooLarge { limit },
        other => Fault::BadRequest(other.to_string()),
    })?;
    *body = Body::from(bytes.clone());
    Ok(bytes)
}

/// All of a body. The usual one frame is not copied.
pub(crate) async fn gather(mut body: Body, limit: usize) -> Result<Bytes, BodyError> {
    let mut first = Bytes::new();
    let mut rest: Option<BytesMut> = None;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        let length = rest.as_ref().map_or(first.len(), BytesMut::len) + data.len();
        if length > limit {
            return Err(BodyError::TooLarge { limit: limit as u64 });
        }
        if let Some(rest) = &mut rest {
            rest.extend_from_slice(&data);
        } else if first.is_empty() {
            first = data;
        } else {
            let mut joined = BytesMut::with_capacity(length * 2);
            joined.extend_from_slice(&first);
            joined.extend_from_slice(&data);
            rest = Some(joined);
        }
    }
    Ok(rest.map_or(first, BytesMut::freeze))
}
