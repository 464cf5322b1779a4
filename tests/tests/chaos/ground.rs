//! The fleet: east, whose callers are to notice nothing, and west, which gets sick on the way that routers take to it and on a way of
//! its own that a plain proxy takes, so that what either asks is counted apart. Agents are in their clusters: nothing comes between.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use kube::Api;
use kube::api::{Patch, PatchParams};
use portolan_crds::MemberCluster;
use portolan_testbed::{Stage, eventually};
use portolan_tests::daemon::Daemon;
use portolan_tests::door::Door;
use portolan_tests::programs::{admin_get, argument};
use portolan_tests::routers;
use portolan_tests::shard::federated;
use portolan_tests::world::{HUB, Plan, World};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::clock;
use crate::front::Front;

/// Of the shard that uses both members.
pub(crate) const WEST: &str = "/api/v1/namespaces/team-b/configmaps";
/// Of the shard that uses east alone.
pub(crate) const EAST: &str = "/api/v1/namespaces/team-c/configmaps";
const CRD: &str = include_str!("../../../examples/greeting-crd.yaml");

/// Becomes what comes after its first argument, the state folder, which a tmpfs of half a megabyte that holds the same stands
/// before: in a mount namespace of its own, which needs no rights.
const SMALL_DISK: &str = r#"
state=$1; shift
held=$(mktemp -d) && cp -a "$state"/. "$held" || exit
mount -t tmpfs -o size=512k,mode=0700 state "$state" && cp -a "$held"/. "$state" && rm -r "$held" && exec "$@"
"#;

/// One way to west: a network that can misbehave, and an API server that can lie, before the real one.
pub(crate) struct Way {
    pub(crate) stage: Stage,
    pub(crate) front: &'static Front,
}

impl Way {
    fn to(world: &World) -> anyhow::Result<Self> {
        let west = world.cluster("west");
        // Its runtime must not end in another's.
        let front = Box::leak(Box::new(Front::start(&west.direct_url(), west.ca_pem())?));
        Ok(Self {
            stage: before(front)?,
            front,
        })
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.stage.port())
    }
}

fn before(front: &Front) -> anyhow::Result<Stage> {
    let (_, port) = front.url.rsplit_once(':').unwrap_or_default();
    Ok(Stage::before(port.parse()?)?)
}

/// Shard `alpha` has `team-a` in east, where its callers are, and `team-b` in west; `beta` has `team-c` in east.
pub(crate) struct Ground {
    pub(crate) world: World,
    /// Mutexes: measuring looks at what it stops and starts.
    pub(crate) hub: Mutex<Daemon>,
    pub(crate) router: Mutex<Daemon>,
    admin: String,
    pub(crate) ours: Way,
    pub(crate) theirs: Way,
    /// A second endpoint of west.
    pub(crate) second: Stage,
    /// Who uses west by the proxy; set once that runs.
    pub(crate) by_proxy: OnceLock<Door>,
}

impl Ground {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let manifests = federated("alpha", "east", &[("east", &["team-a"]), ("west", &["team-b"])])
            + &federated("beta", "east", &[("east", &["team-c"])]);
        let plan = Plan {
            members: &["east", "west"],
            namespaces: &["east/team-a", "east/team-c", "west/team-b"],
            manifests: &manifests,
            ..Plan::default()
        };
        let world = World::start(plan).await?;
        for member in ["east", "west"] {
            world.direct(member).ok_with(&["apply", "-f", "-"], CRD).await?;
        }
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "where"}});
        anyhow::ensure!(world.direct_door("west").await?.post(WEST, &object).await?.status == 201);
        let ours = Way::to(&world)?;
        let router = world.fleet.take_over("router").await?;
        router.ready().await;
        let ground = Self {
            hub: Mutex::new(world.fleet.take_over("hub").await?),
            admin: router.admin().to_owned(),
            router: Mutex::new(router),
            by_proxy: OnceLock::new(),
            theirs: Way::to(&world)?,
            second: before(ours.front)?,
            ours,
            world,
        };
        ground.endpoints(false).await?;
        Ok(ground)
    }

    /// Routers ask west by its way from now on, and by a second one beside it; returns when they do.
    pub(crate) async fn endpoints(&self, both: bool) -> anyhow::Result<()> {
        let ports = [self.ours.stage.port(), self.second.port()];
        let ports = ports.iter().take(if both { 2 } else { 1 });
        let urls: Vec<Value> = ports
            .map(|port| json!({"url": format!("https://127.0.0.1:{port}")}))
            .collect();
        let spec = json!({"endpoints": urls, "caBundle": self.ours.front.ca_bundle});
        let members = Api::<MemberCluster>::all(self.world.cluster(HUB).client().await?);
        let patch = Patch::Merge(json!({"spec": spec}));
        members.patch("west", &PatchParams::default(), &patch).await?;
        eventually("the router has them", || async {
            let told = self.admin("/endpoints").await?;
            let of_west = told.iter().filter(|endpoint| endpoint["cluster"] == "west").count();
            anyhow::ensure!(of_west == urls.len(), "{told:?}");
            anyhow::Ok(())
        })
        .await;
        let door = self.sick_door().await?;
        eventually("the router asks there", || async {
            self.ours.front.forget();
            let answer = door.get(&format!("{WEST}/where"), &[]).await?;
            anyhow::ensure!(answer.status == 200, "{}", answer.message());
            anyhow::ensure!(self.ours.front.was_asked("where"), "not yet");
            anyhow::Ok(())
        })
        .await;
        Ok(())
    }

    /// West takes so much longer by both ways.
    pub(crate) fn is_away_by(&self, away: Duration) {
        for way in [&self.ours, &self.theirs] {
            way.front.is_away_by(away);
        }
    }

    /// The router again, with its clock so many seconds ahead.
    pub(crate) async fn clock(&self, seconds: Option<i32>) -> anyhow::Result<()> {
        let library = argument(&clock::library(self.world.fleet.dir())?);
        let mut router = self.router.lock().await;
        router.stop().await?;
        let seconds = seconds.map(|seconds| seconds.to_string());
        router.set_env(clock::SECONDS, seconds.as_deref());
        router.set_env("LD_PRELOAD", seconds.is_some().then_some(&*library));
        router.start_again().await?;
        router.ready().await;
        Ok(())
    }

    /// The router again, with a small disk of its own under its state, or without.
    pub(crate) async fn small_disk(&self, small: bool) -> anyhow::Result<()> {
        let state = argument(&self.state_dir());
        let mut router = self.router.lock().await;
        router.stop().await?;
        let wrapper = ["unshare", "-Urm", "sh", "-c", SMALL_DISK, "sh", &*state];
        router.set_wrapper(if small { &wrapper } else { &[] });
        router.start_again().await?;
        router.ready().await;
        Ok(())
    }

    pub(crate) fn state_dir(&self) -> PathBuf {
        routers::state_dir(&self.world, "router")
    }

    /// The hub goes, or comes back; returns when the router knows.
    pub(crate) async fn hub_is(&self, away: bool) -> anyhow::Result<()> {
        let mut hub = self.hub.lock().await;
        if away != hub.is_started() {
            return Ok(());
        }
        if away {
            hub.kill().await?;
        } else {
            hub.start_again().await?;
            hub.ready().await;
        }
        eventually("the router knows of the hub", || async {
            let page: Value = serde_json::from_str(&admin_get(&self.admin, "/configz").await?)?;
            anyhow::ensure!(
                page["hubConnected"] == !away,
                "hubConnected is {}",
                page["hubConnected"]
            );
            anyhow::Ok(())
        })
        .await;
        Ok(())
    }

    /// As a caller of west.
    pub(crate) async fn sick_door(&self) -> anyhow::Result<Door> {
        self.world.merged_door("alpha").await
    }

    /// Who uses east alone.
    pub(crate) async fn other_door(&self) -> anyhow::Result<Door> {
        self.world.listed_door("beta", EAST).await
    }

    /// A list of the router's admin server.
    pub(crate) async fn admin(&self, page: &str) -> anyhow::Result<Vec<Value>> {
        Ok(serde_json::from_str(&admin_get(&self.admin, page).await?)?)
    }
}
