//! Routers as the hub sees them: they hold what they are told, and acknowledge each transaction at its commit.
//!
//! The wire's own client over TLS, without what a router makes of its resources. Beside `control`.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, bail};
use portolan_runtime::Tasks;
use portolan_runtime::tls::{IdentityStore, TrustStore};
use portolan_wire::client::HubLink;
use portolan_wire::protocol::{CURSOR_FORMAT_2, OPERATORS, PROTOCOL};
use portolan_wire::v1;
use portolan_wire::v1::router_control_client::RouterControlClient;
use portolan_wire::v1::router_message::Kind as Said;
use portolan_wire::v1::router_update::Kind as Told;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

/// Acknowledgements that nobody has looked at yet.
const ACKS: usize = 1024;
/// Messages under way to the hub.
const OUTBOX: usize = 16;

/// A transaction that was acknowledged.
pub(crate) struct Acked {
    pub(crate) at: Instant,
    pub(crate) resources: Vec<v1::Resource>,
}

/// One router's stream; ends when dropped.
pub(crate) struct Subscriber {
    acks: mpsc::Receiver<anyhow::Result<Acked>>,
    tasks: Tasks,
}

impl Subscriber {
    /// Opens a stream to the hub at `address`, holding nothing.
    pub(crate) async fn open(
        address: &str,
        trust: Arc<TrustStore>,
        identity: Arc<IdentityStore>,
    ) -> anyhow::Result<Self> {
        let channel = HubLink::new(address, trust, identity)?.channel();
        let (outbox, messages) = mpsc::channel(OUTBOX);
        let hello = v1::RouterHello {
            protocol: PROTOCOL,
            capabilities: [CURSOR_FORMAT_2, OPERATORS].map(str::to_owned).to_vec(),
            ..v1::RouterHello::default()
        };
        outbox.send(message(Said::Hello(hello))).await?;
        let mut client = RouterControlClient::new(channel).max_decoding_message_size(usize::MAX);
        let updates = client.connect(ReceiverStream::new(messages)).await?.into_inner();
        let (send, acks) = mpsc::channel(ACKS);
        let tasks = Tasks::new();
        tasks.spawn("subscriber", async move {
            let Err(error) = follow(updates, &outbox, &send).await;
            let _ = send.send(Err(error)).await;
        });
        Ok(Self { acks, tasks })
    }

    /// Waits for the acknowledgement of a transaction with a resource that is `wanted`.
    pub(crate) async fn acked(&mut self, wanted: impl Fn(&v1::Resource) -> bool) -> anyhow::Result<Acked> {
        loop {
            let acked = self.acks.recv().await.context("a subscriber has ended")??;
            if acked.resources.iter().any(&wanted) {
                return Ok(acked);
            }
        }
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.tasks.cancel();
    }
}

async fn follow(
    mut updates: Streaming<v1::RouterUpdate>,
    outbox: &mpsc::Sender<v1::RouterMessage>,
    acks: &mpsc::Sender<anyhow::Result<Acked>>,
) -> anyhow::Result<std::convert::Infallible> {
    let mut resources = Vec::new();
    loop {
        let Some(update) = updates.message().await? else {
            bail!("the hub ended the stream");
        };
        match update.kind {
            Some(Told::Resource(resource)) => resources.push(resource),
            Some(Told::Commit(commit)) => {
                outbox.send(message(Said::Ack(v1::Ack { nonce: commit.nonce }))).await?;
                let acked = Acked {
                    at: Instant::now(),
                    resources: std::mem::take(&mut resources),
                };
                acks.send(Ok(acked)).await?;
            }
            _ => {}
        }
    }
}

fn message(kind: Said) -> v1::RouterMessage {
    v1::RouterMessage { kind: Some(kind) }
}
