//! What changes under an open watch that is not an object: a namespace changes its member, a member joins the shard, the
//! labels by which members choose become complete. Clients that began with initial events never list anew for it. And what
//! `portolanctl shards` says of a move before it is made, and does.
//!
//! Each test has a shard and namespaces of its own; who stops an agent has the fleet for itself.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "also in functions that only tests call"
)]

#[path = "federated_moves/labels.rs"]
mod labels;
#[path = "federated_moves/members.rs"]
mod members;
#[path = "federated_moves/restores.rs"]
mod restores;
#[path = "federated_moves/shown.rs"]
mod shown;

use portolan_testbed::eventually;
use portolan_tests::door::Door;
use portolan_tests::shard::federated;
use portolan_tests::watch::{Held, WATCH_LIST, Watch};
use portolan_tests::world::{Plan, Shared, World};
use serde_json::{Value, json};
use tokio::sync::RwLock;

static WORLD: Shared = Shared::const_new();
/// Written by who stops an agent or a member.
static MEMBERS: RwLock<()> = RwLock::const_new(());

const MAPS: &str = "/api/v1/configmaps";

fn manifests() -> String {
    // Agents label a kind of ours because a shard's limits name it.
    let limits = "  limits:\n  - relateResources:\n    - apiGroups: [moves.test]\n      resources: [boxes]\n    \
                  selector: {matchLabels: {app: foo}}\n  clusters:\n";
    let late = federated("late", "east", &[("east", &["fl-e"]), ("LATE", &["fl-n"])]);
    [
        federated("moves", "east", &[("east", &["fm-e", "fm"]), ("west", &["fm-w"])]),
        late.replace("name: LATE", "selector: {matchLabels: {crew: late}}"),
        federated("labels", "east", &[("east", &["fb-e"]), ("west", &["fb-w"])]),
        federated("restored", "east", &[("east", &["fr-e"]), ("north", &["fr-n"])]),
        federated("planned", "east", shown::PLANNED),
        federated("heir", "east", shown::HEIR),
        federated("boxed", "east", &[("east", &["fk-e"]), ("west", &["fk-w"])]).replace("  clusters:\n", limits),
    ]
    .concat()
}

async fn world() -> &'static World {
    let manifests = manifests();
    let plan = Plan {
        members: &["east", "west", "north"],
        namespaces: &[
            "east/fm-e",
            "west/fm-w",
            "east/fm",
            "west/fm",
            "east/fl-e",
            "north/fl-n",
            "east/fb-e",
            "west/fb-w",
            "west/fx",
            "east/fk-e",
            "west/fk-w",
            "east/fr-e",
            "north/fr-n",
            "east/fp-a",
            "east/fp-b",
            "west/fp-w",
        ],
        manifests: &manifests,
        ..Plan::default()
    };
    World::shared(&WORLD, plan).await
}

/// The door of a shard's caller, once its lists are answered.
async fn door(shard: &str) -> Door {
    world().await.listed_door(shard, MAPS).await.unwrap()
}

/// A watch that began with initial events, all of them read.
async fn begun(door: &Door, path: &str) -> Watch {
    let mut watch = Watch::open(door, &format!("{path}?{WATCH_LIST}")).await.unwrap();
    watch.begun().await.unwrap();
    watch
}

/// Makes an object in a member, past the router.
async fn make(member: &str, path: &str, object: &Value) {
    let door = world().await.direct_door(member).await.unwrap();
    eventually("it is taken", || async {
        let answer = door.post(path, object).await.unwrap();
        if answer.status == 201 {
            Ok(())
        } else {
            Err(answer.message())
        }
    })
    .await;
}

async fn map(member: &str, namespace: &str, name: &str) {
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    make(member, &format!("/api/v1/namespaces/{namespace}/configmaps"), &object).await;
}

/// What members hold, each in one namespace, past the router; `resource` is a group-version and a plural name.
async fn truth(resource: (&str, &str), places: &[(&str, &str)]) -> Held {
    world().await.truth(resource, places).await.unwrap()
}

async fn own(shard: &str, clusters: Value) {
    world().await.own(shard, clusters).await.unwrap();
}
