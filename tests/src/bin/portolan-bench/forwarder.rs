//! A forwarder without features: hyper and rustls on both sides, one upstream connection for each client connection.
//!
//! It stands beside the router in every table, as what any proxy of this kind must cost. No identity, no limits, no time-outs, and
//! no routing but by the one prefix of a second upstream. Run as a process of its own by the hidden subcommand `forwarder`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use http::uri::{Authority, PathAndQuery, Scheme};
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
use tokio::sync::OnceCell;
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
    /// Where to for paths below `/second`.
    #[arg(long, requires = "second_ca")]
    second: Option<SocketAddr>,
    /// PEM file that the second one's certificate chains to.
    #[arg(long)]
    second_ca: Option<PathBuf>,
}

/// Before paths that are for the second backend.
const SECOND: &str = "/second";

#[derive(Clone)]
struct Forwarder {
    backend: Backend,
    second: Option<Backend>,
    tasks: Tasks,
}

#[derive(Clone)]
struct Backend {
    address: SocketAddr,
    authority: Authority,
    tls: Arc<ClientConfig>,
}

/// Of one client connection: to each backend one connection, made for the first request.
struct Upstreams {
    forwarder: Forwarder,
    first: OnceCell<client::SendRequest<Incoming>>,
    second: OnceCell<client::SendRequest<Incoming>>,
}

pub(crate) async fn run(args: &ForwarderArgs) -> anyhow::Result<()> {
    let second = args.second.zip(args.second_ca.as_ref());
    let forwarder = Forwarder {
        backend: Backend::new(args.backend, &args.backend_ca)?,
        second: second.map(|(address, ca)| Backend::new(address, ca)).transpose()?,
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

impl Backend {
    fn new(address: SocketAddr, ca: &Path) -> anyhow::Result<Self> {
        let ca = String::from_utf8(files::read(ca)?).context("the CA is not text")?;
        Ok(Self {
            address,
            authority: address.to_string().parse()?,
            tls: tls::client_config(TrustStore::from_pem(&ca)?, None, ALPN_GRPC)?,
        })
    }

    async fn connect(&self, tasks: &Tasks) -> anyhow::Result<client::SendRequest<Incoming>> {
        let tcp = TcpStream::connect(self.address).await?;
        tcp.set_nodelay(true)?;
        let name = ServerName::from(self.address.ip());
        let stream = TlsConnector::from(self.tls.clone()).connect(name, tcp).await?;
        let (send, connection) = client::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        tasks.spawn("forwarder-upstream", async move {
            let _ = connection.await;
        });
        Ok(send)
    }
}

impl Forwarder {
    async fn connection(self, stream: TlsStream<TcpStream>) -> anyhow::Result<()> {
        let upstreams = Arc::new(Upstreams {
            forwarder: self,
            first: OnceCell::new(),
            second: OnceCell::new(),
        });
        let service = service_fn(move |request| forward(upstreams.clone(), request));
        server::Builder::new(TokioExecutor::new())
            .max_concurrent_streams(MAX_STREAMS)
            .serve_connection(TokioIo::new(stream), service)
            .await?;
        Ok(())
    }
}

impl Upstreams {
    async fn to(&self, second: bool) -> anyhow::Result<(&Backend, client::SendRequest<Incoming>)> {
        let (backend, sender) = match &self.forwarder.second {
            Some(backend) if second => (backend, &self.second),
            _ => (&self.forwarder.backend, &self.first),
        };
        let sender = sender
            .get_or_try_init(|| backend.connect(&self.forwarder.tasks))
            .await?;
        Ok((backend, sender.clone()))
    }
}

async fn forward(upstreams: Arc<Upstreams>, mut request: Request<Incoming>) -> anyhow::Result<Response<Incoming>> {
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    let rest = parts.path_and_query.as_ref().map_or("/", PathAndQuery::as_str);
    let rest = rest.strip_prefix(SECOND).map(PathAndQuery::try_from).transpose()?;
    let (backend, mut sender) = upstreams.to(rest.is_some()).await?;
    parts.scheme = Some(Scheme::HTTPS);
    parts.authority = Some(backend.authority.clone());
    parts.path_and_query = rest.or(parts.path_and_query);
    *request.uri_mut() = Uri::from_parts(parts)?;
    Ok(sender.send_request(request).await?)
}
