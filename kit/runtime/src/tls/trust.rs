//! Whom we trust in a handshake: a CA bundle that can be replaced while in use.
//!
//! The verifiers delegate to webpki's over the bundle of the moment; nothing is weakened. Callers: `tls` configs
//! read on each handshake; `reload` and enrolment (in memory) write.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use super::{TlsError, provider};
use crate::hex::hex;

/// A CA bundle. Never empty: an empty one would trust nobody without saying why.
pub struct TrustStore {
    // ArcSwap: each handshake reads it, and must not wait for a writer.
    current: ArcSwap<Trust>,
    // A watch: those who hold connections tell the other side what they trust. Counts changes.
    changes: watch::Sender<u64>,
    pub(super) rejected: Counter,
}

struct Trust {
    pem: String,
    fingerprint: String,
    /// SHA-256 of each certificate.
    digests: BTreeSet<[u8; 32]>,
    as_client: Arc<WebPkiServerVerifier>,
    as_server: Arc<dyn ClientCertVerifier>,
}

impl fmt::Debug for TrustStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrustStore").finish_non_exhaustive()
    }
}

impl TrustStore {
    /// All certificates of the PEM text, which must all be readable.
    pub fn from_pem(pem: &str) -> Result<Arc<Self>, TlsError> {
        Ok(Arc::new(Self {
            current: ArcSwap::from_pointee(Trust::from_pem(pem)?),
            changes: watch::Sender::new(0),
            rejected: Counter::default(),
        }))
    }

    /// Replaces the bundle for handshakes from now on. An error leaves the old one.
    pub fn set_pem(&self, pem: &str) -> Result<(), TlsError> {
        let trust = Trust::from_pem(pem)?;
        let changed = trust.fingerprint != self.fingerprint();
        self.current.store(Arc::new(trust));
        if changed {
            self.changes.send_modify(|count| *count += 1);
        }
        Ok(())
    }

    /// Changes whenever other certificates are trusted than before.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Tells one set of certificates from another, however they are written: SHA-256 in hex of their SHA-256, sorted.
    pub fn fingerprint(&self) -> String {
        self.current.load().fingerprint.clone()
    }

    /// Whether both trust a certificate.
    pub fn shares(&self, other: &Self) -> bool {
        !self.current.load().digests.is_disjoint(&other.current.load().digests)
    }

    /// Whether a client's chain (leaf first) leads to the bundle now.
    pub fn verifies_client(&self, chain: &[CertificateDer<'_>]) -> bool {
        let Some((leaf, above)) = chain.split_first() else {
            return false;
        };
        let trust = self.current.load();
        let verified = trust.as_server.verify_client_cert(leaf, above, UnixTime::now());
        verified.is_ok()
    }

    /// Whether a server of this name that shows this chain (leaf first) would be trusted now.
    pub fn verifies_server(&self, chain: &[CertificateDer<'_>], name: &ServerName<'_>) -> bool {
        let Some((leaf, above)) = chain.split_first() else {
            return false;
        };
        let trust = self.current.load();
        let verified = trust
            .as_client
            .verify_server_cert(leaf, above, name, &[], UnixTime::now());
        verified.is_ok()
    }

    /// The trusted certificates, PEM.
    pub fn pem(&self) -> String {
        self.current.load().pem.clone()
    }

    /// Registers the counter of reloads that were refused.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "ca_reloads_rejected",
            "New CA bundles that could not be used",
            self.rejected.clone(),
        );
    }

    pub(super) fn server_verifier(self: Arc<Self>) -> Arc<dyn ServerCertVerifier> {
        Arc::new(StoreVerifier {
            store: self,
            mandatory: true,
        })
    }
}

impl Trust {
    fn from_pem(pem: &str) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        let mut digests = BTreeSet::new();
        for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
            let certificate = certificate.map_err(|error| TlsError::Pem(error.to_string()))?;
            digests.insert(Sha256::digest(&certificate).into());
            roots.add(certificate).map_err(TlsError::Roots)?;
        }
        if roots.is_empty() {
            return Err(TlsError::NoCertificate);
        }
        let roots = Arc::new(roots);
        let not_possible =
            |error: rustls::server::VerifierBuilderError| TlsError::Config(Error::General(error.to_string()));
        Ok(Self {
            pem: pem.to_owned(),
            fingerprint: hex(Sha256::digest(digests.iter().flatten().copied().collect::<Vec<_>>())),
            digests,
            as_client: WebPkiServerVerifier::builder_with_provider(roots.clone(), provider())
                .build()
                .map_err(not_possible)?,
            as_server: WebPkiClientVerifier::builder_with_provider(roots, provider())
                .build()
                .map_err(not_possible)?,
        })
    }
}

/// What a server wants of its clients.
#[derive(Debug, Clone)]
pub enum ClientAuth {
    /// Asks clients for no certificate.
    None,
    /// Takes clients without certificate too: enrolment, bearer tokens. A bad certificate is still refused.
    Optional(Arc<TrustStore>),
    /// Refuses clients without a certificate that chains to the bundle.
    Required(Arc<TrustStore>),
}

impl ClientAuth {
    pub(super) fn into_verifier(self) -> Arc<dyn ClientCertVerifier> {
        match self {
            Self::None => WebPkiClientVerifier::no_client_auth(),
            Self::Optional(store) => Arc::new(StoreVerifier {
                store,
                mandatory: false,
            }),
            Self::Required(store) => Arc::new(StoreVerifier { store, mandatory: true }),
        }
    }
}

#[derive(Debug)]
struct StoreVerifier {
    store: Arc<TrustStore>,
    mandatory: bool,
}

impl StoreVerifier {
    fn trust(&self) -> arc_swap::Guard<Arc<Trust>> {
        self.store.current.load()
    }
}

impl ServerCertVerifier for StoreVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let trust = self.trust();
        trust
            .as_client
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.trust().as_client.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.trust().as_client.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.trust().as_client.supported_verify_schemes()
    }
}

impl ClientCertVerifier for StoreVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.mandatory
    }

    /// No hints: they could not follow a replacement, and clients of ours have one certificate.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let trust = self.trust();
        trust.as_server.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.trust().as_server.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.trust().as_server.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.trust().as_server.supported_verify_schemes()
    }
}
