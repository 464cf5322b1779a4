//! Several routers for the same callers: who has its place from one goes on at another, is told to wait where that one
//! cannot know enough, and never reads an older truth there.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "also in functions that only tests call"
)]

#[path = "federated_routers/aged.rs"]
mod aged;
#[path = "federated_routers/forgotten.rs"]
mod forgotten;
#[path = "federated_routers/gate.rs"]
mod gate;

use kube::Api;
use kube::api::{Patch, PatchParams};
use portolan_crds::ShardingConfig;
use portolan_testbed::eventually;
use portolan_tests::daemon::Daemon;
use portolan_tests::door::Door;
use portolan_tests::programs::admin_get;
use portolan_tests::routers;
use portolan_tests::shard::federated;
use portolan_tests::watch::Watch;
use portolan_tests::world::{Plan, World};
use serde_json::{Value, json};

use self::gate::Gate;

const MAPS: &str = "/api/v1/configmaps";

/// Shard `ops` has `ops-e` in east, where its caller is, and `ops-w` in west, where `ops-x` may come to it.
async fn start() -> World {
    start_with(Plan::default()).await
}

/// As [`start`], otherwise as planned.
async fn start_with(plan: Plan<'_>) -> World {
    let manifests = federated("ops", "east", &[("east", &["ops-e"]), ("west", &["ops-w"])]);
    let plan = Plan {
        members: &["east", "west"],
        namespaces: &["east/ops-e", "west/ops-w", "west/ops-x"],
        manifests: &manifests,
        ..plan
    };
    World::start(plan).await.unwrap()
}

/// One more router of the fleet, which finds the hub at `hub`.
async fn router(world: &World, name: &str, hub: &str, env: &[(&str, &str)]) -> Daemon {
    let router = routers::start(world, name, hub, env).await.unwrap();
    router.ready().await;
    router
}

/// The caller's way in by another router.
async fn door_of(router: &Daemon, door: &Door) -> Door {
    let mut door = door.clone();
    router.bind().clone_into(&mut door.address);
    eventually("lists are answered", || async {
        let answer = door.get(MAPS, &[]).await.map_err(|error| error.to_string())?;
        (answer.status == 200).then_some(()).ok_or(answer.message())
    })
    .await;
    door
}

fn hub_of(world: &World) -> String {
    routers::hub_of(world).unwrap()
}

/// Makes a ConfigMap past the routers; returns its version.
async fn make(world: &World, member: &str, namespace: &str, name: &str) -> String {
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    let path = format!("/api/v1/namespaces/{namespace}/configmaps");
    let door = world.direct_door(member).await.unwrap();
    let answer = door.post(&path, &object).await.unwrap();
    assert_eq!(answer.status, 201, "{}", answer.message());
    answer.json()["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .to_owned()
}

async fn position(door: &Door) -> String {
    let list = door.get(MAPS, &[]).await.unwrap().json();
    list["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

async fn sees(watch: &mut Watch, name: &str) {
    watch
        .until(name, |event| event["object"]["metadata"]["name"] == name)
        .await
        .unwrap();
}

/// The name of the first event's type, of a watch from there.
async fn first_event(door: &Door, version: &str) -> Value {
    let mut watch = Watch::open(door, &format!("{MAPS}?resourceVersion={version}"))
        .await
        .unwrap();
    watch.next().await.unwrap().unwrap()
}

#[tokio::test]
async fn who_has_seen_a_newer_view_waits_for_a_router_that_is_cut_off() {
    let world = start().await;
    let first = world.listed_door("ops", MAPS).await.unwrap();
    let gate = Gate::open(&hub_of(&world)).await;
    let second = router(&world, "second", &gate.address, &[]).await;
    let other = door_of(&second, &first).await;
    let before = position(&first).await;
    assert!(before.starts_with('2'), "{before}");

    gate.shut();
    make(&world, "west", "ops-x", "newcomer").await;
    let clusters = json!({"spec": {"clusters": [
        {"name": "east", "namespaces": ["ops-e"]}, {"name": "west", "namespaces": ["ops-w", "ops-x"]},
    ]}});
    let shards: Api<ShardingConfig> = Api::namespaced(world.cluster("hub").client().await.unwrap(), "operators");
    let patched = shards
        .patch("ops", &PatchParams::default(), &Patch::Merge(&clusters))
        .await;
    patched.unwrap();
    eventually("the first router has the new namespace", || async {
        let list = first.get(MAPS, &[]).await.unwrap();
        String::from_utf8_lossy(&list.body).contains("newcomer").then_some(())
    })
    .await;
    let newer = position(&first).await;
    assert!(newer > before && newer.len() == before.len());

    for query in [
        format!("resourceVersion={newer}"),
        format!("resourceVersion={newer}&resourceVersionMatch=Exact"),
        format!("resourceVersion={newer}&watch=true"),
    ] {
        let answer = other.get(&format!("{MAPS}?{query}"), &[]).await.unwrap();
        assert_eq!(answer.status, 429, "{query}: {}", answer.message());
        assert_eq!(answer.header("retry-after"), "2");
    }
    admin_get(second.admin(), "/readyz").await.unwrap();
    assert_eq!(
        other.get(MAPS, &[]).await.unwrap().status,
        200,
        "who has seen nothing newer is served"
    );

    gate.let_through();
    let path = format!("{MAPS}?resourceVersion={newer}");
    eventually("the second router has caught up", || async {
        let list = other.get(&path, &[]).await.unwrap();
        let whole = String::from_utf8_lossy(&list.body).contains("newcomer");
        if list.status == 200 {
            // Never the older truth in between.
            assert!(whole);
        }
        whole.then_some(())
    })
    .await;
    let mut watch = Watch::open(&other, &path).await.unwrap();
    make(&world, "west", "ops-x", "later").await;
    sees(&mut watch, "later").await;
    raw_versions_say_nothing(&world, [&first, &other]).await;
}

/// Of an object's version neither of two routers knows which stream of which of them sent it.
async fn raw_versions_say_nothing(world: &World, doors: [&Door; 2]) {
    let start = position(doors[0]).await;
    let mut watch = Watch::open(doors[0], &format!("{MAPS}?resourceVersion={start}"))
        .await
        .unwrap();
    let version = make(world, "east", "ops-e", "raw").await;
    sees(&mut watch, "raw").await;
    drop(watch);
    for door in doors {
        let event = first_event(door, &version).await;
        assert_eq!(
            (&event["type"], &event["object"]["code"]),
            (&"ERROR".into(), &410.into()),
            "{event}"
        );
    }
}

#[tokio::test]
async fn clients_move_between_routers_of_which_one_reads_format_1_only() {
    let world = start().await;
    let first = world.listed_door("ops", MAPS).await.unwrap();
    assert!(position(&first).await.starts_with('2'));
    let older = router(
        &world,
        "older",
        &hub_of(&world),
        &[("PORTOLAN_CURSOR_FORMAT_1", "true")],
    )
    .await;
    let older = door_of(&older, &first).await;
    let of_before = position(&first).await;
    eventually("all write what all read", || async {
        position(&first).await.starts_with('1').then_some(())
    })
    .await;
    let mut doors = [&first, &older];
    let mut version = position(&first).await;
    for round in 0..4 {
        doors.reverse();
        let mut watch = Watch::open(doors[0], &format!("{MAPS}?resourceVersion={version}"))
            .await
            .unwrap();
        let [east, west] = ["e", "w"].map(|member| format!("moved-{member}-{round}"));
        make(&world, "east", "ops-e", &east).await;
        sees(&mut watch, &east).await;
        make(&world, "west", "ops-w", &west).await;
        sees(&mut watch, &west).await;
        let bookmark = watch
            .until("a bookmark", |event| event["type"] == "BOOKMARK")
            .await
            .unwrap();
        bookmark["object"]["metadata"]["resourceVersion"]
            .as_str()
            .unwrap()
            .clone_into(&mut version);
        assert!(
            !watch.seen.iter().any(|event| event.starts_with("ERROR")),
            "{:?}",
            watch.seen
        );
    }
    // Of either format, who writes the one reads both.
    if of_before.starts_with('2') {
        assert_eq!(first_event(&first, &of_before).await["type"], "ADDED");
    }
}
