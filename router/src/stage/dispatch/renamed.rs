//! The body of a watch or a list with the leader-election Lease in it, on its way to a client that knows it by another name.
//!
//! Of a watch only whole events are passed on, so that the stream always ends between two. Caller: `rename`.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Response;
use http_body::Frame;

use crate::decision::lease::{Events, Renaming};
use crate::resource::upstream::{Body, BodyError, Merged};
use crate::value::media::content_type;
use crate::value::snapshot::LeaseName;

/// A watch's body whose events name the Lease as the client does.
pub(super) struct Renamed {
    body: Body,
    events: Events,
}

impl Renamed {
    /// As it is, if its events cannot be told apart.
    pub(super) fn of(names: &LeaseName, response: Response<Body>) -> Response<Body> {
        match Events::new(names, content_type(response.headers())) {
            None => response,
            Some(events) => response.map(|body| Body::Merged(Merged::new(Self { body, events }))),
        }
    }
}

impl http_body::Body for Renamed {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)) else {
                return Poll::Ready(None);
            };
            // Trailers say nothing here.
            let Ok(data) = frame?.into_data() else { continue };
            let Some(renamed) = self.events.push(&data) else {
                return Poll::Ready(Some(Err(BodyError::Member {
                    cluster: "the primary".into(),
                    reason: "an event of a Lease is too large".to_owned(),
                })));
            };
            if !renamed.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(renamed))));
            }
        }
    }
}

/// A list's body, in which the lock is named as the client does.
pub(super) struct RenamedList {
    body: Body,
    renaming: Renaming,
}

impl RenamedList {
    pub(super) fn of(names: &LeaseName, response: Response<Body>) -> Response<Body> {
        let renaming = Renaming::new(names);
        response.map(|body| Body::Merged(Merged::new(Self { body, renaming })))
    }
}

impl http_body::Body for RenamedList {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)) else {
                return Poll::Ready(None);
            };
            // Trailers say nothing here.
            let Ok(data) = frame?.into_data() else { continue };
            let renamed = self.renaming.push(&data);
            if !renamed.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(renamed.into()))));
            }
        }
    }
}
