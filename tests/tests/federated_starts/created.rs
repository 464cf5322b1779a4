//! From the version of an object, as the answer to its creation has it: that is one member's own, so it is taken where only
//! that member can have given it out, as any API server takes it, and is 410 elsewhere.

use portolan_tests::door::Door;
use serde_json::json;

use crate::formats::{Events, FORMATS};
use crate::{CALM, change, door, make, map, maps, own, version_of};

/// Makes an object through the router.
async fn create(door: &Door, namespace: &str, name: &str) -> String {
    let answer = door.post(&maps(Some(namespace)), &map(name)).await.unwrap();
    let version = version_of(&answer);
    assert!(version.len() < 20, "{version} is no member's own");
    version
}

/// What is told from there on of the objects whose names begin so, up to the last of them.
async fn told(door: &Door, path: &str, from: &str, (namespace, prefix, last): (&str, &str, &str)) {
    for format in FORMATS {
        let mut watch = Events::open(door, format, path, from).await;
        let last = format!("ADDED {namespace}/{prefix}-{last}");
        watch.until(std::slice::from_ref(&last)).await;
        let own = |event: &&String| event.contains(&format!(" {namespace}/{prefix}"));
        let seen: Vec<_> = watch.seen.iter().filter(own).collect();
        assert_eq!(seen, [&last], "{format:?} from {from}");
    }
}

async fn expired(door: &Door, path: &str, from: &str) {
    for format in FORMATS {
        Events::open(door, format, path, from).await.is_expired().await;
    }
}

#[tokio::test]
async fn a_created_objects_version_is_its_members_own() {
    let _calm = CALM.read().await;
    let born = door("born").await;
    for place @ (_, namespace) in [("east", "fb-a"), ("west", "fb-w")] {
        let path = maps(Some(namespace));
        let created = create(&born, namespace, "own-made").await;
        make(place, "own-after").await;
        told(&born, &path, &created, (namespace, "own", "after")).await;
        let changed = change(place, "own-made").await;
        make(place, "own-last").await;
        told(&born, &path, &changed, (namespace, "own", "last")).await;
        // Whose it is, nobody can say.
        expired(&born, &maps(None), &created).await;
    }
}

#[tokio::test]
async fn all_namespaces_are_watched_from_an_object_where_the_member_is_the_shards_as_a_whole() {
    let _calm = CALM.read().await;
    let whole = door("whole").await;
    let created = create(&whole, "fo-a", "whole-made").await;
    make(("east", "fo-b"), "whole-after").await;
    told(&whole, &maps(None), &created, ("fo-b", "whole", "after")).await;
    // Of one that has some namespaces there the version does not say which they were.
    expired(&door("lone").await, &maps(None), &created).await;
}

#[tokio::test]
async fn where_two_members_had_the_namespace_a_version_is_nobodys() {
    let _calm = CALM.read().await;
    let born = door("born").await;
    let path = maps(Some("fb-m"));
    let in_east = create(&born, "fb-m", "east-made").await;
    make(("east", "fb-m"), "east-after").await;
    told(&born, &path, &in_east, ("fb-m", "east", "after")).await;
    let clusters = json!([{"name": "east", "namespaces": ["fb-a"]}, {"name": "west", "namespaces": ["fb-w", "fb-m"]}]);
    own(
        "born",
        clusters,
        &[("east", "fb-a"), ("west", "fb-w"), ("west", "fb-m")],
    )
    .await;
    let in_west = create(&born, "fb-m", "west-made").await;
    for version in [in_east, in_west] {
        expired(&born, &path, &version).await;
    }
    let elsewhere = create(&born, "fb-a", "else-made").await;
    make(("east", "fb-a"), "else-after").await;
    told(&born, &maps(Some("fb-a")), &elsewhere, ("fb-a", "else", "after")).await;
}
