//! The other ends of the hub's streams: an agent's and a router's, message by message.

use portolan_wire::v1;
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use super::PATIENCE;

/// An agent's end of a stream.
pub(crate) struct TestAgent {
    pub(crate) outbox: mpsc::Sender<v1::AgentMessage>,
    pub(super) updates: Streaming<v1::AgentUpdate>,
}

impl TestAgent {
    pub(crate) async fn say(&self, kind: v1::agent_message::Kind) {
        self.outbox.send(v1::AgentMessage { kind: Some(kind) }).await.unwrap();
    }

    pub(crate) async fn hear(&mut self) -> Result<v1::agent_update::Kind, Status> {
        let update = next(&mut self.updates).await?;
        Ok(update.kind.expect("an update of some kind"))
    }
}

/// A router's end of a stream.
pub(crate) struct TestRouter {
    pub(crate) outbox: mpsc::Sender<v1::RouterMessage>,
    pub(super) updates: Streaming<v1::RouterUpdate>,
}

/// What came up to a commit.
#[derive(Debug, Default)]
pub(crate) struct Received {
    pub(crate) nonce: u64,
    pub(crate) upserted: Vec<v1::Resource>,
    pub(crate) removed: Vec<v1::ResourceRef>,
}

impl TestRouter {
    pub(crate) async fn say(&self, kind: v1::router_message::Kind) {
        self.outbox.send(v1::RouterMessage { kind: Some(kind) }).await.unwrap();
    }

    pub(crate) async fn hear(&mut self) -> Result<v1::router_update::Kind, Status> {
        let update = next(&mut self.updates).await?;
        Ok(update.kind.expect("an update of some kind"))
    }

    /// One transaction, not answered.
    pub(crate) async fn transaction(&mut self) -> Received {
        let mut received = Received::default();
        loop {
            match self.hear().await.unwrap() {
                v1::router_update::Kind::Resource(resource) => received.upserted.push(resource),
                v1::router_update::Kind::Removed(name) => received.removed.push(name),
                v1::router_update::Kind::Commit(commit) => {
                    received.nonce = commit.nonce;
                    return received;
                }
                v1::router_update::Kind::AccessDecision(_)
                | v1::router_update::Kind::Welcome(_)
                | v1::router_update::Kind::CaughtUp(_)
                | v1::router_update::Kind::Alone(_)
                | v1::router_update::Kind::LastAnswers(_)
                | v1::router_update::Kind::NamespaceFound(_)
                | v1::router_update::Kind::Trust(_)
                | v1::router_update::Kind::Shares(_) => {}
            }
        }
    }

    pub(crate) async fn ack(&self, nonce: u64) {
        self.say(v1::router_message::Kind::Ack(v1::Ack { nonce })).await;
    }
}

async fn next<T>(updates: &mut Streaming<T>) -> Result<T, Status> {
    let update = tokio::time::timeout(PATIENCE, updates.message()).await;
    Ok(update.expect("an update in time")?.expect("a stream that goes on"))
}
