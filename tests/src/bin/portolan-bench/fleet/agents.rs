//! An agent as the hub sees it, of a member that is well: it tells of its namespaces, mints a token for each router, and closes
//! namespaces the moment it is ordered to.
//!
//! The wire's own client over TLS; there is no API server behind it. How long a real agent takes to close a namespace is
//! measured with real members, in `tests/tests/moves`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use parking_lot::Mutex;
use portolan_crds::labels::{FENCE_EPOCH, FENCE_SHARD};
use portolan_runtime::Tasks;
use portolan_tests::hub_cluster::{self, NAMESPACE};
use portolan_wire::protocol::PROTOCOL;
use portolan_wire::v1;
use portolan_wire::v1::agent_control_client::AgentControlClient;
use portolan_wire::v1::agent_message::Kind;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

/// Messages under way to the hub.
const OUTBOX: usize = 16;
/// Until it comes back.
const BACK_AFTER: Duration = Duration::from_secs(1);
/// As an agent does.
const HEARTBEAT_PERIOD: Duration = Duration::from_secs(5);
/// Kinds of a cluster with some CustomResourceDefinitions.
const KINDS: usize = 20;
/// Of each kind.
const OBJECTS: u64 = 1000;
const FAR: i64 = 4_000_000_000;

/// One agent's stream; ends when dropped.
pub(super) struct FleetAgent {
    shared: Arc<Shared>,
    tasks: Tasks,
}

struct Shared {
    member: String,
    client: AgentControlClient<Channel>,
    // A mutex: taken for a moment for each message, and for each stream.
    outbox: Mutex<mpsc::Sender<v1::AgentMessage>>,
    token: String,
    // A mutex: the stream's task and the benchmark change it, each for a moment.
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    namespaces: BTreeMap<String, v1::NamespaceFact>,
    /// How often each namespace was annotated.
    annotated: BTreeMap<String, usize>,
    /// Routers that have a token, by name and uid.
    minted: BTreeSet<(String, String)>,
}

impl FleetAgent {
    /// Opens the stream, and tells all that there is; anew whenever it ends, as an agent does.
    pub(super) async fn open(
        channel: Channel,
        member: &str,
        inventory: Vec<v1::NamespaceFact>,
        token: &str,
    ) -> anyhow::Result<Self> {
        let by_name = inventory.into_iter().map(|fact| (fact.name.clone(), fact));
        let known = Known {
            namespaces: by_name.collect(),
            ..Known::default()
        };
        let shared = Arc::new(Shared {
            member: member.to_owned(),
            client: AgentControlClient::new(channel),
            outbox: Mutex::new(mpsc::channel(OUTBOX).0),
            token: token.to_owned(),
            known: Mutex::new(known),
        });
        let mut updates = shared.connect().await?;
        let tasks = Tasks::new();
        let (beating, following) = (shared.clone(), shared.clone());
        tasks.spawn("fleet-agent-beat", async move {
            loop {
                // While there is no stream nobody hears it.
                let _ = beating.beat().await;
                tokio::time::sleep(HEARTBEAT_PERIOD).await;
            }
        });
        tasks.spawn("fleet-agent", async move {
            loop {
                let _ = following.follow(updates).await;
                updates = loop {
                    tokio::time::sleep(BACK_AFTER).await;
                    if let Ok(updates) = following.connect().await {
                        break updates;
                    }
                };
            }
        });
        Ok(Self { shared, tasks })
    }

    /// Tells of namespaces that are new or have changed.
    pub(super) async fn upsert(&self, namespaces: Vec<v1::NamespaceFact>) -> anyhow::Result<()> {
        let by_name = namespaces.iter().map(|fact| (fact.name.clone(), fact.clone()));
        self.shared.known.lock().namespaces.extend(by_name);
        self.shared.tell(false, namespaces).await
    }

    /// What is known of a namespace.
    pub(super) fn namespace(&self, name: &str) -> Option<v1::NamespaceFact> {
        self.shared.known.lock().namespaces.get(name).cloned()
    }

    /// How often it has annotated this namespace.
    pub(super) fn annotated(&self, name: &str) -> usize {
        self.shared
            .known
            .lock()
            .annotated
            .get(name)
            .copied()
            .unwrap_or_default()
    }
}

impl Drop for FleetAgent {
    fn drop(&mut self) {
        self.tasks.cancel();
    }
}

impl Shared {
    /// A stream, on which all is told that is known.
    async fn connect(&self) -> anyhow::Result<Streaming<v1::AgentUpdate>> {
        let facts = hub_cluster::facts_of(&self.member);
        let hello = v1::AgentHello {
            protocol: PROTOCOL,
            version: "v0-bench".to_owned(),
            cluster_uid: facts.cluster_uid,
            kubernetes_version: facts.kubernetes_version,
            jwks: facts.jwks,
            ..v1::AgentHello::default()
        };
        let (outbox, messages) = mpsc::channel(OUTBOX);
        *self.outbox.lock() = outbox;
        self.say(Kind::Hello(hello)).await?;
        let updates = self.client.clone().connect(ReceiverStream::new(messages)).await?;
        for kind in first() {
            self.say(kind).await?;
        }
        let namespaces = self.known.lock().namespaces.values().cloned().collect();
        self.tell(true, namespaces).await?;
        Ok(updates.into_inner())
    }

    async fn tell(&self, reset: bool, namespaces: Vec<v1::NamespaceFact>) -> anyhow::Result<()> {
        let told = v1::NamespaceDelta {
            reset,
            upserted: namespaces,
            removed: Vec::new(),
            ..v1::NamespaceDelta::default()
        };
        self.say(Kind::Namespaces(told)).await
    }

    async fn say(&self, kind: Kind) -> anyhow::Result<()> {
        let message = v1::AgentMessage { kind: Some(kind) };
        let outbox = self.outbox.lock().clone();
        outbox.send(message).await.context("the agent's stream has ended")
    }

    async fn beat(&self) -> anyhow::Result<()> {
        self.say(Kind::Heartbeat(v1::Heartbeat {
            api_ready: true,
            latency_milliseconds: 3,
            ..v1::Heartbeat::default()
        }))
        .await
    }

    async fn follow(&self, mut updates: Streaming<v1::AgentUpdate>) -> anyhow::Result<()> {
        while let Some(update) = updates.message().await? {
            match update.kind {
                Some(v1::agent_update::Kind::Config(config)) => {
                    self.mint(config.routers.unwrap_or_default()).await?;
                    self.close(config.fences).await?;
                }
                Some(v1::agent_update::Kind::KeyChallenge(asked)) => {
                    let shown = hub_cluster::proof_of(&self.member, &asked.nonce);
                    self.say(Kind::SigningKeys(shown)).await?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A token for each router that has none.
    async fn mint(&self, routers: v1::Routers) -> anyhow::Result<()> {
        if self.token.is_empty() {
            return Ok(());
        }
        for router in routers.routers {
            if !self
                .known
                .lock()
                .minted
                .insert((router.name.clone(), router.uid.clone()))
            {
                continue;
            }
            self.say(Kind::MemberToken(v1::MemberToken {
                token: self.token.clone(),
                expires_unix_seconds: FAR,
                router: Some(router),
            }))
            .await?;
        }
        Ok(())
    }

    /// Annotates what is ordered, and says that all of it is closed.
    async fn close(&self, orders: Vec<v1::FenceOrder>) -> anyhow::Result<()> {
        let annotated = {
            let Known {
                namespaces, annotated, ..
            } = &mut *self.known.lock();
            let annotated = orders.iter().filter_map(|order| {
                let fact = namespaces.get_mut(&order.namespace)?;
                let lags = fact.epoch.is_none_or(|epoch| epoch < order.epoch) || fact.epochs != order.open;
                lags.then(|| {
                    *annotated.entry(order.namespace.clone()).or_default() += 1;
                    fact.epoch = Some(order.epoch);
                    fact.epochs.clone_from(&order.open);
                    fact.clone()
                })
            });
            annotated.collect::<Vec<_>>()
        };
        if !annotated.is_empty() {
            let upserted = v1::NamespaceDelta {
                upserted: annotated,
                ..v1::NamespaceDelta::default()
            };
            self.say(Kind::Namespaces(upserted)).await?;
        }
        let states = orders.into_iter().map(|order| v1::FenceState {
            namespace: order.namespace,
            epoch: order.epoch,
            closed: true,
            message: String::new(),
            open: order.open,
        });
        let fences = states.collect();
        self.say(Kind::Fences(v1::Fences { fences })).await
    }
}

/// What an agent tells beside its namespaces.
fn first() -> Vec<Kind> {
    let coverage = |kind: usize| v1::CoverageFact {
        kind: Some(v1::KindRef {
            group: if kind == 0 { "" } else { "example.com" }.to_owned(),
            resource: if kind == 0 {
                "namespaces".to_owned()
            } else {
                format!("kinds-{kind:03}")
            },
        }),
        labelled: OBJECTS,
        total: OBJECTS,
        complete: true,
        at_admission: Some(true),
        ..v1::CoverageFact::default()
    };
    vec![
        Kind::Coverage(v1::CoverageDelta {
            reset: true,
            upserted: (0..KINDS).map(coverage).collect(),
            removed: Vec::new(),
            ..v1::CoverageDelta::default()
        }),
        Kind::Callers(v1::CallerDelta {
            reset: true,
            ..v1::CallerDelta::default()
        }),
        Kind::Allowed(v1::Allowed {
            service_accounts: vec![format!("{NAMESPACE}/operator")],
            users: Vec::new(),
            extras: vec![FENCE_SHARD.to_owned(), FENCE_EPOCH.to_owned()],
            fence_lists: true,
        }),
    ]
}
