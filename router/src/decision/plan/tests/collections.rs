//! Lists and watches: legs, shares, and the law that nothing outside the shard is kept.

use portolan_merge::cursor::{Cursor, CursorError, Universe};

use super::*;
use crate::value::snapshot::Unavailable;

#[test]
fn a_kind_nobody_knows_loses_no_object_for_having_no_namespace() {
    let world = World::new(two());
    for (path, placeless) in [
        ("/apis/new.example.com/v1/things", true),
        ("/apis/example.com/v1/things", false),
        ("/apis/apps/v1/deployments", false),
    ] {
        let fan = world.fan(&format!("GET {path}"));
        let filter = fan.legs[0].filter.as_ref().unwrap();
        assert_eq!(filter.admits(""), placeless, "{path}");
    }
    world.check(&[(
        "GET /apis/example.com/v1/ports?watch",
        "cluster-scoped ⇒ union east | west",
    )]);
}

#[test]
fn what_one_member_might_have_in_namespaces_is_filtered() {
    let mut world = World::new(two());
    let ports = "GET /apis/example.com/v1/ports";
    // Others' clusters say nothing of the shard's.
    let mut other = MemberKinds::default();
    let port = Kind {
        scope: Scope::Namespaced,
        kind: "Port".to_owned(),
        versions: vec!["v1".to_owned()],
        verbs: ["get".to_owned()].into(),
    };
    other.add("example.com", "ports", port);
    world.kinds.set(&"north".into(), Arc::new(other));
    world.check(&[(ports, "cluster-scoped ⇒ union east | west")]);
    // West has never said what it serves.
    world.kinds = kinds();
    world.kinds.retain(|cluster| cluster != "west");
    world.check(&[
        (ports, "cluster-scoped ⇒ union east | west keep:namespaces ns-c"),
        ("GET /api/v1/nodes", "cluster-scoped ⇒ union east | west"),
    ]);
    let before = world.fan(ports);
    assert!(before.legs[1].filter.as_ref().is_some_and(|filter| filter.admits("")));
    // When it has, what runs goes on, and so does who was away.
    let known = World::new(two()).fan(ports);
    assert_eq!(known.universe, before.universe);
    assert!(matches!(known.after(&before), Replan::Same));
    // A primary that is no member owns no namespace at all.
    let mut world = World::new(shard(vec![member("west", &["*"])]));
    world.kinds.retain(|cluster| cluster != "east");
    world.check(&[(ports, "cluster-scoped ⇒ union east keep:no namespace | west")]);
}

#[test]
fn a_version_that_a_member_lacks_is_refused_and_an_absent_kind_is_not() {
    let mut world = World::new(two());
    let mut served = MemberKinds::default();
    let ship = Kind {
        scope: Scope::Namespaced,
        kind: "Ship".to_owned(),
        versions: vec!["v1".to_owned()],
        verbs: ["get".to_owned()].into(),
    };
    served.add("example.com", "ships", ship);
    let ships = "all-namespaces ⇒ east keep:namespaces ns-a, ns-r | west keep:namespaces ns-c";
    world.check(&[("GET /apis/example.com/v2/ships", ships)]);
    world.kinds.set(&"west".into(), Arc::new(served));
    world.check(&[
        ("GET /apis/example.com/v2/ships", "version-conflict ✗ 400"),
        ("GET /apis/example.com/v1/ships", ships),
        // One member can say for itself.
        (
            "GET /apis/example.com/v2/namespaces/ns-a/ships",
            "owned-namespace ⇒ east",
        ),
    ]);
}

#[test]
fn a_cordoned_member_is_held_and_the_others_go_on() {
    let world = World::of(vec!["ops/blue".into()], Some(two()), |target| {
        target.cordoned = target.cluster == "east";
    });
    world.check(&[
        (
            "GET /api/v1/pods",
            "all-namespaces ⇒ east select:namespace in (ns-a,ns-r) held | west select:namespace=ns-c",
        ),
        ("GET /api/v1/nodes", "cluster-scoped ⇒ union east held | west"),
    ]);
    let both = World::of(vec!["ops/blue".into()], Some(two()), |target| target.cordoned = true);
    both.check(&[("GET /api/v1/pods?watch", "cordoned ✗ 429")]);
}

#[test]
fn cursors_speak_of_members_home_and_primary() {
    let world = World::of(vec!["ops/blue".into()], Some(two()), |target| {
        target.cluster_uid = format!("uid-{}", target.cluster);
    });
    let uids = ["uid-home", "uid-east", "uid-west"].map(str::to_owned);
    let universe = Universe::new("ops/blue", uids);
    for request in [
        "GET /api/v1/pods",
        "GET /api/v1/namespaces/ops/secrets",
        "GET /api/v1/namespaces/ns-c/pods",
        "GET /api/v1/nodes",
    ] {
        let fan = world.fan(request);
        assert_eq!(fan.universe.len(), universe.len(), "{request}");
        for leg in &fan.legs {
            assert_eq!(
                universe.slot(&format!("uid-{}", leg.cluster())),
                Some(leg.slot),
                "{request}"
            );
        }
    }
}

const ALL_PODS: &str = "GET /api/v1/pods?watch";

#[test]
fn a_cursor_ends_with_the_share_that_it_speaks_of() {
    let shard_of = |east: &[&str], west: &[&str]| shard(vec![member("east", east), member("west", west)]);
    let before = || shard_of(&["ns-a", "ns-b"], &["ns-c"]);
    let resumes = |after: told::Shard, request: &str| {
        let old = Cursor::new(&World::new(before()).fan(request).universe);
        let universe = World::new(after).fan(request).universe;
        match Cursor::decode(&old.encode().unwrap(), &universe) {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error, CursorError::WrongEpoch);
                false
            }
        }
    };
    let (gained, lost) = (
        || shard_of(&["ns-a", "ns-b", "ns-d"], &["ns-c"]),
        || shard_of(&["ns-a"], &["ns-c"]),
    );
    let moved = || shard_of(&["ns-a"], &["ns-b", "ns-c"]);
    let mut limited = before();
    limited.limits = vec![limit("", "pods", "app=foo")];
    let mut bucketed = before();
    bucketed.limits = vec![limit("", "*", "ctrlmesh.kusionstack.io/sharding-hash in (1,27)")];
    for (what, after) in [
        ("gained", gained()),
        ("lost", lost()),
        ("moved", moved()),
        ("whole", shard_of(&["*"], &["ns-c"])),
        ("limited", limited.clone()),
        ("bucketed", bucketed),
    ] {
        assert!(!resumes(after, ALL_PODS), "{what}");
    }
    assert!(resumes(before(), ALL_PODS));
    assert!(
        resumes(shard_of(&["ns-b", "ns-a"], &["ns-c"]), ALL_PODS),
        "in any order"
    );
    assert!(
        resumes(shard_of(&["ns-a", "ns-b!"], &["ns-c"]), ALL_PODS),
        "reads go on"
    );
    // A watch of one namespace: its own alone counts.
    let own = "GET /api/v1/namespaces/ns-b/pods?watch";
    assert!(resumes(gained(), own));
    assert!(!resumes(moved(), own) && !resumes(limited, own));
    assert!(resumes(lost(), "GET /api/v1/namespaces/ns-a/pods?watch"));
    // What has no namespace is not the namespaces'.
    assert!(resumes(gained(), "GET /api/v1/nodes") && resumes(moved(), "GET /api/v1/nodes"));
}

#[test]
fn a_cursor_outlives_what_is_only_so_for_now() {
    let world = |change: fn(&mut told::Target)| World::of(vec!["ops/blue".into()], Some(two()), change);
    let epoch = |world: &World| world.fan(ALL_PODS).universe.epoch();
    let before = epoch(&world(|_| {}));
    assert_eq!(epoch(&world(|target| target.coverage.clear())), before, "labels");
    assert_eq!(
        epoch(&world(|target| target.cordoned = target.cluster == "east")),
        before
    );
}

#[test]
fn a_kind_that_no_member_has_told_of_waits_until_one_has() {
    let mut world = World::new(two());
    world.kinds = Kinds::default();
    for request in [
        "GET /apis/example.com/v1/things",
        "GET /apis/example.com/v1/things?watch",
    ] {
        let refused = world.fault(request);
        assert!(
            matches!(&refused, Fault::TooManyRequests { message, .. } if message.contains("east") && message.contains("things.example.com")),
            "{request}: {refused:?}"
        );
    }
    // Of Kubernetes' own kinds it is known, and a namespace in the path says it.
    world.fan(ALL_PODS);
    world.fan("GET /apis/example.com/v1/namespaces/ns-a/things");
    // Both have told, and neither serves it: they say so themselves.
    for cluster in ["east", "west"] {
        world.kinds.set(&cluster.into(), Arc::default());
    }
    world.fan("GET /apis/example.com/v1/things");
}

#[test]
fn a_kind_with_two_scopes_has_no_merged_view_and_is_served_by_namespace() {
    let mut world = World::new(two());
    let things = |scope| {
        let mut served = MemberKinds::default();
        let kind = Kind {
            scope,
            kind: "Thing".to_owned(),
            versions: vec!["v1".to_owned()],
            verbs: std::collections::BTreeSet::new(),
        };
        served.add("example.com", "things", kind);
        Arc::new(served)
    };
    world.kinds.set(&"east".into(), things(Scope::Namespaced));
    world.kinds.set(&"west".into(), things(Scope::Cluster));
    for request in [
        "GET /apis/example.com/v1/things",
        "GET /apis/example.com/v1/things?watch",
    ] {
        let refused = world.fault(request).to_string();
        assert!(
            refused.contains("things.example.com has namespaces in member clusters east and none in west"),
            "{request}: {refused}"
        );
    }
    world.fan("GET /apis/example.com/v1/namespaces/ns-a/things");
}

#[test]
fn a_running_watch_is_mended_into_the_epoch_of_its_new_share() {
    for request in [ALL_PODS, "GET /api/v1/secrets?watch"] {
        let running = World::new(shard(vec![member("east", &["ns-a"])])).fan(request);
        let gained = World::new(shard(vec![member("east", &["ns-a", "ns-b"])])).fan(request);
        let epoch = gained.universe.epoch();
        assert_ne!(epoch, running.universe.epoch(), "{request}");
        let Replan::Changed(plan) = gained.after(&running) else {
            panic!("{request}: not mended")
        };
        assert_eq!(plan.universe.epoch(), epoch, "{request}");
        let again = World::new(shard(vec![member("east", &["ns-a"])])).fan(request);
        assert!(matches!(again.after(&running), Replan::Same), "{request}");
    }
}

#[test]
fn more_members_than_a_cursor_has_room_for_are_refused_at_once() {
    let of = |members: usize| Universe::new("ops/blue", (0..members).map(|member| format!("uid-{member}")));
    assert!(fanout::room(&of(180), 180).is_ok() && fanout::room(&of(300), 1).is_ok());
    let refused = fanout::room(&of(200), 199).unwrap_err();
    assert!(
        matches!(&refused, Fault::BadRequest(why) if why.contains("at most 180") && why.contains("199 of the shard's 200"))
    );
}

#[test]
fn settings_of_the_shard_come_along() {
    let mut wire = two();
    wire.unavailable = v1::Unavailable::PartialStart.into();
    wire.write_fence = v1::WriteFence::Disabled.into();
    let fan = World::new(wire).fan("GET /api/v1/pods?watch");
    assert!(fan.unavailable == Unavailable::PartialStart && !fan.fence);
    World::new(two()).check(&[("POST /api/v1/watch/pods", "collection-method ✗ 405")]);
}

#[test]
fn merged_plans_explain_themselves() {
    let world = World::new(two());
    let why = |request: &str| world.plan(&world.pod(), request, &[]).why().join("\n");
    let text = why("GET /api/v1/secrets");
    assert!(text.contains("merged list over 2 of 3 members"), "{text}");
    assert!(text.contains("the router keeps namespaces ns-a, ns-r"), "{text}");
    assert!(why("GET /api/v1/pods").contains("the member filters"));
    assert!(why("GET /api/v1/nodes").contains("shown once"));
    assert!(why("DELETE /api/v1/nodes/n").contains("to the one of east, west that has nodes n"));
}

proptest! {
    /// Whatever is owned, however labels stand and whatever is limited: legs are members of the shard, nothing is kept that
    /// the shard does not own in that member, and nothing that it owns is lost.
    #[test]
    fn a_collection_is_exactly_the_shard(
        east in proptest::collection::btree_set("ns-[a-f]|kube-system", 0..5),
        west in proptest::collection::btree_set("ns-[a-f]|kube-system", 0..5),
        covered in any::<bool>(),
        buckets in proptest::option::of(proptest::collection::btree_set(0_u16..32, 1..20)),
        resource in "pods|secrets|namespaces",
    ) {
        let grant = |cluster, names: &std::collections::BTreeSet<String>| {
            member(cluster, &names.iter().map(String::as_str).collect::<Vec<_>>())
        };
        let mut wire = shard(vec![grant("east", &east), grant("west", &west)]);
        if let Some(buckets) = &buckets {
            let list: Vec<_> = buckets.iter().map(u16::to_string).collect();
            wire.limits = vec![limit("*", "*", &format!("ctrlmesh.kusionstack.io/sharding-hash in ({})", list.join(",")))];
        }
        let world = World::of(vec!["ops/blue".into()], Some(wire), |target| {
            target.coverage.iter_mut().for_each(|kind| kind.complete = covered);
        });
        let bucketing = portolan_crds::shard::Bucketing::default();
        let keys = portolan_crds::labels::LabelKeys::default();
        let fan = world.fan(&format!("GET /api/v1/{resource}"));
        prop_assert_eq!(fan.legs.len(), 2);
        for leg in &fan.legs {
            for namespace in ["ns-a", "ns-b", "ns-c", "ns-d", "ns-e", "ns-f", "kube-system"] {
                let system = namespace == "kube-system";
                let bucket = bucketing.bucket_of(namespace);
                let limited = buckets.as_ref().is_none_or(|buckets| !system && buckets.contains(&bucket));
                let owner = if east.contains(namespace) { "east" } else if west.contains(namespace) { "west" } else { "" };
                // The member's own part of it: agents label all but system namespaces.
                let mut labels = std::collections::BTreeMap::new();
                if !system {
                    labels.insert(keys.namespace().to_owned(), namespace.to_owned());
                    labels.insert(keys.sharding_hash().to_owned(), bucket.to_string());
                }
                let sent = leg.forward.rewrite.selector.as_ref().is_none_or(|selector| selector.matches(&labels));
                let kept = sent && leg.filter.as_ref().is_none_or(|filter| filter.admits(namespace));
                prop_assert_eq!(kept, &**leg.cluster() == owner && limited, "{} in {}", namespace, leg.cluster());
            }
        }
    }

    /// A running watch goes on as it is when labels become complete, or some are missing. When the kind is labelled no more,
    /// the member is asked without them: it would never send what has none.
    #[test]
    fn only_the_end_of_labelling_changes_what_runs(
        before in any::<bool>(), complete in any::<bool>(), after in any::<bool>(), resource in "pods|secrets|namespaces"
    ) {
        let plan = |covered: bool| {
            let world = World::of(vec!["ops/blue".into()], Some(two()), |target| {
                target.coverage.iter_mut().for_each(|kind| kind.complete = complete);
                target.coverage.retain(|_| covered);
            });
            world.fan(&format!("GET /api/v1/{resource}?watch"))
        };
        let (running, next) = (plan(before), plan(after));
        match next.after(&running) {
            Replan::Same => prop_assert!(after || !(before && complete)),
            Replan::Changed(next) => {
                prop_assert!(before && complete && !after);
                prop_assert_eq!(next.universe.epoch(), running.universe.epoch());
                prop_assert!(next.legs.iter().all(|leg| leg.filter.is_some() && leg.forward.rewrite.selector.is_none()));
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }
}
