//! TLS handshakes of clients, so many at a time and in the order in which they came: of thousands that come at once, as when
//! a router has started again, the first are served while the last still wait, instead of all when all are through. What
//! runs already, and its timers, wait behind some of them only.
//!
//! Who has not said anything has no turn, and nobody keeps one for long: a client that is slow goes on without. So nobody
//! delays others by more than its turn. Caller: `accept`.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::resource::upstream::socket::{self, Bulk};

/// At a time, for each core. A handshake costs one a fraction of a millisecond, so these are some dozen of them.
const TURNS_PER_CORE: usize = 64;
/// Not fewer: a turn's time runs on while others have the core, and beside the requests of clients that have theirs already,
/// handshakes must go on, as clients wait no longer than seconds for them.
const MIN_TURNS: usize = 128;
/// With its turn: several times what a handshake takes within a region.
const TURN: Duration = Duration::from_millis(100);

/// Who may begin one. Cheap to clone.
#[derive(Clone)]
pub(super) struct Handshakes {
    acceptor: TlsAcceptor,
    /// A semaphore: turns come in order.
    turns: Arc<Semaphore>,
    /// For what a client has to send.
    timeout: Duration,
}

impl Handshakes {
    pub(super) fn new(tls: Arc<ServerConfig>, timeout: Duration) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            acceptor: TlsAcceptor::from(tls),
            turns: Arc::new(Semaphore::new(turns(cores))),
            timeout,
        }
    }

    /// What the client takes for its own part is bounded; how long it waits for its turn is no fault of its own. Safe to drop.
    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<Bulk>> {
        timeout(self.timeout, stream.readable()).await.map_err(silent)??;
        let turn = self.turns.clone().acquire_owned().await.map_err(io::Error::other)?;
        let handshake = self.acceptor.accept(socket::tuned(stream));
        let mut handshake = std::pin::pin!(timeout(self.timeout, handshake));
        let outcome = if let Ok(outcome) = timeout(TURN, handshake.as_mut()).await {
            outcome
        } else {
            drop(turn);
            handshake.await
        };
        outcome.map_err(silent)?
    }
}

fn turns(cores: usize) -> usize {
    (TURNS_PER_CORE * cores).max(MIN_TURNS)
}

fn silent(_: tokio::time::error::Elapsed) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "it took too long")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_go_by_cores_and_few_cores_have_enough() {
        assert_eq!([1, 2, 8].map(turns), [128, 128, 512]);
    }
}
