//! Certificates for people: signs CertificateSigningRequests of the hub cluster for one signer.
//!
//! Who asks is the API server's word (`spec.username`, `spec.groups`), and so is who may approve. Whoever asks for itself is
//! approved here; what anybody else is to be called waits for `kubectl certificate approve`, which the API server grants to
//! who may `approve` for the signer. Names of programs are signed for nobody, whoever approves. Caller: `app`.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, PostParams};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::watcher;
use kube::{Client, ResourceExt as _};
use portolan_crds::labels::SIGNER_PERSON;
use portolan_runtime::pki::{self, LeafSpec, PkiError, Requested, Usage};
use portolan_wire::identity::Identity;
use thiserror::Error;

use crate::ca::Authorities;

/// Life of a certificate whose request does not say.
const DEFAULT_TTL: Duration = Duration::from_hours(24);
/// Longest life, whatever the request says: nothing takes a certificate back but its end.
const MAX_TTL: Duration = Duration::from_hours(7 * 24);
/// What could not be written is tried again after so long.
const AGAIN: Duration = Duration::from_secs(5);
/// Groups that Kubernetes and Portolan give meaning to.
const RESERVED: [&str; 2] = ["system:", "portolan:"];
/// Usages that a certificate for a person has; a request for others is not for one.
const USAGES: [&str; 3] = ["client auth", "digital signature", "key encipherment"];

#[derive(Debug, Error)]
enum PersonError {
    #[error("cannot write CertificateSigningRequest {name}")]
    Kube {
        name: String,
        #[source]
        source: kube::Error,
    },
    #[error("cannot sign for CertificateSigningRequest {name}")]
    Sign {
        name: String,
        #[source]
        source: PkiError,
    },
}

/// Signs for people.
pub(crate) struct Signer {
    api: Api<CertificateSigningRequest>,
    ca: Arc<Authorities>,
}

/// What is to be done with a request.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// It is signed, denied, failed, or somebody has to approve it.
    Nothing,
    /// It asks for who asks.
    Approve,
    Sign(Requested),
    /// Nobody can approve what it asks for.
    Fail(String),
}

impl Signer {
    pub(crate) fn new(client: Client, ca: Arc<Authorities>) -> Self {
        Self {
            api: Api::all(client),
            ca,
        }
    }

    /// Signs until cancelled. `watching`: a client for watches.
    pub(crate) async fn run(self, watching: Client) {
        let ours = watcher::Config::default().fields(&format!("spec.signerName={SIGNER_PERSON}"));
        let again = |_: Arc<CertificateSigningRequest>, error: &PersonError, _: Arc<Self>| {
            tracing::warn!(error = %portolan_runtime::Chain(error), "a person waits for a certificate");
            Action::requeue(AGAIN)
        };
        let reconcile = |request: Arc<CertificateSigningRequest>, signer: Arc<Self>| async move {
            signer.advance(&request).await.map(|()| Action::await_change())
        };
        let work = Controller::new(Api::<CertificateSigningRequest>::all(watching), ours);
        let done = work.run(reconcile, again, Arc::new(self));
        done.for_each(|done| async {
            if let Err(error) = done {
                tracing::debug!(%error, "a CertificateSigningRequest is looked at again");
            }
        })
        .await;
    }

    async fn advance(&self, request: &CertificateSigningRequest) -> Result<(), PersonError> {
        let name = request.name_any();
        let failed = |source| PersonError::Kube {
            name: name.clone(),
            source,
        };
        let mut next = request.clone();
        let status = next.status.get_or_insert_default();
        match step(request) {
            Step::Nothing => return Ok(()),
            Step::Approve => {
                add(
                    status,
                    "Approved",
                    "AskedForItself",
                    "the user asks for a certificate of its own name".to_owned(),
                );
                let params = PostParams::default();
                self.api
                    .replace_subresource("approval", &name, &params, &next)
                    .await
                    .map_err(failed)?;
                return Ok(());
            }
            Step::Fail(why) => add(status, "Failed", "NotForAPerson", why),
            Step::Sign(asked) => {
                let user = asked.common_name.clone();
                match self.sign(request, asked) {
                    Ok(signed) => {
                        status.certificate = Some(ByteString(signed.into_bytes()));
                        tracing::info!(user, request = name, "signed a certificate for a person");
                    }
                    Err(error @ (PkiError::Csr(_) | PkiError::CsrTooLarge(_) | PkiError::Name { .. })) => {
                        add(status, "Failed", "NotForAPerson", error.to_string());
                    }
                    Err(source) => return Err(PersonError::Sign { name, source }),
                }
            }
        }
        self.api
            .replace_status(&name, &PostParams::default(), &next)
            .await
            .map_err(failed)?;
        Ok(())
    }

    fn sign(&self, request: &CertificateSigningRequest, asked: Requested) -> Result<String, PkiError> {
        let seconds = request
            .spec
            .expiration_seconds
            .and_then(|seconds| u64::try_from(seconds).ok());
        let leaf = LeafSpec {
            common_name: asked.common_name,
            organization: asked.organizations.into_iter().next(),
            hosts: Vec::new(),
            uris: Vec::new(),
            ttl: seconds.map_or(DEFAULT_TTL, Duration::from_secs).min(MAX_TTL),
            usage: Usage::Client,
        };
        self.ca.current().of_people().sign_csr(&asked.der, &leaf)
    }
}

fn step(request: &CertificateSigningRequest) -> Step {
    let spec = &request.spec;
    let status = request.status.as_ref();
    let conditions = status
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default();
    let has = |type_: &str| conditions.iter().any(|one| one.type_ == type_ && one.status == "True");
    if spec.signer_name != SIGNER_PERSON || has("Denied") || has("Failed") || status.is_some_and(is_signed) {
        return Step::Nothing;
    }
    let asked = match person_of(request) {
        Ok(asked) => asked,
        Err(why) => return Step::Fail(why),
    };
    if has("Approved") {
        return Step::Sign(asked);
    }
    let groups = spec.groups.as_deref().unwrap_or_default();
    let itself = spec.username.as_deref() == Some(asked.common_name.as_str())
        && asked.organizations.iter().all(|group| groups.contains(group));
    if itself { Step::Approve } else { Step::Nothing }
}

fn is_signed(status: &CertificateSigningRequestStatus) -> bool {
    status.certificate.as_ref().is_some_and(|bytes| !bytes.0.is_empty())
}

/// Whom it asks for, if that is a person.
fn person_of(request: &CertificateSigningRequest) -> Result<Requested, String> {
    let usages = request.spec.usages.as_deref().unwrap_or_default();
    if let Some(other) = usages.iter().find(|usage| !USAGES.contains(&usage.as_str())) {
        return Err(format!("usage {other:?}: certificates for people are for client auth"));
    }
    let asked = pki::requested(&request.spec.request.0).map_err(|error| error.to_string())?;
    let Requested {
        common_name,
        organizations,
        ..
    } = &asked;
    let person = matches!(
        Identity::from_subject(common_name, organizations),
        Some(Identity::Person { .. })
    );
    if !person || common_name.starts_with("system:") {
        return Err(format!(
            "{common_name:?} cannot be a person's name: it is empty, or reserved for programs"
        ));
    }
    if organizations.len() > 1 {
        return Err("it asks for more than one group".to_owned());
    }
    let reserved = |group: &&String| RESERVED.iter().any(|prefix| group.starts_with(prefix));
    match organizations.iter().find(reserved) {
        Some(group) => Err(format!("group {group:?} is reserved")),
        None => Ok(asked),
    }
}

fn add(status: &mut CertificateSigningRequestStatus, type_: &str, reason: &str, message: String) {
    let now = Time(Timestamp::now());
    status
        .conditions
        .get_or_insert_default()
        .push(CertificateSigningRequestCondition {
            type_: type_.to_owned(),
            status: "True".to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_update_time: Some(now.clone()),
            last_transition_time: Some(now),
        });
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec;
    use rustls_pki_types::CertificateDer;
    use rustls_pki_types::pem::PemObject as _;

    use super::*;

    /// Asked for by ada, who is in group sre.
    fn request(common_name: &str, organization: Option<&str>) -> CertificateSigningRequest {
        let key = pki::new_private_key().unwrap();
        let csr = pki::named_request(&key, common_name, organization).unwrap();
        CertificateSigningRequest {
            spec: CertificateSigningRequestSpec {
                signer_name: SIGNER_PERSON.to_owned(),
                request: ByteString(csr.into_bytes()),
                username: Some("ada".to_owned()),
                groups: Some(vec!["sre".to_owned(), "system:authenticated".to_owned()]),
                usages: Some(vec!["client auth".to_owned()]),
                ..CertificateSigningRequestSpec::default()
            },
            ..CertificateSigningRequest::default()
        }
    }

    fn with(mut request: CertificateSigningRequest, type_: &str) -> CertificateSigningRequest {
        add(request.status.get_or_insert_default(), type_, "Test", String::new());
        request
    }

    #[test]
    fn whoever_asks_for_itself_is_approved() {
        assert_eq!(step(&request("ada", None)), Step::Approve);
        assert_eq!(step(&request("ada", Some("sre"))), Step::Approve);
        for (name, group) in [("bob", None), ("ada", Some("admins"))] {
            assert_eq!(step(&request(name, group)), Step::Nothing, "{name} {group:?}");
            assert!(matches!(step(&with(request(name, group), "Approved")), Step::Sign(_)));
        }
        assert_eq!(step(&with(request("ada", None), "Denied")), Step::Nothing);
    }

    #[test]
    fn programs_are_signed_for_nobody() {
        for (name, group) in [
            ("portolan:agent:east", Some("portolan:agents")),
            ("portolan:router:gateway", Some("portolan:routers")),
            ("portolan:agent:east", None),
            ("ada", Some("portolan:routers")),
            ("ada", Some("system:authenticated")),
            ("ada", Some("system:masters")),
            ("system:serviceaccount:ops:robot", None),
            ("", None),
        ] {
            for request in [request(name, group), with(request(name, group), "Approved")] {
                assert!(matches!(step(&request), Step::Fail(_)), "{name} {group:?}");
            }
        }
        let mut server = request("ada", None);
        server.spec.usages = Some(vec!["server auth".to_owned()]);
        assert!(matches!(step(&server), Step::Fail(_)));
        let mut other = request("portolan:agent:east", None);
        other.spec.signer_name = "example.com/other".to_owned();
        assert_eq!(step(&other), Step::Nothing);
    }

    // A client wants a runtime.
    #[tokio::test]
    async fn a_certificate_lasts_a_day_and_never_more_than_a_week() {
        let ca = Arc::new(crate::testing::authorities());
        let client = crate::testing::scripted_api(crate::testing::Objects::default());
        let signer = Signer::new(client, ca);
        for (asked, hours) in [(None, 24), (Some(3600), 1), (Some(i32::MAX), 7 * 24), (Some(-1), 24)] {
            let mut request = request("ada", None);
            request.spec.expiration_seconds = asked;
            let requested = person_of(&request).unwrap();
            let chain = signer.sign(&request, requested).unwrap();
            let der = CertificateDer::from_pem_slice(chain.as_bytes()).unwrap();
            let subject = pki::subject_of(&der).unwrap();
            let life = subject.not_after.duration_since(std::time::SystemTime::now()).unwrap();
            assert_eq!(life.as_secs().div_ceil(3600), hours, "{asked:?}");
            assert_eq!((subject.common_name.as_str(), subject.hosts.len()), ("ada", 0));
        }
    }
}
