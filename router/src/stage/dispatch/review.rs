//! The router's own questions to a member: TokenReview and SubjectAccessReview, with the router's own credential.
//!
//! They use the member's unary connections and breaker like everybody's requests, but not its bulkhead: they come
//! before a request has a place in it. Callers: `identify` and `access`, by [`MemberApi`].

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use http::{Method, Request};

use super::judge::{judge_answer, judge_error};
use super::silence::Waiting;
use crate::resource::access::{MemberAnswer, MemberApi};
use crate::resource::routing::{Routing, RoutingStore};
use crate::resource::upstream::{Body, Delivered, Upstream, UpstreamError, gather};
use crate::value::fault::Fault;
use crate::value::traffic::TrafficClass;

/// For the whole question: somebody's request waits for it.
const TIMEOUT: Duration = Duration::from_secs(10);
/// A review is some kilobytes.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// Asks members.
#[derive(Debug, Clone)]
pub(crate) struct MemberReviews {
    /// For the connections and credentials of this moment.
    pub(crate) routing: Arc<RoutingStore>,
}

impl MemberApi for MemberReviews {
    fn post(&self, cluster: &str, path: &'static str, body: Vec<u8>) -> BoxFuture<'static, MemberAnswer> {
        let (this, cluster) = (self.clone(), cluster.to_owned());
        async move { this.ask(&cluster, path, body).await }.boxed()
    }
}

impl MemberReviews {
    async fn ask(&self, cluster: &str, path: &'static str, body: Vec<u8>) -> MemberAnswer {
        let unavailable = |message: String| Fault::Unavailable {
            message,
            cluster: Some(cluster.to_owned()),
            sent: false,
        };
        let routing = self.routing.load();
        let upstream = routing
            .upstreams
            .get(cluster)
            .ok_or_else(|| unavailable(format!("this router does not know member cluster {cluster}")))?;
        let request = request(&routing, cluster, path, body).ok_or_else(|| {
            unavailable(format!(
                "this router has no credential for member cluster {cluster} yet"
            ))
        })?;
        let permit = upstream.breaker(TrafficClass::Unary).admit(false).map_err(|_| {
            unavailable(format!(
                "member cluster {cluster} is not asked for now: its unary breaker is open"
            ))
        })?;
        // Dropped when all who waited for it have given up.
        let waiting = Waiting::new(permit, Delivered::whole(), false);
        let Ok(outcome) = tokio::time::timeout(TIMEOUT, exchange(upstream, request)).await else {
            drop(waiting);
            let message = format!("member cluster {cluster} did not answer a review in time");
            return Err(Fault::Timeout {
                message,
                cluster: cluster.to_owned(),
                sent: false,
            });
        };
        waiting.over().and_then(|permit| {
            permit.record(match &outcome {
                Ok((response, _)) => judge_answer(response),
                Err(error) => judge_error(error),
            })
        });
        let (response, body) = outcome.map_err(|error| unavailable(error.to_string()))?;
        Ok((response.status(), body))
    }
}

fn request(routing: &Routing, cluster: &str, path: &'static str, body: Vec<u8>) -> Option<Request<Body>> {
    let token = routing.snapshot.gateway_credential(cluster)?.token.clone();
    let mut bearer = HeaderValue::try_from(format!("Bearer {}", token.expose())).ok()?;
    bearer.set_sensitive(true);
    let json = HeaderValue::from_static("application/json");
    let mut request = Request::new(Body::Empty);
    *request.method_mut() = Method::POST;
    *request.uri_mut() = http::Uri::from_static(path);
    let headers = request.headers_mut();
    headers.insert(AUTHORIZATION, bearer);
    headers.insert(ACCEPT, json.clone());
    headers.insert(CONTENT_TYPE, json);
    headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    *request.body_mut() = Body::from(bytes::Bytes::from(body));
    Some(request)
}

type Gathered = (http::Response<Body>, bytes::Bytes);

async fn exchange(upstream: &Upstream, request: Request<Body>) -> Result<Gathered, UpstreamError> {
    // First in the queue for a connection: without an identity nothing else can go.
    let response = upstream.send(false, true, request).await?;
    let (head, body) = response.into_parts();
    let body = gather(body, MAX_ANSWER_BYTES).await.map_err(UpstreamError::Body)?;
    Ok((http::Response::from_parts(head, Body::Empty), body))
}
