//! An answer in JSON, written as YAML on its way to a client that takes no other.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Response};
use http_body::{Body as _, Frame};

use crate::resource::upstream::{Body, BodyError, Merged};
use crate::value::media::{Media, YAML, prefers_yaml};
use crate::value::yaml::Yaml;

/// Whether the answer is to be written as YAML. It is not packed then.
pub(crate) fn takes_yaml(asked: &mut HeaderMap) -> bool {
    let yaml = prefers_yaml(asked);
    if yaml {
        asked.remove(ACCEPT_ENCODING);
    }
    yaml
}

/// What is not JSON stays as it is.
pub(crate) fn in_yaml(mut response: Response<Body>) -> Response<Body> {
    let is_json = Media::of_content(response.headers()) == Some(Media::Json);
    if !is_json || response.headers().contains_key(CONTENT_ENCODING) || response.body().is_end_stream() {
        return response;
    }
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(YAML));
    headers.remove(CONTENT_LENGTH);
    response.map(|body| {
        Body::Merged(Merged::new(InYaml {
            body,
            yaml: Some(Yaml::default()),
        }))
    })
}

struct InYaml {
    body: Body,
    /// `None`: it is over.
    yaml: Option<Yaml>,
}

impl http_body::Body for InYaml {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
            let Some(yaml) = &mut self.yaml else {
                return Poll::Ready(None);
            };
            let written = match frame {
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                // Trailers say nothing here.
                Some(Ok(frame)) => yaml.push(&frame.into_data().unwrap_or_default()),
                None => {
                    let rest = yaml.end();
                    self.yaml = None;
                    rest
                }
            };
            if !written.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(written.into()))));
            }
        }
    }
}
