//! Who means harm: a tenant, a member, somebody on the network. Each test is one attack, and what others must not notice
//! of it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "also in functions that only tests call"
)]

#[path = "hostile/agent_rights.rs"]
mod agent_rights;
#[path = "hostile/answers.rs"]
mod answers;
#[path = "hostile/authors.rs"]
mod authors;
#[path = "hostile/breakers.rs"]
mod breakers;
#[path = "hostile/ca_rotate.rs"]
mod ca_rotate;
#[path = "hostile/crowding.rs"]
mod crowding;
#[path = "hostile/deletes.rs"]
mod deletes;
#[path = "hostile/front.rs"]
mod front;
#[path = "hostile/h2spec.rs"]
mod h2spec;
#[path = "hostile/namespaces.rs"]
mod namespaces;
#[path = "hostile/network.rs"]
mod network;
#[path = "hostile/people.rs"]
mod people;
#[path = "hostile/readings.rs"]
mod readings;
#[path = "hostile/stolen_router.rs"]
mod stolen_router;
#[path = "hostile/unread.rs"]
mod unread;
#[path = "hostile/withdrawn.rs"]
mod withdrawn;

use kube::api::{Api, Patch, PatchParams};
use portolan_crds::MemberCluster;
use portolan_testbed::eventually;
use portolan_tests::shard::federated;
use portolan_tests::world::{HUB, Plan, Shared, World};
use serde_json::json;
use tokio::sync::OnceCell;

use self::front::Front;

static WORLD: Shared = Shared::const_new();
static FRONT: OnceCell<Front> = OnceCell::const_new();

/// Within its namespaces a shard has these objects only.
const LIMITS: &str = "  limits:\n  - relateResources:\n    - apiGroups: ['']\n      resources: [pods, configmaps]\n    \
                      selector: {matchLabels: {app: foo}}\n  clusters:\n";

/// Members east, which is honest, mad, of which routers know a [`Front`] alone, and gone, which one test withdraws.
async fn world() -> (&'static World, &'static Front) {
    let manifests = federated(
        "alpha",
        "east",
        &[("east", &["h-east"]), ("mad", &["h-mad", "h-quiet"])],
    ) + &federated("beta", "east", &[("east", &["h-beta"]), ("mad", &["h-other"])])
        + &federated("delta", "east", &[("east", &["h-delta"]), ("gone", &["h-gone"])])
        + &federated("gamma", "east", &[("east", &["h-limited"])]).replace("  clusters:\n", LIMITS);
    let plan = Plan {
        members: &["east", "mad", "gone"],
        namespaces: &[
            "east/h-east",
            "east/h-beta",
            "east/h-limited",
            "east/h-delta",
            "gone/h-gone",
            "mad/h-mad",
            "mad/h-quiet",
            "mad/h-other",
        ],
        manifests: &manifests,
        ..Plan::default()
    };
    let world = World::shared(&WORLD, plan).await;
    (world, FRONT.get_or_init(|| stand_before(world, "mad")).await)
}

/// Has routers ask `member` through a front from now on.
async fn stand_before(world: &World, member: &str) -> Front {
    let cluster = world.cluster(member);
    let front = Front::start(&cluster.direct_url(), cluster.ca_pem()).unwrap();
    let members = Api::<MemberCluster>::all(world.cluster(HUB).client().await.unwrap());
    let spec = json!({"endpoints": [{"url": front.url}], "caBundle": front.ca_bundle});
    let patch = Patch::Merge(json!({"spec": spec}));
    members.patch(member, &PatchParams::default(), &patch).await.unwrap();
    let door = world.explicit_door(member).await.unwrap();
    eventually("the router asks the front", || async {
        front.forget();
        let _ = door.get("/version", &[]).await;
        front.was_asked("/version").then_some(())
    })
    .await;
    front
}
