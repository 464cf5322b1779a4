//! Trust by fingerprint alone: the first contact of an enrolment, as `kubeadm join` does it.
//!
//! The server must send its CA in its chain; the CA whose SubjectPublicKeyInfo has the pinned hash becomes the only
//! root for this handshake, and webpki verifies chain, name and dates against it. A chain without that CA is
//! refused. Caller: `tls::client_config` with `ServerTrust::Fingerprint`.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::{TlsError, provider};
use crate::pki::fingerprint_der;

const SCHEME: &str = "sha256:";
const HEX_DIGITS: usize = 64;

pub(super) fn verifier(fingerprint: &str) -> Result<Arc<dyn ServerCertVerifier>, TlsError> {
    let well_formed = fingerprint
        .strip_prefix(SCHEME)
        .is_some_and(|hex| hex.len() == HEX_DIGITS && hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
    if !well_formed {
        return Err(TlsError::Fingerprint(fingerprint.to_owned()));
    }
    Ok(Arc::new(PinVerifier {
        fingerprint: fingerprint.to_ascii_lowercase(),
        provider: provider(),
    }))
}

#[derive(Debug)]
struct PinVerifier {
    fingerprint: String,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let pinned = intermediates
            .iter()
            .find(|certificate| fingerprint_der(certificate).is_ok_and(|found| found == self.fingerprint))
            .ok_or(Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
        let mut roots = RootCertStore::empty();
        roots.add(pinned.clone().into_owned())?;
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), self.provider.clone())
            .build()
            .map_err(|error| Error::General(error.to_string()))?;
        verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
