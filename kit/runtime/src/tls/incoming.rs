//! A TLS listener: accepts, shakes hands on tasks of their own, and gives out connections that are ready to use.
//!
//! A slow or silent client costs its own handshake only. Feeds tonic (`serve_with_incoming`), whose requests then know their
//! peer's certificates by `TlsConnectInfo`. Not for the router's traffic, which has its own `accept` with limits by caller.
//! Callers: the hub's server, scripted servers of tests.

use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, mpsc};
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use crate::accept::{Limit, accept_each};
use crate::tasks::Tasks;

/// A client that has not finished its handshake by then is cut off.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections at once: a stream each for thousands of members and routers, and enrolments beside them.
const MAX_CONNECTIONS: usize = 8192;
/// Of these so many without a client certificate: who enrols. The others are kept for those that have one.
const MAX_STRANGERS: usize = 1024;
/// A connection without a client certificate ends after so long: to enrol takes one question. Whoever is asked more on one has to
/// say in time that an answer is its last.
pub const STRANGER_LIFE: Duration = Duration::from_secs(30);
/// Connections ready and not yet taken. The server takes them at once; more than this means it does not.
const READY_QUEUE: usize = 64;

/// Connections after their handshake, until the tasks it was given are cancelled.
#[derive(Debug)]
pub struct TlsIncoming {
    addr: SocketAddr,
    ready: mpsc::Receiver<TlsConnection>,
}

/// A connection after its handshake. It counts against the listener's bound until it is dropped.
#[derive(Debug)]
pub struct TlsConnection {
    stream: TlsStream<TcpStream>,
    /// Of one without a client certificate.
    stranger: Option<Stranger>,
    _permit: OwnedSemaphorePermit,
}

/// What a connection has whose client proved nothing.
#[derive(Debug)]
struct Stranger {
    /// Read as its end once this is over.
    life: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

/// How those without a client certificate are bounded.
#[derive(Debug, Clone)]
struct Strangers {
    life: Duration,
    places: Arc<Semaphore>,
}

impl Strangers {
    /// `Err`: as many as there may be.
    fn of(&self, stream: &TlsStream<TcpStream>) -> Result<Option<Stranger>, TryAcquireError> {
        if stream.get_ref().1.peer_certificates().is_some() {
            return Ok(None);
        }
        let place = self.places.clone().try_acquire_owned()?;
        let life = Box::pin(tokio::time::sleep(self.life));
        Ok(Some(Stranger { life, _place: place }))
    }
}

impl TlsIncoming {
    /// Takes over a bound listener. `tasks` end it: then the stream ends too, and connections given out go on.
    pub fn new(listener: TcpListener, config: Arc<ServerConfig>, tasks: &Tasks) -> io::Result<Self> {
        Self::with(listener, config, tasks, STRANGER_LIFE)
    }

    /// The same behind a door: each connection is `admit`'s before its handshake, and is shaken hands with here if it comes back.
    /// One that is kept counts against the listener's bound for as long as `admit` runs, which `tasks` end.
    pub fn behind<F>(
        listener: TcpListener,
        config: Arc<ServerConfig>,
        tasks: &Tasks,
        admit: impl Fn(TcpStream) -> F + Send + Sync + 'static,
    ) -> io::Result<Self>
    where
        F: Future<Output = Option<TcpStream>> + Send + 'static,
    {
        Self::through(listener, config, tasks, (STRANGER_LIFE, admit))
    }

    pub(super) fn with(
        listener: TcpListener,
        config: Arc<ServerConfig>,
        tasks: &Tasks,
        stranger_life: Duration,
    ) -> io::Result<Self> {
        let all = |stream| std::future::ready(Some(stream));
        Self::through(listener, config, tasks, (stranger_life, all))
    }

    fn through<F>(
        listener: TcpListener,
        config: Arc<ServerConfig>,
        tasks: &Tasks,
        (stranger_life, admit): (Duration, impl Fn(TcpStream) -> F + Send + Sync + 'static),
    ) -> io::Result<Self>
    where
        F: Future<Output = Option<TcpStream>> + Send + 'static,
    {
        let strangers = Strangers {
            life: stranger_life,
            places: Arc::new(Semaphore::new(MAX_STRANGERS)),
        };
        let addr = listener.local_addr()?;
        // A bounded queue: a server that stops taking connections stops the accept loop.
        let (give, ready) = mpsc::channel(READY_QUEUE);
        let (acceptor, stop) = (TlsAcceptor::from(config), tasks.token());
        let serve = move |stream, peer, permit| {
            let (acceptor, give, stop) = (acceptor.clone(), give.clone(), stop.clone());
            let strangers = strangers.clone();
            let admitted = admit(stream);
            async move {
                let admitted = stop.run_until_cancelled(admitted).await;
                let Some(stream) = admitted.flatten() else { return };
                let handshake = stop.run_until_cancelled(handshake(stream, peer, acceptor)).await;
                let Some(stream) = handshake.flatten() else { return };
                let Ok(stranger) = strangers.of(&stream) else {
                    tracing::debug!(%peer, "as many connections without a client certificate as there may be");
                    return;
                };
                let connection = TlsConnection {
                    stream,
                    stranger,
                    _permit: permit,
                };
                // It fails only when the server is gone.
                let _ = give.send(connection).await;
            }
        };
        let limit = Limit {
            task: "tls-handshake",
            at_once: MAX_CONNECTIONS,
        };
        tasks.spawn_critical("tls-accept", accept_each(listener, tasks.clone(), limit, serve));
        Ok(Self { addr, ready })
    }

    /// The address that it listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Stream for TlsIncoming {
    type Item = io::Result<TlsConnection>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.ready.poll_recv(cx).map(|connection| connection.map(Ok))
    }
}

async fn handshake(stream: TcpStream, peer: SocketAddr, acceptor: TlsAcceptor) -> Option<TlsStream<TcpStream>> {
    // Small control messages; a failure only delays them.
    let _ = stream.set_nodelay(true);
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => return Some(stream),
        Ok(Err(error)) => tracing::debug!(%peer, %error, "TLS handshake failed"),
        Err(_) => tracing::debug!(%peer, "TLS handshake took too long"),
    }
    None
}

impl Deref for TlsConnection {
    type Target = TlsStream<TcpStream>;

    fn deref(&self) -> &Self::Target {
        &self.stream
    }
}

impl Connected for TlsConnection {
    type ConnectInfo = <TlsStream<TcpStream> as Connected>::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for TlsConnection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let over = |stranger: &mut Stranger| stranger.life.as_mut().poll(cx).is_ready();
        if self.stranger.as_mut().is_some_and(over) {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for TlsConnection {
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
