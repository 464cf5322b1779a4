//! The hub cluster: kinds, who leads, rights, the CA and the webhook.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::Api;
use kube::{Client, ResourceExt as _};
use portolan_crds::definitions::definitions;
use portolan_crds::labels::{SERVICE_HUB, SYSTEM_NAMESPACE, WEBHOOK_AUTHORS};
use portolan_runtime::pki;

use super::accounts;
use super::report::{Area, Report};
use crate::{hub_ca, install, leader, rights};

/// A CA that ends sooner is to be replaced now.
const CA_ENDS_SOON: Duration = Duration::from_hours(30 * 24);
/// Deployment of the hub, as its chart names it.
const DEPLOYMENT: &str = SERVICE_HUB;
const ACCOUNT: (&str, &str) = (SYSTEM_NAMESPACE, "portolan-hub");
const INSTALL: &str = "helm upgrade portolan …, or portolanctl install";

/// What later looks rest on.
pub(super) struct Seen {
    /// A replica leads: what the hub says is of now.
    pub(super) leads: bool,
    /// PEM.
    pub(super) ca: Option<String>,
    /// The tag of the hub's image.
    pub(super) version: Option<String>,
}

pub(super) async fn look(report: &mut Report, client: &Client) -> Seen {
    reader(report, client).await;
    kinds(report, client).await;
    let leads = lease(report, client).await;
    let version = deployment(report, client).await;
    if let Some(manifests) = report.read(Area::Rights, "the hub's rights", install::rbac()) {
        accounts::look(report, ("hub", client), &[ACCOUNT], &manifests, INSTALL).await;
    }
    let ca = authority(report, client).await;
    webhook(report, client, ca.as_deref()).await;
    Seen { leads, ca, version }
}

/// Whether whoever runs this may look.
async fn reader(report: &mut Report, client: &Client) {
    let what = "whoever runs this may look at all of it";
    if let Some(missing) = report.read(Area::Rights, what, rights::missing_to_check(client).await) {
        if missing.is_empty() {
            report.well(Area::Rights, what, "SelfSubjectAccessReview, status.allowed");
        } else {
            report.unknown(Area::Rights, what, missing.join(", "));
        }
    }
}

async fn kinds(report: &mut Report, client: &Client) {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for ours in definitions() {
        let name = ours.name_any();
        let what = format!("kind {} is served as this version has it", ours.spec.names.kind);
        let Some(found) = report.read(Area::Kinds, &what, crds.get_opt(&name).await) else {
            continue;
        };
        let object = format!("CustomResourceDefinition {name}");
        let Some(found) = found else {
            report.wrong(Area::Kinds, what, format!("{object} is not there"), INSTALL);
            continue;
        };
        if !is_established(&found) {
            let fix = format!("kubectl describe crd {name} says why");
            report.wrong(
                Area::Kinds,
                what,
                format!("{object}, condition Established is not True"),
                fix,
            );
        } else if found.spec.versions != ours.spec.versions {
            let witness = format!("{object}, spec.versions is that of another version or of somebody else");
            report.wrong(
                Area::Kinds,
                what,
                witness,
                format!("{INSTALL}, of version {}", env!("CARGO_PKG_VERSION")),
            );
        } else {
            report.well(
                Area::Kinds,
                what,
                format!("{object}, spec.versions and condition Established"),
            );
        }
    }
}

fn is_established(crd: &CustomResourceDefinition) -> bool {
    let conditions = crd.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut established = conditions.filter(|condition| condition.type_ == "Established");
    established.any(|condition| condition.status == "True")
}

async fn lease(report: &mut Report, client: &Client) -> bool {
    let what = "a replica of the hub leads";
    let object = leader::object();
    match report.read(Area::Programs, what, leader::look(client).await) {
        Some(Ok(holder)) => {
            report.well(
                Area::Programs,
                what,
                format!("{object}, spec.renewTime is renewed by {holder}"),
            );
            true
        }
        Some(Err(why)) => {
            let fix = format!(
                "kubectl -n {SYSTEM_NAMESPACE} logs deployment/{DEPLOYMENT}; a hub that runs elsewhere is to be started"
            );
            report.wrong(Area::Programs, what, format!("{object}: {why}"), fix);
            false
        }
        None => false,
    }
}

/// Whether all replicas are ready. Returns the tag of their image.
async fn deployment(report: &mut Report, client: &Client) -> Option<String> {
    let what = "all replicas of the hub are ready";
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let found = report.read(Area::Programs, what, deployments.get_opt(DEPLOYMENT).await)?;
    let object = format!("Deployment {SYSTEM_NAMESPACE}/{DEPLOYMENT}");
    let Some(found) = found else {
        report.unknown(
            Area::Programs,
            what,
            format!("{object} is not there: the hub runs elsewhere"),
        );
        return None;
    };
    // What its template says no Pod need run yet.
    replicas(report, what, &object, &found).then(|| tag(&found))?
}

/// Tells whether a Deployment has what it asks for: that many Pods, all of its present template.
pub(super) fn replicas(report: &mut Report, what: &str, object: &str, found: &Deployment) -> bool {
    let wanted = found.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let status = found.status.clone().unwrap_or_default();
    let ready = status.ready_replicas.unwrap_or_default();
    let updated = status.updated_replicas.unwrap_or_default();
    let is_rolled_out = updated >= wanted && status.replicas.unwrap_or_default() <= updated;
    let witness = if ready >= wanted && !is_rolled_out {
        format!("{object}, status.updatedReplicas is {updated} of {wanted}: Pods of before run still")
    } else {
        format!("{object}, status.readyReplicas is {ready} of {wanted}")
    };
    let is_well = ready >= wanted && ready > 0 && is_rolled_out;
    if status.observed_generation < found.metadata.generation {
        report.unknown(
            Area::Programs,
            what,
            format!("{object}, status.observedGeneration is of before"),
        );
        return false;
    } else if is_well {
        report.well(Area::Programs, what, witness);
    } else {
        let (namespace, name) = (found.namespace().unwrap_or_default(), found.name_any());
        let fix = format!("kubectl -n {namespace} describe pods -l app.kubernetes.io/name={name}");
        report.wrong(Area::Programs, what, witness, fix);
    }
    is_well
}

/// The tag of the image of a Deployment's first container.
pub(super) fn tag(deployment: &Deployment) -> Option<String> {
    let pod = deployment.spec.as_ref()?.template.spec.as_ref()?;
    let image = pod.containers.first()?.image.as_ref()?;
    let name = image.rsplit('/').next()?.split('@').next()?;
    Some(name.split_once(':')?.1.to_owned())
}

/// Whether the CA is there and stays. Returns it, PEM.
async fn authority(report: &mut Report, client: &Client) -> Option<String> {
    let what = "the hub's CA is good for longer than 30 days";
    let object = format!("ConfigMap {SYSTEM_NAMESPACE}/portolan-ca, data[ca.crt]");
    let published = report.read(Area::Certificates, what, hub_ca::published(client).await)?;
    let Some(pem) = published else {
        let fix = "start portolan-hub, which makes it";
        report.wrong(Area::Certificates, what, format!("{object} is not there"), fix);
        return None;
    };
    let certificates = report.read(Area::Certificates, what, pki::certificates(&pem))?;
    for certificate in &certificates {
        let until = jiff::Timestamp::try_from(certificate.subject.not_after);
        let until = until.map_or_else(|_| "?".to_owned(), |until| until.strftime("%Y-%m-%d").to_string());
        let witness = format!("{object}: {} until {until}", certificate.subject.common_name);
        if certificate.subject.not_after > SystemTime::now() + CA_ENDS_SOON {
            report.well(Area::Certificates, what, witness);
        } else {
            report.wrong(Area::Certificates, what, witness, "portolanctl ca rotate");
        }
    }
    Some(pem)
}

/// Whether all certificates of the first text are in the second.
pub(super) fn trusts(all: &str, among: &str) -> anyhow::Result<bool> {
    let prints = |pem: &str| -> anyhow::Result<BTreeSet<String>> {
        Ok(pki::certificates(pem)?.into_iter().map(|one| one.sha256).collect())
    };
    let all = prints(all)?;
    Ok(!all.is_empty() && all.is_subset(&prints(among)?))
}

async fn webhook(report: &mut Report, client: &Client, ca: Option<&str>) {
    let what = "the API server verifies the hub's webhooks by its CA";
    let object = format!("ValidatingWebhookConfiguration {WEBHOOK_AUTHORS}");
    let registrations: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let Some(found) = report.read(Area::Webhook, what, registrations.get_opt(WEBHOOK_AUTHORS).await) else {
        return;
    };
    let webhooks = found.and_then(|found| found.webhooks).unwrap_or_default();
    let Some(first) = webhooks.first() else {
        report.wrong(
            Area::Webhook,
            what,
            format!("{object} is not there, or has no webhooks"),
            INSTALL,
        );
        return;
    };
    let Some(ca) = ca else {
        report.unknown(Area::Webhook, what, "the hub's CA is not known");
        return;
    };
    let is_other = |webhook: &&k8s_openapi::api::admissionregistration::v1::ValidatingWebhook| {
        let bundle = webhook
            .client_config
            .ca_bundle
            .as_ref()
            .map(|bundle| bundle.0.as_slice());
        let bundle = String::from_utf8_lossy(bundle.unwrap_or_default());
        !trusts(ca, &bundle).unwrap_or(false)
    };
    let other: Vec<_> = webhooks
        .iter()
        .filter(is_other)
        .map(|webhook| webhook.name.as_str())
        .collect();
    if other.is_empty() {
        report.well(
            Area::Webhook,
            what,
            format!("{object}, webhooks[].clientConfig.caBundle"),
        );
        return;
    }
    let url = first.client_config.url.as_ref();
    let url = url.map_or_else(String::new, |url| format!(" --webhook-url {url}"));
    let fix = format!("a hub that leads mends it within a minute; or portolanctl install{url}");
    let witness = format!("{object}, clientConfig.caBundle of {} is another", other.join(", "));
    report.wrong(Area::Webhook, what, witness, fix);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_version_of_an_image_is_its_tag() {
        let cases = [
            ("registry.example.com:5000/portolan/portolan-hub:0.1.0", Some("0.1.0")),
            ("portolan-hub:1@sha256:aa", Some("1")),
            ("example.com:5000/portolan-hub", None),
        ];
        for (image, wanted) in cases {
            let deployment = json!({"spec": {"selector": {}, "template": {"spec": {"containers": [{"name": "a", "image": image}]}}}});
            assert_eq!(
                tag(&serde_json::from_value(deployment).unwrap()).as_deref(),
                wanted,
                "{image}"
            );
        }
    }
}
