//! `examples/two-operators.yaml` as it is, with the two programs that it is of: each does its work in the same namespaces of both
//! members, and leads by a Lease of its own.

use std::process::Stdio;

use anyhow::ensure;
use portolan_testbed::eventually;
use portolan_tests::programs::program;
use portolan_tests::world::{Plan, World};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

const EXAMPLE: &str = include_str!("../../../examples/two-operators.yaml");
const KINDS: [&str; 2] = [
    include_str!("../../../examples/greeting-crd.yaml"),
    include_str!("../../../examples/counter-crd.yaml"),
];
const PLACES: [(&str, &str); 2] = [("east", "shop-a"), ("west", "shop-b")];
const PROGRAMS: [(&str, &str); 2] = [("greetings", "greeting-operator"), ("counters", "counter-operator")];

async fn world() -> World {
    // Its namespace is made with its callers.
    let (_, manifests) = EXAMPLE.split_once("---\n").unwrap();
    let plan = Plan {
        members: &["east", "west"],
        namespaces: &["east/shop-a", "west/shop-b"],
        manifests,
        ..Plan::default()
    };
    let world = World::start(plan).await.unwrap();
    for (member, kind) in PLACES.iter().flat_map(|(member, _)| KINDS.map(|kind| (member, kind))) {
        world.direct(member).ok_with(&["apply", "-f", "-"], kind).await.unwrap();
    }
    world
}

/// A replica with nothing but a kubeconfig; killed when dropped.
async fn start(world: &World, (shard, name): (&str, &str)) -> Child {
    let (kubectl, kind) = (world.merged(shard), format!("{shard}.example.com"));
    let listed = ["get", &kind, "-A"];
    eventually("its kind is listed", || kubectl.ok(&listed)).await;
    Command::new(program(name).unwrap())
        .env("KUBECONFIG", world.fleet.merged_kubeconfig(shard))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// Waits until a member has an object of which this holds.
async fn has(world: &World, (member, namespace): (&str, &str), what: [&str; 2], is: impl Fn(&Value) -> bool) {
    let [kind, name] = what;
    let kubectl = world.direct(member);
    eventually(&format!("{kind} {name} in {namespace} of {member}"), || async {
        let object = kubectl.ok(&["get", "-o", "json", "-n", namespace, kind, name]).await?;
        let object: Value = serde_json::from_str(&object)?;
        ensure!(is(&object), "{object}");
        anyhow::Ok(())
    })
    .await;
}

/// Each Counter has counted all that is there.
async fn all_is_counted(world: &World) {
    for (member, namespace) in PLACES {
        eventually(&format!("all is counted in {namespace}"), || async {
            let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
            let counter = format!("/apis/example.com/v1/namespaces/{namespace}/counters/all");
            let direct = world.direct_door(member).await?;
            let maps = direct.get(&maps, &[]).await?.json();
            let counter = direct.get(&counter, &[]).await?.json();
            let (there, counted) = (maps["items"].as_array().map(Vec::len), &counter["status"]["configMaps"]);
            ensure!(
                there.is_some() && json!(there) == *counted,
                "{there:?} are there: {counter}"
            );
            anyhow::Ok(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_programs_work_in_the_same_namespaces() {
    let world = world().await;
    let mut running = Vec::new();
    for one in PROGRAMS {
        running.push(start(&world, one).await);
    }
    for (_, namespace) in PLACES {
        let greeting = json!({
            "apiVersion": "example.com/v1", "kind": "Greeting", "metadata": {"name": "hello", "namespace": namespace},
            "spec": {"message": "good morning", "replicas": 2},
        });
        let counter = json!({
            "apiVersion": "example.com/v1", "kind": "Counter", "metadata": {"name": "all", "namespace": namespace},
        });
        for (shard, object) in [("greetings", greeting), ("counters", counter)] {
            let merged = world.merged(shard);
            merged
                .ok_with(&["apply", "-f", "-"], &object.to_string())
                .await
                .unwrap();
        }
    }
    for place in PLACES {
        let said = |map: &Value| map["data"]["message"] == "good morning";
        has(&world, place, ["configmap", "hello"], said).await;
        let is_applied = |greeting: &Value| {
            let mut conditions = greeting["status"]["conditions"].as_array().into_iter().flatten();
            conditions.any(|condition| condition["type"] == "Applied" && condition["status"] == "True")
        };
        has(&world, place, ["greeting", "hello"], is_applied).await;
    }
    all_is_counted(&world).await;
    for (shard, name) in PROGRAMS {
        let lease = format!("{name}---{shard}");
        let is_held = |lease: &Value| !lease["spec"]["holderIdentity"].as_str().unwrap_or_default().is_empty();
        has(&world, ("east", "operators"), ["lease", &lease], is_held).await;
    }
    // What the one takes away, the other counts no more.
    for (_, namespace) in PLACES {
        let delete = ["delete", "greeting", "hello", "-n", namespace, "--timeout=60s"];
        world.merged("greetings").ok(&delete).await.unwrap();
        let make = ["create", "configmap", "more", "-n", namespace];
        world.merged("counters").ok(&make).await.unwrap();
    }
    all_is_counted(&world).await;
    for program in &mut running {
        assert!(program.try_wait().unwrap().is_none(), "a program has ended");
    }
}
