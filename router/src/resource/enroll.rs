//! How this router becomes known to the hub: a key and a CSR, a proof (bootstrap token or bound token), a client
//! certificate kept in the state folder, renewed at half its life. Retries for ever: what is missing is told on
//! `/readyz` and in the log, and a router that has its identity needs no proof again. Caller: `app`.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use portolan_runtime::files::{self, FileError};
use portolan_runtime::grpc::AddressError;
use portolan_runtime::tls::{Identity, TlsError};
use portolan_runtime::{Backoff, ReadyHandle, Secret, Tasks};
use portolan_wire::v1::enroll_request::Proof as WireProof;
use portolan_wire::v1::enroll_response::Outcome;
use portolan_wire::v1::enrollment_client::EnrollmentClient;
use portolan_wire::v1::{BoundToken, EnrollRequest, EnrollResponse, Issued, RenewRequest};
use rcgen::{CertificateParams, KeyPair};
use thiserror::Error;

use crate::args::Proof;
use crate::resource::subscribe::HubLink;

/// Certificate chain and key in one file, so that one rename replaces both.
const IDENTITY_FILE: &str = "identity.pem";
/// The key that a bootstrap token was spent on, until its certificate is here: a lost answer can be asked for again.
const PENDING_KEY_FILE: &str = "pending-key.pem";
/// For one question to the hub, signing included.
const CALL_TIMEOUT: Duration = Duration::from_secs(15);
/// Bounds of what a hub may ask us to wait while a join is pending.
const PENDING_WAIT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));
/// Renewals are looked at no more often than this, also for certificates that live for seconds only.
const SHORTEST_RENEWAL: Duration = Duration::from_secs(1);

/// Why there is no identity yet.
#[derive(Debug, Error)]
pub(crate) enum EnrollError {
    #[error("no identity in {} and neither --bootstrap-token-file nor --token-file to get one with", .0.display())]
    NoProof(PathBuf),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("the token file {} is not text", .0.display())]
    NotText(PathBuf),
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error("the hub answers {:?}: {}", .0.code(), .0.message())]
    Refused(Box<tonic::Status>),
    #[error("the hub did not answer within {CALL_TIMEOUT:?}")]
    Timeout,
    #[error("the hub's answer is empty")]
    EmptyAnswer,
    #[error("no key or request could be made")]
    Key(#[from] rcgen::Error),
    #[error("the identity cannot be used")]
    Identity(#[from] TlsError),
}

enum Answer {
    Issued(Issued),
    Pending { reason: String, wait: Duration },
}

/// Gets and keeps the identity in the link's `IdentityStore`.
pub(crate) struct Enroller {
    link: HubLink,
    proof: Option<Proof>,
    state_dir: PathBuf,
    ready: ReadyHandle,
}

impl Enroller {
    pub(crate) fn new(link: HubLink, proof: Option<Proof>, state_dir: PathBuf, ready: ReadyHandle) -> Self {
        ready.not_ready("an identity from the hub");
        Self {
            link,
            proof,
            state_dir,
            ready,
        }
    }

    /// Loads the identity of an earlier run, if it is good. Called before anything is served.
    pub(crate) fn load(&self) -> bool {
        match self.read_identity() {
            Ok(Some(identity)) if identity.not_after() > SystemTime::now() => {
                tracing::info!(
                    name = identity.subject().common_name,
                    "identity loaded from the state folder"
                );
                self.accept(identity);
                true
            }
            Ok(Some(identity)) => {
                tracing::warn!(not_after = ?identity.not_after(), "the identity in the state folder has expired");
                false
            }
            Ok(None) => false,
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "the identity in the state folder cannot be used");
                false
            }
        }
    }

    /// Whether there is anything to enrol with.
    pub(crate) fn has_proof(&self) -> bool {
        self.proof.is_some()
    }

    /// Enrols if need be, then renews for ever. Ends at cancellation only; safe to drop at any point.
    pub(crate) async fn run(self, tasks: Tasks) -> anyhow::Result<()> {
        let stop = tasks.token();
        stop.run_until_cancelled(self.run_uncancelled()).await;
        Ok(())
    }

    async fn run_uncancelled(&self) {
        if self.link.identity().load().is_none() {
            self.enroll_until_done().await;
        }
        loop {
            let Some(identity) = self.link.identity().load() else {
                return;
            };
            tokio::time::sleep(until_renewal(&identity, SystemTime::now())).await;
            self.renew_until_done(&identity).await;
        }
    }

    async fn enroll_until_done(&self) {
        let mut backoff = Backoff::default();
        loop {
            match self.enroll().await {
                Ok(Answer::Issued(_)) => return,
                Ok(Answer::Pending { reason, wait }) => {
                    tracing::info!(reason, wait = ?wait, "the hub has not accepted us yet");
                    self.not_ready(format!("the hub's acceptance: {reason}"));
                    tokio::time::sleep(wait).await;
                }
                Err(error) => {
                    // Also what looks final, an unknown token for example: it may be created a moment later.
                    tracing::error!(hub = self.link.address(), error = %Chain(&error), "enrolment failed, trying again");
                    self.not_ready(format!("an identity: {error}"));
                    backoff.sleep().await;
                }
            }
        }
    }

    async fn enroll(&self) -> Result<Answer, EnrollError> {
        let proof = self.read_proof()?;
        let key = match self.pending_key()? {
            Some(pem) => KeyPair::from_pem(pem.expose())?,
            None => new_key()?,
        };
        let key_pem = Secret::new(key.serialize_pem());
        files::write_private(self.state_dir.join(PENDING_KEY_FILE), key_pem.expose())?;
        let mut client = EnrollmentClient::new(self.link.channel()?);
        let request = EnrollRequest {
            proof: Some(proof),
            csr: csr_der(&key)?,
            member: None,
        };
        let answer = answer_of(call(client.enroll(request)).await?)?;
        if let Answer::Issued(issued) = &answer {
            self.store(&issued.certificate_pem, &key_pem)?;
            // Best effort: the key is in the identity file now, a leftover is only untidy.
            let _ = std::fs::remove_file(self.state_dir.join(PENDING_KEY_FILE));
            tracing::info!(hub = self.link.address(), "enrolled");
        }
        Ok(answer)
    }

    async fn renew_until_done(&self, old: &Identity) {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(1));
        while let Err(error) = self.renew().await {
            let left = old.not_after().duration_since(SystemTime::now()).unwrap_or_default();
            tracing::warn!(left = ?left, error = %Chain(&error), "the certificate could not be renewed, trying again");
            if left.is_zero() {
                // An expired certificate cannot renew itself: only a proof helps.
                return self.enroll_until_done().await;
            }
            backoff.sleep().await;
        }
    }

    async fn renew(&self) -> Result<(), EnrollError> {
        let key = new_key()?;
        let mut client = EnrollmentClient::new(self.link.channel()?);
        let request = RenewRequest { csr: csr_der(&key)? };
        match answer_of(call(client.renew(request)).await?)? {
            Answer::Issued(issued) => self.store(&issued.certificate_pem, &Secret::new(key.serialize_pem()))?,
            Answer::Pending { .. } => return Err(EnrollError::EmptyAnswer),
        }
        tracing::info!("certificate renewed");
        Ok(())
    }

    /// Judges, keeps on disk, then serves: an identity that is in use is never lost by a restart.
    fn store(&self, cert_pem: &str, key: &Secret<String>) -> Result<(), EnrollError> {
        let identity = Identity::from_pem(cert_pem, key)?;
        let both = Secret::new(format!("{}\n{}", cert_pem.trim_end(), key.expose()));
        files::write_private(self.state_dir.join(IDENTITY_FILE), both.expose())?;
        self.accept(identity);
        Ok(())
    }

    fn accept(&self, identity: Identity) {
        self.link.identity().set(identity);
        self.ready.ready();
    }

    /// Only before the first identity: a router that cannot renew its own still serves.
    fn not_ready(&self, reason: String) {
        if self.link.identity().load().is_none() {
            self.ready.not_ready(reason);
        }
    }

    fn read_identity(&self) -> Result<Option<Identity>, EnrollError> {
        let Some(text) = read_secret(self.state_dir.join(IDENTITY_FILE))? else {
            return Ok(None);
        };
        Ok(Some(Identity::from_pem(text.expose(), &text)?))
    }

    fn pending_key(&self) -> Result<Option<Secret<String>>, EnrollError> {
        read_secret(self.state_dir.join(PENDING_KEY_FILE))
    }

    /// Read anew for each try: a projected token is rotated, a bootstrap token replaced.
    fn read_proof(&self) -> Result<WireProof, EnrollError> {
        let needed = |file: &PathBuf| -> Result<String, EnrollError> {
            let bytes = files::read(file)?;
            let text = String::from_utf8(bytes).map_err(|_| EnrollError::NotText(file.clone()))?;
            Ok(text.trim().to_owned())
        };
        match &self.proof {
            None => Err(EnrollError::NoProof(self.state_dir.clone())),
            Some(Proof::Bootstrap(file)) => Ok(WireProof::BootstrapToken(needed(file)?)),
            Some(Proof::Bound { cluster, file }) => Ok(WireProof::BoundToken(BoundToken {
                cluster: cluster.clone(),
                token: needed(file)?,
            })),
        }
    }
}

fn read_secret(path: PathBuf) -> Result<Option<Secret<String>>, EnrollError> {
    match files::read(&path) {
        Ok(bytes) => Ok(Some(Secret::new(
            String::from_utf8(bytes).map_err(|_| EnrollError::NotText(path))?,
        ))),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn call<F>(answer: F) -> Result<EnrollResponse, EnrollError>
where
    F: Future<Output = Result<tonic::Response<EnrollResponse>, tonic::Status>>,
{
    match tokio::time::timeout(CALL_TIMEOUT, answer).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(EnrollError::Refused(Box::new(status))),
        Err(_) => Err(EnrollError::Timeout),
    }
}

fn answer_of(response: EnrollResponse) -> Result<Answer, EnrollError> {
    match response.outcome {
        Some(Outcome::Issued(issued)) => Ok(Answer::Issued(issued)),
        Some(Outcome::Pending(pending)) => {
            let wait = Duration::from_secs(pending.retry_after_seconds.into()).clamp(PENDING_WAIT.0, PENDING_WAIT.1);
            Ok(Answer::Pending {
                reason: pending.reason,
                wait,
            })
        }
        None => Err(EnrollError::EmptyAnswer),
    }
}

fn new_key() -> Result<KeyPair, rcgen::Error> {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)
}

/// Names nobody: the subject follows from the proof.
fn csr_der(key: &KeyPair) -> Result<Vec<u8>, rcgen::Error> {
    Ok(CertificateParams::default().serialize_request(key)?.der().to_vec())
}

/// Half of the certificate's life, at once when that has passed.
fn until_renewal(identity: &Identity, now: SystemTime) -> Duration {
    let subject = identity.subject();
    let life = subject.not_after.duration_since(subject.not_before).unwrap_or_default();
    let due = subject.not_before + life / 2;
    due.duration_since(now).unwrap_or_default().max(SHORTEST_RENEWAL)
}

/// An error with its causes in one line.
pub(crate) struct Chain<'a>(pub(crate) &'a dyn std::error::Error);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut next = self.0.source();
        while let Some(cause) = next {
            write!(f, ": {cause}")?;
            next = cause.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
