//! `status.storedVersions` of CustomResourceDefinitions: what a client takes out of them at the primary, once it has migrated the
//! objects of a version through the merged view, is taken out at the others. Caller: `edge`.

use std::collections::BTreeSet;

use bytes::Bytes;
use futures::future::join_all;
use http::header::HeaderValue;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Behind, Copies, WITHIN};
use crate::decision::plan::{Forward, Replica, Replicas, Way};
use crate::stage::fanout::FanOuts;
use crate::stage::preflight::Pending;
use crate::value::classify::ResourceRequest;
use crate::value::fault::Fault;
use crate::value::object::message_of;

const MERGE: HeaderValue = HeaderValue::from_static("application/merge-patch+json");
/// For one that its own controllers change at the same moment.
const ATTEMPTS: usize = 3;

/// Versions in which objects of a kind are stored, or were.
pub(crate) type StoredVersions = BTreeSet<String>;

fn stored(definition: &Value) -> Vec<String> {
    let versions = definition.pointer("/status/storedVersions").and_then(Value::as_array);
    let versions = versions.into_iter().flatten();
    versions.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// What a copy keeps; `None` if it has none of what was taken out, or would be left without any.
fn kept(copy: &Value, removed: &StoredVersions) -> Option<Vec<String>> {
    let has = stored(copy);
    let kept: Vec<String> = has
        .iter()
        .filter(|version| !removed.contains(*version))
        .cloned()
        .collect();
    (kept.len() < has.len() && !kept.is_empty()).then_some(kept)
}

/// That what a write takes out at the primary may stay in a member.
pub(crate) fn unread(other: &Replica, why: &str) -> Behind {
    Behind {
        cluster: other.cluster.clone(),
        reason: "unread",
        message: format!("what was taken out of its storedVersions may be there yet: {why}"),
    }
}

impl FanOuts {
    /// As the primary has them; `None` if they cannot be read.
    pub(crate) async fn stored_versions(
        &self,
        primary: &Forward,
        replicas: &Replicas,
        pending: Pending<'_>,
    ) -> Option<StoredVersions> {
        let path = replicas.resource.object_path();
        let read = self.preflight.object(primary, &path, pending).await;
        let (status, bytes) = read.ok()?;
        let definition: Value = serde_json::from_slice(&bytes)
            .ok()
            .filter(|_| status == StatusCode::OK)?;
        Some(stored(&definition).into_iter().collect())
    }

    /// Takes out at the others what the primary does not have any more. Who still has it is told.
    pub(crate) async fn forget_versions(
        &self,
        primary: &Forward,
        replicas: &Replicas,
        before: &StoredVersions,
        pending: Pending<'_>,
    ) -> Vec<Behind> {
        let pending = Pending {
            deadline: pending.deadline.min(Instant::now() + WITHIN),
            ..pending
        };
        let Some(now) = self.stored_versions(primary, replicas, pending).await else {
            let why = "what the primary stores now cannot be read";
            return replicas.others.iter().map(|other| unread(other, why)).collect();
        };
        let removed: StoredVersions = before.difference(&now).cloned().collect();
        if removed.is_empty() {
            return Vec::new();
        }
        let resource = ResourceRequest {
            subresource: None,
            ..replicas.resource.clone()
        };
        let copies = Copies {
            primary,
            limits: replicas.limits.as_ref(),
            path: resource.object_path(),
            resource: &resource,
            pending,
        };
        let forgotten = replicas
            .others
            .iter()
            .map(|other| self.forget_in(&copies, other, &removed));
        join_all(forgotten).await.into_iter().filter_map(Result::err).collect()
    }

    async fn forget_in(&self, copies: &Copies<'_>, other: &Replica, removed: &StoredVersions) -> Result<(), Behind> {
        let versions: Vec<&str> = removed.iter().map(String::as_str).collect();
        let behind = |reason, why: &str| Behind {
            cluster: other.cluster.clone(),
            reason,
            message: format!("{} is in its storedVersions yet: {why}", versions.join(", ")),
        };
        let candidate = match &other.way {
            Way::Open(candidate) => candidate,
            Way::Closed(why) => return Err(behind("refused", why)),
            Way::Unknown(fault) => return Err(behind("away", &fault.to_string())),
        };
        if let Some(held) = &candidate.held {
            return Err(behind("away", held));
        }
        let allowed = self.is_ours(candidate, copies).await;
        allowed.map_err(|fault| match fault {
            Fault::Forbidden(why) => behind("refused", &why),
            other => behind("away", &other.to_string()),
        })?;
        let mut last = String::new();
        for _ in 0..ATTEMPTS {
            let read = self
                .preflight
                .object(&candidate.forward, &copies.path, copies.pending)
                .await;
            let (status, bytes) = read.map_err(|fault| behind("away", &fault.to_string()))?;
            match status {
                StatusCode::OK => {}
                StatusCode::NOT_FOUND => return Ok(()),
                status => {
                    let said = message_of(&bytes).unwrap_or_else(|| status.to_string());
                    return Err(behind("unread", &said));
                }
            }
            let copy: Value = serde_json::from_slice(&bytes).map_err(|error| behind("unread", &error.to_string()))?;
            let Some(kept) = kept(&copy, removed) else {
                return Ok(());
            };
            let patch = json!({
                "metadata": {"resourceVersion": copy["metadata"]["resourceVersion"]},
                "status": {"storedVersions": kept},
            });
            let asked = copies.of_status(Method::PATCH);
            let sent = (asked, MERGE, Bytes::from(patch.to_string()));
            let sent = self.send(&candidate.forward, sent, copies.pending).await;
            let (status, body) = sent.map_err(|fault| behind("away", &fault.to_string()))?;
            last = message_of(&body).unwrap_or_else(|| status.to_string());
            match status {
                status if status.is_success() => return Ok(()),
                StatusCode::CONFLICT => {}
                status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                    return Err(behind("away", &last));
                }
                _ => return Err(behind("refused", &last)),
            }
        }
        Err(behind("late", &last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_out_is_taken_out_and_nothing_else() {
        let copy = |versions: Value| json!({"status": {"storedVersions": versions}});
        let removed = StoredVersions::from(["v1alpha1".to_owned()]);
        let keeps = |versions| kept(&copy(versions), &removed);
        assert_eq!(keeps(json!(["v1alpha1", "v1"])), Some(vec!["v1".to_owned()]));
        assert_eq!(keeps(json!(["v1"])), None);
        assert_eq!(keeps(json!(["v1alpha1"])), None, "one is stored in any case");
        assert_eq!(
            keeps(json!(["v1alpha1", "v1beta1", "v1"])),
            Some(vec!["v1beta1".to_owned(), "v1".to_owned()]),
            "what only this member stores"
        );
        assert_eq!(kept(&json!({}), &removed), None);
    }
}
