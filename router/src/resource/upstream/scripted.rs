//! API servers for tests that do what a real one cannot be made to: caps, refusals, GOAWAY, cuts and stalls at will.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use h2::server::{Builder, SendResponse};
use h2::{RecvStream, SendStream};
use http::{Request, Response};
use portolan_runtime::pki::CertificateAuthority;
use portolan_runtime::tls::{self, ClientAuth, Identity, IdentityStore};
use portolan_wire::v1;
use portolan_wire::v1::resource::Body;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::value::snapshot::{Endpoint, Snapshot, Target, told};

/// The name in scripted servers' certificates.
pub(crate) const SERVER_NAME: &str = "member.test";

/// How one request is answered.
pub(crate) type Script = Arc<dyn Fn(Request<RecvStream>, SendResponse<Bytes>) -> BoxFuture<'static, ()> + Send + Sync>;

/// A scripted HTTP/2 API server.
pub(crate) struct Backend {
    pub(crate) address: SocketAddr,
    pub(crate) ca_pem: String,
    pub(crate) seen: Arc<Seen>,
    orders: watch::Sender<Order>,
    task: tokio::task::JoinHandle<()>,
}

/// What a backend saw.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) connections: AtomicUsize,
    pub(crate) requests: AtomicUsize,
}

impl Seen {
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

/// What all connections of a backend are told to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Serve,
    /// Say GOAWAY and finish what runs.
    GoAway,
    /// Drop the connections.
    Cut,
    /// Read nothing, write nothing, as a stopped process does.
    Freeze,
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.task.abort();
        self.orders.send_replace(Order::Cut);
    }
}

impl Backend {
    pub(crate) async fn start(max_streams: u32, script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::start_on(listener, Certified::new(), max_streams, script)
    }

    /// Where it is known already, with a certificate that others may have too.
    pub(crate) fn start_on(listener: TcpListener, certified: Certified, max_streams: u32, script: Script) -> Self {
        let (acceptor, ca_pem) = (certified.acceptor(tls::ALPN_GRPC), certified.ca_pem());
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Seen::default());
        let orders = watch::Sender::new(Order::Serve);
        let task = spawn({
            let (seen, orders) = (seen.clone(), orders.clone());
            async move {
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    seen.connections.fetch_add(1, Ordering::SeqCst);
                    let (acceptor, seen, script) = (acceptor.clone(), seen.clone(), script.clone());
                    let mut order = orders.subscribe();
                    order.mark_unchanged();
                    spawn(async move {
                        if let Ok(stream) = acceptor.accept(stream).await {
                            connection(stream, max_streams, (script, seen), order).await;
                        }
                    });
                }
            }
        });
        Self {
            address,
            ca_pem,
            seen,
            orders,
            task,
        }
    }

    /// Tells the connections that are open now; later ones serve.
    pub(crate) fn order(&self, order: Order) {
        self.orders.send_replace(order);
    }

    pub(crate) fn target(&self, cluster: &str) -> Target {
        target(cluster, &[self.address], &self.ca_pem)
    }
}

async fn connection(
    stream: TlsStream<TcpStream>,
    max_streams: u32,
    (script, seen): (Script, Arc<Seen>),
    mut order: watch::Receiver<Order>,
) {
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(max_streams)
        .initial_window_size(1 << 20)
        .initial_connection_window_size(16 << 20);
    let Ok(mut connection) = builder.handshake::<_, Bytes>(stream).await else {
        return;
    };
    loop {
        tokio::select! {
            request = connection.accept() => {
                let Some(Ok((request, respond))) = request else { return };
                seen.requests.fetch_add(1, Ordering::SeqCst);
                spawn(script(request, respond));
            }
            changed = order.changed() => {
                let now = *order.borrow_and_update();
                match (changed, now) {
                    (Err(_), _) | (_, Order::Cut) => return,
                    (_, Order::GoAway) => connection.graceful_shutdown(),
                    (_, Order::Freeze) => std::future::pending().await,
                    (_, Order::Serve) => {}
                }
            }
        }
    }
}

/// Test tasks need no name and no drain.
#[allow(clippy::disallowed_methods)]
pub(crate) fn spawn<F: Future<Output = ()> + Send + 'static>(future: F) -> tokio::task::JoinHandle<()> {
    tokio::spawn(future)
}

/// A TLS acceptor with a certificate of a CA of its own, and that CA.
pub(crate) fn acceptor(alpn: &[&[u8]]) -> (TlsAcceptor, String) {
    let certified = Certified::new();
    (certified.acceptor(alpn), certified.ca_pem())
}

/// A server's certificate, which can be replaced while it is in use. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Certified {
    identities: Arc<IdentityStore>,
    ca: Arc<CertificateAuthority>,
}

impl Certified {
    /// Of a new CA.
    pub(crate) fn new() -> Self {
        let ca = CertificateAuthority::generate(&format!("scripted member {}", rand::random::<u32>())).unwrap();
        let certified = Self {
            identities: IdentityStore::empty(),
            ca: Arc::new(ca),
        };
        certified.adopt(&certified);
        certified
    }

    pub(crate) fn ca_pem(&self) -> String {
        self.ca.pem().to_owned()
    }

    /// Handshakes from now on show a certificate of the other's CA.
    pub(crate) fn adopt(&self, other: &Self) {
        let issued = other
            .ca
            .issue_server("apiserver", &[SERVER_NAME], Duration::from_hours(1))
            .unwrap();
        self.identities
            .set(Identity::from_pem(&issued.cert_pem, &issued.key_pem).unwrap());
    }

    fn acceptor(&self, alpn: &[&[u8]]) -> TlsAcceptor {
        let config = tls::server_config(self.identities.clone(), ClientAuth::None, alpn).unwrap();
        TlsAcceptor::from(config)
    }
}

/// A target at these addresses.
pub(crate) fn target(cluster: &str, addresses: &[SocketAddr], ca_pem: &str) -> Target {
    Target {
        cluster: cluster.into(),
        version: "1".to_owned(),
        cluster_uid: format!("uid-{cluster}"),
        endpoints: addresses
            .iter()
            .map(|address| Endpoint {
                url: format!("https://{address}").parse().unwrap(),
                tls_server_name: Some(SERVER_NAME.to_owned()),
            })
            .collect(),
        ca_pem: ca_pem.to_owned(),
        cordoned: false,
        breaker: v1::Breaker::default(),
    }
}

/// A snapshot of these members, with a credential in each.
pub(crate) fn snapshot(targets: impl IntoIterator<Item = Target>) -> Snapshot {
    open_to(targets, &[], &[])
}

/// A snapshot of members that let the router act as these ServiceAccounts and users.
pub(crate) fn open_to(targets: impl IntoIterator<Item = Target>, accounts: &[&str], users: &[&str]) -> Snapshot {
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    let mut snapshot = Snapshot::default();
    for target in targets {
        let cluster = target.cluster.clone();
        let identity = v1::MemberIdentity {
            cluster: cluster.to_string(),
            allowed_service_accounts: names(accounts),
            allowed_users: names(users),
            clock_agrees: true,
            ..v1::MemberIdentity::default()
        };
        let mut credential = told::credential(&cluster, "member-token");
        credential.expires_unix_seconds = i64::MAX;
        let bodies = [Body::MemberIdentity(identity), Body::Credential(credential)];
        snapshot = told::upsert(&snapshot, "1", bodies).snapshot;
        Arc::make_mut(&mut snapshot.targets).insert(cluster, Arc::new(target));
    }
    snapshot.generation = 1;
    snapshot
}

/// 200 with a JSON body and the API server's mark.
pub(crate) fn head(status: u16) -> Response<()> {
    Response::builder()
        .status(status)
        .header("content-type", "application/json")
        .header("audit-id", "scripted")
        .body(())
        .unwrap()
}

/// A script from an async function.
pub(crate) fn script<F, R>(answer: F) -> Script
where
    F: Fn(Request<RecvStream>, SendResponse<Bytes>) -> R + Send + Sync + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    Arc::new(move |request, respond| Box::pin(answer(request, respond)))
}

/// Answers everything: what speaks of a watch with one event and then silence, all else with `{}` at once.
pub(crate) fn plain() -> Script {
    script(|request, mut respond| async move {
        if request.uri().to_string().contains("watch") {
            let mut body = respond.send_response(head(200), false).unwrap();
            body.send_data(Bytes::from_static(b"{\"type\":\"ADDED\"}\n"), false)
                .unwrap();
            until_reset(&mut body).await;
        } else {
            let mut body = respond.send_response(head(200), false).unwrap();
            let _ = body.send_data(Bytes::from_static(b"{}"), true);
        }
    })
}

/// Keeps a stream open until the client has reset it.
pub(crate) async fn until_reset(body: &mut SendStream<Bytes>) {
    let _ = std::future::poll_fn(|cx| body.poll_reset(cx)).await;
}

/// The whole request body.
pub(crate) async fn read_all(mut body: RecvStream) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(Ok(data)) = body.data().await {
        body.flow_control().release_capacity(data.len()).unwrap();
        all.extend_from_slice(&data);
    }
    all
}
