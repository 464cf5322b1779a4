//! Kinds without namespaces that one shard of an operator sees alone (`spec.clusterScoped`), on real control planes: what the others are
//! shown, who may name a kind, how it goes from one shard to another, and what is said when nobody works on it.
//!
//! Each test has an operator and a kind of its own.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "also in functions that only tests call"
)]

use std::fs;

use http::Method;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::DeleteParams;
use portolan_crds::ShardingConfig;
use portolan_testbed::eventually;
use portolan_tests::ctl;
use portolan_tests::door::{Door, request};
use portolan_tests::programs::argument;
use portolan_tests::shard::federated;
use portolan_tests::watch::{WATCH_LIST, Watch};
use portolan_tests::world::{HUB, Plan, Shared, World};
use serde_json::{Value, json};

static WORLD: Shared = Shared::const_new();

const PRIORITIES: &str = "/apis/scheduling.k8s.io/v1/priorityclasses";
const CLASSES: &str = "/apis/networking.k8s.io/v1/ingressclasses";
const RUNTIMES: &str = "/apis/node.k8s.io/v1/runtimeclasses";

/// The kind, as a spec names it.
fn kinds(group: &str, resource: &str) -> Value {
    json!({"resources": [{"apiGroups": [group], "resources": [resource]}]})
}

/// Shard `<operator>-a` has `names` alone, if anything, and `<operator>-b` contends with it.
fn operator(operator: &str, names: Option<&Value>) -> String {
    let of = |shard: &str, more: &str| {
        let name = format!("{operator}-{shard}");
        let spec = format!("\nspec:\n  operator: {operator}\n{more}");
        federated(&name, "east", &[("east", &[&*name])]).replace("\nspec:\n", &spec)
    };
    let names = names.map_or(String::new(), |names| format!("  clusterScoped: {names}\n"));
    of("a", &names) + &of("b", "")
}

async fn world() -> &'static World {
    let manifests = [
        operator("shown", Some(&kinds("scheduling.k8s.io", "priorityclasses"))),
        operator("moved", Some(&kinds("networking.k8s.io", "ingressclasses"))),
        operator("left", Some(&kinds("node.k8s.io", "runtimeclasses"))),
    ];
    let plan = Plan {
        members: &["east"],
        namespaces: &[
            "east/shown-a",
            "east/shown-b",
            "east/moved-a",
            "east/moved-b",
            "east/left-a",
            "east/left-b",
        ],
        manifests: &manifests.concat(),
        ..Plan::default()
    };
    World::shared(&WORLD, plan).await
}

async fn door(shard: &str, path: &str) -> Door {
    world().await.listed_door(shard, path).await.unwrap()
}

/// Makes an object past the router.
async fn make(path: &str, object: &Value) {
    let made = world()
        .await
        .direct_door("east")
        .await
        .unwrap()
        .post(path, object)
        .await;
    let made = made.unwrap();
    assert_eq!(made.status, 201, "{}", made.message());
}

async fn send(door: &Door, method: Method, path: &str, body: &str) -> u16 {
    let headers = [("content-type", "application/merge-patch+json")];
    let headers = if method == Method::PATCH { &headers[..] } else { &[] };
    let asked = request(method, path, headers, body.as_bytes());
    door.ask(asked.unwrap()).await.unwrap().status
}

/// What a shard's caller is shown.
async fn names(door: &Door, path: &str) -> Vec<String> {
    let list = door.get(path, &[]).await.unwrap();
    assert_eq!(list.status, 200, "{}", list.message());
    let list = list.json();
    let items = list["items"].as_array().unwrap().iter();
    items
        .map(|item| item["metadata"]["name"].as_str().unwrap().to_owned())
        .collect()
}

/// Waits for a condition of this status, reason and text.
async fn says(shard: &str, condition: &str, (status, reason): (&str, &str), text: &str) {
    let shards: Api<ShardingConfig> = Api::namespaced(world().await.cluster(HUB).client().await.unwrap(), "operators");
    eventually(&format!("{condition} of {shard} is {status}, {reason}"), || async {
        let told = shards.get(shard).await.unwrap().status.unwrap_or_default();
        let found = told.conditions.into_iter().find(|one| one.type_ == condition);
        let holds = found
            .as_ref()
            .is_some_and(|one| one.status == status && one.reason == reason && one.message.contains(text));
        if holds { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
}

fn priority(name: &str) -> Value {
    json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 7})
}

#[tokio::test]
async fn one_shard_sees_a_kind_and_the_others_are_shown_nothing() {
    let (holder, other) = (door("shown-a", PRIORITIES).await, door("shown-b", PRIORITIES).await);
    says(
        "shown-a",
        "ClusterScopedServed",
        ("True", "Ok"),
        "priorityclasses.scheduling.k8s.io",
    )
    .await;
    make(PRIORITIES, &priority("shown-first")).await;
    let all = names(&holder, PRIORITIES).await;
    assert!(
        all.contains(&"shown-first".to_owned()) && all.contains(&"system-node-critical".to_owned()),
        "{all:?}"
    );
    assert_eq!(names(&other, PRIORITIES).await, [""; 0]);
    let path = format!("{PRIORITIES}/shown-first");
    assert_eq!(holder.get(&path, &[]).await.unwrap().status, 200);
    let refused = other.get(&path, &[]).await.unwrap();
    refused
        .expect_status(403, &["shown-first", "operators/shown-b"])
        .unwrap();
    assert_eq!(send(&other, Method::PATCH, &path, "{}").await, 403);
    assert_eq!(send(&other, Method::DELETE, &path, "").await, 403);
    assert_eq!(other.post(PRIORITIES, &priority("shown-no")).await.unwrap().status, 403);
    assert_eq!(
        holder.post(PRIORITIES, &priority("shown-yes")).await.unwrap().status,
        201
    );

    let streamed = format!("{PRIORITIES}?{WATCH_LIST}");
    let (mut seen, mut nothing) = (
        Watch::open(&holder, &streamed).await.unwrap(),
        Watch::open(&other, &streamed).await.unwrap(),
    );
    seen.begun().await.unwrap();
    nothing.begun().await.unwrap();
    // One that the API server ends has a bookmark before, though nothing else was told.
    let version = other.get(PRIORITIES, &[]).await.unwrap().json();
    let version = version["metadata"]["resourceVersion"].as_str().unwrap();
    let short = format!("{PRIORITIES}?timeoutSeconds=5&resourceVersion={version}");
    let mut short = Watch::open(&other, &short).await.unwrap();
    make(PRIORITIES, &priority("shown-later")).await;
    assert_eq!(seen.sees("shown-later").await.unwrap(), "ADDED");
    while short.next().await.unwrap().is_some() {}
    assert!(short.seen.iter().all(|told| told == "BOOKMARK"), "{:?}", short.seen);
    assert!(!short.seen.is_empty(), "it has bookmarks");
    assert!(nothing.seen.iter().all(|told| told == "BOOKMARK"), "{:?}", nothing.seen);
    // It is open still, and shows what comes once the kind is everybody's.
    world()
        .await
        .edit("shown-a", json!({"clusterScoped": null}))
        .await
        .unwrap();
    while !nothing.held.contains_key("shown-later") {
        let event = nothing.next().await.unwrap();
        assert!(
            event.is_some_and(|event| event["type"] != "ERROR"),
            "{:?}",
            nothing.seen
        );
    }
}

fn class(name: &str) -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "IngressClass", "metadata": {"name": name}, "spec": {"controller": "example.com/none"}})
}

/// `portolanctl shards plan` of the giver without the kind and the taker with it.
async fn planned(giver: &str, taker: &str, names: &Value) -> String {
    let client = world().await.cluster(HUB).client().await.unwrap();
    let shards: Api<ShardingConfig> = Api::namespaced(client, "operators");
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("edit.yaml");
    let mut objects = String::new();
    for (shard, names) in [(giver, &Value::Null), (taker, names)] {
        let mut object = serde_json::to_value(shards.get(shard).await.unwrap()).unwrap();
        object["metadata"] = json!({"name": shard, "namespace": "operators"});
        object["status"] = Value::Null;
        object["spec"]["clusterScoped"] = names.clone();
        objects = format!("{objects}{object}\n---\n");
    }
    fs::write(&file, objects).unwrap();
    let (file, dir) = (argument(&file), argument(world().await.fleet.dir()));
    let ended = ctl::portolanctl(&["shards", "plan", "-f", &file, "--dir", &dir])
        .await
        .unwrap();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    ended.stdout
}

/// The taker names it first, and is refused; it takes it once the giver lets go. Asked all the time, the two never see it both.
async fn goes((giver, gives): (&str, &Door), (taker, takes): (&str, &Door), kind: &Value) {
    let told = planned(giver, taker, kind).await;
    let line = format!(
        "ingressclasses.networking.k8s.io: seen by operators/{taker} alone of operator operators/moved, no more by operators/{giver}"
    );
    assert!(told.contains(&line), "{told}");
    world().await.edit(taker, json!({"clusterScoped": kind})).await.unwrap();
    let overlap = format!("ingressclasses.networking.k8s.io (of operators/{giver})");
    says(taker, "Accepted", ("False", "Overlap"), &overlap).await;
    assert!(!names(gives, CLASSES).await.is_empty(), "the giver goes on");
    assert_eq!(names(takes, CLASSES).await, [""; 0]);
    world().await.edit(giver, json!({"clusterScoped": null})).await.unwrap();
    eventually("the taker sees it", || async {
        let taken = !names(takes, CLASSES).await.is_empty();
        // Who had it lost it before.
        let given = names(gives, CLASSES).await.is_empty();
        assert!(given || !taken, "both see it");
        if taken { Ok(()) } else { Err(given) }
    })
    .await;
    says(taker, "Accepted", ("True", "Ok"), "").await;
    says(taker, "ClusterScopedServed", ("True", "Ok"), "ingressclasses").await;
}

#[tokio::test]
async fn a_kind_goes_from_one_shard_to_the_other_and_back() {
    make(CLASSES, &class("moved")).await;
    let (a, b) = (door("moved-a", CLASSES).await, door("moved-b", CLASSES).await);
    let kind = kinds("networking.k8s.io", "ingressclasses");
    assert_eq!((names(&a, CLASSES).await.len(), names(&b, CLASSES).await.len()), (1, 0));
    goes(("moved-a", &a), ("moved-b", &b), &kind).await;
    goes(("moved-b", &b), ("moved-a", &a), &kind).await;
}

#[tokio::test]
async fn a_kind_on_which_nobody_works_is_told() {
    let (holder, other) = (door("left-a", RUNTIMES).await, door("left-b", RUNTIMES).await);
    let class = json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "left"}, "handler": "none"});
    make(RUNTIMES, &class).await;
    assert_eq!(
        (
            names(&holder, RUNTIMES).await.len(),
            names(&other, RUNTIMES).await.len()
        ),
        (1, 0)
    );
    let pods: Api<Pod> = Api::namespaced(world().await.cluster("east").client().await.unwrap(), "operators");
    let now = DeleteParams::default().grace_period(0);
    let of = kube::api::ListParams::default().labels("shard=left-a");
    pods.delete_collection(&now, &of).await.unwrap();
    says(
        "left-a",
        "ClusterScopedServed",
        ("False", "NoCallers"),
        "nobody works on runtimeclasses.node.k8s.io",
    )
    .await;
    assert_eq!(names(&other, RUNTIMES).await, [""; 0], "it stays the holder's");
    // Nobody names it any more.
    let client = world().await.cluster(HUB).client().await.unwrap();
    let shards: Api<ShardingConfig> = Api::namespaced(client, "operators");
    shards.delete("left-a", &DeleteParams::default()).await.unwrap();
    eventually("the other sees it", || async {
        let seen = names(&other, RUNTIMES).await;
        if seen == ["left"] { Ok(()) } else { Err(seen) }
    })
    .await;
}
