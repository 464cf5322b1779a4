//! The accept loop of listeners: a bound on connections at a time, one tracked task for each that was accepted, a pause when
//! accepting fails. Not the router's traffic, which has limits by caller. Callers: `admin`, `tls::incoming`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::tasks::Tasks;

/// After a failed accept (out of descriptors) the next try waits this long.
const PAUSE: Duration = Duration::from_millis(100);

pub(crate) struct Limit {
    /// Name of the connections' tasks.
    pub(crate) task: &'static str,
    /// Connections at a time; more wait in the kernel's queue.
    pub(crate) at_once: usize,
}

/// Gives each connection to `serve` until `tasks` are cancelled, then returns; connections go on. A connection counts until
/// its permit is dropped.
pub(crate) async fn accept_each<F>(
    listener: TcpListener,
    tasks: Tasks,
    limit: Limit,
    serve: impl Fn(TcpStream, SocketAddr, OwnedSemaphorePermit) -> F + Send,
) -> anyhow::Result<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    // A semaphore: the permit goes with the connection.
    let permits = Arc::new(Semaphore::new(limit.at_once));
    let token = tasks.token();
    loop {
        let next = async { (permits.clone().acquire_owned().await, listener.accept().await) };
        let Some((permit, accepted)) = token.run_until_cancelled(next).await else {
            return Ok(());
        };
        match accepted {
            Ok((stream, peer)) => drop(tasks.spawn(limit.task, serve(stream, peer, permit?))),
            Err(error) => {
                tracing::warn!(address = ?listener.local_addr().ok(), %error, "cannot accept");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
