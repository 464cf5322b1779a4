//! The streams that routers and agents hold open: one session each, of the identity that their certificate names.
//!
//! `routers` sends worlds and collects acknowledgements; `agents` collects facts and asks for reviews; `transaction`
//! is the pure part of the former. The only place beside `enroll` that makes `tonic::Status`es. Served by `server`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::Stream;
use portolan_wire::protocol::{NAMESPACES, REPORT_PAGES, Spoken, negotiate};
use portolan_wire::v1;
use tokio::sync::mpsc;
use tonic::Status;

mod agents;
mod breakers;
mod mouth;
mod offers;
mod policies;
mod replicas;
mod reviews;
mod routers;
#[cfg(test)]
mod tests;
mod transaction;

pub(crate) use agents::AgentService;
pub(crate) use reviews::AgentSessions;
pub(crate) use routers::RouterService;

use self::mouth::Mouth;

/// What goes to one peer.
type Outbound<T> = mpsc::Sender<Result<T, Status>>;

/// The first message must come within this time.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Messages to one peer that wait for the network; beyond it the session waits.
const OUTBOUND: usize = 16;
/// A peer that takes nothing for this long is gone, whatever its connection says.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// Numbers streams across both services, so that a later one of the same peer is told from an earlier one.
static EPOCHS: AtomicU64 = AtomicU64::new(1);

fn next_epoch() -> u64 {
    EPOCHS.fetch_add(1, Ordering::Relaxed)
}

/// The first message of a stream, in time.
async fn first<T>(inbound: &mut (impl Stream<Item = Result<T, Status>> + Unpin)) -> Result<T, Status> {
    use futures::StreamExt;
    match tokio::time::timeout(HELLO_TIMEOUT, inbound.next()).await {
        Ok(Some(message)) => message,
        Ok(None) => Err(Status::invalid_argument("the stream ended before its hello")),
        Err(_) => Err(Status::deadline_exceeded("no hello came in time")),
    }
}

/// Sends, or says why the stream is to be ended. `peer`: the word for who takes nothing.
async fn send<T>(outbound: &Outbound<T>, peer: &str, message: T) -> Result<(), Status> {
    match tokio::time::timeout(SEND_TIMEOUT, outbound.send(Ok(message))).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(Status::cancelled(format!("the {peer}'s end of the stream is gone"))),
        Err(_) => Err(Status::deadline_exceeded(format!("the {peer} takes nothing"))),
    }
}

/// Ends a stream, saying why.
async fn end<T>(outbound: &Outbound<T>, status: Status) -> Status {
    let _ = tokio::time::timeout(SEND_TIMEOUT, outbound.send(Err(status.clone()))).await;
    status
}

/// The answer of the hub of this term to a Hello that tells these revisions of the protocol.
fn welcome((newest, oldest): (u32, u32), term: u64) -> Result<v1::Welcome, Status> {
    let agreed = negotiate(Spoken::OURS, Spoken::told(newest, oldest));
    let protocol = agreed.map_err(|mismatch| Status::failed_precondition(mismatch.to_string()))?;
    let capabilities = [REPORT_PAGES, NAMESPACES].map(ToOwned::to_owned).into();
    Ok(v1::Welcome {
        protocol,
        capabilities,
        term,
        ..v1::Welcome::default()
    })
}
