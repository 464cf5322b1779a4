//! A TLS listener: accepts, shakes hands on tasks of their own, and gives out streams that are ready to use.
//!
//! A slow or silent client costs its own handshake only. Feeds tonic (`serve_with_incoming`, as a `Stream`; the peer's
//! certificates are in `TlsConnectInfo`) and axum (`axum::serve`, as a `Listener`). Not for the router's traffic,
//! which has its own `accept` with limits by caller. Callers: the hub's gRPC and webhook servers.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::accept::{Limit, accept_each};
use crate::tasks::Tasks;

/// From the accepted connection to the end of the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Handshakes at a time; more wait in the kernel's queue.
const MAX_HANDSHAKES: usize = 256;
/// Streams ready and not yet taken. The server takes them at once; more than this means it does not.
const READY_QUEUE: usize = 64;

/// Streams after their handshake, until the tasks it was given are cancelled.
#[derive(Debug)]
pub struct TlsIncoming {
    addr: SocketAddr,
    ready: mpsc::Receiver<TlsStream<TcpStream>>,
}

impl TlsIncoming {
    /// Takes over a bound listener. `tasks` end it: then the stream ends too, and connections given out go on.
    pub fn new(listener: TcpListener, config: Arc<ServerConfig>, tasks: &Tasks) -> io::Result<Self> {
        let addr = listener.local_addr()?;
        // A bounded queue: a server that stops taking streams stops the accept loop.
        let (give, ready) = mpsc::channel(READY_QUEUE);
        let (acceptor, stop) = (TlsAcceptor::from(config), tasks.token());
        let serve = move |stream, peer| {
            let (handshake, stop) = (handshake(stream, peer, acceptor.clone(), give.clone()), stop.clone());
            async move { stop.run_until_cancelled(handshake).await.unwrap_or_default() }
        };
        let limit = Limit {
            task: "tls-handshake",
            at_once: MAX_HANDSHAKES,
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
    type Item = io::Result<TlsStream<TcpStream>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.ready.poll_recv(cx).map(|stream| stream.map(Ok))
    }
}

impl axum::serve::Listener for TlsIncoming {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        while let Some(stream) = self.ready.recv().await {
            if let Ok(peer) = stream.get_ref().0.peer_addr() {
                return (stream, peer);
            }
        }
        // The accept loop has ended, so the program is stopping: the server's own shutdown ends the wait.
        std::future::pending().await
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        Ok(self.addr)
    }
}

async fn handshake(
    stream: TcpStream,
    peer: SocketAddr,
    acceptor: TlsAcceptor,
    give: mpsc::Sender<TlsStream<TcpStream>>,
) {
    // Small control messages; a failure only delays them.
    let _ = stream.set_nodelay(true);
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        // A send fails only when the server is gone.
        Ok(Ok(stream)) => drop(give.send(stream).await),
        Ok(Err(error)) => tracing::debug!(%peer, %error, "TLS handshake failed"),
        Err(_) => tracing::debug!(%peer, "TLS handshake took too long"),
    }
}
