//! The port where the API server of the hub cluster asks about writes of ShardingConfigs and of policies, before it stores
//! them.
//!
//! HTTP/1.1 over TLS, by the hub's serving certificate; what is asked is answered by `authors` and `policy_review`. Anybody who reaches the port
//! may ask, as the API server does not say who it is: he learns who may shard what, and no more; so all is bounded before it
//! is read. Caller: `app`.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::map_response;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use futures::StreamExt as _;
use portolan_runtime::tls::{STRANGER_LIFE, TlsIncoming};
use portolan_runtime::{Tasks, http1};
use rustls::ServerConfig;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::access::AccessReviewer;
use crate::authors::{self, Refusal, Write};
use crate::policy_review;

/// What the API server asks at, of ShardingConfigs.
pub(crate) const PATH: &str = "/shardingconfigs";
/// And of CircuitBreakers and FaultInjections.
const POLICIES: &str = "/policies";
/// The object as it is and as it becomes; etcd takes 1.5 MiB.
const MAX_BODY_BYTES: usize = 4 << 20;
/// Questions at a time; more wait.
const MAX_ASKED: usize = 16;
/// Policies that are judged at a time: a large one takes a core for long.
const MAX_JUDGED: usize = 2;
/// The API server sends all at once.
const BODY_TIMEOUT: Duration = Duration::from_secs(2);
/// For the whole answer, waiting included: below the `timeoutSeconds` of the registration.
const TIMEOUT: Duration = Duration::from_secs(9);

/// An answer on a connection this old is its last.
const LEAVE_AFTER: Duration = Duration::from_secs(STRANGER_LIFE.as_secs() / 2);
// The slowest answer of an older one is over before the connection is cut.
const _: () = assert!(LEAVE_AFTER.as_secs() + TIMEOUT.as_secs() < STRANGER_LIFE.as_secs());

/// An `AdmissionReview` of `admission.k8s.io/v1`.
#[derive(Deserialize)]
struct AdmissionReview {
    request: Write,
}

#[derive(Clone)]
struct Webhook {
    reviewer: AccessReviewer,
    // A semaphore: bodies and questions of all who ask, together.
    permits: Arc<Semaphore>,
    // A semaphore of its own: who judges holds no thread that streams need, and leaves cores to them.
    judges: Arc<Semaphore>,
}

/// Serves until `tasks` are cancelled.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    reviewer: AccessReviewer,
    tasks: Tasks,
) -> anyhow::Result<()> {
    let mut incoming = TlsIncoming::new(listener, tls, &tasks)?;
    let pages = pages(reviewer);
    while let Some(stream) = incoming.next().await {
        let pages = of_one_connection(&pages);
        tasks.spawn("webhook-connection", http1::serve(stream?, pages, tasks.token()));
    }
    Ok(())
}

/// Connections without a client certificate are cut after [`STRANGER_LIFE`]. The API server, which keeps its own open, is told in
/// time to leave: it does not ask again what it had begun to write on one that is cut, and its user's write would fail.
fn of_one_connection(pages: &Router) -> Router {
    let opened = Instant::now();
    pages.clone().layer(map_response(move |mut response: Response| {
        if opened.elapsed() >= LEAVE_AFTER {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
        std::future::ready(response)
    }))
}

fn pages(reviewer: AccessReviewer) -> Router {
    let webhook = Webhook {
        reviewer,
        permits: Arc::new(Semaphore::new(MAX_ASKED)),
        judges: Arc::new(Semaphore::new(MAX_JUDGED)),
    };
    let authors = |State(webhook): State<Webhook>, request: Request| answer(webhook, request, Asked::Authors);
    let policies = |State(webhook): State<Webhook>, request: Request| answer(webhook, request, Asked::Policies);
    Router::new()
        .route(PATH, post(authors))
        .route(POLICIES, post(policies))
        .with_state(webhook)
}

/// What is asked.
#[derive(Debug, Clone, Copy)]
enum Asked {
    /// Who may write it.
    Authors,
    /// Whether it can be served.
    Policies,
}

async fn answer(webhook: Webhook, request: Request, asked: Asked) -> Response {
    match tokio::time::timeout(TIMEOUT, webhook.answer(request.into_body(), asked)).await {
        Ok(response) => response,
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "the hub did not decide in time\n").into_response(),
    }
}

impl Webhook {
    async fn answer(&self, body: Body, asked: Asked) -> Response {
        let Ok(_permit) = self.permits.acquire().await else {
            return StatusCode::SERVICE_UNAVAILABLE.into_response();
        };
        let read = tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, MAX_BODY_BYTES));
        let Ok(Ok(body)) = read.await else {
            return (StatusCode::BAD_REQUEST, "a body that is too long, or too slow\n").into_response();
        };
        let Ok(AdmissionReview { request }) = serde_json::from_slice(&body) else {
            return (StatusCode::BAD_REQUEST, "no AdmissionReview of admission.k8s.io/v1\n").into_response();
        };
        let (uid, resource) = (request.uid.clone(), request.resource.resource.clone());
        let verdict = match asked {
            Asked::Authors => authors::review(&self.reviewer, &request).await.map(|()| Vec::new()),
            Asked::Policies => self.judge(request).await,
        };
        if let Err(refusal) = &verdict {
            tracing::info!(?refusal, resource, "an object is refused");
        }
        Json(response(&uid, verdict)).into_response()
    }

    async fn judge(&self, request: Write) -> Result<Vec<String>, Refusal> {
        let undecided = || Refusal::Undecided("the hub could not judge it".to_owned());
        let permit = self.judges.clone().acquire_owned().await.map_err(|_| undecided())?;
        let judged = tokio::task::spawn_blocking(move || {
            let verdict = policy_review::review(&request);
            // Also when nobody waits for it any more, it counts until it is over.
            drop(permit);
            verdict
        });
        judged.await.unwrap_or_else(|_| Err(undecided()))
    }
}

/// `verdict`: warnings, or why not.
fn response(uid: &str, verdict: Result<Vec<String>, Refusal>) -> Value {
    let mut response = json!({"uid": uid, "allowed": verdict.is_ok()});
    match verdict {
        Ok(warnings) if warnings.is_empty() => {}
        Ok(warnings) => response["warnings"] = json!(warnings),
        Err(refusal) => {
            let (code, reason, message) = match refusal {
                Refusal::Forbidden(message) => (403, "Forbidden", message),
                Refusal::Invalid(message) => (400, "BadRequest", message),
                Refusal::Bad(message) => (422, "Invalid", message),
                Refusal::Undecided(message) => (503, "ServiceUnavailable", message),
            };
            response["status"] = json!({"code": code, "reason": reason, "message": message});
        }
    }
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
}

#[cfg(test)]
mod tests {
    use portolan_crds::labels::GROUP;
    use tower::ServiceExt as _;

    use super::*;
    use crate::testing::sharding_rights;

    async fn ask(pages: &Router, body: impl Into<Body>) -> (StatusCode, Value) {
        ask_at(PATH, pages, body).await
    }

    async fn ask_at(path: &str, pages: &Router, body: impl Into<Body>) -> (StatusCode, Value) {
        let request = Request::post(path).body(body.into()).unwrap();
        let response = pages.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let body = to_bytes(response.into_body(), MAX_BODY_BYTES).await.unwrap();
        (status, serde_json::from_slice(&body).unwrap_or_default())
    }

    fn review(user: &str) -> String {
        let spec = json!({"selector": {}, "callerClusters": ["east"], "clusters": [{"name": "west"}]});
        let request = json!({
            "uid": "u-1", "operation": "CREATE", "userInfo": {"username": user}, "object": {"spec": spec},
            "kind": {"group": GROUP, "version": "v1alpha1", "kind": "ShardingConfig"}, "name": "a", "namespace": "ops",
            "resource": {"group": GROUP, "version": "v1alpha1", "resource": "shardingconfigs"}, "dryRun": false,
        });
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).to_string()
    }

    #[tokio::test]
    async fn answers_are_admission_reviews() {
        let pages = pages(sharding_rights(&[("root", None)]).0);
        let (status, said) = ask(&pages, review("root")).await;
        assert_eq!(
            (status, &said["response"]),
            (StatusCode::OK, &json!({"uid": "u-1", "allowed": true}))
        );
        let (status, said) = ask(&pages, review("eve")).await;
        assert_eq!((status, &said["response"]["allowed"]), (StatusCode::OK, &json!(false)));
        assert_eq!(said["response"]["status"]["code"], 403);
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_connection_is_left_after_an_answer_that_says_so() {
        let pages = of_one_connection(&pages(sharding_rights(&[]).0));
        let says_close = async || {
            let request = Request::post("/nowhere").body(Body::empty()).unwrap();
            let response = pages.clone().oneshot(request).await.unwrap();
            response.headers().get(header::CONNECTION).cloned()
        };
        assert_eq!(says_close().await, None);
        tokio::time::advance(LEAVE_AFTER).await;
        assert_eq!(says_close().await, Some(HeaderValue::from_static("close")));
    }

    #[tokio::test]
    async fn policies_are_judged_and_warned_of() {
        let pages = pages(sharding_rights(&[]).0);
        let ask = async |spec: Value| {
            let request = json!({
                "uid": "u-2", "operation": "CREATE", "userInfo": {"username": "eve"}, "object": {"spec": spec},
                "resource": {"group": GROUP, "version": "v1alpha1", "resource": "circuitbreakers"},
            });
            let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
            ask_at(POLICIES, &pages, review.to_string()).await.1["response"].clone()
        };
        let warned = ask(json!({})).await;
        assert_eq!(
            (&warned["allowed"], warned["warnings"].as_array().map(Vec::len)),
            (&json!(true), Some(1))
        );
        assert_eq!(
            ask(json!({"selector": {}})).await,
            json!({"uid": "u-2", "allowed": true})
        );
        let refused = ask(json!({"selector": {}, "rateLimitings": [{"name": "a/b"}]})).await;
        assert_eq!(
            (&refused["allowed"], &refused["status"]["code"]),
            (&json!(false), &json!(422))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_no_question_is_not_read_to_its_end() {
        let pages = pages(sharding_rights(&[]).0);
        assert_eq!(ask(&pages, "{}").await.0, StatusCode::BAD_REQUEST);
        assert_eq!(
            ask(&pages, "x".repeat(MAX_BODY_BYTES + 1)).await.0,
            StatusCode::BAD_REQUEST
        );
        let silent = Body::from_stream(futures::stream::pending::<Result<String, std::io::Error>>());
        assert_eq!(ask(&pages, silent).await.0, StatusCode::BAD_REQUEST);
    }
}
