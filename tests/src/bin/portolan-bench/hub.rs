//! A hub of fixed resources: enrols whoever asks, sends its one transaction, allows every person.
//!
//! It lets the real router run against the benchmark's backend, with the configuration that a real hub would send; and it
//! is the peer of the control plane's rows, which sends everything again for every change.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

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
/// Until a change is acknowledged.
const PATIENCE: Duration = Duration::from_mins(1);
/// Updates under way to the router.
const OUTBOX: usize = 64;

/// A running hub; ends when dropped.
pub(crate) struct Hub {
    pub(crate) address: SocketAddr,
    /// The last transaction that all routers are sent: each stream wakes, and needs the newest only.
    next: watch::Sender<Transaction>,
    /// Nonce of what was acknowledged last. Whoever waits for one needs the newest only.
    acknowledged: watch::Receiver<u64>,
    tasks: Tasks,
}

/// What wakes the streams.
#[derive(Clone)]
struct Transaction {
    nonce: u64,
    /// `None`: everything.
    changed: Option<Arc<[v1::Resource]>>,
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
        let next = watch::Sender::new(Transaction {
            nonce: 1,
            changed: None,
        });
        let (acknowledge, acknowledged) = watch::channel(0);
        let script = Script {
            ca,
            resources: resources.into(),
            next: next.subscribe(),
            acknowledge,
            tasks: tasks.clone(),
        };
        let server = tonic::transport::Server::builder()
            .add_service(EnrollmentServer::new(script.clone()))
            .add_service(RouterControlServer::new(script));
        let served = server.serve_with_incoming(incoming);
        tasks.spawn("bench-hub", async move {
            let _ = served.await;
        });
        Ok(Self {
            address,
            next,
            acknowledged,
            tasks,
        })
    }

    /// Sends everything to all routers once more.
    pub(crate) fn send_all(&self) {
        self.send(None);
    }

    /// Sends the one router these resources, and tells how long it took until it had acknowledged them. A router that begins
    /// its stream anew is told what the hub began with.
    pub(crate) async fn change(&mut self, resources: Vec<v1::Resource>) -> anyhow::Result<Duration> {
        let begun = Instant::now();
        let nonce = self.send(Some(resources.into()));
        let acknowledged = self.acknowledged.wait_for(|acknowledged| *acknowledged >= nonce);
        let waited = tokio::time::timeout(PATIENCE, acknowledged).await;
        waited.context("the router does not acknowledge a change")??;
        Ok(begun.elapsed())
    }

    fn send(&self, changed: Option<Arc<[v1::Resource]>>) -> u64 {
        let mut nonce = 0;
        self.next.send_modify(|next| {
            nonce = next.nonce + 1;
            *next = Transaction { nonce, changed };
        });
        nonce
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
    next: watch::Receiver<Transaction>,
    acknowledge: watch::Sender<u64>,
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
        of(
            self.resources.iter().filter(|resource| !known(resource)).cloned(),
            nonce,
        )
    }
}

/// These resources as one transaction.
fn of(resources: impl Iterator<Item = v1::Resource>, nonce: u64) -> Vec<v1::RouterUpdate> {
    let commit = v1::Commit {
        nonce,
        ..v1::Commit::default()
    };
    let resources = resources.map(Out::Resource);
    resources.chain([Out::Commit(commit)]).map(update).collect()
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
    let mut next = script.next.clone();
    next.mark_unchanged();
    loop {
        let answers = tokio::select! {
            message = messages.message() => match message {
                Ok(Some(message)) => answers(&script, message),
                _ => return,
            },
            Ok(()) = next.changed() => {
                let Transaction { nonce, changed } = next.borrow_and_update().clone();
                match changed {
                    Some(resources) => of(resources.iter().cloned(), nonce),
                    None => script.transaction(&[], nonce),
                }
            }
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
        Some(In::Hello(hello)) => script.transaction(&hello.known, script.next.borrow().nonce),
        Some(In::Ack(ack)) => {
            script.acknowledge.send_replace(ack.nonce);
            Vec::new()
        }
        Some(In::Nack(nack)) => {
            // Whoever waits for the acknowledgement runs out of patience; this is why.
            eprintln!("the router refuses a change: {:?}", nack.rejected);
            Vec::new()
        }
        Some(In::AccessReview(review)) => vec![update(Out::AccessDecision(v1::AccessDecision {
            id: review.id,
            allowed: true,
            reason: String::new(),
        }))],
        _ => Vec::new(),
    }
}
