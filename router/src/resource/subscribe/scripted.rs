//! A hub that does as told, over real gRPC and TLS: for tests of `subscribe` and `enroll`.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use parking_lot::Mutex;
use portolan_runtime::pki::{CertificateAuthority, LeafSpec, Usage, subject_of};
use portolan_runtime::tls::{self, ALPN_GRPC, ClientAuth, Identity, IdentityStore, TlsIncoming, TrustStore};
use portolan_runtime::{Readiness, Tasks};
use portolan_wire::client::HubLink;
use portolan_wire::v1;
use portolan_wire::v1::enrollment_server::{Enrollment, EnrollmentServer};
use portolan_wire::v1::router_control_server::{RouterControl, RouterControlServer};
use portolan_wire::v1::router_message::Kind as In;
use portolan_wire::v1::router_update::Kind as Out;
use rcgen::CertificateSigningRequestParams;
use rustls_pki_types::CertificateSigningRequestDer;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{HubState, Subscriber};
use crate::resource::access::HubReviews;
use crate::resource::routing::RoutingStore;
use crate::resource::subscribe::{HubMetrics, StateFileHealth};

/// Patience of one step.
const PATIENCE: Duration = Duration::from_mins(1);
pub(crate) const HOUR: Duration = Duration::from_hours(1);

/// What the hub answers to the next enrolment.
pub(crate) enum Step {
    Issue(Duration),
    Pending,
    Refuse,
    /// Issues, but the answer is lost.
    Lose,
}

/// SubjectPublicKeyInfo of a CSR, and whether it was a renewal.
pub(crate) type AskedKey = (Vec<u8>, bool);

pub(crate) struct ScriptedHub {
    pub(crate) address: SocketAddr,
    pub(crate) authority: Arc<CertificateAuthority>,
    sessions: mpsc::Receiver<HubSession>,
    service: Service,
    tasks: Tasks,
}

/// One stream of a router, with its Hello read.
pub(crate) struct HubSession {
    pub(crate) hello: v1::RouterHello,
    /// CN of the router's certificate.
    pub(crate) peer: String,
    messages: Streaming<v1::RouterMessage>,
    updates: mpsc::Sender<Result<v1::RouterUpdate, Status>>,
    pub(crate) reports: Vec<v1::BreakerReport>,
    pub(crate) policies: Vec<v1::PolicyReport>,
}

#[derive(Clone)]
struct Service {
    authority: Arc<CertificateAuthority>,
    sessions: mpsc::Sender<HubSession>,
    steps: Arc<Mutex<VecDeque<Step>>>,
    keys: Arc<Mutex<Vec<AskedKey>>>,
}

impl ScriptedHub {
    pub(crate) async fn start() -> Self {
        Self::start_at(Arc::new(CertificateAuthority::generate("hub").unwrap()), "127.0.0.1:0").await
    }

    /// On an address and with a CA of an earlier one.
    pub(crate) async fn start_at(authority: Arc<CertificateAuthority>, address: &str) -> Self {
        let tasks = Tasks::new();
        let issued = authority.issue_server("hub", &["127.0.0.1"], HOUR).unwrap();
        let identity = IdentityStore::new(Identity::from_pem(&issued.cert_pem, &issued.key_pem).unwrap());
        let trust = TrustStore::from_pem(authority.pem()).unwrap();
        let config = tls::server_config(identity, ClientAuth::Optional(trust), ALPN_GRPC).unwrap();
        let listener = TcpListener::bind(address).await.unwrap();
        let incoming = TlsIncoming::new(listener, config, &tasks).unwrap();
        let address = incoming.local_addr();
        let (sender, sessions) = mpsc::channel(8);
        let service = Service {
            authority: authority.clone(),
            sessions: sender,
            steps: Arc::default(),
            keys: Arc::default(),
        };
        let server = tonic::transport::Server::builder()
            .add_service(RouterControlServer::new(service.clone()))
            .add_service(EnrollmentServer::new(service.clone()));
        tasks.spawn(
            "hub",
            async move { server.serve_with_incoming(incoming).await.unwrap() },
        );
        Self {
            address,
            authority,
            sessions,
            service,
            tasks,
        }
    }

    /// Gone, with all its connections.
    pub(crate) async fn stop(self) -> Arc<CertificateAuthority> {
        drop(self.sessions);
        self.tasks.shutdown(Duration::ZERO).await;
        self.authority
    }

    pub(crate) fn then(&self, step: Step) {
        self.service.steps.lock().push_back(step);
    }

    pub(crate) fn keys(&self) -> Vec<AskedKey> {
        self.service.keys.lock().clone()
    }

    pub(crate) async fn session(&mut self) -> HubSession {
        tokio::time::timeout(PATIENCE, self.sessions.recv())
            .await
            .expect("a router connects")
            .unwrap()
    }
}

impl HubSession {
    /// Sends a transaction and returns the router's answer to it.
    pub(crate) async fn push(&mut self, nonce: u64, resources: Vec<v1::Resource>, removed: Vec<v1::ResourceRef>) -> In {
        for resource in resources {
            self.send(Out::Resource(resource)).await;
        }
        for reference in removed {
            self.send(Out::Removed(reference)).await;
        }
        self.send(Out::Commit(v1::Commit {
            nonce,
            ..v1::Commit::default()
        }))
        .await;
        self.receive().await
    }

    pub(crate) async fn send(&mut self, kind: Out) {
        self.updates
            .send(Ok(v1::RouterUpdate { kind: Some(kind) }))
            .await
            .expect("the router listens");
    }

    /// The next message that is no report; those are kept.
    pub(crate) async fn receive(&mut self) -> In {
        loop {
            match self.any().await {
                In::Breakers(report) => self.reports.push(report),
                In::Policies(report) => self.policies.push(report),
                // Nothing is renewed by it, and no copy is behind.
                In::HeldLocks(_) | In::Replicas(_) => {}
                other => return other,
            }
        }
    }

    pub(crate) async fn any(&mut self) -> In {
        self.next().await.expect("the stream goes on")
    }

    /// `None`: the router has closed the stream.
    pub(crate) async fn next(&mut self) -> Option<In> {
        let next = tokio::time::timeout(PATIENCE, self.messages.message())
            .await
            .expect("a message comes, or the end");
        next.ok()?.and_then(|message| message.kind)
    }

    pub(crate) async fn end(self, status: Status) {
        let _ = self.updates.send(Err(status)).await;
    }
}

#[tonic::async_trait]
impl RouterControl for Service {
    type ConnectStream = Pin<Box<dyn Stream<Item = Result<v1::RouterUpdate, Status>> + Send>>;

    async fn connect(
        &self,
        request: Request<Streaming<v1::RouterMessage>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        let peer = request
            .peer_certs()
            .and_then(|chain| Some(subject_of(chain.first()?).unwrap().common_name))
            .ok_or_else(|| Status::unauthenticated("no certificate"))?;
        let mut messages = request.into_inner();
        let Some(In::Hello(hello)) = messages.message().await?.and_then(|message| message.kind) else {
            return Err(Status::invalid_argument("no Hello"));
        };
        let (updates, stream) = mpsc::channel(64);
        let session = HubSession {
            hello,
            peer,
            messages,
            updates,
            reports: Vec::new(),
            policies: Vec::new(),
        };
        self.sessions
            .send(session)
            .await
            .map_err(|_| Status::unavailable("stopping"))?;
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }
}

#[tonic::async_trait]
impl Enrollment for Service {
    async fn enroll(&self, request: Request<v1::EnrollRequest>) -> Result<Response<v1::EnrollResponse>, Status> {
        self.answer(&request.into_inner().csr, false)
    }

    async fn renew(&self, request: Request<v1::RenewRequest>) -> Result<Response<v1::EnrollResponse>, Status> {
        assert!(request.peer_certs().is_some(), "renewals are authenticated");
        self.answer(&request.into_inner().csr, true)
    }
}

impl Service {
    fn answer(&self, csr: &[u8], renewal: bool) -> Result<Response<v1::EnrollResponse>, Status> {
        use rcgen::PublicKeyData as _;
        use v1::enroll_response::Outcome;
        let der = CertificateSigningRequestDer::from(csr);
        let params = CertificateSigningRequestParams::from_der(&der).unwrap();
        self.keys.lock().push((params.public_key.der_bytes().to_vec(), renewal));
        let step = self
            .steps
            .lock()
            .pop_front()
            .ok_or_else(|| Status::unavailable("nothing scripted"))?;
        let outcome = match step {
            Step::Issue(ttl) => Outcome::Issued(self.issue(csr, ttl)),
            Step::Pending => Outcome::Pending(v1::Pending {
                reason: "spec.accept is false".into(),
                retry_after_seconds: 0,
            }),
            Step::Refuse => return Err(Status::unauthenticated("unknown token")),
            Step::Lose => return Err(Status::unavailable("connection reset")),
        };
        Ok(Response::new(v1::EnrollResponse { outcome: Some(outcome) }))
    }

    fn issue(&self, csr: &[u8], ttl: Duration) -> v1::Issued {
        let leaf = LeafSpec {
            common_name: "portolan:router:gateway".to_owned(),
            organization: Some("portolan:routers".to_owned()),
            hosts: vec!["127.0.0.1".to_owned()],
            uris: Vec::new(),
            ttl,
            usage: Usage::Both,
        };
        let certificate_pem = self.authority.sign_csr(csr, &leaf).unwrap();
        v1::Issued {
            certificate_pem,
            ca_pem: self.authority.pem().to_owned(),
            not_after_unix_seconds: 0,
        }
    }
}

/// A router's side, as far as the hub's stream goes.
pub(crate) struct Client {
    pub(crate) routing: Arc<RoutingStore>,
    pub(crate) reviews: HubReviews,
    pub(crate) readiness: Readiness,
    pub(crate) identity: Arc<IdentityStore>,
    pub(crate) tasks: Tasks,
}

impl Client {
    /// Not running yet: see [`Self::subscribe`].
    pub(crate) fn new() -> Self {
        let tasks = Tasks::new();
        Self {
            routing: RoutingStore::new(Duration::from_secs(20), tasks.child()),
            reviews: HubReviews::default(),
            readiness: Readiness::new(),
            identity: IdentityStore::empty(),
            tasks,
        }
    }

    pub(crate) fn link(&self, authority: &CertificateAuthority, address: SocketAddr) -> HubLink {
        let trust = TrustStore::from_pem(authority.pem()).unwrap();
        HubLink::new(&address.to_string(), trust, self.identity.clone()).unwrap()
    }

    pub(crate) fn enrolled(self, authority: &CertificateAuthority) -> Self {
        let issued = authority
            .issue_client("portolan:router:gateway", Some("portolan:routers"), HOUR)
            .unwrap();
        self.identity
            .set(Identity::from_pem(&issued.cert_pem, &issued.key_pem).unwrap());
        self
    }

    pub(crate) fn subscribe(&self, link: HubLink, folder: &Path) {
        self.subscribe_forgotten(link, folder, None);
    }

    /// With `identity`: it is forgotten when it ends, and that file with it.
    pub(crate) fn subscribe_forgotten(&self, link: HubLink, folder: &Path, identity: Option<PathBuf>) {
        let (metrics, ready) = (HubMetrics::default(), self.readiness.task("snapshot"));
        let health = StateFileHealth::new(metrics.clone(), self.readiness.task("state-file"));
        let state = HubState::new(self.routing.clone(), folder)
            .telling(health)
            .forgotten_at_end(identity);
        let mut subscriber = Subscriber::new(link, state, self.reviews.clone(), metrics, ready);
        subscriber.load_last_good();
        self.tasks
            .spawn_critical("subscribe", subscriber.run(self.tasks.clone()));
    }

    /// Ends it; the state file is written.
    pub(crate) async fn stop(self) {
        assert!(self.tasks.shutdown(PATIENCE).await.is_clean());
    }
}
