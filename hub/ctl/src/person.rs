//! A client certificate of the hub CA for a person, by a CertificateSigningRequest of the hub cluster: the key never leaves
//! this machine, and the CA's never the hub. Called by kubeconfig and dev.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, DeleteParams, ObjectMeta, PostParams};
use kube::{Client, ResourceExt as _};
use portolan_crds::labels::SIGNER_PERSON;
use portolan_runtime::pki;
use portolan_runtime::secret::Secret;

use crate::hub_ca;

/// The shortest and the longest life: what the API server and the hub sign for.
const TTL: std::ops::RangeInclusive<Duration> = Duration::from_mins(10)..=Duration::from_hours(7 * 24);
/// For the hub to sign; or for a person to approve, who is told.
const PATIENCE: Duration = Duration::from_mins(5);
const POLL: Duration = Duration::from_millis(200);

/// A certificate, its key, and what verifies the router.
pub(crate) struct Person {
    pub(crate) certificate_pem: String,
    pub(crate) key_pem: Secret,
    pub(crate) ca_pem: String,
}

/// Has the hub sign for `user`. One's own name is signed for at once; for another's, approves if it may, else waits.
pub(crate) async fn certify(hub: &Client, user: &str, ttl: Duration) -> anyhow::Result<Person> {
    if !TTL.contains(&ttl) {
        bail!("--ttl: a certificate for a person lasts ten minutes to a week");
    }
    let ca_pem = hub_ca::awaited(hub).await?;
    let key_pem = pki::new_private_key()?;
    let requests = Api::<CertificateSigningRequest>::all(hub.clone());
    let request = request(user, ttl, pki::named_request(&key_pem, user, None)?)?;
    let made = requests.create(&PostParams::default(), &request).await;
    let made = made.context("cannot ask the hub for a certificate (create certificatesigningrequests)")?;
    let name = made.name_any();
    if made.spec.username.as_deref() != Some(user) {
        approve(&requests, made, user).await?;
    }
    let certificate_pem = signed(&requests, &name, user).await?;
    // Of no use any more. Who may not delete it leaves it to the cluster, which does within an hour.
    let _ = requests.delete(&name, &DeleteParams::default()).await;
    Ok(Person {
        certificate_pem,
        key_pem,
        ca_pem,
    })
}

fn request(user: &str, ttl: Duration, csr_pem: String) -> anyhow::Result<CertificateSigningRequest> {
    Ok(CertificateSigningRequest {
        metadata: ObjectMeta {
            generate_name: Some("portolan-person-".to_owned()),
            ..ObjectMeta::default()
        },
        spec: CertificateSigningRequestSpec {
            request: ByteString(csr_pem.into_bytes()),
            signer_name: SIGNER_PERSON.to_owned(),
            expiration_seconds: Some(i32::try_from(ttl.as_secs()).with_context(|| format!("--ttl for {user}"))?),
            usages: Some(vec!["digital signature".to_owned(), "client auth".to_owned()]),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    })
}

/// Approves what asks for another's name. Who may not is told who can.
async fn approve(
    requests: &Api<CertificateSigningRequest>,
    mut request: CertificateSigningRequest,
    user: &str,
) -> anyhow::Result<()> {
    let name = request.name_any();
    let now = Time(Timestamp::now());
    let approved = CertificateSigningRequestCondition {
        type_: "Approved".to_owned(),
        status: "True".to_owned(),
        reason: Some("ApprovedByPortolanctl".to_owned()),
        message: Some(format!(
            "a certificate for {user}, asked for and approved with portolanctl kubeconfig"
        )),
        last_update_time: Some(now.clone()),
        last_transition_time: Some(now),
    };
    let conditions = &mut request.status.get_or_insert_default().conditions;
    conditions.get_or_insert_default().push(approved);
    let params = PostParams::default();
    match requests.replace_subresource("approval", &name, &params, &request).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 403 => {
            eprintln!("waiting until somebody who may approves it: kubectl certificate approve {name}");
            Ok(())
        }
        // The hub has refused it meanwhile: it says why.
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot approve CertificateSigningRequest {name}")),
    }
}

/// The certificate, once the hub has signed it.
async fn signed(requests: &Api<CertificateSigningRequest>, name: &str, user: &str) -> anyhow::Result<String> {
    let started = Instant::now();
    loop {
        let request = requests.get(name).await;
        let status = request.context("cannot read the request for a certificate (get certificatesigningrequests)")?;
        let status = status.status.unwrap_or_default();
        let refused = status.conditions.iter().flatten();
        if let Some(refused) = refused
            .into_iter()
            .find(|one| one.type_ == "Denied" || one.type_ == "Failed")
        {
            let why = refused.message.as_deref().unwrap_or("no reason is told");
            bail!("no certificate for {user:?} ({}): {why}", refused.type_);
        }
        if let Some(ByteString(pem)) = status.certificate.filter(|certificate| !certificate.0.is_empty()) {
            return String::from_utf8(pem).context("the hub's certificate is no text");
        }
        if started.elapsed() > PATIENCE {
            bail!(
                "CertificateSigningRequest {name} is not signed: it is approved by kubectl certificate approve {name}, and \
                 signed by portolan-hub"
            );
        }
        tokio::time::sleep(POLL).await;
    }
}
