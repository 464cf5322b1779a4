//! The control plane under a large shard: the real hub, on a real API server, tells it to all routers over TLS; then one
//! thing changes at a time.
//!
//! The members' agents are played over real streams: the hub sees what agents of clusters of that size report, and nobody
//! has to run thousands of Pods at API servers that are not measured. One of the routers is the router's program, the
//! others are the wire's client. Beside them stands a peer that sends the same content as one state of the world, for every
//! change again.

mod members;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use portolan_runtime::files;
use portolan_runtime::pki::CertificateAuthority;
use portolan_runtime::tls::TrustStore;
use portolan_tests::ctl;
use portolan_tests::hub_cluster::{self, Agent};
use portolan_tests::programs::argument;
use portolan_wire::identity::Identity;
use portolan_wire::v1;
use portolan_wire::v1::resource::Body;
use prost::Message as _;

use self::members::{Change, MEMBERS};
use crate::child::Child;
use crate::hub::Hub;
use crate::hub_plane::HubPlane;
use crate::relay::Relay;
use crate::report::{ChangeRow, ControlSection, MemoryRow, SyncRow};
use crate::subscribers::Subscriber;
use crate::usage;

/// Nothing here takes longer unless it hangs.
const PATIENCE: Duration = Duration::from_mins(2);
/// For memory, and what is under way, to come to rest.
const SETTLE: Duration = Duration::from_secs(3);
/// Between looks at what the hub counts.
const LOOK: Duration = Duration::from_millis(5);
const SHARD: &str = "large";

/// How much there is, and how often each change is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Amount {
    pub(crate) namespaces: usize,
    pub(crate) callers: usize,
    pub(crate) routers: usize,
    pub(crate) changes: usize,
}

pub(crate) async fn run(amount: Amount, step: fn(&str)) -> anyhow::Result<ControlSection> {
    ensure!(amount.routers > 1, "one router is the program, so two are the least");
    step("control: starting a control plane, the hub and a router");
    let plane = Plane::start().await?;
    let before = plane.memory()?;
    step(&format!(
        "control: {} namespaces, {} callers",
        amount.namespaces, amount.callers
    ));
    plane.report(amount).await?;
    let (sync, resources) = plane.sync(amount).await?;
    let mut subscribers = Vec::new();
    for number in 1..amount.routers {
        subscribers.push(plane.subscriber(number, &plane.base.address).await?);
    }
    tokio::time::sleep(SETTLE).await;
    let synced = plane.memory()?;
    let mut changes = Vec::new();
    for change in Change::ALL {
        step(&format!("control: {}, {} times", change.name(), amount.changes));
        changes.push(plane.changes(change, &mut subscribers, amount).await?);
    }
    let after = plane.memory()?;
    drop(subscribers);
    step(&format!(
        "control: the same as one state of the world, {} times",
        amount.changes
    ));
    let (peer_sync, peer_change) = peer(&resources, amount).await?;
    changes.push(peer_change);
    let copied = SyncRow {
        name: "a copy for each caller (computed)",
        megabytes: megabytes(owned_bytes(&resources) * amount.callers),
        seconds: None,
    };
    let memory = ["hub", "router"]
        .into_iter()
        .enumerate()
        .map(|(which, name)| MemoryRow {
            name,
            before: before[which],
            synced: synced[which],
            after: after[which],
        });
    Ok(ControlSection {
        of: format!(
            "one shard of {} namespaces in {} members with {} callers, {} routers",
            amount.namespaces,
            MEMBERS.len(),
            amount.callers,
            amount.routers
        ),
        syncs: vec![sync, peer_sync, copied],
        memory: memory.collect(),
        changes,
    })
}

/// A hub with two members that have joined, and one router.
struct Plane {
    base: HubPlane,
    agents: Vec<Agent>,
    router: Child,
    relay: Relay,
}

impl Plane {
    async fn start() -> anyhow::Result<Self> {
        let base = HubPlane::start().await?;
        let client = base.client().await?;
        let mut agents = Vec::new();
        for member in MEMBERS {
            let identity = base.join(&client, member).await?;
            let token = base.cluster().issue_token("default", "default", &[], None).await?;
            agents.push(Agent::connect(base.channel(identity)?, member, &token).await?);
        }
        let relay = Relay::start(base.address.clone()).await?;
        let kubeconfig = argument(base.cluster().direct_kubeconfig_path());
        let token = [
            "router-token",
            "gateway",
            "--san",
            "127.0.0.1",
            "--hub-kubeconfig",
            &kubeconfig,
        ];
        files::write_private(base.dir().join("bootstrap"), ctl::ok(&token).await?.trim())?;
        files::write_public(base.dir().join("hub-ca.pem"), base.ca.pem())?;
        let mut router = crate::scripted::start_router(base.dir(), &relay.address.to_string(), &[])?;
        router.address("admin").await?;
        tokio::time::sleep(SETTLE).await;
        Ok(Self {
            base,
            agents,
            router,
            relay,
        })
    }

    /// Of the hub and of the router, in MiB.
    fn memory(&self) -> anyhow::Result<[f64; 2]> {
        Ok([self.base.memory()?, usage::resident_kib(self.router.pid())? / 1024.0])
    }

    /// All that the agents have, and the shard.
    async fn report(&self, amount: Amount) -> anyhow::Result<()> {
        let each = |all: usize| all.div_ceil(MEMBERS.len());
        for (member, agent) in MEMBERS.iter().zip(&self.agents) {
            for report in members::everything(member, each(amount.namespaces), each(amount.callers)) {
                agent.say(report).await?;
            }
        }
        hub_cluster::put_shard(&self.base.client().await?, SHARD, members::shard()).await
    }

    /// What a router that holds nothing is told in its first transaction, once the hub has everything.
    async fn sync(&self, amount: Amount) -> anyhow::Result<(SyncRow, Vec<v1::Resource>)> {
        let begun = Instant::now();
        loop {
            let relay = Relay::start(self.base.address.clone()).await?;
            let opened = Instant::now();
            let mut subscriber = self.subscriber(0, &relay.address.to_string()).await?;
            let first = tokio::time::timeout(PATIENCE, subscriber.acked(|_| true))
                .await
                .context("no first sync")??;
            if is_whole(&first.resources, amount) {
                let row = SyncRow {
                    name: "small resources",
                    megabytes: megabytes(relay.passed().down),
                    seconds: Some((first.at - opened).as_secs_f64()),
                };
                return Ok((row, first.resources));
            }
            ensure!(begun.elapsed() < PATIENCE, "the hub never has everything");
            drop(subscriber);
            tokio::time::sleep(SETTLE).await;
        }
    }

    async fn subscriber(&self, number: usize, address: &str) -> anyhow::Result<Subscriber> {
        let client = self.base.client().await?;
        let identity = self.base.enroll(&client, &format!("bench-{number}")).await?;
        Subscriber::open(address, self.base.trust()?, identity).await
    }

    /// One change after the other, each acknowledged by all routers before the next.
    async fn changes(
        &self,
        change: Change,
        subscribers: &mut [Subscriber],
        amount: Amount,
    ) -> anyhow::Result<ChangeRow> {
        let mut times = Vec::with_capacity(amount.changes);
        let (bytes, cpu) = (self.relay.passed().down, self.base.cpu()?);
        for number in 0..amount.changes {
            let acks = self.acks().await?;
            let begun = Instant::now();
            self.agents[0].say(change.report(number)).await?;
            let others = last_ack(subscribers, |resource| change.is_in(resource)).await?;
            while self.acks().await? < acks + amount.routers {
                ensure!(begun.elapsed() < PATIENCE, "the router's program does not acknowledge");
                tokio::time::sleep(LOOK).await;
            }
            let program = self.relay.passed().answered.context("the router says something")?;
            times.push(others.max(program) - begun);
        }
        let used = self.base.cpu()? - cpu;
        Ok(row(change.name(), times, self.relay.passed().down - bytes, used))
    }

    /// Transactions that routers have acknowledged, as the hub counts them.
    async fn acks(&self) -> anyhow::Result<usize> {
        let count = self.base.counter("transactions_total{answer=\"Ack\"").await?;
        count.context("the hub does not count acknowledgements")
    }
}

/// The same content as one state of the world, to all routers for every change: no hub decides or stores anything here.
async fn peer(resources: &[v1::Resource], amount: Amount) -> anyhow::Result<(SyncRow, ChangeRow)> {
    const NAME: &str = "state of the world (peer)";
    let ca = Arc::new(CertificateAuthority::generate("bench hub CA")?);
    let hub = Hub::start(ca.clone(), resources.to_vec()).await?;
    let relay = Relay::start(hub.address.to_string()).await?;
    let mut subscribers = Vec::new();
    let mut first = None;
    for number in 0..amount.routers {
        let address = if number == 0 { relay.address } else { hub.address }.to_string();
        let identity = hub_cluster::identity(&ca, &Identity::Router(format!("bench-{number}")))?;
        let opened = Instant::now();
        let mut subscriber = Subscriber::open(&address, TrustStore::from_pem(ca.pem())?, identity).await?;
        let acked = subscriber.acked(|_| true).await?;
        first.get_or_insert((acked.at - opened).as_secs_f64());
        subscribers.push(subscriber);
    }
    let bytes = relay.passed().down;
    let mut times = Vec::with_capacity(amount.changes);
    for _ in 0..amount.changes {
        let begun = Instant::now();
        hub.send_all();
        times.push(last_ack(&mut subscribers, |_| true).await? - begun);
    }
    let sync = SyncRow {
        name: NAME,
        megabytes: megabytes(bytes),
        seconds: first,
    };
    Ok((sync, row(NAME, times, relay.passed().down - bytes, 0.0)))
}

/// When the last of them has acknowledged what is `wanted`.
async fn last_ack(subscribers: &mut [Subscriber], wanted: impl Fn(&v1::Resource) -> bool) -> anyhow::Result<Instant> {
    let all = subscribers.iter_mut().map(|subscriber| subscriber.acked(&wanted));
    let acked = tokio::time::timeout(PATIENCE, futures::future::try_join_all(all)).await;
    let acked = acked.context("a router does not acknowledge")??;
    acked.iter().map(|acked| acked.at).max().context("a router")
}

fn row(name: &'static str, mut times: Vec<Duration>, bytes: usize, cpu_seconds: f64) -> ChangeRow {
    times.sort_unstable();
    let quantile = |thousandths: usize| {
        let last = times.len().saturating_sub(1);
        times
            .get((last * thousandths).div_ceil(1000))
            .map_or(0.0, |time| time.as_secs_f64() * 1000.0)
    };
    let each = f64::from(u32::try_from(times.len().max(1)).unwrap_or(u32::MAX));
    ChangeRow {
        name,
        times: times.len(),
        p50: quantile(500),
        p99: quantile(990),
        kilobytes: megabytes(bytes) * 1000.0 / each,
        hub_cpu: cpu_seconds * 1000.0 / each,
    }
}

/// Every namespace has its owner, and every caller its view.
fn is_whole(resources: &[v1::Resource], amount: Amount) -> bool {
    let grants = resources.iter().map(|resource| match &resource.body {
        Some(Body::Ownership(owned)) => owned.namespaces.len(),
        _ => 0,
    });
    let views = resources
        .iter()
        .filter(|resource| matches!(resource.body, Some(Body::CallerView(_))));
    grants.sum::<usize>() >= amount.namespaces && views.count() >= amount.callers
}

fn owned_bytes(resources: &[v1::Resource]) -> usize {
    let owned = resources
        .iter()
        .filter(|resource| matches!(resource.body, Some(Body::Ownership(_))));
    owned.map(v1::Resource::encoded_len).sum()
}

fn megabytes(bytes: usize) -> f64 {
    f64::from(u32::try_from(bytes).unwrap_or(u32::MAX)) / 1e6
}
