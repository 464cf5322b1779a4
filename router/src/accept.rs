//! The listener that operators and people connect to: TLS, HTTP/2 or HTTP/1.1 by ALPN, one tracked task per connection.
//!
//! Every bound on an unknown client is here: connections, handshakes (`handshake`), time for a head and the memory that heads take
//! (`heads`), streams per connection. What hyper cannot parse it answers itself, without a Status. On a drain, and when they are
//! old (`age`), connections are told (GOAWAY, `connection: close`) and end when their requests have. Caller: `app`; each request
//! goes to `edge`.

mod age;
mod handshake;
mod heads;

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use portolan_runtime::{Tasks, when_woken};
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;
use tokio_util::task::TaskTracker;

use self::age::Age;
use self::handshake::Handshakes;
use self::heads::{Heads, Requests, Room};
use crate::edge::{Connection, Edge, MOST_HEAD_BYTES};
use crate::resource::upstream::socket::Bulk;
use crate::stage::admit::{CONNECTION_WINDOW, STREAM_WINDOW, Shares};
use crate::stage::identify::PeerIdentity;

/// Streams of one HTTP/2 connection. An operator opens all its watches on one.
const MAX_STREAMS: u32 = 4096;
/// Streams that a client opened and cancelled before we took them; operators cancel many watches at once.
const MAX_CANCELLED_STREAMS: usize = 256;
/// Answer bytes buffered per stream before the member is made to wait: a member's largest frame.
const SEND_BUFFER_BYTES: usize = 256 << 10;
/// Connections whose clients are not known yet have this part of all, so that silence keeps nobody out.
const STRANGERS_PART: usize = 4;
/// For a client that is told to go because it is still not known.
const LEAVE: Duration = Duration::from_secs(5);
/// On a drain an HTTP/1.1 connection without a request is kept as long: a request that is on its way meanwhile would fail, and nobody
/// repeats a write. Whoever asks is answered, and told to ask elsewhere.
const LAST_REQUEST_WITHIN: Duration = Duration::from_secs(2);
/// Between HTTP/2 pings, so that watches of a client that vanished do not stay; and for the answer to one.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(15);
/// An HTTP/1.1 connection without a request is kept as long, as API servers keep it: clients of theirs put requests on it for minutes.
const IDLE: Duration = Duration::from_mins(3);
/// Headers of an HTTP/1.1 request: hyper makes room for all of them each time it reads. HTTP/2 counts none.
const MAX_HEADERS: usize = 2_048;
/// After an accept that failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Bounds that users set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AcceptConfig {
    pub(crate) max_connections: usize,
    /// For a client's part of the handshake, and as long again for a place to begin it.
    pub(crate) handshake_timeout: Duration,
    /// For a request's head, from its first byte; of the first one of a connection, from the handshake.
    pub(crate) head_timeout: Duration,
    /// From the handshake to the first request whose sender is known.
    pub(crate) known_within: Duration,
    /// After about so long a connection is told to go; `None`: never.
    pub(crate) connection_age: Option<Duration>,
}

/// What connections share.
#[derive(Clone)]
struct Listener {
    edge: Arc<Edge>,
    handshakes: Handshakes,
    config: AcceptConfig,
    /// Whose clients are not known yet. They wait for a place, and while places are scarce one source address has a part.
    strangers: Arc<Shares>,
    /// For what they send of heads.
    room: Room,
    tasks: Tasks,
}

/// Why a connection is told to go.
#[derive(Clone, Copy)]
enum Why {
    Drain,
    /// Nobody knows whose it is.
    Stranger,
    /// It is as old as it may become.
    Old,
}

/// Accepts until `tasks` is cancelled. Connections are tasks of it too: they then finish what they serve, and
/// `Tasks::shutdown` cuts those that take too long.
pub(crate) async fn serve(
    listener: TcpListener,
    edge: Arc<Edge>,
    tls: Arc<ServerConfig>,
    config: AcceptConfig,
    tasks: Tasks,
) -> anyhow::Result<()> {
    let connections = Arc::new(Semaphore::new(config.max_connections.min(Semaphore::MAX_PERMITS)));
    let shared = Listener {
        edge,
        handshakes: Handshakes::new(tls, config.handshake_timeout),
        config,
        strangers: Arc::new(Shares::new(
            (config.max_connections / STRANGERS_PART).max(1),
            config.max_connections,
        )),
        room: Room::default(),
        tasks: tasks.clone(),
    };
    loop {
        let accepted = tokio::select! {
            () = tasks.cancelled() => return Ok(()),
            accepted = listener.accept() => accepted,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                pause_after(&error).await;
                continue;
            }
        };
        // At the cap a connection is closed at once: a client behind a balancer goes elsewhere, one that waits cannot.
        let Ok(permit) = connections.clone().try_acquire_owned() else {
            tracing::debug!(%address, "as many connections as there may be");
            continue;
        };
        tasks.spawn("connection", shared.clone().connection(stream, address, permit));
    }
}

/// Errors of one connection that was gone before it was accepted are nothing; others last for a while.
async fn pause_after(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
        return;
    }
    tracing::warn!(%error, "cannot accept connections");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

impl Listener {
    async fn connection(self, stream: TcpStream, address: SocketAddr, _permit: OwnedSemaphorePermit) {
        let place = self.strangers.enter(address.ip());
        let Ok(Ok(place)) = timeout(self.config.handshake_timeout, place).await else {
            return tracing::debug!(%address, "too many clients wait that are not known");
        };
        // Boxed: a connection outlives it by hours.
        let mut stream = match Box::pin(self.handshakes.accept(stream)).await {
            Ok(stream) => stream,
            Err(error) => return tracing::debug!(%address, %error, "TLS handshake failed"),
        };
        let chain = stream.get_ref().1.peer_certificates();
        let peer = chain.and_then(PeerIdentity::from_certificates);
        let client = Edge::connection(peer, place);
        let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        // Boxed, each alone: an HTTP/2 connection must not be as large as an HTTP/1.1 one could be.
        let served = if http2 {
            stream.get_mut().0.gather();
            Box::pin(self.http2(stream, client)).await
        } else {
            Box::pin(self.http1(stream, client)).await
        };
        if let Err(error) = served {
            tracing::debug!(%address, %error, "client connection broke");
        }
    }

    async fn http2(self, stream: TlsStream<Bulk>, client: Arc<Connection>) -> hyper::Result<()> {
        let streams = TaskTracker::new();
        let mut builder = http2::Builder::new(StreamTasks(streams.clone()));
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_pending_accept_reset_streams(MAX_CANCELLED_STREAMS)
            .max_header_list_size(u32::try_from(MOST_HEAD_BYTES).unwrap_or(u32::MAX))
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(SEND_BUFFER_BYTES)
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_TIMEOUT);
        let age = Age::from_now(self.config.connection_age);
        let ends = ends(self.tasks.clone(), client.clone(), self.config.known_within, age.over());
        let stream = Heads::http2(stream, client.clone(), self.room);
        let edge = self.edge;
        let service = service_fn(move |request: Request<Incoming>| {
            let answer = Box::pin(edge.clone().serve(request, client.clone()));
            async move { Ok::<_, std::convert::Infallible>(answer.await) }
        });
        let served = {
            let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
            tokio::select! {
                biased;
                served = connection.as_mut() => served,
                why = ends => {
                    connection.as_mut().graceful_shutdown();
                    leaves(why, connection).await
                }
            }
        };
        // The connection is dropped by now: h2 does not tell the streams of every way in which one breaks. Their tasks
        // end with it; only then is this one's end observed.
        streams.close();
        streams.wait().await;
        served
    }

    async fn http1(self, stream: TlsStream<Bulk>, client: Arc<Connection>) -> hyper::Result<()> {
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            // Half a head has less: see `heads`.
            .header_read_timeout(IDLE.max(self.config.head_timeout))
            .max_buf_size(MOST_HEAD_BYTES)
            .max_headers(MAX_HEADERS);
        let age = Age::from_now(self.config.connection_age);
        let ends = ends(self.tasks.clone(), client.clone(), self.config.known_within, pending());
        let requests = Arc::<Requests>::default();
        let within = (requests.clone(), self.config.head_timeout);
        let stream = Heads::http1(stream, client.clone(), self.room, within);
        let (edge, tasks) = (self.edge, self.tasks);
        let service = service_fn(move |request: Request<Incoming>| {
            let (serving, tasks) = (requests.begin(), tasks.clone());
            let answer = Box::pin(edge.clone().serve(request, client.clone()));
            async move {
                let mut answer = answer.await;
                age.tell(tasks.is_cancelled(), &mut answer);
                Ok::<_, std::convert::Infallible>(serving.answer(answer))
            }
        });
        let connection = builder.serve_connection(TokioIo::new(stream), service).with_upgrades();
        let mut connection = pin!(connection);
        tokio::select! {
            biased;
            served = connection.as_mut() => served,
            why = ends => {
                if matches!(why, Why::Drain)
                    && let Ok(served) = timeout(LAST_REQUEST_WITHIN, connection.as_mut()).await
                {
                    return served;
                }
                connection.as_mut().graceful_shutdown();
                leaves(why, connection).await
            }
        }
    }
}

/// When a connection is to be told to go, and why. `old`: ends when it is.
fn ends(
    tasks: Tasks,
    client: Arc<Connection>,
    known_within: Duration,
    old: impl Future<Output = ()>,
) -> impl Future<Output = Why> + Unpin {
    let by_itself = async move {
        if !client.is_known_within(known_within).await {
            return Why::Stranger;
        }
        old.await;
        Why::Old
    };
    when_woken(async move {
        tokio::select! {
            () = tasks.cancelled() => Why::Drain,
            why = by_itself => why,
        }
    })
}

/// Requests that run are finished in a drain, and of a connection that is old. A stranger's are answered if that takes no longer
/// than to find out whose they are.
async fn leaves(why: Why, connection: impl Future<Output = hyper::Result<()>>) -> hyper::Result<()> {
    match why {
        Why::Drain | Why::Old => connection.await,
        Why::Stranger => timeout(LEAVE, connection).await.unwrap_or(Ok(())),
    }
}

/// Spawns the streams of one HTTP/2 connection: counted by its own tracker, so that a request costs no entry in the
/// program's list of tasks. They are children of the connection's task, which waits for them.
#[derive(Clone)]
struct StreamTasks(TaskTracker);

impl<F> hyper::rt::Executor<F> for StreamTasks
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        self.0.spawn(stream);
    }
}

#[cfg(test)]
mod tests;
