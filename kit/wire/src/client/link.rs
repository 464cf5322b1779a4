//! A gRPC channel to the hub over our own TLS: each connection reads the trust and identity stores of that moment.
//!
//! tonic's own TLS settings take PEM once; a rotated certificate would need a new channel. A channel reconnects by itself;
//! the pace of a *stream* that breaks is its owner's (`Backoff`).

use std::io;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use portolan_runtime::tls::{self, ALPN_GRPC, IdentityStore, TlsError, TrustStore};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint, Uri};

/// TCP and TLS together: three retransmissions of a first packet fit in.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Pings also while idle: a hub that is gone without a word is noticed after the sum of these two.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// A stream is opened within this or asked for again: connection, handshakes and the head of the hub's answer.
pub const OPEN_TIMEOUT: Duration = Duration::from_secs(15);

/// Why there can be no way to a hub.
#[derive(Debug, Error)]
pub enum LinkError {
    /// The address of the hub is not `host:port`.
    #[error("{0:?} is not an address of the form host:port")]
    Address(String),
    /// The TLS configuration is not possible.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Where the hub is and who we are to it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct HubLink {
    address: Arc<str>,
    endpoint: Endpoint,
    server_name: ServerName<'static>,
    tls: Arc<ClientConfig>,
    trust: Arc<TrustStore>,
    identity: Arc<IdentityStore>,
}

impl HubLink {
    /// `address` is `host:port`; `ca` the only one trusted for it. An empty `identity` offers no certificate.
    pub fn new(address: &str, ca: Arc<TrustStore>, identity: Arc<IdentityStore>) -> Result<Self, LinkError> {
        let refuse = || LinkError::Address(address.to_owned());
        let host = host_of(address).ok_or_else(refuse)?;
        // tonic refuses "https" unless it does TLS itself; the scheme is only a label here.
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|_| refuse())?;
        Ok(Self {
            address: address.into(),
            endpoint: endpoint
                .connect_timeout(CONNECT_TIMEOUT)
                .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
                .keep_alive_timeout(KEEPALIVE_TIMEOUT)
                .keep_alive_while_idle(true),
            server_name: ServerName::try_from(host.to_owned()).map_err(|_| refuse())?,
            tls: tls::client_config(ca.clone(), Some(identity.clone()), ALPN_GRPC)?,
            trust: ca,
            identity,
        })
    }

    /// `host:port`, as given.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The CAs that the hub is verified by in handshakes to come.
    pub fn trust(&self) -> &Arc<TrustStore> {
        &self.trust
    }

    /// The client certificate offered in handshakes to come.
    pub fn identity(&self) -> &Arc<IdentityStore> {
        &self.identity
    }

    /// A connection of its own, made at its first use with the identity of that moment.
    pub fn channel(&self) -> Channel {
        let link = self.clone();
        let connect = tower::service_fn(move |_: Uri| link.clone().connect());
        self.endpoint.connect_with_connector_lazy(connect)
    }

    async fn connect(self) -> io::Result<TokioIo<TlsStream<TcpStream>>> {
        let stream = TcpStream::connect(&*self.address).await?;
        stream.set_nodelay(true)?;
        let stream = TlsConnector::from(self.tls).connect(self.server_name, stream).await?;
        Ok(TokioIo::new(stream))
    }
}

/// The host of `host:port`, brackets of an IPv6 address removed; `None` for everything else.
pub fn host_of(address: &str) -> Option<&str> {
    let (host, port) = address.rsplit_once(':')?;
    port.parse::<NonZeroU16>().ok()?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host = bare.unwrap_or(host);
    (!host.is_empty() && (bare.is_some() || !host.contains([':', '/', '@']))).then_some(host)
}

#[cfg(test)]
mod tests;
