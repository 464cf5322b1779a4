//! A scripted hub: enrols whoever has the token, remembers everything that agents tell, says what a test wants said.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use portolan_runtime::pki::{CertificateAuthority, LeafSpec, Usage, subject_of};
use portolan_wire::identity::Identity;
use portolan_wire::protocol::{REPORT_PAGES, Spoken};
use portolan_wire::v1 as wire;
use portolan_wire::v1::agent_control_server::{AgentControl, AgentControlServer};
use portolan_wire::v1::agent_message::Kind as Said;
use portolan_wire::v1::agent_update::Kind as Heard;
use portolan_wire::v1::enroll_request::Proof;
use portolan_wire::v1::enroll_response::Outcome;
use portolan_wire::v1::enrollment_server::{Enrollment, EnrollmentServer};
use prost::Message as _;
use tokio::net::TcpListener;
use tokio::sync::{broadcast, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::server::{TcpConnectInfo, TlsConnectInfo};
use tonic::transport::{Certificate, Identity as TlsIdentity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};

use crate::shared::Shared;

/// The bootstrap token that is good at first.
pub(crate) const TOKEN: &str = "abc123.0123456789abcdef";
/// What keys are proven over.
pub(crate) const NONCE: &str = "nonce-of-the-stream";
/// The cluster that it is good for.
pub(crate) const CLUSTER: &str = "east";

/// What agents have told, folded as the hub folds it.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) hellos: Vec<wire::AgentHello>,
    pub(crate) heartbeats: Vec<wire::Heartbeat>,
    pub(crate) namespaces: BTreeMap<String, wire::NamespaceFact>,
    pub(crate) coverage: BTreeMap<String, wire::CoverageFact>,
    pub(crate) callers: BTreeMap<String, wire::CallerFact>,
    /// Namespaces of which not all callers are known.
    pub(crate) pending: Vec<String>,
    pub(crate) excess: Vec<wire::ExcessSelector>,
    /// Bytes of the largest message.
    pub(crate) largest: usize,
    pub(crate) resets: usize,
    pub(crate) tokens: Vec<wire::MemberToken>,
    pub(crate) allowed: Option<wire::Allowed>,
    pub(crate) reviewed: Vec<wire::TokenReviewed>,
    pub(crate) enrolments: Vec<wire::EnrollRequest>,
    pub(crate) renewals: usize,
    pub(crate) policies: Option<String>,
    pub(crate) fences: Vec<wire::FenceState>,
    pub(crate) keys: Vec<wire::SigningKeys>,
}

pub(crate) struct Hub {
    pub(crate) address: SocketAddr,
    pub(crate) ca_pem: String,
    pub(crate) told: Shared<Told>,
    service: Service,
    server: JoinHandle<()>,
}

#[derive(Clone)]
struct Service {
    ca: Arc<CertificateAuthority>,
    told: Shared<Told>,
    accepted: Arc<AtomicBool>,
    forgotten: Arc<AtomicBool>,
    token: watch::Sender<String>,
    config: watch::Sender<wire::AgentConfig>,
    asks: broadcast::Sender<wire::ReviewToken>,
    /// Counts restarts: sessions of an earlier one end.
    epoch: watch::Sender<u64>,
    ttl: Duration,
}

impl Hub {
    /// Listens; certificates it issues live for `ttl`.
    pub(crate) async fn start(config: wire::AgentConfig, ttl: Duration) -> anyhow::Result<Self> {
        let service = Service {
            ca: Arc::new(CertificateAuthority::generate("portolan test hub")?),
            told: Shared::default(),
            accepted: Arc::new(AtomicBool::new(false)),
            forgotten: Arc::new(AtomicBool::new(false)),
            token: watch::Sender::new(TOKEN.to_owned()),
            config: watch::Sender::new(config),
            asks: broadcast::Sender::new(64),
            epoch: watch::Sender::new(0),
            ttl,
        };
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let server = service.serve(listener)?;
        Ok(Self {
            address,
            ca_pem: service.ca.pem().to_owned(),
            told: service.told.clone(),
            service,
            server,
        })
    }

    /// `spec.accept`.
    pub(crate) fn accept(&self) {
        self.service.accepted.store(true, Ordering::SeqCst);
    }

    /// As after the MemberCluster was deleted: no stream for whoever enrolled before the next invitation.
    pub(crate) fn forget_members(&self) {
        self.service.forgotten.store(true, Ordering::SeqCst);
        self.service.token.send_replace(String::new());
        self.service.epoch.send_modify(|epoch| *epoch += 1);
    }

    /// Makes `token` the good one.
    pub(crate) fn invite(&self, token: &str) {
        self.service.token.send_replace(token.to_owned());
    }

    /// Replaces the configuration of all agents.
    pub(crate) fn configure(&self, change: impl FnOnce(&mut wire::AgentConfig)) {
        self.service.config.send_modify(change);
    }

    pub(crate) fn ask(&self, id: u64, token: &str, audiences: &[&str]) {
        let ask = wire::ReviewToken {
            id,
            token: token.to_owned(),
            audiences: audiences.iter().map(|&audience| audience.to_owned()).collect(),
        };
        self.service.asks.send(ask).expect("an agent is connected");
    }

    /// Ends every stream and listens again on the same port, forgetting nothing.
    pub(crate) async fn restart(&mut self) -> anyhow::Result<()> {
        self.server.abort();
        let _ = (&mut self.server).await;
        self.service.epoch.send_modify(|epoch| *epoch += 1);
        let listener = loop {
            match TcpListener::bind(self.address).await {
                Ok(listener) => break listener,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        self.server = self.service.serve(listener)?;
        Ok(())
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Service {
    fn serve(&self, listener: TcpListener) -> anyhow::Result<JoinHandle<()>> {
        let serving = self
            .ca
            .issue_server("portolan-hub", &["127.0.0.1"], Duration::from_hours(1))?;
        let tls = ServerTlsConfig::new()
            .identity(TlsIdentity::from_pem(serving.cert_pem, serving.key_pem.expose()))
            .client_ca_root(Certificate::from_pem(self.ca.pem()))
            .client_auth_optional(true);
        let server = Server::builder()
            .tls_config(tls)?
            .add_service(EnrollmentServer::new(self.clone()))
            .add_service(AgentControlServer::new(self.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        #[allow(clippy::disallowed_methods)] // the test ends it
        Ok(tokio::spawn(
            async move { server.await.expect("the scripted hub serves") },
        ))
    }

    fn issue(&self, csr_der: &[u8]) -> Result<Response<wire::EnrollResponse>, Status> {
        let invalid = |error: &dyn std::fmt::Display| Status::invalid_argument(error.to_string());
        let identity = Identity::Agent(CLUSTER.to_owned());
        let leaf = LeafSpec {
            common_name: identity.common_name(),
            organization: identity.organizations().into_iter().next(),
            hosts: Vec::new(),
            uris: Vec::new(),
            ttl: self.ttl,
            usage: Usage::Client,
        };
        let certificate = self.ca.sign_csr(csr_der, &leaf).map_err(|error| invalid(&error))?;
        Ok(Response::new(wire::EnrollResponse {
            outcome: Some(Outcome::Issued(wire::Issued {
                certificate_pem: certificate,
                ca_pem: self.ca.pem().to_owned(),
                not_after_unix_seconds: 0,
            })),
        }))
    }
}

/// The cluster that the client certificate names.
fn peer<T>(request: &Request<T>) -> Result<String, Status> {
    let connection = request.extensions().get::<TlsConnectInfo<TcpConnectInfo>>();
    let certificates = connection.and_then(TlsConnectInfo::peer_certs);
    let certificates = certificates.ok_or_else(|| Status::unauthenticated("no client certificate"))?;
    let subject = subject_of(&certificates[0]).map_err(|error| Status::unauthenticated(error.to_string()))?;
    match Identity::from_subject(&subject.common_name, &subject.organizations) {
        Some(Identity::Agent(cluster)) => Ok(cluster),
        _ => Err(Status::permission_denied("no agent")),
    }
}

#[tonic::async_trait]
impl Enrollment for Service {
    async fn enroll(&self, request: Request<wire::EnrollRequest>) -> Result<Response<wire::EnrollResponse>, Status> {
        let request = request.into_inner();
        self.told.with(|told| told.enrolments.push(request.clone()));
        if request.proof != Some(Proof::BootstrapToken(self.token.borrow().clone())) {
            return Err(Status::unauthenticated("unknown bootstrap token"));
        }
        if !self.accepted.load(Ordering::SeqCst) {
            let pending = wire::Pending {
                reason: "spec.accept is false".to_owned(),
                retry_after_seconds: 1,
            };
            return Ok(Response::new(wire::EnrollResponse {
                outcome: Some(Outcome::Pending(pending)),
            }));
        }
        self.forgotten.store(false, Ordering::SeqCst);
        self.issue(&request.csr)
    }

    async fn renew(&self, request: Request<wire::RenewRequest>) -> Result<Response<wire::EnrollResponse>, Status> {
        peer(&request)?;
        self.told.with(|told| told.renewals += 1);
        self.issue(&request.into_inner().csr)
    }
}

#[tonic::async_trait]
impl AgentControl for Service {
    type ConnectStream = Pin<Box<dyn tokio_stream::Stream<Item = Result<wire::AgentUpdate, Status>> + Send>>;

    async fn connect(
        &self,
        request: Request<Streaming<wire::AgentMessage>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        assert_eq!(peer(&request)?, CLUSTER);
        if self.forgotten.load(Ordering::SeqCst) {
            return Err(Status::permission_denied(
                "this cluster has not joined: run portolanctl join",
            ));
        }
        let mut messages = request.into_inner();
        let (updates, queue) = tokio::sync::mpsc::channel(16);
        let (mut config, mut asks, told) = (self.config.subscribe(), self.asks.subscribe(), self.told.clone());
        let mut epoch = self.epoch.subscribe();
        config.mark_changed();
        let challenge = wire::KeyChallenge {
            nonce: NONCE.to_owned(),
        };
        let welcome = wire::Welcome {
            protocol: Spoken::OURS.newest(),
            capabilities: vec![REPORT_PAGES.to_owned()],
            ..wire::Welcome::default()
        };
        for kind in [Heard::Welcome(welcome), Heard::KeyChallenge(challenge)] {
            let _ = updates.try_send(Ok(wire::AgentUpdate { kind: Some(kind) }));
        }
        let session = async move {
            loop {
                let update = tokio::select! {
                    message = messages.message() => match message {
                        Ok(Some(message)) => { told.with(|told| told.fold(message)); continue; }
                        _ => return,
                    },
                    _ = epoch.changed() => return,
                    Ok(()) = config.changed() => Heard::Config(config.borrow_and_update().clone()),
                    Ok(ask) = asks.recv() => Heard::ReviewToken(ask),
                };
                if updates
                    .send(Ok(wire::AgentUpdate { kind: Some(update) }))
                    .await
                    .is_err()
                {
                    return;
                }
            }
        };
        #[allow(clippy::disallowed_methods)] // ends with its stream
        tokio::spawn(session);
        Ok(Response::new(Box::pin(ReceiverStream::new(queue))))
    }
}

impl Told {
    /// A page counts when it comes: of what a test waits for nothing is told before the last.
    fn fold(&mut self, message: wire::AgentMessage) {
        self.largest = self.largest.max(message.encoded_len());
        match message.kind.expect("every message has a kind") {
            Said::Hello(hello) => self.hellos.push(hello),
            Said::Heartbeat(heartbeat) => self.heartbeats.push(heartbeat),
            Said::Namespaces(delta) => {
                self.resets += usize::from(delta.reset);
                forget(delta.reset, &mut self.namespaces, &delta.removed);
                self.namespaces
                    .extend(delta.upserted.into_iter().map(|fact| (fact.name.clone(), fact)));
            }
            Said::Callers(delta) => {
                self.pending = delta.pending;
                forget(delta.reset, &mut self.callers, &delta.removed);
                self.callers
                    .extend(delta.upserted.into_iter().map(|fact| (fact.uid.clone(), fact)));
            }
            Said::Coverage(delta) => {
                let removed: Vec<String> = delta.removed.iter().map(kind_name).collect();
                forget(delta.reset, &mut self.coverage, &removed);
                let named = |fact: wire::CoverageFact| (kind_name(fact.kind.as_ref().expect("a kind")), fact);
                self.coverage.extend(delta.upserted.into_iter().map(named));
            }
            Said::MemberToken(token) => self.tokens.push(token),
            Said::Allowed(allowed) => self.allowed = Some(allowed),
            Said::Policies(policies) => self.policies = Some(policies.fault),
            Said::CallerExcess(excess) => self.excess = excess.selectors,
            Said::Fences(told) => self.fences = told.fences,
            Said::SigningKeys(keys) => self.keys.push(keys),
            Said::TokenReviewed(reviewed) => self.reviewed.push(reviewed),
            // What these tests are not about.
            Said::NodeNames(_) => {}
        }
    }

    /// What is told of one kind, `resource.group`.
    pub(crate) fn covered(&self, kind: &str) -> (u64, u64, bool) {
        self.coverage
            .get(kind)
            .map_or((0, 0, false), |fact| (fact.labelled, fact.total, fact.complete))
    }
}

fn forget<V>(reset: bool, facts: &mut BTreeMap<String, V>, removed: &[String]) {
    if reset {
        facts.clear();
    }
    for key in removed {
        assert!(facts.remove(key).is_some(), "{key} removed and never told");
    }
}

fn kind_name(kind: &wire::KindRef) -> String {
    if kind.group.is_empty() {
        kind.resource.clone()
    } else {
        format!("{}.{}", kind.resource, kind.group)
    }
}
