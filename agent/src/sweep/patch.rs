//! Writing and removing the labels of one object, such that an object that is gone stays gone.
//!
//! Labels are written by server-side apply under the agent's own field manager, with the uid in the body: without it, an
//! apply to an object deleted a moment ago would create it anew; with it, the API server answers 409. They are removed
//! by a merge patch, as other managers may own them too. Callers: `sweep::kind`, `uninstall`.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::api::{ApiResource, Patch, PatchParams};
use kube::core::DynamicObject;
use kube::{Api, Client};
use portolan_crds::labels::{LabelKeys, MANAGER_AGENT};
use portolan_runtime::Backoff;
use serde_json::{Value, json};

use super::inventory::{Subject, Todo};
use super::pacer::Pacer;
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

    /// Removes the labels under `keys`. [`Patched::failed`] after some tries: it may be possible later.
    pub(crate) async fn unlabel(&self, todo: &Todo, keys: &LabelKeys) -> Patched {
        let labels: BTreeMap<&str, Value> = keys.reserved().into_iter().map(|key| (key, Value::Null)).collect();
        // A uid that is not the object's makes the API server refuse the patch.
        let body = json!({ "metadata": { "uid": todo.uid, "labels": labels } });
        let params = PatchParams {
            field_manager: Some(MANAGER_AGENT.to_owned()),
            ..PatchParams::default()
        };
        self.until_done(todo, &params, &Patch::Merge(body)).await
    }

    async fn until_done(&self, todo: &Todo, params: &PatchParams, patch: &Patch<Value>) -> Patched {
        let mut backoff = Backoff::new(Duration::from_millis(200), RETRY_MAX);
        let objects = self.objects(todo);
        loop {
            self.pacer.turn().await;
            let answer = bounded(objects.patch_metadata(&todo.name, params, patch)).await;
            let outcome = outcome_of(answer.map(drop));
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

    fn objects(&self, todo: &Todo) -> Api<DynamicObject> {
        match self.subject {
            Subject::Objects => Api::namespaced_with(self.client.clone(), &todo.namespace, &self.resource),
            Subject::Namespaces => Api::all_with(self.client.clone(), &self.resource),
        }
    }
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
    use kube::core::Status;

    #[tokio::test(start_paused = true)]
    async fn an_object_that_fails_for_ever_gives_its_turn_to_others() {
        let client = crate::testing::answering(|_, _| Err(500));
        let patcher = Patcher {
            client,
            resource: ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&()),
            subject: Subject::Objects,
            pacer: Pacer::new(std::num::NonZeroU32::new(100).unwrap()),
            metrics: Metrics::default(),
        };
        let todo = Todo {
            namespace: "a".into(),
            name: "x".into(),
            uid: "1".into(),
        };
        let labels = BTreeMap::new();
        let labelled = tokio::time::timeout(Duration::from_mins(1), patcher.label(&todo, &labels)).await;
        assert_eq!(labelled, Ok(Patched::failed));
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
