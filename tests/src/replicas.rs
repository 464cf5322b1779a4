//! Replicas of a world's hub, in place of the one that `dev up` started: a balancer stands where that listened, so that routers and
//! agents go on with the one address that they know.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use parking_lot::Mutex;
use portolan_crds::labels::{LEASE_HUB, SYSTEM_NAMESPACE};
use portolan_testbed::eventually;
use serde_json::Value;

use crate::balancer::Balancer;
use crate::daemon::{Daemon, Launch, with_value};
use crate::programs::admin_get;
use crate::world::World;

/// Between two looks at the metrics of a replica.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// All replicas of one hub.
#[derive(Debug)]
pub struct Replicas {
    /// Their programs.
    pub hubs: Vec<Daemon>,
    /// Where routers and agents find them.
    pub way: Balancer,
    /// Where the API server asks them about writes.
    pub asked: Balancer,
}

impl Replicas {
    /// Starts so many beside the world's hub and, once they follow it, ends that. `env` is of the last of them.
    pub async fn start(world: &World, count: usize, env: &[(&str, &str)]) -> anyhow::Result<Self> {
        let (launch, addresses) = world.fleet.launched("hub")?;
        let mut hubs = Vec::new();
        for number in 1..=count {
            let env = if number == count { env } else { &[] };
            hubs.push(Daemon::start(replica(&launch, number, env)).await?);
        }
        for hub in &hubs {
            hub.ready().await;
        }
        is_renewed(&world.cluster("hub").client().await?).await;
        world.fleet.take_out("hub").await?;
        let text = |key: &str| addresses[key].as_str().context("an address of the hub");
        let replicas = Self {
            way: Balancer::at(text("bind")?, Vec::new()).await?,
            asked: Balancer::at(text("webhook")?, Vec::new()).await?,
            hubs,
        };
        replicas.reach_all();
        Ok(replicas)
    }

    /// The way leads to all of them, in turns.
    pub fn reach_all(&self) {
        let all: Vec<_> = (0..self.hubs.len()).collect();
        self.reach(&all);
    }

    /// The way leads to these alone.
    pub fn reach(&self, numbers: &[usize]) {
        let hubs = || numbers.iter().map(|number| &self.hubs[*number]);
        self.way.serve_by(hubs().map(|hub| hub.bind().to_owned()).collect());
        let host = |hub: &Daemon| {
            let url = hub.webhook_url();
            let host = url.trim_start_matches("https://");
            host.split('/').next().unwrap_or_default().to_owned()
        };
        self.asked.serve_by(hubs().map(host).collect());
    }

    /// Waits until all that run are ready.
    pub async fn ready(&self) {
        for hub in self.hubs.iter().filter(|hub| hub.is_started()) {
            hub.ready().await;
        }
    }

    /// Which one leads, once one does.
    pub async fn leader(&self) -> usize {
        eventually("a replica leads", || async {
            for (number, hub) in self.hubs.iter().enumerate() {
                if hub.is_started() && metric(hub, "portolan_hub_leader").await == Some(1) {
                    return Some(number);
                }
            }
            None
        })
        .await
    }

    /// Waits until another one than `before` leads and so many routers have acknowledged what it tells; returns which, and how long that
    /// took from `since`.
    pub async fn taken_over(&self, before: usize, routers: u64, since: Instant) -> anyhow::Result<(usize, Duration)> {
        let within = portolan_testbed::patience();
        while since.elapsed() < within {
            for (number, hub) in self.hubs.iter().enumerate().filter(|(number, _)| *number != before) {
                if acknowledged_by(hub).await.is_some_and(|answered| answered >= routers) {
                    return Ok((number, since.elapsed()));
                }
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        anyhow::bail!("nobody has taken over within {within:?}")
    }

    /// Starts one again that has ended, and waits until it follows.
    pub async fn start_again(&mut self, number: usize) -> anyhow::Result<()> {
        self.hubs[number].start_again().await?;
        self.hubs[number].ready().await;
        let leads = metric(&self.hubs[number], "portolan_hub_leader").await;
        ensure!(leads == Some(0), "it leads, and another one did");
        Ok(())
    }
}

/// Waits until whoever follows has seen the Lease renewed: only then it believes what that says.
async fn is_renewed(client: &Client) {
    let leases = Api::<Lease>::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let seen = Mutex::new(BTreeSet::new());
    eventually("the Lease is renewed", || async {
        let lease = leases.get(LEASE_HUB).await.map_err(|error| error.to_string())?;
        let mut seen = seen.lock();
        seen.insert(lease.metadata.resource_version);
        // The first may be of before all of them looked, and each looks four times a second.
        if seen.len() > 3 {
            Ok(())
        } else {
            Err(seen.len().to_string())
        }
    })
    .await;
}

fn replica(launch: &Launch, number: usize, env: &[(&str, &str)]) -> Launch {
    let anywhere = |arguments: Vec<String>, flag| with_value(&arguments, flag, "127.0.0.1:0");
    let arguments = anywhere(launch.arguments.clone(), "--bind");
    let more = env
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Launch {
        name: format!("hub-{number}"),
        arguments: anywhere(arguments, "--webhook-bind"),
        env: launch.env.iter().cloned().chain(more).collect(),
        ..launch.clone()
    }
}

/// How many routers have acknowledged what it told.
async fn acknowledged_by(hub: &Daemon) -> Option<u64> {
    let page: Value = serde_json::from_str(&admin_get(hub.admin(), "/configz").await.ok()?).ok()?;
    let routers = page["routers"].as_object()?.values();
    let answered = routers.filter(|router| router["ackedRun"].as_u64().is_some_and(|run| run > 0));
    u64::try_from(answered.count()).ok()
}

/// The value of a metric without labels, or with just these.
pub async fn metric(program: &Daemon, name: &str) -> Option<u64> {
    let metrics = admin_get(program.admin(), "/metrics").await.ok()?;
    let line = metrics.lines().find(|line| line.starts_with(&format!("{name} ")))?;
    line.rsplit(' ').next()?.parse().ok()
}
