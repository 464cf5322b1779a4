//! A list in one scope, a watch from it in another: all that has happened since, once and in its order, and no state; or 410
//! where the list has not asked a member that the watch has to.

use crate::formats::{Events, Format};
use crate::{CALM, Place, change, door, make, maps, remove};

const TWO: &[Place] = &[("east", "fs-a"), ("east", "fs-b"), ("west", "fs-w")];
const ONE: &[Place] = &[("east", "fo-a"), ("east", "fo-b")];

/// All namespaces, and each alone.
fn scopes(places: &[Place]) -> Vec<&[Place]> {
    std::iter::once(places).chain(places.chunks(1)).collect()
}

fn path(scope: &[Place]) -> String {
    match scope {
        [(_, namespace)] => maps(Some(namespace)),
        _ => maps(None),
    }
}

/// Every scope watched from a list of every scope.
async fn any_from_any(shard: &str, places: &[Place], format: Format) {
    let _calm = CALM.read().await;
    let door = door(shard).await;
    let name = |what: &str| format!("{what}-{}", format.word());
    for place in places {
        for what in ["kept", "gone"] {
            make(*place, &name(what)).await;
        }
    }
    let mut lists = Vec::new();
    for scope in scopes(places) {
        lists.push((scope, format.position(&door, &path(scope)).await));
    }
    for place in places {
        make(*place, &name("new")).await;
        change(*place, &name("kept")).await;
        remove(*place, &name("gone")).await;
        make(*place, &name("end")).await;
    }
    for (listed, position) in &lists {
        for watched in scopes(places) {
            let asked = |member: &str| listed.iter().any(|(other, _)| *other == member);
            let mut watch = Events::open(&door, format, &path(watched), position).await;
            if watched.iter().all(|(member, _)| asked(member)) {
                tells_since(&mut watch, watched, format).await;
            } else {
                watch.is_expired().await;
            }
        }
    }
}

/// What has happened since the lists.
async fn tells_since(watch: &mut Events, watched: &[Place], format: Format) {
    let told = |kind: &str, namespace: &str, what: &str| format!("{kind} {namespace}/{what}-{}", format.word());
    let ends: Vec<String> = watched
        .iter()
        .map(|(_, namespace)| told("ADDED", namespace, "end"))
        .collect();
    watch.until(&ends).await;
    for (_, namespace) in watched {
        let wanted = [
            ("ADDED", "new"),
            ("MODIFIED", "kept"),
            ("DELETED", "gone"),
            ("ADDED", "end"),
        ];
        let wanted = wanted.map(|(kind, what)| told(kind, namespace, what));
        // The tests of the other formats write here as well.
        let own = |event: &&String| event.ends_with(format.word()) && event.contains(&format!(" {namespace}/"));
        let seen: Vec<_> = watch.seen.iter().filter(own).collect();
        assert_eq!(seen, wanted.iter().collect::<Vec<_>>());
    }
    let asked = |event: &String| {
        watched
            .iter()
            .any(|(_, namespace)| event.contains(&format!(" {namespace}/")))
    };
    assert!(watch.seen.iter().all(asked), "{watched:?}: {:?}", watch.seen);
}

#[tokio::test]
async fn any_scope_of_two_members_is_watched_from_a_list_of_any() {
    for format in crate::formats::FORMATS {
        any_from_any("scopes", TWO, format).await;
    }
}

#[tokio::test]
async fn any_scope_of_one_member_is_watched_from_a_list_of_any() {
    for format in crate::formats::FORMATS {
        any_from_any("lone", ONE, format).await;
    }
}
