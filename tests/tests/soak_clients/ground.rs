//! The fleet under test: three members, home and primary among them, a hub, two routers behind one address. Everything of it
//! can be stopped and started by an action, so each program is this process's own.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Context as _;
use kube::Api;
use kube::api::{Patch, PatchParams};
use portolan_crds::MemberCluster;
use portolan_testbed::eventually;
use portolan_tests::balancer::Balancer;
use portolan_tests::ctl;
use portolan_tests::daemon::{Daemon, Launch};
use portolan_tests::programs::argument;
use portolan_tests::shard::federated;
use portolan_tests::world::{Plan, World};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::ledger::Ledger;
use crate::lines::Lines;
use crate::meter::Meter;
use crate::share::Share;

pub(crate) const SHARD: &str = "soak";
/// Home of the callers, primary, and one that is neither.
pub(crate) const MEMBERS: [&str; 3] = ["east", "west", "north"];
/// Path of a group-version and plural name of what is watched.
pub(crate) const KINDS: [(&str, &str); 2] = [("/api/v1", "configmaps"), ("/apis/example.com/v1", "greetings")];
/// In each member, and owned in one of them at a time.
pub(crate) const ROAMING: &str = "roam";
/// Owned by this shard or by another one, in north.
pub(crate) const LENT: &str = "lent";
/// Written to also while the shard does not own them: the first never.
pub(crate) const PLACES: [(&str, &str); 5] = [
    ("east", "beside"),
    ("east", ROAMING),
    ("west", ROAMING),
    ("north", ROAMING),
    ("north", LENT),
];
/// What the shard owns at first.
const OWNS: [(&str, &[&str]); 3] = [
    ("east", &["home-e", ROAMING]),
    ("west", &["home-w"]),
    ("north", &["home-n", LENT]),
];
const CRD: &str = include_str!("../../../examples/greeting-crd.yaml");
/// Short, so that a member's absence and a drain are over soon.
const ENV: [(&str, &str); 3] = [
    ("PORTOLAN_REQUEST_TIMEOUT", "5s"),
    ("PORTOLAN_CONNECT_TIMEOUT", "1s"),
    ("PORTOLAN_DRAIN_TIMEOUT", "4s"),
];

/// All of it. A mutex around each program: one action at a time has it.
pub(crate) struct Ground {
    /// None until it is stopped for the first time: a hub that has just started waits a minute for routers before it moves anything.
    pub(crate) hub: Mutex<Option<Daemon>>,
    pub(crate) routers: [Mutex<Daemon>; 2],
    pub(crate) agents: BTreeMap<&'static str, Mutex<Daemon>>,
    pub(crate) share: Share,
    pub(crate) other: Share,
    pub(crate) ledger: Ledger,
    pub(crate) lines: Lines,
    pub(crate) meter: Meter,
    /// Of a caller of the shard, through the balancer.
    pub(crate) kubeconfig: PathBuf,
    _balancer: Balancer,
    pub(crate) world: World,
}

impl Ground {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let world = world().await?;
        let routers = [world.fleet.take_over("router").await?, second_router(&world).await?];
        let mut agents = BTreeMap::new();
        for member in MEMBERS {
            let agent = world.fleet.take_over(&format!("agent-{member}")).await?;
            agents.insert(member, Mutex::new(agent));
        }
        for router in &routers {
            router.ready().await;
        }
        quick_breakers(&world).await?;
        let balancer = Balancer::start(routers.iter().map(|router| router.bind().to_owned()).collect()).await?;
        let text = std::fs::read_to_string(world.fleet.merged_kubeconfig(SHARD))?;
        let kubeconfig = world.fleet.dir().join("soak.kubeconfig");
        std::fs::write(&kubeconfig, text.replace(routers[0].bind(), &balancer.address))?;
        let client = world.cluster("hub").client().await?;
        let ground = Self {
            lines: Lines::new(&world, &MEMBERS).await?,
            meter: Meter::start(routers.iter().map(|router| router.admin().to_owned()).collect()),
            share: Share::new(SHARD, client.clone(), &OWNS),
            other: Share::new("other", client, &[("north", &["others"])]),
            hub: Mutex::default(),
            routers: routers.map(Mutex::new),
            agents,
            ledger: Ledger::default(),
            kubeconfig,
            _balancer: balancer,
            world,
        };
        ground.answers().await;
        Ok(ground)
    }

    /// Waits until lists of both kinds are answered by each router.
    async fn answers(&self) {
        for (root, plural) in KINDS {
            let path = format!("{root}/{plural}");
            for router in &self.routers {
                let address = router.lock().await.bind().to_owned();
                eventually("lists are answered", || async {
                    let mut door = self.world.merged_door(SHARD).await?;
                    door.address.clone_from(&address);
                    let answer = door.get(&path, &[]).await?;
                    anyhow::ensure!(answer.status == 200, "{}", answer.message());
                    anyhow::Ok(())
                })
                .await;
            }
        }
    }
}

async fn world() -> anyhow::Result<World> {
    let manifests = federated(SHARD, "east", &OWNS).replace("primaryCluster: east", "primaryCluster: west")
        + &federated("other", "north", &[("north", &["others"])]);
    let owned = OWNS
        .iter()
        .flat_map(|(member, namespaces)| namespaces.iter().map(move |namespace| (*member, *namespace)));
    let mut namespaces: Vec<String> = owned
        .chain(PLACES)
        .map(|(member, namespace)| format!("{member}/{namespace}"))
        .collect();
    namespaces.push("north/others".to_owned());
    let namespaces: Vec<&str> = namespaces.iter().map(String::as_str).collect();
    let world = World::start(Plan {
        members: &MEMBERS,
        namespaces: &namespaces,
        manifests: &manifests,
        env: &ENV,
        ..Plan::default()
    })
    .await?;
    for member in MEMBERS {
        world.direct(member).ok_with(&["apply", "-f", "-"], CRD).await?;
        let established = ["wait", "--for=condition=Established", "crd/greetings.example.com"];
        world.direct(member).ok(&established).await?;
    }
    Ok(world)
}

/// Beside the one that `dev up` has started, with a token of its own.
async fn second_router(world: &World) -> anyhow::Result<Daemon> {
    let dir = world.fleet.dir();
    let kubeconfig = argument(world.cluster("hub").kubeconfig_path());
    let token = ctl::ok(&[
        "router-token",
        "second",
        "--san",
        "127.0.0.1",
        "--hub-kubeconfig",
        &kubeconfig,
    ])
    .await?;
    let hub: Value = serde_json::from_slice(&std::fs::read(dir.join("hub.addresses.json"))?)?;
    let token_file = dir.join("second.token");
    std::fs::write(&token_file, token)?;
    let flags = [
        ("--bind", "127.0.0.1:0".to_owned()),
        ("--hub", hub["bind"].as_str().context("an address")?.to_owned()),
        ("--hub-ca", argument(&dir.join("hub-ca.crt"))),
        ("--bootstrap-token-file", argument(&token_file)),
        ("--state-dir", argument(&dir.join("second-state"))),
    ];
    Daemon::start(Launch {
        name: "second".to_owned(),
        program: "portolan-router".to_owned(),
        arguments: flags
            .into_iter()
            .flat_map(|(flag, value)| [flag.to_owned(), value])
            .collect(),
        env: ENV.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
        dir: dir.to_owned(),
    })
    .await
}

/// So that a member that is back is soon asked again.
async fn quick_breakers(world: &World) -> anyhow::Result<()> {
    let members = Api::<MemberCluster>::all(world.cluster("hub").client().await?);
    for member in MEMBERS {
        let patch = Patch::Merge(json!({"spec": {"breaker": {"openFor": "1s", "maxOpenFor": "2s"}}}));
        members.patch(member, &PatchParams::default(), &patch).await?;
    }
    Ok(())
}
