//! The merged view: a shard's callers see its namespaces, wherever they are, as one cluster. Here is what one member
//! answers, and who that is; lists and watches of several are in `federated_lists` and `federated_watches`.
//!
//! Every owned namespace exists in both members, and in each a ConfigMap `where` tells which one it is.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "also in functions that only tests call"
)]

#[path = "merged/collections.rs"]
mod collections;
#[path = "merged/leases.rs"]
mod leases;
#[path = "merged/limits.rs"]
mod limits;
#[path = "merged/reviews.rs"]
mod reviews;
#[path = "merged/routing.rs"]
mod routing;
#[path = "merged/told.rs"]
mod told;

use portolan_tests::shard::federated;
use portolan_tests::world::{Plan, Shared, World};
use serde_json::json;
use tokio::sync::OnceCell;

static WORLD: Shared = Shared::const_new();
static MARKED: OnceCell<()> = OnceCell::const_new();

const NAMESPACES: [&str; 10] = [
    "ma-1", "ma-3", "mb-1", "mb-2", "mc-1", "mc-2", "md-1", "me-1", "mf-1", "mg-1",
];

fn manifests() -> String {
    let audit = federated("audit", "east", &[("east", &["md-1"]), ("west", &[])])
        .replace("primaryCluster: east", "primaryCluster: west\n  enforcement: Audit")
        .replace("    namespaces: []\n", "    namespaces: [md-2]\n");
    let limits = "  limits:\n  - relateResources:\n    - apiGroups: ['']\n      resources: [configmaps]\n    \
                  selector: {matchLabels: {app: foo}}\n  clusters:\n";
    [
        federated("alpha", "east", &[("east", &["ma-1"]), ("west", &["ma-3"])]),
        federated("beta", "east", &[("east", &["mb-1"]), ("west", &["mb-2"])]),
        federated("gamma", "east", &[("east", &["mc-1", "mc-2"])]),
        audit,
        federated("limited", "east", &[("east", &["me-1"])]).replace("  clusters:\n", limits),
        federated("giver", "east", &[("east", &["mf-1"])]),
        federated("both", "east", &[("east", &["mh-1"]), ("west", &["mh-2"])]).replace(
            "callerClusters: [east]\n  primaryCluster: east",
            "callerClusters: [east, west]\n  primaryCluster: west",
        ),
        federated("taker", "east", &[("east", &["mg-1"])]),
    ]
    .concat()
}

async fn world() -> &'static World {
    let pairs: Vec<String> = ["east", "west"]
        .iter()
        .flat_map(|member| NAMESPACES.iter().map(move |namespace| format!("{member}/{namespace}")))
        .collect();
    let pairs: Vec<&str> = pairs.iter().map(String::as_str).collect();
    let manifests = manifests();
    let plan = Plan {
        members: &["east", "west"],
        namespaces: &pairs,
        manifests: &manifests,
        ..Plan::default()
    };
    let world = World::shared(&WORLD, plan).await;
    MARKED.get_or_init(|| mark(world)).await;
    world
}

/// Writes the ConfigMaps that tell where they are; also into the callers' own namespace.
async fn mark(world: &World) {
    for member in ["east", "west"] {
        let door = world.direct_door(member).await.unwrap();
        for namespace in NAMESPACES.iter().chain(&["operators", "default"]) {
            let object = json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "where", "labels": {"app": "foo"}},
                "data": {"cluster": member},
            });
            let path = format!("/api/v1/namespaces/{namespace}/configmaps");
            assert_eq!(door.post(&path, &object).await.unwrap().status, 201);
        }
    }
}
