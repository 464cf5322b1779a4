//! The explicit view: `/clusters/<name>/…` is that member's API server, nothing added, nothing lost. What a request sees
//! and does through the router is compared with the same request past it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "also in functions that only tests call"
)]

#[path = "explicit/bytes.rs"]
mod bytes;
#[path = "explicit/grants.rs"]
mod grants;
#[path = "explicit/hosts.rs"]
mod hosts;
#[path = "explicit/people.rs"]
mod people;
#[path = "explicit/watches.rs"]
mod watches;

use portolan_testbed::eventually;
use portolan_tests::door::Door;
use portolan_tests::shard::federated;
use portolan_tests::world::{Plan, Shared, World};

/// `<member>.<this>` is the explicit view of a member.
const EXPLICIT_HOST: &str = "fleet.test";

static WORLD: Shared = Shared::const_new();

/// Members east and west. Callers of shard `alpha`, which is east's alone, may use the explicit view; those of `beta` may
/// not.
async fn world() -> &'static World {
    let manifests = federated("alpha", "east", &[("east", &["team-a"])])
        + &federated("beta", "east", &[("east", &["team-b"])]).replace("explicitView: Allow", "explicitView: Deny");
    let plan = Plan {
        members: &["east", "west"],
        namespaces: &["east/team-a", "east/team-b"],
        manifests: &manifests,
        env: &[("PORTOLAN_EXPLICIT_HOST", EXPLICIT_HOST)],
        ..Plan::default()
    };
    World::shared(&WORLD, plan).await
}

/// Waits until the agent has labelled all of a collection, so that it changes no more; its resourceVersion.
async fn labelled(direct: &Door, path: &str) -> String {
    eventually("the agent has labelled them", || async {
        let list = direct.get(path, &[]).await.unwrap().json();
        let items = list["items"].as_array()?;
        let label =
            |item: &serde_json::Value| item["metadata"]["labels"]["ctrlmesh.kusionstack.io/namespace"].is_string();
        let done = items.iter().all(label);
        done.then(|| list["metadata"]["resourceVersion"].as_str().unwrap().to_owned())
    })
    .await
}
