//! How the agent gets its identity: bootstrap token and key → Enroll → a Secret in the member; Renew at half-life.
//!
//! A restart with a stored identity needs neither token nor hub. Without one it asks until the hub says yes, and says in
//! the log what a person must do. Callers: `app` (once, then [`renew::run`] for ever).

pub(crate) mod bootstrap;
pub(crate) mod identity;
pub(crate) mod renew;

use std::time::{Duration, SystemTime};

use kube::Client;
use portolan_crds::labels::SECRET_AGENT_BOOTSTRAP;
use portolan_runtime::files::FileError;
use portolan_runtime::pki::{PkiError, new_key_and_csr};
use portolan_runtime::{Backoff, Secret};
use portolan_wire::v1::enroll_request::Proof;
use portolan_wire::v1::enroll_response::Outcome;
use portolan_wire::v1::enrollment_client::EnrollmentClient;
use portolan_wire::v1::{EnrollRequest, Pending};
use rustls::pki_types::CertificateSigningRequestDer;
use rustls::pki_types::pem::PemObject;
use thiserror::Error;
use tonic::{Code, Status};

use crate::explain::chain;
use crate::hub::{DialError, HubAddress, dial};
use crate::member::{self, CallError};
use bootstrap::{Bootstrap, BootstrapSource};
use identity::{AgentIdentity, IdentityError, IdentityStore, Stored};

/// Longest wait for the hub's answer.
pub(crate) const ENROLL_TIMEOUT: Duration = Duration::from_secs(15);
/// Bounds of the waits while the hub's half of the opt-in is missing; the hub suggests one in between.
const PENDING_MIN: Duration = Duration::from_secs(1);
const PENDING_MAX: Duration = Duration::from_secs(30);
/// Name in the CSR. The hub takes only the public key of it.
const CSR_NAME: &str = "portolan-agent";

/// Why there is no identity yet. All are retried: a person can mend each without a restart.
#[derive(Debug, Error)]
pub(crate) enum JoinError {
    #[error(
        "no {what}: give {flag}, or run `portolanctl join` for this cluster, which writes Secret {namespace}/{SECRET_AGENT_BOOTSTRAP}"
    )]
    Missing {
        what: &'static str,
        flag: &'static str,
        namespace: String,
    },
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Member(#[from] CallError),
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("the hub refuses the bootstrap token ({reason}): make a new one with `portolanctl join`")]
    Refused { reason: String },
    #[error("the hub's answer to the enrolment: {0}")]
    Hub(String),
    #[error("no answer from the hub within {} s", ENROLL_TIMEOUT.as_secs())]
    Timeout,
    #[error(transparent)]
    Pki(#[from] PkiError),
    #[error("the hub issued a certificate that cannot be used")]
    Identity(#[from] IdentityError),
}

/// Everything needed to get an identity.
#[derive(Clone)]
pub(crate) struct Joiner {
    pub(crate) client: Client,
    pub(crate) source: BootstrapSource,
    pub(crate) store: IdentityStore,
}

enum Answer {
    Issued(Box<AgentIdentity>),
    Pending(Pending),
}

impl Joiner {
    /// The stored identity, else a new one; returns when there is one. Safe to cancel at any point.
    pub(crate) async fn identity(&self) -> AgentIdentity {
        let mut backoff = Backoff::default();
        loop {
            match self.attempt().await {
                Ok(Answer::Issued(identity)) => return *identity,
                Ok(Answer::Pending(pending)) => {
                    tracing::info!(
                        reason = pending.reason,
                        "joined, but not accepted yet: set spec.accept to true on this cluster's MemberCluster on the hub"
                    );
                    let suggested = Duration::from_secs(u64::from(pending.retry_after_seconds));
                    tokio::time::sleep(jittered(suggested.clamp(PENDING_MIN, PENDING_MAX))).await;
                }
                Err(error) => {
                    tracing::warn!(error = %chain(&error), attempt = backoff.attempt(), "cannot join yet");
                    backoff.sleep().await;
                }
            }
        }
    }

    #[tracing::instrument(name = "join", skip_all)]
    async fn attempt(&self) -> Result<Answer, JoinError> {
        let stored = self.store.load().await?;
        let bootstrap = self.source.read(&self.client).await;
        let identity = match stored {
            Stored::Nothing => return self.enroll(&bootstrap?, None).await,
            Stored::KeyOnly(key) => return self.enroll(&bootstrap?, Some(key)).await,
            Stored::Whole(identity) => identity,
        };
        let now = SystemTime::now();
        let Some(reason) = rejoin_reason(&identity, bootstrap.as_ref().ok(), now) else {
            return Ok(Answer::Issued(Box::new(self.at_given_hub(*identity))));
        };
        tracing::warn!(cluster = identity.cluster, reason, "joining anew");
        let bootstrap = bootstrap?;
        match self.enroll(&bootstrap, Some(identity.key_pem.clone())).await {
            Err(error @ JoinError::Refused { .. })
                if identity.is_valid_at(now) && bootstrap.is_of_ca(&identity.ca_pem) =>
            {
                tracing::warn!(error = %chain(&error), "going on with the identity of the earlier join");
                Ok(Answer::Issued(Box::new(self.at_given_hub(*identity))))
            }
            outcome => outcome,
        }
    }

    /// For an agent whom the hub refuses: a new identity, if this cluster was joined again since it got its own.
    async fn rejoin(&self, identity: &AgentIdentity) -> Result<Option<AgentIdentity>, JoinError> {
        let bootstrap = self.source.read(&self.client).await?;
        if rejoin_reason(identity, Some(&bootstrap), SystemTime::now()).is_none() {
            return Ok(None);
        }
        match self.enroll(&bootstrap, Some(identity.key_pem.clone())).await? {
            Answer::Issued(identity) => Ok(Some(*identity)),
            Answer::Pending(pending) => Err(JoinError::Hub(pending.reason)),
        }
    }

    /// `--hub` says where the hub is now, whatever it was when the identity was issued.
    fn at_given_hub(&self, mut identity: AgentIdentity) -> AgentIdentity {
        if let Some(hub) = &self.source.hub {
            identity.origin.hub.clone_from(hub);
        }
        identity
    }

    async fn enroll(&self, bootstrap: &Bootstrap, key: Option<Secret<String>>) -> Result<Answer, JoinError> {
        let facts = member::facts(&self.client).await?;
        let (key, csr) = if let Some(key) = key {
            let csr = csr_of(&key)?;
            (key, csr)
        } else {
            let (key, csr) = new_key_and_csr(CSR_NAME)?;
            self.store.store_key(&key).await?;
            (key, csr_der(&csr)?)
        };
        let request = EnrollRequest {
            proof: Some(Proof::BootstrapToken(bootstrap.token.expose().clone())),
            csr,
            member: Some(facts),
        };
        let address = HubAddress {
            hub: &bootstrap.hub,
            ca_pem: &bootstrap.ca_pem,
        };
        match ask(address, request).await? {
            Outcome::Pending(pending) => Ok(Answer::Pending(pending)),
            Outcome::Issued(issued) => {
                let identity = AgentIdentity::issued(issued, key, &bootstrap.ca_pem, bootstrap.origin())?;
                self.store.store(&identity).await?;
                tracing::info!(cluster = identity.cluster, hub = identity.origin.hub, "joined");
                Ok(Answer::Issued(Box::new(identity)))
            }
        }
    }
}

/// Why a stored identity is not to be used any more.
fn rejoin_reason(identity: &AgentIdentity, bootstrap: Option<&Bootstrap>, now: SystemTime) -> Option<&'static str> {
    if !identity.is_valid_at(now) {
        Some("the stored identity has expired")
    } else if bootstrap.is_some_and(|bootstrap| !bootstrap.is_of_ca(&identity.ca_pem)) {
        Some("the bootstrap is for a hub with another CA")
    } else if bootstrap.is_some_and(|bootstrap| bootstrap.hash() != identity.origin.bootstrap) {
        Some("this cluster was joined again")
    } else {
        None
    }
}

async fn ask(address: HubAddress<'_>, request: EnrollRequest) -> Result<Outcome, JoinError> {
    let mut client = EnrollmentClient::new(dial(address, None).await?);
    let answer = tokio::time::timeout(ENROLL_TIMEOUT, client.enroll(request))
        .await
        .map_err(|_| JoinError::Timeout)?;
    let response = answer.map_err(|status| refusal(&status))?.into_inner();
    response
        .outcome
        .ok_or_else(|| JoinError::Hub("an empty answer".to_owned()))
}

fn refusal(status: &Status) -> JoinError {
    match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => JoinError::Refused {
            reason: status.message().to_owned(),
        },
        code => JoinError::Hub(format!("{code:?}: {}", status.message())),
    }
}

pub(crate) fn csr_der(csr_pem: &str) -> Result<Vec<u8>, PkiError> {
    let csr = CertificateSigningRequestDer::from_pem_slice(csr_pem.as_bytes())
        .map_err(|error| PkiError::Certificate(error.to_string()))?;
    Ok(csr.as_ref().to_vec())
}

/// A request for the key that an earlier attempt has stored.
fn csr_of(key: &Secret<String>) -> Result<Vec<u8>, PkiError> {
    let failed = |action| move |source| PkiError::Generate { action, source };
    let key = rcgen::KeyPair::from_pem(key.expose()).map_err(failed("read the stored key"))?;
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, CSR_NAME);
    let request = params.serialize_request(&key).map_err(failed("sign a request"))?;
    Ok(request.der().as_ref().to_vec())
}

/// Up to a quarter later, so that a fleet that waits for one thing does not ask in step.
pub(crate) fn jittered(wait: Duration) -> Duration {
    wait.mul_f64(rand::random_range(1.0..1.25))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bootstrap::tests::bootstrap;
    use identity::tests::identity;

    #[test]
    fn when_a_stored_identity_is_given_up() {
        let (now, mut mine) = (
            SystemTime::now(),
            identity("portolan:agent:east", "portolan:agents").unwrap(),
        );
        let same = bootstrap(&mine.ca_pem, "abc123.first");
        mine.origin = same.origin();
        let again = bootstrap(&mine.ca_pem, "abc123.second");
        let elsewhere = bootstrap("another CA", "abc123.first");
        let reason = |bootstrap, now| rejoin_reason(&mine, bootstrap, now).unwrap_or("none");
        assert_eq!(reason(None, now), "none");
        assert_eq!(reason(Some(&same), now), "none");
        assert!(reason(Some(&again), now).contains("joined again"));
        assert!(reason(Some(&elsewhere), now).contains("another CA"));
        assert!(reason(None, now + Duration::from_hours(2)).contains("expired"));
    }

    #[test]
    fn a_stored_key_asks_again_with_the_same_public_key() {
        let (key, csr) = new_key_and_csr(CSR_NAME).unwrap();
        let spki = |der: &[u8]| {
            use x509_parser::prelude::{FromDer, X509CertificationRequest};
            let (_, request) = X509CertificationRequest::from_der(der).unwrap();
            request.certification_request_info.subject_pki.raw.to_vec()
        };
        assert_eq!(spki(&csr_der(&csr).unwrap()), spki(&csr_of(&key).unwrap()));
    }

    #[test]
    fn refusals_name_the_fix() {
        let error = refusal(&Status::unauthenticated("token abc123 has expired"));
        assert!(
            error.to_string().contains("portolanctl join") && error.to_string().contains("expired"),
            "{error}"
        );
        assert!(matches!(refusal(&Status::unavailable("starting")), JoinError::Hub(_)));
    }
}
