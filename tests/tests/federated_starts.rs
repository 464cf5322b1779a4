//! Where a watch may start: from a list of another scope, from an object that was just created, from a view of the shard that
//! is over, and of a namespace that is another shard's now. It is told all that has happened since, or that it has to list.
//!
//! Each test has shards and namespaces of its own; who restarts the router has the fleet for itself.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "also in functions that only tests call"
)]

#[path = "federated_starts/created.rs"]
mod created;
#[path = "federated_starts/formats.rs"]
mod formats;
#[path = "federated_starts/handover.rs"]
mod handover;
#[path = "federated_starts/retries.rs"]
mod retries;
#[path = "federated_starts/scopes.rs"]
mod scopes;
#[path = "federated_starts/views.rs"]
mod views;

use http::Method;
use portolan_testbed::eventually;
use portolan_tests::door::{Answer, Door, json, request};
use portolan_tests::shard::federated;
use portolan_tests::watch::{Held, held};
use portolan_tests::world::{Plan, Shared, World};
use serde_json::{Value, json};
use tokio::sync::RwLock;

/// Member and namespace.
type Place = (&'static str, &'static str);

static WORLD: Shared = Shared::const_new();
/// Written by who restarts the router.
static CALM: RwLock<()> = RwLock::const_new(());

/// Short, so that the end of a router is soon over.
const ENV: [(&str, &str); 1] = [("PORTOLAN_DRAIN_TIMEOUT", "8s")];

fn manifests() -> String {
    [
        federated("scopes", "east", &[("east", &["fs-a", "fs-b"]), ("west", &["fs-w"])]),
        federated("lone", "east", &[("east", &["fo-a", "fo-b"])]),
        federated("born", "east", &[("east", &["fb-a", "fb-m"]), ("west", &["fb-w"])]),
        // All of the member where its callers are.
        federated("whole", "east", &[]).replace("  clusters:\n", ""),
        federated(
            "views",
            "east",
            &[("east", &["fv-a", "fv-g", "fv-m"]), ("west", &["fv-w"])],
        ),
        federated("grown", "east", &[("east", &["fg-a"])]),
        federated("retries", "east", &[("east", &["fr-a"]), ("west", &["fr-w"])]),
        federated("giver", "east", &[("east", &["fh-e", "fh"])]),
        federated("taker", "east", &[("east", &["fh-t"])]),
    ]
    .concat()
}

async fn world() -> &'static World {
    let manifests = manifests();
    let plan = Plan {
        members: &["east", "west"],
        namespaces: &[
            "east/fs-a",
            "east/fs-b",
            "west/fs-w",
            "east/fo-a",
            "east/fo-b",
            "east/fb-a",
            "east/fb-m",
            "west/fb-m",
            "west/fb-w",
            "east/fv-a",
            "east/fv-g",
            "east/fv-m",
            "west/fv-m",
            "east/fv-n",
            "west/fv-w",
            "east/fg-a",
            "east/fg-n",
            "east/fr-a",
            "west/fr-w",
            "east/fh-e",
            "east/fh",
            "east/fh-t",
        ],
        manifests: &manifests,
        env: &ENV,
        ..Plan::default()
    };
    World::shared(&WORLD, plan).await
}

/// The door of a shard's caller, once its lists are answered.
async fn door(shard: &str) -> Door {
    world().await.listed_door(shard, &maps(None)).await.unwrap()
}

/// ConfigMaps of one namespace, or of all.
fn maps(namespace: Option<&str>) -> String {
    match namespace {
        Some(namespace) => format!("/api/v1/namespaces/{namespace}/configmaps"),
        None => "/api/v1/configmaps".to_owned(),
    }
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

/// The version of an object that was answered.
fn version_of(answer: &Answer) -> String {
    assert!(answer.status < 300, "{}", answer.message());
    let version = &answer.json()["metadata"]["resourceVersion"];
    version.as_str().unwrap_or_default().to_owned()
}

/// Makes a ConfigMap in a member, past the router; returns its version, as the others do.
async fn make((member, namespace): Place, name: &str) -> String {
    let door = world().await.direct_door(member).await.unwrap();
    let asked = json(Method::POST, &maps(Some(namespace)), &map(name));
    version_of(&door.ask(asked.unwrap()).await.unwrap())
}

async fn change((member, namespace): Place, name: &str) -> String {
    let door = world().await.direct_door(member).await.unwrap();
    let path = format!("{}/{name}", maps(Some(namespace)));
    let headers = [("content-type", "application/merge-patch+json")];
    let asked = request(Method::PATCH, &path, &headers, br#"{"data": {"changed": "yes"}}"#);
    version_of(&door.ask(asked.unwrap()).await.unwrap())
}

async fn remove((member, namespace): Place, name: &str) {
    let door = world().await.direct_door(member).await.unwrap();
    let path = format!("{}/{name}", maps(Some(namespace)));
    version_of(&door.call(Method::DELETE, &path, &[], &[]).await.unwrap());
}

/// What members have in these places, past the router.
async fn truth(places: &[Place]) -> Held {
    world().await.truth(("/api/v1", "configmaps"), places).await.unwrap()
}

/// What a client has of a list, and where that was.
async fn listed(door: &Door, path: &str) -> (Held, String) {
    let answer = door.get(path, &[]).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.message());
    (held(&answer.json()).unwrap(), version_of(&answer))
}

/// Gives the shard other namespaces, and waits until it is served what is in these places.
async fn own(shard: &str, clusters: Value, places: &[Place]) {
    world().await.own(shard, clusters).await.unwrap();
    let door = door(shard).await;
    eventually(&format!("{shard} has {places:?}"), || async {
        let answer = door.get(&maps(None), &[]).await.map_err(|error| error.to_string())?;
        let served = held(&answer.json()).map_err(|error| error.to_string())?;
        let truth = truth(places).await;
        (served == truth)
            .then_some(())
            .ok_or(format!("{served:?} is not {truth:?}"))
    })
    .await;
}
