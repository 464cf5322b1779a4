//! What stands where a member's API server should: it passes on what it is asked, as it is asked, and lies where it is told
//! to.

use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::CONNECTION;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Response, Uri, Version};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http2 as client;
use hyper::server::conn::{http1, http2 as server};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use portolan_runtime::Tasks;
use portolan_runtime::pki::CertificateAuthority;
use portolan_runtime::tls::{self, ALPN_GRPC, ALPN_HTTP, ClientAuth, Identity, IdentityStore, TrustStore};
use rustls::{ClientConfig, ServerConfig};
use rustls_pki_types::ServerName;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio_rustls::{TlsAcceptor, TlsConnector};

const DAY: Duration = Duration::from_hours(24);

/// What it does to a request whose path has a word in it. `None`: as it would be.
pub(crate) type Lie = Box<dyn Fn(&Uri) -> Option<Told> + Send + Sync>;

/// Instead of the truth.
#[allow(dead_code, reason = "no suite has them all")]
pub(crate) enum Told {
    /// This head, and no body.
    Head(http::response::Builder),
    /// The truth, with these headers too.
    With(&'static [(&'static str, &'static str)]),
    /// The truth about something else.
    Of(String),
    /// The truth, so much later.
    Late(Duration),
    /// The truth, after so many times as long as it took.
    Slower(u32),
    /// Nothing, for as long as somebody waits.
    Never,
}

type Answer = Response<BoxBody<Bytes, hyper::Error>>;

/// Running as long as the process: a runtime cannot be dropped in another.
pub(crate) struct Front {
    pub(crate) url: String,
    /// As `caBundle` of a MemberCluster.
    pub(crate) ca_bundle: String,
    shared: Arc<Shared>,
    ca: CertificateAuthority,
    identity: Arc<IdentityStore>,
    /// Its own: it outlives the test that started it. Of one thread, see [`Front::freeze`].
    runtime: Runtime,
}

/// Stopped, as by SIGSTOP, until this is dropped.
#[allow(dead_code, reason = "not by every suite")]
pub(crate) struct Frozen(#[allow(dead_code, reason = "dropped")] mpsc::Sender<()>);

struct Shared {
    server: SocketAddr,
    authority: Authority,
    tls: Arc<ClientConfig>,
    asked: Mutex<Vec<String>>,
    /// How far the member is away.
    away: Mutex<Duration>,
    lies: Mutex<Vec<(&'static str, Lie)>>,
    tasks: Tasks,
}

impl Front {
    /// Before the API server at `url`.
    pub(crate) fn start(url: &str, ca_pem: &str) -> anyhow::Result<Self> {
        let ca = CertificateAuthority::generate("front")?;
        let identity = IdentityStore::new(issued(&ca, DAY)?);
        let config = tls::server_config(identity.clone(), ClientAuth::None, ALPN_HTTP)?;
        let listener = std::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let uri: Uri = url.parse()?;
        let authority = uri.authority().context("a server without host")?.clone();
        let shared = Arc::new(Shared {
            server: authority.as_str().parse()?,
            authority,
            tls: tls::client_config(TrustStore::from_pem(ca_pem)?, None, ALPN_GRPC)?,
            asked: Mutex::default(),
            away: Mutex::default(),
            lies: Mutex::default(),
            tasks: Tasks::new(),
        });
        let served = shared.clone();
        runtime.spawn(async move { accept(TcpListener::from_std(listener)?, config, served).await });
        Ok(Self {
            url: format!("https://{address}"),
            ca_bundle: STANDARD.encode(ca.pem()),
            shared,
            ca,
            identity,
            runtime,
        })
    }

    /// Lies about every path that has `word` in it, from now on.
    pub(crate) fn lies_about(&self, word: &'static str, lie: impl Fn(&Uri) -> Option<Told> + Send + Sync + 'static) {
        self.shared.lies.lock().push((word, Box::new(lie)));
    }

    pub(crate) fn was_asked(&self, word: &str) -> bool {
        self.shared.asked.lock().iter().any(|asked| asked.contains(word))
    }

    /// How many requests with this word have come.
    #[allow(dead_code, reason = "not by every suite")]
    pub(crate) fn times(&self, word: &str) -> usize {
        self.shared
            .asked
            .lock()
            .iter()
            .filter(|asked| asked.contains(word))
            .count()
    }

    pub(crate) fn forget(&self) {
        self.shared.asked.lock().clear();
    }
}

#[allow(dead_code, reason = "not by every suite")]
impl Front {
    /// Everything takes so much longer from now on.
    pub(crate) fn is_away_by(&self, away: Duration) {
        *self.shared.away.lock() = away;
    }

    /// Tells the truth about everything again.
    pub(crate) fn is_honest(&self) {
        self.shared.lies.lock().clear();
    }

    /// A certificate of its own CA on new connections, which ends `ttl` from now.
    pub(crate) fn wears(&self, ttl: Duration) -> anyhow::Result<()> {
        self.identity.set(issued(&self.ca, ttl)?);
        Ok(())
    }

    /// A certificate of a CA that nobody knows on new connections.
    pub(crate) fn wears_a_strangers(&self) -> anyhow::Result<()> {
        let stranger = CertificateAuthority::generate("front")?;
        self.identity.set(issued(&stranger, DAY)?);
        Ok(())
    }

    /// Stops its one thread, and with it all but what the kernel does: connections are established, and nothing is answered.
    pub(crate) fn freeze(&self) -> Frozen {
        let (held, until) = mpsc::channel();
        self.runtime.spawn(async move {
            // Blocks on purpose, and ends when the other end is dropped.
            let _ = until.recv();
        });
        Frozen(held)
    }
}

/// A leaf for loopback.
fn issued(ca: &CertificateAuthority, ttl: Duration) -> anyhow::Result<Identity> {
    let issued = ca.issue_server("front", &["127.0.0.1"], ttl)?;
    Ok(Identity::from_pem(&issued.cert_pem, &issued.key_pem)?)
}

async fn accept(listener: TcpListener, config: Arc<ServerConfig>, shared: Arc<Shared>) -> std::io::Result<()> {
    let acceptor = TlsAcceptor::from(config);
    loop {
        let (stream, _) = listener.accept().await?;
        let (acceptor, shared) = (acceptor.clone(), shared.clone());
        shared.tasks.clone().spawn("front-connection", async move {
            if let Ok(stream) = acceptor.accept(stream).await {
                let Ok(member) = shared.connect().await else { return };
                let service = service_fn(move |request| answer(shared.clone(), member.clone(), request));
                // One that breaks is the router's to report. By HTTP/1.1 it asks for `/readyz`.
                if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
                    let builder = server::Builder::new(TokioExecutor::new());
                    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                } else {
                    let builder = http1::Builder::new();
                    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                }
            }
        });
    }
}

impl Shared {
    async fn connect(&self) -> anyhow::Result<client::SendRequest<Incoming>> {
        let tcp = TcpStream::connect(self.server).await?;
        let name = ServerName::from(self.server.ip());
        let stream = TlsConnector::from(self.tls.clone()).connect(name, tcp).await?;
        let (send, connection) = client::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        self.tasks.spawn("front-member", async move {
            let _ = connection.await;
        });
        Ok(send)
    }

    fn lie(&self, uri: &Uri) -> Option<Told> {
        let path = uri.path_and_query().map_or("", PathAndQuery::as_str);
        let lies = self.lies.lock();
        let mut told = lies
            .iter()
            .filter(|(word, _)| path.contains(word))
            .map(|(_, lie)| lie(uri));
        told.next().flatten()
    }
}

async fn answer(
    shared: Arc<Shared>,
    mut member: client::SendRequest<Incoming>,
    mut request: Request<Incoming>,
) -> anyhow::Result<Answer> {
    shared.asked.lock().push(request.uri().to_string());
    let lie = shared.lie(request.uri());
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    let (mut more, mut path) = (&[][..], parts.path_and_query.take());
    let mut slower = 0;
    match lie {
        None => {}
        Some(Told::Head(head)) => return Ok(head.body(Empty::new().map_err(|never| match never {}).boxed())?),
        Some(Told::Never) => std::future::pending().await,
        Some(Told::Late(by)) => tokio::time::sleep(by).await,
        Some(Told::Slower(times)) => slower = times - 1,
        Some(Told::With(headers)) => more = headers,
        Some(Told::Of(other)) => path = Some(other.parse()?),
    }
    (parts.scheme, parts.authority, parts.path_and_query) = (Some(Scheme::HTTPS), Some(shared.authority.clone()), path);
    *request.uri_mut() = Uri::from_parts(parts)?;
    *request.version_mut() = Version::HTTP_2;
    request.headers_mut().remove(CONNECTION);
    let (asked, away) = (Instant::now(), *shared.away.lock());
    tokio::time::sleep(away).await;
    let mut response = member.send_request(request).await?.map(BodyExt::boxed);
    tokio::time::sleep(asked.elapsed() * slower).await;
    for (name, value) in more {
        response.headers_mut().append(*name, value.parse()?);
    }
    Ok(response)
}
