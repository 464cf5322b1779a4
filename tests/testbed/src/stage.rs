//! The fault stage: a TCP proxy in front of an API server that passes bytes on, or misbehaves on command. It knows
//! nothing of TLS or HTTP, so what clients see is what a network does to them.
//!
//! It runs on a thread of its own: a testbed shared by several `#[tokio::test]`s must not die with the runtime of
//! the first. While the API server is down, the stage accepts and then resets; connect directly to see a refusal.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

use crate::port::Port;

/// What a stage does to every connection, old and new, from the moment it is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    /// Bytes pass.
    #[default]
    None,
    /// Every chunk arrives this much later, in both directions; throughput is not limited.
    Delay(Duration),
    /// Every chunk arrives this much later on connections opened while it is set, for all their life; older ones pass. So watches can be late
    /// where requests on an older connection are not.
    DelayNew(Duration),
    /// Open connections are cut with RST, new ones right after they were accepted.
    Reset,
    /// As [`Fault::Blackhole`], and whoever connects hears nothing at all: its SYNs are dropped, as by a firewall or a machine that is off.
    Unanswered,
    /// Bytes vanish in both directions and nothing ever ends. New connections are established, by the kernel alone. A connection that lost bytes is cut with RST when the
    /// fault is over, for a stream with a hole cannot go on; one that was silent meanwhile lives.
    Blackhole,
}

impl Fault {
    /// Whether what is sent is lost.
    fn swallows(self) -> bool {
        matches!(self, Self::Blackhole | Self::Unanswered)
    }
}

/// Bytes read at once.
const CHUNK_BYTES: usize = 16 * 1024;
/// Chunks under way in one direction: the delay line's capacity, after which the sender is slowed down.
const CHUNKS_IN_FLIGHT: usize = 256;
const BACKLOG: i32 = 1024;
/// Within which a connection to a listener of ours is there, unless its backlog is full.
const FILLED: Duration = Duration::from_millis(100);

/// How long it is waited until a dropped stage's listener is closed, which takes its thread a moment.
const CLOSING: Duration = Duration::from_secs(10);

/// One thread for all stages of this process.
static STAGES: LazyLock<Result<Runtime, io::Error>> = LazyLock::new(|| {
    Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("fault-stage")
        .enable_all()
        .build()
});

/// A running stage. Dropping it closes its port and all its connections.
#[derive(Debug)]
pub struct Stage {
    port: Port,
    /// A watch: connections must see the newest fault, and may miss those in between.
    fault: watch::Sender<Fault>,
    accepted: Arc<AtomicU64>,
    accepting: JoinHandle<()>,
}

impl Stage {
    /// Starts a stage on a free port in front of what listens on this one, on loopback.
    pub fn before(target: u16) -> io::Result<Self> {
        Self::start(Port::reserve(None)?, SocketAddrV4::new(Ipv4Addr::LOCALHOST, target))
    }

    /// Starts a stage on `port` (see [`Port`]) in front of `target`.
    pub(crate) fn start(port: Port, target: SocketAddrV4) -> io::Result<Self> {
        let runtime = STAGES.as_ref().map_err(|error| io::Error::other(error.to_string()))?;
        let _context = runtime.enter();
        let listener = listen(port.address())?;
        let (fault, seen) = watch::channel(Fault::None);
        let accepted = Arc::new(AtomicU64::new(0));
        let accepting = Accepting {
            address: port.address(),
            target,
            fault: seen,
            accepted: accepted.clone(),
            filling: Vec::new(),
        };
        let accepting = runtime.handle().spawn(accepting.run(listener));
        Ok(Self {
            port,
            fault,
            accepted,
            accepting,
        })
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    pub(crate) fn address(&self) -> SocketAddrV4 {
        self.port.address()
    }

    /// Connections that came, whatever became of them; those that nothing answers are not seen.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Misbehaves so from now on, or behaves again with [`Fault::None`].
    pub fn set(&self, fault: Fault) {
        self.fault.send_replace(fault);
    }

    /// What it does now.
    pub fn fault(&self) -> Fault {
        *self.fault.borrow()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.accepting.abort();
        // Whoever wants the same port next must not find our listener on it.
        let begun = Instant::now();
        while !self.accepting.is_finished() && begun.elapsed() < CLOSING {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Bound beside the [`Port`] that keeps the number.
fn listen(address: SocketAddrV4) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address.into())?;
    socket.listen(BACKLOG.unsigned_abs())
}

/// What takes connections.
struct Accepting {
    address: SocketAddrV4,
    target: SocketAddrV4,
    fault: watch::Receiver<Fault>,
    accepted: Arc<AtomicU64>,
    /// Connections of its own that wait to be taken.
    filling: Vec<SocketAddr>,
}

impl Accepting {
    async fn run(mut self, listener: TcpListener) {
        // The set cuts all connections when the stage is dropped.
        let mut connections = JoinSet::new();
        loop {
            if *self.fault.borrow_and_update() == Fault::Unanswered {
                self.unanswered(&listener).await;
            }
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((_, peer)) if self.is_own(peer) => {}
                    Ok((client, _)) => {
                        self.accepted.fetch_add(1, Ordering::Relaxed);
                        connections.spawn(serve(client, self.target, self.fault.clone()));
                    }
                    // Out of file descriptors, most likely: others must close before we can go on.
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                },
                Some(_) = connections.join_next() => {}
                _ = self.fault.changed() => {}
            }
        }
    }

    /// Lets nobody be answered while that is the fault. Linux drops the SYNs to a listener whose backlog is full, and a backlog of
    /// none is full of one connection. The listener stays: nobody is refused before or after.
    async fn unanswered(&mut self, listener: &TcpListener) {
        resize(listener, 0);
        let mut filling = Vec::new();
        while let Ok(Ok(one)) = timeout(FILLED, TcpStream::connect(self.address)).await {
            self.filling.extend(one.local_addr());
            filling.push(one);
        }
        let ended = self.fault.wait_for(|now| *now != Fault::Unanswered).await.is_err();
        if ended {
            std::future::pending::<()>().await;
        }
        resize(listener, BACKLOG);
    }

    fn is_own(&mut self, peer: SocketAddr) -> bool {
        let at = self.filling.iter().position(|own| *own == peer);
        at.map(|at| self.filling.swap_remove(at)).is_some()
    }
}

/// listen(2) on what listens changes its backlog, and that alone.
fn resize(listener: &TcpListener, backlog: i32) {
    SockRef::from(listener).listen(backlog).expect("it listens already");
}

/// Why a connection does not end with two orderly FINs.
struct Cut;

async fn serve(client: TcpStream, target: SocketAddrV4, mut fault: watch::Receiver<Fault>) {
    let own = match *fault.borrow() {
        Fault::DelayNew(delay) => delay,
        _ => Duration::ZERO,
    };
    let _ = client.set_nodelay(true);
    let Ok(server) = connect(&client, target, &mut fault).await else {
        return reset(&client);
    };
    let _ = server.set_nodelay(true);
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let mut up = Direction {
        from: from_client,
        to: to_server,
        own,
        fault: fault.clone(),
    };
    let mut down = Direction {
        from: from_server,
        to: to_client,
        own,
        fault: fault.clone(),
    };
    let ended = tokio::select! {
        ended = async { tokio::try_join!(up.run(), down.run()) } => ended.map(drop),
        () = until(&mut fault, Fault::Reset) => Err(Cut),
    };
    if ended.is_err() {
        reset(up.from.as_ref());
        reset(down.from.as_ref());
        // Dropping a write half would send a FIN first.
        up.to.forget();
        down.to.forget();
    }
}

/// Connects to the API server, but not while bytes vanish: then the client's first bytes must, too.
async fn connect(
    client: &TcpStream,
    target: SocketAddrV4,
    fault: &mut watch::Receiver<Fault>,
) -> Result<TcpStream, Cut> {
    if fault.borrow_and_update().swallows() {
        let _ = fault.wait_for(|now| !now.swallows()).await;
        // It had nowhere to go: if the client has said something, that is lost.
        if client.try_read(&mut [0; 1]).is_ok() {
            return Err(Cut);
        }
    }
    if *fault.borrow_and_update() == Fault::Reset {
        return Err(Cut);
    }
    TcpStream::connect(target).await.map_err(|_| Cut)
}

/// Makes the coming close an RST instead of a FIN.
fn reset(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}

async fn until(fault: &mut watch::Receiver<Fault>, wanted: Fault) {
    if fault.wait_for(|now| *now == wanted).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// One direction of a connection.
struct Direction {
    from: OwnedReadHalf,
    to: OwnedWriteHalf,
    /// Chunks of this connection are late, whatever the fault.
    own: Duration,
    fault: watch::Receiver<Fault>,
}

/// When something arrived, and what: bytes, no bytes for a FIN, an error for an RST.
type Chunk = (Instant, Result<Vec<u8>, Cut>);

impl Direction {
    async fn run(&mut self) -> Result<(), Cut> {
        // Bounded, so that a slow reader slows the writer down as it would without the stage.
        let (line, arriving) = mpsc::channel(CHUNKS_IN_FLIGHT);
        let deliver = deliver(&mut self.to, arriving, self.own, self.fault.clone());
        // A cut does not wait for a sender that says nothing more.
        let taken = async {
            take(&mut self.from, line).await;
            Ok(())
        };
        tokio::try_join!(taken, deliver).map(drop)
    }
}

async fn take(from: &mut OwnedReadHalf, line: mpsc::Sender<Chunk>) {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let read = from.read(&mut buffer).await;
        let last = !matches!(read, Ok(1..));
        let chunk = read.map(|length| buffer[..length].to_vec()).map_err(|_| Cut);
        if line.send((Instant::now(), chunk)).await.is_err() || last {
            return;
        }
    }
}

async fn deliver(
    to: &mut OwnedWriteHalf,
    mut arriving: mpsc::Receiver<Chunk>,
    own: Duration,
    mut fault: watch::Receiver<Fault>,
) -> Result<(), Cut> {
    while let Some((arrived, chunk)) = arriving.recv().await {
        match delay(arrived, own, &mut fault).await {
            Fault::Blackhole | Fault::Unanswered => return swallow(arriving, fault).await,
            Fault::Reset => return Err(Cut),
            Fault::None | Fault::Delay(_) | Fault::DelayNew(_) => {}
        }
        let bytes = chunk?;
        if bytes.is_empty() {
            let _ = to.shutdown().await;
            return Ok(());
        }
        to.write_all(&bytes).await.map_err(|_| Cut)?;
    }
    Ok(())
}

/// Waits until a chunk is due under the fault of the moment, which may change meanwhile; returns the one that rules it.
async fn delay(arrived: Instant, own: Duration, fault: &mut watch::Receiver<Fault>) -> Fault {
    loop {
        let now = *fault.borrow_and_update();
        let delay = match now {
            Fault::Delay(delay) => own + delay,
            Fault::None | Fault::DelayNew(_) => own,
            Fault::Reset | Fault::Blackhole | Fault::Unanswered => return now,
        };
        if delay.is_zero() {
            return now;
        }
        tokio::select! {
            () = sleep_until(arrived + delay) => return now,
            _ = fault.changed() => {}
        }
    }
}

/// Loses everything, the end of the stream included, until the fault is over; then the connection has a hole.
async fn swallow(mut arriving: mpsc::Receiver<Chunk>, mut fault: watch::Receiver<Fault>) -> Result<(), Cut> {
    let lose = async { while arriving.recv().await.is_some() {} };
    tokio::select! {
        () = async { lose.await; std::future::pending().await } => Ok(()),
        _ = fault.wait_for(|now| !now.swallows()) => Err(Cut),
    }
}

#[cfg(test)]
mod tests;
