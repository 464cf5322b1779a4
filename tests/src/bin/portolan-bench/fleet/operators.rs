//! Many operators in the same namespaces beside one operator in as many more: what the hub needs for as many pairs, and what one
//! namespace more takes that is everybody's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube::{Client, ResourceExt as _};
use parking_lot::Mutex;
use portolan_crds::labels::{LABEL_LEDGER, SYSTEM_NAMESPACE};
use portolan_runtime::Tasks;
use portolan_tests::hub_cluster::put_shard_of;
use portolan_tests::programs::admin_get;
use serde_json::{Value, json};

use super::agents::FleetAgent;
use super::board::Board;
use super::layout::{Layout, namespace};
use super::routers::{FleetRouter, Way};
use super::{LOOK, NEW, PATIENCE, QUIET, kilobytes};
use crate::hub_plane::HubPlane;
use crate::relay::Relay;
use crate::report::{OperatorsRow, OperatorsSection};

const TEAM: &str = "everybody";
/// Of one hub namespace, which may have 32.
const OF_ONE_AUTHOR: usize = 25;

/// How much there is: as many pairs in both runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Amount {
    pub(crate) namespaces: usize,
    pub(crate) operators: usize,
    /// Of one operator, each with so many namespaces: one member may not have as many as all of them.
    pub(crate) members: usize,
    /// Namespaces more, one after the other.
    pub(crate) changes: usize,
}

pub(crate) async fn run(amount: Amount, step: fn(&str)) -> anyhow::Result<OperatorsSection> {
    let pairs = amount.namespaces * amount.operators;
    let mut rows = Vec::new();
    for (operators, members) in [(1, amount.operators), (amount.operators, 1)] {
        let namespaces = amount.namespaces;
        step(&format!(
            "operators: {operators} in {namespaces} namespaces of {members} members"
        ));
        let one = Amount {
            operators,
            members,
            ..amount
        };
        rows.push(Shared::build(one, step).await?.measure(step).await?);
    }
    Ok(OperatorsSection {
        of: format!("{pairs} pairs, {} namespaces of each member", amount.namespaces),
        rows,
    })
}

/// A fleet, and a router that has been told everything.
struct Shared {
    plane: HubPlane,
    client: Client,
    agents: Vec<FleetAgent>,
    amount: Amount,
    /// It was there first.
    _router: FleetRouter,
    /// Seconds until it knew everything, since the last shard was written.
    settled: f64,
}

impl Shared {
    async fn build(amount: Amount, step: fn(&str)) -> anyhow::Result<Self> {
        let plane = HubPlane::start().await?;
        let client = plane.client().await?;
        let mut agents = Vec::new();
        for number in 0..amount.members {
            let member = Layout::member(number);
            let identity = plane.join(&client, &member).await?;
            let facts = (0..amount.namespaces)
                .map(|index| namespace(number, index, TEAM))
                .collect();
            agents.push(FleetAgent::open(plane.channel(identity)?, &member, facts, "").await?);
        }
        let board = Arc::new(Board::default());
        let router = open(&plane, &client, &plane.address, board.clone(), "first").await?;
        for number in 0..amount.operators {
            let (author, name) = (format!("ops-{}", number / OF_ONE_AUTHOR), format!("shard-{number:02}"));
            put_shard_of(&client, (&author, &name), spec(number, amount.members)).await?;
        }
        let begun = Instant::now();
        until(&board, amount.pairs()).await?;
        let settled = begun.elapsed().as_secs_f64();
        quiet(&board).await?;
        step(&format!("operators: all is granted after {settled:.1} s"));
        Ok(Self {
            plane,
            client,
            agents,
            amount,
            _router: router,
            settled,
        })
    }

    async fn measure(self, step: fn(&str)) -> anyhow::Result<OperatorsRow> {
        let pairs = self.amount.pairs();
        let memory = self.plane.memory()?;
        let relay = Relay::start(self.plane.address.clone()).await?;
        let board = Arc::new(Board::default());
        let address = relay.address.to_string();
        let begun = Instant::now();
        let _second = open(&self.plane, &self.client, &address, board.clone(), "second").await?;
        until(&board, pairs).await?;
        let first_sync = begun.elapsed().as_secs_f64();
        let synced = relay.passed().down;
        quiet(&board).await?;
        step("operators: namespaces more");
        let (compiled, cpu) = (self.compiled().await?, self.plane.cpu()?);
        let mut granted = Duration::ZERO;
        let (mut ledger, mut told, mut patches) = (0, 0, 0);
        for number in 0..self.amount.changes {
            let watch = Ledger::follow(&self.client).await?;
            let (bytes, fact) = (relay.passed().down, namespace(0, NEW * 4 + number, TEAM));
            let begun = Instant::now();
            self.agents[0].upsert(vec![fact.clone()]).await?;
            let whole = until(&board, pairs + (number + 1) * self.amount.operators).await?;
            granted = granted.max(whole - begun);
            quiet(&board).await?;
            ledger = ledger.max(watch.written()?);
            told = told.max(relay.passed().down - bytes);
            patches = patches.max(self.agents[0].annotated(&fact.name));
        }
        let runs = self.compiled().await?;
        Ok(OperatorsRow {
            operators: self.amount.operators,
            namespaces: self.amount.namespaces * self.amount.members,
            settled: self.settled,
            memory,
            first_sync,
            synced_kilobytes: kilobytes(synced),
            compile: (runs.0 - compiled.0) / (runs.1 - compiled.1).max(1.0) * 1000.0,
            cpu: (self.plane.cpu()? - cpu) * 1000.0 / f64::from(u32::try_from(self.amount.changes.max(1))?),
            granted: granted.as_secs_f64() * 1000.0,
            ledger_kilobytes: kilobytes(ledger),
            told_kilobytes: kilobytes(told),
            patches,
        })
    }

    /// Seconds of all runs of the compiler, and how many there were.
    async fn compiled(&self) -> anyhow::Result<(f64, f64)> {
        let metrics = admin_get(&self.plane.admin, "/metrics").await?;
        let value = |name: &str| {
            let line = metrics.lines().find(|line| line.starts_with(name));
            let value = line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
            value.with_context(|| format!("no metric {name}"))
        };
        Ok((
            value("portolan_hub_compile_seconds_sum")?,
            value("portolan_hub_compile_seconds_count")?,
        ))
    }
}

impl Amount {
    fn pairs(self) -> usize {
        self.members * self.namespaces * self.operators
    }
}

fn spec(number: usize, members: usize) -> Value {
    let entry = |member| json!({"name": Layout::member(member), "namespaceSelector": {"matchLabels": {"team": TEAM}}});
    let entries: Vec<_> = (0..members).map(entry).collect();
    json!({
        "operator": format!("program-{number:02}"),
        "selector": {"matchLabels": {"app": format!("shard-{number:02}")}},
        "callerClusters": [Layout::member(0)],
        "controller": {"leaderElection": "Disabled"},
        "clusters": entries,
    })
}

async fn open(
    plane: &HubPlane,
    client: &Client,
    address: &str,
    board: Arc<Board>,
    name: &str,
) -> anyhow::Result<FleetRouter> {
    let identity = plane.enroll(client, name).await?;
    let way = Way {
        address,
        trust: plane.trust()?,
        identity,
    };
    FleetRouter::open(way, board, vec![Layout::member(0)].into()).await
}

/// Until so many pairs are granted, as the router was told; when it was.
async fn until(board: &Board, pairs: usize) -> anyhow::Result<Instant> {
    let begun = Instant::now();
    loop {
        let (count, changed) = board.count();
        if count >= pairs {
            return changed.context("something was granted");
        }
        ensure!(begun.elapsed() < PATIENCE, "{count} of {pairs} pairs are granted");
        tokio::time::sleep(LOOK / 10).await;
    }
}

/// Until nothing is told any more: fences are whole some seconds after every router has heard of them.
async fn quiet(board: &Board) -> anyhow::Result<()> {
    let begun = Instant::now();
    let (mut last, mut since) = (board.transactions(), Instant::now());
    while since.elapsed() < 4 * QUIET {
        ensure!(begun.elapsed() < PATIENCE, "the hub does not come to rest");
        tokio::time::sleep(LOOK).await;
        let now = board.transactions();
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    Ok(())
}

/// What is written to the ledger from now on.
struct Ledger {
    // A mutex: the watch adds, the benchmark looks once.
    written: Arc<Mutex<Written>>,
    tasks: Tasks,
}

#[derive(Default)]
struct Written {
    bytes: usize,
    /// Why the watch has ended: there may be more.
    ended: Option<String>,
}

impl Ledger {
    async fn follow(client: &Client) -> anyhow::Result<Self> {
        let maps = Api::<ConfigMap>::namespaced(client.clone(), SYSTEM_NAMESPACE);
        let chosen = ListParams::default().labels(LABEL_LEDGER);
        let there = maps.list_metadata(&chosen).await?;
        let version = there.metadata.resource_version.unwrap_or_default();
        let params = WatchParams::default().labels(LABEL_LEDGER).timeout(290);
        let events = maps.watch(&params, &version).await.context("watch the ledger")?;
        let mut events = Box::pin(events);
        let written = Arc::new(Mutex::new(Written::default()));
        let (tasks, adding) = (Tasks::new(), written.clone());
        tasks.spawn("bench-ledger", async move {
            let ended = loop {
                match events.try_next().await {
                    Ok(Some(WatchEvent::Added(map) | WatchEvent::Modified(map))) => {
                        let bytes = map.data.iter().flat_map(BTreeMap::values).map(String::len);
                        adding.lock().bytes += bytes.sum::<usize>() + map.name_any().len();
                    }
                    Ok(Some(WatchEvent::Deleted(_) | WatchEvent::Bookmark(_))) => {}
                    Ok(Some(WatchEvent::Error(status))) => break status.to_string(),
                    Ok(None) => break "it is over".to_owned(),
                    Err(error) => break error.to_string(),
                }
            };
            adding.lock().ended = Some(ended);
        });
        Ok(Self { written, tasks })
    }

    /// Bytes until now. An error if not all of them were seen.
    fn written(&self) -> anyhow::Result<usize> {
        let written = self.written.lock();
        if let Some(why) = &written.ended {
            bail!("the watch of the ledger has ended: {why}");
        }
        Ok(written.bytes)
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.tasks.cancel();
    }
}
