//! Leaders are elected through Portolan by every kind of lock that client-go has or had: each shard by a lock of its own in
//! its primary, and nobody anew while the primary is away. How a lock looks to whoever writes it by hand is in `verbs`.
//!
//! Shards `red` and `blue` lock by ConfigMaps, `green` and `gold` by Endpoints, all by Leases too, all by the same name. All
//! have their primary in west; `red` has callers in both clusters, the others in east.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "also in functions that only tests call"
)]

#[path = "elections/verbs.rs"]
mod verbs;

use std::time::{Duration, Instant};

use portolan_testbed::Fault;
use portolan_tests::go_client::GoClient;
use portolan_tests::shard::federated;
use portolan_tests::world::{Plan, Shared, World};
use tokio::sync::RwLock;
use tokio::time::timeout;

const NAME: &str = "greeting-operator";
/// As `tests/clients/elect.go` has them.
const LEASE_DURATION: Duration = Duration::from_secs(6);
const RENEW_DEADLINE: Duration = Duration::from_secs(4);

static WORLD: Shared = Shared::const_new();
/// Who cuts west has the fleet for itself.
static WEST: RwLock<()> = RwLock::const_new(());

async fn world() -> &'static World {
    let shard = |name: &str, callers: &str, lock: &str, namespace: &str| {
        let in_west = format!("{namespace}-w");
        federated(name, "east", &[("east", &[namespace]), ("west", &[&in_west])])
            .replace(
                "callerClusters: [east]\n  primaryCluster: east",
                &format!("callerClusters: [{callers}]\n  primaryCluster: west"),
            )
            .replace(NAME, &format!("{NAME}\n    leaderElectionResourceLock: {lock}"))
    };
    let manifests = [
        shard("red", "east, west", "configmaps", "el-1"),
        shard("blue", "east", "configmapsleases", "el-2"),
        shard("green", "east", "endpoints", "el-3"),
        shard("gold", "east", "endpointsleases", "el-4"),
        federated("plain", "east", &[("east", &["el-5"])]),
    ]
    .concat();
    let plan = Plan {
        members: &["east", "west"],
        namespaces: &[
            "east/el-1",
            "east/el-2",
            "east/el-3",
            "east/el-4",
            "east/el-5",
            "west/el-1-w",
            "west/el-2-w",
            "west/el-3-w",
            "west/el-4-w",
        ],
        manifests: &manifests,
        ..Plan::default()
    };
    World::shared(&WORLD, plan).await
}

/// A replica that wants to lead: of which shard (and cluster), by which kind of lock, in which encoding, and who it is.
async fn candidate(shard: &str, (resource, client): (&str, &str), identity: &str, name: &str) -> GoClient {
    let kubeconfig = world().await.fleet.merged_kubeconfig(shard);
    let flags = [
        "elect",
        "--namespace",
        "operators",
        "--resource",
        resource,
        "--client",
        client,
    ];
    GoClient::start(&kubeconfig, &[&flags[..], &[identity, name]].concat()).unwrap()
}

/// Whether it begins to lead within some time.
async fn leads_within(candidate: &mut GoClient, time: Duration) -> bool {
    timeout(time, candidate.wait_type("leads"))
        .await
        .is_ok_and(|line| line.is_ok())
}

/// Two shards lead at once by one name, in different words; a second replica of the first does not, until the first has gone.
async fn lead_side_by_side(resource: &str, [one, two]: [&str; 2]) {
    let _west = WEST.read().await;
    let mut first = candidate(one, (resource, "typed"), "one-a", NAME).await;
    first.wait_type("leads").await.unwrap();
    let mut other = candidate(two, (resource, "json"), "two-a", NAME).await;
    other.wait_type("leads").await.unwrap();
    let elsewhere = if one == "red" { "red@west" } else { one };
    let mut second = candidate(elsewhere, (resource, "json"), "one-b", NAME).await;
    // Nothing tells that something will not happen but that it does not, for longer than a lock holds unrenewed.
    let too_soon = leads_within(&mut second, LEASE_DURATION + Duration::from_secs(2)).await;
    assert!(!too_soon, "two leaders of one shard");
    let lost = |client: &GoClient| client.seen().iter().any(|line| line["type"] == "lost");
    assert!(!lost(&first) && !lost(&other));
    drop(first);
    second.wait_type("leads").await.unwrap();
}

#[tokio::test]
async fn shards_lead_side_by_side_by_leases() {
    lead_side_by_side("coordination.k8s.io/v1/leases", ["red", "blue"]).await;
}

#[tokio::test]
async fn shards_lead_side_by_side_by_config_maps() {
    lead_side_by_side("v1/configmaps", ["red", "blue"]).await;
}

#[tokio::test]
async fn shards_lead_side_by_side_by_endpoints() {
    lead_side_by_side("v1/endpoints", ["green", "gold"]).await;
}

/// Nobody can become leader without the primary; who leads goes on until its own deadline, and somebody leads again after.
#[tokio::test]
async fn nobody_becomes_leader_while_the_primary_is_away() {
    let _west = WEST.write().await;
    let world = world().await;
    let lock = ("v1/configmaps", "typed");
    let mut leader = candidate("blue", lock, "a", NAME).await;
    leader.wait_type("leads").await.unwrap();
    let mut other = candidate("blue", lock, "b", NAME).await;

    world.cluster("west").fault(Fault::Reset).await.unwrap();
    let cut = Instant::now();
    leader.wait_type("lost").await.unwrap();
    // It may have renewed right before, or a period before.
    assert!(
        cut.elapsed() + Duration::from_secs(1) >= RENEW_DEADLINE,
        "{:?}",
        cut.elapsed()
    );
    let (renewed, taken) = tokio::join!(
        leads_within(&mut leader, LEASE_DURATION + RENEW_DEADLINE),
        leads_within(&mut other, LEASE_DURATION + RENEW_DEADLINE)
    );
    assert!(!renewed && !taken, "somebody leads without the primary");

    world.cluster("west").fault(Fault::None).await.unwrap();
    tokio::select! {
        leads = leader.wait_type("leads") => leads,
        leads = other.wait_type("leads") => leads,
    }
    .unwrap();
}
