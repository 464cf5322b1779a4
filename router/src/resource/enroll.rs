//! What this router proves itself by to the hub, and where it keeps its identity: files of the state folder.
//!
//! The life of the identity is `wire::client`'s: what is missing is told on `/readyz` and in the log, and a router that has
//! its identity needs no proof again. Caller: `app`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use portolan_runtime::files::{self, FileError};
use portolan_runtime::pki::{self, PkiError};
use portolan_runtime::tls::{Identity, TlsError};
use portolan_runtime::{Chain, ReadyHandle, Secret};
use portolan_wire::client::{About, Answer, Applicant, Applied, CaNews, EnrollError, HubLink, keep_enrolled};
use portolan_wire::v1::enroll_request::Proof as WireProof;
use portolan_wire::v1::{BoundToken, RouterPod, Trust};
use thiserror::Error;

mod trust;

pub(crate) use self::trust::HubCa;

/// Certificate chain and key in one file, so that one rename replaces both.
const IDENTITY_FILE: &str = "identity.pem";
/// The key that a bootstrap token was spent on, until its certificate is here: a lost answer can be asked for again.
const PENDING_KEY_FILE: &str = "pending-key.pem";

/// Where the identity is kept.
pub(crate) fn identity_file(state_dir: &Path) -> PathBuf {
    state_dir.join(IDENTITY_FILE)
}

/// What a router enrols with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Proof {
    /// A file with a bootstrap token.
    Bootstrap(PathBuf),
    /// A file with a bound ServiceAccount token of a member.
    Bound {
        /// The member that issued it.
        cluster: String,
        /// The token.
        file: PathBuf,
    },
}

/// Why there is no identity yet.
#[derive(Debug, Error)]
pub(crate) enum IdentityError {
    #[error("no identity in {} and neither --bootstrap-token-file nor --token-file to get one with", .0.display())]
    NoProof(PathBuf),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{} is not text", .0.display())]
    NotText(PathBuf),
    #[error(transparent)]
    Enroll(#[from] EnrollError),
    #[error("no key could be made")]
    Key(#[from] PkiError),
    #[error("the identity cannot be used")]
    Unusable(#[from] TlsError),
}

/// Gets and keeps the identity in the link's `IdentityStore`.
pub(crate) struct Enroller {
    link: HubLink,
    proof: Option<Proof>,
    pod: Option<RouterPod>,
    /// What the hub says of its CAs, by the stream, and where it is kept.
    ca: Option<(Arc<CaNews>, HubCa)>,
    state_dir: PathBuf,
    ready: ReadyHandle,
}

impl Enroller {
    pub(crate) fn new(link: HubLink, proof: Option<Proof>, state_dir: PathBuf, ready: ReadyHandle) -> Self {
        ready.not_ready("an identity from the hub");
        Self {
            link,
            proof,
            pod: None,
            ca: None,
            state_dir,
            ready,
        }
    }

    /// The Pod that this router runs in.
    pub(crate) fn in_pod(mut self, pod: Option<RouterPod>) -> Self {
        self.pod = pod;
        self
    }

    /// Trusts what the hub says of its CAs.
    pub(crate) fn trusting(mut self, news: Arc<CaNews>, ca: HubCa) -> Self {
        self.ca = Some((news, ca));
        self
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
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        keep_enrolled(&self).await;
        Ok(())
    }

    /// Keeps on disk, then serves: an identity that is in use is never lost by a restart.
    fn store(&self, identity: Identity) -> Result<(), FileError> {
        let both = format!("{}\n{}", identity.cert_pem().trim_end(), identity.key_pem().expose());
        files::write_private(identity_file(&self.state_dir), Secret::new(both).expose())?;
        self.accept(identity);
        Ok(())
    }

    fn accept(&self, identity: Identity) {
        self.link.identity().set(identity);
        self.ready.ready();
    }

    fn read_identity(&self) -> Result<Option<Identity>, IdentityError> {
        let text = read_secret(&identity_file(&self.state_dir))?;
        Ok(text.map(|text| Identity::from_pem(text.expose(), &text)).transpose()?)
    }

    fn pending_key(&self) -> Result<Secret, IdentityError> {
        let file = self.state_dir.join(PENDING_KEY_FILE);
        if let Some(key) = read_secret(&file)? {
            return Ok(key);
        }
        let key = pki::new_private_key()?;
        files::write_private(file, key.expose())?;
        Ok(key)
    }

    /// Read anew for each try: a projected token is rotated, a bootstrap token replaced.
    fn read_proof(&self) -> Result<WireProof, IdentityError> {
        match &self.proof {
            None => Err(IdentityError::NoProof(self.state_dir.clone())),
            Some(Proof::Bootstrap(file)) => Ok(WireProof::BootstrapToken(read_token(file)?)),
            Some(Proof::Bound { cluster, file }) => Ok(WireProof::BoundToken(BoundToken {
                cluster: cluster.clone(),
                token: read_token(file)?,
            })),
        }
    }
}

impl Applicant for Enroller {
    type Error = IdentityError;

    fn identity(&self) -> Option<Arc<Identity>> {
        self.link.identity().load()
    }

    async fn apply(&self) -> Result<Applied, IdentityError> {
        let proof = self.read_proof()?;
        let key = self.pending_key()?;
        match self.link.enroll(proof, About::Router(self.pod.clone()), &key).await? {
            Answer::Pending { reason, wait } => Ok(Applied::Pending { reason, wait }),
            Answer::Issued(identity) => {
                self.store(identity)?;
                // Best effort: the key is in the identity file now, a leftover is only untidy.
                let _ = std::fs::remove_file(self.state_dir.join(PENDING_KEY_FILE));
                tracing::info!(hub = self.link.address(), "enrolled");
                Ok(Applied::Enrolled)
            }
        }
    }

    async fn renew(&self) -> Result<(), IdentityError> {
        Ok(self.store(self.link.renew().await?)?)
    }

    async fn told(&self) -> Trust {
        match &self.ca {
            Some((news, _)) => news.take().await,
            None => std::future::pending().await,
        }
    }

    /// The stream comes back by it.
    async fn trust(&self, ca_pem: &str) -> Result<(), IdentityError> {
        if let Some((_, ca)) = &self.ca {
            ca.replace(ca_pem)?;
        }
        Ok(())
    }

    /// Only before the first identity: a router that cannot renew its own still serves.
    fn waits_for(&self, what: String) {
        if self.identity().is_none() {
            self.ready.not_ready(what);
        }
    }
}

fn read_token(file: &Path) -> Result<String, IdentityError> {
    Ok(read_text(file)?.trim().to_owned())
}

fn read_secret(path: &Path) -> Result<Option<Secret>, IdentityError> {
    match read_text(path) {
        Ok(text) => Ok(Some(Secret::new(text))),
        Err(IdentityError::File(error)) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

fn read_text(path: &Path) -> Result<String, IdentityError> {
    String::from_utf8(files::read(path)?).map_err(|_| IdentityError::NotText(path.to_owned()))
}

#[cfg(test)]
mod tests;
