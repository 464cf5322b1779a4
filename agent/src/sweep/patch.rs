//! Writing and removing the labels of one object, such that an object that is gone stays gone.
//!
//! Labels are written by server-side apply under the agent's own field manager, with the uid in the body: without it, an
//! apply to an object deleted a moment ago would create it anew; with it, the API server answers 409. They are removed
//! by a merge patch, as other managers may own them too. Callers: `sweep::kind`, `uninstall`.

use std::collections::BTreeMap;
use std::time::Duration;

use http::HeaderMap;
use http::header::RETRY_AFTER;
use kube::api::{ApiResource, Patch, PatchParams};
use kube::client::Body;
use kube::core::{DynamicObject, Request, Status};
use kube::{Client, Resource};
use portolan_crds::labels::{FENCE_EPOCH, LabelKeys, MANAGER_AGENT};
use portolan_runtime::Backoff;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::inventory::{Subject, Todo};
use super::pacer::{Load, Pacer};
use crate::member::{CallError, bounded};
use crate::metrics::{Metrics, Patched};

/// Tries of one object in a row, some seconds altogether: few patches are under way at a time, and objects that a broken
/// webhook of somebody else refuses must not keep all others from their labels.
const TRIES: u32 = 6;
/// Longest wait between two of them.
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Writes labels of one kind.
#[derive(Clone)]
pub(crate) struct Patcher {
    /// One that repeats nothing by itself: refusals set the pace of all.
    pub(crate) client: Client,
    pub(crate) resource: ApiResource,
    pub(crate) subject: Subject,
    pub(crate) pacer: Pacer,
    pub(crate) metrics: Metrics,
}

impl Patcher {
    /// Writes `labels`. [`Patched::failed`] after some tries: it may be possible later.
    pub(crate) async fn label(&self, todo: &Todo, labels: &BTreeMap<String, String>) -> Patched {
        let body = json!({
            "apiVersion": self.resource.api_version,
            "kind": self.resource.kind,
            "metadata": { "name": todo.name, "uid": todo.uid, "labels": labels },
        });
        self.until_done(todo, &PatchParams::apply(MANAGER_AGENT).force(), &Patch::Apply(body))
            .await
    }

    /// Removes the labels under `keys`, and of a Namespace what the fence knows it by. [`Patched::failed`] after some tries: it may
    /// be possible later.
    pub(crate) async fn unlabel(&self, todo: &Todo, keys: &LabelKeys) -> Patched {
        let labels: BTreeMap<&str, Value> = keys.reserved().into_iter().map(|key| (key, Value::Null)).collect();
        // A uid that is not the object's makes the API server refuse the patch.
        let mut body = json!({ "metadata": { "uid": todo.uid, "labels": labels } });
        if matches!(self.subject, Subject::Namespaces) {
            body["metadata"]["annotations"] = json!({ FENCE_EPOCH: null });
        }
        let params = PatchParams {
            field_manager: Some(MANAGER_AGENT.to_owned()),
            ..PatchParams::default()
        };
        self.until_done(todo, &params, &Patch::Merge(body)).await
    }

    async fn until_done(&self, todo: &Todo, params: &PatchParams, patch: &Patch<Value>) -> Patched {
        let mut backoff = Backoff::new(Duration::from_millis(200), RETRY_MAX);
        let url = self.url(todo);
        loop {
            let answer = {
                let _turn = self.pacer.turn().await;
                let (answer, load) = self.send(&url, todo, params, patch).await;
                self.pacer.answered(load);
                answer
            };
            let outcome = outcome_of(answer);
            self.metrics.patched(outcome.0);
            match outcome {
                (Patched::failed, Some(error)) => {
                    tracing::debug!(kind = self.resource.kind, namespace = %todo.namespace, name = %todo.name, %error, "labels not written yet");
                    if backoff.attempt() + 1 >= TRIES {
                        return Patched::failed;
                    }
                    backoff.sleep().await;
                }
                (patched, Some(error)) => {
                    tracing::warn!(kind = self.resource.kind, namespace = %todo.namespace, name = %todo.name, %error, "labels cannot be written");
                    return patched;
                }
                (patched, None) => return patched,
            }
        }
    }

    /// One request, whose answer's headers count too: Priority and Fairness says there when to come again.
    async fn send(
        &self,
        url: &str,
        todo: &Todo,
        params: &PatchParams,
        patch: &Patch<Value>,
    ) -> (Result<(), CallError>, Load) {
        let request = match Request::new(url).patch_metadata(&todo.name, params, patch) {
            Ok(request) => request.map(Body::from),
            Err(error) => return (Err(kube::Error::BuildRequest(error).into()), Load::Took(Duration::ZERO)),
        };
        let sent = Instant::now();
        let exchange = async {
            let (head, body) = self.client.send(request).await?.into_parts();
            Ok((head, body.collect_bytes().await?))
        };
        let (head, body) = match bounded(exchange).await {
            Ok(answer) => answer,
            Err(error) => return (Err(error), Load::Refused(None)),
        };
        let load = match head.status.as_u16() {
            429 | 503 | 504 => Load::Refused(retry_after(&head.headers)),
            _ => Load::Took(sent.elapsed()),
        };
        if head.status.is_success() {
            return (Ok(()), load);
        }
        // A proxy, and Priority and Fairness, refuse in plain words.
        let status = serde_json::from_slice(&body).unwrap_or_else(|_| {
            let text = String::from_utf8_lossy(&body);
            Status::failure(text.trim(), "").with_code(head.status.as_u16())
        });
        (Err(kube::Error::Api(status.boxed()).into()), load)
    }

    fn url(&self, todo: &Todo) -> String {
        let namespace = match self.subject {
            Subject::Objects => Some(&*todo.namespace),
            Subject::Namespaces => None,
        };
        DynamicObject::url_path(&self.resource, namespace)
    }
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// What the answer means, and the error where a person might want to know it.
fn outcome_of(answer: Result<(), CallError>) -> (Patched, Option<CallError>) {
    let Err(error) = answer else {
        return (Patched::labelled, None);
    };
    match error.status() {
        // 409: another object has the name now, or concurrent writes won, and then their event brings it back here.
        Some(404 | 409 | 410) => (Patched::gone, None),
        Some(400 | 403 | 405 | 413 | 415 | 422) => (Patched::refused, Some(error)),
        _ => (Patched::failed, Some(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::CALL_TIMEOUT;
    use parking_lot::Mutex;
    use std::sync::Arc;

    fn patcher(client: Client) -> Patcher {
        Patcher {
            client,
            resource: ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&()),
            subject: Subject::Objects,
            pacer: Pacer::new(std::num::NonZeroU32::new(100).unwrap()),
            metrics: Metrics::default(),
        }
    }

    fn todo(name: &str) -> Todo {
        Todo {
            namespace: "a".into(),
            name: name.into(),
            uid: "1".into(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_fails_for_ever_gives_its_turn_to_others() {
        let client = crate::testing::answering(|_, _| Err(500));
        let (patcher, todo) = (patcher(client), todo("x"));
        let labels = BTreeMap::new();
        let labelled = tokio::time::timeout(Duration::from_mins(1), patcher.label(&todo, &labels)).await;
        assert_eq!(labelled, Ok(Patched::failed));
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_asks_before_the_time_that_a_refusal_names() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let times = asked.clone();
        // As Priority and Fairness refuses: a header, and no Status.
        let service = tower::service_fn(move |_: http::Request<Body>| {
            times.lock().push(Instant::now());
            let first = times.lock().len() == 1;
            let answer = http::Response::builder().status(if first { 429 } else { 200 });
            let answer = answer
                .header(RETRY_AFTER, "9")
                .body(Body::from(b"Too many requests".to_vec()));
            std::future::ready(Ok::<_, std::convert::Infallible>(answer.unwrap()))
        });
        let patcher = patcher(Client::new(service, "default"));
        let labels = BTreeMap::new();
        let (first, second) = (todo("x"), todo("y"));
        assert_eq!(patcher.label(&first, &labels).await, Patched::labelled);
        assert_eq!(patcher.label(&second, &labels).await, Patched::labelled);
        let asked = asked.lock().clone();
        assert_eq!(asked.len(), 3);
        assert!(asked[1] - asked[0] >= Duration::from_secs(9), "{asked:?}");
        assert!(patcher.pacer.per_second() < 60.0, "{}", patcher.pacer.per_second());
    }

    #[test]
    fn what_answers_mean() {
        let failed = |code| {
            let status = Status::failure("no", "Reason").with_code(code);
            outcome_of(Err(CallError::Kube(kube::Error::Api(Box::new(status))))).0
        };
        assert_eq!(outcome_of(Ok(())).0, Patched::labelled);
        assert_eq!(outcome_of(Err(CallError::Timeout(CALL_TIMEOUT))).0, Patched::failed);
        for (code, outcome) in [
            (404, Patched::gone),
            (409, Patched::gone),
            (422, Patched::refused),
            (403, Patched::refused),
            (429, Patched::failed),
            (500, Patched::failed),
            (503, Patched::failed),
        ] {
            assert_eq!(failed(code), outcome, "{code}");
        }
    }
}
