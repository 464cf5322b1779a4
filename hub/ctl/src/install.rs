//! `portolanctl install`: CustomResourceDefinitions, the hub's RBAC, and who may write ShardingConfigs. Safe to repeat.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use portolan_crds::definitions::definitions;
use portolan_crds::labels::WEBHOOK_AUTHORS;
use serde_json::json;

use crate::apply::{self, MANAGER};
use crate::cli::InstallArgs;
use crate::connect::connect;
use crate::hub_ca;

const HUB_RBAC: &str = include_str!("../../../deploy/hub/rbac.yaml");
const HUB_ROLES: &str = include_str!("../../../deploy/hub/roles.yaml");
const HUB_WEBHOOK: &str = include_str!("../../../deploy/hub/webhook.yaml");
/// At the end of `--webhook-url`.
const AUTHORS_PATH: &str = "/shardingconfigs";
const CRD_PATIENCE: Duration = Duration::from_secs(30);
const CRD_POLL: Duration = Duration::from_millis(100);

pub(crate) async fn run(args: &InstallArgs) -> anyhow::Result<()> {
    let hub = connect("the hub", args.hub.hub_kubeconfig.as_deref()).await?;
    install(&hub.client).await?;
    let ca = hub_ca::published(&hub.client).await?;
    let authors = authors(args.webhook_url.as_deref(), ca.as_deref())?;
    apply::apply(&hub.client, &authors).await?;
    println!(
        "installed into {}: CustomResourceDefinitions, the hub's RBAC, and the webhook that asks it who may write ShardingConfigs",
        hub.url
    );
    if ca.is_none() {
        println!(
            "nobody can write ShardingConfigs yet: start portolan-hub, which makes its CA, then run `portolanctl install` again"
        );
    }
    Ok(())
}

/// Applies CRDs and RBAC and waits until the API server serves the kinds.
pub(crate) async fn install(client: &Client) -> anyhow::Result<()> {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in definitions() {
        let name = crd.name_any();
        crds.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&crd))
            .await
            .with_context(|| format!("cannot apply CustomResourceDefinition {name}"))?;
        wait_established(&crds, &name).await?;
    }
    apply::apply(client, &rbac()?).await
}

/// Namespace, ServiceAccount and roles of the hub's program; roles for people, bound to nobody.
pub(crate) fn rbac() -> anyhow::Result<Vec<DynamicObject>> {
    let mut objects = apply::parse("deploy/hub/rbac.yaml", HUB_RBAC)?;
    objects.extend(apply::parse("deploy/hub/roles.yaml", HUB_ROLES)?);
    Ok(objects)
}

/// Has the API server ask the hub about writes of ShardingConfigs and policies: at `url`, else by the Service. Without the hub's CA it
/// trusts no answer, and refuses all.
pub(crate) fn authors(url: Option<&str>, ca_pem: Option<&str>) -> anyhow::Result<Vec<DynamicObject>> {
    let mut objects = apply::parse("deploy/hub/webhook.yaml", HUB_WEBHOOK)?;
    if url.is_some() {
        objects.retain(|object| object.types.as_ref().is_none_or(|types| types.kind != "Service"));
    }
    let webhook = objects.last_mut().context("the webhook is the last")?;
    let webhooks = webhook.data["webhooks"].as_array_mut().context("it has webhooks")?;
    if let Some(url) = url {
        webhooks.retain_mut(|webhook| {
            let client = &mut webhook["clientConfig"];
            let found = beside(url, client["service"]["path"].as_str().unwrap_or_default());
            *client = json!({"url": found});
            found.is_some()
        });
    }
    for webhook in webhooks {
        let client = &mut webhook["clientConfig"];
        if let Some(pem) = ca_pem {
            client["caBundle"] = json!(STANDARD.encode(pem));
        }
    }
    Ok(objects)
}

/// Where the hub is asked at `path`, by the `url` at which it is asked who may write ShardingConfigs. Behind one that is
/// another's nobody knows: policies are judged once they are stored, as ever.
fn beside(url: &str, path: &str) -> Option<String> {
    match url.strip_suffix(AUTHORS_PATH) {
        Some(hub) => Some(format!("{hub}{path}")),
        None => (path == AUTHORS_PATH).then(|| url.to_owned()),
    }
}

/// Has the API server trust these CAs where it asks the hub, wherever that is; false if it does not ask it.
pub(crate) async fn trust(client: &Client, ca_pem: &str) -> anyhow::Result<bool> {
    let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let present = webhooks.get_opt(WEBHOOK_AUTHORS).await;
    let present = present.with_context(|| format!("cannot read ValidatingWebhookConfiguration {WEBHOOK_AUTHORS}"))?;
    let Some(first) = present.and_then(|present| present.webhooks?.into_iter().next()) else {
        return Ok(false);
    };
    apply::apply(client, &authors(first.client_config.url.as_deref(), Some(ca_pem))?).await?;
    Ok(true)
}

async fn wait_established(crds: &Api<CustomResourceDefinition>, name: &str) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        let crd = crds
            .get(name)
            .await
            .with_context(|| format!("cannot read CustomResourceDefinition {name}"))?;
        let conditions = crd.status.and_then(|status| status.conditions).unwrap_or_default();
        if conditions
            .iter()
            .any(|condition| condition.type_ == "Established" && condition.status == "True")
        {
            return Ok(());
        }
        if started.elapsed() > CRD_PATIENCE {
            bail!("CustomResourceDefinition {name} is not established: {conditions:?}");
        }
        tokio::time::sleep(CRD_POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hub_is_asked_where_it_is() {
        let client = |objects: &[DynamicObject], webhook: usize| {
            objects[objects.len() - 1].data["webhooks"][webhook]["clientConfig"].clone()
        };
        let objects = authors(None, None).unwrap();
        assert_eq!(objects.len(), 2);
        let service = client(&objects, 0);
        assert_eq!(
            (&service["service"]["port"], &service["caBundle"]),
            (&json!(7445), &json!(null))
        );
        let objects = authors(Some("https://h:1/shardingconfigs"), Some("pem")).unwrap();
        assert_eq!(objects.len(), 1);
        assert_eq!(
            client(&objects, 0),
            json!({"url": "https://h:1/shardingconfigs", "caBundle": "cGVt"})
        );
        assert_eq!(
            client(&objects, 1),
            json!({"url": "https://h:1/policies", "caBundle": "cGVt"})
        );
        let objects = authors(Some("https://gate/hub"), None).unwrap();
        assert_eq!(client(&objects, 0), json!({"url": "https://gate/hub"}));
        assert_eq!(client(&objects, 1), json!(null));
    }
}
