//! A gRPC connection to the hub: TLS against the pinned CA alone, keep-alive, time-outs.
//!
//! Not here: what is said on it (`join`, `stream`).

use std::time::Duration;

use portolan_runtime::Secret;
use thiserror::Error;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

/// TCP and TLS together: a hub that is away is found out soon.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Pings also while idle: a path that died half-open is found within the sum of both.
const KEEP_ALIVE_PERIOD: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Why no connection could be made.
#[derive(Debug, Error)]
pub(crate) enum DialError {
    #[error("{0:?} is not the host:port of a hub")]
    Address(String),
    #[error("cannot reach the hub at {hub}")]
    Connect {
        hub: String,
        #[source]
        source: tonic::transport::Error,
    },
}

/// Whom to connect to, trusting whom.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HubAddress<'a> {
    /// `host:port`.
    pub(crate) hub: &'a str,
    pub(crate) ca_pem: &'a str,
}

/// Connects, with a client certificate once there is one.
pub(crate) async fn dial(
    address: HubAddress<'_>,
    identity: Option<(&str, &Secret<String>)>,
) -> Result<Channel, DialError> {
    let HubAddress { hub, ca_pem } = address;
    let host = host_of(hub).ok_or_else(|| DialError::Address(hub.to_owned()))?;
    let mut tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(ca_pem))
        .domain_name(host);
    if let Some((certificate, key)) = identity {
        tls = tls.identity(Identity::from_pem(certificate, key.expose()));
    }
    let failed = |source| DialError::Connect {
        hub: hub.to_owned(),
        source,
    };
    Endpoint::from_shared(format!("https://{hub}"))
        .map_err(|_| DialError::Address(hub.to_owned()))?
        .tls_config(tls)
        .map_err(failed)?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEP_ALIVE_PERIOD)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .connect()
        .await
        .map_err(failed)
}

/// The host of `host:port`, brackets of an IPv6 address removed.
pub(crate) fn host_of(address: &str) -> Option<&str> {
    let (host, port) = address.rsplit_once(':')?;
    port.parse::<u16>().ok()?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host = bare.unwrap_or(host);
    (!host.is_empty() && (bare.is_some() || !host.contains([':', '/', '@']))).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::host_of;

    #[test]
    fn hosts_of_addresses() {
        for (address, host) in [
            ("hub.example.com:7443", Some("hub.example.com")),
            ("127.0.0.1:7443", Some("127.0.0.1")),
            ("[::1]:7443", Some("::1")),
            ("hub.example.com", None),
            ("https://hub:7443", None),
            ("hub:port", None),
            (":7443", None),
            ("::1:7443", None),
        ] {
            assert_eq!(host_of(address), host, "{address}");
        }
    }
}
