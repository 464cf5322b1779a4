//! What several tests have: shards of operators, who writes without a pause, and admission that says nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use kube::Api;
use portolan_crds::{ShardingConfig, ShardingConfigStatus};
use portolan_testbed::eventually;
use portolan_tests::ctl;
use portolan_tests::door::{Answer, Door, request};
use portolan_tests::shard::federated;
use portolan_tests::world::{HUB, Plan, World};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

pub(crate) const SHOP: &str = "/api/v1/namespaces/shop-a/configmaps";
const MERGE: [(&str, &str); 1] = [("content-type", "application/merge-patch+json")];
const HOOKS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";

/// `name` is a shard of `operator`.
pub(crate) fn of(operator: &str, name: &str, owns: &[(&str, &[&str])]) -> String {
    federated(name, "east", owns).replace("\nspec:\n", &format!("\nspec:\n  operator: {operator}\n"))
}

/// `rollouts-a`, and one that may take over from it, beside `prometheus`; all of namespace shop-a in east.
pub(crate) async fn world() -> World {
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

pub(crate) async fn status(world: &World, (author, shard): (&str, &str)) -> ShardingConfigStatus {
    let shards: Api<ShardingConfig> = Api::namespaced(world.cluster(HUB).client().await.unwrap(), author);
    let found = shards.get_opt(shard).await.unwrap();
    found.and_then(|shard| shard.status).unwrap_or_default()
}

pub(crate) async fn condition(world: &World, shard: &str, of: &str) -> Option<(String, String)> {
    let status = status(world, ("operators", shard)).await;
    let mut found = status.conditions.into_iter().filter(|condition| condition.type_ == of);
    found.next().map(|condition| (condition.status, condition.message))
}

/// Waits until a condition has this status, or is not there; returns its message.
pub(crate) async fn until(world: &World, shard: &str, of: &str, is: Option<&str>) -> String {
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

pub(crate) async fn all_are_fenced(world: &World) {
    for shard in ["rollouts-a", "rollouts-b", "prometheus"] {
        until(world, shard, "HandoverFenced", Some("True")).await;
    }
}

pub(crate) async fn apply(world: &World, manifests: &str) {
    let hub = world.direct(HUB);
    hub.ok_with(&["apply", "-f", "-"], manifests).await.unwrap();
}

/// The annotation of the epochs that are open in a namespace, as in this object.
pub(crate) fn epochs(namespace: &Value) -> Vec<u64> {
    let annotation = &namespace["metadata"]["annotations"]["ctrlmesh.kusionstack.io/epoch"];
    let (epochs, _) = annotation
        .as_str()
        .unwrap_or_default()
        .split_once('.')
        .unwrap_or_default();
    epochs.split(',').filter_map(|epoch| epoch.parse().ok()).collect()
}

/// The epochs of shop-a that the member takes.
pub(crate) async fn open(world: &World) -> Vec<u64> {
    let read = world.direct_door("east").await.unwrap();
    epochs(&read.get("/api/v1/namespaces/shop-a", &[]).await.unwrap().json())
}

pub(crate) fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"at": "0"}})
}

/// Writes without a pause until it is told to end; what it was answered beside 200.
pub(crate) struct Writer {
    ends: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
    refused: JoinSet<Vec<String>>,
}

impl Writer {
    pub(crate) async fn start(door: Door) -> Self {
        let made = door.post(SHOP, &map("counter")).await.unwrap();
        assert_eq!(made.status, 201, "{}", made.message());
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

    pub(crate) async fn writes_on(&self) {
        let before = self.written.load(Ordering::Relaxed);
        eventually("it writes on", || async {
            let now = self.written.load(Ordering::Relaxed);
            if now > before + 20 { Ok(()) } else { Err(now - before) }
        })
        .await;
    }

    /// What it was answered beside 200.
    pub(crate) async fn end(self) -> Vec<String> {
        self.ends.store(true, Ordering::Relaxed);
        self.refused.join_all().await.concat()
    }
}

/// Returns once `operators/<to>` has shop-a of east.
pub(crate) async fn moved(world: &World, to: &str) {
    let to = format!("operators/{to}");
    ctl::moved(world.fleet.dir(), ("east", "shop-a"), &to).await.unwrap();
}

/// Who has taken shop-a over makes this ConfigMap there.
pub(crate) async fn writes(taker: &Door, name: &str) {
    eventually("the taker writes", || async {
        let answer = taker.post(SHOP, &map(name)).await.unwrap();
        if answer.status == 201 {
            Ok(())
        } else {
            Err(answer.message())
        }
    })
    .await;
}

/// Admission of ConfigMaps in east whose names begin with `slow-`: it takes connections and says nothing.
pub(crate) struct Silent {
    listener: TcpListener,
    direct: Door,
    tried: usize,
}

/// A create that is admitted by the member's policies, and under way until this is dropped.
pub(crate) struct HeldWrite {
    pub(crate) name: String,
    answer: JoinSet<Answer>,
    _connection: TcpStream,
}

impl Silent {
    pub(crate) async fn start(world: &World) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let webhook = hanging(listener.local_addr().unwrap().port(), world.cluster("east").ca_pem());
        let direct = world.direct_door("east").await.unwrap();
        assert_eq!(direct.post(HOOKS, &webhook).await.unwrap().status, 201);
        Self {
            listener,
            direct,
            tried: 0,
        }
    }

    /// Has this door make a ConfigMap in shop-a, and returns once it is held. The API server may not have heard of the webhook yet.
    pub(crate) async fn hold(&mut self, door: &Door) -> HeldWrite {
        let mut answer = JoinSet::new();
        loop {
            let (name, door) = (format!("slow-{}", self.tried), door.clone());
            self.tried += 1;
            let object = map(&name);
            answer.spawn(async move { door.post(SHOP, &object).await.unwrap_or_else(broken) });
            tokio::select! {
                connected = self.listener.accept() => {
                    return HeldWrite { name, answer, _connection: connected.unwrap().0 };
                }
                answered = answer.join_next() => assert_eq!(answered.unwrap().unwrap().status, 201),
            }
        }
    }

    /// From now on nothing is held.
    pub(crate) async fn end(self) {
        let path = format!("{HOOKS}/hangs");
        let gone = self.direct.ask(request(Method::DELETE, &path, &[], b"").unwrap()).await;
        assert_eq!(gone.unwrap().status, 200);
    }
}

impl HeldWrite {
    pub(crate) fn is_open(&mut self) -> bool {
        self.answer.try_join_next().is_none()
    }
}

/// Of a router that was killed no answer comes.
fn broken(_: anyhow::Error) -> Answer {
    Answer {
        status: 0,
        headers: http::HeaderMap::new(),
        body: bytes::Bytes::new(),
    }
}

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
