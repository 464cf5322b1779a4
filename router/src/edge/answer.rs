//! The answer's body on its way to the client: counted, and ended when the router drains or `recheck` says so.
//!
//! It holds what must live as long as the answer: what `admit` gave and the [`Completion`]. What has a deadline keeps
//! them in [`Limited`], because a client that does not read would keep them for ever. Caller: `edge`.

use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use portolan_runtime::Tasks;
use tokio::time::Instant;
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::limited::Limited;
use super::record::{Completion, Ended};
use super::watch::EventBoundary;
use crate::resource::bulkhead::Permit;
use crate::resource::upstream::{Body, BodyError, MergedEnd};
use crate::stage::admit::Admitted;
use crate::stage::dispatch::upgrade::Tunnel;
use crate::stage::fanout::socket::Socket;
use crate::stage::replan::{Verdict, Watched};
use crate::stage::reply;
use crate::value::fault::Fault;

/// What an answer holds until it is over.
pub(super) struct Held {
    pub(super) completion: Completion,
    pub(super) _admitted: Option<Admitted>,
    /// Of the member's bulkhead.
    pub(super) _permit: Permit,
    /// Ends the trace of what ends by itself.
    pub(super) _span: Option<tracing::Span>,
    /// A watch: what says that the router drains, and where its events end.
    pub(super) drain: Option<(Pin<Box<WaitForCancellationFutureOwned>>, EventBoundary)>,
    /// What goes on for long: says that it must end.
    pub(super) watched: Option<Watched>,
}

/// What goes on after a switch of protocols.
pub(super) enum Carried {
    Tunnel(Tunnel),
    Socket(Socket),
}

impl Carried {
    /// To its end: bytes to the client, and how it ended.
    async fn run(self) -> (std::io::Result<u64>, Ended) {
        match self {
            Self::Tunnel(tunnel) => (tunnel.run().await, Ended::Complete),
            Self::Socket(socket) => {
                let (carried, body) = socket.run().await;
                let ended = match body {
                    Body::Merged(merged) => merged.end().into(),
                    _ => Ended::Complete,
                };
                (carried, ended)
            }
        }
    }
}

/// Why an answer ends before the member ends it.
enum Over {
    Drained,
    Rechecked(Verdict),
}

impl Held {
    /// Runs what was switched to to its end, instead of a body.
    pub(super) async fn carry(mut self, carried: Carried) {
        let verdict = async {
            match &self.watched {
                Some(watched) => watched.ended().await,
                None => std::future::pending().await,
            }
        };
        let carried = tokio::select! {
            carried = carried.run() => Some(carried),
            _ = verdict => None,
        };
        match carried {
            None => self.completion.record.ended = Ended::Rechecked,
            Some((Ok(bytes), ended)) => {
                self.completion.record.bytes = bytes;
                self.completion.record.ended = ended;
            }
            Some((Err(error), _)) => {
                tracing::debug!(%error, "a tunnel broke off");
                self.completion.record.ended = Ended::Broken;
            }
        }
    }
}

/// A response body. Small, as there is one per watch.
pub(crate) enum Answer {
    /// No deadline, or nothing more to wait for.
    Passing(Passing),
    Limited(Limited),
}

/// A body and what it holds, which is boxed once.
pub(crate) struct Passing {
    body: Body,
    /// Dropped at the body's end, not when hyper gets around to drop the body.
    held: Option<Box<Held>>,
}

impl Answer {
    /// `deadline`: of what ends by itself, for all of it.
    pub(super) fn new(body: Body, held: Held, deadline: Option<Instant>, tasks: &Tasks) -> Self {
        let passing = Passing::new(body, held);
        match deadline {
            Some(deadline) if passing.held.is_some() => passing.limited(deadline, tasks),
            _ => Self::Passing(passing),
        }
    }

    pub(super) fn empty() -> Self {
        Self::Passing(Passing {
            body: Body::Empty,
            held: None,
        })
    }
}

impl Passing {
    fn new(body: Body, held: Held) -> Self {
        let mut passing = Self {
            body,
            held: Some(Box::new(held)),
        };
        if passing.body.is_end_stream() {
            passing.end(Ended::Complete);
        }
        passing
    }

    /// Most small answers are here with their head: those hold nothing any more and cost no timer.
    fn limited(mut self, deadline: Instant, tasks: &Tasks) -> Answer {
        // Nobody is to be woken: whoever sends the answer asks again before it waits.
        let first = match self.poll_frame(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => None,
            Poll::Ready(None) => return Answer::empty(),
            Poll::Ready(Some(Ok(frame))) if self.held.is_none() => match frame.into_data() {
                Ok(data) => {
                    let (body, held) = (Body::from(data), None);
                    return Answer::Passing(Self { body, held });
                }
                Err(trailers) => Some(Ok(trailers)),
            },
            Poll::Ready(Some(first)) => Some(first),
        };
        Answer::Limited(Limited::new(self, first, deadline, tasks))
    }

    /// The deadline is over.
    pub(super) fn cut(mut self) {
        if self.held.is_some() {
            tracing::debug!("an answer was not over at its deadline");
        }
        self.end(Ended::Broken);
    }

    fn end(&mut self, ended: Ended) {
        if let Some(held) = &mut self.held {
            held.completion.record.ended = ended;
        }
        self.held = None;
    }

    /// Whether the router wants it to end, as soon as it can.
    fn over(&mut self, cx: &mut Context<'_>) -> Option<Over> {
        let held = self.held.as_mut()?;
        if let Some(verdict) = held.watched.as_ref().and_then(|watched| watched.poll(cx)) {
            return Some(Over::Rechecked(verdict));
        }
        let (token, _) = held.drain.as_mut()?;
        token.as_mut().poll(cx).is_ready().then_some(Over::Drained)
    }

    /// Where events end, if this is a watch whose events can be told apart.
    fn boundary(&self) -> Option<EventBoundary> {
        let (_, boundary) = self.held.as_ref()?.drain.as_ref()?;
        (*boundary != EventBoundary::Unknown).then_some(*boundary)
    }

    /// A watch whose member went, whole events having been passed on: an orderly end lets the client watch on from there,
    /// where a reset would make every informer list anew at once.
    fn breaks_between_events(&self, error: &BodyError) -> bool {
        let member = matches!(error, BodyError::Member { .. });
        member && self.boundary().is_some_and(EventBoundary::is_between_events)
    }

    /// The last frame of an answer that is over: nothing for a watch between two events, but an `ERROR` event where it
    /// would go on with other objects; a reset for what has no such place.
    fn last(&mut self, over: &Over) -> Option<Result<Frame<Bytes>, BodyError>> {
        let boundary = self.boundary();
        self.body = Body::Empty;
        let Over::Rechecked(verdict) = over else {
            self.end(Ended::Drained);
            return None;
        };
        self.end(Ended::Rechecked);
        let Some(boundary) = boundary else {
            return Some(Err(BodyError::Rechecked));
        };
        (*verdict == Verdict::Changed).then(|| {
            let fault = Fault::Expired("the caller's shard has changed: list again".to_owned());
            Ok(Frame::data(reply::error_event(&fault, boundary.format())))
        })
    }
}

impl From<MergedEnd> for Ended {
    fn from(end: MergedEnd) -> Self {
        match end {
            MergedEnd::Complete => Self::Complete,
            MergedEnd::Drained => Self::Drained,
            MergedEnd::Rechecked => Self::Rechecked,
        }
    }
}

impl Passing {
    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let over = self.over(cx);
        if let Some(over) = &over {
            let ends_here = match (over, self.boundary()) {
                (_, Some(boundary)) => boundary.is_between_events(),
                (Over::Rechecked(_), None) => true,
                // Cut at the deadline of the drain.
                (Over::Drained, None) => false,
            };
            if ends_here {
                return Poll::Ready(self.last(over));
            }
        }
        let mut frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        // Of a busy watch hardly a frame ends where an event does.
        if let (Some(_), Some(boundary), Some(Ok(whole))) = (&over, self.boundary(), &frame)
            && let Some(data) = whole.data_ref()
            && let Some(end) = boundary.first_end(data)
        {
            frame = Some(Ok(Frame::data(data.slice(..end))));
        }
        match &frame {
            Some(Ok(frame)) => {
                if let (Some(data), Some(held)) = (frame.data_ref(), &mut self.held) {
                    held.completion.record.bytes += data.len() as u64;
                    if let Some((_, boundary)) = &mut held.drain {
                        boundary.pass(data);
                    }
                }
                if self.body.is_end_stream() {
                    self.end(Ended::Complete);
                }
            }
            Some(Err(error)) if self.breaks_between_events(error) => {
                tracing::debug!(%error, "a watch broke off, ended between two events");
                self.body = Body::Empty;
                self.end(Ended::Broken);
                return Poll::Ready(None);
            }
            Some(Err(error)) => {
                tracing::debug!(%error, "an answer broke off");
                let ended = if matches!(error, BodyError::Client(_)) {
                    Ended::ClientGone
                } else {
                    Ended::Broken
                };
                self.end(ended);
            }
            None => {
                let ended = match &self.body {
                    Body::Merged(merged) => merged.end().into(),
                    _ => Ended::Complete,
                };
                self.end(ended);
            }
        }
        Poll::Ready(frame)
    }

    pub(super) fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
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
            Self::Passing(passing) => passing.body.size_hint(),
            // A length that is known stands in the head.
            Self::Limited(_) => SizeHint::default(),
        }
    }
}
