//! Older views of the shard: what was whose then, what has left, and whose an object's version can only be.

use portolan_merge::cursor::Cursor;
use portolan_wire::v1::resource::Body;

use super::*;

const PODS: &str = "GET /api/v1/pods?watch=true";

/// What the shard has in a member (namespace, since which revision) and had (namespace, until which).
fn owned(cluster: &str, has: &[(&str, u64)], had: &[(&str, u64)], dropped: u64) -> Body {
    let has = has.iter().map(|(namespace, revision)| v1::NamespaceGrant {
        namespace: (*namespace).into(),
        state: v1::GrantState::Granted.into(),
        view_revision: *revision,
        ..v1::NamespaceGrant::default()
    });
    let had = had.iter().map(|(namespace, revision)| v1::DepartedNamespace {
        namespace: (*namespace).into(),
        view_revision: *revision,
        left_unix_seconds: 7,
    });
    Body::Ownership(v1::Ownership {
        cluster: cluster.into(),
        shard: "ops/blue".into(),
        namespaces: has.collect(),
        departed: had.collect(),
        departed_dropped_up_to: dropped,
        ..v1::Ownership::default()
    })
}

fn world(shard: told::Shard, owned: Vec<Body>) -> World {
    let mut world = World::new(shard);
    let applied = told::upsert(&world.snapshot, "2", owned);
    assert_eq!(applied.rejected, []);
    world.snapshot = applied.snapshot;
    world
}

impl World {
    fn as_of(&self, request: &str, revision: u64) -> Option<String> {
        let uri = request.split_once(' ').unwrap().1.parse().unwrap();
        let request = classify(&Method::GET, &uri, &HeaderMap::new()).unwrap();
        let planned = plan_as_of(&self.pod(), &request, &self.snapshot, &self.kinds, revision)?;
        Some(match planned.plan {
            Plan::FanOut(fan) => fan.legs.iter().map(say_leg).collect::<Vec<_>>().join(" | "),
            Plan::Refuse(fault) => fault.status_code().as_u16().to_string(),
            other => panic!("{other:?}"),
        })
    }
}

#[test]
fn an_older_view_is_without_what_entered_since_and_with_what_left() {
    let world = world(
        two(),
        vec![
            owned("east", &[("ns-a", 2), ("ns-d", 9)], &[("ns-x", 7)], 4),
            owned("west", &[("ns-c", 3)], &[("ns-d", 8)], 1),
        ],
    );
    for (revision, east, west) in [
        (9, "ns-a,ns-d", "ns-c"),
        (8, "ns-a", "ns-c"),
        (7, "ns-a", "ns-c,ns-d"),
        (6, "ns-a,ns-x", "ns-c,ns-d"),
        (4, "ns-a,ns-x", "ns-c,ns-d"),
    ] {
        let say = |cluster: &str, names: &str| {
            if names.contains(',') {
                format!("{cluster} select:namespace in ({names})")
            } else {
                format!("{cluster} select:namespace={names}")
            }
        };
        let expected = format!("{} | {}", say("east", east), say("west", west));
        let said = world
            .as_of(PODS, revision)
            .unwrap()
            .replace(" in (ns-a)", "=ns-a")
            .replace(" in (ns-c)", "=ns-c");
        assert_eq!(said, expected, "{revision}");
    }
    assert_eq!(world.as_of(PODS, 3), None, "what left east until then is forgotten");
    for (namespace, revision, expected) in [
        ("ns-d", 9, "east"),
        ("ns-d", 8, "west select:nothing,!nothing"),
        ("ns-d", 7, "west"),
        ("ns-a", 5, "east"),
        ("ns-z", 5, "403"),
    ] {
        let request = format!("GET /api/v1/namespaces/{namespace}/pods?watch=true");
        assert_eq!(
            world.as_of(&request, revision).as_deref(),
            Some(expected),
            "{request} {revision}"
        );
    }
}

#[test]
fn what_came_back_or_was_of_two_members_is_not_guessed() {
    let back = world(two(), vec![owned("east", &[("ns-a", 9)], &[("ns-a", 8)], 0)]);
    assert!(back.as_of(PODS, 9).is_some());
    assert_eq!(
        [8, 7].map(|revision| back.as_of(PODS, revision).is_some()),
        [true, false]
    );
    let both = world(
        two(),
        vec![
            owned("east", &[], &[("ns-a", 8)], 0),
            owned("west", &[("ns-c", 1)], &[("ns-a", 9)], 0),
        ],
    );
    assert_eq!(
        [8, 7].map(|revision| both.as_of(PODS, revision).is_some()),
        [true, false]
    );
}

#[test]
fn a_namespace_that_has_left_is_told_to_be_empty() {
    let departed = || {
        vec![
            owned("east", &[("ns-a", 2)], &[("ns-z", 3)], 0),
            owned("west", &[("ns-c", 1)], &[("ns-z", 5)], 0),
        ]
    };
    let enforced = world(two(), departed());
    enforced.check(&[
        (
            "GET /api/v1/namespaces/ns-z/pods",
            "handed-over ⇒ west select:nothing,!nothing",
        ),
        (
            "GET /api/v1/namespaces/ns-z/pods?watch=true",
            "handed-over ⇒ west select:nothing,!nothing",
        ),
        ("GET /api/v1/namespaces/ns-z/pods/p", "outside-refused ✗ 403"),
        ("POST /api/v1/namespaces/ns-z/pods", "outside-refused ✗ 403"),
        ("DELETE /api/v1/namespaces/ns-z/pods", "outside-refused ✗ 403"),
        (
            "GET /api/v1/namespaces/ns-y/pods",
            "unowned-namespace ⇒ if nowhere east select:nothing,!nothing",
        ),
    ]);
    let left = enforced.fan("GET /api/v1/namespaces/ns-z/pods").left.unwrap();
    assert_eq!(left.revision, 5);
    assert!(
        left.message.contains("it belongs to shard ops/green"),
        "{}",
        left.message
    );
    // Who is let through sees what is there.
    let mut audited = two();
    audited.enforcement = v1::Enforcement::Audit.into();
    world(audited, departed()).check(&[("GET /api/v1/namespaces/ns-z/pods", "outside-audited ⇒ east warns:")]);
}

#[test]
fn an_objects_version_is_a_members_own_where_no_other_had_the_collection() {
    let world = world(
        two(),
        vec![
            owned("east", &[("ns-a", 2), ("ns-d", 9)], &[], 4),
            owned("west", &[("ns-c", 3)], &[("ns-d", 8)], 1),
        ],
    );
    for (request, only_member) in [
        ("GET /api/v1/namespaces/ns-a/pods?watch=true", true),
        ("GET /api/v1/namespaces/ns-c/pods?watch=true", true),
        ("GET /api/v1/namespaces/ns-d/pods?watch=true", false),
        ("GET /api/v1/namespaces/ops/pods?watch=true", true),
        (PODS, false),
        ("GET /api/v1/nodes?watch=true", false),
    ] {
        assert_eq!(world.fan(request).only_member, only_member, "{request}");
    }
    let one = World::new(shard(vec![member("west", &["ns-a"])]));
    assert!(
        !one.fan(PODS).only_member,
        "which namespaces it had then the version does not say"
    );
    let whole = World::new(shard(vec![member("west", &["*"])]));
    assert!(whole.fan(PODS).only_member);
    let mut limited = shard(vec![member("west", &["ns-a"])]);
    limited.limits = vec![limit("", "pods", "app=foo")];
    assert!(
        !World::new(limited)
            .fan("GET /api/v1/namespaces/ns-a/pods?watch=true")
            .only_member
    );
}

#[test]
fn what_was_read_elsewhere_before_it_was_the_shards_has_no_version_of_its_own() {
    let mut audited = two();
    audited.enforcement = v1::Enforcement::Audit.into();
    let audited = World::new(audited);
    for request in [
        "GET /api/v1/namespaces/ns-z/pods?watch=true",
        "GET /api/v1/namespaces/ns-c/pods?watch=true",
    ] {
        assert!(!audited.fan(request).only_member, "{request}");
    }
    let mut whole = shard(vec![member("home", &["*"])]);
    whole.enforcement = v1::Enforcement::Audit.into();
    assert!(
        World::new(whole)
            .fan("GET /api/v1/namespaces/ns-a/pods?watch=true")
            .only_member,
        "nothing was ever outside"
    );
    // The caller's own namespace, which was home's.
    let own = World::new(shard(vec![member("west", &["ops", "ns-a"])]));
    for (namespace, only_member) in [("ops", false), ("ns-a", true)] {
        let request = format!("GET /api/v1/namespaces/{namespace}/pods?watch=true");
        assert_eq!(own.fan(&request).only_member, only_member, "{request}");
    }
}

/// A shard of west alone that had `ns-z` in east until revision 5.
fn moved_out(owned_east: Body) -> World {
    let mut shard = shard(vec![member("west", &["ns-c"])]);
    shard.primary_cluster = "west".into();
    shard.uid = "uid-blue".into();
    world(shard, vec![owned_east])
}

#[test]
fn what_left_a_cluster_that_is_no_member_any_more_is_known() {
    let world = moved_out(owned("east", &[], &[("ns-z", 5)], 0));
    world.check(&[(
        "GET /api/v1/namespaces/ns-z/pods",
        "handed-over ⇒ east select:nothing,!nothing",
    )]);
    let Caller::Pod(view) = world.pod() else {
        panic!("a Pod")
    };
    let crate::value::snapshot::Binding::One(shard) = &view.binding else {
        panic!("one shard")
    };
    assert_eq!(shard.identity.as_ref().unwrap().view_revision, 5);
    assert!(world.as_of(PODS, 5).is_some());
    assert_eq!(
        world.as_of(PODS, 4),
        None,
        "by which labels east was asked is not known"
    );
    let older = moved_out(owned("east", &[], &[("ns-z", 5)], 5));
    older.check(&[("GET /api/v1/namespaces/ns-z/pods", "outside-refused ✗ 403")]);
}

#[test]
fn a_cursor_of_other_members_of_the_same_clusters_is_of_another_epoch() {
    let of = |shard, request| Cursor::new(&World::new(shard).fan(request).universe).epoch();
    let cursor = |shard| of(shard, PODS);
    let mut both = two();
    both.uid = "uid-blue".into();
    both.cursor_format = 2;
    let mut west = both.clone();
    west.members.remove(0);
    let mut turned = both.clone();
    turned.members.reverse();
    assert_ne!(cursor(both.clone()), cursor(west));
    assert_eq!(cursor(both.clone()), cursor(turned.clone()));
    let nodes = "GET /api/v1/nodes?watch=true";
    assert_ne!(of(both, nodes), of(turned, nodes), "of equal names another wins");
}
