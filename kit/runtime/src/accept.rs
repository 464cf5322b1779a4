//! The accept loop of small listeners: one tracked task per connection, a bound on how many, a pause when accepting
//! fails. Not the router's traffic, which has limits by caller. Callers: `admin`, `tls::incoming`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::tasks::Tasks;

/// After a failed accept (out of descriptors) the next try waits this long.
const PAUSE: Duration = Duration::from_millis(100);

pub(crate) struct Limit {
    /// Name of the connections' tasks.
    pub(crate) task: &'static str,
    /// Connections served at a time; more wait in the kernel's queue.
    pub(crate) at_once: usize,
}

/// Gives each connection to `serve` until `tasks` are cancelled, then returns; connections go on.
pub(crate) async fn accept_each<F>(
    listener: TcpListener,
    tasks: Tasks,
    limit: Limit,
    serve: impl Fn(TcpStream, SocketAddr) -> F + Send,
) -> anyhow::Result<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    // A semaphore: the permit goes with the connection's task.
    let permits = Arc::new(Semaphore::new(limit.at_once));
    let token = tasks.token();
    loop {
        let next = async { (permits.clone().acquire_owned().await, listener.accept().await) };
        let Some((permit, accepted)) = token.run_until_cancelled(next).await else {
            return Ok(());
        };
        let permit = permit?;
        match accepted {
            Ok((stream, peer)) => {
                let connection = serve(stream, peer);
                tasks.spawn(limit.task, async move {
                    connection.await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(address = ?listener.local_addr().ok(), %error, "cannot accept");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
