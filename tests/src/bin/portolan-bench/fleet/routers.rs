//! A router as the hub sees it, of which there may be a thousand in one process: it acknowledges each transaction at its commit,
//! says that no write of it is open, reports every three seconds, and keeps next to nothing.
//!
//! The wire's own client over TLS. What all of them have heard of is counted on one [`Board`]; one of them keeps a [`Record`] of
//! who has which namespace.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use portolan_runtime::Tasks;
use portolan_runtime::tls::{IdentityStore, TrustStore};
use portolan_wire::client::HubLink;
use portolan_wire::protocol::{CURSOR_FORMAT_2, FENCE, LOCKS, OPERATORS, OWNERSHIP_CHANGES, POLICIES, PROTOCOL};
use portolan_wire::v1;
use portolan_wire::v1::resource::Body;
use portolan_wire::v1::router_control_client::RouterControlClient;
use portolan_wire::v1::router_message::Kind as Said;
use portolan_wire::v1::router_update::Kind as Told;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

use super::board::Board;

/// Messages under way to the hub.
const OUTBOX: usize = 16;
/// Until it comes back.
const BACK_AFTER: Duration = Duration::from_secs(1);
/// As a router does.
const REPORT_EVERY: Duration = Duration::from_secs(3);

/// One router's stream; ends when dropped.
pub(super) struct FleetRouter {
    tasks: Tasks,
}

/// How a router gets at the hub.
pub(super) struct Way<'a> {
    pub(super) address: &'a str,
    pub(super) trust: Arc<TrustStore>,
    pub(super) identity: Arc<IdentityStore>,
}

impl FleetRouter {
    /// Opens a stream, holding nothing; anew whenever it ends, holding what it was told, as a router does. `members`: of which it reports.
    pub(super) async fn open(way: Way<'_>, board: Arc<Board>, members: Arc<[String]>) -> anyhow::Result<Self> {
        let channel = HubLink::new(way.address, way.trust, way.identity)?.channel();
        let client = RouterControlClient::new(channel).max_decoding_message_size(usize::MAX);
        let seat = board.seat();
        let mut known = Known::default();
        let mut stream = connect(client.clone(), &known).await?;
        let tasks = Tasks::new();
        tasks.spawn("fleet-router", async move {
            loop {
                let (outbox, updates) = stream;
                let mut following = Following::new(outbox.clone(), board.clone(), seat, known);
                let ended = tokio::select! {
                    Err(error) = following.run(updates) => error,
                    Err(error) = report(&outbox, &members) => error,
                };
                board.lost(&ended);
                known = following.known;
                stream = loop {
                    tokio::time::sleep(BACK_AFTER).await;
                    if let Ok(stream) = connect(client.clone(), &known).await {
                        break stream;
                    }
                };
            }
        });
        Ok(Self { tasks })
    }
}

/// What goes to the hub, and what comes of it.
type Stream = (mpsc::Sender<v1::RouterMessage>, Streaming<v1::RouterUpdate>);

/// What a router holds, by its encoded name.
type Known = BTreeMap<Vec<u8>, v1::KnownResource>;

async fn connect(mut client: RouterControlClient<Channel>, known: &Known) -> anyhow::Result<Stream> {
    let (outbox, messages) = mpsc::channel(OUTBOX);
    let hello = v1::RouterHello {
        protocol: PROTOCOL,
        capabilities: [CURSOR_FORMAT_2, FENCE, LOCKS, OPERATORS, OWNERSHIP_CHANGES, POLICIES]
            .map(str::to_owned)
            .to_vec(),
        version: "v0-bench".to_owned(),
        known: known.values().cloned().collect(),
        ..v1::RouterHello::default()
    };
    outbox.send(message(Said::Hello(hello))).await?;
    let updates = client.connect(ReceiverStream::new(messages)).await?.into_inner();
    Ok((outbox, updates))
}

impl Drop for FleetRouter {
    fn drop(&mut self) {
        self.tasks.cancel();
    }
}

/// What a router keeps.
struct Following {
    outbox: mpsc::Sender<v1::RouterMessage>,
    board: Arc<Board>,
    /// Its number on the board.
    seat: usize,
    /// What is being released, by the name of its Ownership, in the order of namespaces.
    releasing: BTreeMap<(String, String), Vec<v1::PairEpoch>>,
    /// Of the transaction that comes in.
    resources: Vec<v1::Resource>,
    known: Known,
    began: Instant,
}

impl Following {
    fn new(outbox: mpsc::Sender<v1::RouterMessage>, board: Arc<Board>, seat: usize, known: Known) -> Self {
        Self {
            outbox,
            board,
            seat,
            releasing: BTreeMap::new(),
            resources: Vec::new(),
            known,
            began: Instant::now(),
        }
    }

    async fn run(&mut self, mut updates: Streaming<v1::RouterUpdate>) -> anyhow::Result<std::convert::Infallible> {
        loop {
            let update = updates.message().await?.context("the hub ended the stream")?;
            match update.kind {
                Some(Told::Resource(resource)) => self.resources.push(resource),
                Some(Told::Removed(name)) => _ = self.known.remove(&name.encode_to_vec()),
                Some(Told::Commit(commit)) => self.commit(commit.nonce).await?,
                _ => {}
            }
        }
    }

    async fn commit(&mut self, nonce: u64) -> anyhow::Result<()> {
        let resources = std::mem::take(&mut self.resources);
        self.say(Said::Ack(v1::Ack { nonce })).await?;
        self.board.acked((self.seat, self.began), Instant::now(), &resources);
        for resource in &resources {
            let Some(name) = resource.reference() else { continue };
            let known = v1::KnownResource {
                r#ref: Some(name.clone()),
                version: resource.version.clone(),
            };
            self.known.insert(name.encode_to_vec(), known);
        }
        let mut is_news = false;
        for resource in &resources {
            is_news |= match &resource.body {
                Some(Body::Ownership(owned)) => self.owns(owned, |_| false),
                Some(Body::OwnershipChange(change)) => {
                    let Some(now) = &change.now else { continue };
                    let stays = |namespace: &String| {
                        let is_told = now.namespaces.iter().any(|grant| grant.namespace == *namespace);
                        !is_told && !change.gone.contains(namespace)
                    };
                    self.owns(now, stays)
                }
                _ => false,
            };
        }
        if is_news {
            let pairs = self.releasing.values().flatten().cloned().collect();
            self.say(Said::WritesAnswered(v1::WritesAnswered { pairs })).await?;
        }
        Ok(())
    }

    /// Takes note of what is being released; of what was, what `stays` is still. Whether that is news.
    fn owns(&mut self, owned: &v1::Ownership, stays: impl Fn(&String) -> bool) -> bool {
        let key = (owned.cluster.clone(), owned.shard.clone());
        let before = self.releasing.remove(&key).unwrap_or_default();
        let mut now = releasing(owned);
        now.extend(before.iter().filter(|pair| stays(&pair.namespace)).cloned());
        now.sort_unstable_by(|one, other| one.namespace.cmp(&other.namespace));
        let is_news = before != now;
        if !now.is_empty() {
            self.releasing.insert(key, now);
        }
        is_news
    }

    async fn say(&self, kind: Said) -> anyhow::Result<()> {
        if self.outbox.send(message(kind)).await.is_err() {
            bail!("the router's stream has ended");
        }
        Ok(())
    }
}

fn releasing(owned: &v1::Ownership) -> Vec<v1::PairEpoch> {
    let releasing = owned.namespaces.iter();
    let releasing = releasing.filter(|grant| grant.state() == v1::GrantState::Releasing);
    let pair = |grant: &v1::NamespaceGrant| v1::PairEpoch {
        cluster: owned.cluster.clone(),
        namespace: grant.namespace.clone(),
        epoch: grant.owner_count,
    };
    releasing.map(pair).collect()
}

/// That every member has answered just now.
async fn report(
    outbox: &mpsc::Sender<v1::RouterMessage>,
    members: &[String],
) -> anyhow::Result<std::convert::Infallible> {
    loop {
        outbox.send(reported(members)?).await?;
        tokio::time::sleep(REPORT_EVERY).await;
    }
}

fn reported(members: &[String]) -> anyhow::Result<v1::RouterMessage> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    let until_unix_seconds = i64::try_from(now.as_secs())?;
    let answered = members.iter().map(|cluster| v1::MemberAnswered {
        cluster: cluster.clone(),
        until_unix_seconds,
    });
    let report = v1::BreakerReport {
        answered: answered.collect(),
        ..v1::BreakerReport::default()
    };
    Ok(message(Said::Breakers(report)))
}

fn message(kind: Said) -> v1::RouterMessage {
    v1::RouterMessage { kind: Some(kind) }
}
