//! Handovers where something is not as it should be: routers that were started anew, and a member that goes by no policy.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "also in functions that only tests call"
)]

use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Api;
use portolan_crds::{ShardingConfig, ShardingConfigStatus};
use portolan_testbed::eventually;
use portolan_tests::ctl;
use portolan_tests::routers;
use portolan_tests::shard::federated;
use portolan_tests::world::{HUB, Plan, World};

/// Well below the minute that is waited for writes of which nobody knows.
const SOON: Duration = Duration::from_secs(40);
const ENV: [(&str, &str); 1] = [("PORTOLAN_DRAIN_TIMEOUT", "2s")];

/// `giver` has three namespaces of east, `taker` one. `flags` are of all API servers.
async fn world(flags: &[&str]) -> World {
    let manifests = [
        federated("giver", "east", &[("east", &["h-home", "h-1", "h-2"])]),
        federated("taker", "east", &[("east", &["h-other"])]),
    ];
    let plan = Plan {
        members: &["east"],
        namespaces: &["east/h-home", "east/h-1", "east/h-2", "east/h-other"],
        manifests: &manifests.concat(),
        apiserver_args: flags.iter().map(|&flag| flag.to_owned()).collect(),
        env: &ENV,
        ..Plan::default()
    };
    World::start(plan).await.unwrap()
}

async fn status(world: &World, shard: &str) -> ShardingConfigStatus {
    let shards: Api<ShardingConfig> = Api::namespaced(world.cluster(HUB).client().await.unwrap(), "operators");
    shards.get(shard).await.unwrap().status.unwrap_or_default()
}

async fn fenced(world: &World, shard: &str) -> Option<Condition> {
    let mut conditions = status(world, shard).await.conditions.into_iter();
    conditions.find(|condition| condition.type_ == "HandoverFenced")
}

async fn all_are_fenced(world: &World) {
    for shard in ["giver", "taker"] {
        eventually(&format!("handovers of {shard} are fenced"), || async {
            let found = fenced(world, shard).await;
            let holds = found.as_ref().is_some_and(|found| found.status == "True");
            if holds { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
    }
}

const TAKER: &str = "operators/taker";

async fn begin_move(world: &World, namespace: &str) {
    ctl::begin_move(world.fleet.dir(), ("east", namespace), TAKER)
        .await
        .unwrap();
}

/// How long it takes until `taker` has it.
async fn moved(world: &World, namespace: &str) -> Duration {
    let begun = Instant::now();
    ctl::moved(world.fleet.dir(), ("east", namespace), TAKER).await.unwrap();
    begun.elapsed()
}

#[tokio::test(flavor = "multi_thread")]
async fn who_ended_by_itself_or_was_never_there_has_no_write_open() {
    let world = world(&[]).await;
    let hub = routers::hub_of(&world).unwrap();
    all_are_fenced(&world).await;
    // The one was ended and is started anew, the other has a new folder.
    let mut router = world.fleet.take_over("router").await.unwrap();
    let second = routers::start(&world, "second", &hub, &ENV).await.unwrap();
    for router in [&router, &second] {
        router.ready().await;
    }
    all_are_fenced(&world).await;
    let took = moved(&world, "h-1").await;
    assert!(took < SOON, "{took:?}");

    router.kill().await.unwrap();
    router.start_again().await.unwrap();
    router.ready().await;
    begin_move(&world, "h-2").await;
    eventually("it is waited for what it may have sent", || async {
        let status = status(&world, "giver").await;
        let waits_for = status.releases.first().map(|release| release.waits_for.clone());
        let waits_for = waits_for.unwrap_or_default();
        if waits_for.starts_with("answers to writes") {
            Ok(())
        } else {
            Err(waits_for)
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_a_member_goes_by_no_policy_it_is_said_and_handed_over_as_before() {
    let world = world(&["--disable-admission-plugins=ValidatingAdmissionPolicy"]).await;
    let said = |found: &Condition| found.status == "False" && found.message.contains("does not go by policy");
    eventually("it is said that nothing is fenced", || async {
        let found = fenced(&world, "giver").await;
        if found.as_ref().is_some_and(said) {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })
    .await;
    let took = moved(&world, "h-1").await;
    assert!(took < SOON, "{took:?}");
    eventually("of who has it now, too", || async {
        let found = fenced(&world, "taker").await;
        let told = found
            .as_ref()
            .is_some_and(|found| said(found) && found.message.contains("h-1"));
        if told { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
}
