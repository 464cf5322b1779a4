//! What the hub and `portolanctl` tell people about the merged view.

use http::Method;
use portolan_testbed::eventually;
use portolan_tests::door::request;
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
        ("watch", "/api/v1/pods", &["all-namespaces", "east", "west"]),
        (
            "update",
            "/apis/coordination.k8s.io/v1/namespaces/operators/leases/greeting-operator",
            &["leader-election", "greeting-operator---alpha", "east"],
        ),
        ("get", "/clusters/west/version", &["explicit-view", "west"]),
        ("get", "/clusters/none/version", &["no-explicit-view", "403"]),
    ] {
        let said = ctl(world, &["explain", verb, path, caller, "--dir", &dir]).await;
        for word in words {
            assert!(said.contains(word), "{verb} {path}: no {word} in {said}");
        }
    }
    let json = ctl(
        world,
        &["explain", "get", "/version", caller, "--dir", &dir, "-o", "json"],
    )
    .await;
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
    // What others change of members and shards is passing.
    eventually("both members are well", || async {
        let clusters = get("clusters").await;
        let well = |member: &&str| {
            let line = clusters.lines().find(|line| line.starts_with(*member)).unwrap();
            line.matches("True").count() >= 4 && line.contains("v1.36") && line.contains("closed")
        };
        ["east", "west"].iter().all(well).then_some(()).ok_or(clusters)
    })
    .await;
    eventually("shard alpha is told", || async {
        let shards = get("shards").await;
        let mut alpha = shards.lines().skip_while(|line| !line.contains(" alpha "));
        let (first, second) = (alpha.next().unwrap(), alpha.next().unwrap());
        let words = |line: &str, words: &[&str]| words.iter().all(|word| line.contains(word));
        let told = words(first, &["1/1", "east", "ma-1"]) && words(second, &["west", "ma-3"]);
        if told { Ok(()) } else { Err(shards) }
    })
    .await;
    let callers = get("callers").await;
    assert!(
        callers.contains("east/operators/portolan-dev-beta") && callers.contains("operators/beta"),
        "{callers}"
    );
}

/// Legs of shard alpha's open watches on configmaps, as `watch-state` tells programs.
async fn legs(world: &World, dir: &str) -> Vec<Value> {
    let told = ctl(world, &["watch-state", "--dir", dir, "-o", "json"]).await;
    let told: Value = serde_json::from_str(&told).unwrap();
    let watches = told["watches"].as_array().unwrap().clone();
    let mine = watches
        .into_iter()
        .filter(|watch| watch["shard"] == "operators/alpha" && watch["resource"] == "configmaps");
    mine.flat_map(|watch| watch["legs"].as_array().unwrap().clone())
        .collect()
}

#[tokio::test]
async fn open_watches_are_shown_leg_by_leg() {
    let world = world().await;
    let dir = argument(world.fleet.dir());
    let line = world.merged_door("alpha").await.unwrap().open().await.unwrap();
    let path = "/api/v1/configmaps?watch=true&resourceVersion=0";
    let watch = line.send(request(Method::GET, path, &[], b"").unwrap()).await.unwrap();
    assert_eq!(watch.status(), 200);
    eventually("both legs are live", || async {
        let legs = legs(world, &dir).await;
        let mut clusters: Vec<_> = legs.iter().filter(|leg| leg["state"] == "live").collect();
        clusters.sort_by_key(|leg| leg["cluster"].to_string());
        clusters.len() == 2 && clusters[0]["cluster"] == "east" && clusters[1]["cluster"] == "west"
    })
    .await;
    let table = ctl(world, &["watches", "--dir", &dir]).await;
    let line_of = |word: &str| table.lines().find(|line| line.contains(word)).map(str::to_owned);
    let head = line_of("RESTARTS").unwrap();
    assert!(head.starts_with("ID") && head.contains("SLOT"), "{table}");
    assert!(
        line_of("operators/alpha")
            .unwrap()
            .contains("east/operators/portolan-dev-alpha"),
        "{table}"
    );
    drop((watch, line));
    eventually("a watch that has ended is gone", || async {
        legs(world, &dir).await.is_empty()
    })
    .await;
}

const ODDITY: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: oddities.told.example.com}
spec:
  group: told.example.com
  names: {plural: oddities, singular: oddity, kind: Oddity}
  scope: Namespaced
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
";

#[tokio::test]
async fn kinds_of_some_members_only_are_shown() {
    let world = world().await;
    let dir = argument(world.fleet.dir());
    world
        .direct("west")
        .ok_with(&["apply", "-f", "-"], ODDITY)
        .await
        .unwrap();
    eventually("the kind is shown", || async {
        let told = ctl(world, &["get", "kinds", "--dir", &dir]).await;
        let mut lines = told.lines();
        let line = lines.find(|line| line.contains("operators/alpha") && line.contains("oddities.told.example.com"));
        line.is_some_and(|line| line.contains("west (v1)") && line.split_whitespace().any(|word| word == "east"))
    })
    .await;
    let west = world.direct("west");
    west.ok(&["delete", "crd", "oddities.told.example.com"]).await.unwrap();
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
    a_claim_of_what_another_has_is_refused(world).await;
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
    let path = "/api/v1/namespaces/mf-1/configmaps/where";
    let refused = door.get(path, &[]).await.unwrap();
    refused.expect_status(403, &["mf-1", "operators/giver"]).unwrap();

    writes_say_their_epoch(world, "giver").await;
    let giver = world.merged_door("giver").await.unwrap();
    let patch = [("content-type", "application/merge-patch+json")];
    let written = giver.call(Method::PATCH, path, &patch, b"{}").await.unwrap();
    assert_eq!(written.status, 200, "{:?}", written.body);
    let former = annotated_epoch(world).await;
    assert_eq!(late_write(world, former).await, 200);

    // Its owner lets go: the waiting claim is accepted without another edit, and told what it waits for, if it has to.
    let lets_go = federated("giver", "east", &[("east", &["mf-2"])]);
    hub.ok_with(&["apply", "-f", "-"], &lets_go).await.unwrap();
    let (_, reason, message) = eventually("the handover is told", || async {
        let told = told(world, "taker", "Complete").await;
        told.filter(|(_, reason, _)| reason == "HandoverPending" || reason == "Ok")
    })
    .await;
    assert!(
        reason == "Ok" || message.contains("east/mf-1 (of operators/giver)"),
        "{message}"
    );
    // What was told may have been of the spec before.
    eventually("the claim is accepted", || async {
        let told = told(world, "taker", "Accepted").await;
        told.is_some_and(|(status, ..)| status == "True")
    })
    .await;
    // Then it is nobody's for a moment, and never two shards' at once.
    eventually("the namespace is free and taken", || async {
        let taken = door.get(path, &[]).await.unwrap().status;
        let kept = giver.call(Method::PATCH, path, &patch, b"{}").await.unwrap();
        assert!(taken != 200 || kept.status == 403, "{taken} and {kept:?}");
        taken == 200
    })
    .await;
    let complete = || told(world, "taker", "Complete");
    eventually("nothing is waited for", || async {
        complete().await.is_some_and(|(status, ..)| status == "True")
    })
    .await;
    assert_eq!(late_write(world, former).await, 403, "its former owner's");
    assert_eq!(late_write(world, annotated_epoch(world).await).await, 200);
    let taken = door.call(Method::PATCH, path, &patch, b"{}").await.unwrap();
    assert_eq!(taken.status, 200, "{:?}", taken.body);
}

async fn a_claim_of_what_another_has_is_refused(world: &World) {
    let greedy = federated("taker", "east", &[("east", &["mg-1", "mf-1"])]);
    world.direct(HUB).ok_with(&["apply", "-f", "-"], &greedy).await.unwrap();
    let overlap = eventually("the overlap is told", || async {
        let accepted = told(world, "taker", "Accepted").await;
        accepted.filter(|(status, ..)| status == "False")
    })
    .await;
    assert!(overlap.1 == "Overlap" && overlap.2.contains("east/mf-1"), "{overlap:?}");
    assert!(overlap.2.contains("operators/giver"), "{overlap:?}");
}

/// Members then refuse what arrives late of an owner that has let go.
async fn writes_say_their_epoch(world: &World, shard: &str) {
    eventually("its writes say their epoch", || async {
        match told(world, shard, "HandoverFenced").await {
            Some((status, ..)) if status == "True" => Ok(()),
            other => Err(other),
        }
    })
    .await;
}

/// The epoch that east takes of writes to mf-1.
async fn annotated_epoch(world: &World) -> u64 {
    let get = ["get", "namespace", "mf-1", "-o", "json"];
    let found: Value = serde_json::from_str(&world.direct("east").ok(&get).await.unwrap()).unwrap();
    let annotation = &found["metadata"]["annotations"]["ctrlmesh.kusionstack.io/epoch"];
    let epoch = annotation.as_str().and_then(|annotation| annotation.split('.').next());
    epoch.unwrap().parse().unwrap()
}

/// The status code of a write to mf-1 in east, as a router's that is of this epoch.
async fn late_write(world: &World, epoch: u64) -> u16 {
    let request = http::Request::patch("/api/v1/namespaces/mf-1/configmaps/where")
        .header("content-type", "application/merge-patch+json")
        .header("impersonate-user", "late")
        .header("impersonate-group", "system:masters")
        .header("impersonate-extra-ctrlmesh.kusionstack.io%2fepoch", epoch.to_string())
        .body(b"{}".to_vec())
        .unwrap();
    let client = world.cluster("east").client().await.unwrap();
    match client.request_text(request).await {
        Err(kube::Error::Api(status)) => status.code,
        answer => {
            answer.unwrap();
            200
        }
    }
}
