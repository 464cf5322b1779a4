//! Two agents of one member: one works, the other stands by, and takes its place when it is killed or ends, before anybody notices.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "also in functions that only tests call; what was measured is told"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use parking_lot::Mutex;
use portolan_crds::MemberCluster;
use portolan_crds::labels::{LEASE_AGENT, SYSTEM_NAMESPACE};
use portolan_testbed::eventually;
use portolan_tests::daemon::Daemon;
use portolan_tests::programs::admin_get;
use portolan_tests::shard::federated;
use portolan_tests::world::{HUB, Plan, PodSpec, World};
use serde_json::json;
use tokio::task::JoinSet;

const MAPS: &str = "/api/v1/configmaps";
/// By a kill, which nobody tells of: the Lease runs out, and the next one begins. On a machine that does nothing else ten seconds.
const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(30);

async fn start() -> World {
    let manifests = federated("ops", "east", &[("east", &["ops-e"])]);
    let plan = Plan {
        members: &["east"],
        namespaces: &["east/ops-e"],
        manifests: &manifests,
        ..Plan::default()
    };
    World::start(plan).await.unwrap()
}

/// Whether the agent has a stream to the hub.
async fn works(agent: &Daemon) -> bool {
    let metrics = admin_get(agent.admin(), "/metrics").await.unwrap_or_default();
    metrics.lines().any(|line| line == "portolan_agent_hub_connected 1")
}

async fn holder(world: &World) -> Option<String> {
    let client = world.cluster("east").client().await.unwrap();
    let leases = Api::<Lease>::namespaced(client, SYSTEM_NAMESPACE);
    leases.get(LEASE_AGENT).await.unwrap().spec?.holder_identity
}

/// A caller that nobody knows before is served, which the agent has to tell of.
async fn a_new_caller_is_served(world: &World, name: &str) {
    let pod = PodSpec {
        namespace: "operators",
        name,
        service_account: "portolan-dev-ops",
        labels: json!({"shard": "ops"}),
    };
    let uid = world.pod("east", pod.clone()).await.unwrap();
    let token = world.token("east", &pod, &uid).await.unwrap();
    let door = world.token_door(Some(&token)).await.unwrap();
    eventually(&format!("{name} is served"), || async {
        let answer = door.get(MAPS, &[]).await.map_err(|error| error.to_string())?;
        (answer.status == 200).then_some(()).ok_or(answer.message())
    })
    .await;
}

/// Statuses of condition Available of the member, each time that it is another.
fn watch_available(client: kube::Client) -> (Arc<Mutex<Vec<String>>>, JoinSet<()>) {
    let members = Api::<MemberCluster>::all(client);
    let (seen, mut watching) = (Arc::<Mutex<Vec<String>>>::default(), JoinSet::new());
    let told = seen.clone();
    watching.spawn(async move {
        loop {
            let member = members.get("east").await.unwrap();
            let conditions = member.status.unwrap_or_default().conditions;
            let available = conditions.into_iter().find(|condition| condition.type_ == "Available");
            if let Some(available) = available {
                let now = format!("{} {}", available.status, available.reason);
                let mut told = told.lock();
                if told.last() != Some(&now) {
                    told.push(now);
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    (seen, watching)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_one_that_stands_by_takes_over_and_no_condition_tells_of_it() {
    let world = start().await;
    world.listed_door("ops", MAPS).await.unwrap();
    let mut first = world.fleet.take_over("agent-east").await.unwrap();
    first.ready().await;
    eventually("the first works", || async { works(&first).await.then_some(()) }).await;
    let second = first.another("agent-second", &[("PORTOLAN_REPLICA", "second")]);
    let mut second = second.await.unwrap();
    second.ready().await;
    assert!(!works(&second).await, "it stands by");
    assert_eq!(holder(&world).await.as_deref(), Some("agent"));
    a_new_caller_is_served(&world, "caller-0").await;
    let (seen, _watching) = watch_available(world.cluster(HUB).client().await.unwrap());
    eventually("the member is available", || async {
        (!seen.lock().is_empty()).then_some(())
    })
    .await;

    let killed = Instant::now();
    first.kill().await.unwrap();
    eventually("the second works", || async { works(&second).await.then_some(()) }).await;
    let took = killed.elapsed();
    println!("killed: taken over after {took:?}");
    assert!(took < TAKEN_OVER_WITHIN, "{took:?}");
    assert_eq!(holder(&world).await.as_deref(), Some("second"));
    a_new_caller_is_served(&world, "caller-1").await;

    first.start_again().await.unwrap();
    first.ready().await;
    assert!(!works(&first).await, "who comes back stands by");
    let ended = Instant::now();
    assert_eq!(second.stop().await.unwrap(), 0);
    eventually("the first works again", || async { works(&first).await.then_some(()) }).await;
    println!("ended: taken over after {:?}", ended.elapsed());
    a_new_caller_is_served(&world, "caller-2").await;
    assert_eq!(*seen.lock(), ["True Ok"], "condition Available all the while");
}
