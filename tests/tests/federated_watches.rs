//! Watches of the merged view over two real members: one stream, as one API server would send it, in every format, with
//! positions that any client can go on from, and while members go and come back.
//!
//! Each test has namespaces of its own, one in each member; whoever makes a member misbehave has the fleet for itself.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "also in functions that only tests call"
)]

#[path = "federated_watches/away.rs"]
mod away;
#[path = "federated_watches/fences.rs"]
mod fences;
#[path = "federated_watches/formats.rs"]
mod formats;
#[path = "federated_watches/http1.rs"]
mod http1;
#[path = "federated_watches/plans.rs"]
mod plans;
#[path = "federated_watches/positions.rs"]
mod positions;
#[path = "federated_watches/previews.rs"]
mod previews;
#[path = "federated_watches/sockets.rs"]
mod sockets;
#[path = "federated_watches/stream.rs"]
mod stream;
#[path = "federated_watches/wholes.rs"]
mod wholes;

use portolan_testbed::{Fault, eventually};
use portolan_tests::door::Door;
use portolan_tests::programs::admin_get;
use portolan_tests::shard::federated;
use portolan_tests::world::{Plan, Shared, World};
use serde_json::{Value, json};
use tokio::sync::RwLock;

static WORLD: Shared = Shared::const_new();
/// Written by who makes a member misbehave.
static MEMBERS: RwLock<()> = RwLock::const_new(());

/// Short, so that a member's absence is known soon.
const ENV: [(&str, &str); 2] = [("PORTOLAN_REQUEST_TIMEOUT", "5s"), ("PORTOLAN_CONNECT_TIMEOUT", "4s")];
const MAPS: &str = "/api/v1/configmaps";
/// Shards of the tests: their namespaces are `<shard>-e` in east and `<shard>-w` in west.
const SHARDS: [&str; 15] = [
    "steady", "formats", "lists", "marks", "raws", "gone", "fenced", "sockets", "moving", "grown", "plain", "previews",
    "short", "partly", "wholes",
];

async fn world() -> &'static World {
    let pairs: Vec<String> = SHARDS
        .iter()
        .flat_map(|shard| [format!("east/{shard}-e"), format!("west/{shard}-w")])
        .collect();
    let pairs: Vec<&str> = pairs.iter().map(String::as_str).collect();
    let manifests: String = SHARDS
        .iter()
        .map(|shard| {
            let (east, west) = (format!("{shard}-e"), format!("{shard}-w"));
            federated(shard, "east", &[("east", &[&east]), ("west", &[&west])])
        })
        .collect();
    let plan = Plan {
        members: &["east", "west"],
        namespaces: &pairs,
        manifests: &manifests,
        env: &ENV,
        ..Plan::default()
    };
    World::shared(&WORLD, plan).await
}

/// The door of a shard's caller, once its lists are answered.
async fn door(shard: &str) -> Door {
    world().await.listed_door(shard, MAPS).await.unwrap()
}

/// Makes a ConfigMap past the router; returns its version.
async fn make(shard: &str, member: &str, name: &str) -> u64 {
    make_in(member, &format!("{shard}-{}", &member[..1]), name).await
}

async fn make_in(member: &str, namespace: &str, name: &str) -> u64 {
    let door = world().await.direct_door(member).await.unwrap();
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    let path = format!("/api/v1/namespaces/{namespace}/configmaps");
    let answer = door.post(&path, &object).await.unwrap();
    assert_eq!(answer.status, 201, "{}", answer.message());
    let version = answer.json()["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .to_owned();
    version.parse().unwrap()
}

/// The list's own version.
async fn position(door: &Door) -> String {
    let list = door.get(MAPS, &[]).await.unwrap().json();
    list["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

/// The legs of a shard's only watch, as the router tells of them: `(cluster, state)`.
async fn legs(shard: &str) -> Vec<(String, String)> {
    let world = world().await;
    let router = world.fleet.process("router").unwrap();
    let page = admin_get(&router.admin, "/watches").await.unwrap();
    let page: Value = serde_json::from_str(&page).unwrap();
    let shard = format!("operators/{shard}");
    let watches = page["watches"].as_array().unwrap();
    let Some(watch) = watches.iter().find(|watch| watch["shard"] == *shard) else {
        return Vec::new();
    };
    let text = |leg: &Value, key: &str| leg[key].as_str().unwrap().to_owned();
    let legs = watch["legs"].as_array().unwrap();
    legs.iter()
        .map(|leg| (text(leg, "cluster"), text(leg, "state")))
        .collect()
}

async fn until_west_is(shard: &str, state: &str) {
    eventually(&format!("west's leg is {state}"), || async {
        let legs = legs(shard).await;
        let west = legs.iter().find(|(cluster, _)| cluster == "west");
        if west.is_some_and(|(_, now)| now == state) {
            Ok(())
        } else {
            Err(legs)
        }
    })
    .await;
}

/// West as it was.
async fn mend_west() {
    let west = world().await.cluster("west");
    west.fault(Fault::None).await.unwrap();
    if west.apiserver_pid().is_none() {
        west.restart().await.unwrap();
    }
    west.thaw().await.unwrap();
}
