//! The write fence: the answer to a write waits until the caller's own watch has shown it
//! (`docs/semantics.md#write-fence`).
//!
//! What raw versions cannot give is one order over members; a client that reads its own writes by comparing versions would
//! wait in vain or not at all. So an answer is kept, a quarter of a second at most, until every open watch of the same
//! caller that will show the object has sent it. Not kept for a leg that is down, nor for a watch whose client has read nothing
//! for a second, nor for one that the client narrowed: whether it shows the object cannot be told from here; nor for one
//! that does not show objects of that namespace, or of those labels. Caller: `edge`, for writes through the merged view.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::future::join_all;
use http::Response;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap};
use http_body::Frame;
use http_body_util::BodyExt as _;
use portolan_merge::object_meta;
use portolan_runtime::telemetry;
use tokio::time::Instant;
use tracing::{Instrument as _, field};

use super::open::{Fenced, LegState, OpenLeg, OpenWatches};
use crate::resource::upstream::{Body, BodyError, Merged};
use crate::value::classify::{ApiRequest, Verb, View};
use crate::value::object::{self, Labels, protobuf};
use crate::value::snapshot::{Caller, CallerId};

/// Longest wait. A member's watch cache is some milliseconds behind its writes.
const LONGEST: Duration = Duration::from_millis(250);
/// Looked through for the version; custom resources have it behind their managed fields.
const SEARCHED_BYTES: usize = 256 << 10;

/// A write whose answer may have to wait.
#[derive(Debug)]
pub(crate) struct Write {
    fenced: Fenced,
    namespace: Option<String>,
    name: Option<String>,
    cluster: Arc<str>,
}

impl Write {
    /// `None` for what changes no object, or nothing that a merged watch shows.
    pub(crate) fn of(caller: &Caller, asked: &ApiRequest, cluster: &Arc<str>) -> Option<Self> {
        let writes = matches!(asked.verb, Verb::Create | Verb::Update | Verb::Patch | Verb::Delete);
        if !writes || asked.view != View::Merged || asked.upgrade.is_some() || asked.query.first("dryRun").is_some() {
            return None;
        }
        let resource = asked.resource.as_ref()?;
        // RequestInfo takes a Namespace for its own namespace.
        let namespace = resource.namespace.clone().filter(|_| !resource.is("", "namespaces"));
        Some(Self {
            fenced: Fenced {
                caller: CallerId::of(caller),
                group: resource.group.clone(),
                resource: resource.resource.clone(),
            },
            namespace,
            name: resource.name.clone(),
            cluster: cluster.clone(),
        })
    }

    /// The legs that will show it and are there to do so.
    fn legs(&self, open: &OpenWatches) -> Vec<Arc<OpenLeg>> {
        let now = open.now();
        let shows = |asked: Option<&String>, written: Option<&String>| asked.is_none() || asked == written;
        open.fenced(&self.fenced)
            .iter()
            .filter(|watch| {
                !watch.narrowed
                    && watch.is_read(now)
                    && shows(watch.namespace.as_ref(), self.namespace.as_ref())
                    && shows(watch.name.as_ref(), self.name.as_ref())
            })
            .filter_map(|watch| watch.leg(&self.cluster))
            .filter(|leg| leg.state() == LegState::Live)
            .filter(|leg| leg.shows(self.namespace.as_deref().unwrap_or_default(), self.name.as_deref()))
            .collect()
    }
}

/// Hands the answer on when the caller's watches have caught up with it.
pub(crate) async fn hold(open: &OpenWatches, write: &Write, response: Response<Body>) -> Response<Body> {
    if !response.status().is_success() || response.headers().contains_key(CONTENT_ENCODING) {
        return response;
    }
    let legs = write.legs(open);
    if legs.is_empty() {
        return response;
    }
    let since = Instant::now();
    let until = since + LONGEST;
    let by_labels = legs.iter().any(|leg| leg.selects());
    let (object, response) = object_of(response, until, by_labels).await;
    let Some(object) = object else { return response };
    let Ok(version) = object.version.parse() else {
        return response;
    };
    let shows = |leg: &&Arc<OpenLeg>| object.labels.as_ref().is_none_or(|labels| leg.selects_by(labels));
    let legs: Vec<_> = legs.iter().filter(shows).collect();
    if legs.is_empty() {
        return response;
    }
    let reached = join_all(legs.iter().map(|leg| leg.reaches(version)));
    let span = telemetry::child(|| tracing::info_span!("fence", watches = legs.len(), outcome = field::Empty));
    let outcome = match tokio::time::timeout_at(until, reached).instrument(span.clone()).await {
        Ok(_) => "seen",
        Err(_) => "late",
    };
    span.record("outcome", outcome);
    open.metrics.fenced(outcome, since.elapsed());
    response
}

/// The name of the object that an answer holds, and the same answer.
pub(crate) async fn name_of(response: Response<Body>, until: Instant) -> (Option<String>, Response<Body>) {
    let (object, response) = object_of(response, until, false).await;
    (object.map(|object| object.name), response)
}

/// What is told of a written object.
struct Object {
    name: String,
    version: String,
    /// `None`: not read.
    labels: Option<Labels>,
}

/// What is told of the object that an answer holds, and the same answer. Reads until its version is found, or to the end
/// for its labels.
async fn object_of(response: Response<Body>, until: Instant, labels: bool) -> (Option<Object>, Response<Body>) {
    if response.headers().contains_key(CONTENT_ENCODING) {
        return (None, response);
    }
    let (head, mut body) = response.into_parts();
    let mut read = VecDeque::new();
    let mut all = BytesMut::new();
    let mut object = None;
    let mut ended = None;
    while (object.is_none() || labels) && all.len() < SEARCHED_BYTES {
        match tokio::time::timeout_at(until, body.frame()).await {
            Ok(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    all.extend_from_slice(data);
                    object = object.or_else(|| read_object(&head.headers, &all));
                }
                read.push_back(frame);
            }
            Ok(Some(Err(error))) => {
                ended = Some(error);
                break;
            }
            Ok(None) | Err(_) => break,
        }
    }
    if let Some(object) = object.as_mut().filter(|_| labels) {
        object.labels = read_labels(&all);
    }
    let again = Again {
        read,
        ended,
        rest: body,
    };
    (object, Response::from_parts(head, Body::Merged(Merged::new(again))))
}

fn read_object(headers: &HeaderMap, read: &[u8]) -> Option<Object> {
    let kind = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    let object = match kind.split(';').next()?.trim() {
        "application/json" => object_meta::json(read)?,
        "application/vnd.kubernetes.protobuf" => object_meta::protobuf(read)?,
        _ => return None,
    };
    (!object.resource_version.is_empty()).then(|| Object {
        name: object.name.into_owned(),
        version: object.resource_version.into_owned(),
        labels: None,
    })
}

fn read_labels(whole: &[u8]) -> Option<Labels> {
    if let Some((_, object)) = protobuf::open(whole) {
        return protobuf::labels(object);
    }
    // A Table's own metadata says nothing of its row.
    let is_table = object_meta::json(whole)?.kind == "Table";
    let labels = object::metadata(whole).ok()?.labels.unwrap_or_default();
    (!is_table).then_some(labels)
}

/// A body of which a part was read already.
struct Again {
    read: VecDeque<Frame<Bytes>>,
    ended: Option<BodyError>,
    rest: Body,
}

impl http_body::Body for Again {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(frame) = self.read.pop_front() {
            return Poll::Ready(Some(Ok(frame)));
        }
        if let Some(error) = self.ended.take() {
            return Poll::Ready(Some(Err(error)));
        }
        Pin::new(&mut self.rest).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.read.is_empty() && self.ended.is_none() && self.rest.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use portolan_crds::selector::Selector;
    use portolan_merge::filter::NamespaceFilter;

    use super::*;
    use crate::stage::fanout::metrics::FanOutMetrics;

    fn json(body: &'static str) -> Response<Body> {
        let mut answer = Response::new(Body::from(Bytes::from(body)));
        let kind = HeaderValue::from_static("application/json");
        answer.headers_mut().insert(CONTENT_TYPE, kind);
        answer
    }

    #[test]
    fn a_leg_shows_what_it_is_asked_for() {
        let leg = OpenWatches::new(FanOutMetrics::default()).leg(&"east".into());
        assert!(leg.shows("any", None) && leg.shows("", Some("n")) && !leg.selects());
        let only = NamespaceFilter::only(Arc::new(["ns-a".into()].into()));
        leg.set_shows(Some(only), Some(Selector::parse("app=foo").unwrap()));
        assert!(leg.shows("ns-a", None) && !leg.shows("ops", Some("own")));
        let labels = |value: &str| Labels::from([("app".to_owned(), value.to_owned())]);
        assert!(leg.selects() && leg.selects_by(&labels("foo")) && !leg.selects_by(&labels("bar")));
    }

    #[tokio::test]
    async fn the_version_is_found_and_the_body_stays_as_it_was() {
        let text = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","resourceVersion":"17"},"spec":{}}"#;
        let until = Instant::now() + LONGEST;
        let (object, answer) = object_of(json(text), until, false).await;
        assert_eq!(
            object.map(|object| (object.name, object.version)),
            Some(("a".into(), "17".into()))
        );
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), text);
        let status = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success"}"#;
        let (object, answer) = object_of(json(status), until, false).await;
        assert!(object.is_none());
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), status);
        let labelled =
            r#"{"kind":"Pod","apiVersion":"v1","metadata":{"labels":{"a":"b"},"resourceVersion":"17"},"spec":{}}"#;
        let (object, answer) = object_of(json(labelled), until, true).await;
        let labels = object.and_then(|object| object.labels);
        assert_eq!(labels, Some([("a".to_owned(), "b".to_owned())].into()));
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), labelled);
    }
}
