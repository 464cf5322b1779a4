//! Several programs that are sharded work in the same namespaces: what one of them hands over is nothing to the others.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "also in functions that only tests call"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::runtime::watcher;
use portolan_crds::labels::{LABEL_LEDGER, SYSTEM_NAMESPACE};
use portolan_crds::ledger::{Content, Record, config_map};
use portolan_crds::{Contention, OperatorName, ShardingConfig};
use portolan_testbed::eventually;
use portolan_tests::ctl;
use portolan_tests::daemon::Daemon;
use portolan_tests::door::{Door, request};
use portolan_tests::programs::argument;
use portolan_tests::shard::federated;
use portolan_tests::watcher::Watcher;
use portolan_tests::world::{HUB, Plan, World};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

const SHOP: &str = "/api/v1/namespaces/shop-a/configmaps";
const MERGE: [(&str, &str); 1] = [("content-type", "application/merge-patch+json")];
const MOVES: usize = 4;

/// `name` is a shard of `operator`.
fn of(operator: &str, name: &str, owns: &[(&str, &[&str])]) -> String {
    federated(name, "east", owns).replace("\nspec:\n", &format!("\nspec:\n  operator: {operator}\n"))
}

async fn world() -> World {
    let manifests = [
        of("rollouts", "rollouts-a", &[("east", &["shop-a", "ra-home"])]),
        of("rollouts", "rollouts-b", &[("east", &["rb-home"])]),
        of("prometheus", "prometheus", &[("east", &["shop-a"])]),
    ];
    let plan = Plan {
        members: &["east"],
        namespaces: &["east/shop-a", "east/ra-home", "east/rb-home"],
        manifests: &manifests.concat(),
        ..Plan::default()
    };
    World::start(plan).await.unwrap()
}

async fn condition(world: &World, shard: &str, of: &str) -> Option<(String, String)> {
    let shards: Api<ShardingConfig> = Api::namespaced(world.cluster(HUB).client().await.unwrap(), "operators");
    let status = shards.get(shard).await.unwrap().status.unwrap_or_default();
    let mut found = status.conditions.into_iter().filter(|condition| condition.type_ == of);
    found.next().map(|condition| (condition.status, condition.message))
}

async fn all_are_fenced(world: &World) {
    for shard in ["rollouts-a", "rollouts-b", "prometheus"] {
        eventually(&format!("handovers of {shard} are fenced"), || async {
            let found = condition(world, shard, "HandoverFenced").await;
            let holds = found.as_ref().is_some_and(|(status, _)| status == "True");
            if holds { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
    }
}

/// The epochs of shop-a that the member takes.
async fn open(world: &World) -> Vec<u64> {
    let read = world.direct_door("east").await.unwrap();
    let read = read.get("/api/v1/namespaces/shop-a", &[]).await.unwrap().json();
    let annotation = &read["metadata"]["annotations"]["ctrlmesh.kusionstack.io/epoch"];
    let (epochs, _) = annotation
        .as_str()
        .unwrap_or_default()
        .split_once('.')
        .unwrap_or_default();
    epochs.split(',').filter_map(|epoch| epoch.parse().ok()).collect()
}

/// Writes without a pause until it is told to end; what it was answered beside 200.
struct Writer {
    ends: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
    refused: JoinSet<Vec<String>>,
}

impl Writer {
    async fn start(door: Door) -> Self {
        let object =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "counter"}, "data": {"at": "0"}});
        assert_eq!(door.post(SHOP, &object).await.unwrap().status, 201);
        let line = door.open().await.unwrap();
        let (ends, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (ending, writing) = (ends.clone(), written.clone());
        let mut refused = JoinSet::new();
        refused.spawn(async move {
            let mut refused = Vec::new();
            while !ending.load(Ordering::Relaxed) {
                let at = writing.load(Ordering::Relaxed) + 1;
                let patch = json!({"data": {"at": at.to_string()}});
                let path = format!("{SHOP}/counter");
                let answer = line
                    .ask(request(Method::PATCH, &path, &MERGE, patch.to_string().as_bytes()).unwrap())
                    .await;
                let answer = answer.unwrap();
                match answer.status {
                    200 => writing.store(at, Ordering::Relaxed),
                    status => refused.push(format!("{status}: {}", answer.message())),
                }
            }
            refused
        });
        Self { ends, written, refused }
    }

    async fn writes_on(&self) {
        let before = self.written.load(Ordering::Relaxed);
        eventually("it writes on", || async {
            let now = self.written.load(Ordering::Relaxed);
            if now > before + 20 { Ok(()) } else { Err(now - before) }
        })
        .await;
    }
}

async fn moved(world: &World, to: &str) {
    let to = format!("operators/{to}");
    ctl::moved(world.fleet.dir(), ("east", "shop-a"), &to).await.unwrap();
}

/// Creates of ConfigMaps whose names begin so wait for whatever takes connections at this port and says nothing.
fn hanging(port: u16, ca_pem: &str) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "hangs"},
        "webhooks": [{
            "name": "hangs.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "failurePolicy": "Ignore", "timeoutSeconds": 30,
            "clientConfig": {"url": format!("https://127.0.0.1:{port}/"), "caBundle": STANDARD.encode(ca_pem)},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}],
            "matchConditions": [{"name": "slow", "expression": "object.metadata.name.startsWith('slow-')"}],
        }],
    })
}

/// A handover waits for the writes of its own giver: it is over while another operator's, which were admitted before it began, are not.
async fn no_slow_write_of_another_is_waited_for(world: &World, moves: &[(&str, &Door)]) {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let webhook = hanging(silent.local_addr().unwrap().port(), world.cluster("east").ca_pem());
    let hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let direct = world.direct_door("east").await.unwrap();
    assert_eq!(direct.post(hooks, &webhook).await.unwrap().status, 201);
    let other = world.merged_door("prometheus").await.unwrap();
    let mut held = Vec::new();
    for (at, (taker, door)) in moves.iter().enumerate() {
        let (mut slow, mut tried) = (JoinSet::new(), 0);
        // The API server may not have heard of the webhook yet.
        while held.len() == at {
            let (name, other) = (format!("slow-{at}-{tried}"), other.clone());
            tried += 1;
            let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
            slow.spawn(async move { other.post(SHOP, &object).await.unwrap().status });
            tokio::select! {
                waits = silent.accept() => held.push(waits.unwrap().0),
                answered = slow.join_next() => assert_eq!(answered.unwrap().unwrap(), 201),
            }
        }
        moved(world, taker).await;
        writes(door, &format!("beside-slow-{at}")).await;
        assert!(
            slow.try_join_next().is_none(),
            "it was over before the other's write was"
        );
        slow.shutdown().await;
    }
    let path = format!("{hooks}/hangs");
    let gone = direct.ask(request(Method::DELETE, &path, &[], b"").unwrap()).await;
    assert_eq!(gone.unwrap().status, 200);
}

/// Who has taken shop-a over makes this ConfigMap there.
async fn writes(taker: &Door, name: &str) {
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    eventually("the taker writes", || async {
        let answer = taker.post(SHOP, &object).await.unwrap();
        if answer.status == 201 {
            Ok(())
        } else {
            Err(answer.message())
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_operator_hands_over_while_another_writes() {
    let world = world().await;
    all_are_fenced(&world).await;
    let writer = Writer::start(world.merged_door("prometheus").await.unwrap()).await;
    writer.writes_on().await;
    let before = open(&world).await;
    assert_eq!(before.len(), 2, "{before:?}");
    let doors = [
        ("rollouts-b", world.merged_door("rollouts-b").await.unwrap()),
        ("rollouts-a", world.merged_door("rollouts-a").await.unwrap()),
    ];
    for at in 0..MOVES {
        let (taker, door) = &doors[at % 2];
        moved(&world, taker).await;
        let name = format!("of-{at}");
        writes(door, &name).await;
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        let (_, giver) = &doors[(at + 1) % 2];
        let answer = giver.post(SHOP, &object).await.unwrap();
        assert_eq!(answer.status, 403, "{}", answer.message());
        writer.writes_on().await;
    }
    let [back, again] = &doors;
    no_slow_write_of_another_is_waited_for(&world, &[(back.0, &back.1), (again.0, &again.1)]).await;
    all_are_fenced(&world).await;
    let after = open(&world).await;
    assert_eq!(after.len(), 2, "{after:?}");
    let kept = before.iter().filter(|epoch| after.contains(epoch)).count();
    assert_eq!(
        kept, 1,
        "one of {before:?} stays, that of who handed nothing over: {after:?}"
    );
    writer.ends.store(true, Ordering::Relaxed);
    let refused = writer.refused.join_all().await.concat();
    assert_eq!(refused, [""; 0], "of who handed nothing over");
}

/// Who forgets the name of the program is refused, and told of it.
#[tokio::test(flavor = "multi_thread")]
async fn one_name_has_one_owner() {
    let world = world().await;
    let plain = federated("nameless", "east", &[("east", &["shop-a"])]);
    let second = of("rollouts", "rollouts-c", &[("east", &["shop-a"])]);
    world
        .direct(HUB)
        .ok_with(&["apply", "-f", "-"], &(plain + &second))
        .await
        .unwrap();
    eventually("the second of one operator is refused", || async {
        let found = condition(&world, "rollouts-c", "Accepted").await;
        let (status, message) = found.unwrap_or_default();
        let is = status == "False" && message.contains("operators/rollouts-a") && message.contains("spec.operator");
        if is { Ok(()) } else { Err(message) }
    })
    .await;
    // Who has no name is an operator too.
    until(&world, "nameless", "Accepted", Some("True")).await;
    let dir = argument(world.fleet.dir());
    let told = ctl::ok(&["shards", "who", "shop-a", "--cluster", "east", "--dir", &dir]).await;
    let told = told.unwrap();
    for shard in ["rollouts-a", "prometheus", "nameless"] {
        assert!(told.contains(&format!("operators/{shard} ")), "{told}");
    }
}

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

async fn until(world: &World, shard: &str, of: &str, is: Option<&str>) -> String {
    eventually(&format!("{of} of {shard} is {is:?}"), || async {
        let found = condition(world, shard, of).await;
        if found.as_ref().map(|(status, _)| status.as_str()) == is {
            Ok(found.map(|(_, message)| message).unwrap_or_default())
        } else {
            Err(format!("{found:?}"))
        }
    })
    .await
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
    let writer = Writer::start(first).await;
    writer.writes_on().await;
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "of-the-second"}});
    assert_ne!(second.post(SHOP, &object).await.unwrap().status, 201);
    let dir = argument(world.fleet.dir());
    let separate = ["shards", "separate", "--dir", &dir];
    let shown = ctl::ok(&separate).await.unwrap();
    let row: Vec<_> = shown.lines().nth(1).unwrap_or_default().split_whitespace().collect();
    let second_owner = "east shop-a operators/rollouts-a operators/prometheus prometheus";
    assert_eq!(row.join(" "), second_owner, "{shown}");
    let before = open(&world).await;
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
    // Of the second's epoch in the ledger that was made one of before nothing is known any more.
    let after = open(&world).await;
    let stays = before.iter().any(|epoch| after.contains(epoch));
    assert!(stays && after.len() <= 2, "the owner's of {before:?} stays: {after:?}");
    writer.ends.store(true, Ordering::Relaxed);
    let refused = writer.refused.join_all().await.concat();
    assert_eq!(refused, [""; 0], "of who had it");
    assert!(ctl::ok(&separate).await.unwrap().contains("already"));
}
