//! What breaks, and what goes on: hub and agents away, a member cut off, frozen or killed, a router that is drained, and
//! configuration that cannot be served.
//!
//! Every test has a caller at work on the other member meanwhile: it must not notice. One fleet for all; whoever changes
//! a part that others need takes the fleet for itself.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "also in functions that only tests call"
)]

#[path = "faults/away.rs"]
mod away;
#[path = "faults/breakers.rs"]
mod breakers;
#[path = "faults/by_hand.rs"]
mod by_hand;
#[path = "faults/drain.rs"]
mod drain;
#[path = "faults/endpoints.rs"]
mod endpoints;
#[path = "faults/member.rs"]
mod member;
#[path = "faults/misconfigured.rs"]
mod misconfigured;
#[path = "faults/pulse.rs"]
mod pulse;
#[path = "faults/watcher.rs"]
mod watcher;

use std::fmt::Debug;
use std::time::Duration;

use anyhow::ensure;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Resource;
use kube::api::{Api, Patch, PatchParams};
use kube::core::object::HasStatus;
use portolan_crds::{MemberCluster, ShardingConfig};
use portolan_testbed::{Fault, eventually};
use portolan_tests::daemon::Daemon;
use portolan_tests::door::Answer;
use portolan_tests::programs::admin_get;
use portolan_tests::shard::federated;
use portolan_tests::world::{Plan, World};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard, OnceCell, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Where east's and west's ConfigMap `where` is, on the merged view.
const EAST: &str = "/api/v1/namespaces/team-a/configmaps/where";
const WEST: &str = "/api/v1/namespaces/team-b/configmaps/where";
/// As short as a healthy member on a busy machine allows, so that tests need not wait: to a member's answer, to a
/// connection, to the end of a drain.
const ENV: [(&str, &str); 3] = [
    ("PORTOLAN_REQUEST_TIMEOUT", "12s"),
    ("PORTOLAN_CONNECT_TIMEOUT", "4s"),
    ("PORTOLAN_DRAIN_TIMEOUT", "20s"),
];

static GROUND: OnceCell<RwLock<Ground>> = OnceCell::const_new();
/// Who makes west misbehave, among those who share the fleet.
static WEST_IS_MINE: Mutex<()> = Mutex::const_new(());

/// Shard `alpha` has `team-a` in east, where its caller is, and `team-b` in west.
struct Ground {
    world: World,
    hub: Daemon,
    router: Daemon,
    agent_east: Mutex<Daemon>,
}

async fn ground() -> &'static RwLock<Ground> {
    GROUND
        .get_or_init(|| async { RwLock::new(start().await.unwrap()) })
        .await
}

/// The fleet for a test that needs it whole and as it was.
async fn alone() -> RwLockWriteGuard<'static, Ground> {
    let mut ground = ground().await.write().await;
    ground.mend().await;
    ground
}

/// The fleet for a test that makes west misbehave, beside others that do not mind.
async fn with_west() -> (MutexGuard<'static, ()>, RwLockReadGuard<'static, Ground>) {
    let mine = WEST_IS_MINE.lock().await;
    let ground = ground().await.read().await;
    ground.mend_west().await;
    (mine, ground)
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
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "where"}, "data": {"cluster": member},
        });
        let door = world.direct_door(member).await?;
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        assert_eq!(door.post(&path, &object).await?.status, 201);
    }
    let ground = Ground {
        hub: world.fleet.take_over("hub").await?,
        router: world.fleet.take_over("router").await?,
        agent_east: Mutex::new(world.fleet.take_over("agent-east").await?),
        world,
    };
    // Breakers that open and close soon enough to watch them.
    for member in ["east", "west"] {
        let breaker = json!({"consecutiveFailures": 3, "openFor": "1s", "maxOpenFor": "2s"});
        ground.patch_member(member, &json!({"breaker": breaker})).await;
    }
    ground.router.ready().await;
    let door = ground.world.merged_door("alpha").await?;
    for path in [EAST, WEST] {
        let what = format!("{path} is answered");
        eventually(&what, || async { served(&door.get(path, &[]).await?) }).await;
    }
    Ok(ground)
}

impl Ground {
    // Clients are made anew: one is of use on the runtime only that it was made on, and each test has its own.
    async fn members(&self) -> Api<MemberCluster> {
        Api::all(self.world.cluster("hub").client().await.unwrap())
    }

    async fn shards(&self) -> Api<ShardingConfig> {
        Api::namespaced(self.world.cluster("hub").client().await.unwrap(), "operators")
    }

    /// What a test that failed may have left: nobody else is to fail for it.
    async fn mend(&mut self) {
        let agent = self.agent_east.get_mut();
        if !agent.is_started() {
            agent.start_again().await.unwrap();
        }
        for daemon in [&mut self.hub, &mut self.router] {
            if !daemon.is_started() {
                daemon.start_again().await.unwrap();
                daemon.ready().await;
            }
        }
        self.mend_west().await;
    }

    async fn mend_west(&self) {
        let west = self.world.cluster("west");
        west.fault(Fault::None).await.unwrap();
        if west.apiserver_pid().is_none() {
            west.restart().await.unwrap();
        }
        west.thaw().await.unwrap();
        west.thaw_etcd().await.unwrap();
        self.patch_member("west", &json!({"breaker": {"byHand": null}})).await;
        self.until_west_is_back().await;
    }

    async fn patch_member(&self, name: &str, spec: &Value) {
        patch(&self.members().await, name, spec).await;
    }

    /// Unary breaker of west, as the router's admin server tells it.
    async fn breaker_of_west(&self) -> String {
        let breakers = admin_get(self.router.admin(), "/breakers").await.unwrap();
        let breakers: Value = serde_json::from_str(&breakers).unwrap();
        let mine = |breaker: &&Value| breaker["cluster"] == "west" && breaker["class"] == "unary";
        let breaker = breakers.as_array().unwrap().iter().find(mine);
        breaker
            .map_or("closed", |breaker| breaker["state"].as_str().unwrap())
            .to_owned()
    }

    /// `portolanctl get clusters`, the line of one.
    async fn told_of(&self, member: &str) -> String {
        let hub = portolan_tests::programs::argument(self.world.cluster("hub").direct_kubeconfig_path());
        let table = portolan_tests::ctl::ok(&["get", "clusters", "--hub-kubeconfig", &hub])
            .await
            .unwrap();
        let line = table.lines().find(|line| line.starts_with(member));
        line.unwrap_or_else(|| panic!("no {member} in {table}")).to_owned()
    }

    /// Waits until everything about west is as it was before anything happened to it.
    async fn until_west_is_back(&self) {
        let door = self.world.merged_door("alpha").await.unwrap();
        eventually("west answers", || async { served(&door.get(WEST, &[]).await?) }).await;
        eventually("its breaker is closed", || async {
            self.breaker_of_west().await == "closed"
        })
        .await;
        until(&self.members().await, "west", "Available", "True", &[]).await;
        eventually("the hub is told so", || async {
            // Breakers of rarer traffic close when they see that the member answers.
            served(&door.get(WEST, &[]).await.map_err(|error| error.to_string())?)
                .map_err(|error| error.to_string())?;
            let line = self.told_of("west").await;
            if line.trim_end().ends_with("closed") {
                Ok(())
            } else {
                Err(line)
            }
        })
        .await;
    }
}

/// A setting of `ENV`.
fn configured(name: &str) -> Duration {
    let (_, value) = ENV.iter().find(|(known, _)| *known == name).unwrap();
    Duration::from_secs(value.trim_end_matches('s').parse().unwrap())
}

/// An error that tells the answer unless it is 200.
fn served(answer: &Answer) -> anyhow::Result<()> {
    ensure!(answer.status == 200, "{} {}", answer.status, answer.message());
    Ok(())
}

/// Merges `spec` into an object's spec.
async fn patch<K>(api: &Api<K>, name: &str, spec: &Value)
where
    K: Clone + Debug + DeserializeOwned,
{
    let body = json!({"spec": spec});
    api.patch(name, &PatchParams::default(), &Patch::Merge(&body))
        .await
        .unwrap();
}

/// Waits until the condition has this status, is of the object's present generation and says all of `words` in its
/// reason and message; returns both.
async fn until<K>(api: &Api<K>, name: &str, type_: &str, status: &str, words: &[&str]) -> String
where
    K: Resource + HasStatus + Clone + Debug + DeserializeOwned,
    K::Status: Conditions,
{
    let what = format!("{name}: {type_} is {status} and says {words:?}");
    eventually(&what, || async {
        let object = api.get(name).await.map_err(|error| error.to_string())?;
        let conditions = object.status().map(Conditions::conditions).unwrap_or_default();
        let Some(found) = conditions.iter().find(|condition| condition.type_ == type_) else {
            return Err(format!("no such condition in {conditions:?}"));
        };
        let said = format!("{}: {}", found.reason, found.message);
        let current = found.observed_generation >= object.meta().generation;
        let as_wanted = found.status == status && current && words.iter().all(|word| said.contains(word));
        if as_wanted {
            Ok(said)
        } else {
            Err(format!("{}, {said}, of {:?}", found.status, found.observed_generation))
        }
    })
    .await
}

trait Conditions {
    fn conditions(&self) -> &[Condition];
}

impl Conditions for portolan_crds::MemberClusterStatus {
    fn conditions(&self) -> &[Condition] {
        &self.conditions
    }
}

impl Conditions for portolan_crds::ShardingConfigStatus {
    fn conditions(&self) -> &[Condition] {
        &self.conditions
    }
}
