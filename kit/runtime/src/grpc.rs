//! A gRPC channel over our own TLS: each reconnect reads the trust and identity stores of that moment.
//!
//! tonic's own TLS settings take PEM once; a rotated certificate would need a new channel. Reconnects by itself; the
//! pace of a *stream* that breaks is its owner's (`Backoff`). Callers: the agent's and the router's hub clients.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};

/// TCP and TLS together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A peer that is gone without a word is noticed after the sum of these two.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Why an address cannot be used.
#[derive(Debug, Error)]
pub enum AddressError {
    #[error("{0:?} is not an address of the form host:port")]
    Form(String),
    #[error("{name:?} cannot be the name of a TLS server")]
    Name { name: String },
}

/// Makes a channel to `address` (`host:port`) that connects at its first use. The server must prove `server_name`,
/// by default the host of the address. `config` should offer `h2` (`tls::ALPN_GRPC`).
pub fn channel(address: &str, server_name: Option<&str>, config: Arc<ClientConfig>) -> Result<Channel, AddressError> {
    let form = || AddressError::Form(address.to_owned());
    // tonic refuses "https" unless it does TLS itself; the scheme is only a label here.
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|_| form())?;
    let host = endpoint
        .uri()
        .host()
        .filter(|_| endpoint.uri().port().is_some())
        .ok_or_else(form)?;
    let name = server_name.unwrap_or_else(|| host.trim_matches(['[', ']'])).to_owned();
    let server_name = ServerName::try_from(name.clone()).map_err(|_| AddressError::Name { name })?;
    let connector = TlsConnector::from(config);
    let target = address.to_owned();
    let connect = tower::service_fn(move |_: Uri| connect(target.clone(), server_name.clone(), connector.clone()));
    Ok(endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .connect_with_connector_lazy(connect))
}

type Connected = io::Result<TokioIo<TlsStream<TcpStream>>>;

fn connect(
    address: String,
    server_name: ServerName<'static>,
    connector: TlsConnector,
) -> BoxFuture<'static, Connected> {
    Box::pin(async move {
        let stream = TcpStream::connect(&address).await?;
        stream.set_nodelay(true)?;
        Ok(TokioIo::new(connector.connect(server_name, stream).await?))
    })
}
