//! In which of two members an object without a namespace is made: what is asked of whom, and what comes of it.

use std::fmt::Write as _;

use super::*;
use crate::stage::reply::reply;
use crate::value::media::Media;
use crate::value::object::protobuf::{MAGIC, put};

const VOLUMES: &str = "POST /api/v1/persistentvolumes";
const APPLY: &str = "application/apply-patch+yaml";

/// A member that has these objects: path and uid. What is at a path that ends with `!` it does not tell.
async fn having(objects: &'static [(&'static str, &'static str)]) -> Backend {
    let answer = script(move |request, mut respond| async move {
        let path = request.uri().path().to_owned();
        let found = objects.iter().find(|(name, _)| name.trim_end_matches('!') == path);
        let (code, body) = match found {
            Some((name, _)) if name.ends_with('!') => (500, "{}".to_owned()),
            Some((_, "403")) => (403, "{}".to_owned()),
            Some((_, uid)) => (200, format!(r#"{{"metadata":{{"uid":"{uid}"}}}}"#)),
            None => (404, "{}".to_owned()),
        };
        let mut stream = respond.send_response(head(code), false).unwrap();
        stream.send_data(Bytes::from(body), true).unwrap();
    });
    Backend::start(100, answer).await
}

/// East is the primary.
async fn world(east: &'static [(&'static str, &'static str)], west: &'static [(&'static str, &'static str)]) -> World {
    World::between("east", having(east).await, having(west).await)
}

/// A body with Nodes as owners: name and uid.
fn owned(owners: &[(&str, &str)]) -> String {
    let entries = owners.iter().map(|(name, uid)| entry("Node", name, uid));
    let entries: Vec<String> = entries.collect();
    format!(
        r#"{{"metadata":{{"name":"n","ownerReferences":[{}]}}}}"#,
        entries.join(",")
    )
}

fn entry(kind: &str, name: &str, uid: &str) -> String {
    format!(r#"{{"apiVersion":"v1","kind":"{kind}","name":"{name}","uid":"{uid}"}}"#)
}

fn annotated(cluster: &str) -> String {
    format!(r#"{{"metadata":{{"name":"n","annotations":{{"ctrlmesh.kusionstack.io/cluster":"{cluster}"}}}}}}"#)
}

/// The member, or the code of the refusal and its text.
async fn goes(world: &World, request: &str, body: &str) -> String {
    said(world.planned(request, body).await)
}

fn said(planned: Result<Box<Forward>, Fault>) -> String {
    match planned {
        Ok(forward) => forward.target.cluster.to_string(),
        Err(fault) => format!("{} {fault}", fault.status_code().as_u16()),
    }
}

#[tokio::test]
async fn it_is_made_beside_its_owners() {
    let world = world(
        &[("/api/v1/nodes/e", "u-e"), ("/api/v1/nodes/both", "u-east")],
        &[
            ("/api/v1/nodes/w", "u-w"),
            ("/api/v1/nodes/v", "u-v"),
            ("/api/v1/nodes/both", "u-west"),
        ],
    )
    .await;
    for (owners, expected) in [
        (&[("w", "u-w")][..], "west"),
        (&[("e", "u-e")], "east"),
        (&[("w", "u-w"), ("v", "u-v"), ("w", "u-w")], "west"),
        // Two members have the name.
        (&[("both", "u-west")], "west"),
        (&[("both", "u-east")], "east"),
        // The API server's to judge.
        (&[("gone", "u-g")], "east"),
        (&[("gone", "u-g"), ("w", "u-w")], "west"),
        (&[], "east"),
    ] {
        assert_eq!(goes(&world, VOLUMES, &owned(owners)).await, expected, "{owners:?}");
        let dry = format!("{VOLUMES}?dryRun=All");
        assert_eq!(goes(&world, &dry, &owned(owners)).await, expected, "{owners:?}");
    }
    let generated = owned(&[("w", "u-w")]).replace(r#""name":"n""#, r#""generateName":"n-""#);
    assert_eq!(goes(&world, VOLUMES, &generated).await, "west");
    let made = world.planned(VOLUMES, &owned(&[("w", "u-w")])).await.unwrap();
    assert!(
        !made.needs.contains(&Need::Owners),
        "nobody looks again: {:?}",
        made.needs
    );
    // Of an owner with a namespace the garbage collector of what has none does not ask.
    let map = owned(&[("w", "u-w")]).replace("Node", "ConfigMap");
    assert_eq!(goes(&world, VOLUMES, &map).await, "east");
}

#[tokio::test]
async fn who_names_no_owner_costs_one_question() {
    let world = world(&[], &[]).await;
    assert_eq!(goes(&world, VOLUMES, &owned(&[])).await, "east");
    assert_eq!(
        (world.east.seen.requests(), world.west.seen.requests()),
        (0, 1),
        "its name alone"
    );
}

#[tokio::test]
async fn a_body_in_any_format_tells() {
    let world = world(&[], &[("/api/v1/nodes/w", "u-w")]).await;
    let yaml = "metadata:\n  name: n\n  ownerReferences:\n  - {apiVersion: v1, kind: Node, name: w, uid: u-w}\n";
    assert_eq!(
        said(world.sent(VOLUMES, "application/yaml", yaml.as_bytes()).await),
        "west"
    );
    let message = |parts: &[(u64, &[u8])]| {
        let mut bytes = Vec::new();
        for (number, content) in parts {
            put(&mut bytes, *number, content);
        }
        bytes
    };
    let owner = message(&[(1, b"Node"), (3, b"w"), (4, b"u-w"), (5, b"v1")]);
    let meta = message(&[(1, b"n"), (13, &owner)]);
    let kind = message(&[(1, b"v1"), (2, b"PersistentVolume")]);
    let mut body = MAGIC.to_vec();
    body.extend(message(&[(1, &kind), (2, &message(&[(1, &meta)]))]));
    let sent = world.sent(VOLUMES, "application/vnd.kubernetes.protobuf", &body).await;
    assert_eq!(said(sent), "west");
}

#[tokio::test]
async fn owners_of_two_members_are_refused_with_both() {
    let world = world(&[("/api/v1/nodes/e", "u-e")], &[("/api/v1/nodes/w", "u-w")]).await;
    let refused = world
        .planned(VOLUMES, &owned(&[("e", "u-e"), ("w", "u-w")]))
        .await
        .unwrap_err();
    let answer = reply(&refused, Media::Json);
    assert_eq!(answer.status(), 422);
    let status: serde_json::Value = serde_json::from_slice(answer.body()).unwrap();
    assert_eq!(status["reason"], "Invalid");
    let causes = status["details"]["causes"].as_array().unwrap().iter();
    let causes: Vec<_> = causes
        .map(|cause| [&cause["reason"], &cause["field"], &cause["message"]].map(|text| text.as_str().unwrap()))
        .collect();
    let of = |message| ["FieldValueInvalid", "metadata.ownerReferences", message];
    assert_eq!(
        causes,
        [
            of("owner Node e is in member cluster east"),
            of("owner Node w is in member cluster west"),
        ]
    );
}

#[tokio::test]
async fn what_is_not_known_is_not_guessed() {
    const HIDDEN: &[(&str, &str)] = &[("/api/v1/nodes/w", "403")];
    const UNTOLD: &[(&str, &str)] = &[("/api/v1/nodes/w!", ""), ("/api/v1/nodes/e!", "")];
    let world_of = |west| world(&[("/api/v1/nodes/e", "u-e")], west);
    let world = world_of(UNTOLD).await;
    let unknown = goes(&world, VOLUMES, &owned(&[("w", "u-w")])).await;
    assert!(unknown.starts_with("503") && unknown.contains("west"), "{unknown}");
    let unknown = goes(&world, VOLUMES, &owned(&[("e", "u-e"), ("w", "u-w")])).await;
    assert!(unknown.starts_with("503"), "{unknown}");
    // A uid is in one member alone.
    assert_eq!(goes(&world, VOLUMES, &owned(&[("e", "u-e")])).await, "east");
    // West has not said what it serves.
    let unserved = owned(&[("w", "u-w")]).replace("Node", "Gadget");
    let unknown = goes(&world, VOLUMES, &unserved).await;
    assert!(unknown.starts_with("503") && unknown.contains("west"), "{unknown}");
    // Nor may it be where the caller may not look.
    let world = world_of(&[("/api/v1/nodes/w", "403")]).await;
    let refused = goes(&world, VOLUMES, &owned(&[("w", "u-w")])).await;
    assert!(
        refused.starts_with("403") && refused.contains("leave out this ownerReference"),
        "{refused}"
    );
    // Where no member lets it look, nothing tells, and it is told so.
    let world = self::world(HIDDEN, HIDDEN).await;
    let made = world.planned(VOLUMES, &owned(&[("w", "u-w")])).await.unwrap();
    assert_eq!(&*made.target.cluster, "east");
    let warning = made.warning.unwrap_or_default();
    assert!(
        warning.contains("Node w") && warning.contains("made in the primary"),
        "{warning}"
    );
}

#[tokio::test]
async fn its_annotation_tells_where_no_owner_does() {
    let world = world(&[("/api/v1/nodes/e", "u-e")], &[]).await;
    for (cluster, expected) in [("west", "west"), ("east", "east")] {
        assert_eq!(goes(&world, VOLUMES, &annotated(cluster)).await, expected);
    }
    let refused = goes(&world, VOLUMES, &annotated("mars")).await;
    for word in [
        "422",
        "persistentvolumes",
        "metadata.annotations",
        "\"mars\"",
        "name one of east, west",
    ] {
        assert!(refused.contains(word), "{word}: {refused}");
    }
    let both = annotated("west").replace(
        r#""name":"n","#,
        &format!(r#""name":"n","ownerReferences":[{}],"#, entry("Node", "e", "u-e")),
    );
    assert_eq!(goes(&world, VOLUMES, &both).await, "east", "owners come first");
    let lost = both.replace("u-e", "u-x");
    let refused = goes(&world, VOLUMES, &lost).await;
    assert!(
        refused.starts_with("403") && refused.contains("garbage collector"),
        "{refused}"
    );
}

#[tokio::test]
async fn a_namespace_of_the_shard_is_an_owner_and_no_other() {
    let namespace = |name: &str, uid: &str| {
        let mut body = r#"{"metadata":{"name":"n","ownerReferences":["#.to_owned();
        write!(body, "{}]}}}}", entry("Namespace", name, uid)).unwrap();
        body
    };
    let world = world(&[], &[("/api/v1/namespaces/b", "u-b")]).await;
    assert_eq!(goes(&world, VOLUMES, &namespace("b", "u-b")).await, "west");
    let before = world.west.seen.requests();
    let refused = goes(&world, VOLUMES, &namespace("victim", "u-v")).await;
    assert!(
        refused.starts_with("403") && refused.contains("outside the caller's shard"),
        "{refused}"
    );
    assert_eq!(world.west.seen.requests(), before, "it is not asked for");
}

#[tokio::test]
async fn a_name_that_any_other_member_has_is_not_made_beside_an_owner() {
    let world = world(&[("/api/v1/persistentvolumes/n", "u-n")], &[("/api/v1/nodes/w", "u-w")]).await;
    let taken = goes(&world, VOLUMES, &owned(&[("w", "u-w")])).await;
    assert!(
        taken.starts_with("409") && taken.contains("member cluster east"),
        "{taken}"
    );
}

#[tokio::test]
async fn an_apply_makes_it_beside_its_owners_and_moves_nothing() {
    const NEW: &str = "/api/v1/persistentvolumes/new";
    let world = world(
        &[("/api/v1/persistentvolumes/old", "u-old")],
        &[("/api/v1/nodes/w", "u-w"), ("/api/v1/persistentvolumes/far", "u-far")],
    )
    .await;
    let sent = async |request: &str, kind: &str, body: &str| said(world.sent(request, kind, body.as_bytes()).await);
    let beside = owned(&[("w", "u-w")]);
    let patch = format!("PATCH {NEW}");
    assert_eq!(sent(&patch, APPLY, &beside).await, "west");
    assert_eq!(sent(&patch, APPLY, &owned(&[])).await, "east");
    assert_eq!(sent(&patch, APPLY, &annotated("west")).await, "west");
    assert_eq!(sent(&format!("PUT {NEW}"), "application/json", &beside).await, "west");
    // Of most kinds a PUT makes nothing, which is for an API server to say.
    let put = sent(&format!("PUT {NEW}"), "application/json", &annotated("mars")).await;
    assert_eq!(put, "east");
    // What makes nothing is the primary's to say so.
    let merge = "application/merge-patch+json";
    assert_eq!(sent(&patch, merge, &annotated("west")).await, "east");
    let old = "PATCH /api/v1/persistentvolumes/old";
    assert_eq!(
        sent(old, APPLY, &annotated("west")).await,
        "east",
        "it stays where it is"
    );
    let refused = sent(old, APPLY, &beside).await;
    assert!(
        refused.starts_with("403") && refused.contains("garbage collector"),
        "{refused}"
    );
    let far = "PATCH /api/v1/persistentvolumes/far";
    assert_eq!(sent(far, APPLY, &annotated("east")).await, "west");
}
