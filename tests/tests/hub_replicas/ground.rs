//! Three replicas, members, routers, and an operator's watch that goes on through all of it.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use portolan_testbed::eventually;
use portolan_tests::daemon::Daemon;
use portolan_tests::door::Door;
use portolan_tests::replicas::Replicas;
use portolan_tests::routers;
use portolan_tests::shard::federated;
use portolan_tests::watch::{WATCH_LIST, Watch};
use portolan_tests::world::{Plan, World};
use serde_json::{Value, json};

/// All routers: the fleet's own, and one more.
pub(crate) const ROUTERS: u64 = 2;
const MEMBERS: [&str; 3] = ["east", "west", "north"];
/// Namespaces of east that change hands.
const MOVED: [&str; 2] = ["r-1", "r-2"];
/// Where the watch is, which its shard keeps.
const KEPT: &str = "r-kept";

pub(crate) struct Ground {
    pub(crate) world: World,
    pub(crate) replicas: Replicas,
    pub(crate) second: Daemon,
    watch: Watch,
    written: usize,
    /// Who has what is moved.
    owner: usize,
}

impl Ground {
    pub(crate) async fn start(count: usize, env: &[(&str, &str)]) -> Self {
        let manifests = [
            federated(
                "giver",
                "east",
                &[("east", &[KEPT, "r-1", "r-2"]), ("west", &["r-w"]), ("north", &["r-n"])],
            ),
            federated("taker", "east", &[("east", &["r-other"])]),
        ];
        let plan = Plan {
            members: &MEMBERS,
            namespaces: &[
                "east/r-kept",
                "east/r-1",
                "east/r-2",
                "east/r-other",
                "west/r-w",
                "north/r-n",
            ],
            manifests: &manifests.concat(),
            ..Plan::default()
        };
        let world = World::start(plan).await.unwrap();
        let hub = routers::hub_of(&world).unwrap();
        let second = routers::start(&world, "second", &hub, &[]).await.unwrap();
        second.ready().await;
        let door = world.listed_door("giver", &path(KEPT)).await.unwrap();
        let watch = Watch::open(&door, &format!("{}?{WATCH_LIST}", path(KEPT)))
            .await
            .unwrap();
        let replicas = Replicas::start(&world, count, env).await.unwrap();
        let mut ground = Self {
            world,
            replicas,
            second,
            watch,
            written: 0,
            owner: 0,
        };
        ground.replicas.leader().await;
        ground.watch.begun().await.unwrap();
        ground
    }

    /// A shard's operator, by the fleet's router.
    async fn door(&self, shard: &str) -> Door {
        self.world.merged_door(shard).await.unwrap()
    }

    /// The watch that was opened before the first replica started is open and tells of one more object.
    pub(crate) async fn watch_goes_on(&mut self) {
        self.written += 1;
        let name = format!("seen-{}", self.written);
        let door = self.world.direct_door("east").await.unwrap();
        let made = door.post(&path(KEPT), &config_map(&name)).await.unwrap();
        assert_eq!(made.status, 201, "{}", made.message());
        self.watch.sees(&format!("{KEPT}/{name}")).await.unwrap();
        let errors = self.watch.seen.iter().filter(|seen| seen.starts_with("ERROR")).count();
        assert_eq!(errors, 0, "{:?}", self.watch.seen);
    }

    /// Begins to give the namespaces to the other shard.
    pub(crate) async fn begin_move(&mut self) {
        self.owner = 1 - self.owner;
        let more = |has: bool, always: &[&str]| {
            let mut all = always.to_vec();
            all.extend(MOVED.iter().filter(|_| has));
            all.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()
        };
        let giver = more(self.owner == 0, &[KEPT]);
        let giver = json!([{"name": "east", "namespaces": giver}, {"name": "west", "namespaces": ["r-w"]},
            {"name": "north", "namespaces": ["r-n"]}]);
        let taker = json!([{"name": "east", "namespaces": more(self.owner == 1, &["r-other"])}]);
        let write = async |shard: &str, clusters: &Value| {
            eventually("the webhook lets it be written", || async {
                let written = self.world.own(shard, clusters.clone()).await;
                written.map_err(|error| format!("{error:#}"))
            })
            .await;
        };
        let both = [("giver", &giver), ("taker", &taker)];
        let (first, then) = if self.owner == 1 {
            (both[0], both[1])
        } else {
            (both[1], both[0])
        };
        write(first.0, first.1).await;
        write(then.0, then.1).await;
    }

    /// Waits until the new owner writes there; returns how long that took from `since`.
    pub(crate) async fn moved(&self, since: Instant) -> Duration {
        let door = self.door(["giver", "taker"][self.owner]).await;
        for namespace in MOVED {
            let name = format!("mark-{}", rand::random::<u32>());
            eventually(&format!("{namespace} is handed over"), || async {
                let made = door.post(&path(namespace), &config_map(&name)).await;
                let made = made.map_err(|error| format!("{error:#}"))?;
                if made.status == 201 {
                    Ok(())
                } else {
                    Err(made.message())
                }
            })
            .await;
        }
        since.elapsed()
    }

    /// Ends a replica without a word.
    pub(crate) async fn kill(&mut self, number: usize) {
        self.replicas.hubs[number].kill().await.unwrap();
    }

    pub(crate) fn signal(&self, number: usize, signal: Signal) {
        self.replicas.hubs[number].signal(signal).unwrap();
    }
}

fn path(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps")
}

fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}
