//! The two questions of enrolment: a first certificate for a proof, a new one for the certificate of now.

use std::time::Duration;

use portolan_runtime::Secret;
use portolan_runtime::pki::{self, PkiError};
use portolan_runtime::tls::{Identity, TlsError};
use thiserror::Error;
use tonic::{Code, Response, Status};

use super::HubLink;
use crate::v1::enroll_request::Proof;
use crate::v1::enroll_response::Outcome;
use crate::v1::enrollment_client::EnrollmentClient;
use crate::v1::{EnrollRequest, EnrollResponse, MemberFacts, RenewRequest, RouterPod};

/// Time for one question to the hub, connection and signing included.
const CALL_TIMEOUT: Duration = Duration::from_secs(15);
/// Bounds of what a hub may ask us to wait while it has not accepted us: a person who accepts does not wait long.
const PENDING_WAIT_MIN: Duration = Duration::from_secs(1);
const PENDING_WAIT_MAX: Duration = Duration::from_secs(30);

/// Why there is no certificate.
#[derive(Debug, Error)]
pub enum EnrollError {
    /// The hub refuses, or the connection broke.
    #[error("the hub answers {:?}: {}", .0.code(), .0.message())]
    Status(Box<Status>),
    /// The hub did not answer in time.
    #[error("no answer from the hub within {} s", CALL_TIMEOUT.as_secs())]
    Timeout,
    /// The hub answered without a certificate.
    #[error("the hub's answer is empty")]
    EmptyAnswer,
    /// The hub issued no new certificate.
    #[error("the hub does not renew the certificate: {0}")]
    NotRenewed(String),
    /// No key or signing request could be made.
    #[error("no key or request could be made")]
    Key(#[from] PkiError),
    /// What the hub issued does not fit the key.
    #[error("the hub issued a certificate that cannot be used")]
    Identity(#[from] TlsError),
}

impl EnrollError {
    /// What the hub says if it would not take the proof or the certificate.
    pub fn refusal(&self) -> Option<&str> {
        match self {
            Self::Status(status) if matches!(status.code(), Code::Unauthenticated | Code::PermissionDenied) => {
                Some(status.message())
            }
            _ => None,
        }
    }
}

/// What the hub says to an enrolment.
#[derive(Debug)]
pub enum Answer {
    /// A certificate that fits the key.
    Issued(Identity),
    /// A person must accept us first.
    Pending {
        /// What is missing, in the hub's words.
        reason: String,
        /// How long to wait before asking again.
        wait: Duration,
    },
}

/// Who asks for a first certificate, as far as the proof does not say it.
#[derive(Debug, Clone)]
pub enum About {
    /// An agent, of the cluster with these facts.
    Member(MemberFacts),
    /// A router, in this Pod if it knows it.
    Router(Option<RouterPod>),
}

impl HubLink {
    /// Asks for the first certificate of `key`, which the caller has stored: a bootstrap token is spent on the first key
    /// that it meets, and a lost answer must be asked for again with the same one.
    pub async fn enroll(&self, proof: Proof, about: About, key: &Secret) -> Result<Answer, EnrollError> {
        let (member, pod) = match about {
            About::Member(facts) => (Some(facts), None),
            About::Router(pod) => (None, pod),
        };
        let request = EnrollRequest {
            proof: Some(proof),
            csr: pki::signing_request(key)?,
            member,
            pod,
        };
        let mut client = EnrollmentClient::new(self.channel());
        answer_of(client.enroll(request), key).await
    }

    /// Asks for a certificate with a new key, by the identity of now.
    pub async fn renew(&self) -> Result<Identity, EnrollError> {
        let key = pki::new_private_key()?;
        let request = RenewRequest {
            csr: pki::signing_request(&key)?,
        };
        let mut client = EnrollmentClient::new(self.channel());
        match answer_of(client.renew(request), &key).await? {
            Answer::Issued(identity) => Ok(identity),
            Answer::Pending { reason, .. } => Err(EnrollError::NotRenewed(reason)),
        }
    }
}

async fn answer_of(
    call: impl Future<Output = Result<Response<EnrollResponse>, Status>>,
    key: &Secret,
) -> Result<Answer, EnrollError> {
    let answered = tokio::time::timeout(CALL_TIMEOUT, call).await;
    let response = answered
        .map_err(|_| EnrollError::Timeout)?
        .map_err(|status| EnrollError::Status(Box::new(status)))?;
    match response.into_inner().outcome {
        Some(Outcome::Issued(issued)) => Ok(Answer::Issued(Identity::from_pem(&issued.certificate_pem, key)?)),
        Some(Outcome::Pending(pending)) => {
            let asked = Duration::from_secs(pending.retry_after_seconds.into());
            Ok(Answer::Pending {
                reason: pending.reason,
                wait: asked.clamp(PENDING_WAIT_MIN, PENDING_WAIT_MAX),
            })
        }
        None => Err(EnrollError::EmptyAnswer),
    }
}
