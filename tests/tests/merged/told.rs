//! What the hub and `portolanctl` tell people about the merged view.

use http::Method;
use portolan_testbed::eventually;
use portolan_tests::programs::argument;
use portolan_tests::shard::federated;
use portolan_tests::world::{HUB, World};
use serde_json::Value;

use crate::world;

async fn ctl(world: &World, arguments: &[&str]) -> String {
    let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    world.fleet.run(&arguments).await.unwrap()
}

#[tokio::test]
async fn explain_prints_plan_and_reason() {
    let world = world().await;
    let dir = argument(world.fleet.dir());
    let caller = "--as=east/operators/portolan-dev-alpha";
    for (verb, path, words) in [
        (
            "get",
            "/api/v1/namespaces/ma-3/pods/p",
            &["west", "owned-namespace", "portolan-dev-alpha"][..],
        ),
        (
            "list",
            "/api/v1/namespaces/mb-1/pods",
            &["outside-refused", "403", "operators/beta"],
        ),
        ("watch", "/api/v1/pods", &["several-members", "405"]),
        (
            "update",
            "/apis/coordination.k8s.io/v1/namespaces/operators/leases/greeting-operator",
            &["leader-election", "greeting-operator---alpha", "east"],
        ),
        ("get", "/clusters/west/version", &["explicit-view", "west"]),
        ("get", "/clusters/none/version", &["unknown-cluster", "404"]),
    ] {
        let said = ctl(world, &["explain", verb, path, caller, "--dir", &dir]).await;
        for word in words {
            assert!(said.contains(word), "{verb} {path}: no {word} in {said}");
        }
    }
    let json = ctl(world, &["explain", "get", "/version", caller, "--dir", &dir, "-o", "json"]).await;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["plan"]["forward"]["cluster"], "east", "{json}");
    let unknown = [
        "explain",
        "get",
        "/version",
        "--as=east/operators/nobody",
        "--dir",
        &dir,
    ];
    let unknown = world
        .fleet
        .run(&unknown.map(ToOwned::to_owned))
        .await
        .unwrap_err()
        .to_string();
    assert!(unknown.contains("no caller") && unknown.contains("nobody"), "{unknown}");
}

#[tokio::test]
async fn get_shows_clusters_shards_and_callers() {
    let world = world().await;
    let hub = argument(world.cluster(HUB).direct_kubeconfig_path());
    let get = async |what: &str| ctl(world, &["get", what, "--hub-kubeconfig", &hub]).await;
    let clusters = get("clusters").await;
    for member in ["east", "west"] {
        let line = clusters.lines().find(|line| line.starts_with(member)).unwrap();
        assert!(
            line.matches("True").count() >= 4 && line.contains("v1.36") && line.contains("closed"),
            "{clusters}"
        );
    }
    let shards = get("shards").await;
    let alpha = shards
        .lines()
        .skip_while(|line| !line.contains(" alpha "))
        .take(2)
        .collect::<Vec<_>>();
    assert!(
        alpha[0].contains("1/1") && alpha[0].contains("east") && alpha[0].contains("ma-1"),
        "{shards}"
    );
    assert!(alpha[1].contains("west") && alpha[1].contains("ma-3"), "{shards}");
    let callers = get("callers").await;
    assert!(
        callers.contains("east/operators/portolan-dev-beta") && callers.contains("operators/beta"),
        "{callers}"
    );
}

/// `status`, reason and message of a shard's condition, if it is about the present spec.
async fn told(world: &World, shard: &str, type_: &str) -> Option<(String, String, String)> {
    let get = ["get", "shardingconfig", shard, "-n", "operators", "-o", "json"];
    let object: Value = serde_json::from_str(&world.direct(HUB).ok(&get).await.unwrap()).unwrap();
    let conditions = object["status"]["conditions"].as_array()?.clone();
    let condition = conditions.into_iter().find(|condition| condition["type"] == type_)?;
    let text = |key: &str| condition[key].as_str().unwrap_or_default().to_owned();
    let current = condition["observedGeneration"] == object["metadata"]["generation"];
    current.then(|| (text("status"), text("reason"), text("message")))
}

#[tokio::test]
async fn a_live_namespace_changes_hands_by_two_edits() {
    let world = world().await;
    let hub = world.direct(HUB);
    let greedy = federated("taker", "east", &[("east", &["mg-1", "mf-1"])]);
    hub.ok_with(&["apply", "-f", "-"], &greedy).await.unwrap();
    let overlap = eventually("the overlap is told", || async {
        let accepted = told(world, "taker", "Accepted").await;
        accepted.filter(|(status, ..)| status == "False")
    })
    .await;
    assert!(overlap.1 == "Overlap" && overlap.2.contains("east/mf-1"), "{overlap:?}");
    assert!(overlap.2.contains("operators/giver"), "{overlap:?}");
    // What was good keeps serving, on both sides.
    for (shard, namespace) in [("giver", "mf-1"), ("taker", "mg-1")] {
        let door = world.merged_door(shard).await.unwrap();
        let answer = door
            .get(&format!("/api/v1/namespaces/{namespace}/configmaps/where"), &[])
            .await
            .unwrap();
        assert_eq!(answer.status, 200, "{:?}", answer.body);
    }
    let door = world.merged_door("taker").await.unwrap();
    let refused = door.get("/api/v1/namespaces/mf-1/configmaps/where", &[]).await.unwrap();
    refused.expect_status(403, &["mf-1", "operators/giver"]).unwrap();

    // Its owner lets go: the waiting claim is accepted without another edit, and told what it waits for.
    let lets_go = federated("giver", "east", &[("east", &["mf-2"])]);
    hub.ok_with(&["apply", "-f", "-"], &lets_go).await.unwrap();
    let (.., message) = eventually("the handover is told", || async {
        let told = told(world, "taker", "Complete").await;
        told.filter(|(status, reason, _)| status == "False" && reason == "HandoverPending")
    })
    .await;
    assert!(message.contains("east/mf-1 (of operators/giver)"), "{message}");
    let (status, ..) = told(world, "taker", "Accepted").await.unwrap();
    assert_eq!(status, "True");
    // Then it is nobody's for a moment, and never two shards' at once.
    let path = "/api/v1/namespaces/mf-1/configmaps/where";
    let giver = world.merged_door("giver").await.unwrap();
    let patch = [("content-type", "application/merge-patch+json")];
    eventually("the namespace is free and taken", || async {
        let taken = door.get(path, &[]).await.unwrap().status;
        let kept = giver.call(Method::PATCH, path, &patch, b"{}").await.unwrap();
        assert!(taken != 200 || kept.status == 403, "{taken} and {kept:?}");
        taken == 200
    })
    .await;
    eventually("nothing is waited for", || async {
        told(world, "taker", "Complete")
            .await
            .is_some_and(|(status, ..)| status == "True")
    })
    .await;
}
