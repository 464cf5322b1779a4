//! A ledger of before there were operators, and its switch.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::runtime::watcher;
use portolan_crds::labels::{LABEL_LEDGER, SYSTEM_NAMESPACE};
use portolan_crds::ledger::{Content, Record, config_map};
use portolan_crds::{Contention, OperatorName};
use portolan_testbed::eventually;
use portolan_tests::ctl;
use portolan_tests::daemon::Daemon;
use portolan_tests::door::Door;
use portolan_tests::programs::argument;
use portolan_tests::watch::Watch;
use portolan_tests::watcher::Watcher;
use portolan_tests::world::{HUB, Plan, World};

use crate::scene::{SHOP, Writer, map, of, open, until};

const MAPS: &str = "/api/v1/configmaps";

/// What a hub of before would have written: `rollouts-a` has what it has, and of `prometheus` nothing is in force.
async fn of_before(world: &World) {
    let maps: Api<ConfigMap> = Api::namespaced(world.cluster(HUB).client().await.unwrap(), SYSTEM_NAMESPACE);
    for map in maps.list(&ListParams::default().labels(LABEL_LEDGER)).await.unwrap() {
        let name = map.metadata.name.clone().unwrap();
        let mut record = Record::decode(&name, map.data.as_ref().unwrap()).unwrap();
        match &mut record.content {
            Content::Root(root) => {
                root.contention = Contention::Fleet;
                root.specs.retain(|shard| shard.name() != "prometheus");
            }
            Content::Chunk(chunk) => {
                let pairs = std::mem::take(&mut chunk.pairs);
                for (namespace, of_namespace) in pairs {
                    let kept = of_namespace.into_values();
                    let mut kept =
                        kept.filter(|pair| pair.owner.as_ref().is_some_and(|owner| owner.name() != "prometheus"));
                    if let Some(pair) = kept.next() {
                        chunk.add(&namespace, OperatorName::default(), pair);
                    }
                }
            }
            Content::Spec(spec) if spec.shard.name() == "prometheus" => {
                maps.delete(&name, &DeleteParams::default()).await.unwrap();
                continue;
            }
            Content::Spec(_) => {}
        }
        let data = record.encode();
        assert!(data["record.json"].contains("\"format\":1"), "{data:?}");
        let written = config_map(&name, data, map.metadata.resource_version);
        maps.replace(&name, &PostParams::default(), &written).await.unwrap();
    }
}

fn is(so: bool, seen: String) -> Result<(), String> {
    if so { Ok(()) } else { Err(seen) }
}

/// Two operators that want one namespace, in a ledger of before: the second is refused. And the hub, which ends when it is dropped.
async fn world_of_before() -> (World, Daemon) {
    let manifests = [
        of("rollouts", "rollouts-a", &[("east", &["shop-a"])]),
        of("prometheus", "prometheus", &[("east", &["shop-a"])]),
    ];
    let plan = Plan {
        members: &["east"],
        namespaces: &["east/shop-a"],
        manifests: &manifests.concat(),
        ..Plan::default()
    };
    let world = World::start(plan).await.unwrap();
    let mut hub = world.fleet.take_over("hub").await.unwrap();
    hub.kill().await.unwrap();
    of_before(&world).await;
    hub.start_again().await.unwrap();
    let refused = until(&world, "prometheus", "Accepted", Some("False")).await;
    assert!(
        refused.contains("operators/rollouts-a") && refused.contains("portolanctl shards separate"),
        "{refused}"
    );
    for shard in ["rollouts-a", "prometheus"] {
        let waits = until(&world, shard, "OperatorSeparate", Some("False")).await;
        assert!(waits.contains("portolanctl shards separate"), "{waits}");
    }
    (world, hub)
}

/// A place to go on from.
async fn cursor(door: &Door, path: &str) -> String {
    let list = door.get(path, &[]).await.unwrap().json();
    list["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

/// A fleet of before: its names wait, until somebody has it switched; nobody who has something notices.
#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_of_before_is_switched_while_its_owner_writes_and_watches() {
    let (world, _hub) = world_of_before().await;
    let (first, second) = (
        world.merged_door("rollouts-a").await.unwrap(),
        world.merged_door("prometheus").await.unwrap(),
    );
    let client = world
        .client(world.fleet.merged_kubeconfig("rollouts-a"), None)
        .await
        .unwrap();
    let watcher = Watcher::start(Api::namespaced(client, "shop-a"), watcher::Config::default());
    let writer = Writer::start(first.clone()).await;
    writer.writes_on().await;
    let object = map("of-the-second");
    // Its router may not have heard yet that the ledger was made one of before.
    eventually("the second may not write", || async {
        let answer = second.post(&format!("{SHOP}?dryRun=All"), &object).await.unwrap();
        is(answer.status != 201, answer.message())
    })
    .await;
    let dir = argument(world.fleet.dir());
    let separate = ["shards", "separate", "--dir", &dir];
    let shown = ctl::ok(&separate).await.unwrap();
    let row: Vec<_> = shown.lines().nth(1).unwrap_or_default().split_whitespace().collect();
    let second_owner = "east shop-a operators/rollouts-a operators/prometheus prometheus";
    assert_eq!(row.join(" "), second_owner, "{shown}");
    let before = open(&world).await;
    let cursors = [cursor(&first, SHOP).await, cursor(&first, MAPS).await];
    ctl::ok(&[&separate[..], &["--yes"]].concat()).await.unwrap();
    eventually("the second writes", || async {
        let answer = second.post(SHOP, &object).await.unwrap();
        is(answer.status == 201, answer.message())
    })
    .await;
    for shard in ["rollouts-a", "prometheus"] {
        until(&world, shard, "Accepted", Some("True")).await;
        until(&world, shard, "OperatorSeparate", None).await;
    }
    writer.writes_on().await;
    eventually("the watch tells of the second's", || async {
        let seen = watcher.seen();
        is(seen.held.contains_key("shop-a/of-the-second"), format!("{seen:?}"))
    })
    .await;
    let (lists, errors) = {
        let seen = watcher.seen();
        (seen.lists, seen.errors.clone())
    };
    assert_eq!((lists, errors), (1, Vec::new()), "no watch ends");
    for (path, cursor) in [SHOP, MAPS].into_iter().zip(cursors) {
        let mut watch = Watch::open(&first, &format!("{path}?resourceVersion={cursor}"))
            .await
            .unwrap();
        watch.sees("shop-a/of-the-second").await.unwrap();
        assert_eq!(watch.count("ERROR"), 0, "{:?}", watch.seen);
    }
    // Of the second's epoch in the ledger that was made one of before nothing is known any more.
    let after = open(&world).await;
    let stays = before.iter().any(|epoch| after.contains(epoch));
    assert!(stays && after.len() <= 2, "the owner's of {before:?} stays: {after:?}");
    assert_eq!(writer.end().await, [""; 0], "of who had it");
    assert!(ctl::ok(&separate).await.unwrap().contains("already"));
}
