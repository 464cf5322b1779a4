//! TLS as all programs speak it: one crypto provider, identities and CA bundles that reload, both kinds of config.
//!
//! A config is built once; it reads its stores on each handshake, so a rotated certificate or CA counts for the
//! next connection without a restart. Session resumption is off everywhere: a resumed session would skip exactly
//! the checks that a reload is for, and our connections are long. Not here: issuing (`pki`), who may do what.
//! Callers: every listener and every client.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::server::NoServerSessionStorage;
use rustls::{ClientConfig, ServerConfig};
use thiserror::Error;

mod identity;
mod incoming;
mod reload;
mod trust;

pub use identity::{Identity, IdentityStore};
pub use incoming::{STRANGER_LIFE, TlsConnection, TlsIncoming};
pub use reload::{CaFile, DEFAULT_RELOAD_PERIOD, IdentityFiles};
pub use trust::{ClientAuth, TrustStore};

use identity::StoreResolver;

/// HTTP/2 before HTTP/1.1.
pub const ALPN_HTTP: &[&[u8]] = &[b"h2", b"http/1.1"];
/// HTTP/2 only: gRPC.
pub const ALPN_GRPC: &[&[u8]] = &[b"h2"];
/// HTTP/1.1 only.
pub const ALPN_HTTP1: &[&[u8]] = &[b"http/1.1"];

/// What is wrong with TLS material. Names files, never contents.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A PEM text without certificate.
    #[error("no certificate found in the PEM text")]
    NoCertificate,
    /// A text that is no PEM.
    #[error("unreadable PEM text: {0}")]
    Pem(String),
    /// A PEM text without private key.
    #[error("no private key found in the PEM text")]
    NoKey,
    /// Certificate and key do not fit each other, or cannot be used.
    #[error("the certificate and its key cannot be used")]
    Identity(#[source] rustls::Error),
    /// The CA bundle has a certificate that cannot be used.
    #[error("the CA bundle holds a certificate that cannot be used")]
    Roots(#[source] rustls::Error),
    /// No protocol version or cipher is left.
    #[error("the TLS configuration is not possible")]
    Config(#[source] rustls::Error),
    /// A certificate that cannot be read.
    #[error(transparent)]
    Certificate(#[from] crate::pki::PkiError),
    /// A file that cannot be read.
    #[error(transparent)]
    File(#[from] crate::files::FileError),
}

/// Installs aws-lc-rs as the process's only crypto provider. First call of `main`; later calls do nothing.
pub fn install_crypto_provider() {
    // An error means that one is installed already, and aws-lc-rs is the only one we build.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

/// The provider, whether or not it is installed: library code and tests need no order.
pub(crate) fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    install_crypto_provider();
    rustls::crypto::CryptoProvider::get_default()
        .expect("a provider was just installed")
        .clone()
}

/// A server that reads `identity` on each handshake. While the store is empty handshakes fail.
pub fn server_config(
    identity: Arc<IdentityStore>,
    client_auth: ClientAuth,
    alpn: &[&[u8]],
) -> Result<Arc<ServerConfig>, TlsError> {
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Config)?;
    let mut config = builder
        .with_client_cert_verifier(client_auth.into_verifier())
        .with_cert_resolver(Arc::new(StoreResolver(identity)));
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// A client that reads trust and identity on each handshake. An empty identity store offers no certificate.
pub fn client_config(
    trust: Arc<TrustStore>,
    identity: Option<Arc<IdentityStore>>,
    alpn: &[&[u8]],
) -> Result<Arc<ClientConfig>, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Config)?;
    // "dangerous" is rustls' word for a verifier of one's own; ours delegates to webpki's.
    let builder = builder
        .dangerous()
        .with_custom_certificate_verifier(trust.server_verifier());
    let mut config = match identity {
        Some(identity) => builder.with_client_cert_resolver(Arc::new(StoreResolver(identity))),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests;
