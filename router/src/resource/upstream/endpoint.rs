//! From a target's endpoints to an open, verified TLS connection.
//!
//! Endpoints are tried in order of preference; one that just failed is passed over for a while, so that a dead first
//! choice does not cost every new connection its time-out. Callers: `pool` for HTTP/2, `upgrade` for HTTP/1.1.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use http::uri::Authority;
use parking_lot::Mutex;
use portolan_runtime::tls::{self, TrustStore};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::socket::{self, Bulk};
use crate::value::snapshot;

/// An endpoint that failed is tried last for this long.
const AVOID_FAILED_FOR: Duration = Duration::from_secs(10);

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
        let reason = error.to_string();
        match error.kind() {
            Io::ConnectionRefused
            | Io::ConnectionReset
            | Io::HostUnreachable
            | Io::NetworkUnreachable
            | Io::TimedOut => Self::Tcp { address, reason },
            _ => Self::Untried { address, reason },
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

/// Opens connections to one target.
#[derive(Debug)]
pub(crate) struct Dialer {
    endpoints: Vec<Endpoint>,
    http2: Arc<ClientConfig>,
    http1: Arc<ClientConfig>,
    connect_timeout: Duration,
}

#[derive(Debug)]
struct Endpoint {
    authority: Authority,
    host: String,
    port: u16,
    server_name: ServerName<'static>,
    /// A mutex: read and written once per dial.
    failed_at: Mutex<Option<Instant>>,
}

/// One open connection.
#[derive(Debug)]
pub(crate) struct Dialed {
    pub(crate) stream: TlsStream<Bulk>,
    /// For `:authority` and `Host`.
    pub(crate) authority: Authority,
}

impl Dialer {
    pub(crate) fn new(target: &snapshot::Target, connect_timeout: Duration) -> Result<Self, ConnectError> {
        let unusable = |error: &dyn std::fmt::Display| ConnectError::Unusable(error.to_string());
        let trust = TrustStore::from_pem(&target.ca_pem).map_err(|error| unusable(&error))?;
        let config = |alpn| tls::client_config(trust.clone(), None, alpn).map_err(|error| unusable(&error));
        let endpoints = target
            .endpoints
            .iter()
            .map(Endpoint::new)
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            endpoints,
            http2: config(tls::ALPN_GRPC)?,
            http1: config(tls::ALPN_HTTP1)?,
            connect_timeout,
        })
    }

    /// The first endpoint in order that answers, within the connect time-out each. `ready` makes the protocol's own
    /// greeting part of what an endpoint must manage in that time.
    pub(crate) async fn dial<T, F>(&self, protocol: Protocol, ready: impl Fn(Dialed) -> F) -> Result<T, ConnectError>
    where
        F: Future<Output = Result<T, ConnectError>>,
    {
        let mut failure = ConnectError::Unusable("there is none".to_owned());
        for endpoint in self.in_order(Instant::now()) {
            let attempt = async { ready(self.connect(endpoint, protocol).await?).await };
            let outcome = match tokio::time::timeout(self.connect_timeout, attempt).await {
                Ok(outcome) => outcome,
                Err(_) => Err(ConnectError::Timeout {
                    address: endpoint.address(),
                    after: self.connect_timeout,
                }),
            };
            match outcome {
                Ok(connection) => {
                    *endpoint.failed_at.lock() = None;
                    return Ok(connection);
                }
                Err(error) => {
                    *endpoint.failed_at.lock() = Some(Instant::now());
                    failure = error;
                }
            }
        }
        Err(failure)
    }

    /// Whichever endpoint connects first, all of them tried at once; an error if none does in the connect time-out.
    pub(crate) async fn race(&self, protocol: Protocol) -> Result<Dialed, ConnectError> {
        let attempts = self.endpoints.iter().map(|endpoint| {
            let attempt = tokio::time::timeout(self.connect_timeout, self.connect(endpoint, protocol));
            let late = || ConnectError::Timeout {
                address: endpoint.address(),
                after: self.connect_timeout,
            };
            attempt
                .map(move |outcome| outcome.unwrap_or_else(|_| Err(late())))
                .boxed()
        });
        let attempts: Vec<_> = attempts.collect();
        if attempts.is_empty() {
            return Err(ConnectError::Unusable("there is none".to_owned()));
        }
        let (dialed, _) = futures::future::select_ok(attempts).await?;
        Ok(dialed)
    }

    /// Those that did not just fail first; each part in order of preference.
    fn in_order(&self, now: Instant) -> impl Iterator<Item = &Endpoint> {
        let failed = move |endpoint: &&Endpoint| {
            endpoint
                .failed_at
                .lock()
                .is_some_and(|at| now.saturating_duration_since(at) < AVOID_FAILED_FOR)
        };
        let (avoided, preferred): (Vec<_>, Vec<_>) = self.endpoints.iter().partition(failed);
        preferred.into_iter().chain(avoided)
    }

    async fn connect(&self, endpoint: &Endpoint, protocol: Protocol) -> Result<Dialed, ConnectError> {
        let tcp = TcpStream::connect((endpoint.host.as_str(), endpoint.port))
            .await
            .map_err(|error| ConnectError::tcp(endpoint.address(), &error))?;
        let config = match protocol {
            Protocol::Http2 => &self.http2,
            Protocol::Http1 => &self.http1,
        };
        let tls = |reason: String| ConnectError::Tls {
            address: endpoint.address(),
            reason,
        };
        let mut stream = TlsConnector::from(config.clone())
            .connect(endpoint.server_name.clone(), socket::tuned(tcp))
            .await
            .map_err(|error| match error.get_ref() {
                Some(inner) if inner.is::<rustls::Error>() => tls(error.to_string()),
                _ => ConnectError::Cut {
                    address: endpoint.address(),
                    reason: error.to_string(),
                },
            })?;
        if protocol == Protocol::Http2 {
            if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
                return Err(tls("it does not offer HTTP/2".to_owned()));
            }
            stream.get_mut().0.gather();
        }
        Ok(Dialed {
            stream,
            authority: endpoint.authority.clone(),
        })
    }
}

impl Endpoint {
    fn new(endpoint: &snapshot::Endpoint) -> Result<Self, ConnectError> {
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
            failed_at: Mutex::new(None),
        })
    }

    fn address(&self) -> String {
        self.authority.to_string()
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
