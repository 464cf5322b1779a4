//! What an operator reads right after it has written, through the merged view, where a member's watch is late: with and
//! without the write fence, with and without controller-runtime's `EnableReadYourWritesConsistency`.
//!
//! The measurements are printed; what the README promises of them is asserted.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "what was measured is told")]

use std::path::Path;
use std::time::Duration;

use kube::api::{Api, Patch, PatchParams};
use portolan_testbed::Fault;
use portolan_tests::go_client::GoClient;
use portolan_tests::shard::federated;
use portolan_tests::world::{Plan, World};
use serde_json::{Value, json};

/// The west's watches are this much behind its writes: well within what the fence waits.
const LATE: Duration = Duration::from_millis(150);
/// Writes of each kind in a measurement.
const WRITES: u64 = 15;
/// Makes the east's versions larger than the west's by more than all the west's writes.
const AHEAD: usize = 400;

async fn start() -> World {
    let fenced = federated("fenced", "east", &[("east", &["ryw-fe"]), ("west", &["ryw-fw"])]);
    let open = federated("open", "east", &[("east", &["ryw-oe"]), ("west", &["ryw-ow"])]).replace(
        "  explicitView: Allow\n",
        "  explicitView: Allow\n  writeFence: Disabled\n",
    );
    let manifests = fenced + &open;
    let plan = Plan {
        members: &["east", "west"],
        namespaces: &[
            "east/ryw-fe",
            "west/ryw-fw",
            "east/ryw-oe",
            "west/ryw-ow",
            "east/ryw-busy",
        ],
        manifests: &manifests,
        ..Plan::default()
    };
    World::start(plan).await.unwrap()
}

/// What `measure` prints of creates and updates.
async fn measured(world: &World, shard: &str, consistent: bool, namespace: &str) -> [Value; 2] {
    let kubeconfig = world.fleet.merged_kubeconfig(shard);
    println!("{shard}:");
    measured_by(&kubeconfig, consistent, namespace, WRITES).await
}

async fn measured_by(kubeconfig: &Path, consistent: bool, namespace: &str, writes: u64) -> [Value; 2] {
    let arguments = [
        "controller-runtime",
        if consistent {
            "--read-your-writes"
        } else {
            "--read-your-writes=false"
        },
    ];
    let mut go = GoClient::synced(kubeconfig, &arguments).await.unwrap();
    go.tell(&format!("measure {namespace} {writes} rw-{consistent}"))
        .await
        .unwrap();
    let mut lines = [Value::Null, Value::Null];
    for (line, of) in lines.iter_mut().zip(["create", "update"]) {
        *line = go.wait("a measurement", |line| line["of"] == of).await.unwrap();
        println!("read-your-writes {consistent}, {namespace}: {line}");
        assert_eq!(line["errors"], json!([]), "{line}");
    }
    lines
}

/// Until half of the writes were seen.
fn p50(line: &Value) -> Duration {
    Duration::from_micros(line["p50"].as_u64().unwrap())
}

#[tokio::test]
async fn the_fence_hides_how_late_a_member_is() {
    let world = start().await;
    let busy = Api::<k8s_openapi::api::core::v1::Namespace>::all(world.cluster("east").client().await.unwrap());
    for at in 0..AHEAD {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {"at": at.to_string()}}}));
        busy.patch("ryw-busy", &PatchParams::default(), &patch).await.unwrap();
    }
    // Requests have their connection by now; that of watches is opened by the first watch, and late for its whole life.
    for shard in ["fenced", "open"] {
        let door = world.merged_door(shard).await.unwrap();
        assert_eq!(door.get("/api/v1/configmaps", &[]).await.unwrap().status, 200);
    }
    world.cluster("west").fault(Fault::DelayNew(LATE)).await.unwrap();
    for consistent in [false, true] {
        for namespace in ["ryw-fe", "ryw-fw"] {
            for line in measured(&world, "fenced", consistent, namespace).await {
                // The answer leaves behind the event, on a stream of its own: the client may read them in either order, and
                // see its write some moments later, but not as late as the member is.
                assert!(p50(&line) < LATE / 2, "{namespace}: {line}");
            }
        }
    }
    for line in measured(&world, "open", false, "ryw-ow").await {
        // A write whose answer was late as well, as on a busy machine one may be, was not read too early.
        assert!(line["stale"].as_u64().unwrap() > WRITES / 2, "nothing was late: {line}");
        assert!(p50(&line) > LATE / 2, "{line}");
    }
    // Printed only: what the option compares are versions of two members, and the west's are the smaller.
    measured(&world, "open", true, "ryw-oe").await;
    measured(&world, "open", true, "ryw-ow").await;
}

/// The figures of the README: how many first reads after a write are stale while other clients list without end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: cargo test --test read_your_writes -- --ignored --nocapture"]
async fn first_reads_under_load() {
    let world = start().await;
    let door = world.merged_door("open").await.unwrap();
    let mut load = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let door = door.clone();
        load.spawn(async move {
            loop {
                let _ = door.get("/api/v1/configmaps", &[]).await;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    }
    let (direct, merged) = (world.cluster("east"), &world.fleet);
    for (kubeconfig, namespace) in [
        (direct.direct_kubeconfig_path().to_owned(), "ryw-busy"),
        (merged.merged_kubeconfig("open"), "ryw-oe"),
        (merged.merged_kubeconfig("fenced"), "ryw-fe"),
    ] {
        measured_by(&kubeconfig, false, namespace, 400).await;
    }
}
