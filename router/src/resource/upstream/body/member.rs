//! The body of a member's answer over HTTP/2, with what is left to send of its request.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, RecvStream, SendStream};
use http_body::{Body as _, Frame};
use tokio::time::{Instant, Sleep};

use super::{Body, BodyError};
use crate::resource::queues::Seat;
use crate::resource::upstream::places::Place;
use crate::resource::upstream::pool::Slot;
use crate::resource::upstream::said::plainly;

/// What is left of a request's body to send.
#[derive(Debug)]
pub(crate) struct RequestRest {
    body: Body,
    stream: SendStream<Bytes>,
    pending: Option<Bytes>,
}

impl RequestRest {
    pub(crate) fn new(body: Body, stream: SendStream<Bytes>) -> Self {
        Self {
            body,
            stream,
            pending: None,
        }
    }

    /// Ready when all is sent or the member wants no more; an error when the client failed to deliver.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        loop {
            if let Some(chunk) = self.pending.take() {
                if ready!(self.poll_chunk(cx, chunk)) {
                    return Poll::Ready(Ok(()));
                }
                continue;
            }
            // The member may end the stream before it has read all, with a whole answer.
            if let Poll::Ready(Ok(_) | Err(_)) = self.stream.poll_reset(cx) {
                return Poll::Ready(Ok(()));
            }
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                None => {
                    // An error means that the stream is gone; the answer tells why.
                    let _ = self.stream.send_data(Bytes::new(), true);
                    return Poll::Ready(Ok(()));
                }
                Some(Err(error)) => {
                    self.stream.send_reset(Reason::CANCEL);
                    return Poll::Ready(Err(error));
                }
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if !data.is_empty() => self.pending = Some(data),
                    Ok(_) => {}
                    Err(frame) => {
                        let trailers = frame.into_trailers().unwrap_or_default();
                        let _ = self.stream.send_trailers(trailers);
                        return Poll::Ready(Ok(()));
                    }
                },
            }
        }
    }

    /// Sends what the member's window takes of `chunk`. True when the body is done.
    fn poll_chunk(&mut self, cx: &mut Context<'_>, mut chunk: Bytes) -> Poll<bool> {
        self.stream.reserve_capacity(chunk.len());
        let capacity = match self.stream.poll_capacity(cx) {
            Poll::Pending => {
                self.pending = Some(chunk);
                return Poll::Pending;
            }
            Poll::Ready(Some(Ok(capacity))) => capacity,
            Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(true),
        };
        let part = chunk.split_to(capacity.min(chunk.len()));
        let last = chunk.is_empty() && self.body.is_end_stream();
        if !chunk.is_empty() {
            self.pending = Some(chunk);
        }
        let gone = !part.is_empty() && self.stream.send_data(part, last).is_err();
        Poll::Ready(last || gone)
    }
}

/// The body of a member's answer.
#[derive(Debug)]
pub(crate) struct MemberStream {
    receive: RecvStream,
    /// Members may answer before they have read the whole request.
    rest: Option<Box<RequestRest>>,
    deadline: Option<Instant>,
    /// Made when it is first waited for: a small answer is here by then. Boxed: watches have none, and they are many.
    late: Option<Pin<Box<Sleep>>>,
    cluster: Arc<str>,
    _slot: Slot,
    /// At the member; empty for what does not count there, or is counted elsewhere.
    seat: Seat,
    /// Of a list or of the start of a watch.
    place: Option<Box<Place>>,
}

impl MemberStream {
    pub(crate) fn new(cluster: &Arc<str>, slot: Slot, receive: RecvStream, rest: Option<RequestRest>) -> Self {
        Self {
            receive,
            rest: rest.map(Box::new),
            deadline: None,
            late: None,
            cluster: cluster.clone(),
            _slot: slot,
            seat: Seat::default(),
            place: None,
        }
    }

    /// Keeps the seat at the member until the body is over.
    pub(crate) fn hold(&mut self, seat: Seat) {
        self.seat = seat;
    }

    /// Keeps the tenant's place for as long as it is one: that of a list until the body is over.
    pub(crate) fn hold_place(&mut self, mut place: Box<Place>) {
        place.begun();
        self.place = Some(place);
    }

    /// The body fails if it has not ended by then.
    pub(crate) fn set_deadline(&mut self, deadline: Instant) {
        (self.deadline, self.late) = (Some(deadline), None);
    }

    /// Whoever reads it says how long it may take.
    pub(super) fn clear_deadline(&mut self) {
        (self.deadline, self.late) = (None, None);
    }

    /// Whether its time is over, or a wake-up when it is.
    fn is_late(&mut self, waits: bool, cx: &mut Context<'_>) -> bool {
        let Some(deadline) = self.deadline else { return false };
        if !waits {
            return Instant::now() >= deadline;
        }
        let late = self
            .late
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        late.as_mut().poll(cx).is_ready()
    }

    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(rest) = &mut self.rest
            && let Poll::Ready(sent) = rest.poll(cx)
        {
            self.rest = None;
            if let Err(error) = sent {
                return Poll::Ready(Some(Err(error)));
            }
        }
        let polled = self.receive.poll_data(cx);
        if self.is_late(polled.is_pending(), cx) {
            return Poll::Ready(Some(Err(BodyError::Deadline {
                cluster: self.cluster.clone(),
            })));
        }
        if let Some(place) = &mut self.place {
            let data = match &polled {
                Poll::Ready(Some(Ok(data))) => Some(&**data),
                Poll::Ready(_) => Some(&[][..]),
                Poll::Pending => None,
            };
            if place.is_over(data, cx) {
                self.place = None;
            }
        }
        match ready!(polled) {
            Some(Ok(data)) => {
                // Fails only for a stream that is gone.
                let _ = self.receive.flow_control().release_capacity(data.len());
                Poll::Ready(Some(Ok(Frame::data(data))))
            }
            Some(Err(error)) => Poll::Ready(Some(Err(self.broken(&error)))),
            None => self.poll_trailers(cx),
        }
    }

    fn poll_trailers(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match ready!(self.receive.poll_trailers(cx)) {
            Ok(Some(trailers)) => Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
            Ok(None) => Poll::Ready(None),
            Err(error) => Poll::Ready(Some(Err(self.broken(&error)))),
        }
    }

    fn broken(&self, error: &h2::Error) -> BodyError {
        BodyError::Member {
            cluster: self.cluster.clone(),
            reason: plainly(error),
        }
    }

    pub(super) fn is_end_stream(&self) -> bool {
        self.receive.is_end_stream()
    }
}
