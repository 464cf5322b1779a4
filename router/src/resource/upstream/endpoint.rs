//! One endpoint of a member: its name, its addresses, and an open, verified TLS connection to one of these.
//!
//! Not here: which endpoint and which address (`dialer`). Callers: `dialer`; `pool` for HTTP/2 and `upgrade` for HTTP/1.1
//! have what it opens.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::uri::Authority;
use parking_lot::Mutex;
use portolan_runtime::tls::{self, TrustStore};
use rustls::ClientConfig;
use rustls_pki_types::{CertificateDer, ServerName};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::addresses::{Addresses, Ages, Broken};
use super::failover::Failure;
use super::resolve::Resolver;
use super::said::plainly;
use super::socket::{self, Bulk};
use crate::value::snapshot;

/// Why there is no connection to a member. Nothing of the request was sent.
#[derive(Debug, Clone, Error)]
pub(crate) enum ConnectError {
    #[error("no endpoint can be used: {0}")]
    Unusable(String),
    #[error("cannot connect to {address}: {reason}")]
    Tcp { address: String, reason: String },
    /// This router could not even try: it finds no address, or has no port or file left.
    #[error("cannot connect to {address}: {reason}")]
    Untried { address: String, reason: String },
    #[error("the TLS handshake with {address} failed: {reason}")]
    Tls { address: String, reason: String },
    #[error("{address} broke off the TLS handshake: {reason}")]
    Cut { address: String, reason: String },
    #[error("{address} did not speak HTTP: {reason}")]
    Http { address: String, reason: String },
    #[error("connecting to {address} took longer than {after:?}")]
    Timeout { address: String, after: Duration },
    #[error("the member cluster is being removed from this router")]
    Closed,
}

impl ConnectError {
    fn tcp(address: String, error: &std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        let reason = plainly(error);
        match error.kind() {
            Io::ConnectionRefused
            | Io::ConnectionReset
            | Io::HostUnreachable
            | Io::NetworkUnreachable
            | Io::TimedOut => Self::Tcp { address, reason },
            _ => Self::Untried { address, reason },
        }
    }

    /// What it says of the endpoint; `None` where it is this router that could not try.
    pub(super) fn failure(&self) -> Option<Failure> {
        match self {
            Self::Timeout { .. } => Some(Failure::Silent),
            Self::Tls { .. } | Self::Http { .. } => Some(Failure::Untrusted),
            Self::Tcp { .. } | Self::Cut { .. } => Some(Failure::Refused),
            Self::Untried { .. } | Self::Unusable(_) | Self::Closed => None,
        }
    }

    /// Whether nobody gets through, rather than that what is there is not trusted or not understood.
    pub(crate) fn is_silence(&self) -> bool {
        matches!(self, Self::Tcp { .. } | Self::Cut { .. } | Self::Timeout { .. })
    }
}

/// Protocol of a connection, chosen by ALPN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http2,
    Http1,
}

/// How connections of one member are verified.
#[derive(Debug)]
pub(super) struct Trust {
    /// Replaced in place: the next handshake is judged by the new bundle.
    pub(super) store: Arc<TrustStore>,
    http2: Arc<ClientConfig>,
    http1: Arc<ClientConfig>,
}

impl Trust {
    pub(super) fn new(ca_pem: &str) -> Result<Self, ConnectError> {
        let unusable = |error: &dyn std::fmt::Display| ConnectError::Unusable(error.to_string());
        let store = TrustStore::from_pem(ca_pem).map_err(|error| unusable(&error))?;
        let config = |alpn| tls::client_config(store.clone(), None, alpn).map_err(|error| unusable(&error));
        Ok(Self {
            http2: config(tls::ALPN_GRPC)?,
            http1: config(tls::ALPN_HTTP1)?,
            store,
        })
    }
}

/// One name of a member's API servers, and what is behind it.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) authority: Authority,
    host: String,
    port: u16,
    server_name: ServerName<'static>,
    /// A mutex: touched by each dial, never across an await.
    pub(super) addresses: Arc<Mutex<Addresses>>,
}

/// One open connection.
#[derive(Debug)]
pub(crate) struct Dialed {
    pub(crate) stream: TlsStream<Bulk>,
    /// For `:authority` and `Host`.
    pub(crate) authority: Authority,
    pub(super) way: Way,
}

/// The way that a connection takes; while it exists it counts among its address's.
#[derive(Debug)]
pub(super) struct Way {
    /// Its place in the target's endpoints.
    pub(super) endpoint: usize,
    /// Who is at the other end, as it has shown.
    chain: Vec<CertificateDer<'static>>,
    server_name: ServerName<'static>,
    held: Held,
}

/// A connection, or an attempt at one, to an address.
#[derive(Debug)]
struct Held {
    addresses: Arc<Mutex<Addresses>>,
    address: SocketAddr,
    broken: Broken,
}

impl Held {
    fn new(addresses: &Arc<Mutex<Addresses>>, address: SocketAddr) -> Self {
        let broken = addresses.lock().began(address);
        Self {
            addresses: addresses.clone(),
            address,
            broken,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.addresses.lock().ended(self.address);
    }
}

impl Dialed {
    /// Unless the member's CA bundle has changed meanwhile, and does not vouch for the other end any more.
    pub(super) fn trusted(self, trust: &TrustStore) -> Result<Self, ConnectError> {
        if self.way.is_trusted(trust) {
            return Ok(self);
        }
        Err(ConnectError::Tls {
            address: self.authority.to_string(),
            reason: "the member's CA bundle has changed".to_owned(),
        })
    }
}

impl Way {
    /// Whether the address has left the endpoint's name for good.
    pub(super) fn is_gone(&self) -> bool {
        self.held.addresses.lock().is_gone(Instant::now(), self.held.address)
    }

    /// The next connection tries another address first.
    pub(super) fn broke(&self) {
        self.held.addresses.lock().broke(Instant::now(), self.held.address);
    }

    /// An answer came over it.
    pub(super) fn answered(&self) {
        self.held.broken.answered();
    }

    /// Whether the other end would be trusted today.
    pub(super) fn is_trusted(&self, trust: &TrustStore) -> bool {
        trust.verifies_server(&self.chain, &self.server_name)
    }
}

impl Endpoint {
    pub(super) fn new(endpoint: &snapshot::Endpoint, ages: Ages) -> Result<Self, ConnectError> {
        let url = &endpoint.url;
        let unusable = |why: &str| ConnectError::Unusable(format!("endpoint {url}: {why}"));
        let authority = url.authority().ok_or_else(|| unusable("it names no host"))?.clone();
        let host = authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let name = endpoint.tls_server_name.clone().unwrap_or_else(|| host.clone());
        let server_name =
            ServerName::try_from(name).map_err(|_| unusable("its TLS server name is no DNS name or IP address"))?;
        let port = authority.port_u16().unwrap_or(443);
        Ok(Self {
            authority,
            host,
            port,
            server_name,
            addresses: Arc::new(Mutex::new(Addresses::new(ages))),
        })
    }

    pub(super) fn address(&self) -> String {
        self.authority.to_string()
    }

    /// Whether it has a name that may come to mean other addresses.
    pub(super) fn is_named(&self) -> bool {
        self.host.parse::<IpAddr>().is_err()
    }

    /// Addresses for one dial, the best first. An error only if none was ever known.
    pub(super) async fn resolved(&self, resolver: &Resolver) -> Result<Vec<SocketAddr>, ConnectError> {
        if self.addresses.lock().is_stale(Instant::now()) {
            self.resolve(resolver).await?;
        }
        let order = self.addresses.lock().order(Instant::now());
        if order.is_empty() {
            return Err(ConnectError::Untried {
                address: self.address(),
                reason: "the name had no address a moment ago".to_owned(),
            });
        }
        Ok(order)
    }

    /// Asks what the name means now.
    pub(super) async fn resolve(&self, resolver: &Resolver) -> Result<(), ConnectError> {
        let found = match self.host.parse::<IpAddr>() {
            Ok(address) => Ok(vec![SocketAddr::new(address, self.port)]),
            Err(_) => resolver.lookup(&self.host, self.port).await,
        };
        let mut addresses = self.addresses.lock();
        let failure = match &found {
            Ok(found) if found.is_empty() => Some("the name has no address".to_owned()),
            Ok(_) => None,
            Err(error) => Some(error.to_string()),
        };
        addresses.resolved(Instant::now(), found.unwrap_or_default());
        match failure {
            Some(reason) if addresses.len() == 0 => Err(ConnectError::Untried {
                address: self.address(),
                reason,
            }),
            Some(reason) => {
                tracing::debug!(endpoint = %self.authority, reason, "addresses of before serve on");
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// A connection to one of its addresses, which is told how that went.
    pub(super) async fn connect(
        &self,
        (at, address): (usize, SocketAddr),
        protocol: Protocol,
        trust: &Trust,
    ) -> Result<Dialed, ConnectError> {
        let held = Held::new(&self.addresses, address);
        let connected = self.handshake(address, protocol, trust).await;
        let mut addresses = self.addresses.lock();
        match &connected {
            Ok(_) => addresses.connected(address),
            Err(_) => addresses.failed(Instant::now(), address),
        }
        drop(addresses);
        let stream = connected?;
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let chain = chain
            .iter()
            .map(|certificate| certificate.clone().into_owned())
            .collect();
        Ok(Dialed {
            way: Way {
                endpoint: at,
                chain,
                server_name: self.server_name.clone(),
                held,
            },
            stream,
            authority: self.authority.clone(),
        })
    }

    async fn handshake(
        &self,
        address: SocketAddr,
        protocol: Protocol,
        trust: &Trust,
    ) -> Result<TlsStream<Bulk>, ConnectError> {
        let tcp = TcpStream::connect(address)
            .await
            .map_err(|error| ConnectError::tcp(self.told(address), &error))?;
        let config = match protocol {
            Protocol::Http2 => &trust.http2,
            Protocol::Http1 => &trust.http1,
        };
        let tls = |reason: String| ConnectError::Tls {
            address: self.told(address),
            reason,
        };
        let mut stream = TlsConnector::from(config.clone())
            .connect(self.server_name.clone(), socket::tuned(tcp))
            .await
            .map_err(|error| match error.get_ref() {
                Some(inner) if inner.is::<rustls::Error>() => tls(plainly(&error)),
                _ => ConnectError::Cut {
                    address: self.told(address),
                    reason: plainly(&error),
                },
            })?;
        if protocol == Protocol::Http2 {
            if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
                return Err(tls("it does not offer HTTP/2".to_owned()));
            }
            stream.get_mut().0.gather();
        }
        Ok(stream)
    }

    /// For errors: of a name, which of its addresses.
    fn told(&self, address: SocketAddr) -> String {
        if self.is_named() {
            format!("{} ({})", self.authority, address.ip())
        } else {
            self.address()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn the_routers_own_troubles_are_not_the_members() {
        let silence = |error: &io::Error| ConnectError::tcp("east:6443".to_owned(), error).is_silence();
        for kind in [
            io::ErrorKind::ConnectionRefused,
            io::ErrorKind::ConnectionReset,
            io::ErrorKind::HostUnreachable,
            io::ErrorKind::NetworkUnreachable,
            io::ErrorKind::TimedOut,
        ] {
            assert!(silence(&kind.into()), "{kind}");
        }
        for error in [
            io::Error::other("failed to lookup address information"),
            // EMFILE
            io::Error::from_raw_os_error(24),
            io::ErrorKind::AddrNotAvailable.into(),
            io::ErrorKind::AddrInUse.into(),
        ] {
            assert!(!silence(&error), "{error}");
        }
    }
}
