//! An answer's body as it passes: counted, and ended when the router drains, a swap plans the request otherwise, or its right is
//! taken away.
//!
//! It holds what must live as long as the answer: what `admit` gave and the [`Completion`]. Caller: `answer`.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::future::BoxFuture;
use http_body::{Body as _, Frame, SizeHint};

use super::carried::Carried;
use super::completion::Completion;
use crate::resource::queues::Seat;
use crate::resource::upstream::{Body, BodyError, Ended};
use crate::stage::admit::Admitted;
use crate::stage::replan::{Verdict, Watched};
use crate::stage::reply;
use crate::value::classify::Verb;
use crate::value::event_boundary::EventBoundary;
use crate::value::fault::Fault;
use crate::value::traffic::TrafficClass;

/// What is attached to an answer until it is over.
pub(super) struct Attached {
    pub(super) completion: Completion,
    pub(super) _admitted: Option<Admitted>,
    /// At the member.
    pub(super) _seat: Seat,
    /// Ends the trace of what ends by itself.
    pub(super) _span: Option<tracing::Span>,
    /// A watch: where its events end, and so it may when the router drains.
    pub(super) boundary: Option<EventBoundary>,
    /// What goes on for long: says that it must end.
    pub(super) watched: Option<Watched>,
    /// The same of a right that it rests on: ends when that is taken away.
    pub(super) revoked: Option<Right>,
}

/// What a running answer rests on.
pub(super) enum Right {
    Held(BoxFuture<'static, Fault>),
    Lost(Fault),
}

impl Right {
    /// Why it is lost, or a wake-up when it is.
    fn lost(&mut self, cx: &mut Context<'_>) -> Option<Fault> {
        if let Self::Held(held) = self
            && let Poll::Ready(fault) = held.as_mut().poll(cx)
        {
            tracing::info!(%fault, "a running answer ends");
            *self = Self::Lost(fault);
        }
        match self {
            Self::Held(_) => None,
            Self::Lost(fault) => Some(fault.clone()),
        }
    }
}

/// Why an answer ends before the member ends it.
enum Over {
    Drained,
    Replanned(Verdict),
    Revoked(Fault),
}

/// A body and what it holds, which is boxed once.
pub(crate) struct Passing {
    body: Body,
    /// Dropped at the body's end, not when hyper gets around to drop the body.
    attached: Option<Box<Attached>>,
}

impl Attached {
    /// Runs what was switched to to its end, instead of a body.
    pub(super) async fn carry(mut self, carried: Carried) {
        let verdict = async {
            match &self.watched {
                Some(watched) => watched.ended().await,
                None => std::future::pending().await,
            }
        };
        let mut right = self.revoked.take();
        let lost = std::future::poll_fn(|cx| match right.as_mut().and_then(|right| right.lost(cx)) {
            Some(_) => Poll::Ready(()),
            None => Poll::Pending,
        });
        let carried = tokio::select! {
            carried = carried.run() => Ok(carried),
            _ = verdict => Err(Ended::Replanned),
            () = lost => Err(Ended::Revoked),
        };
        match carried {
            Err(ended) => self.completion.record.ended = ended,
            Ok((Ok(bytes), ended)) => {
                self.completion.record.bytes = bytes;
                self.completion.record.ended = ended;
            }
            Ok((Err(error), _)) => {
                tracing::debug!(%error, "a tunnel broke off");
                self.completion.record.ended = Ended::Broken;
            }
        }
    }
}

impl Passing {
    pub(super) fn new(body: Body, attached: Attached) -> Self {
        let mut passing = Self {
            body,
            attached: Some(Box::new(attached)),
        };
        if passing.body.is_end_stream() {
            passing.end(Ended::Complete);
        }
        passing
    }

    /// A body that holds nothing.
    pub(super) fn free(body: Body) -> Self {
        Self { body, attached: None }
    }

    /// Whether nothing is attached any more.
    pub(super) fn is_over(&self) -> bool {
        self.attached.is_none()
    }

    /// Whether it reads a whole collection, for which a member keeps a place of its own until it is read.
    pub(super) fn is_collection(&self) -> bool {
        let record = self.attached.as_ref().map(|attached| &attached.completion.record);
        record.is_some_and(|record| record.class == Some(TrafficClass::List) || record.verb == Some(Verb::Watch))
    }

    pub(super) fn is_watch(&self) -> bool {
        let attached = self.attached.as_ref();
        attached.is_some_and(|attached| attached.completion.record.verb == Some(Verb::Watch))
    }

    /// The deadline is over, or nobody reads it.
    pub(super) fn cut(mut self) {
        if self.attached.is_some() {
            tracing::debug!("an answer was not over at its deadline, or not read");
        }
        self.end(Ended::Broken);
    }

    fn end(&mut self, ended: Ended) {
        if let Some(attached) = &mut self.attached {
            attached.completion.record.ended = ended;
        }
        self.attached = None;
    }

    /// Whether the router wants it to end, as soon as it can.
    fn over(&mut self, cx: &mut Context<'_>) -> Option<Over> {
        let attached = self.attached.as_mut()?;
        if let Some(verdict) = attached.watched.as_ref().and_then(|watched| watched.poll(cx)) {
            return Some(Over::Replanned(verdict));
        }
        if let Some(fault) = attached.revoked.as_mut().and_then(|right| right.lost(cx)) {
            return Some(Over::Revoked(fault));
        }
        let drains = attached.boundary.is_some() && attached.watched.as_ref().is_some_and(Watched::drains);
        drains.then_some(Over::Drained)
    }

    /// Where events end, if this is a watch whose events can be told apart.
    fn boundary(&self) -> Option<EventBoundary> {
        let boundary = self.attached.as_ref()?.boundary?;
        (boundary != EventBoundary::Unknown).then_some(boundary)
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
        let (ended, broken) = match over {
            Over::Drained => {
                self.end(Ended::Drained);
                return None;
            }
            Over::Replanned(_) => (Ended::Replanned, BodyError::Replanned),
            Over::Revoked(_) => (Ended::Revoked, BodyError::Revoked),
        };
        self.end(ended);
        let Some(boundary) = boundary else {
            return Some(Err(broken));
        };
        let event = match over {
            Over::Replanned(verdict) => verdict.last_event(boundary.format()),
            Over::Revoked(fault) => Some(reply::error_event(fault, boundary.format())),
            Over::Drained => None,
        };
        event.map(|event| Ok(Frame::data(event)))
    }

    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let over = self.over(cx);
        if let Some(over) = &over {
            let ends_here = match (over, self.boundary()) {
                (_, Some(boundary)) => boundary.is_between_events(),
                (Over::Replanned(_) | Over::Revoked(_), None) => true,
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
                if let (Some(data), Some(attached)) = (frame.data_ref(), &mut self.attached) {
                    attached.completion.record.bytes += data.len() as u64;
                    if let Some(boundary) = &mut attached.boundary {
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
                let ended = match error {
                    BodyError::Client(_) => Ended::ClientGone,
                    BodyError::Injected(_) => Ended::Injected,
                    _ => Ended::Broken,
                };
                self.end(ended);
            }
            None => {
                let ended = self.body.ended();
                self.end(ended);
            }
        }
        Poll::Ready(frame)
    }

    pub(super) fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
