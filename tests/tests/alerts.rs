//! The alert rules and dashboards of `deploy/observability`, against a fleet that runs.
//!
//! Of every expression each metric and label must be there in what hub, router and agents tell (`names`, in `make test`). That
//! each alert fires under the fault that it is for, and is quiet before, is judged by Prometheus' own `promtool`: the faults
//! are made for real, each scrape is written down as one minute of a rule test, and what the last scrapes say goes on
//! (`firing`, in `make alerts`, which builds the tool).
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "also in functions that only tests call"
)]

#[path = "alerts/exposed.rs"]
mod exposed;
#[path = "alerts/expressions.rs"]
mod expressions;
#[path = "alerts/firing.rs"]
mod firing;
#[path = "alerts/names.rs"]
mod names;
#[path = "alerts/recorded.rs"]
mod recorded;

use std::path::PathBuf;
use std::time::Duration;

use portolan_testbed::{Fault, eventually};
use portolan_tests::daemon::Daemon;
use portolan_tests::programs::admin_get;
use portolan_tests::shard::federated;
use portolan_tests::world::{Plan, World};
use serde_json::json;
use tokio::sync::{Mutex, MutexGuard, OnceCell};

const EAST: &str = "/api/v1/namespaces/team-a/configmaps/where";
const WEST: &str = "/api/v1/namespaces/team-b/configmaps/where";
/// Of the fleet, by the names of its record, and the job that a Prometheus would scrape each under.
const PROGRAMS: [(&str, &str); 4] = [
    ("hub", "portolan-hub"),
    ("router", "portolan-router"),
    ("agent-east", "portolan-agent"),
    ("agent-west", "portolan-agent"),
];
/// Few requests fill the router, and a silent member is given up soon.
const ENV: [(&str, &str); 3] = [
    ("PORTOLAN_REQUEST_TIMEOUT", "12s"),
    ("PORTOLAN_CONNECT_TIMEOUT", "4s"),
    ("PORTOLAN_MAX_REQUESTS", "32"),
];

static GROUND: OnceCell<Mutex<Ground>> = OnceCell::const_new();

/// Shard `alpha` has `team-a` in east, where its caller is, and `team-b` in west.
struct Ground {
    world: World,
    /// Programs of the fleet that a test has killed and started: they end with it.
    begun_again: Vec<Daemon>,
}

/// One test at a time: each makes faults.
async fn ground() -> MutexGuard<'static, Ground> {
    let start = || async { Mutex::new(start().await.unwrap()) };
    GROUND.get_or_init(start).await.lock().await
}

async fn start() -> anyhow::Result<Ground> {
    let manifests = federated("alpha", "east", &[("east", &["team-a"]), ("west", &["team-b"])]);
    let plan = Plan {
        members: &["east", "west"],
        namespaces: &["east/team-a", "west/team-b"],
        manifests: &manifests,
        env: &ENV,
        ..Plan::default()
    };
    let world = World::start(plan).await?;
    for (member, namespace) in [("east", "team-a"), ("west", "team-b")] {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "where"}});
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        let door = world.direct_door(member).await?;
        anyhow::ensure!(door.post(&path, &object).await?.status == 201);
    }
    let ground = Ground {
        world,
        begun_again: Vec::new(),
    };
    ground.is_whole().await;
    Ok(ground)
}

impl Ground {
    /// Until everything is served again.
    async fn is_whole(&self) {
        self.world.cluster("west").fault(Fault::None).await.unwrap();
        let door = self.world.merged_door("alpha").await.unwrap();
        for path in [EAST, WEST] {
            eventually("both members answer", || async {
                door.get(path, &[]).await.is_ok_and(|answer| answer.status == 200)
            })
            .await;
        }
    }

    /// What a program tells, or nothing if it does not run.
    async fn told(&self, program: &str) -> Option<String> {
        let address = self.world.fleet.process(program).ok()?.admin;
        let asked = admin_get(&address, "/metrics");
        tokio::time::timeout(Duration::from_secs(5), asked).await.ok()?.ok()
    }
}

/// `deploy/observability`.
fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/observability"))
}
