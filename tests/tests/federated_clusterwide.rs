//! What has no namespace, and where namespaces go, on the merged view of two real members: an object is written where it
//! is, a name that both members have is shown once, and a child is never written beside another member's owner.
//!
//! Each test has names of its own; whoever makes a member misbehave has the fleet for itself.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "also in functions that only tests call"
)]

#[path = "federated_clusterwide/beside.rs"]
mod beside;
#[path = "federated_clusterwide/nodes.rs"]
mod nodes;
#[path = "federated_clusterwide/nowhere.rs"]
mod nowhere;
#[path = "federated_clusterwide/owners.rs"]
mod owners;
#[path = "federated_clusterwide/places.rs"]
mod places;
#[path = "federated_clusterwide/replicated.rs"]
mod replicated;
#[path = "federated_clusterwide/unions.rs"]
mod unions;

use http::Method;
use portolan_tests::door::{Answer, Door, json as json_request, request};
use portolan_tests::shard::federated;
use portolan_tests::world::{Plan, Shared, World};
use serde_json::{Value, json};
use tokio::sync::RwLock;

static WORLD: Shared = Shared::const_new();
/// Written by who makes a member misbehave.
static MEMBERS: RwLock<()> = RwLock::const_new(());

/// Short, so that a member's absence is known soon.
const ENV: [(&str, &str); 2] = [("PORTOLAN_REQUEST_TIMEOUT", "5s"), ("PORTOLAN_CONNECT_TIMEOUT", "1s")];
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";

fn manifests() -> String {
    let chosen = federated("chosen", "east", &[("east", &["cc-e"]), ("west", &["CHOSEN"])]);
    let selector = "namespaceSelector: {matchLabels: {crew: chosen}}";
    [
        federated("wide", "east", &[("east", &["cw-e"]), ("west", &["cw-w"])]),
        federated("alike", "east", &[("east", &["ca-e"]), ("west", &["ca-w"])]),
        federated("growing", "east", &[("east", &["cg-e"]), ("west", &["cg-w"])]),
        chosen.replace("namespaces: [CHOSEN]", selector),
    ]
    .concat()
}

async fn world() -> &'static World {
    let manifests = manifests();
    let plan = Plan {
        members: &["east", "west"],
        namespaces: &[
            "east/cw-e",
            "west/cw-w",
            "east/cg-e",
            "west/cg-w",
            "west/cg-x",
            "east/cc-e",
            "east/ca-e",
            "west/ca-w",
        ],
        manifests: &manifests,
        env: &ENV,
        ..Plan::default()
    };
    World::shared(&WORLD, plan).await
}

/// The door of a shard's caller, once its lists are answered.
async fn door(shard: &str) -> Door {
    world().await.listed_door(shard, ROLES).await.unwrap()
}

/// Past the router.
async fn direct(member: &str) -> Door {
    world().await.direct_door(member).await.unwrap()
}

/// Makes a ClusterRole in a member, past the router, with the label `test: <of>`; returns its uid.
async fn role(member: &str, of: &str, name: &str) -> String {
    let object = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": name, "labels": {"test": of}, "annotations": {"from": member}}, "rules": [],
    });
    let made = direct(member).await.post(ROLES, &object).await.unwrap();
    assert_eq!(made.status, 201, "{}", made.message());
    made.json()["metadata"]["uid"].as_str().unwrap().to_owned()
}

async fn delete(door: &Door, path: &str) -> Answer {
    door.call(Method::DELETE, path, &[], &[]).await.unwrap()
}

async fn merge_patch(door: &Door, path: &str, patch: &Value) -> Answer {
    let headers = [("content-type", "application/merge-patch+json")];
    let asked = request(Method::PATCH, path, &headers, patch.to_string().as_bytes());
    door.ask(asked.unwrap()).await.unwrap()
}

async fn put(door: &Door, path: &str, object: &Value) -> Answer {
    door.ask(json_request(Method::PUT, path, object).unwrap())
        .await
        .unwrap()
}
