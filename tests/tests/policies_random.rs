//! Policies by whoever writes anything: random documents, good and broken, applied and deleted on the hub while the clients of
//! a fleet go on; and restarts of hub and router around a broken edit. No program panics or ends, what was good stays in
//! force whatever is written after it, and no request is judged by half of an edit.
//!
//! `make test` draws 150 documents, `make policies` a thousand (`PORTOLAN_POLICY_DOCUMENTS`). `PORTOLAN_SEED` draws the same
//! ones again; which requests they meet is up to the machine. What routers make of such documents without a fleet around them
//! is in `router/src/resource/policies/tests/load.rs`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "also in functions that only tests call; what was drawn is told"
)]

#[path = "policies_random/documents.rs"]
mod documents;
#[path = "policies_random/load.rs"]
mod load;
#[path = "policies_random/promise.rs"]
mod promise;
#[path = "policies_random/restarts.rs"]
mod restarts;
#[path = "policies_random/storm.rs"]
mod storm;

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use portolan_crds::labels::WEBHOOK_AUTHORS;
use portolan_testbed::{Cluster, eventually};
use portolan_tests::daemon::Daemon;
use portolan_tests::programs::admin_get;
use portolan_tests::shard::federated;
use portolan_tests::world::{HUB, Plan, World};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

/// Namespace of the shards whose policies keep a promise.
const NAMESPACE: &str = "operators";
/// Namespace of the shard, and of all the policies, that anything may be made of.
const STORM: &str = "storm";
/// What the promises of each test are about: a namespace each.
const KEPT: [&str; 6] = ["k-0", "k-1", "k-2", "k-3", "k-4", "k-5"];
const LASTING: [&str; 3] = ["l-0", "l-1", "l-2"];

/// One fleet; each test has it for itself, as one draws documents without end and the other ends programs.
static GROUND: OnceCell<Mutex<Ground>> = OnceCell::const_new();

struct Ground {
    hub: Daemon,
    router: Daemon,
    world: World,
}

/// Which kind of policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    CircuitBreaker,
    FaultInjection,
}

impl Kind {
    const ALL: [Self; 2] = [Self::CircuitBreaker, Self::FaultInjection];

    fn name(self) -> &'static str {
        match self {
            Self::CircuitBreaker => "CircuitBreaker",
            Self::FaultInjection => "FaultInjection",
        }
    }

    fn resource(self) -> ApiResource {
        ApiResource::from_gvk(&GroupVersionKind::gvk(
            "ctrlmesh.kusionstack.io",
            "v1alpha1",
            self.name(),
        ))
    }
}

async fn alone() -> MutexGuard<'static, Ground> {
    let ground = GROUND.get_or_init(|| async { Mutex::new(start().await.unwrap()) });
    ground.await.lock().await
}

async fn start() -> anyhow::Result<Ground> {
    let storm = federated(STORM, "east", &[("east", &["s-0"])]);
    let storm = storm.replace("namespace: operators", &format!("namespace: {STORM}"));
    let manifests =
        federated("kept", "east", &[("east", &KEPT)]) + &federated("lasting", "east", &[("east", &LASTING)]) + &storm;
    let namespaces = KEPT.iter().chain(&LASTING).chain(&["s-0"]);
    let namespaces: Vec<String> = namespaces.map(|namespace| format!("east/{namespace}")).collect();
    let namespaces: Vec<&str> = namespaces.iter().map(String::as_str).collect();
    let plan = Plan {
        members: &["east"],
        namespaces: &namespaces,
        manifests: &manifests,
        ..Plan::default()
    };
    let world = World::start(plan).await?;
    take_anything(world.cluster(HUB)).await?;
    let ground = Ground {
        hub: world.fleet.take_over("hub").await?,
        router: world.fleet.take_over("router").await?,
        world,
    };
    ground.hub.ready().await;
    ground.router.ready().await;
    Ok(ground)
}

/// Lets the API server take any spec, as one does that has the schema of another release and cannot ask a hub: what reaches
/// the hub and the routers then is all theirs to judge.
async fn take_anything(hub: &Cluster) -> anyhow::Result<()> {
    let client = hub.client().await?;
    let webhooks = Api::<ValidatingWebhookConfiguration>::all(client.clone());
    webhooks.delete(WEBHOOK_AUTHORS, &DeleteParams::default()).await?;
    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    let anything = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let schema = json!({"type": "object", "properties": {
        "spec": {"x-kubernetes-preserve-unknown-fields": true}, "status": anything,
    }});
    let patch = json!([{"op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema", "value": schema}]);
    let patch: Patch<()> = Patch::Json(serde_json::from_value(patch)?);
    for kind in Kind::ALL {
        let name = format!("{}s.ctrlmesh.kusionstack.io", kind.name().to_lowercase());
        definitions.patch(&name, &PatchParams::default(), &patch).await?;
        let objects = Api::namespaced_with(client.clone(), STORM, &kind.resource());
        let seven = json!(7);
        eventually("anything is taken", || apply(&objects, kind, "anything", &seven)).await;
    }
    Ok(())
}

impl Ground {
    /// Objects of a kind, whatever is in them.
    async fn objects(&self, kind: Kind, namespace: &str) -> Api<DynamicObject> {
        let client = self.world.cluster(HUB).client().await.unwrap();
        Api::namespaced_with(client, namespace, &kind.resource())
    }

    /// What the router says of a policy.
    async fn served(&self, kind: Kind, namespace: &str, name: &str) -> Option<Value> {
        let page = admin_get(self.router.admin(), "/policies").await.unwrap();
        let page: Value = serde_json::from_str(&page).unwrap();
        let wanted = format!("{}/{namespace}/{name}", kind.name());
        let mut all = page["policies"].as_array()?.iter();
        all.find(|policy| policy["name"] == *wanted).cloned()
    }

    /// Neither program has panicked, and both are well.
    async fn assert_sound(&self) {
        for (program, daemon) in [("hub", &self.hub), ("router", &self.router)] {
            let metrics = admin_get(daemon.admin(), "/metrics").await.unwrap();
            let name = format!("portolan_{program}_panics_total ");
            let panics = metrics.lines().find_map(|line| line.strip_prefix(&name));
            assert_eq!(panics, Some("0"), "{program}");
            let log = daemon.log().unwrap();
            let mut panics = log.lines().filter(|line| line.contains("panicked"));
            assert_eq!(panics.next(), None, "{program}");
            admin_get(daemon.admin(), "/readyz").await.unwrap();
        }
    }
}

/// Applies a spec as it is; its generation.
async fn apply(objects: &Api<DynamicObject>, kind: Kind, name: &str, spec: &Value) -> kube::Result<i64> {
    let resource = kind.resource();
    let object = json!({
        "apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}, "spec": spec,
    });
    let params = PatchParams::apply("portolan-tests").force();
    let applied = objects.patch(name, &params, &Patch::Apply(object)).await?;
    Ok(applied.metadata.generation.unwrap())
}
