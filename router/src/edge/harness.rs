//! The whole data path in a test: a router on port 0 before scripted members, and clients with a certificate.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use portolan_runtime::pki::CertificateAuthority;
use portolan_runtime::tls::{self, ClientAuth, Identity, IdentityStore, TrustStore};
use portolan_runtime::{Readiness, Tasks};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{Edge, EdgeParts};
use crate::accept::{self, AcceptConfig};
use crate::edge::metrics::RequestMetrics;
use crate::resource::access::{Access, Asked, Decision, HubReviews, MemberApi};
use crate::resource::injected::InjectedFaults;
use crate::resource::load::Load;
use crate::resource::routing::RoutingStore;
use crate::resource::upstream::scripted::{open_to, spawn};
use crate::stage::admit::metrics::AdmitMetrics;
use crate::stage::admit::{Admit, Limits};
use crate::stage::discovery::{Discovery, DiscoveryMetrics};
use crate::stage::dispatch::{DispatchMetrics, Dispatcher, OwnRequests};
use crate::stage::fanout::metrics::FanOutMetrics;
use crate::stage::fanout::open::OpenWatches;
use crate::stage::identify::Identifier;
use crate::stage::identify::{IdentityConfig, metrics::IdentifyMetrics};
use crate::value::snapshot::Target;

/// The person that the harness' clients are, where nobody else is named.
pub(crate) const USER: &str = "ada";
/// Another one.
pub(crate) const OTHER: &str = "grace";
const ROUTER_NAME: &str = "router.test";
/// `<member>.<this>` is the explicit view of a member.
pub(crate) const EXPLICIT_HOST: &str = "fleet.test";

/// Bounds that tests change.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) max_requests: usize,
    pub(crate) max_waiting: usize,
    pub(crate) request_timeout: Duration,
    pub(crate) head_timeout: Duration,
    pub(crate) max_connections: usize,
    pub(crate) known_within: Duration,
    pub(crate) connection_age: Option<Duration>,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            max_requests: 100,
            max_waiting: 16 << 20,
            request_timeout: Duration::from_secs(20),
            head_timeout: Duration::from_secs(20),
            max_connections: 100,
            known_within: Duration::from_secs(20),
            connection_age: None,
        }
    }
}

/// A running router.
pub(crate) struct Router {
    pub(crate) address: SocketAddr,
    pub(crate) routing: Arc<RoutingStore>,
    pub(crate) tasks: Tasks,
    pub(crate) trust: Arc<TrustStore>,
    pub(crate) injected: Arc<InjectedFaults>,
    ca: CertificateAuthority,
}

/// A client certificate of the hub's CA.
/// How the router proves who it is, and which clients' certificates it takes.
fn serving(ca: &CertificateAuthority, trust: Arc<TrustStore>) -> Arc<rustls::ServerConfig> {
    let serving = ca
        .issue_server("router", &[ROUTER_NAME], Duration::from_hours(1))
        .unwrap();
    let serving = IdentityStore::new(Identity::from_pem(&serving.cert_pem, &serving.key_pem).unwrap());
    tls::server_config(serving, ClientAuth::Optional(trust), tls::ALPN_HTTP).unwrap()
}

fn person(ca: &CertificateAuthority, user: &str) -> Arc<IdentityStore> {
    let client = ca.issue_client(user, None, Duration::from_hours(1)).unwrap();
    IdentityStore::new(Identity::from_pem(&client.cert_pem, &client.key_pem).unwrap())
}

impl Router {
    pub(crate) async fn start(targets: impl IntoIterator<Item = Target>, bounds: Bounds) -> Self {
        Self::with_members(targets, bounds, None).await
    }

    /// `members`: who answers the router's own reviews, instead of the targets.
    pub(crate) async fn with_members(
        targets: impl IntoIterator<Item = Target>,
        bounds: Bounds,
        members: Option<Arc<dyn MemberApi>>,
    ) -> Self {
        let ca = CertificateAuthority::generate("hub").unwrap();
        let trust = TrustStore::from_pem(ca.pem()).unwrap();
        let tasks = Tasks::new();
        let routing = RoutingStore::of(open_to(targets, &[], &[USER, OTHER, "robot"]));
        let own = OwnRequests {
            routing: routing.clone(),
        };
        let members = members.unwrap_or_else(|| Arc::new(own.clone()));
        let identity = IdentityConfig {
            audience: "portolan".to_owned(),
            accept_api_audience: false,
        };
        let injected = routing.load().policies.injected.clone();
        let admit = admit(bounds, &injected);
        let edge = Edge::new(EdgeParts {
            routing: routing.clone(),
            admit: admit.clone(),
            identifier: Identifier::new(identity, members.clone(), admit, IdentifyMetrics::default()),
            access: Access::new(willing_hub(), members),
            dispatcher: Arc::new(Dispatcher::new(tasks.clone(), DispatchMetrics::default())),
            injected: injected.clone(),
            open: OpenWatches::new(FanOutMetrics::default()),
            discovery: Discovery::new(own, DiscoveryMetrics::default(), tasks.clone()),
            metrics: Arc::new(RequestMetrics::default()),
            sampling: None,
            tail: None,
            explicit_host: Some(EXPLICIT_HOST.to_owned()),
            readiness: Readiness::new(),
            request_timeout: bounds.request_timeout,
            tasks: tasks.clone(),
        });
        let config = serving(&ca, trust.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let accepting = AcceptConfig {
            max_connections: bounds.max_connections,
            handshake_timeout: Duration::from_secs(20),
            head_timeout: bounds.head_timeout,
            known_within: bounds.known_within,
            connection_age: bounds.connection_age,
        };
        tasks.spawn_critical(
            "accept",
            accept::serve(listener, edge, config, accepting, tasks.clone()),
        );
        Self {
            address,
            routing,
            tasks,
            trust,
            injected,
            ca,
        }
    }

    /// Serves other targets from now on, to these users.
    pub(crate) fn swap(&self, targets: impl IntoIterator<Item = Target>, users: &[&str]) {
        let mut next = open_to(targets, &[], users);
        next.generation = self.routing.load().snapshot.generation + 1;
        self.routing.swap(next);
    }

    /// A TLS connection with the person's certificate.
    pub(crate) async fn connect(&self, alpn: &[&[u8]]) -> TlsStream<TcpStream> {
        self.connect_as(USER, alpn).await
    }

    /// A TLS connection of somebody else's.
    pub(crate) async fn connect_as(&self, user: &str, alpn: &[&[u8]]) -> TlsStream<TcpStream> {
        let config = tls::client_config(self.trust.clone(), Some(person(&self.ca, user)), alpn).unwrap();
        self.connect_with(config).await
    }

    /// A TLS connection of whoever the configuration says.
    pub(crate) async fn connect_with(&self, config: Arc<ClientConfig>) -> TlsStream<TcpStream> {
        let tcp = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::try_from(ROUTER_NAME).unwrap();
        TlsConnector::from(config).connect(name, tcp).await.unwrap()
    }

    pub(crate) async fn http2(&self) -> hyper::client::conn::http2::SendRequest<Full<Bytes>> {
        self.http2_as(USER).await
    }

    pub(crate) async fn http2_as(&self, user: &str) -> hyper::client::conn::http2::SendRequest<Full<Bytes>> {
        let stream = TokioIo::new(self.connect_as(user, tls::ALPN_GRPC).await);
        let (sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream)
            .await
            .unwrap();
        spawn(async move {
            let _ = connection.await;
        });
        sender
    }

    pub(crate) async fn http1(&self) -> hyper::client::conn::http1::SendRequest<Full<Bytes>> {
        let stream = TokioIo::new(self.connect(tls::ALPN_HTTP1).await);
        let (sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
        spawn(async move {
            let _ = connection.with_upgrades().await;
        });
        sender
    }

    /// One GET on a connection of its own.
    pub(crate) async fn get(&self, path: &str) -> Response<Incoming> {
        self.get_as(USER, path).await
    }

    /// One GET of somebody else's, on a connection of its own.
    pub(crate) async fn get_as(&self, user: &str, path: &str) -> Response<Incoming> {
        let mut client = self.http2_as(user).await;
        client.send_request(ask("GET", path, "")).await.unwrap()
    }
}

fn admit(bounds: Bounds, injected: &Arc<InjectedFaults>) -> Arc<Admit> {
    let limits = Limits {
        requests: bounds.max_requests,
        waiting: bounds.max_waiting,
        ..Limits::default()
    };
    Admit::new(
        limits,
        Load::default(),
        AdmitMetrics::default().counting(injected.clone()),
    )
}

/// A request to the router, whose connection is chosen later.
pub(crate) fn ask(method: &str, path: &str, body: &'static str) -> Request<Full<Bytes>> {
    Request::builder()
        .method(method)
        .uri(format!("https://{ROUTER_NAME}{path}"))
        .header("host", ROUTER_NAME)
        .body(Full::from(body))
        .unwrap()
}

/// A body as JSON.
pub(crate) async fn json(response: Response<Incoming>) -> serde_json::Value {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    serde_json::from_slice(&body).unwrap_or_else(|error| panic!("{error}: {body:?}"))
}

/// A hub that lets everybody use every member.
fn willing_hub() -> HubReviews {
    let reviews = HubReviews::default();
    let mut carrier = reviews.carry();
    spawn(async move {
        while let Some(Asked { answer, .. }) = carrier.questions.recv().await {
            let _ = answer.send(Decision {
                allowed: true,
                reason: String::new(),
            });
        }
    });
    reviews
}
