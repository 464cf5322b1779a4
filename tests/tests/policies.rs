//! CircuitBreakers and FaultInjections as people use them: applied to the hub, felt by callers at a router, told in statuses
//! and by `portolanctl`, and gone when they are deleted.
//!
//! One fleet for all. Each test has a shard of its own, `<shard>-e` in east and `<shard>-w` in west, and policies that hold
//! its caller alone; whoever stops all faults has the fleet for itself.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "also in functions that only tests call"
)]

#[path = "policies/faults.rs"]
mod faults;
#[path = "policies/forced.rs"]
mod forced;
#[path = "policies/kept.rs"]
mod kept;
#[path = "policies/latches.rs"]
mod latches;
#[path = "policies/limits.rs"]
mod limits;
#[path = "policies/original.rs"]
mod original;
#[path = "policies/stopped.rs"]
mod stopped;
#[path = "policies/watches.rs"]
mod watches;

use std::fmt::Debug;
use std::fmt::Write as _;

use http::Method;
use k8s_openapi::NamespaceResourceScope;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Resource, ResourceExt as _};
use portolan_crds::{CircuitBreaker, FaultInjection};
use portolan_testbed::{Jaeger, eventually};
use portolan_tests::ctl;
use portolan_tests::door::{Answer, Door};
use portolan_tests::programs::{admin_get, argument};
use portolan_tests::shard::federated;
use portolan_tests::world::{HUB, Plan, World};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::{OnceCell, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Namespace of shards, callers and policies.
const NAMESPACE: &str = "operators";
/// Where the callers of the original's manifests are.
const ORIGINAL: &str = "operator-demo";
/// Shards of the tests.
const SHARDS: [&str; 13] = [
    "limited",
    "bystander",
    "latched",
    "elected",
    "edited",
    "forced",
    "kept",
    "aborted",
    "cut",
    "stalled",
    "expired",
    "stopped",
    "tried",
];
/// Any verb of anything anywhere.
const ANYTHING: &str = r#"{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "namespaces": ["*"]}"#;

static GROUND: OnceCell<RwLock<Ground>> = OnceCell::const_new();

struct Ground {
    world: World,
    jaeger: Jaeger,
}

async fn started() -> &'static RwLock<Ground> {
    GROUND
        .get_or_init(|| async { RwLock::new(start().await.unwrap()) })
        .await
}

/// The fleet, with others beside.
async fn ground() -> RwLockReadGuard<'static, Ground> {
    started().await.read().await
}

/// The fleet for a test that needs it whole.
async fn alone() -> RwLockWriteGuard<'static, Ground> {
    started().await.write().await
}

async fn start() -> anyhow::Result<Ground> {
    let jaeger = Jaeger::start().await?;
    let pairs = SHARDS.iter().chain(["original"].iter());
    let pairs = pairs.flat_map(|shard| [format!("east/{shard}-e"), format!("west/{shard}-w")]);
    let pairs: Vec<String> = pairs.collect();
    let pairs: Vec<&str> = pairs.iter().map(String::as_str).collect();
    let mut manifests = String::new();
    for shard in SHARDS {
        let (east, west) = (format!("{shard}-e"), format!("{shard}-w"));
        manifests += &federated(shard, "east", &[("east", &[&east]), ("west", &[&west])]);
    }
    write!(manifests, "{}", original::shard())?;
    let plan = Plan {
        members: &["east", "west"],
        namespaces: &pairs,
        manifests: &manifests,
        otlp: Some(&jaeger.otlp_grpc_url),
        ..Plan::default()
    };
    let world = World::start(plan).await?;
    Ok(Ground { world, jaeger })
}

/// A kind of policy.
trait Policy: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned {}

impl Policy for CircuitBreaker {}
impl Policy for FaultInjection {}

impl Ground {
    // Clients are made anew: one is of use on the runtime only that it was made on, and each test has its own.
    async fn policies<K: Policy>(&self) -> Api<K> {
        Api::namespaced(self.world.cluster(HUB).client().await.unwrap(), NAMESPACE)
    }

    /// Applies a policy that holds the caller of this shard, and waits until the router serves it.
    async fn hold<K: Policy>(&self, shard: &str, mut spec: Value) -> K {
        spec["selector"] = json!({"matchLabels": {"shard": shard}});
        let object = self.apply(shard, &spec).await;
        self.until_held(&object).await;
        object
    }

    /// Applies a policy as it is.
    async fn apply<K: Policy>(&self, name: &str, spec: &Value) -> K {
        let object = json!({
            "apiVersion": K::api_version(&()), "kind": K::kind(&()),
            "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec,
        });
        let params = PatchParams::apply("portolan-tests").force();
        let policies = self.policies::<K>().await;
        policies.patch(name, &params, &Patch::Apply(object)).await.unwrap()
    }

    /// Waits until the router has this generation of a policy, and a caller that it holds.
    async fn until_held<K: Policy>(&self, object: &K) {
        let what = format!("the router has {}", object.name_any());
        eventually(&what, || async {
            let told = self.served(object).await.ok_or("it has not")?;
            let held = told["generation"] == json!(object.meta().generation) && told["callers"].as_u64() > Some(0);
            if held { Ok(()) } else { Err(told.to_string()) }
        })
        .await;
    }

    /// What the router says of a policy.
    async fn served<K: Policy>(&self, object: &K) -> Option<Value> {
        let name = format!(
            "{}/{}/{}",
            K::kind(&()),
            object.namespace().unwrap_or_default(),
            object.name_any()
        );
        let page = self.router_page("/policies").await;
        let mut all = page["policies"].as_array()?.iter();
        all.find(|policy| policy["name"] == *name && policy["uid"] == json!(object.uid()))
            .cloned()
    }

    /// Deletes a policy and waits until the router has it no more.
    async fn delete<K: Policy>(&self, object: &K) {
        let policies = self.policies::<K>().await;
        let deleted = policies.delete(&object.name_any(), &DeleteParams::default()).await;
        deleted.unwrap();
        eventually("the router has it no more", || async {
            self.served(object).await.is_none()
        })
        .await;
    }

    async fn router_page(&self, path: &str) -> Value {
        let router = self.world.fleet.process("router").unwrap();
        let page = admin_get(&router.admin, path).await.unwrap();
        serde_json::from_str(&page).unwrap()
    }

    /// A shard's caller, once it is served.
    async fn caller(&self, shard: &str) -> Door {
        let path = format!("/api/v1/namespaces/{shard}-e/configmaps");
        self.world.listed_door(shard, &path).await.unwrap()
    }

    /// `portolanctl`, asked about this fleet.
    async fn said(&self, words: &[&str]) -> String {
        ctl::ok(&self.words(words)).await.unwrap()
    }

    /// The same, of what is refused.
    async fn refused(&self, words: &[&str]) -> String {
        ctl::refused(&self.words(words)).await.unwrap()
    }

    fn words<'w>(&'w self, words: &[&'w str]) -> Vec<&'w str> {
        [words, &["--dir", self.world.fleet.dir().to_str().unwrap()]].concat()
    }

    /// A manifest as a file.
    fn file(&self, name: &str, yaml: &str) -> String {
        let file = self.world.fleet.dir().join(name);
        std::fs::write(&file, yaml).unwrap();
        argument(&file)
    }

    /// Waits until `policies status` has a line of the policy with all of these words, one space between its columns.
    async fn told(&self, policy: &str, words: &[&str]) -> String {
        let what = format!("{policy} is told of with {words:?}");
        eventually(&what, || async {
            let told = self.said(&["policies", "status", policy]).await;
            let mut lines = told
                .lines()
                .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
            let line = lines.find(|line| words.iter().all(|word| line.contains(word)));
            line.ok_or(told)
        })
        .await
    }
}

/// Deletes a Pod that is not there: 404 is what the member says.
async fn delete_pod(door: &Door, namespace: &str) -> Answer {
    let path = format!("/api/v1/namespaces/{namespace}/pods/nobody");
    door.call(Method::DELETE, &path, &[], &[]).await.unwrap()
}

/// Causes of a Status that name policies.
fn causes(answer: &Answer) -> Vec<String> {
    let body = answer.json();
    let causes = body["details"]["causes"].as_array().into_iter().flatten();
    let of_policies = causes.filter(|cause| cause["reason"] == "Policy");
    of_policies
        .map(|cause| cause["message"].as_str().unwrap().to_owned())
        .collect()
}

/// A 429 of this rule, with a time to come again.
fn assert_limited(answer: &Answer, rule: &str) {
    answer.expect_status(429, &[]).unwrap();
    let seconds: u32 = answer.header("retry-after").parse().unwrap();
    assert!((1..=30).contains(&seconds), "{seconds}");
    let causes = causes(answer);
    assert!(
        causes.iter().any(|cause| cause.starts_with(&format!("{rule}: "))),
        "{causes:?}"
    );
}

/// A 503 of this rule that no client repeats by itself.
fn assert_opened(answer: &Answer, rule: &str) {
    answer.expect_status(503, &[]).unwrap();
    assert_eq!(answer.header("retry-after"), "");
    let causes = causes(answer);
    assert!(
        causes.iter().any(|cause| cause.starts_with(&format!("{rule}: "))),
        "{causes:?}"
    );
}
