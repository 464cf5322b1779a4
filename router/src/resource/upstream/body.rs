//! Bodies as they cross the router: frame by frame, never copied, never gathered.
//!
//! One enum instead of boxes: what a body is depends on its direction alone, and a watch should not cost an allocation
//! per layer. Callers: `edge` makes them of clients' requests, `exchange` of members' answers, `reply` of Status texts.

pub(super) mod member;

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use thiserror::Error;
use tokio::time::{Instant, Sleep, sleep_until};

use self::member::MemberStream;
use super::said::plainly;

/// Largest request body but for streams into Pods. An API server takes 3 MiB by default, and large custom resources
/// may be allowed more.
pub(crate) const MAX_BODY_BYTES: u64 = 8 << 20;

/// Why a body ended before its end. The receiver's stream is reset: half a list must never look like a whole one.
#[derive(Debug, Clone, Error)]
pub(crate) enum BodyError {
    #[error("the request body is larger than {limit} bytes")]
    TooLarge { limit: u64 },
    #[error("the client's request body ended early: {0}")]
    Client(String),
    #[error("the body did not arrive in time")]
    Late,
    #[error("member cluster {cluster} ended the answer early: {reason}")]
    Member { cluster: Arc<str>, reason: String },
    #[error("the caller may not see this any more, or would see something else")]
    Replanned,
    #[error("the sender may not ask for this any more")]
    Revoked,
    #[error("member cluster {cluster} did not finish its answer in time")]
    Deadline { cluster: Arc<str> },
    #[error("the answer was not over in time")]
    Overdue,
    /// The name of the fault, `<namespace>/<name>/<rule>`.
    #[error("cut by FaultInjection {0}, as ordered")]
    Injected(String),
}

/// A request or response body.
#[derive(Debug, Default)]
pub(crate) enum Body {
    #[default]
    Empty,
    /// All of it is here.
    Whole(Bytes),
    /// A client's request, bounded.
    Client(ClientBody),
    /// A member's answer over HTTP/2.
    Member(Box<MemberStream>),
    /// A member's answer over HTTP/1.1: an upgrade that was refused.
    Http1 { incoming: Incoming, cluster: Arc<str> },
    /// An answer made of several members' answers.
    Merged(Merged),
}

/// Boxed, because `fanout` makes it and this module must not know of it.
pub(crate) struct Merged(
    Pin<Box<dyn http_body::Body<Data = Bytes, Error = BodyError> + Send>>,
    Option<Ending>,
);

/// How an answer came to its end; a word of the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Ended {
    /// The whole answer was handed over.
    Complete,
    /// The client went away, or its connection did.
    ClientGone,
    /// The answer broke off: the client's stream was reset, or, of a watch, ended between two events.
    Broken,
    /// A watch that was ended for a shutdown.
    Drained,
    /// A swap took away or changed what it showed.
    Replanned,
    /// The right that it rests on was taken away.
    Revoked,
    /// A fault that was ordered ended it.
    Injected,
}

impl Ended {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::ClientGone => "client-gone",
            Self::Broken => "broken",
            Self::Drained => "drained",
            Self::Replanned => "replanned",
            Self::Revoked => "revoked",
            Self::Injected => "injected",
        }
    }
}

/// How a body that the router made came to its end; told by the body, read by who handed it on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ending(Arc<OnceLock<Ended>>);

impl Ending {
    /// The first word counts.
    pub(crate) fn set(&self, ended: Ended) {
        let _ = self.0.set(ended);
    }
}

impl Merged {
    pub(crate) fn new(body: impl http_body::Body<Data = Bytes, Error = BodyError> + Send + 'static) -> Self {
        Self(Box::pin(body), None)
    }

    /// Of a body that tells how it ends.
    pub(crate) fn ending(
        body: impl http_body::Body<Data = Bytes, Error = BodyError> + Send + 'static,
        ending: Ending,
    ) -> Self {
        Self(Box::pin(body), Some(ending))
    }
}

impl std::fmt::Debug for Merged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Merged")
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        if bytes.is_empty() {
            Self::Empty
        } else {
            Self::Whole(bytes)
        }
    }
}

/// A client's request body that may exceed no bound, neither in length nor in time.
#[derive(Debug)]
pub(crate) struct ClientBody {
    incoming: Incoming,
    limit: u64,
    left: u64,
    /// Over when all of it must have come. Boxed: answers, too, are as large as the largest body.
    late: Option<Pin<Box<Sleep>>>,
    delivered: Delivered,
}

/// Whether a client has handed over the whole of its request. Clones are of the same request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Delivered(Arc<AtomicBool>);

impl Delivered {
    pub(crate) fn whole() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl ClientBody {
    /// `limit` in bytes; `u64::MAX` is none.
    pub(crate) fn new(incoming: Incoming, limit: u64, until: Option<Instant>) -> Self {
        Self {
            incoming,
            limit,
            left: limit,
            late: until.map(|until| Box::pin(sleep_until(until))),
            delivered: Delivered::default(),
        }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.incoming).poll_frame(cx) else {
            let Some(late) = &mut self.late else {
                return Poll::Pending;
            };
            return late.as_mut().poll(cx).map(|()| Some(Err(BodyError::Late)));
        };
        if frame.is_none() || self.incoming.is_end_stream() {
            self.delivered.0.store(true, Ordering::Relaxed);
        }
        Poll::Ready(frame.map(|frame| {
            let frame = frame.map_err(|error| BodyError::Client(error.to_string()))?;
            let length = frame.data_ref().map_or(0, Bytes::len) as u64;
            self.left = self
                .left
                .checked_sub(length)
                .ok_or(BodyError::TooLarge { limit: self.limit })?;
            Ok(frame)
        }))
    }
}

impl Body {
    /// Follows how much of it has come from the client.
    pub(crate) fn delivered(&self) -> Delivered {
        match self {
            Self::Client(body) => body.delivered.clone(),
            _ => Delivered::whole(),
        }
    }

    /// Of a member's answer: whoever reads it says how long it may take.
    pub(crate) fn clear_deadline(&mut self) {
        if let Self::Member(stream) = self {
            stream.clear_deadline();
        }
    }

    /// How a body that is over came to its end, by its own word.
    pub(crate) fn ended(&self) -> Ended {
        let told = match self {
            Self::Merged(Merged(_, Some(ending))) => ending.0.get().copied(),
            _ => None,
        };
        told.unwrap_or(Ended::Complete)
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut *self {
            Self::Empty => Poll::Ready(None),
            Self::Whole(_) => {
                let Self::Whole(bytes) = std::mem::take(&mut *self) else {
                    return Poll::Ready(None);
                };
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Self::Client(body) => body.poll_frame(cx),
            Self::Member(stream) => stream.poll_frame(cx),
            Self::Merged(merged) => merged.0.as_mut().poll_frame(cx),
            Self::Http1 { incoming, cluster } => {
                let frame = ready!(Pin::new(incoming).poll_frame(cx));
                Poll::Ready(frame.map(|frame| {
                    frame.map_err(|error| BodyError::Member {
                        cluster: cluster.clone(),
                        reason: plainly(&error),
                    })
                }))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Whole(_) => false,
            Self::Client(body) => body.incoming.is_end_stream(),
            Self::Member(stream) => stream.is_end_stream(),
            Self::Merged(merged) => merged.0.is_end_stream(),
            Self::Http1 { incoming, .. } => incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Client(body) => body.incoming.size_hint(),
            // The member's own content-length header travels; a hint would only be compared with it.
            Self::Member(_) => SizeHint::default(),
            Self::Merged(merged) => merged.0.size_hint(),
            Self::Http1 { incoming, .. } => incoming.size_hint(),
        }
    }
}
