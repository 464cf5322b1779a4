//! One watch over what has no namespace: a name that both members have is shown once, the primary's first, and is gone
//! only when both have lost it; and a watch of the shard's namespaces, which come and go.

use std::collections::{BTreeMap, BTreeSet};

use kube::Api;
use kube::api::{Patch, PatchParams};
use portolan_crds::ShardingConfig;
use portolan_testbed::{Fault, eventually};
use portolan_tests::watch::{Held, WATCH_LIST, Watch, held};
use serde_json::{Value, json};

use crate::{MEMBERS, ROLES, delete, direct, door, merge_patch, role, world};

/// ClusterRoles of one test.
fn of(test: &str) -> String {
    format!("{ROLES}?labelSelector=test%3D{test}")
}

/// What a client of the merged view is to hold of a test's ClusterRoles, asked past the router.
async fn truth(test: &str) -> Held {
    let mut all = Held::new();
    for member in ["west", "east"] {
        let list = direct(member).await.get(&of(test), &[]).await.unwrap().json();
        all.extend(held(&list).unwrap());
    }
    all
}

/// Two watches of a test's ClusterRoles: from a list's position, and with initial events.
async fn both(test: &str) -> [Watch; 2] {
    let door = door("wide").await;
    let list = door.get(&of(test), &[]).await.unwrap().json();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap();
    let path = format!("{}&resourceVersion={version}", of(test));
    let mut listed = Watch::open(&door, &path).await.unwrap();
    listed.held = held(&list).unwrap();
    let mut streamed = Watch::open(&door, &format!("{}&{WATCH_LIST}", of(test))).await.unwrap();
    streamed.begun().await.unwrap();
    assert_eq!((&listed.held, &streamed.held), (&truth(test).await, &truth(test).await));
    [listed, streamed]
}

async fn hold_the_truth(test: &str, watches: &mut [Watch]) {
    for watch in watches {
        watch.holds(async || truth(test).await).await.unwrap();
        assert_eq!(watch.count("ERROR"), 0, "{:?}", watch.seen);
    }
}

#[tokio::test]
async fn the_others_is_shown_when_the_primarys_is_gone() {
    let _calm = MEMBERS.read().await;
    let (east, west) = (direct("east").await, direct("west").await);
    let test = "unions";
    let path = format!("{ROLES}/unions-both");
    role("east", test, "unions-east").await;
    role("west", test, "unions-west").await;
    role("west", test, "unions-both").await;
    role("east", test, "unions-both").await;
    let warned = door("wide").await.get(&of(test), &[]).await.unwrap();
    assert!(
        warned.header("warning").contains("1 hidden behind"),
        "{:?}",
        warned.headers
    );
    let mut watches = both(test).await;

    // Hidden, and stays so.
    let hidden = merge_patch(&west, &path, &json!({"metadata": {"annotations": {"hidden": "yes"}}})).await;
    assert_eq!(hidden.status, 200);
    role("west", test, "unions-later").await;
    hold_the_truth(test, &mut watches).await;
    for watch in &watches {
        assert_eq!(watch.count("MODIFIED"), 0, "{:?}", watch.seen);
    }

    assert_eq!(delete(&east, &path).await.status, 200);
    hold_the_truth(test, &mut watches).await;
    for watch in &watches {
        assert_eq!(watch.count("DELETED"), 0, "{:?}", watch.seen);
    }
    // The primary has it again, then the other loses it, then both have.
    role("east", test, "unions-both").await;
    hold_the_truth(test, &mut watches).await;
    assert_eq!(delete(&west, &path).await.status, 200);
    role("west", test, "unions-last").await;
    hold_the_truth(test, &mut watches).await;
    for watch in &watches {
        assert_eq!(watch.count("DELETED"), 0, "{:?}", watch.seen);
    }
    assert_eq!(delete(&east, &path).await.status, 200);
    hold_the_truth(test, &mut watches).await;
    for watch in &watches {
        assert_eq!(watch.count("DELETED"), 1, "{:?}", watch.seen);
    }
}

#[tokio::test]
async fn a_member_goes_and_comes_back() {
    let _mine = MEMBERS.write().await;
    let test = "aways";
    let west = world().await.cluster("west");
    role("east", test, "aways-both").await;
    role("west", test, "aways-both").await;
    role("west", test, "aways-west").await;
    let mut watches = both(test).await;

    west.fault(Fault::Reset).await.unwrap();
    let fresh = door_while_away(test).await;
    fresh.expect_status(429, &["west"]).unwrap();
    let refused = delete(&world().await.merged_door("wide").await.unwrap(), &of(test)).await;
    refused.expect_status(503, &["west", "nothing is deleted"]).unwrap();
    role("east", test, "aways-meanwhile").await;
    for watch in &mut watches {
        assert_eq!(watch.sees("aways-meanwhile").await.unwrap(), "ADDED");
    }
    // Whether the other still has it cannot be known now.
    let path = format!("{ROLES}/aways-both");
    assert_eq!(delete(&direct("east").await, &path).await.status, 200);
    role("east", test, "aways-after").await;
    for watch in &mut watches {
        assert_eq!(watch.sees("aways-after").await.unwrap(), "ADDED");
    }
    west.fault(Fault::None).await.unwrap();
    role("west", test, "aways-back").await;
    hold_the_truth(test, &mut watches).await;
    for watch in &watches {
        assert_eq!(watch.count("DELETED"), 0, "{:?}", watch.seen);
        assert_eq!(watch.count("ADDED aways-back"), 1, "{:?}", watch.seen);
    }
}

/// A list that is answered without west, once the router knows.
async fn door_while_away(test: &str) -> portolan_tests::door::Answer {
    let door = world().await.merged_door("wide").await.unwrap();
    eventually("west is known to be away", || async {
        let answer = door.get(&of(test), &[]).await.unwrap();
        (answer.status != 200).then_some(answer)
    })
    .await
}

/// All ClusterRoles, most of which both members have of themselves.
#[tokio::test]
async fn every_name_is_the_primarys_at_first() {
    let _calm = MEMBERS.read().await;
    let door = door("wide").await;
    let mut watch = Watch::open(&door, &format!("{ROLES}?{WATCH_LIST}")).await.unwrap();
    // The other's is told too if it comes before the primary's.
    let mut told = BTreeMap::new();
    loop {
        let event = watch.next().await.unwrap().expect("it goes on");
        let meta = &event["object"]["metadata"];
        if event["type"] == "BOOKMARK" && meta["annotations"]["k8s.io/initial-events-end"] == "true" {
            break;
        }
        let text = |key: &str| meta[key].as_str().unwrap_or_default().to_owned();
        *told.entry((text("name"), text("uid"))).or_insert(0) += 1;
    }
    let mut uids: BTreeMap<&str, BTreeMap<String, String>> = BTreeMap::new();
    for member in ["east", "west"] {
        let list = direct(member).await.get(ROLES, &[]).await.unwrap().json();
        let own = held(&list).unwrap().into_iter();
        let system = own.filter(|(name, _)| name.starts_with("system:"));
        uids.insert(member, system.map(|(name, (uid, _))| (name, uid)).collect());
    }
    let names: BTreeSet<&String> = uids.values().flat_map(BTreeMap::keys).collect();
    assert!(names.len() > 30, "both members have many: {names:?}");
    for name in names {
        let first = uids["east"].get(name).unwrap_or_else(|| &uids["west"][name]);
        assert_eq!(watch.held.get(name).map(|(uid, _)| uid), Some(first), "{name}");
        assert_eq!(told.get(&(name.clone(), first.clone())), Some(&1), "{name}");
    }
}

async fn own(clusters: Value) {
    let client = world().await.cluster("hub").client().await.unwrap();
    let shards: Api<ShardingConfig> = Api::namespaced(client, "operators");
    let patch = Patch::Merge(json!({"spec": {"clusters": clusters}}));
    shards.patch("growing", &PatchParams::default(), &patch).await.unwrap();
}

#[tokio::test]
async fn namespaces_join_and_leave_the_shard_under_a_watch() {
    let _calm = MEMBERS.read().await;
    let door = door("growing").await;
    let mut watch = Watch::open(&door, &format!("/api/v1/namespaces?{WATCH_LIST}"))
        .await
        .unwrap();
    watch.begun().await.unwrap();
    let names = |watch: &Watch| watch.held.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&watch), ["cg-e", "cg-w"]);
    let east = json!({"name": "east", "namespaces": ["cg-e"]});
    own(json!([east, {"name": "west", "namespaces": ["cg-w", "cg-x"]}])).await;
    assert_eq!(watch.sees("cg-x").await.unwrap(), "ADDED");
    let label = json!({"metadata": {"labels": {"seen": "yes"}}});
    let labelled = merge_patch(&direct("west").await, "/api/v1/namespaces/cg-x", &label).await;
    assert_eq!(labelled.status, 200);
    let seen = |event: &Value| event["object"]["metadata"]["labels"]["seen"] == "yes";
    watch.until("its label", seen).await.unwrap();
    assert_eq!(names(&watch), ["cg-e", "cg-w", "cg-x"]);
    own(json!([east, {"name": "west", "namespaces": ["cg-x"]}])).await;
    while watch.held.contains_key("cg-w") {
        watch.next().await.unwrap().expect("it goes on");
    }
    assert_eq!(names(&watch), ["cg-e", "cg-x"]);
    assert_eq!(
        (watch.count("ERROR"), watch.count("ADDED cg-e")),
        (0, 1),
        "{:?}",
        watch.seen
    );
}
