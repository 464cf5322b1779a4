//! The fleet under test: two members, three shards of one operator, two routers behind one address. Each program but the hub is this
//! process's own, so that it can be killed. Member and hub cluster forget nothing of what was written to them, and keep it as JSON.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use kube::Api;
use kube::api::{Patch, PatchParams};
use portolan_crds::{MemberCluster, ShardingConfig};
use portolan_testbed::{Fault, Stage, eventually};
use portolan_tests::balancer::Balancer;
use portolan_tests::daemon::Daemon;
use portolan_tests::routers;
use portolan_tests::shard::federated;
use portolan_tests::world::{HUB, Plan, World};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::slow::SlowAdmission;

pub(crate) const SHARDS: [&str; 3] = ["red", "green", "blue"];
pub(crate) const MEMBERS: [&str; 2] = ["east", "west"];
/// Namespaces that move, by turns in either member: enough that many are on their way at the same time.
pub(crate) const NAMESPACES: [&str; 12] = [
    "m-0", "m-1", "m-2", "m-3", "m-4", "m-5", "m-6", "m-7", "m-8", "m-9", "m-10", "m-11",
];
/// Of each shard in each member: one that stays, so that no entry of its spec is ever empty.
const HOMES: [[&str; 2]; 3] = [["h-re", "h-rw"], ["h-ge", "h-gw"], ["h-be", "h-bw"]];
/// Name of the ConfigMap in which is counted.
pub(crate) const COUNTER: &str = "counter";
const MAPS: &str = "/api/v1/configmaps";
/// What the condition is called by which a shard says that members refuse late writes.
const FENCED: &str = "HandoverFenced";
/// How late the second router hears the hub, and the hub it: it writes on by what was before for that long.
const HUB_IS_LATE: Duration = Duration::from_millis(500);
/// Short, so that a member's absence and a drain are over soon.
const ENV: [(&str, &str); 3] = [
    ("PORTOLAN_REQUEST_TIMEOUT", "12s"),
    ("PORTOLAN_CONNECT_TIMEOUT", "2s"),
    ("PORTOLAN_DRAIN_TIMEOUT", "4s"),
];

/// A mutex around each program: one crash at a time has it.
pub(crate) struct Ground {
    /// `None`: it is only stopped and goes on. One that starts waits a minute for routers before it moves anything.
    pub(crate) hub: Option<Mutex<Daemon>>,
    pub(crate) routers: [Mutex<Daemon>; 2],
    pub(crate) agents: BTreeMap<&'static str, Mutex<Daemon>>,
    /// Between routers and members, where writes may be held up.
    pub(crate) ways: BTreeMap<&'static str, Stage>,
    /// Of each shard's caller, through the balancer.
    pub(crate) kubeconfigs: BTreeMap<&'static str, PathBuf>,
    _balancer: Balancer,
    /// Between the hub and the second router: what that acknowledges comes late.
    hub_way: Stage,
    pub(crate) slow: SlowAdmission,
    pub(crate) world: World,
}

/// The member that has a moving namespace.
pub(crate) fn member_of(namespace: &str) -> &'static str {
    let place = NAMESPACES.iter().position(|name| *name == namespace);
    MEMBERS[place.unwrap_or_default() % 2]
}

/// The shard that has it in the beginning.
pub(crate) fn first_owner(namespace: &str) -> &'static str {
    let place = NAMESPACES.iter().position(|name| *name == namespace);
    SHARDS[place.unwrap_or_default() % 3]
}

/// What a shard has of a member that does not move.
pub(crate) fn home(shard: &str, member: &str) -> &'static str {
    let shard = SHARDS.iter().position(|name| *name == shard).unwrap();
    let member = MEMBERS.iter().position(|name| *name == member).unwrap();
    HOMES[shard][member]
}

impl Ground {
    /// `long`: the hub is killed too.
    pub(crate) async fn start(long: bool) -> anyhow::Result<Self> {
        let world = world().await?;
        for namespace in NAMESPACES {
            let counter = json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": COUNTER}, "data": {"count": "0"},
            });
            let door = world.direct_door(member_of(namespace)).await?;
            let path = format!("/api/v1/namespaces/{namespace}/configmaps");
            assert_eq!(door.post(&path, &counter).await?.status, 201);
        }
        let hub_address = routers::hub_of(&world)?;
        let hub_way = Stage::before(port_of(&hub_address)?)?;
        let by_way = format!("127.0.0.1:{}", hub_way.port());
        let routers = [
            world.fleet.take_over("router").await?,
            routers::start(&world, "second", &by_way, &ENV).await?,
        ];
        let mut agents = BTreeMap::new();
        for member in MEMBERS {
            let agent = world.fleet.take_over(&format!("agent-{member}")).await?;
            agents.insert(member, Mutex::new(agent));
        }
        let hub = if long {
            Some(Mutex::new(world.fleet.take_over("hub").await?))
        } else {
            None
        };
        for router in &routers {
            router.ready().await;
        }
        let balancer = Balancer::start(routers.iter().map(|router| router.bind().to_owned()).collect()).await?;
        let kubeconfigs = kubeconfigs(&world, routers[0].bind(), &balancer.address)?;
        let mut ground = Self {
            hub,
            routers: routers.map(Mutex::new),
            agents,
            ways: BTreeMap::new(),
            kubeconfigs,
            _balancer: balancer,
            hub_way,
            slow: SlowAdmission::start(&world, &MEMBERS).await?,
            world,
        };
        ground.quick_breakers().await?;
        ground.answers().await;
        for shard in SHARDS {
            let owners = NAMESPACES.into_iter().map(|name| (name, first_owner(name)));
            ground.world.own(shard, clusters(owners, shard)).await?;
        }
        ground.fenced().await?;
        ground.ways().await?;
        ground.answers().await;
        ground.hub_way.set(Fault::Delay(HUB_IS_LATE));
        Ok(ground)
    }

    /// So that a member that is back is soon asked again.
    async fn quick_breakers(&self) -> anyhow::Result<()> {
        let breaker = json!({"spec": {"breaker": {"openFor": "1s", "maxOpenFor": "2s"}}});
        for member in MEMBERS {
            let patch = Patch::Merge(&breaker);
            self.members()
                .await?
                .patch(member, &PatchParams::default(), &patch)
                .await?;
        }
        Ok(())
    }

    async fn members(&self) -> anyhow::Result<Api<MemberCluster>> {
        Ok(Api::all(self.world.cluster(HUB).client().await?))
    }

    /// Waits until lists of each shard are answered by each router.
    async fn answers(&self) {
        for router in &self.routers {
            let address = router.lock().await.bind().to_owned();
            for shard in SHARDS {
                eventually("lists are answered", || async {
                    let mut door = self.world.merged_door(shard).await?;
                    door.address.clone_from(&address);
                    let answer = door.get(MAPS, &[]).await?;
                    let home = home(shard, "west");
                    let whole = String::from_utf8_lossy(&answer.body).contains(home);
                    anyhow::ensure!(answer.status == 200 && whole, "{} {}", answer.status, answer.message());
                    anyhow::Ok(())
                })
                .await;
            }
        }
    }

    /// Waits until members refuse what arrives late.
    async fn fenced(&self) -> anyhow::Result<()> {
        let shards: Api<ShardingConfig> = Api::namespaced(self.world.cluster(HUB).client().await?, "operators");
        for name in SHARDS {
            eventually("handovers are fenced", || async {
                let shard = shards.get(name).await?;
                let status = shard.status.unwrap_or_default();
                let mut found = status.conditions.iter().filter(|condition| condition.type_ == FENCED);
                let found = found.next();
                let holds = found.is_some_and(|found| {
                    found.status == "True" && found.observed_generation >= shard.metadata.generation
                });
                anyhow::ensure!(holds, "{found:?}");
                anyhow::Ok(())
            })
            .await;
        }
        Ok(())
    }

    /// Routers go to members by a way of their own.
    async fn ways(&mut self) -> anyhow::Result<()> {
        for member in MEMBERS {
            let way = Stage::before(port_of(&self.world.cluster(member).direct_url())?)?;
            let endpoints = json!({"spec": {"endpoints": [{"url": format!("https://127.0.0.1:{}", way.port())}]}});
            let patch = Patch::Merge(&endpoints);
            self.members()
                .await?
                .patch(member, &PatchParams::default(), &patch)
                .await?;
            eventually("routers go there", || async { way.accepted() > 0 }).await;
            self.ways.insert(member, way);
        }
        Ok(())
    }
}

fn port_of(address: &str) -> anyhow::Result<u16> {
    let port = address.rsplit_once(':').context("an address has a port")?.1;
    Ok(port.trim_end_matches('/').parse()?)
}

/// `clusters` of a shard if the moving namespaces have these owners.
pub(crate) fn clusters<'a>(owners: impl Iterator<Item = (&'a str, &'a str)> + Clone, shard: &str) -> Value {
    let of_member = |member: &&str| {
        let mine = owners
            .clone()
            .filter(|(name, owner)| *owner == shard && member_of(name) == *member);
        let names: Vec<_> = mine.map(|(name, _)| name).chain([home(shard, member)]).collect();
        json!({"name": member, "namespaces": names})
    };
    MEMBERS.iter().map(of_member).collect()
}

/// Shards have what stays: the other namespaces are granted when the routers run that will be asked about them.
async fn world() -> anyhow::Result<World> {
    let mut manifests = String::new();
    for shard in SHARDS {
        let homes = MEMBERS.map(|member| (member, [home(shard, member)]));
        let homes: Vec<_> = homes.iter().map(|(member, home)| (*member, home.as_slice())).collect();
        manifests += &federated(shard, "east", &homes);
    }
    let homes = HOMES.into_iter().flat_map(|homes| MEMBERS.into_iter().zip(homes));
    let namespaces: Vec<_> = NAMESPACES
        .into_iter()
        .map(|name| (member_of(name), name))
        .chain(homes)
        .map(|(member, name)| format!("{member}/{name}"))
        .collect();
    let namespaces: Vec<_> = namespaces.iter().map(String::as_str).collect();
    let keeps_all = ["--storage-media-type=application/json", "--etcd-compaction-interval=0"];
    let plan = Plan {
        members: &MEMBERS,
        namespaces: &namespaces,
        manifests: &manifests,
        apiserver_args: keeps_all.map(ToOwned::to_owned).to_vec(),
        env: &ENV,
        ..Plan::default()
    };
    World::start(plan).await
}

/// Those of the shards, by another address.
fn kubeconfigs(world: &World, bind: &str, address: &str) -> anyhow::Result<BTreeMap<&'static str, PathBuf>> {
    let mut kubeconfigs = BTreeMap::new();
    for shard in SHARDS {
        let text = std::fs::read_to_string(world.fleet.merged_kubeconfig(shard))?;
        let kubeconfig = world.fleet.dir().join(format!("moves-{shard}.kubeconfig"));
        std::fs::write(&kubeconfig, text.replace(bind, address))?;
        kubeconfigs.insert(shard, kubeconfig);
    }
    Ok(kubeconfigs)
}
