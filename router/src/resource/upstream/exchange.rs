//! One request and its answer over one HTTP/2 stream.
//!
//! No task is spawned for it: the request body is sent while the answer is awaited, and what is left of it while the
//! answer's body is read. Every error says whether the member may have acted on the request. Caller: `upstream`.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use h2::client::ResponseFuture;
use h2::{Reason, RecvStream};
use http::{Request, Response, Uri};
use http_body::Body as _;

use super::body::member::{MemberStream, RequestRest};
use super::body::{Body, BodyError};
use super::connection::Connection;
use super::pool::Slot;
use super::said::plainly;
use super::{Broke, UpstreamError};

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
        reason: plainly(&error),
    };
    poll_fn(|cx| send.poll_ready(cx)).await.map_err(refused)?;
    let ended = body.is_end_stream();
    let (mut answer, stream) = send
        .send_request(Request::from_parts(parts, ()), ended)
        .map_err(refused)?;
    let mut rest = (!ended).then(|| RequestRest::new(body, stream));
    let mut late = slot.lateness();
    let head = poll_fn(|cx| {
        let head = poll_head(cx, &mut answer, &mut rest);
        // While its client keeps back its body the member has nothing to answer.
        if head.is_pending()
            && rest.is_none()
            && let Some(lateness) = &mut late
            && lateness.poll(cx, &slot).is_ready()
        {
            late = None;
        }
        head
    });
    let head = head
        .await
        .map_err(|failure| failure.into_error(cluster, slot.connection()))?;
    slot.answered(&head);
    let (head, receive) = head.into_parts();
    let stream = MemberStream::new(cluster, slot, receive, rest);
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
                    reason: plainly(&error),
                }
            }
            Self::Stream(error) => UpstreamError::Lost {
                cluster: cluster.clone(),
                reason: plainly(&error),
                broke: match error.reason() {
                    Some(Reason::PROTOCOL_ERROR) if error.is_reset() && error.is_remote() => Broke::Request,
                    _ if error.is_reset() => Broke::Stream,
                    _ if connection.tell_broken() => Broke::Known,
                    _ => Broke::Connection,
                },
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
