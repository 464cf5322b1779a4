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
use kube::Api;
use portolan_crds::ShardingConfig;
use portolan_testbed::eventually;
use portolan_tests::ctl;
use portolan_tests::door::{Door, request};
use portolan_tests::programs::argument;
use portolan_tests::shard::federated;
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
    let dir = argument(world.fleet.dir());
    let to = format!("operators/{to}");
    let flags = ["--cluster", "east", "--to", &to, "--dir", &dir, "--yes"];
    ctl::ok(&[&["shards", "move", "shop-a"], &flags[..]].concat())
        .await
        .unwrap();
    let who = [
        "shards",
        "who",
        "shop-a",
        "--cluster",
        "east",
        "-o",
        "json",
        "--dir",
        &dir,
    ];
    eventually(&format!("{to} has shop-a"), || async {
        let told: Value = serde_json::from_str(&ctl::ok(&who).await?)?;
        let mut pairs = told["pairs"].as_array().into_iter().flatten();
        let has = pairs.any(|pair| pair["owner"] == *to && pair["state"] == "Granted");
        anyhow::ensure!(has, "{told}");
        anyhow::Ok(())
    })
    .await;
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
    eventually("who has no name is an operator too", || async {
        let found = condition(&world, "nameless", "Accepted").await;
        if found.as_ref().is_some_and(|(status, _)| status == "True") {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })
    .await;
}
