//! One request and its answer over one HTTP/2 stream.
//!
//! No task is spawned for it: the request body is sent while the answer is awaited, and what is left of it while the
//! answer's body is read. Every error says whether the member may have acted on the request. Caller: `upstream`.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{Reason, RecvStream, SendStream};
use http::{Request, Response, Uri};
use http_body::{Body as _, Frame};
use tokio::time::{Instant, Sleep};

use super::UpstreamError;
use super::body::{Body, BodyError};
use super::connection::Connection;
use super::pool::Slot;
use crate::resource::bulkhead::Permit;

/// Sends `request`, whose URI is path and query, and returns the answer's head with its body to come. Dropping the
/// future, or the body later, resets the stream.
pub(super) async fn exchange(
    cluster: &Arc<str>,
    slot: Slot,
    request: Request<Body>,
) -> Result<Response<Body>, UpstreamError> {
    let (mut parts, body) = request.into_parts();
    parts.uri = absolute(&parts.uri, slot.connection()).map_err(|error| UpstreamError::Request(error.to_string()))?;
    parts.version = http::Version::HTTP_2;
    let mut send = slot.connection().sender();
    let refused = |error: h2::Error| UpstreamError::Refused {
        cluster: cluster.clone(),
        reason: error.to_string(),
    };
    poll_fn(|cx| send.poll_ready(cx)).await.map_err(refused)?;
    let ended = body.is_end_stream();
    let (mut answer, stream) = send
        .send_request(Request::from_parts(parts, ()), ended)
        .map_err(refused)?;
    let mut rest = (!ended).then(|| RequestRest {
        body,
        stream,
        pending: None,
    });
    let head = poll_fn(|cx| poll_head(cx, &mut answer, &mut rest))
        .await
        .map_err(|failure| failure.into_error(cluster, slot.connection()))?;
    let (head, receive) = head.into_parts();
    let stream = MemberStream {
        receive,
        rest: rest.map(Box::new),
        deadline: None,
        cluster: cluster.clone(),
        _slot: slot,
        place: Permit::default(),
    };
    Ok(Response::from_parts(head, Body::Member(Box::new(stream))))
}

fn absolute(uri: &Uri, connection: &Connection) -> Result<Uri, http::Error> {
    let path = uri
        .path_and_query()
        .cloned()
        .unwrap_or_else(|| http::uri::PathAndQuery::from_static("/"));
    Uri::builder()
        .scheme("https")
        .authority(connection.authority.clone())
        .path_and_query(path)
        .build()
}

enum Failure {
    Stream(h2::Error),
    Client(BodyError),
}

impl Failure {
    fn into_error(self, cluster: &Arc<str>, connection: &Connection) -> UpstreamError {
        match self {
            Self::Client(error) => UpstreamError::Body(error),
            // Above the last stream of a GOAWAY, or refused one by one: the member vouches that nothing ran.
            Self::Stream(error)
                if (error.is_go_away() && error.is_remote())
                    || (error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM)) =>
            {
                UpstreamError::Refused {
                    cluster: cluster.clone(),
                    reason: error.to_string(),
                }
            }
            Self::Stream(error) => UpstreamError::Lost {
                cluster: cluster.clone(),
                reason: error.to_string(),
                told: !error.is_reset() && connection.tell_broken(),
            },
        }
    }
}

fn poll_head(
    cx: &mut Context<'_>,
    answer: &mut ResponseFuture,
    rest: &mut Option<RequestRest>,
) -> Poll<Result<Response<RecvStream>, Failure>> {
    // The answer first: a member that refuses a body has its say before the body's failure has.
    if let Poll::Ready(head) = Pin::new(answer).poll(cx) {
        return Poll::Ready(head.map_err(Failure::Stream));
    }
    if let Some(sending) = rest
        && let Poll::Ready(sent) = sending.poll(cx)
    {
        *rest = None;
        if let Err(error) = sent {
            return Poll::Ready(Err(Failure::Client(error)));
        }
    }
    Poll::Pending
}

/// What is left of a request's body to send.
#[derive(Debug)]
struct RequestRest {
    body: Body,
    stream: SendStream<Bytes>,
    pending: Option<Bytes>,
}

impl RequestRest {
    /// Ready when all is sent or the member wants no more; an error when the client failed to deliver.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
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
    /// Boxed: watches have none, and they are many.
    deadline: Option<Pin<Box<Sleep>>>,
    cluster: Arc<str>,
    _slot: Slot,
    /// In the member's bulkhead; empty for what does not count there, or is counted elsewhere.
    place: Permit,
}

impl MemberStream {
    /// Keeps the place until the body is over.
    pub(crate) fn hold(&mut self, place: Permit) {
        drop(std::mem::replace(&mut self.place, place));
    }

    /// The body fails if it has not ended by then.
    pub(crate) fn set_deadline(&mut self, deadline: Instant) {
        self.deadline = Some(Box::pin(tokio::time::sleep_until(deadline)));
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
        if let Some(deadline) = &mut self.deadline
            && deadline.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Some(Err(BodyError::Deadline {
                cluster: self.cluster.clone(),
            })));
        }
        match ready!(self.receive.poll_data(cx)) {
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
            reason: error.to_string(),
        }
    }

    pub(super) fn is_end_stream(&self) -> bool {
        self.receive.is_end_stream()
    }
}
