//! The control plane of a large fleet: the real hub, on a real API server and etcd, with as many members, namespaces, shards and
//! routers as it is made for.
//!
//! Routers and agents are played by this program over real streams with client certificates, so that its own work is in all
//! times; the hub's CPU is told apart. One relay counts what one router is sent.

mod agents;
mod board;
mod layout;
pub(crate) mod operators;
mod routers;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures::{StreamExt, TryStreamExt};
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use portolan_crds::{Bucketing, ShardingConfig};
use portolan_tests::balancer::Balancer;
use portolan_tests::hub_cluster::{self, NAMESPACE};
use serde_json::{Value, json};

use self::agents::FleetAgent;
use self::board::{Awaited, Board, Pair, Record};
use self::layout::{Layout, namespace};
use self::routers::{FleetRouter, Way};
use crate::hub_plane::HubPlane;
use crate::relay::Relay;
use crate::report::{FleetRow, FleetSection, LoadRow, ReshardRow};

/// Nothing here takes longer unless it hangs.
const PATIENCE: Duration = Duration::from_mins(10);
/// How long the hub is looked at while nothing happens.
const REST: Duration = Duration::from_secs(20);
/// Between looks at what was told.
const LOOK: Duration = Duration::from_millis(50);
/// A handover that has told nothing new for so long is done, if nothing is left over.
const QUIET: Duration = Duration::from_secs(3);
/// Joins, enrolments and writes of objects at once.
const AT_ONCE: usize = 8;
/// Of each router to enrol and to open its stream, after the first.
const TRIES: usize = 10;
/// Numbers from here on are nobody's at first.
const NEW: usize = 50_000;

/// How much there is, and how often each change is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Amount {
    pub(crate) members: usize,
    pub(crate) namespaces: usize,
    pub(crate) shards: usize,
    pub(crate) routers: usize,
    pub(crate) root_size: usize,
    pub(crate) changes: usize,
    /// Moves take seconds.
    pub(crate) moves: usize,
    /// How often the hub is killed.
    pub(crate) kills: usize,
    /// Of each token that an agent mints; 0: none are minted.
    pub(crate) token_bytes: usize,
}

pub(crate) async fn run(amount: Amount, step: fn(&str)) -> anyhow::Result<FleetSection> {
    ensure!(
        amount.members > 0 && amount.shards > 1,
        "a member and two shards are the least"
    );
    ensure!(amount.routers > 0, "somebody has to be told");
    step("fleet: starting a control plane and the hub");
    let mut plane = HubPlane::start().await?;
    // The address that all know, whichever replica leads.
    let way = Balancer::start(vec![plane.address.clone()]).await?;
    plane.address.clone_from(&way.address);
    let mut loads = vec![load(&plane, "with nothing").await?];
    let mut fleet = Fleet::build(plane, amount, step).await?;
    loads.push(load(&fleet.plane, "everything told, at rest").await?);
    let mut rows = Vec::new();
    step(&format!("fleet: edit of a ShardingConfig, {} times", amount.changes));
    rows.push(
        fleet
            .times(amount.changes, Fleet::edit)
            .await?
            .row("edit of a ShardingConfig"),
    );
    step(&format!("fleet: one namespace more, {} times", amount.changes));
    rows.push(fleet.times(amount.changes, Fleet::add).await?.row("one namespace more"));
    step(&format!("fleet: a namespace moves, {} times", amount.moves));
    rows.push(
        fleet
            .times(amount.moves, Fleet::hand_over)
            .await?
            .row("a namespace moves, fenced"),
    );
    step(&format!("fleet: {} shards of a root become one more", amount.root_size));
    let reshard = fleet.reshard(amount.root_size).await?;
    step(&format!("fleet: {}", fleet.board.losses()));
    loads.push(load(&fleet.plane, "after all changes, at rest").await?);
    step(&format!(
        "fleet: the hub is killed beside a replica, {} times",
        amount.kills
    ));
    let mut takeovers = Vec::new();
    for number in 0..amount.kills {
        takeovers.push(fleet.is_taken_over(number, &way).await?.as_secs_f64());
    }
    Ok(FleetSection {
        of: format!(
            "{} members, {} namespaces, {} shards and a root of {} more, {} routers; tokens of {} bytes",
            amount.members,
            fleet.layout.owned() + fleet.layout.root_namespaces(),
            amount.shards,
            amount.root_size,
            amount.routers,
            amount.token_bytes,
        ),
        first_sync: fleet.first_sync,
        loads,
        rows,
        reshard,
        takeovers,
    })
}

/// Memory of the hub, and what it does while nothing happens.
async fn load(plane: &HubPlane, name: &'static str) -> anyhow::Result<LoadRow> {
    let (begun, cpu) = (Instant::now(), plane.cpu()?);
    tokio::time::sleep(REST).await;
    Ok(LoadRow {
        name,
        memory: plane.memory()?,
        cpu_percent: (plane.cpu()? - cpu) / begun.elapsed().as_secs_f64() * 100.0,
    })
}

/// A fleet that has been told everything.
struct Fleet {
    plane: HubPlane,
    client: Client,
    layout: Layout,
    agents: Vec<FleetAgent>,
    board: Arc<Board>,
    routers: Vec<FleetRouter>,
    /// In front of the first router.
    relay: Relay,
    /// Seconds until all routers knew everything, since the first stream.
    first_sync: f64,
}

impl Fleet {
    async fn build(plane: HubPlane, amount: Amount, step: fn(&str)) -> anyhow::Result<Self> {
        let layout = Layout {
            members: amount.members,
            namespaces: amount.namespaces,
            shards: amount.shards,
        };
        let client = plane.client().await?;
        step(&format!("fleet: {} members join", amount.members));
        let token = "t".repeat(amount.token_bytes);
        let agents = join(&plane, &client, layout, &token).await?;
        step(&format!("fleet: {} shards and a root", amount.shards));
        put_all(&client, layout, amount.root_size).await?;
        step(&format!("fleet: {} routers", amount.routers));
        let board = Arc::new(Board::default());
        let relay = Relay::start(plane.address.clone()).await?;
        let mut fleet = Self {
            client,
            layout,
            agents,
            board,
            routers: Vec::new(),
            relay,
            first_sync: 0.0,
            plane,
        };
        let begun = Instant::now();
        fleet.open_first().await?;
        fleet.until_whole(begun).await?;
        step(&format!(
            "fleet: all is told to one router after {:.1} s",
            begun.elapsed().as_secs_f64()
        ));
        fleet.open_others(amount.routers).await?;
        let opened = Instant::now();
        fleet.first_sync = (fleet.until_quiet(opened).await? - begun).as_secs_f64();
        step(&format!(
            "fleet: to all {} after {:.1} s",
            amount.routers, fleet.first_sync
        ));
        Ok(fleet)
    }

    async fn open_first(&mut self) -> anyhow::Result<()> {
        let address = self.relay.address.to_string();
        let router = self.open(0, &address).await?;
        self.routers.push(router);
        Ok(())
    }

    async fn open_others(&mut self, routers: usize) -> anyhow::Result<()> {
        let this = &*self;
        let opened = futures::stream::iter(1..routers).map(|number| this.open(number, &this.plane.address));
        let opened: Vec<_> = opened.buffer_unordered(AT_ONCE).try_collect().await?;
        self.routers.extend(opened);
        Ok(())
    }

    /// As routers do, it tries again: of a thousand that come at once the hub may let some wait for longer than they do.
    async fn open(&self, number: usize, address: &str) -> anyhow::Result<FleetRouter> {
        let mut left = TRIES;
        loop {
            match self.try_to_open(number, address).await {
                Err(_) if left > 0 => left -= 1,
                opened => return opened,
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn try_to_open(&self, number: usize, address: &str) -> anyhow::Result<FleetRouter> {
        let identity = self.plane.enroll(&self.client, &format!("fleet-{number:04}")).await?;
        let way = Way {
            address,
            trust: self.plane.trust()?,
            identity,
        };
        let members: Vec<_> = (0..self.layout.members).map(Layout::member).collect();
        FleetRouter::open(way, self.board.clone(), members.into()).await
    }

    /// Every namespace has its owner, as the first router was told.
    async fn until_whole(&self, begun: Instant) -> anyhow::Result<()> {
        let wanted = self.layout.owned() + self.layout.root_namespaces();
        loop {
            let count = self.board.record().count();
            if count >= wanted {
                return Ok(());
            }
            ensure!(
                begun.elapsed() < PATIENCE,
                "{count} of {wanted} namespaces have an owner"
            );
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Nobody was told anything for a while: all fences stand, and all tokens are given out.
    async fn until_quiet(&self, begun: Instant) -> anyhow::Result<Instant> {
        let (mut last, mut since) = (self.board.transactions(), Instant::now());
        while since.elapsed() < QUIET {
            ensure!(begun.elapsed() < PATIENCE, "the hub does not come to rest");
            tokio::time::sleep(LOOK).await;
            let now = self.board.transactions();
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        Ok(since)
    }

    /// Kills the hub; how long it takes until every router has acknowledged something of the replica that follows it.
    async fn is_taken_over(&mut self, number: usize, way: &Balancer) -> anyhow::Result<Duration> {
        let (follower, address) = self
            .plane
            .follower(["follower", "another-follower"][number % 2])
            .await?;
        // Agents and routers knock there until it leads.
        way.serve_by(vec![address]);
        let killed = Instant::now();
        self.plane.give_way(follower).await?;
        while self.board.back(killed) < self.routers.len() {
            ensure!(
                killed.elapsed() < PATIENCE,
                "{} routers are back; {}",
                self.board.back(killed),
                self.board.losses()
            );
            tokio::time::sleep(LOOK).await;
        }
        let took = killed.elapsed();
        self.until_quiet(Instant::now()).await?;
        Ok(took)
    }

    /// One change after the other, each acknowledged by all routers before the next.
    async fn times<'a, F>(&'a self, times: usize, change: impl Fn(&'a Self, usize) -> F) -> anyhow::Result<Times>
    where
        F: Future<Output = anyhow::Result<Instant>> + 'a,
    {
        let (bytes, cpu) = (self.relay.passed().down, self.plane.cpu()?);
        let begun = Instant::now();
        let mut each = Vec::with_capacity(times);
        for number in 0..times {
            let begun = change(self, number).await?;
            each.push(self.board.all(self.routers.len(), PATIENCE).await? - begun);
        }
        Ok(Times {
            each,
            bytes: self.relay.passed().down - bytes,
            cpu: self.plane.cpu()? - cpu,
            elapsed: begun.elapsed(),
        })
    }

    /// Whether callers have the explicit view, as `kubectl apply` would write it; begins right before the write.
    async fn edit(&self, number: usize) -> anyhow::Result<Instant> {
        let shard = number % self.layout.shards;
        let (name, spec) = (
            Layout::shard(shard),
            self.layout.spec(shard, number / self.layout.shards + 1),
        );
        let generation = self.shards().get(&name).await?.metadata.generation.unwrap_or_default();
        self.board.await_next(Awaited::Spec {
            shard: Layout::wire_name(&name),
            generation: generation + 1,
        });
        let begun = Instant::now();
        apply(&self.client, &name, spec).await?;
        Ok(begun)
    }

    /// Members take turns, as an agent that tells of more than one a second waits.
    async fn add(&self, number: usize) -> anyhow::Result<Instant> {
        let member = number % self.layout.members;
        let shard = Layout::shard(self.layout.shards_in(member)[0]);
        self.tell(member, namespace(member, NEW + number, &shard), &shard).await
    }

    /// Another label, and with it another shard.
    async fn hand_over(&self, number: usize) -> anyhow::Result<Instant> {
        let member = number % self.layout.members;
        let shards = self.layout.shards_in(member);
        let (_, turn) = (number, number / self.layout.members);
        let to = Layout::shard(shards[1 - turn % 2]);
        let name = namespace(member, 0, &to).name;
        let mut fact = self.agents[member].namespace(&name).context("its first namespace")?;
        fact.labels.insert("team".to_owned(), to.clone());
        self.tell(member, fact, &to).await
    }

    /// Tells of a namespace that is to be `shard`'s.
    async fn tell(
        &self,
        member: usize,
        fact: portolan_wire::v1::NamespaceFact,
        shard: &str,
    ) -> anyhow::Result<Instant> {
        self.board.await_next(Awaited::Grant {
            shard: Layout::wire_name(shard),
            cluster: Layout::member(member),
            namespace: fact.name.clone(),
        });
        let begun = Instant::now();
        self.agents[member].upsert(vec![fact]).await?;
        Ok(begun)
    }

    async fn reshard(&self, size: usize) -> anyhow::Result<ReshardRow> {
        let of_root = |shard: &str| !shard.contains("/shard-");
        let before = self.board.record().owners(of_root);
        let (bytes, cpu) = (self.relay.passed().down, self.plane.cpu()?);
        let begun = Instant::now();
        apply(&self.client, Layout::root_name(), self.layout.root(size + 1)).await?;
        let newest = format!("-{}-normal", size + 1);
        let mut without = BTreeSet::<Pair>::new();
        let after = loop {
            let record = self.board.record();
            let owners = record.owners(of_root);
            without.extend(before.keys().filter(|pair| !owners.contains_key(*pair)).cloned());
            let grown = owners.values().any(|shard| shard.ends_with(&newest));
            let quiet = record.changed.is_none_or(|changed| changed.elapsed() >= QUIET);
            if grown && quiet && owners.len() >= before.len() {
                break record;
            }
            ensure!(begun.elapsed() < PATIENCE, "the root is never shared out anew");
            tokio::time::sleep(LOOK).await;
        };
        let done = after.changed.context("ownership changed")? - begun;
        let moved = moved(&before, &after, of_root);
        let bucket = |pair: &Pair| (pair.0.clone(), Bucketing::default().bucket_of(&pair.1));
        let pairs: BTreeSet<_> = moved.iter().map(bucket).collect();
        Ok(ReshardRow {
            pairs: pairs.len(),
            ideal: self.layout.root_pairs() / (size + 1),
            of_pairs: self.layout.root_pairs(),
            namespaces: moved.len(),
            seconds: done.as_secs_f64(),
            without_owner: without.len(),
            others_without_owner: without.difference(&moved).count(),
            kilobytes: kilobytes(self.relay.passed().down - bytes),
            hub_cpu: (self.plane.cpu()? - cpu) * 1000.0,
        })
    }

    fn shards(&self) -> Api<ShardingConfig> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }
}

/// What has another owner than before.
fn moved(
    before: &std::collections::BTreeMap<Pair, String>,
    after: &Record,
    of: impl Fn(&str) -> bool,
) -> BTreeSet<Pair> {
    let after = after.owners(of);
    let moved = before.iter().filter(|(pair, owner)| after.get(*pair) != Some(*owner));
    moved.map(|(pair, _)| pair.clone()).collect()
}

async fn join(plane: &HubPlane, client: &Client, layout: Layout, token: &str) -> anyhow::Result<Vec<FleetAgent>> {
    let joined = futures::stream::iter(0..layout.members).map(|number| async move {
        let member = Layout::member(number);
        let identity = plane.join(client, &member).await?;
        FleetAgent::open(plane.channel(identity)?, &member, layout.inventory(number), token).await
    });
    joined.buffered(AT_ONCE).try_collect().await
}

async fn put_all(client: &Client, layout: Layout, root_size: usize) -> anyhow::Result<()> {
    // Makes their namespace too.
    hub_cluster::put_shard(client, Layout::root_name(), layout.root(root_size)).await?;
    let shards = futures::stream::iter(0..layout.shards);
    let put = shards.map(|shard| async move { apply(client, &Layout::shard(shard), layout.spec(shard, 0)).await });
    put.buffer_unordered(AT_ONCE).try_collect::<()>().await
}

async fn apply(client: &Client, name: &str, spec: Value) -> anyhow::Result<()> {
    let object = json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1", "kind": "ShardingConfig",
        "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec,
    });
    let api = Api::<ShardingConfig>::namespaced(client.clone(), NAMESPACE);
    let params = PatchParams::apply("test").force();
    api.patch(name, &params, &Patch::Apply(object)).await?;
    Ok(())
}

/// How long each of several changes took.
struct Times {
    each: Vec<Duration>,
    bytes: usize,
    cpu: f64,
    elapsed: Duration,
}

impl Times {
    fn row(mut self, name: &'static str) -> FleetRow {
        self.each.sort_unstable();
        let quantile = |thousandths: usize| {
            let last = self.each.len().saturating_sub(1);
            let time = self.each.get((last * thousandths).div_ceil(1000));
            time.map_or(0.0, |time| time.as_secs_f64() * 1000.0)
        };
        let times = f64::from(u32::try_from(self.each.len().max(1)).unwrap_or(u32::MAX));
        FleetRow {
            name,
            times: self.each.len(),
            p50: quantile(500),
            p99: quantile(990),
            kilobytes: kilobytes(self.bytes) / times,
            hub_cpu: self.cpu * 1000.0 / times,
            cpu_percent: self.cpu / self.elapsed.as_secs_f64() * 100.0,
        }
    }
}

fn kilobytes(bytes: usize) -> f64 {
    f64::from(u32::try_from(bytes).unwrap_or(u32::MAX)) / 1e3
}
