//! What one tenant's load is to the others at a member, and what a router does that has too little memory: who is served, who
//! waits and who is told to come again.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "also in functions that only tests call; what was felt is told"
)]

#[path = "hostile/front.rs"]
mod front;
#[path = "isolation/noisy.rs"]
mod noisy;
#[path = "isolation/shedding.rs"]
mod shedding;

use kube::api::{Api, Patch, PatchParams};
use portolan_crds::MemberCluster;
use portolan_testbed::eventually;
use portolan_tests::door::{Door, json};
use portolan_tests::shard::federated;
use portolan_tests::world::{HUB, Plan, PodSpec, Shared, World};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use self::front::Front;

const ONE: &str = "/api/v1/namespaces/i-one/configmaps";
const TWO: &str = "/api/v1/namespaces/i-two/configmaps";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/operators/leases";
/// Of both shards' elections.
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/operators/leases/greeting-operator";

static WORLD: Shared = Shared::const_new();
static FRONT: OnceCell<Front> = OnceCell::const_new();

/// Tenants one and two share member east, which routers know through a [`Front`] alone.
async fn world() -> (&'static World, &'static Front) {
    let manifests =
        federated("one", "east", &[("east", &["i-one"])]) + &federated("two", "east", &[("east", &["i-two"])]);
    let plan = Plan {
        members: &["east"],
        namespaces: &["east/i-one", "east/i-two"],
        manifests: &manifests,
        ..Plan::default()
    };
    let world = World::shared(&WORLD, plan).await;
    (world, FRONT.get_or_init(|| stand_before(world)).await)
}

async fn stand_before(world: &World) -> Front {
    let cluster = world.cluster("east");
    let front = Front::start(&cluster.direct_url(), cluster.ca_pem()).unwrap();
    let members = Api::<MemberCluster>::all(world.cluster(HUB).client().await.unwrap());
    let spec = json!({"endpoints": [{"url": front.url}], "caBundle": front.ca_bundle});
    let patch = Patch::Merge(json!({"spec": spec}));
    members.patch("east", &PatchParams::default(), &patch).await.unwrap();
    let door = world.explicit_door("east").await.unwrap();
    eventually("the router asks the front", || async {
        front.forget();
        let _ = door.get("/version", &[]).await;
        front.was_asked("/version").then_some(())
    })
    .await;
    front
}

/// One more caller of a shard, once the router knows it.
async fn caller(world: &World, shard: &str, name: &str, path: &str) -> Door {
    // The one that the member lets the router act as.
    let account = format!("portolan-dev-{shard}");
    let pod = PodSpec {
        namespace: "operators",
        name,
        service_account: &account,
        labels: json!({"shard": shard}),
    };
    let uid = world.pod("east", pod.clone()).await.unwrap();
    let token = world.token("east", &pod, &uid).await.unwrap();
    let door = world.token_door(Some(&token)).await.unwrap();
    eventually(&format!("{name} is served"), || async {
        let answer = door.get(path, &[]).await.map_err(|error| error.to_string())?;
        if answer.status == 200 {
            Ok(())
        } else {
            Err(answer.message())
        }
    })
    .await;
    door
}

/// The Lease of a shard's election, made if nobody has.
async fn lease(door: &Door) -> Value {
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "greeting-operator"},
        "spec": {"holderIdentity": "test", "leaseDurationSeconds": 15},
    });
    let made = door.post(LEASES, &lease).await.unwrap();
    assert!(matches!(made.status, 201 | 409), "{}", made.message());
    door.get(LEASE, &[]).await.unwrap().json()
}

/// Renews it once.
fn renewal(lease: &Value) -> http::Request<Vec<u8>> {
    json(http::Method::PUT, LEASE, lease).unwrap()
}
