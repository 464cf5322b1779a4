//! The router's own requests to a member, with its own credential: reviews of tokens and of access, documents.
//!
//! They take the member's queues, breaker and unary connections like everybody's requests. Documents wait until nobody
//! else does; every authenticated user may read them (`system:discovery`), so nobody is acted as and one copy serves all
//! callers. Callers: `identify` and `access` by [`MemberApi`], `discovery`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, IF_NONE_MATCH};
use http::{Method, Request, Response, Uri};

use super::outcome::Kind;
use super::silence::Waiting;
use super::turn::unless_refused;
use super::{credential, find, full, send};
use crate::resource::access::{MemberAnswer, MemberApi};
use crate::resource::breaker::{Probe, Refused, State};
use crate::resource::queues::Turn;
use crate::resource::routing::RoutingStore;
use crate::resource::upstream::{Body, Delivered, Upstream, UpstreamError, gather};
use crate::value::fault::Fault;
use crate::value::media::JSON;
use crate::value::traffic::TrafficClass;

/// For the whole review: somebody's request waits for it.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);
/// A review is some kilobytes.
const MAX_REVIEW_BYTES: usize = 1 << 20;
/// For the whole document. An API server that just got a CRD computes its OpenAPI for seconds.
const DOCUMENT_TIMEOUT: Duration = Duration::from_secs(20);
/// OpenAPI v2 of a cluster with some hundred CRDs is some ten MB.
const MAX_DOCUMENT_BYTES: usize = 64 << 20;

/// Asks members. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct OwnRequests {
    /// For the connections and credentials of this moment.
    pub(crate) routing: Arc<RoutingStore>,
}

/// One document of one member.
#[derive(Debug, Clone)]
pub(crate) struct DocumentRequest {
    pub(crate) cluster: Arc<str>,
    /// Path and query.
    pub(crate) path: String,
    pub(crate) accept: &'static str,
    /// Of the copy that is here.
    pub(crate) etag: Option<HeaderValue>,
}

/// How long a member may be waited for, in its queues and after, and how much it may answer.
struct Allowance {
    turn: Turn,
    timeout: Duration,
    bytes: usize,
}

impl MemberApi for OwnRequests {
    fn post(&self, cluster: &str, path: &'static str, turn: Turn, body: Vec<u8>) -> BoxFuture<'static, MemberAnswer> {
        let (this, cluster) = (self.clone(), cluster.to_owned());
        let allowance = Allowance {
            turn,
            timeout: REVIEW_TIMEOUT,
            bytes: MAX_REVIEW_BYTES,
        };
        let json = HeaderValue::from_static(JSON);
        let mut request = Request::new(Body::Empty);
        *request.method_mut() = Method::POST;
        *request.uri_mut() = Uri::from_static(path);
        let headers = request.headers_mut();
        headers.insert(ACCEPT, json.clone());
        headers.insert(CONTENT_TYPE, json);
        headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        *request.body_mut() = Body::from(Bytes::from(body));
        async move {
            let answer = this.send(&cluster, request, &allowance).await?;
            Ok((answer.status(), answer.into_body()))
        }
        .boxed()
    }
}

impl OwnRequests {
    /// The member's answer, whatever its code; a fault says why there is none.
    pub(crate) async fn get(&self, wanted: &DocumentRequest) -> Result<Response<Bytes>, Fault> {
        let mut request = Request::new(Body::Empty);
        let unfit = |_| Fault::BadRequest("a path that cannot be sent".to_owned());
        *request.uri_mut() = wanted.path.parse().map_err(unfit)?;
        let headers = request.headers_mut();
        headers.insert(ACCEPT, HeaderValue::from_static(wanted.accept));
        headers.extend(wanted.etag.clone().map(|etag| (IF_NONE_MATCH, etag)));
        let allowance = Allowance {
            turn: Turn::Last,
            timeout: DOCUMENT_TIMEOUT,
            bytes: MAX_DOCUMENT_BYTES,
        };
        self.send(&wanted.cluster, request, &allowance).await
    }

    /// Whether the member answers, as far as is known.
    pub(crate) fn is_answered(&self, cluster: &str) -> bool {
        let routing = self.routing.load();
        let upstream = routing.upstreams.get(cluster);
        upstream.is_some_and(|upstream| upstream.breaker(TrafficClass::Unary).report().state == State::Closed)
    }

    async fn send(
        &self,
        cluster: &str,
        mut request: Request<Body>,
        allowance: &Allowance,
    ) -> Result<Response<Bytes>, Fault> {
        let unavailable = |message| unavailable(cluster, message);
        let routing = self.routing.load();
        let upstream = find(&routing, cluster).map_err(unavailable)?;
        let bearer = credential(&routing, cluster).map_err(unavailable)?;
        request.headers_mut().insert(AUTHORIZATION, bearer);
        let answer = tokio::time::timeout(allowance.timeout, exchange(&upstream, request, allowance)).await;
        answer.unwrap_or_else(|_| {
            let message = format!("member cluster {cluster} did not answer the router's own question in time");
            Err(unavailable(message))
        })
    }
}

/// Dropped in the middle, it tells the breaker what the member's silence means.
async fn exchange(
    upstream: &Upstream,
    request: Request<Body>,
    allowance: &Allowance,
) -> Result<Response<Bytes>, Fault> {
    let unavailable = |message| unavailable(&upstream.cluster, message);
    // Reviews of tokens come first, and have a breaker of their own: nobody's requests may keep others from being known.
    let class = match allowance.turn {
        Turn::First => TrafficClass::TokenReview,
        _ => TrafficClass::Unary,
    };
    let (kind, probe) = match allowance.turn {
        Turn::Last => (Kind::DOCUMENT, Probe::Doubtful),
        Turn::First | Turn::InOrder(_) => (Kind::OWN, Probe::Telling),
    };
    let refused = |refused: Refused| unavailable(send::refusal(upstream, class, &refused));
    let breaker = upstream.breaker(class);
    let seat = unless_refused(breaker, (None, probe), upstream.queues.take_own(allowance.turn)).await;
    let _seat = seat.map_err(refused)?.map_err(|_| full(upstream))?;
    let mut pass = breaker.admit(None, probe).map_err(refused)?;
    upstream.changed(class, pass.began());
    let waiting = Waiting::new(&upstream.cluster, pass, Delivered::whole(), kind, false);
    // Without an identity nothing else can go: reviews of tokens come first in the queue for a connection.
    let asking = std::pin::pin!(whole(upstream, request, allowance));
    let outcome = send::suspecting(upstream, asking, || {}).await;
    if let Some((pass, _)) = waiting.over() {
        send::tell(upstream, class, pass, (kind, &outcome));
    }
    outcome.map_err(|error| unavailable(error.to_string()))
}

async fn whole(
    upstream: &Upstream,
    request: Request<Body>,
    allowance: &Allowance,
) -> Result<Response<Bytes>, UpstreamError> {
    let slot = upstream.slot(false, allowance.turn == Turn::First).await?;
    // What comes last are documents, which are work.
    let slot = slot.patient(allowance.turn == Turn::Last);
    let (head, body) = upstream.exchange(slot, request).await?.into_parts();
    let body = gather(body, allowance.bytes).await.map_err(UpstreamError::Body)?;
    Ok(Response::from_parts(head, body))
}

/// Only the router's own question was sent, if anything: the caller's request may come again.
fn unavailable(cluster: &str, message: String) -> Fault {
    Fault::Unavailable {
        message,
        cluster: Some(cluster.to_owned()),
        sent: false,
    }
}
