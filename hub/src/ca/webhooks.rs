//! What the API server of the hub cluster verifies the hub by when it asks about a write: the hub puts the certificates of its CA
//! into the registration of its webhooks, so that nobody has to install them anew once there is a CA, or another one.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, Error as KubeError};
use portolan_crds::labels::WEBHOOK_AUTHORS;
use portolan_runtime::Chain;
use portolan_runtime::backoff::jittered;
use serde_json::{Value, json};

use super::Authorities;

/// Between two looks whether somebody has installed it without, or with other ones.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// After a look that failed.
const AGAIN_AFTER: Duration = Duration::from_secs(3);

/// Keeps the registration to the CAs that are trusted now, until dropped.
pub(crate) async fn keep_webhooks_trusting(client: Client, ca: Arc<Authorities>) {
    let mut changes = ca.current.subscribe();
    let mut failing = false;
    loop {
        changes.mark_unchanged();
        let outcome = trust(&client, ca.current().bundle()).await;
        if let Err(error) = &outcome
            && !failing
        {
            let name = WEBHOOK_AUTHORS;
            tracing::warn!(name, error = %Chain(error), "the API server is not told by what to verify the webhook");
        }
        failing = outcome.is_err();
        let wait = if failing { AGAIN_AFTER } else { LOOK_EVERY };
        // The sender is in `ca`, so it only ends by time or a change.
        let _ = tokio::time::timeout(jittered(wait), changes.changed()).await;
    }
}

/// Where there is no registration, nobody is asked.
async fn trust(client: &Client, bundle: &str) -> Result<(), KubeError> {
    let registrations = Api::<ValidatingWebhookConfiguration>::all(client.clone());
    let Some(present) = registrations.get_opt(WEBHOOK_AUTHORS).await? else {
        return Ok(());
    };
    let Some(patch) = patch(&present, bundle) else {
        return Ok(());
    };
    registrations
        .patch(WEBHOOK_AUTHORS, &PatchParams::default(), &Patch::Strategic(patch))
        .await?;
    tracing::info!(
        name = WEBHOOK_AUTHORS,
        "the API server verifies the webhook by the hub's CA"
    );
    Ok(())
}

/// What has to change for all of its webhooks to be verified by `bundle`; none: nothing.
fn patch(present: &ValidatingWebhookConfiguration, bundle: &str) -> Option<Value> {
    let bundle = ByteString(bundle.as_bytes().to_vec());
    let webhooks = present.webhooks.iter().flatten();
    let other = webhooks.filter(|webhook| webhook.client_config.ca_bundle.as_ref() != Some(&bundle));
    let other: Vec<_> = other
        .map(|webhook| json!({"name": webhook.name, "clientConfig": {"caBundle": bundle}}))
        .collect();
    // A write that is overtaken by another is looked at again.
    let version = present.metadata.resource_version.clone();
    (!other.is_empty()).then(|| json!({"metadata": {"resourceVersion": version}, "webhooks": other}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_verified_by_others_is_written() {
        let webhook = |name: &str, bundle: Option<&str>| {
            let bundle = bundle.map(|text| ByteString(text.as_bytes().to_vec()));
            json!({"name": name, "admissionReviewVersions": ["v1"], "sideEffects": "None", "clientConfig": {"caBundle": bundle}})
        };
        let registration = |webhooks: Value| {
            let object = json!({"metadata": {"name": "x", "resourceVersion": "7"}, "webhooks": webhooks});
            serde_json::from_value::<ValidatingWebhookConfiguration>(object).unwrap()
        };
        let all = registration(json!([webhook("a", Some("pem")), webhook("b", Some("pem"))]));
        assert_eq!(patch(&all, "pem"), None);
        let some = registration(json!([
            webhook("a", Some("pem")),
            webhook("b", None),
            webhook("c", Some("old"))
        ]));
        let written = patch(&some, "pem").unwrap();
        let named: Vec<_> = written["webhooks"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["name"].clone())
            .collect();
        assert_eq!(named, ["b", "c"]);
        assert_eq!(written["metadata"]["resourceVersion"], "7");
    }
}
