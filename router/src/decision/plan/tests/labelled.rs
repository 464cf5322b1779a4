//! Which objects of a member are the shard's: by labels where they can be trusted, else by the namespace alone.

use portolan_merge::filter::NamespaceFilter;
use portolan_merge::object_meta::ObjectMeta;

use super::*;

#[test]
fn limits_on_agents_labels_are_told_from_names_until_they_are_there() {
    // ns-a → 27, ns-b → 9 of 32.
    let mut wire = shard(vec![member("west", &["ns-a", "ns-b"])]);
    wire.limits = vec![limit(
        "",
        "*",
        "ctrlmesh.kusionstack.io/sharding-hash in (1,27),app=foo",
    )];
    World::new(wire).check(&[
        (
            "GET /api/v1/pods",
            "all-namespaces ⇒ west select:app=foo,namespace in (ns-a,ns-b),sharding-hash in (1,27)",
        ),
        (
            "GET /api/v1/secrets",
            "all-namespaces ⇒ west select:app=foo keep:namespaces ns-a, ns-b whose labels would match sharding-hash in (1,27)",
        ),
        ("GET /api/v1/namespaces/ns-a/secrets", "owned-namespace ⇒ west select:app=foo"),
        (
            "GET /api/v1/namespaces/ns-b/secrets",
            "owned-namespace ⇒ west select:nothing,!nothing",
        ),
        (
            "GET /api/v1/namespaces/ns-a/secrets/s",
            "owned-namespace → west labels:/api/v1/namespaces/ns-a/secrets/s?app=foo",
        ),
        ("GET /api/v1/namespaces/ns-b/secrets/s", "outside-refused ✗ 403"),
        ("POST /api/v1/namespaces/ns-b/secrets", "outside-refused ✗ 403"),
        (
            "DELETE /api/v1/namespaces/ns-a/secrets",
            "owned-namespace → west select:app=foo",
        ),
        // What has no namespace has no such label either: the member says so.
        (
            "GET /api/v1/nodes",
            "cluster-scoped ⇒ union east select:app=foo,sharding-hash in (1,27) | west select:app=foo,sharding-hash in (1,27)",
        ),
    ]);
}

#[test]
fn system_namespaces_are_kept_by_name() {
    World::new(shard(vec![member("west", &["kube-system", "ns-a"])])).check(&[
        (
            "GET /api/v1/pods",
            "all-namespaces ⇒ west keep:namespaces kube-system, ns-a",
        ),
        ("GET /api/v1/namespaces/kube-system/pods", "owned-namespace ⇒ west"),
    ]);
    let world = World::new(shard(vec![member("west", &["kube-system", "ns-a"])]));
    let why = world.plan(&world.pod(), "GET /api/v1/pods", &[]).why().join("\n");
    for words in [
        "kube-system is a system namespace, which agents do not label",
        "left out: kube-public, kube-node-lease, portolan-system, portolan-routers, which",
    ] {
        assert!(why.contains(words), "{why}");
    }
    // Nothing owned, nothing seen: a selector over no namespace.
    World::new(shard(vec![member("west", &[])]))
        .check(&[("GET /api/v1/pods", "all-namespaces ⇒ west select:nothing,!nothing")]);
    World::new(shard(vec![])).check(&[
        ("GET /api/v1/pods", "no-target ✗ 429"),
        ("GET /api/v1/pods?watch", "no-target ✗ 429"),
        ("POST /api/v1/namespaces", "no-target ✗ 503"),
    ]);
}

#[test]
fn namespaces_are_judged_by_their_names() {
    let world = World::of(vec!["ops/blue".into()], Some(two()), |target| target.coverage.clear());
    let fan = world.fan("GET /api/v1/namespaces?watch");
    let filter = fan.legs[1].filter.as_ref().unwrap();
    let named = |name: &'static str| ObjectMeta {
        name: name.into(),
        ..ObjectMeta::default()
    };
    assert!(
        filter.admits_object(&named("ns-c")) && !filter.admits_object(&named("ns-a")),
        "shadowed there"
    );
    assert!(!fan.unique && fan.watch && fan.fence);
}

/// The hub was started anew with another prefix, and the agent has not labelled by it yet.
#[test]
fn labels_of_another_rule_are_not_trusted() {
    for (prefix, trusted) in [("ctrlmesh.kusionstack.io/", true), ("old.example.com/", false)] {
        let world = World::of(vec!["ops/blue".into()], Some(two()), |target| {
            let rules = target.coverage.iter_mut().filter_map(|kind| kind.rule.as_mut());
            rules.for_each(|rule| rule.prefix = prefix.to_owned());
        });
        let fan = world.fan("GET /api/v1/pods");
        assert_eq!(fan.legs[0].filter.is_none(), trusted, "{prefix}");
    }
}

fn running(prefix: &str, complete: bool, at_admission: Option<bool>) -> FanOut {
    let mut wire = two();
    wire.label_prefix = prefix.into();
    let world = World::of(vec!["ops/blue".into()], Some(wire), |target| {
        for kind in &mut target.coverage {
            kind.rule.as_mut().unwrap().prefix = prefix.into();
            (kind.complete, kind.at_admission) = (complete, at_admission);
        }
    });
    world.fan("GET /api/v1/pods?watch")
}

/// Hub and agent go over to another prefix in one swap: the sweep takes the old labels off, which the members of a watch by
/// them would tell as deleted.
#[test]
fn a_watch_by_labels_that_go_is_asked_anew() {
    let before = running("old.example.com/", true, Some(true));
    let labels = |plan: &FanOut| format!("{:?}", plan.legs[0].forward.rewrite.selector);
    assert!(labels(&before).contains("old.example.com/"), "{}", labels(&before));
    for (complete, at_admission) in [
        (true, Some(true)),
        (false, Some(true)),
        (false, None),
        (false, Some(false)),
    ] {
        let case = format!("{complete} {at_admission:?}");
        match running("new.example.com/", complete, at_admission).after(&before) {
            Replan::Changed(next) => {
                assert!(!labels(&next).contains("old.example.com/"), "{case}: {}", labels(&next));
                assert_eq!(next.legs[0].filter.is_none(), complete, "{case}");
            }
            other => panic!("{case}: {other:?}"),
        }
    }
    // What is filtered here needs no labels.
    let filtered = running("old.example.com/", false, None);
    let next = running("new.example.com/", true, Some(true)).after(&filtered);
    assert!(matches!(next, Replan::Same), "{next:?}");
}

/// An update that leaves the labels out would be told as a delete.
#[test]
fn a_watch_by_labels_that_admission_does_not_keep_is_filtered_here() {
    let before = running("ctrlmesh.kusionstack.io/", true, Some(true));
    for (at_admission, stays) in [(Some(true), true), (None, true), (Some(false), false)] {
        match running("ctrlmesh.kusionstack.io/", false, at_admission).after(&before) {
            Replan::Same => assert!(stays, "{at_admission:?}"),
            Replan::Changed(next) => {
                assert!(
                    !stays && next.legs.iter().all(|leg| leg.filter.is_some()),
                    "{at_admission:?}"
                );
            }
            other => panic!("{at_admission:?}: {other:?}"),
        }
    }
}

/// A namespace was made anew: what was made in it has no labels until the agent has seen to it.
#[test]
fn what_is_in_a_namespace_that_the_agent_has_not_confirmed_is_told_by_its_name() {
    let told = |unconfirmed: &[&str]| {
        let unconfirmed: Vec<String> = unconfirmed.iter().map(|name| (*name).to_owned()).collect();
        World::of(vec!["ops/blue".into()], Some(two()), |target| {
            target.unconfirmed.clone_from(&unconfirmed);
        })
    };
    let (confirmed, another, new) = (told(&[]), told(&["ns-z"]), told(&["ns-a", "ns-z"]));
    let pods = "GET /api/v1/pods?watch";
    assert!(confirmed.fan(pods).legs.iter().all(|leg| leg.filter.is_none()));
    assert!(
        another.fan(pods).legs.iter().all(|leg| leg.filter.is_none()),
        "of another shard"
    );
    let by_name = new.fan(pods);
    let filtered: Vec<_> = by_name.legs.iter().map(|leg| leg.filter.is_some()).collect();
    assert_eq!(filtered, [true, false], "ns-a is of east");
    let why = new.plan(&new.pod(), pods, &[]).why().join("\n");
    assert!(why.contains("has not confirmed the labels of namespace ns-a"), "{why}");
    let running = confirmed.fan(pods);
    assert!(matches!(another.fan(pods).after(&running), Replan::Same));
    match by_name.clone().after(&running) {
        Replan::Changed(next) => assert!(next.legs[0].filter.is_some() && next.legs[1].filter.is_none()),
        other => panic!("{other:?}"),
    }
    assert!(matches!(confirmed.fan(pods).after(&by_name), Replan::Same));
}

#[test]
fn long_lists_of_namespaces_are_filtered_here() {
    let names: Vec<String> = (0..1000).map(|index| format!("namespace-{index}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let world = World::new(shard(vec![member("west", &names)]));
    let fan = world.fan("GET /api/v1/pods");
    assert_eq!(fan.legs[0].forward.rewrite.selector, None);
    assert_eq!(fan.legs[0].filter.as_ref().map(NamespaceFilter::names), Some(1000));
    let why = world.plan(&world.pod(), "GET /api/v1/pods", &[]).why().join("\n");
    assert!(why.contains("and 980 more"), "{why}");
    assert!(
        why.contains("have 13890 bytes of names, and a selector carries 8192"),
        "{why}"
    );
}
