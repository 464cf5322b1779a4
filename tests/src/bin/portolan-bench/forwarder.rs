//! A forwarder without features: hyper and rustls on both sides, one upstream connection for each client connection.
//!
//! It stands beside the router in every table, as what any proxy of this kind must cost. No identity, no routing, no
//! limits, no time-outs. Run as a process of its own by the hidden subcommand `forwarder`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use http::uri::{Authority, Scheme};
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2 as client;
use hyper::server::conn::http2 as server;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use portolan_runtime::Tasks;
use portolan_runtime::files;
use portolan_runtime::tls::{self, ALPN_GRPC, TrustStore};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::server::TlsStream;

use crate::served::{self, MAX_STREAMS, ServeArgs};

/// Flags of the subcommand.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ForwarderArgs {
    #[command(flatten)]
    serve: ServeArgs,
    /// Where to.
    #[arg(long)]
    backend: SocketAddr,
    /// PEM file that the backend's certificate chains to.
    #[arg(long)]
    backend_ca: PathBuf,
}

#[derive(Clone)]
struct Forwarder {
    backend: SocketAddr,
    authority: Authority,
    tls: Arc<ClientConfig>,
    tasks: Tasks,
}

pub(crate) async fn run(args: &ForwarderArgs) -> anyhow::Result<()> {
    let ca = String::from_utf8(files::read(&args.backend_ca)?).context("the CA is not text")?;
    let forwarder = Forwarder {
        backend: args.backend,
        authority: args.backend.to_string().parse()?,
        tls: tls::client_config(TrustStore::from_pem(&ca)?, None, ALPN_GRPC)?,
        tasks: Tasks::new(),
    };
    served::serve(&args.serve, move |stream| {
        let forwarder = forwarder.clone();
        async move {
            // A connection that breaks is the client's to report.
            let _ = forwarder.connection(stream).await;
        }
    })
    .await
}

impl Forwarder {
    async fn connection(self, stream: TlsStream<TcpStream>) -> anyhow::Result<()> {
        let upstream = self.connect().await?;
        let authority = self.authority;
        let service = service_fn(move |request| forward(upstream.clone(), authority.clone(), request));
        server::Builder::new(TokioExecutor::new())
            .max_concurrent_streams(MAX_STREAMS)
            .serve_connection(TokioIo::new(stream), service)
            .await?;
        Ok(())
    }

    async fn connect(&self) -> anyhow::Result<client::SendRequest<Incoming>> {
        let tcp = TcpStream::connect(self.backend).await?;
        tcp.set_nodelay(true)?;
        let name = ServerName::from(self.backend.ip());
        let stream = TlsConnector::from(self.tls.clone()).connect(name, tcp).await?;
        let (send, connection) = client::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        self.tasks.spawn("forwarder-upstream", async move {
            let _ = connection.await;
        });
        Ok(send)
    }
}

async fn forward(
    mut upstream: client::SendRequest<Incoming>,
    authority: Authority,
    mut request: Request<Incoming>,
) -> anyhow::Result<Response<Incoming>> {
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(Scheme::HTTPS);
    parts.authority = Some(authority);
    *request.uri_mut() = Uri::from_parts(parts)?;
    Ok(upstream.send_request(request).await?)
}
