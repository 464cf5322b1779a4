//! The hub's one gRPC port: TLS with an optional client certificate, and who is on the other end of a connection.
//!
//! Enrolment has no certificate yet; the streams need one. Who may call what is checked by each service with
//! [`Peer::identity`]. Caller: `app`.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use portolan_runtime::Tasks;
use portolan_runtime::pki::{Subject, subject_of};
use portolan_wire::identity::Identity;
use portolan_wire::subscription::Subscription;
use portolan_wire::v1::agent_control_server::{AgentControl, AgentControlServer};
use portolan_wire::v1::enrollment_server::{Enrollment, EnrollmentServer};
use portolan_wire::v1::router_control_server::{RouterControl, RouterControlServer};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tonic::{Request, Status};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::bootstrap::key_hash;

/// Connections at once: a stream each for thousands of members and routers, and enrolments beside them.
const MAX_CONNECTIONS: usize = 8192;
/// A client that has not finished its handshake by then is cut off.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Handshaken connections that wait for tonic to take them.
const ACCEPT_QUEUE: usize = 16;
/// After a failed accept (out of descriptors) the next try waits this long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Dead peers are found within a minute, also those behind a frozen process or a black hole.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Streams per connection: programs use one or two.
const MAX_STREAMS: u32 = 16;
/// An agent's whole inventory with labels; ten thousand namespaces are some megabytes.
const MAX_AGENT_MESSAGE_BYTES: usize = 64 * 1024 * 1024;
/// A router's Hello with all that it holds.
const MAX_ROUTER_MESSAGE_BYTES: usize = 16 * 1024 * 1024;
/// A CSR and a JWKS document, from anybody at all.
const MAX_ENROLL_MESSAGE_BYTES: usize = 512 * 1024;

/// The three services, on one port.
pub(crate) struct Services<E, R, A> {
    pub(crate) enrollment: E,
    pub(crate) routers: R,
    pub(crate) agents: A,
}

/// Serves until `tasks` are cancelled.
pub(crate) async fn serve<E: Enrollment, R: RouterControl, A: AgentControl>(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    services: Services<E, R, A>,
    tasks: Tasks,
) -> anyhow::Result<()> {
    let (accepted, incoming) = mpsc::channel(ACCEPT_QUEUE);
    tasks.spawn_critical(
        "grpc-accept",
        accept(listener, TlsAcceptor::from(tls), accepted, tasks.clone()),
    );
    let token = tasks.token();
    Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .max_concurrent_streams(MAX_STREAMS)
        .add_service(EnrollmentServer::new(services.enrollment).max_decoding_message_size(MAX_ENROLL_MESSAGE_BYTES))
        .add_service(RouterControlServer::new(services.routers).max_decoding_message_size(MAX_ROUTER_MESSAGE_BYTES))
        .add_service(AgentControlServer::new(services.agents).max_decoding_message_size(MAX_AGENT_MESSAGE_BYTES))
        .serve_with_incoming_shutdown(ReceiverStream::new(incoming), token.cancelled_owned())
        .await?;
    Ok(())
}

async fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    accepted: mpsc::Sender<io::Result<Connection>>,
    tasks: Tasks,
) -> anyhow::Result<()> {
    // A semaphore: the permit goes with the connection.
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let token = tasks.token();
    loop {
        let permit = permits.clone().acquire_owned().await?;
        let Some(outcome) = token.run_until_cancelled(listener.accept()).await else {
            return Ok(());
        };
        match outcome {
            Ok((stream, remote)) => {
                let (acceptor, accepted) = (acceptor.clone(), accepted.clone());
                tasks.spawn("grpc-handshake", async move {
                    let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await;
                    match handshake {
                        Ok(Ok(tls)) => {
                            let _ = accepted.send(Ok(Connection::new(tls, remote, permit))).await;
                        }
                        Ok(Err(error)) => tracing::debug!(%remote, %error, "handshake failed"),
                        Err(_) => tracing::debug!(%remote, "handshake not finished in time"),
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept connections");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Who is on the other end of a connection.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) remote: SocketAddr,
    /// Of the client certificate, which chains to the hub's CA.
    pub(crate) subject: Option<Subject>,
    /// The same certificate in DER. Shared: a peer is cloned into every request.
    pub(crate) certificate: Option<Arc<[u8]>>,
}

impl Peer {
    /// The peer of a request.
    pub(crate) fn of<T>(request: &Request<T>) -> Result<Self, Status> {
        request
            .extensions()
            .get::<Self>()
            .cloned()
            .ok_or_else(|| Status::internal("connection without a peer"))
    }

    /// Hash of the client certificate's key, as pins and bootstrap tokens know it.
    pub(crate) fn key_hash(&self) -> Result<String, Status> {
        let certificate = self.certificate.as_deref();
        let certificate = certificate.and_then(|der| X509Certificate::from_der(der).ok());
        let (_, certificate) =
            certificate.ok_or_else(|| Status::unauthenticated("a client certificate of the hub CA is needed"))?;
        Ok(key_hash(certificate.public_key().raw))
    }

    /// What the client certificate lets a router be told.
    pub(crate) fn subscription(&self) -> Result<Subscription, Status> {
        let uris = self.subject.as_ref().map(|subject| subject.uris.as_slice());
        Subscription::from_uris(uris.unwrap_or_default()).map_err(|error| {
            Status::permission_denied(format!(
                "the certificate's subscription: {error}; enrol the router anew with a token from portolanctl router-token"
            ))
        })
    }

    /// Whom the client certificate names.
    pub(crate) fn identity(&self) -> Result<Identity, Status> {
        let Some(subject) = &self.subject else {
            return Err(Status::unauthenticated(
                "a client certificate of the hub CA is needed: enrol first",
            ));
        };
        Identity::from_subject(&subject.common_name, &subject.organizations).ok_or_else(|| {
            Status::permission_denied(format!("certificate subject {:?} is no identity", subject.common_name))
        })
    }
}

/// A TLS connection that knows its peer and gives its permit back when it ends.
pub(crate) struct Connection {
    stream: TlsStream<TcpStream>,
    peer: Peer,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    fn new(stream: TlsStream<TcpStream>, remote: SocketAddr, permit: OwnedSemaphorePermit) -> Self {
        let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        // The handshake verified it; an unreadable one is nobody.
        let subject = certificate.and_then(|certificate| subject_of(certificate).ok());
        let certificate = certificate.map(|certificate| Arc::from(certificate.as_ref()));
        Self {
            stream,
            peer: Peer {
                remote,
                subject,
                certificate,
            },
            _permit: permit,
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
