//! The door of a replica: connections stay here if it leads, and are passed on to the one that does if not, byte by byte: TLS ends
//! there. So clients may know one address of any replica, or of a balancer in front of all.
//!
//! A connection that was passed on says so in its first bytes, and is passed on no further. Caller: `app`.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::lead::{Leader, Role};
use crate::metrics::Metrics;

/// The first bytes of a connection that was passed on. Those of a TLS client are others.
const PASSED_ON: &[u8] = b"PORTOLAN-PASSED-ON\r\n";
/// A client that has said nothing by then is let go.
const FIRST_BYTES_WITHIN: Duration = Duration::from_secs(10);
/// A connection waits this long for somebody who leads: clients wait for their TLS as long.
const HELD_FOR: Duration = Duration::from_secs(10);
/// Between two tries to reach who leads.
const TRY_EVERY: Duration = Duration::from_millis(200);
/// A replica in the same cluster takes a connection within this.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Decides about each connection. Clones are the same door.
#[derive(Debug, Clone)]
pub(crate) struct Door {
    role: watch::Receiver<Role>,
    metrics: Metrics,
    first_bytes_within: Duration,
}

impl Door {
    pub(crate) fn new(role: watch::Receiver<Role>, metrics: Metrics) -> Arc<Self> {
        Arc::new(Self {
            role,
            metrics,
            first_bytes_within: FIRST_BYTES_WITHIN,
        })
    }

    /// The connection, if this replica leads by then; else it was passed on and is over, or nobody took it.
    pub(crate) async fn admit(self: Arc<Self>, mut stream: TcpStream) -> Option<TcpStream> {
        let was_passed_on = tokio::time::timeout(self.first_bytes_within, was_passed_on(&mut stream));
        let was_passed_on = was_passed_on.await.ok()?.ok()?;
        let mut role = self.role.clone();
        let by = Instant::now() + HELD_FOR;
        while Instant::now() < by {
            let now = role.borrow_and_update().clone();
            match now {
                Role::Leads => return Some(stream),
                Role::Follows(leader) if !was_passed_on => {
                    if let Some(there) = connect(&leader).await {
                        self.pass_on(stream, there, &leader).await;
                        return None;
                    }
                }
                Role::Follows(_) | Role::Unknown(_) => {}
            }
            // The one that led may be gone, and the next one not known yet.
            let _ = tokio::time::timeout(TRY_EVERY, role.changed()).await;
        }
        None
    }

    /// Until either side ends, or another replica leads: then clients come back, to that one.
    async fn pass_on(&self, mut here: TcpStream, mut there: TcpStream, leader: &Leader) {
        // Small control messages; a failure only delays them.
        let _ = (here.set_nodelay(true), there.set_nodelay(true));
        let _counted = self.metrics.spliced();
        let mut role = self.role.clone();
        let is_another = |role: &Role| match role {
            Role::Unknown(_) => false,
            Role::Leads => true,
            Role::Follows(now) => now.identity != leader.identity,
        };
        tokio::select! {
            ended = first_end(&mut here, &mut there) => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection that was passed on broke");
                }
            }
            _ = role.wait_for(is_another) => tracing::debug!("another replica leads: a connection that was passed on is cut"),
        }
    }
}

/// Passes bytes on both ways until either side ends: neither TLS nor HTTP/2 goes on with one half, and a client that is silent for
/// ever would be held for as long after the leader has let it go.
async fn first_end(here: &mut TcpStream, there: &mut TcpStream) -> std::io::Result<u64> {
    let ((mut from_here, mut to_here), (mut from_there, mut to_there)) = (here.split(), there.split());
    tokio::select! {
        ended = copy(&mut from_here, &mut to_there) => ended,
        ended = copy(&mut from_there, &mut to_here) => ended,
    }
}

/// Takes the bytes that say so, if they are there.
async fn was_passed_on(stream: &mut TcpStream) -> std::io::Result<bool> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 0 || first[0] != PASSED_ON[0] {
        return Ok(false);
    }
    let mut said = [0; PASSED_ON.len()];
    stream.read_exact(&mut said).await?;
    if said == PASSED_ON {
        Ok(true)
    } else {
        Err(std::io::ErrorKind::InvalidData.into())
    }
}

/// A connection to the one that leads, which is told that it was passed on.
async fn connect(leader: &Leader) -> Option<TcpStream> {
    let address = leader.address.as_deref()?;
    let connected = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(PASSED_ON).await?;
        std::io::Result::Ok(stream)
    };
    match tokio::time::timeout(CONNECT_TIMEOUT, connected).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(address, %error, "cannot reach the replica that leads");
            None
        }
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests;
