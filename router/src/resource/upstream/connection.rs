//! One HTTP/2 connection to a member: its task, its keep-alive pings, and how many streams it may still take.
//!
//! The task owns the socket; everybody else holds an `Arc` and asks. A connection is *open* for new streams until the
//! member says GOAWAY, a ping goes unanswered, or it was idle for long; streams on it run on to their own end where
//! that is possible. Caller: `pool`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use h2::{Ping, PingPong};
use http::uri::Authority;
use portolan_runtime::when_woken;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_rustls::client::TlsStream;

use super::endpoint::{ConnectError, Dialed, Way};
use super::said::plainly;
use super::socket::Bulk;

/// Between pings, also while idle. A member that is frozen or cut off breaks its streams within
/// [`PING_EVERY`] + [`PING_TIMEOUT`], which an idle watch could not tell otherwise.
pub(crate) const PING_EVERY: Duration = Duration::from_secs(10);
/// For the answer to a ping.
pub(crate) const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection without streams is closed after this.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// A ping that is not answered for so long makes a connection one to avoid, where there are others.
const DOUBT_AFTER: Duration = Duration::from_millis(500);
/// A request whose answer has not begun for so long, at an endpoint that has answered nobody since, speaks against that.
const LATE_AFTER: Duration = Duration::from_secs(5);
/// Answers' heads: warnings and audit annotations are the longest known, some kilobytes.
const MAX_HEADER_BYTES: u32 = 64 << 10;
/// Request bytes buffered per stream before the client is made to wait.
const SEND_BUFFER_BYTES: usize = 64 << 10;
/// Streams a connection may take until the member's settings say otherwise, and if they never do: the protocol's
/// recommended least.
const UNTOLD_STREAMS: usize = 100;

/// What differs between kinds of traffic, and in tests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tuning {
    /// Bytes that may be under way to us per stream: what a member may send ahead of a slow client.
    pub(crate) stream_window: u32,
    /// Bytes that may be under way to us per connection.
    pub(crate) connection_window: u32,
    /// Frames a member may send.
    pub(crate) frame: u32,
    pub(crate) ping_every: Duration,
    pub(crate) ping_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    /// See [`LATE_AFTER`].
    pub(crate) late_after: Duration,
    /// Connections at a time, those that are being closed included; who would need more waits.
    pub(crate) most: usize,
}

/// Unary answers: 1 MiB in flight carries a large list at 160 Mbit/s over 50 ms. Large frames cost members and us a tenth
/// less for such a list, and keep a small answer behind them waiting for 2 ms at 1 Gbit/s.
pub(crate) const UNARY: Tuning = Tuning {
    stream_window: 1 << 20,
    connection_window: 128 << 20,
    frame: 256 << 10,
    ping_every: PING_EVERY,
    ping_timeout: PING_TIMEOUT,
    idle_timeout: IDLE_TIMEOUT,
    late_after: LATE_AFTER,
    // Ten times what the member's seats need at the usual 100 streams each.
    most: 128,
};
/// Watches: many and mostly idle. In both, the connection's window holds over a hundred streams' full windows, and no
/// more streams are put on it, so that a client that does not read blocks its own stream and never its neighbours'; memory
/// is bounded by the streams'.
pub(crate) const WATCH: Tuning = Tuning {
    stream_window: 256 << 10,
    connection_window: 64 << 20,
    // The protocol's least: streams interleave finely, and no event is larger than a few of them.
    frame: 16 << 10,
    // A hundred thousand watches of the usual 100 each.
    most: 1024,
    ..UNARY
};

impl Tuning {
    fn room(&self) -> usize {
        let streams = self.connection_window / self.stream_window.max(1);
        usize::try_from(streams).unwrap_or(usize::MAX).max(1)
    }
}

/// An open connection, shared by its streams.
#[derive(Debug)]
pub(crate) struct Connection {
    send: SendRequest<Bytes>,
    pub(crate) authority: Authority,
    /// To which endpoint and address.
    pub(super) way: Way,
    /// Streams whose full windows fit into the connection's.
    room: usize,
    /// Streams that hold a slot. Changed under the pool's lock, read anywhere.
    active: AtomicUsize,
    /// No new streams.
    closing: AtomicBool,
    /// Some stream was told that it broke.
    told: AtomicBool,
    /// A ping is not answered yet, after [`DOUBT_AFTER`], and nothing else came since.
    doubted: AtomicBool,
    /// What has come, in reads.
    received: Arc<AtomicUsize>,
    /// Asks for a ping now: a notify, as there is one task to wake.
    check: Notify,
    /// Ends the connection's task at once: a notify, as there is one task to wake.
    cut: Notify,
}

/// Owns the socket until the connection ends.
pub(crate) struct Driver {
    connection: h2::client::Connection<TlsStream<Bulk>, Bytes>,
    pings: PingPong,
    tuning: Tuning,
}

impl Connection {
    /// Greets the member and waits until it has answered a ping, which comes after its settings: from then on the
    /// stream cap is the member's own, and the connection is known to be alive.
    pub(crate) async fn open(dialed: Dialed, tuning: Tuning) -> Result<(Arc<Self>, Driver), ConnectError> {
        let Dialed { stream, authority, way } = dialed;
        let failed = |error: h2::Error| ConnectError::Http {
            address: authority.to_string(),
            reason: plainly(&error),
        };
        let received = stream.get_ref().0.received();
        let (send, mut connection) = Builder::new()
            .initial_window_size(tuning.stream_window)
            .initial_connection_window_size(tuning.connection_window)
            .initial_max_send_streams(UNTOLD_STREAMS)
            .max_frame_size(tuning.frame)
            .max_header_list_size(MAX_HEADER_BYTES)
            .max_send_buffer_size(SEND_BUFFER_BYTES)
            .enable_push(false)
            // No cap over the connection's life: who abandons requests by the thousand makes late answers, each of which is
            // reset, and would end the connection of everybody. A member that is made to do so harms itself alone.
            .max_local_error_reset_streams(None)
            .handshake::<_, Bytes>(stream)
            .await
            .map_err(failed)?;
        let mut pings = connection
            .ping_pong()
            .expect("the first and only ping_pong of this connection");
        tokio::select! {
            ended = &mut connection => {
                let reason = ended.err().map_or_else(|| "it closed the connection".to_owned(), |error| error.to_string());
                return Err(ConnectError::Http { address: authority.to_string(), reason });
            }
            pong = pings.ping(Ping::opaque()) => pong.map_err(failed)?,
        };
        if send.current_max_send_streams() == 0 {
            // Whoever waits would have the next dialled, and the next.
            let (address, reason) = (authority.to_string(), "it takes no streams".to_owned());
            return Err(ConnectError::Http { address, reason });
        }
        let shared = Self {
            send,
            authority,
            way,
            room: tuning.room(),
            active: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
            told: AtomicBool::new(false),
            doubted: AtomicBool::new(false),
            received,
            check: Notify::new(),
            cut: Notify::new(),
        };
        Ok((
            Arc::new(shared),
            Driver {
                connection,
                pings,
                tuning,
            },
        ))
    }

    /// A handle to send one request with.
    pub(crate) fn sender(&self) -> SendRequest<Bytes> {
        self.send.clone()
    }

    /// Whether it takes new streams. Notices a GOAWAY that came since the last time.
    pub(crate) fn is_open(&self) -> bool {
        if self.closing.load(Ordering::Relaxed) {
            return false;
        }
        let mut send = self.send.clone();
        let failed = matches!(
            send.poll_ready(&mut Context::from_waker(Waker::noop())),
            Poll::Ready(Err(_))
        );
        if failed {
            self.closing.store(true, Ordering::Relaxed);
        }
        !failed
    }

    /// Streams there may be at a time: as the member said last, but no more than can all wait for their readers.
    pub(crate) fn cap(&self) -> usize {
        self.send.current_max_send_streams().min(self.room)
    }

    pub(crate) fn active(&self) -> usize {
        self.active.load(Ordering::Relaxed)
    }

    /// Whether the cap leaves a slot.
    pub(super) fn has_room(&self) -> bool {
        self.active() < self.cap()
    }

    /// Takes a slot, if the cap leaves one. Under the pool's lock.
    pub(super) fn try_take(&self) -> bool {
        let free = self.has_room();
        if free {
            self.active.fetch_add(1, Ordering::Relaxed);
        }
        free
    }

    /// Gives a slot back. Under the pool's lock.
    pub(super) fn give_back(&self) {
        self.active.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether a stream was told before that the connection broke.
    pub(super) fn tell_broken(&self) -> bool {
        self.told.swap(true, Ordering::Relaxed)
    }

    /// Whether it may be dead: a ping is late.
    pub(super) fn is_doubted(&self) -> bool {
        self.doubted.load(Ordering::Relaxed)
    }

    /// Pings soon, and not only when the next ping is due.
    pub(super) fn check(&self) {
        self.check.notify_one();
    }

    /// Takes no new streams from now on.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    /// Ends the connection with all its streams.
    pub(super) fn cut(&self) {
        self.close();
        self.cut.notify_one();
    }
}

/// Why a connection's task ended; for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    ByMember,
    Broken,
    PingTimeout,
    Idle,
    Cut,
}

impl Driver {
    /// Runs the connection to its end, at the latest until it is `cancelled`. `idle` is asked after each ping and closes the
    /// connection when it says so; `doubt` is told when a ping is late and nothing else comes, and when that is over.
    pub(crate) async fn run(
        self,
        shared: &Connection,
        cancelled: impl Future<Output = ()>,
        idle: impl Fn() -> bool,
        doubt: impl Fn(bool),
    ) -> Ended {
        let Self {
            connection,
            pings,
            tuning,
        } = self;
        let beside = when_woken(async {
            tokio::select! {
                ended = watch(pings, tuning, idle, doubt, shared) => ended,
                () = shared.cut.notified() => Ended::Cut,
                () = cancelled => Ended::Cut,
            }
        });
        // The connection first: on a busy runtime what has come already is read before it is judged that nothing came.
        let ended = tokio::select! {
            biased;
            result = connection => match result {
                Ok(()) => Ended::ByMember,
                Err(error) => {
                    tracing::debug!(authority = %shared.authority, %error, "member connection broke");
                    Ended::Broken
                }
            },
            ended = beside => ended,
        };
        shared.close();
        ended
    }
}

async fn watch(
    mut pings: PingPong,
    tuning: Tuning,
    idle: impl Fn() -> bool,
    doubt: impl Fn(bool),
    shared: &Connection,
) -> Ended {
    loop {
        tokio::select! {
            () = tokio::time::sleep(tuning.ping_every) => {}
            () = shared.check.notified() => {}
        }
        if let Some(ended) = ends(&mut pings, tuning.ping_timeout, (&idle, &doubt), shared).await {
            return ended;
        }
        if idle() {
            return Ended::Idle;
        }
    }
}

/// `None`: the other end has answered a ping. It may send something else for as long as it likes: an answer to a ping comes after
/// all that was under way before it, which over a slow way takes long. Not where nobody wants anything of it.
async fn ends(
    pings: &mut PingPong,
    timeout: Duration,
    (idle, doubt): (&impl Fn() -> bool, &impl Fn(bool)),
    shared: &Connection,
) -> Option<Ended> {
    let doubted = |is: bool| {
        if shared.doubted.swap(is, Ordering::Relaxed) != is {
            doubt(is);
        }
    };
    let mut pong = std::pin::pin!(pings.ping(Ping::opaque()));
    let heard = || shared.received.load(Ordering::Relaxed);
    let (mut before, mut since) = (heard(), Instant::now());
    loop {
        let wait = if shared.is_doubted() {
            timeout
        } else {
            timeout.min(DOUBT_AFTER)
        };
        match tokio::time::timeout_at(since + wait, pong.as_mut()).await {
            Ok(Ok(_)) => {
                doubted(false);
                return None;
            }
            // The connection's own future says what broke.
            Ok(Err(_)) => std::future::pending().await,
            Err(_) if heard() != before && idle() => return Some(Ended::Idle),
            Err(_) if heard() != before => {
                (before, since) = (heard(), Instant::now());
                doubted(false);
            }
            Err(_) if since.elapsed() >= timeout => return Some(Ended::PingTimeout),
            Err(_) => doubted(true),
        }
    }
}
