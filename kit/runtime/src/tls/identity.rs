//! Who we are in a handshake: a certificate chain with its key, in a store that can be replaced while in use.
//!
//! A replacement is judged before it is stored: what is in the store can always be used. Callers: `tls` configs
//! read on each handshake; `reload` and enrolment (in memory) write.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwapOption;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::sync::watch;

use super::{TlsError, provider};
use crate::pki::{Subject, subject_of};
use crate::secret::Secret;

/// A certificate chain (leaf first) and the key that fits it. Its `Debug` shows the subject only.
pub struct Identity {
    certified: Arc<CertifiedKey>,
    subject: Subject,
    cert_pem: String,
    key_pem: Secret,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("subject", &self.subject)
            .finish_non_exhaustive()
    }
}

impl Identity {
    /// Fails if the two do not belong together. Does not look at the clock: see [`Self::not_after`].
    pub fn from_pem(cert_pem: &str, key_pem: &Secret) -> Result<Self, TlsError> {
        let chain: Vec<_> = CertificateDer::pem_slice_iter(cert_pem.as_bytes())
            .collect::<Result<_, _>>()
            .map_err(|error| TlsError::Pem(error.to_string()))?;
        let subject = subject_of(chain.first().ok_or(TlsError::NoCertificate)?)?;
        let key = PrivateKeyDer::from_pem_slice(key_pem.expose().as_bytes()).map_err(|error| match error {
            pem::Error::NoItemsFound => TlsError::NoKey,
            other => TlsError::Pem(other.to_string()),
        })?;
        let certified = CertifiedKey::from_der(chain, key, &provider()).map_err(TlsError::Identity)?;
        Ok(Self {
            certified: Arc::new(certified),
            subject,
            cert_pem: cert_pem.to_owned(),
            key_pem: key_pem.clone(),
        })
    }

    /// What the leaf says of us.
    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    /// When the certificate expires.
    pub fn not_after(&self) -> SystemTime {
        self.subject.not_after
    }

    /// Chain as PEM, leaf first: for libraries that take PEM, and state files.
    pub fn cert_pem(&self) -> &str {
        &self.cert_pem
    }

    /// The private key, PEM.
    pub fn key_pem(&self) -> &Secret {
        &self.key_pem
    }
}

/// The current identity of one listener or client, possibly none yet.
pub struct IdentityStore {
    // ArcSwapOption: each handshake reads it, and must not wait for a writer.
    current: ArcSwapOption<Identity>,
    // A watch: those who hold connections want to know that there is a newer identity. Counts replacements.
    replacements: watch::Sender<u64>,
    not_after: Gauge,
    pub(super) rejected: Counter,
}

impl fmt::Debug for IdentityStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdentityStore")
            .field("current", &self.load())
            .finish_non_exhaustive()
    }
}

impl IdentityStore {
    /// Without identity until [`Self::set`]: before enrolment.
    pub fn empty() -> Arc<Self> {
        Arc::new(Self {
            current: ArcSwapOption::empty(),
            replacements: watch::Sender::new(0),
            not_after: Gauge::default(),
            rejected: Counter::default(),
        })
    }

    /// Starts with an identity.
    pub fn new(identity: impl Into<Arc<Identity>>) -> Arc<Self> {
        let store = Self::empty();
        store.set(identity);
        store
    }

    /// Replaces the identity for handshakes from now on; connections that are open keep theirs.
    pub fn set(&self, identity: impl Into<Arc<Identity>>) {
        let identity = identity.into();
        let not_after = identity
            .not_after()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        self.not_after.set(i64::try_from(not_after).unwrap_or(i64::MAX));
        self.current.store(Some(identity));
        self.replacements.send_modify(|count| *count += 1);
    }

    /// The identity in use, if there is one yet.
    pub fn load(&self) -> Option<Arc<Identity>> {
        self.current.load_full()
    }

    /// Changes at each replacement; 0 is "none yet".
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.replacements.subscribe()
    }

    /// Expiry, and reloads that were refused.
    pub fn register(&self, registry: &mut Registry) {
        let help = "End of the current certificate's validity since the Unix epoch";
        registry.register_with_unit("identity_not_after", help, Unit::Seconds, self.not_after.clone());
        let help = "New certificates or keys that could not be used";
        registry.register("identity_reloads_rejected", help, self.rejected.clone());
    }
}

/// Hands a store's identity to handshakes of either side.
#[derive(Debug)]
pub(super) struct StoreResolver(pub(super) Arc<IdentityStore>);

impl StoreResolver {
    fn certified(&self) -> Option<Arc<CertifiedKey>> {
        self.0
            .current
            .load()
            .as_ref()
            .map(|identity| identity.certified.clone())
    }
}

impl ResolvesServerCert for StoreResolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.certified()
    }
}

impl ResolvesClientCert for StoreResolver {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.certified()
    }

    fn has_certs(&self) -> bool {
        self.0.current.load().is_some()
    }
}
