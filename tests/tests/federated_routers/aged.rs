//! Clients that are there already find a router that is started later, behind one address: their connections are told to go when
//! they are old, and nobody notices but the routers.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt as _};
use portolan_testbed::eventually;
use portolan_tests::balancer::Balancer;
use portolan_tests::daemon::Daemon;
use portolan_tests::go_client::GoClient;
use portolan_tests::programs::admin_get;
use portolan_tests::watcher::{Objects, Watcher};
use portolan_tests::world::{Plan, World};
use serde_json::json;
use tokio::task::JoinSet;

use super::{MAPS, hub_of, make, router, start_with};

/// Some connections' worth of time is waited for.
const ENV: [(&str, &str); 1] = [("PORTOLAN_MAX_CONNECTION_AGE", "2s")];
/// As informers watch for minutes.
const WATCH_SECONDS: u32 = 4;
const READ: &str = "/api/v1/namespaces/ops-e/configmaps/read";

/// Of the shard's caller, by this address.
fn kubeconfig(world: &World, bind: &str, address: &str) -> PathBuf {
    let text = std::fs::read_to_string(world.fleet.merged_kubeconfig("ops")).unwrap();
    let file = world.fleet.dir().join("aged.kubeconfig");
    std::fs::write(&file, text.replace(bind, address)).unwrap();
    file
}

/// Writes one object after the other; every one must be taken.
async fn write(client: Client, stop: Arc<AtomicBool>) -> Objects {
    let objects: Api<ConfigMap> = Api::namespaced(client, "ops-w");
    let mut written = Objects::new();
    while !stop.load(Ordering::SeqCst) {
        let object = json!({"metadata": {"name": format!("written-{}", written.len())}});
        let object = serde_json::from_value(object).unwrap();
        let object = objects.create(&PostParams::default(), &object).await.unwrap();
        written.insert(
            format!("ops-w/{}", object.name_any()),
            object.resource_version().unwrap(),
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    written
}

/// Reads one object again and again; every read must be answered.
async fn read(mut client: GoClient, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::SeqCst) {
        client.tell("get 100").await.unwrap();
        let said = client.wait("answers", |line| line["type"] == "got" || line["type"] == "error");
        let said = said.await.unwrap();
        assert_eq!(said["type"], "got", "{said}");
    }
}

/// Waits until a router has answered so many requests of each kind that clients make.
async fn has_part(router: &Daemon, least: u64) {
    eventually("it has answered some of all", || async {
        let metrics = admin_get(router.admin(), "/metrics").await.unwrap();
        let finished = metrics
            .lines()
            .filter(|line| line.starts_with("portolan_router_requests_finished_total{"));
        let answered = |verb: &str| {
            let verb = format!("verb=\"{verb}\"");
            let of_verb = finished.clone().filter(|line| line.contains(&verb));
            let counts = of_verb.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
            counts.sum::<u64>()
        };
        let answered = ["get", "create", "watch"].map(answered);
        anyhow::ensure!(answered.iter().all(|count| *count >= least), "{answered:?}");
        anyhow::Ok(())
    })
    .await;
}

#[tokio::test]
async fn connections_move_to_a_router_that_came_later_and_no_request_fails() {
    let world = start_with(Plan {
        env: &ENV,
        ..Plan::default()
    })
    .await;
    world.listed_door("ops", MAPS).await.unwrap();
    make(&world, "east", "ops-e", "read").await;
    let first = world.fleet.take_over("router").await.unwrap();
    let balancer = Balancer::start(vec![first.bind().to_owned()]).await.unwrap();
    let kubeconfig = kubeconfig(&world, first.bind(), &balancer.address);

    let seconds = WATCH_SECONDS.to_string();
    let informer = ["informer", "--watch-seconds", &seconds];
    let mut informer = GoClient::synced(&kubeconfig, &informer).await.unwrap();
    let client = world.client(kubeconfig.clone(), None).await.unwrap();
    let config = watcher::Config::default().timeout(WATCH_SECONDS);
    let watcher = Watcher::start(Api::all(client.clone()), config);
    let reads = GoClient::start(&kubeconfig, &["gets", "--connections", "4", "--at-once", "4", READ]).unwrap();
    let stop = Arc::<AtomicBool>::default();
    let (mut writing, mut reading) = (JoinSet::new(), JoinSet::new());
    writing.spawn(write(client, stop.clone()));
    reading.spawn(read(reads, stop.clone()));
    has_part(&first, 1).await;

    let second = router(&world, "second", &hub_of(&world), &ENV).await;
    balancer.serve_by(vec![first.bind().to_owned(), second.bind().to_owned()]);
    has_part(&second, 3).await;

    stop.store(true, Ordering::SeqCst);
    reading.join_next().await.unwrap().unwrap();
    let written = writing.join_next().await.unwrap().unwrap();
    assert!(written.len() > 100, "{}", written.len());
    let holds = |held: Objects| written.iter().all(|(key, version)| held.get(key) == Some(version));
    eventually("kube-rs holds all that was written", || async {
        holds(watcher.seen().held.clone()).then_some(())
    })
    .await;
    {
        let seen = watcher.seen();
        assert!(seen.errors.is_empty() && seen.deleted.is_empty(), "{seen:?}");
        assert_eq!(seen.lists, 1);
    }
    let mut dump = informer.dump().await.unwrap();
    for _ in 0..100 {
        let held = dump.items.iter().map(|item| (item.key.clone(), item.rv.clone()));
        if holds(held.collect()) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        dump = informer.dump().await.unwrap();
    }
    let held = dump.items.iter().map(|item| (item.key.clone(), item.rv.clone()));
    assert!(holds(held.collect()), "{:?}", dump.counts);
    assert_eq!(dump.count("list") + dump.count("watch-list"), 1, "{:?}", dump.counts);
    for line in informer.seen() {
        let wrong =
            ["error", "delete"].contains(&line["type"].as_str().unwrap_or_default()) || !line["error"].is_null();
        assert!(!wrong, "{line}");
    }
}
