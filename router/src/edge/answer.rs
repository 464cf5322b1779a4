//! The answer's body on its way to the client: with a deadline or without one.
//!
//! What has a deadline, and watches, are in [`Limited`], because a client that does not read would keep for ever what the answer
//! holds.
//! Caller: `edge`.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use portolan_runtime::Tasks;
use tokio::time::Instant;

use super::limited::Limited;
use super::passing::{Attached, Passing};
use crate::resource::upstream::{Body, BodyError};

/// A response body. Small, as there is one per watch.
pub(crate) enum Answer {
    /// No deadline, or nothing more to wait for.
    Passing(Passing),
    Limited(Limited),
}

impl Answer {
    /// `deadline`: of what ends by itself, for all of it.
    pub(super) fn new(body: Body, attached: Attached, deadline: Option<Instant>, tasks: &Tasks) -> Self {
        let passing = Passing::new(body, attached);
        match deadline {
            Some(deadline) if !passing.is_over() => Self::limited(passing, deadline, tasks),
            None if passing.is_collection() => Self::Limited(Limited::new(passing, None, None, tasks)),
            _ => Self::Passing(passing),
        }
    }

    /// Nothing, or the rest of an answer of which nobody holds anything.
    pub(super) fn of(body: impl Into<Body>) -> Self {
        Self::Passing(Passing::free(body.into()))
    }

    /// Most small answers are here with their head: those hold nothing any more and cost no timer.
    fn limited(mut passing: Passing, deadline: Instant, tasks: &Tasks) -> Self {
        // Nobody is to be woken: whoever sends the answer asks again before it waits.
        let first = match passing.poll_frame(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => None,
            Poll::Ready(None) => return Self::of(Body::Empty),
            Poll::Ready(Some(Ok(frame))) if passing.is_over() => match frame.into_data() {
                Ok(data) => return Self::of(data),
                Err(trailers) => Some(Ok(trailers)),
            },
            Poll::Ready(Some(first)) => Some(first),
        };
        Self::Limited(Limited::new(passing, first, Some(deadline), tasks))
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut *self {
            Self::Passing(passing) => passing.poll_frame(cx),
            Self::Limited(limited) => limited.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Passing(passing) => passing.is_end_stream(),
            Self::Limited(limited) => limited.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Passing(passing) => passing.size_hint(),
            // A length that is known stands in the head.
            Self::Limited(_) => SizeHint::default(),
        }
    }
}
