//! A hub of fixed resources: enrols whoever asks, sends its one transaction, allows every person.
//!
//! It lets the real router run against the benchmark's backend, with the configuration that a real hub would send; and it
//! is the peer of the control plane's rows, which sends everything again for every change.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use futures::stream::BoxStream;
use portolan_runtime::Tasks;
use portolan_runtime::pki::{CertificateAuthority, LeafSpec, Usage};
use portolan_runtime::tls::{self, ALPN_GRPC, ClientAuth, Identity, IdentityStore, TlsIncoming, TrustStore};
use portolan_wire::identity;
use portolan_wire::v1;
use portolan_wire::v1::enroll_response::Outcome;
use portolan_wire::v1::enrollment_server::{Enrollment, EnrollmentServer};
use portolan_wire::v1::router_control_server::{RouterControl, RouterControlServer};
use portolan_wire::v1::router_message::Kind as In;
use portolan_wire::v1::router_update::Kind as Out;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// Longer than any benchmark.
pub(crate) const TTL: Duration = Duration::from_hours(12);
/// Updates under way to the router.
const OUTBOX: usize = 64;

/// A running hub; ends when dropped.
pub(crate) struct Hub {
    pub(crate) address: SocketAddr,
    /// Nonce of the last transaction that all routers are sent: each stream wakes, and needs the newest only.
    nonce: watch::Sender<u64>,
    tasks: Tasks,
}

impl Hub {
    /// Serves `resources` to routers that trust `ca`.
    pub(crate) async fn start(ca: Arc<CertificateAuthority>, resources: Vec<v1::Resource>) -> anyhow::Result<Self> {
        let issued = ca.issue_server("bench-hub", &["127.0.0.1"], TTL)?;
        let identity = IdentityStore::new(Identity::from_pem(&issued.cert_pem, &issued.key_pem)?);
        let clients = ClientAuth::Optional(TrustStore::from_pem(ca.pem())?);
        let config = tls::server_config(identity, clients, ALPN_GRPC)?;
        let tasks = Tasks::new();
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
        let incoming = TlsIncoming::new(listener, config, &tasks)?;
        let address = incoming.local_addr();
        let nonce = watch::Sender::new(1);
        let script = Script {
            ca,
            resources: resources.into(),
            nonce: nonce.subscribe(),
            tasks: tasks.clone(),
        };
        let server = tonic::transport::Server::builder()
            .add_service(EnrollmentServer::new(script.clone()))
            .add_service(RouterControlServer::new(script));
        let served = server.serve_with_incoming(incoming);
        tasks.spawn("bench-hub", async move {
            let _ = served.await;
        });
        Ok(Self { address, nonce, tasks })
    }

    /// Sends everything to all routers once more.
    pub(crate) fn send_all(&self) {
        self.nonce.send_modify(|nonce| *nonce += 1);
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.tasks.cancel();
    }
}

#[derive(Clone)]
struct Script {
    ca: Arc<CertificateAuthority>,
    resources: Arc<[v1::Resource]>,
    nonce: watch::Receiver<u64>,
    tasks: Tasks,
}

impl Script {
    fn issue(&self, csr: &[u8]) -> anyhow::Result<v1::EnrollResponse> {
        let router = identity::Identity::Router("bench".to_owned());
        let leaf = LeafSpec {
            common_name: router.common_name(),
            organization: router.organizations().into_iter().next(),
            hosts: vec!["127.0.0.1".to_owned()],
            uris: Vec::new(),
            ttl: TTL,
            usage: Usage::Both,
        };
        let certificate_pem = self.ca.sign_csr(csr, &leaf)?;
        let not_after = std::time::SystemTime::now() + TTL;
        let seconds = not_after
            .duration_since(std::time::UNIX_EPOCH)
            .context("a clock before 1970")?;
        Ok(v1::EnrollResponse {
            outcome: Some(Outcome::Issued(v1::Issued {
                certificate_pem,
                ca_pem: self.ca.pem().to_owned(),
                not_after_unix_seconds: i64::try_from(seconds.as_secs()).unwrap_or(i64::MAX),
            })),
        })
    }

    /// The transaction, less what the router still holds.
    fn transaction(&self, held: &[v1::KnownResource], nonce: u64) -> Vec<v1::RouterUpdate> {
        let known = |resource: &v1::Resource| held.iter().any(|known| known.version == resource.version);
        let resources = self.resources.iter().filter(|resource| !known(resource)).cloned();
        let commit = v1::Commit {
            nonce,
            traceparent: String::new(),
        };
        resources
            .map(Out::Resource)
            .chain([Out::Commit(commit)])
            .map(update)
            .collect()
    }
}

fn update(kind: Out) -> v1::RouterUpdate {
    v1::RouterUpdate { kind: Some(kind) }
}

fn answer_to(csr: anyhow::Result<v1::EnrollResponse>) -> Result<Response<v1::EnrollResponse>, Status> {
    csr.map(Response::new)
        .map_err(|error| Status::invalid_argument(format!("{error:#}")))
}

#[tonic::async_trait]
impl Enrollment for Script {
    async fn enroll(&self, request: Request<v1::EnrollRequest>) -> Result<Response<v1::EnrollResponse>, Status> {
        answer_to(self.issue(&request.get_ref().csr))
    }

    async fn renew(&self, request: Request<v1::RenewRequest>) -> Result<Response<v1::EnrollResponse>, Status> {
        answer_to(self.issue(&request.get_ref().csr))
    }
}

#[tonic::async_trait]
impl RouterControl for Script {
    type ConnectStream = BoxStream<'static, Result<v1::RouterUpdate, Status>>;

    async fn connect(
        &self,
        request: Request<Streaming<v1::RouterMessage>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        let (send, updates) = mpsc::channel(OUTBOX);
        self.tasks
            .spawn("bench-hub-stream", converse(self.clone(), request.into_inner(), send));
        Ok(Response::new(Box::pin(ReceiverStream::new(updates))))
    }
}

/// Hello is answered with the transaction, a question about a person with yes.
async fn converse(
    script: Script,
    mut messages: Streaming<v1::RouterMessage>,
    send: mpsc::Sender<Result<v1::RouterUpdate, Status>>,
) {
    let mut nonces = script.nonce.clone();
    nonces.mark_unchanged();
    loop {
        let answers = tokio::select! {
            message = messages.message() => match message {
                Ok(Some(message)) => answers(&script, message),
                _ => return,
            },
            Ok(()) = nonces.changed() => script.transaction(&[], *nonces.borrow_and_update()),
        };
        for answer in answers {
            if send.send(Ok(answer)).await.is_err() {
                return;
            }
        }
    }
}

fn answers(script: &Script, message: v1::RouterMessage) -> Vec<v1::RouterUpdate> {
    match message.kind {
        Some(In::Hello(hello)) => script.transaction(&hello.known, *script.nonce.borrow()),
        Some(In::AccessReview(review)) => vec![update(Out::AccessDecision(v1::AccessDecision {
            id: review.id,
            allowed: true,
            reason: String::new(),
        }))],
        _ => Vec::new(),
    }
}
