//! Discovery and OpenAPI of the merged view on real control planes: as one API server's where the members agree, the union
//! where they do not, and what every client makes of it.
//!
//! `ports` are in west only. `ships` have one version in common, `boats` none.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "also in functions that only tests call"
)]

#[path = "federated_discovery/kinds.rs"]
mod kinds;
#[path = "federated_discovery/openapi.rs"]
mod openapi;
#[path = "federated_discovery/same.rs"]
mod same;

use portolan_testbed::eventually;
use portolan_tests::door::Door;
use portolan_tests::kubectl::Kubectl;
use portolan_tests::shard::federated;
use portolan_tests::world::{Plan, Shared, World};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

static WORLD: Shared = Shared::const_new();
static SERVED: OnceCell<()> = OnceCell::const_new();

/// API group of all kinds of these tests.
const GROUP: &str = "disco.test";
/// What kubectl asks for.
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

async fn world() -> &'static World {
    let manifests = federated("alpha", "east", &[("east", &["da-1"]), ("west", &["da-3"])]);
    let plan = Plan {
        members: &["east", "west"],
        namespaces: &["east/da-1", "west/da-3"],
        manifests: &manifests,
        ..Plan::default()
    };
    let world = World::shared(&WORLD, plan).await;
    SERVED.get_or_init(|| serve(world)).await;
    world
}

/// A definition of `plural`, served in these versions, whose spec has one word.
fn definition(plural: &str, kind: &str, versions: &[&str]) -> Value {
    let schema = json!({"type": "object", "properties": {"spec": {
        "type": "object",
        "description": format!("What a {kind} is to be."),
        "properties": {"depth": {"type": "integer", "description": format!("Depth of the {kind} in metres.")}},
    }}});
    let versions: Vec<_> = versions
        .iter()
        .enumerate()
        .map(|(at, name)| json!({"name": name, "served": true, "storage": at == 0, "schema": {"openAPIV3Schema": schema}}))
        .collect();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{GROUP}")},
        "spec": {
            "group": GROUP, "scope": "Namespaced",
            "names": {"plural": plural, "singular": plural.trim_end_matches('s'), "kind": kind, "listKind": format!("{kind}List")},
            "versions": versions,
        },
    })
}

/// Defines a kind in a member and waits until the member's own discovery has it.
async fn define(world: &World, member: &str, definition: &Value) {
    let door = world.direct_door(member).await.unwrap();
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let answer = door.post(path, definition).await.unwrap();
    assert!(matches!(answer.status, 201 | 409), "{}", answer.message());
    let plural = definition["spec"]["names"]["plural"].as_str().unwrap();
    eventually(&format!("{member} discovers {plural}"), || async {
        let found = resources(&door).await;
        if found.iter().any(|name| name.ends_with(&format!("/{plural}"))) {
            Ok(())
        } else {
            Err(found.len())
        }
    })
    .await;
}

async fn serve(world: &World) {
    for (member, plural, kind, versions) in [
        ("west", "ports", "Port", &["v1"][..]),
        ("east", "ships", "Ship", &["v2", "v1"]),
        ("west", "ships", "Ship", &["v1", "v1beta1"]),
        ("east", "boats", "Boat", &["v2"]),
        ("west", "boats", "Boat", &["v1"]),
    ] {
        define(world, member, &definition(plural, kind, versions)).await;
    }
    // The router looks again after two seconds at the latest.
    let door = world.merged_door("alpha").await.unwrap();
    eventually("the router has seen all", || async {
        let found = resources(&door).await;
        let ours: Vec<_> = found.into_iter().filter(|name| name.starts_with(GROUP)).collect();
        if ours == ["disco.test/v1/ships", "disco.test/v1/ports"] {
            Ok(())
        } else {
            Err(ours)
        }
    })
    .await;
    // The members' OpenAPI follows their discovery, in its own time.
    eventually("both editions of OpenAPI have them", || async {
        let second = door.get("/openapi/v2", &[]).await.unwrap().json();
        let third = door.get("/openapi/v3/apis/disco.test/v1", &[]).await.unwrap().json();
        for kind in ["test.disco.v1.Port", "test.disco.v1.Ship"] {
            let in_second = second["definitions"][kind].is_object();
            if !in_second || !third["components"]["schemas"][kind].is_object() {
                return Err((kind, in_second));
            }
        }
        Ok(())
    })
    .await;
}

/// `group/version/resource` of `/apis`.
async fn resources(door: &Door) -> Vec<String> {
    let answer = door.get("/apis", &[("accept", AGGREGATED)]).await.unwrap();
    let list = answer.json();
    let each = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let mut all = Vec::new();
    for group in each(&list, "items") {
        for version in each(&group, "versions") {
            for resource in each(&version, "resources") {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                all.push(format!(
                    "{}/{}/{}",
                    text(&group["metadata"]["name"]),
                    text(&version["version"]),
                    text(&resource["resource"])
                ));
            }
        }
    }
    all
}

/// kubectl on the merged view with a cache of its own: it keeps what it discovers for hours.
async fn kubectl(cache: &tempfile::TempDir) -> Kubectl {
    let cache = cache.path().display();
    world().await.merged("alpha").with(&format!("--cache-dir={cache}"))
}
