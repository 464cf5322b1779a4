//! A namespace that both members have goes from one to the other; a member joins the shard.

use kube::Api;
use kube::api::{Patch, PatchParams};
use portolan_crds::MemberCluster;
use serde_json::json;

use crate::{MAPS, MEMBERS, begun, door, make, map, own, truth, world};

const CONFIG_MAPS: (&str, &str) = ("/api/v1", "configmaps");

/// The same names in both: what the new owner tells of must not be taken back by what the old one no longer shows.
#[tokio::test]
async fn a_namespace_moves_with_the_same_names_in_it() {
    let _calm = MEMBERS.read().await;
    world().await;
    for member in ["east", "west"] {
        for name in ["same", "too", "three"] {
            map(member, "fm", name).await;
        }
    }
    map("east", "fm", "only-east").await;
    map("west", "fm", "only-west").await;
    map("east", "fm-e", "stays").await;
    let in_east = [("east", "fm-e"), ("east", "fm"), ("west", "fm-w")];
    let in_west = [("east", "fm-e"), ("west", "fm"), ("west", "fm-w")];
    let door = door("moves").await;
    let mut watch = begun(&door, MAPS).await;
    watch.holds(async || truth(CONFIG_MAPS, &in_east).await).await.unwrap();
    for round in 0..3 {
        own(
            "moves",
            json!([{"name": "east", "namespaces": ["fm-e"]}, {"name": "west", "namespaces": ["fm-w", "fm"]}]),
        )
        .await;
        map("west", "fm", &format!("meanwhile-{round}")).await;
        watch.holds(async || truth(CONFIG_MAPS, &in_west).await).await.unwrap();
        own(
            "moves",
            json!([{"name": "east", "namespaces": ["fm-e", "fm"]}, {"name": "west", "namespaces": ["fm-w"]}]),
        )
        .await;
        map("east", "fm", &format!("back-{round}")).await;
        watch.holds(async || truth(CONFIG_MAPS, &in_east).await).await.unwrap();
    }
    // Late news of a move would come before this.
    map("east", "fm-e", "end").await;
    map("west", "fm-w", "end").await;
    watch.holds(async || truth(CONFIG_MAPS, &in_east).await).await.unwrap();
    assert_eq!(watch.count("ERROR"), 0, "{:?}", watch.seen);
    assert_eq!(watch.count("ADDED fm-e/stays"), 1, "{:?}", watch.seen);
    assert_eq!(watch.count("DELETED fm-e/stays"), 0, "{:?}", watch.seen);
    assert!(watch.held.contains_key("fm/same") && !watch.held.contains_key("fm/only-west"));
}

#[tokio::test]
async fn a_member_joins_and_leaves_the_shard() {
    let _calm = MEMBERS.read().await;
    let world = world().await;
    let members = Api::<MemberCluster>::all(world.cluster("hub").client().await.unwrap());
    let crew = async |crew: Option<&str>| {
        let patch = Patch::Merge(json!({"metadata": {"labels": {"crew": crew}}}));
        members.patch("north", &PatchParams::default(), &patch).await.unwrap();
    };
    map("east", "fl-e", "here").await;
    map("north", "fl-n", "there").await;
    let (alone, both) = ([("east", "fl-e")], [("east", "fl-e"), ("north", "fl-n")]);
    let door = door("late").await;
    let mut watch = begun(&door, MAPS).await;
    watch.holds(async || truth(CONFIG_MAPS, &alone).await).await.unwrap();
    crew(Some("late")).await;
    watch.holds(async || truth(CONFIG_MAPS, &both).await).await.unwrap();
    map("north", "fl-n", "later").await;
    assert_eq!(watch.sees("fl-n/later").await.unwrap(), "ADDED");
    // What a list answers now is the same, and so is a position of it.
    let list = door.get(MAPS, &[]).await.unwrap().json();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap();
    let path = format!("{MAPS}?resourceVersion={version}");
    let mut resumed = portolan_tests::watch::Watch::open(&door, &path).await.unwrap();
    map("north", "fl-n", "last").await;
    for watch in [&mut watch, &mut resumed] {
        assert_eq!(watch.sees("fl-n/last").await.unwrap(), "ADDED");
    }
    assert_eq!(watch.count("DELETED") + watch.count("ERROR"), 0, "{:?}", watch.seen);
    assert_eq!(watch.count("ADDED fl-e/here"), 1, "{:?}", watch.seen);
    crew(None).await;
    watch.holds(async || truth(CONFIG_MAPS, &alone).await).await.unwrap();
    assert_eq!(
        watch.count("DELETED fl-e/here") + watch.count("ERROR"),
        0,
        "{:?}",
        watch.seen
    );
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "goes-on"}});
    make("east", "/api/v1/namespaces/fl-e/configmaps", &object).await;
    assert_eq!(watch.sees("fl-e/goes-on").await.unwrap(), "ADDED");
}
