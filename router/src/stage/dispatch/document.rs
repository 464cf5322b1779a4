//! The router's own GETs at a member: discovery and OpenAPI documents, with the router's own credential.
//!
//! Every authenticated user may read them (`system:discovery`), so nobody is acted as, and one copy serves all callers.
//! They use the member's unary connections and breaker like everybody's requests, last in every queue. Caller:
//! `discovery`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, HeaderValue, IF_NONE_MATCH};
use http::{Request, Response};

use super::judge::{judge_answer, judge_error};
use super::silence::Waiting;
use crate::resource::routing::{Routing, RoutingStore};
use crate::resource::upstream::{Body, Delivered, Upstream, UpstreamError, gather};
use crate::value::traffic::TrafficClass;

/// For the whole document. An API server that just got a CRD computes its OpenAPI for seconds.
const TIMEOUT: Duration = Duration::from_secs(20);
/// OpenAPI v2 of a cluster with some hundred CRDs is some ten MB.
const MAX_BYTES: usize = 64 << 20;

/// Asks members for documents. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct MemberDocuments {
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

impl MemberDocuments {
    /// The member's answer, whatever its code; an error says why there is none.
    pub(crate) async fn get(&self, wanted: &DocumentRequest) -> Result<Response<Bytes>, String> {
        let cluster = &wanted.cluster;
        let routing = self.routing.load();
        let upstream = routing
            .upstreams
            .get(cluster)
            .ok_or_else(|| format!("this router does not know member cluster {cluster}"))?;
        let request = request(&routing, wanted)?;
        let permit = upstream
            .breaker(TrafficClass::Unary)
            .admit(false)
            .map_err(|_| format!("member cluster {cluster} is not asked for now: its unary breaker is open"))?;
        let waiting = Waiting::new(permit, Delivered::whole(), false);
        let Ok(outcome) = tokio::time::timeout(TIMEOUT, exchange(upstream, request)).await else {
            drop(waiting);
            return Err(format!("member cluster {cluster} did not answer in time"));
        };
        waiting.over().and_then(|permit| {
            permit.record(match &outcome {
                Ok((response, _)) => judge_answer(response),
                Err(error) => {
                    upstream.failed(error);
                    judge_error(error)
                }
            })
        });
        let (response, body) = outcome.map_err(|error| error.to_string())?;
        Ok(response.map(|_| body))
    }
}

fn request(routing: &Routing, wanted: &DocumentRequest) -> Result<Request<Body>, String> {
    let cluster = &wanted.cluster;
    let credential = routing
        .snapshot
        .gateway_credential(cluster)
        .ok_or_else(|| format!("this router has no credential for member cluster {cluster} yet"))?;
    let mut request = Request::new(Body::Empty);
    *request.uri_mut() = wanted
        .path
        .parse()
        .map_err(|_| "a path that cannot be sent".to_owned())?;
    let headers = request.headers_mut();
    if let Ok(mut bearer) = HeaderValue::try_from(format!("Bearer {}", credential.token.expose())) {
        bearer.set_sensitive(true);
        headers.insert(AUTHORIZATION, bearer);
    }
    headers.insert(ACCEPT, HeaderValue::from_static(wanted.accept));
    if let Some(etag) = &wanted.etag {
        headers.insert(IF_NONE_MATCH, etag.clone());
    }
    Ok(request)
}

type Gathered = (Response<Body>, Bytes);

async fn exchange(upstream: &Upstream, request: Request<Body>) -> Result<Gathered, UpstreamError> {
    let response = upstream.send(false, false, request).await?;
    let (head, body) = response.into_parts();
    let body = gather(body, MAX_BYTES).await.map_err(UpstreamError::Body)?;
    Ok((Response::from_parts(head, Body::Empty), body))
}
