//! Leader locks move under candidates that run: to another member, to another name, to another kind, and away from a member that
//! is gone. Whoever leads goes on where that can be, and two never lead at once: nor where a leader becomes another shard's caller,
//! or its shard is made anew under another name.
//!
//! Two routers serve the candidates, of client-go; all shards have callers in east and west. No lock is held for longer than
//! [`LONGEST`] without a renewal, as the hub is told.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "also in functions that only tests call"
)]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use portolan_crds::ShardingConfig;
use portolan_crds::labels::LOCK_MOVED;
use portolan_testbed::{Fault, eventually};
use portolan_tests::daemon::Daemon;
use portolan_tests::door::{Answer, Door};
use portolan_tests::go_client::GoClient;
use portolan_tests::routers;
use portolan_tests::shard::federated;
use portolan_tests::world::{Plan, Shared, World};
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use tokio::time::timeout;

const NAME: &str = "greeting-operator";
const LEASES: &str = "coordination.k8s.io/v1/leases";
/// More than `tests/clients/elect.go` has as its lease duration.
const LONGEST: Duration = Duration::from_secs(8);

static WORLD: Shared = Shared::const_new();
static SECOND: OnceCell<Daemon> = OnceCell::const_new();

async fn world() -> &'static World {
    let shard = |name: &str, primary: &str, namespace: &str| {
        let own = [namespace];
        let mut owns: Vec<(&str, &[&str])> = vec![("east", &own), ("west", &[])];
        owns.extend((primary == "north").then_some(("north", &[][..])));
        federated(name, "east", &owns)
            .replace("namespaces: []", &format!("namespaces: [none-{name}]"))
            .replace(
                "callerClusters: [east]\n  primaryCluster: east",
                &format!("callerClusters: [east, west]\n  primaryCluster: {primary}"),
            )
    };
    let manifests = [
        shard("red", "east", "em-1"),
        shard("blue", "east", "em-2"),
        shard("green", "north", "em-3"),
        shard("gold", "west", "em-4"),
        shard("old", "east", "em-5"),
        federated("left", "east", &[("east", &["em-6"])]),
        federated("right", "east", &[("east", &["em-7"])]),
    ]
    .concat();
    let plan = Plan {
        members: &["east", "west", "north"],
        namespaces: &[
            "east/em-1",
            "east/em-2",
            "east/em-3",
            "east/em-4",
            "east/em-5",
            "east/em-6",
            "east/em-7",
        ],
        manifests: &manifests,
        env: &[("PORTOLAN_LONGEST_LEASE_SECONDS", "8")],
        ..Plan::default()
    };
    World::shared(&WORLD, plan).await
}

/// How a caller (`shard` or `shard@cluster`) finds the second router.
async fn by_second_router(caller: &str) -> PathBuf {
    let world = world().await;
    let start = || async {
        let router = routers::start(world, "second", &routers::hub_of(world).unwrap(), &[]).await;
        let router = router.unwrap();
        router.ready().await;
        router
    };
    let second = SECOND.get_or_init(start).await;
    let kubeconfig = std::fs::read_to_string(world.fleet.merged_kubeconfig(caller)).unwrap();
    let first = world.fleet.router_url().unwrap();
    assert!(kubeconfig.contains(&first), "{first}: {kubeconfig}");
    let path = world.fleet.dir().join(format!("second-{caller}.yaml"));
    std::fs::write(&path, kubeconfig.replace(&first, &format!("https://{}", second.bind()))).unwrap();
    path
}

/// A replica that wants to lead, by this kind of lock and name.
fn candidate(kubeconfig: &std::path::Path, identity: &str, (resource, name): (&str, &str)) -> GoClient {
    let flags = [
        "elect",
        "--namespace",
        "operators",
        "--resource",
        resource,
        "--client",
        "typed",
    ];
    GoClient::start(kubeconfig, &[&flags[..], &[identity, name]].concat()).unwrap()
}

fn says(client: &GoClient, word: &str) -> bool {
    client.seen().iter().any(|line| line["type"] == word)
}

async fn edit(shard: &str, spec: Value) {
    let client = world().await.cluster("hub").client().await.unwrap();
    let shards: Api<ShardingConfig> = Api::namespaced(client, "operators");
    let patch = Patch::Merge(json!({ "spec": spec }));
    shards.patch(shard, &PatchParams::default(), &patch).await.unwrap();
}

/// What a member has as the lock of a shard.
async fn lock(member: &str, (resource, name): (&str, &str), shard: &str) -> Value {
    let (group, plural) = resource.rsplit_once('/').unwrap();
    let root = if group == "v1" {
        "/api/v1".to_owned()
    } else {
        format!("/apis/{group}")
    };
    let path = format!("{root}/namespaces/operators/{plural}/{name}---{shard}");
    let door = world().await.direct_door(member).await.unwrap();
    door.get(&path, &[]).await.unwrap().json()
}

/// `holder` renews there.
async fn renews(holder: &str, member: &str, kind: (&str, &str), shard: &str) {
    let mut seen = Value::Null;
    for what in ["holds", "renews"] {
        let before = &seen;
        seen = eventually(&format!("{holder} {what} the lock in {member}"), || async move {
            let spec = lock(member, kind, shard).await["spec"].clone();
            let renewed = spec["renewTime"].clone();
            (spec["holderIdentity"] == holder && renewed != *before)
                .then_some(renewed)
                .ok_or(spec)
        })
        .await;
    }
}

/// The handover is over: the shard's object says that nothing is on its way.
async fn settled(shard: &str) {
    let world = world().await;
    let client = world.cluster("hub").client().await.unwrap();
    let shards: Api<ShardingConfig> = Api::namespaced(client, "operators");
    eventually("the lock is where it is to be", || async {
        let object = shards.get(shard).await.unwrap();
        let status = object.status.unwrap_or_default();
        let is_observed = status.observed_generation == object.metadata.generation;
        let lock = status.lock;
        (is_observed && lock.is_none()).then_some(()).ok_or(lock)
    })
    .await;
}

#[tokio::test]
async fn who_leads_goes_on_while_the_lock_moves_to_another_member_and_back() {
    let world = world().await;
    let kind = (LEASES, NAME);
    let mut leader = candidate(&world.fleet.merged_kubeconfig("red"), "a", kind);
    leader.wait_type("leads").await.unwrap();
    let mut other = candidate(&by_second_router("red@west").await, "b", kind);
    for (from, to) in [("east", "west"), ("west", "east"), ("east", "west")] {
        edit("red", json!({"primaryCluster": to})).await;
        renews("a", to, kind, "red").await;
        settled("red").await;
        assert!(!says(&leader, "lost"), "from {from} to {to}");
        assert!(!says(&other, "leads"), "two leaders from {from} to {to}");
        let left = lock(from, kind, "red").await;
        assert!(left["metadata"]["annotations"][LOCK_MOVED].is_string(), "{left}");
    }
    drop(leader);
    other.wait_type("leads").await.unwrap();
}

#[tokio::test]
async fn who_leads_goes_on_by_the_former_name() {
    let world = world().await;
    let mut leader = candidate(&world.fleet.merged_kubeconfig("blue"), "a", (LEASES, NAME));
    leader.wait_type("leads").await.unwrap();
    edit(
        "blue",
        json!({"primaryCluster": "west", "controller": {"leaderElectionName": "renamed"}}),
    )
    .await;
    let mut other = candidate(&by_second_router("blue@west").await, "b", (LEASES, "renamed"));
    renews("a", "west", (LEASES, "renamed"), "blue").await;
    settled("blue").await;
    assert!(!says(&leader, "lost") && !says(&other, "leads"));
    drop(leader);
    other.wait_type("leads").await.unwrap();
    let mut again = candidate(&world.fleet.merged_kubeconfig("blue"), "c", (LEASES, NAME));
    drop(other);
    again.wait_type("leads").await.unwrap();
}

#[tokio::test]
async fn the_lock_leaves_a_member_that_is_gone() {
    let world = world().await;
    let kind = (LEASES, NAME);
    let mut leader = candidate(&world.fleet.merged_kubeconfig("green"), "a", kind);
    leader.wait_type("leads").await.unwrap();
    let mut other = candidate(&by_second_router("green@west").await, "b", kind);
    // No other test has anything in north.
    world.cluster("north").fault(Fault::Reset).await.unwrap();
    leader.wait_type("lost").await.unwrap();
    let asked = Instant::now();
    edit("green", json!({"primaryCluster": "east"})).await;
    tokio::select! {
        leads = leader.wait_type("leads") => leads,
        leads = other.wait_type("leads") => leads,
    }
    .unwrap();
    assert!(
        asked.elapsed() >= LONGEST,
        "somebody may have led still: {:?}",
        asked.elapsed()
    );
    settled("green").await;
    world.cluster("north").fault(Fault::None).await.unwrap();
}

#[tokio::test]
async fn a_lock_of_another_kind_begins_when_no_other_is_held() {
    let world = world().await;
    let mut leader = candidate(&world.fleet.merged_kubeconfig("gold"), "a", (LEASES, NAME));
    leader.wait_type("leads").await.unwrap();
    edit(
        "gold",
        json!({"controller": {"leaderElectionResourceLock": "configmaps"}}),
    )
    .await;
    leader.wait_type("lost").await.unwrap();
    let lost = Instant::now();
    drop(leader);
    let mut other = candidate(&by_second_router("gold@west").await, "b", ("v1/configmaps", NAME));
    let leads = timeout(LONGEST * 20, other.wait_type("leads")).await;
    leads.unwrap().unwrap();
    // The leader gave up 4 s after its last renewal, or later.
    assert!(
        lost.elapsed() + Duration::from_secs(5) >= LONGEST,
        "{:?}",
        lost.elapsed()
    );
    settled("gold").await;
}

/// The Pod of the callers of `shard` in east is another shard's from now on.
async fn relabel(shard: &str, to: &str) {
    let client = world().await.cluster("east").client().await.unwrap();
    let pods: Api<Pod> = Api::namespaced(client, "operators");
    let patch = Patch::Merge(json!({"metadata": {"labels": {"shard": to}}}));
    let pod = format!("portolan-dev-{shard}");
    pods.patch(&pod, &PatchParams::default(), &patch).await.unwrap();
}

/// A caller makes something in a namespace, by one router.
async fn makes(door: &Door, namespace: &str) -> Answer {
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "made-"}});
    let path = format!("/api/v1/namespaces/{namespace}/configmaps");
    door.post(&path, &object).await.unwrap()
}

/// Makes things in a namespace until it is let; what it was answered before, but for a namespace that was not its shard's yet.
async fn is_let(door: &Door, namespace: &str, mut each: impl FnMut(&Answer)) {
    let begun = Instant::now();
    loop {
        let answer = makes(door, namespace).await;
        match answer.status {
            201 => return,
            403 => {}
            _ => each(&answer),
        }
        let message = answer.message();
        assert!(begun.elapsed() < LONGEST * 20, "{} {message}", answer.status);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_leader_that_changes_its_shard_reads_there_and_writes_when_it_leads_no_more() {
    let world = world().await;
    // Who renewed nothing waits for nobody.
    let idle = world.merged_door("right").await.unwrap();
    relabel("right", "left").await;
    is_let(&idle, "em-6", |answer| panic!("{} {}", answer.status, answer.message())).await;

    let doors = [
        world.merged_door("left").await.unwrap(),
        Door::of_kubeconfig(&by_second_router("left").await, None)
            .await
            .unwrap(),
    ];
    let mut leader = candidate(&world.fleet.merged_kubeconfig("left"), "l", (LEASES, NAME));
    leader.wait_type("leads").await.unwrap();
    renews("l", "east", (LEASES, NAME), "left").await;
    relabel("left", "right").await;
    // By the router that saw it renew, and by the one that did not, side by side.
    let writes = doors.each_ref().map(async |door| {
        let mut refused = 0;
        is_let(door, "em-7", |answer| {
            // The second router may not have been told all yet.
            if answer.status == 503 && answer.message().contains("no credential for member cluster east yet") {
                return;
            }
            let words = ["may take itself for the leader", "---left"];
            answer.expect_status(429, &words).unwrap();
            assert_eq!(answer.header("retry-after"), "1");
            refused += 1;
        })
        .await;
        (refused, Instant::now())
    });
    let reads = async {
        let path = "/api/v1/namespaces/em-7/configmaps?limit=1";
        eventually("it reads where it may not write", || async {
            let answer = doors[0].get(path, &[]).await.unwrap();
            (answer.status == 200).then_some(()).ok_or(answer.message())
        })
        .await;
        Instant::now()
    };
    let loses = async {
        leader.wait_type("lost").await.unwrap();
        Instant::now()
    };
    let [first, second] = writes;
    let (first, second, read, lost) = tokio::join!(first, second, reads, loses);
    assert!(first.0 > 0 && second.0 > 0, "nothing was refused");
    let early = [first.1, second.1].map(|wrote| lost.saturating_duration_since(wrote));
    assert_eq!(early, [Duration::ZERO; 2], "it wrote while it took itself for a leader");
    assert!(read < lost, "it reads at once");
}

#[tokio::test]
async fn a_shard_made_anew_under_another_name_has_no_leader_beside_the_last() {
    let world = world().await;
    let kind = (LEASES, NAME);
    let mut leader = candidate(&world.fleet.merged_kubeconfig("old"), "a", kind);
    leader.wait_type("leads").await.unwrap();
    let mut other = candidate(&by_second_router("old@west").await, "b", kind);
    let client = world.cluster("hub").client().await.unwrap();
    let shards: Api<ShardingConfig> = Api::namespaced(client, "operators");
    let spec = shards.get("old").await.unwrap().spec;
    shards.delete("old", &DeleteParams::default()).await.unwrap();
    let anew = ShardingConfig::new("anew", spec);
    shards.create(&PostParams::default(), &anew).await.unwrap();
    tokio::select! {
        leads = other.wait_type("leads") => leads,
        // It may be the first again, once it has given up.
        leads = leader.wait_type("leads") => leads,
    }
    .unwrap();
    assert!(says(&leader, "lost"), "two leaders");
    settled("anew").await;
}
