//! An API server of one answer per request, for tests of what an agent makes of answers.

use std::sync::Arc;

use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

/// A client whose requests are answered by `answer` of method and path: an object, or the code of a failure.
pub(crate) fn answering(answer: impl Fn(&Method, &str) -> Result<Value, u16> + Send + Sync + 'static) -> Client {
    answering_bodies(move |method, path, _| answer(method, path))
}

/// The same by what a request brings, too: an object, or null.
pub(crate) fn answering_bodies(
    answer: impl Fn(&Method, &str, Value) -> Result<Value, u16> + Send + Sync + 'static,
) -> Client {
    let answer = Arc::new(answer);
    let service = tower::service_fn(move |request: Request<Body>| {
        let answer = answer.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let (code, body) = match answer(&head.method, head.uri.path(), body) {
                Ok(body) => (200, body),
                Err(code) => (code, failure(code)),
            };
            let response = Response::builder()
                .status(code)
                .body(Body::from(body.to_string().into_bytes()));
            Ok::<_, std::convert::Infallible>(response.unwrap())
        }
    });
    Client::new(service, "default")
}

fn failure(code: u16) -> Value {
    let reason = match code {
        404 => "NotFound",
        409 => "Conflict",
        _ => "InternalError",
    };
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason})
}
