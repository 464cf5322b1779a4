//! Clients as programs have them, side by side on the merged view of two real members, while everything breaks that can:
//! each holds at rest what the members hold, is never told that something is gone which is not, and lists anew only where
//! the design says so.
//!
//! One fleet and one test: each fault is done once, for all clients. The members are written to straight, past the router.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "also in functions that only tests call; what was measured is told"
)]

#[path = "federated_clients/clients.rs"]
mod clients;
#[path = "federated_clients/printed.rs"]
mod printed;
#[path = "federated_clients/steps.rs"]
mod steps;
#[path = "federated_clients/truth.rs"]
mod truth;

use std::time::Instant;

use futures::future::join_all;
use kube::api::{Api, Patch, PatchParams};
use portolan_crds::MemberCluster;
use portolan_testbed::{Fault, eventually};
use portolan_tests::daemon::Daemon;
use portolan_tests::programs::admin_get;
use portolan_tests::shard::federated;
use portolan_tests::world::{Plan, World};
use serde_json::{Value, json};

use crate::clients::{Begins, Client};
use crate::truth::Truth;

/// Short, so that a member's absence and a drain are over soon.
const ENV: [(&str, &str); 3] = [
    ("PORTOLAN_REQUEST_TIMEOUT", "5s"),
    ("PORTOLAN_CONNECT_TIMEOUT", "1s"),
    ("PORTOLAN_DRAIN_TIMEOUT", "8s"),
];
const SHARD: &str = "clients";
/// Where the shard's objects are.
const OWNED: [(&str, &str); 2] = [("east", "ca"), ("west", "cb")];
/// In both members, and none of the shard's business.
const FOREIGN: &str = "cx";

struct Ground {
    world: World,
    hub: Daemon,
    router: Daemon,
    clients: Vec<Client>,
    truth: Truth,
    relists: Relists,
}

/// Who may list anew in one step, and then once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Relists {
    Nobody,
    /// Streams end, and all but what ends with its stream go on from where they were.
    ByHand,
    /// Positions are over: who began with initial events can be told what changed, the others cannot.
    WhoListed,
    /// Streams break.
    Everybody,
}

impl Relists {
    fn most(self, client: &Client) -> u64 {
        let may = match self {
            Self::Nobody => false,
            Self::ByHand => client.begins == Begins::Manually,
            // kube-rs reads no DELETED of metadata alone.
            Self::WhoListed => client.begins != Begins::WatchList || client.name.starts_with("kube-rs"),
            Self::Everybody => true,
        };
        u64::from(may)
    }
}

async fn start() -> Ground {
    let owns: [(&str, &[&str]); 2] = [("east", &["ca"]), ("west", &["cb"])];
    let manifests = federated(SHARD, "east", &owns);
    let plan = Plan {
        members: &["east", "west"],
        namespaces: &["east/ca", "west/cb", "east/cx", "west/cx"],
        manifests: &manifests,
        env: &ENV,
        ..Plan::default()
    };
    let world = World::start(plan).await.unwrap();
    let hub = world.fleet.take_over("hub").await.unwrap();
    let router = world.fleet.take_over("router").await.unwrap();
    router.ready().await;
    let members = Api::<MemberCluster>::all(world.cluster("hub").client().await.unwrap());
    for member in ["east", "west"] {
        let patch = Patch::Merge(json!({"spec": {"breaker": {"openFor": "1s", "maxOpenFor": "2s"}}}));
        members.patch(member, &PatchParams::default(), &patch).await.unwrap();
    }
    world.listed_door(SHARD, "/api/v1/configmaps").await.unwrap();
    let mut truth = Truth::default();
    for member in ["east", "west"] {
        truth.work(&world, member).await;
    }
    let clients = Client::all(&world).await.unwrap();
    Ground {
        world,
        hub,
        router,
        clients,
        truth,
        relists: Relists::Nobody,
    }
}

impl Ground {
    /// Does something to the fleet, and looks at every client when all is well again.
    async fn step(&mut self, name: &str, relists: Relists, fault: impl AsyncFnOnce(&mut Self)) {
        let started = Instant::now();
        self.relists = relists;
        let mut before = Vec::new();
        for client in &self.clients {
            before.push(client.relists().await);
        }
        fault(self).await;
        self.settle(name).await;
        let mut told = Vec::new();
        for (client, before) in self.clients.iter().zip(before) {
            let more = client.relists().await - before;
            told.push(format!("{} {more}", client.name));
            let deletes = client.deletes().await;
            let false_ones: Vec<_> = deletes.difference(&self.truth.deleted).collect();
            assert!(
                false_ones.is_empty(),
                "{name}: {} was told of {false_ones:?}",
                client.name
            );
            let why = client.complaints().await;
            assert!(
                more <= relists.most(client),
                "{name}: {} lists anew {more} times: {why:?}",
                client.name
            );
        }
        println!("{name}: {:?}; relists: {}", started.elapsed(), told.join(", "));
    }

    /// Waits until every client holds what the members hold.
    async fn settle(&self, name: &str) {
        let truth = self.truth.objects(&self.world).await;
        let all = self.clients.iter().map(|client| {
            let what = format!("{name}: {} holds what the members hold", client.name);
            let truth = &truth;
            async move { eventually(&what, || client.holds(truth)).await }
        });
        join_all(all).await;
    }

    /// One new object in a member: how long until each client has it.
    async fn mark(&mut self, name: &str, member: &str) {
        let (started, relists) = (Instant::now(), self.relists);
        let key = self.truth.mark(&self.world, member).await;
        let all = self.clients.iter().map(|client| {
            let (what, key) = (format!("{name}: {} sees {key}", client.name), &key);
            async move {
                let seen = || async {
                    if relists != Relists::Nobody {
                        client.revive(false).await;
                    }
                    client.has(key).await
                };
                eventually(&what, seen).await;
                format!("{} {:?}", client.name, started.elapsed())
            }
        });
        println!("{name}: first event: {}", join_all(all).await.join(", "));
    }

    async fn work(&mut self, members: &[&str]) {
        for member in members {
            self.truth.work(&self.world, member).await;
        }
    }

    /// The router is back after all streams ended: how long until each client goes on.
    async fn again(&mut self, name: &str) {
        for client in &self.clients {
            client.revive(true).await;
        }
        self.mark(name, "west").await;
    }

    async fn fault(&self, fault: Fault) {
        self.world.cluster("west").fault(fault).await.unwrap();
    }

    /// Waits until the router knows that every watch lacks west.
    async fn until_west_is_held(&self) {
        eventually("west's legs are held", || async {
            let page = admin_get(self.router.admin(), "/watches").await?;
            let page: Value = serde_json::from_str(&page)?;
            let watches = page["watches"].as_array().cloned().unwrap_or_default();
            let legs = watches
                .iter()
                .flat_map(|watch| watch["legs"].as_array().into_iter().flatten());
            let of_west: Vec<_> = legs.filter(|leg| leg["cluster"] == "west").collect();
            let held = !of_west.is_empty() && of_west.iter().all(|leg| leg["state"] == "held");
            anyhow::ensure!(held, "{of_west:?}");
            anyhow::Ok(())
        })
        .await;
    }

    /// West is away: east goes on; then west is back, and the time to its first event is told.
    async fn away(&mut self, name: &str, back: impl AsyncFnOnce(&mut Self)) {
        self.until_west_is_held().await;
        self.work(&["east"]).await;
        self.mark(&format!("{name}, meanwhile"), "east").await;
        back(self).await;
        self.mark(name, "west").await;
        self.work(&["east", "west"]).await;
    }
}

#[tokio::test]
async fn every_client_holds_what_the_members_hold() {
    let mut ground = start().await;
    ground.settle("at first").await;
    for client in &ground.clients {
        client.has_begun().await.unwrap();
    }
    steps::steady(&mut ground).await;
    steps::members_go_and_come_back(&mut ground).await;
    steps::ours_go_and_come_back(&mut ground).await;
}
