//! What can be seen from outside: traces as a real Jaeger tells them, metrics, logs, and the pages of the admin servers.
//!
//! One fleet that exports every trace. Tests that restart a program take it for themselves.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "also in functions that only tests call"
)]

#[path = "telemetry/logs.rs"]
mod logs;
#[path = "telemetry/members.rs"]
mod members;
#[path = "telemetry/metrics.rs"]
mod metrics;
#[path = "telemetry/operators.rs"]
mod operators;
#[path = "telemetry/pages.rs"]
mod pages;
#[path = "telemetry/stages.rs"]
mod stages;
#[path = "telemetry/tail.rs"]
mod tail;
#[path = "telemetry/traces.rs"]
mod traces;

use portolan_testbed::{Jaeger, eventually};
use portolan_tests::daemon::Daemon;
use portolan_tests::programs::admin_get;
use portolan_tests::shard::federated;
use portolan_tests::world::{Plan, World};
use serde_json::{Value, json};
use tokio::sync::{OnceCell, RwLock};

/// On the merged view; the caller is at home in east.
const WEST: &str = "/api/v1/namespaces/team-b/configmaps/where";
/// Of the fleet, by the names of its record.
const PROGRAMS: [&str; 4] = ["hub", "router", "agent-east", "agent-west"];

static GROUND: OnceCell<RwLock<Ground>> = OnceCell::const_new();

/// Shard `alpha` has `team-a` in east and `team-b` in west.
struct Ground {
    jaeger: Jaeger,
    world: World,
    router: Daemon,
}

async fn ground() -> &'static RwLock<Ground> {
    GROUND
        .get_or_init(|| async { RwLock::new(start().await.unwrap()) })
        .await
}

async fn start() -> anyhow::Result<Ground> {
    let jaeger = Jaeger::start().await?;
    let manifests = federated("alpha", "east", &[("east", &["team-a"]), ("west", &["team-b"])]);
    let plan = Plan {
        members: &["east", "west"],
        namespaces: &["east/team-a", "west/team-b"],
        manifests: &manifests,
        otlp: Some(&jaeger.otlp_grpc_url),
        members_trace: true,
        ..Plan::default()
    };
    let world = World::start(plan).await?;
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "where"}});
    let direct = world.direct_door("west").await?;
    direct.post("/api/v1/namespaces/team-b/configmaps", &object).await?;
    let router = world.fleet.take_over("router").await?;
    let ground = Ground { jaeger, world, router };
    let merged = ground.world.merged_door("alpha").await?;
    eventually("west answers", || async {
        merged.get(WEST, &[]).await.is_ok_and(|answer| answer.status == 200)
    })
    .await;
    ground.until_router_is_back().await;
    Ok(ground)
}

impl Ground {
    /// Waits until the router has reached the hub, and returns its `/configz`: it is ready from its last-good file before.
    async fn until_router_is_back(&self) -> Value {
        self.router.ready().await;
        eventually("the router is connected to the hub", || async {
            let page: Value = serde_json::from_str(&admin_get(self.router.admin(), "/configz").await?)?;
            anyhow::ensure!(page["hubConnected"] == true, "{page}");
            Ok(page)
        })
        .await
    }

    /// Admin address of a program.
    fn admin(&self, program: &str) -> String {
        match program {
            "router" => self.router.admin().to_owned(),
            program => self.world.fleet.process(program).unwrap().admin,
        }
    }
}
