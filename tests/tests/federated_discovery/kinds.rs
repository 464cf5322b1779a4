//! Kinds that not all members serve, or not in the same versions.

use std::time::{Duration, Instant};

use http::{Method, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use portolan_testbed::{eventually, patience};
use portolan_tests::door::{Door, request};
use portolan_tests::programs::admin_get;
use serde_json::{Value, json};

use crate::{AGGREGATED, GROUP, define, definition, kubectl, resources, world};

#[tokio::test]
async fn a_kind_of_one_member_is_listed_and_works() {
    let cache = tempfile::tempdir().unwrap();
    let kubectl = kubectl(&cache).await;
    let listed = kubectl
        .ok(&["api-resources", "--api-group", GROUP, "--no-headers"])
        .await
        .unwrap();
    let listed: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        listed,
        [
            ["ports", "disco.test/v1", "true", "Port"],
            ["ships", "disco.test/v1", "true", "Ship"]
        ]
    );
    let port = "apiVersion: disco.test/v1\nkind: Port\nmetadata: {name: lisbon, namespace: da-3}\nspec: {depth: 12}\n";
    kubectl.ok_with(&["apply", "-f", "-"], port).await.unwrap();
    let west = world().await.direct("west");
    west.ok(&["get", "port", "lisbon", "-n", "da-3"]).await.unwrap();
    let seen = kubectl.ok(&["get", "ports", "-A", "--no-headers"]).await.unwrap();
    assert!(seen.contains("lisbon"), "{seen}");
}

/// A young kind's storage begins with 429.
async fn listed(door: &Door, path: &str) {
    eventually(&format!("{path} is listed"), || async {
        let answer = door.get(path, &[]).await.unwrap();
        if answer.status == 200 && answer.json()["items"].is_array() {
            Ok(())
        } else {
            Err(answer.message())
        }
    })
    .await;
}

#[tokio::test]
async fn versions_are_those_in_common_and_none_is_told() {
    let door = world().await.merged_door("alpha").await.unwrap();
    let answer = door.get("/apis", &[("accept", AGGREGATED)]).await.unwrap();
    let warning = answer.header("warning").to_owned();
    assert!(warning.contains("boats.disco.test is left out"), "{warning}");
    assert!(
        warning.contains("east: v2") && warning.contains("west: v1"),
        "{warning}"
    );
    let found = resources(&door).await;
    assert!(
        !found
            .iter()
            .any(|name| name.contains("boats") || name.contains("disco.test/v2")),
        "{found:?}"
    );
    assert_eq!(door.get("/apis/disco.test/v2", &[]).await.unwrap().status, 404);
    for path in [
        "/apis/disco.test/v1/boats",
        "/apis/disco.test/v2/boats",
        "/apis/disco.test/v2/ships",
    ] {
        let answer = door.get(path, &[]).await.unwrap();
        assert!((400..500).contains(&answer.status), "{path}: {}", answer.status);
        answer
            .expect_status(answer.status, &["disco.test", "/clusters/"])
            .unwrap();
    }
    listed(&door, "/apis/disco.test/v1/ships").await;
}

#[tokio::test]
async fn a_new_kind_shows_up_soon() {
    let world = world().await;
    let door = world.merged_door("alpha").await.unwrap();
    let mut definition = definition("buoys", "Buoy", &["v1"]);
    definition["metadata"]["name"] = json!("buoys.late.test");
    definition["spec"]["group"] = json!("late.test");
    define(world, "west", &definition).await;
    let since = Instant::now();
    eventually("the router has seen it", || async {
        let found = resources(&door).await;
        if found.iter().any(|name| name == "late.test/v1/buoys") {
            Ok(())
        } else {
            Err(found.len())
        }
    })
    .await;
    // The router looks every two seconds; the rest is for a busy machine.
    assert!(since.elapsed() < Duration::from_secs(15), "{:?}", since.elapsed());
    listed(&door, "/apis/late.test/v1/buoys").await;
}

/// Asked right when the members themselves begin to serve it, with no question before that the router could have learnt
/// from. Taken for a kind with namespaces, which is what it would be by its group alone, the one name of both is not shown
/// once.
#[tokio::test]
async fn a_new_kind_is_listed_as_soon_as_its_members_list_it() {
    const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let world = world().await;
    let door = world.merged_door("alpha").await.unwrap();
    for number in 0..3 {
        let plural = format!("skiff{number}s");
        let mut skiffs = definition(&plural, &format!("Skiff{number}"), &["v1"]);
        skiffs["metadata"]["name"] = json!(format!("{plural}.late.test"));
        skiffs["spec"]["group"] = json!("late.test");
        skiffs["spec"]["scope"] = json!("Cluster");
        let all = format!("/apis/late.test/v1/{plural}");
        let skiff =
            json!({"apiVersion": "late.test/v1", "kind": format!("Skiff{number}"), "metadata": {"name": "one"}});
        for member in ["east", "west"] {
            let direct = world.direct_door(member).await.unwrap();
            let made = direct.post(DEFINITIONS, &skiffs).await.unwrap();
            assert_eq!(made.status, 201, "{}", made.message());
            let begins = Instant::now();
            while direct.post(&all, &skiff).await.unwrap().status != 201 {
                assert!(begins.elapsed() < patience(), "{plural} is not served");
            }
        }
        let answer = door.get(&all, &[]).await.unwrap();
        assert_eq!(answer.status, 200, "{plural}: {}", answer.message());
        let items = answer.json()["items"].as_array().unwrap().len();
        assert_eq!(items, 1, "{}", answer.json());
    }
}

/// What a watch is sent, until it has this word.
async fn comes(answer: &mut Response<Incoming>, word: &str) {
    let mut seen = String::new();
    while !seen.contains(word) {
        let frame = tokio::time::timeout(patience(), answer.frame()).await;
        let frame = frame.unwrap_or_else(|_| panic!("no {word}: {seen}"));
        let data = frame.unwrap_or_else(|| panic!("it ended: {seen}")).unwrap().into_data();
        seen.push_str(&String::from_utf8_lossy(&data.unwrap_or_default()));
    }
}

#[tokio::test]
async fn a_member_that_begins_to_serve_a_kind_joins_its_running_watches() {
    let world = world().await;
    let door = world.merged_door("alpha").await.unwrap();
    let mut rafts = definition("rafts", "Raft", &["v1"]);
    rafts["metadata"]["name"] = json!("rafts.late.test");
    rafts["spec"]["group"] = json!("late.test");
    define(world, "east", &rafts).await;
    resources(&door).await;
    let all = "/apis/late.test/v1/rafts";
    listed(&door, all).await;
    let line = door.open().await.unwrap();
    let watch = request(Method::GET, &format!("{all}?watch=true"), &[], &[]).unwrap();
    let mut watch = line.send(watch).await.unwrap();
    assert_eq!(watch.status(), 200);

    define(world, "west", &rafts).await;
    let west = world.direct_door("west").await.unwrap();
    listed(&west, all).await;
    let raft = json!({"apiVersion": "late.test/v1", "kind": "Raft", "metadata": {"name": "medusa"}});
    let made = west
        .post("/apis/late.test/v1/namespaces/da-3/rafts", &raft)
        .await
        .unwrap();
    assert_eq!(made.status, 201, "{}", made.message());
    // Whoever discovers it.
    resources(&door).await;
    comes(&mut watch, "medusa").await;
    let definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/rafts.late.test";
    west.call(Method::DELETE, definition, &[], &[]).await.unwrap();
    comes(&mut watch, "DELETED").await;
}

#[tokio::test]
async fn the_admin_page_names_kinds_that_are_not_everywhere() {
    let world = world().await;
    let admin = world.fleet.process("router").unwrap().admin;
    let page: Value = serde_json::from_str(&admin_get(&admin, "/kinds").await.unwrap()).unwrap();
    let shard = &page["shards"][0];
    assert_eq!(
        (&shard["shard"], &shard["neverRead"]),
        (&json!("operators/alpha"), &json!([]))
    );
    let kinds = shard["partial"].as_array().unwrap();
    let find = |name: &str| {
        kinds
            .iter()
            .find(|kind| kind["resource"] == name)
            .unwrap_or_else(|| panic!("{name}: {page}"))
    };
    assert_eq!(find("ports")["missing"], json!(["east"]));
    assert_eq!(
        (&find("ships")["offered"], &find("boats")["offered"]),
        (&json!(["v1"]), &json!([]))
    );
}
