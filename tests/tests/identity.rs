//! Who is asked for: tokens, certificates, claims of being somebody else. Whoever is not who the router says they are gets
//! a Status and nothing else, and no member ever hears of them.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "also in functions that only tests call"
)]

#[path = "identity/acting.rs"]
mod acting;
#[path = "identity/callers.rs"]
mod callers;
#[path = "identity/claims.rs"]
mod claims;
#[path = "identity/signer.rs"]
mod signer;
#[path = "identity/tokens.rs"]
mod tokens;

use portolan_testbed::eventually;
use portolan_tests::door::{Answer, Door};
use portolan_tests::shard::federated;
use portolan_tests::world::{Plan, PodSpec, Shared, World};
use serde_json::{Value, json};

static WORLD: Shared = Shared::const_new();

/// What every caller of shard `alpha` may get.
const WHERE: &str = "/api/v1/namespaces/ia-1/configmaps";

/// Members east and west; `alpha` owns a namespace in each. `double` selects by another label than the others, so that a
/// Pod can be in two shards.
async fn world() -> &'static World {
    let manifests = [
        federated("alpha", "east", &[("east", &["ia-1"]), ("west", &["ia-2"])]),
        federated("beta", "east", &[("east", &["ib-1"])]),
        federated("double", "east", &[("east", &["id-1"])]).replace("shard: double", "also: double"),
    ];
    let plan = Plan {
        members: &["east", "west"],
        namespaces: &["east/ia-1", "west/ia-2", "east/ib-1", "east/id-1"],
        manifests: &manifests.concat(),
        ..Plan::default()
    };
    World::shared(&WORLD, plan).await
}

/// A Pod in namespace `operators` of a member, with a token for the router bound to it.
async fn pod_with_token(cluster: &str, name: &str, service_account: &str, labels: Value) -> String {
    let world = world().await;
    let pod = PodSpec {
        namespace: "operators",
        name,
        service_account,
        labels,
    };
    let uid = world.pod(cluster, pod.clone()).await.unwrap();
    world.token(cluster, &pod, &uid).await.unwrap()
}

/// A door as the caller of shard `alpha`.
async fn alpha() -> Door {
    world().await.merged_door("alpha").await.unwrap()
}

/// What the router says to a token.
async fn ask_with(token: &str, path: &str) -> Answer {
    let door = world().await.token_door(Some(token)).await.unwrap();
    door.get(path, &[]).await.unwrap()
}

/// Waits until the router says to `token` what it is to say.
async fn told(token: &str, path: &str, code: u16, words: &[&str]) {
    eventually("the router's word", || async {
        ask_with(token, path)
            .await
            .expect_status(code, words)
            .map_err(|error| error.to_string())
    })
    .await;
}

/// Who the member says a request came from.
async fn who_am_i(door: &Door, headers: &[(&str, &str)]) -> Answer {
    let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let all = [&[("content-type", "application/json")], headers].concat();
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    door.call(http::Method::POST, path, &all, body.to_string().as_bytes())
        .await
        .unwrap()
}

fn username(answer: &Answer) -> String {
    let body = answer.json();
    let name = body["status"]["userInfo"]["username"].as_str();
    name.unwrap_or_else(|| panic!("nobody: {:?}", answer.body)).to_owned()
}
