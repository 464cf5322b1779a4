//! Lists of the merged view over two real members: what one API server would answer if all of the shard's objects were its
//! own, in every format, page by page, for every combination of parameters, and while a member is away.
//!
//! East and west hold the shard's namespaces and others that are none of its business; whoever takes a member away has the
//! fleet for itself.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "also in functions that only tests call"
)]

#[path = "federated_lists/away.rs"]
mod away;
#[path = "federated_lists/formats.rs"]
mod formats;
#[path = "federated_lists/pages.rs"]
mod pages;
#[path = "federated_lists/versions.rs"]
mod versions;

use std::collections::BTreeMap;

use portolan_testbed::eventually;
use portolan_tests::door::{Answer, Door};
use portolan_tests::shard::federated;
use portolan_tests::world::{Plan, Shared, World};
use serde_json::{Value, json};
use tokio::sync::{OnceCell, RwLock};

static WORLD: Shared = Shared::const_new();
static FILLED: OnceCell<()> = OnceCell::const_new();
/// Written by who takes a member away.
static MEMBERS: RwLock<()> = RwLock::const_new(());

/// Short, so that a member's absence is known soon.
const ENV: [(&str, &str); 2] = [("PORTOLAN_REQUEST_TIMEOUT", "5s"), ("PORTOLAN_CONNECT_TIMEOUT", "4s")];
const MAPS: &str = "/api/v1/configmaps";
/// Where the shard's objects are.
const OWNED: [(&str, &str); 4] = [("east", "la-1"), ("east", "la-2"), ("west", "lb-1"), ("west", "lb-2")];
/// What both members have besides.
const FOREIGN: [&str; 2] = ["lx-1", "la-9"];
/// Of a shard that gets one of them later, and loses one.
const GROWING: [(&str, &str); 4] = [("east", "lg-1"), ("east", "lg-2"), ("west", "lh-1"), ("west", "lh-2")];
/// ConfigMaps in each namespace.
const EACH: usize = 7;

fn manifests() -> String {
    let owns: [(&str, &[&str]); 2] = [("east", &["la-1", "la-2"]), ("west", &["lb-1", "lb-2"])];
    let starts = federated("starts", "east", &[("east", &["ls-1"]), ("west", &["lt-1"])]);
    [
        federated("lists", "east", &owns),
        federated("growing", "east", &[("east", &["lg-1"]), ("west", &["lh-1", "lh-2"])]),
        federated("other", "east", &[("east", &["lo-1"]), ("west", &["lo-2"])]),
        starts.replace(
            "explicitView: Allow",
            "explicitView: Allow\n  unavailable: PartialStart",
        ),
    ]
    .concat()
}

async fn world() -> &'static World {
    let pairs: Vec<String> = OWNED
        .iter()
        .chain(&GROWING)
        .map(|(member, namespace)| format!("{member}/{namespace}"))
        .chain(["east/ls-1", "west/lt-1", "east/lo-1", "west/lo-2"].map(str::to_owned))
        .chain(
            ["east", "west"]
                .iter()
                .flat_map(|member| FOREIGN.map(|namespace| format!("{member}/{namespace}"))),
        )
        .collect();
    let pairs: Vec<&str> = pairs.iter().map(String::as_str).collect();
    let manifests = manifests();
    let plan = Plan {
        members: &["east", "west"],
        namespaces: &pairs,
        manifests: &manifests,
        env: &ENV,
        ..Plan::default()
    };
    let world = World::shared(&WORLD, plan).await;
    FILLED.get_or_init(|| fill(world)).await;
    world
}

async fn fill(world: &World) {
    let foreign = ["east", "west"]
        .iter()
        .flat_map(|member| FOREIGN.map(|namespace| (*member, namespace)));
    for (member, namespace) in OWNED
        .into_iter()
        .chain(GROWING)
        .chain(foreign)
        .chain([("east", "ls-1"), ("west", "lt-1")])
    {
        let door = world.direct_door(member).await.unwrap();
        for at in 0..EACH {
            let object = json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": format!("map-{at}"), "labels": {"parity": if at % 2 == 0 { "even" } else { "odd" }}},
                "data": {"from": member, "text": "ä\"\\\n\u{1F980}"},
            });
            let path = format!("/api/v1/namespaces/{namespace}/configmaps");
            assert_eq!(door.post(&path, &object).await.unwrap().status, 201);
        }
    }
    // The namespaces' own ConfigMap comes when the controller manager gets around to it.
    for (member, namespace) in OWNED
        .into_iter()
        .chain(GROWING)
        .chain([("east", "ls-1"), ("west", "lt-1")])
    {
        let door = world.direct_door(member).await.unwrap();
        eventually("the root CA is published", || async {
            let path = format!("/api/v1/namespaces/{namespace}/configmaps/kube-root-ca.crt");
            (door.get(&path, &[]).await.unwrap().status == 200).then_some(())
        })
        .await;
    }
}

/// `namespace/name` → object.
type Objects = BTreeMap<String, Value>;

fn objects(list: &Value) -> Objects {
    let items = list["items"].as_array().unwrap_or_else(|| panic!("no list: {list}"));
    let objects: Objects = items.iter().map(|item| (key(item), item.clone())).collect();
    assert_eq!(objects.len(), items.len(), "an object twice");
    objects
}

fn key(object: &Value) -> String {
    let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default();
    format!("{}/{}", text("namespace"), text("name"))
}

/// What the members hold in the shard's namespaces, asked past the router.
async fn direct(query: &str, accept: &str) -> Vec<Answer> {
    let world = world().await;
    let mut answers = Vec::new();
    for (member, namespace) in OWNED {
        let door = world.direct_door(member).await.unwrap();
        let path = format!("/api/v1/namespaces/{namespace}/configmaps?{query}");
        answers.push(door.get(&path, &[("accept", accept)]).await.unwrap());
    }
    answers
}

async fn truth(query: &str, accept: &str) -> Objects {
    direct(query, accept)
        .await
        .iter()
        .flat_map(|answer| objects(&answer.json()))
        .collect()
}

async fn door() -> Door {
    world().await.merged_door("lists").await.unwrap()
}

async fn list(door: &Door, query: &str) -> Answer {
    door.get(&format!("{MAPS}?{query}"), &[("accept", "application/json")])
        .await
        .unwrap()
}

fn version(answer: &Answer) -> String {
    let list = answer.json();
    let version = list["metadata"]["resourceVersion"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    assert!(
        version.len() >= 24 && version.bytes().all(|byte| byte.is_ascii_digit()),
        "no cursor: {version:?}"
    );
    version
}
