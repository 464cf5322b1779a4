//! How callers of a shard are served, by example.

use std::collections::BTreeMap;
use std::sync::Arc;

use portolan_wire::v1;
use portolan_wire::v1::ExcessSelector;

use super::*;
use crate::acks::Acks;
use crate::compile::{Accepted, Compiled};
use crate::status::reach::Breakers;

fn shard_name(name: &str) -> ShardName {
    ShardName::new("ops", name).unwrap()
}

fn view(pod: &str) -> Ref {
    Ref::View {
        home: "east".to_owned(),
        pod_uid: format!("uid-{pod}"),
    }
}

fn owned(name: &str) -> Ref {
    Ref::Ownership {
        cluster: "west".to_owned(),
        shard: shard_name(name),
    }
}

fn compiled(version: &str, body: Option<Body>) -> Compiled {
    let version = version.to_owned();
    Compiled {
        resource: Arc::new(v1::Resource { version, body }),
        change: None,
        provisional: false,
    }
}

/// Views by version, and both shards with what they own in west by the present one.
fn holding(views: &[(&str, &str)]) -> BTreeMap<Ref, String> {
    let views = views.iter().map(|(pod, version)| (view(pod), *version));
    let shards = ["a", "b"].into_iter();
    let parts = shards.flat_map(|name| [(Ref::Shard(shard_name(name)), "s2"), (owned(name), "s2")]);
    let held = views.chain(parts);
    held.map(|(name, version)| (name, version.to_owned())).collect()
}

/// Shards a and b are in force by version s2; views have version 2.
fn world(pods: &[(&str, &[&str])]) -> World {
    let mut world = World::default();
    for name in ["a", "b"] {
        let accepted = Accepted {
            uid: name.to_owned(),
            generation: 1,
            spec: Arc::default(),
            ..Accepted::default()
        };
        world.state.accepted.insert(shard_name(name), accepted);
        let members = vec![v1::ShardMember {
            cluster: "west".to_owned(),
            ..v1::ShardMember::default()
        }];
        let rules = v1::Shard {
            members,
            ..v1::Shard::default()
        };
        for (name, body) in [
            (Ref::Shard(shard_name(name)), Some(Body::Shard(rules))),
            (owned(name), None),
        ] {
            world.resources.insert(name, compiled("s2", body));
        }
    }
    for (pod, shards) in pods {
        let body = CallerView {
            home_cluster: "east".to_owned(),
            namespace: "ops".to_owned(),
            pod: (*pod).to_owned(),
            pod_uid: format!("uid-{pod}"),
            shards: shards.iter().map(|shard| format!("ops/{shard}")).collect(),
            ..CallerView::default()
        };
        let compiled = compiled("2", Some(Body::CallerView(body)));
        world.resources.insert(view(pod), compiled);
        for shard in *shards {
            world.callers.entry(shard_name(shard)).or_default().insert(view(pod));
        }
    }
    world
}

/// What the shard tells while one router holds these versions.
fn told(world: &World, name: &str, held: &[(&str, &str)]) -> (CallersStatus, Finding) {
    told_with(&Facts::default(), world, name, held)
}

fn told_with(facts: &Facts, world: &World, name: &str, held: &[(&str, &str)]) -> (CallersStatus, Finding) {
    let acks = Acks::default();
    acks.connected("gateway", RouterState::new(1, holding(held)));
    acks.read(|routers| {
        let name = shard_name(name);
        let callers = callers(world, &name, routers);
        let sources = Sources {
            facts,
            world,
            routers,
            breakers: &Breakers::default(),
            now: jiff::Timestamp::UNIX_EPOCH,
        };
        let found = distributed(sources, &name, &callers);
        (callers, found)
    })
}

#[test]
fn a_shard_whose_selector_matches_too_many_pods_is_told_and_others_are_not() {
    let mut world = world(&[("p", &["a"]), ("q", &["b"])]);
    let labels = serde_json::json!({"selector": {"matchLabels": {"app": "flood"}}});
    let accepted = world.state.accepted.get_mut(&shard_name("a")).unwrap();
    accepted.spec = Arc::new(serde_json::from_value(labels).unwrap());
    let mut facts = Facts::default();
    let excess = ExcessSelector {
        namespace: "ops".to_owned(),
        digest: digest_of("app=flood"),
        matched: 5_001,
        told: 500,
        ..ExcessSelector::default()
    };
    facts.agents.entry("east".to_owned()).or_default().excess = vec![excess];
    let found = |shard| told_with(&facts, &world, shard, &[("p", "2"), ("q", "2")]).1;
    let flooded = found("a");
    assert_eq!(flooded.reason, ConditionReason::TooManyCallers);
    assert!(
        flooded.message.contains("matches 5001 Pods in east"),
        "{}",
        flooded.message
    );
    assert_ne!(found("b").reason, ConditionReason::TooManyCallers);
    let excess = &mut facts.agents.get_mut("east").unwrap().excess[0];
    excess.fault = "the API server answers 403".to_owned();
    let failed = told_with(&facts, &world, "a", &[("p", "2"), ("q", "2")]).1;
    assert_eq!(failed.reason, ConditionReason::CallersUnknown);
    assert!(failed.message.contains("answers 403"), "{}", failed.message);
}

#[test]
fn pods_with_too_many_labels_are_named_to_the_shards_of_their_namespace() {
    let mut world = world(&[("p", &["a"])]);
    let pods = ["fat-0 in east (1048576 bytes)".to_owned()];
    world.unread_pods.insert("ops".to_owned(), pods.clone().into());
    let found = told(&world, "a", &[("p", "2")]).1;
    assert!(
        found.status == Some(true) && found.message.contains(&pods[0]),
        "{found:?}"
    );
}

#[test]
fn of_routers_that_hold_the_same_one_stands_for_all_and_one_that_lags_is_seen() {
    let world = world(&[("p", &["a"])]);
    let acks = Acks::default();
    let held = RouterState::new(1, holding(&[("p", "2")])).held;
    for router in ["first", "second", "third"] {
        let state = RouterState {
            held: held.clone(),
            ..RouterState::new(1, BTreeMap::new())
        };
        acks.connected(router, state);
    }
    acks.read(|routers| {
        let name = shard_name("a");
        assert_eq!(different(connected(routers, &name)).count(), 1);
    });
    let current = || acks.read(|routers| callers(&world, &shard_name("a"), routers)).current;
    assert_eq!(current(), 1);
    acks.update("second", 1, |router| router.held.insert(owned("a"), "s1".to_owned()));
    assert_eq!(current(), 0, "the second lags");
}

#[test]
fn callers_are_as_present_as_what_their_shard_owns() {
    let world = world(&[("p", &["a"]), ("q", &["a"])]);
    let acks = Acks::default();
    acks.connected("gateway", RouterState::new(1, holding(&[("p", "2"), ("q", "2")])));
    let current = || acks.read(|routers| callers(&world, &shard_name("a"), routers));
    assert_eq!(current().current, 2);
    acks.update("gateway", 1, |router| {
        router.held.insert(owned("b"), "s1".to_owned());
    });
    assert_eq!(current().current, 2, "that of another shard");
    acks.update("gateway", 1, |router| {
        router.held.insert(owned("a"), "s1".to_owned());
        router.rejected.insert(owned("a"), ("s2".to_owned(), "no".to_owned()));
    });
    let callers = current();
    assert_eq!((callers.current, callers.total), (0, 2));
    assert!(
        callers
            .replicas
            .iter()
            .all(|replica| replica.nack.as_deref() == Some("no"))
    );
}

#[test]
fn a_pod_in_two_shards_is_told_of_by_both() {
    let world = world(&[("own", &["a"]), ("both", &["a", "b"])]);
    for (name, other, progress) in [("a", "b", "1 of 2"), ("b", "a", "0 of 1")] {
        let (callers, found) = told(&world, name, &[("own", "2"), ("both", "2")]);
        assert_eq!(
            (found.status, found.reason),
            (Some(false), ConditionReason::CallersInSeveralShards)
        );
        assert_eq!(
            found.message,
            format!(
                "{progress} callers are served by the present version; routers answer 403 to Pod ops/both in east: \
                 also selected by ShardingConfig ops/{other}, and a Pod must belong to one shard; narrow \
                 spec.selector here or there"
            )
        );
        let first = &callers.replicas[0];
        assert_eq!((first.pod.as_str(), first.version.as_deref()), ("both", None));
        let why = first.nack.as_deref().unwrap();
        assert!(why.contains("2 shards, which must be one: ops/a, ops/b;"), "{why}");
        assert!(callers.replicas[1..].iter().all(|replica| replica.nack.is_none()));
    }
}

#[test]
fn shards_with_pods_of_their_own_say_nothing_of_each_other() {
    let world = world(&[("one", &["a"]), ("other", &["b"])]);
    for name in ["a", "b"] {
        let (callers, found) = told(&world, name, &[("one", "2"), ("other", "2")]);
        assert_eq!((callers.current, callers.total), (1, 1));
        assert_eq!((found.status, found.reason), (Some(true), ConditionReason::Ok));
    }
}

#[test]
fn a_router_that_has_not_heard_of_the_second_shard_serves_by_the_earlier_view() {
    let (callers, found) = told(&world(&[("both", &["a", "b"])]), "a", &[("both", "1")]);
    assert_eq!(
        (callers.current, callers.replicas[0].version.as_deref()),
        (0, Some("s2"))
    );
    assert_eq!(found.reason, ConditionReason::CallersInSeveralShards);
}

#[test]
fn pods_of_other_accounts_are_told_of() {
    let mut world = world(&[("p", &["a"])]);
    let pods = ["q in east (default)".to_owned()];
    world.not_admitted.insert(shard_name("a"), pods.into());
    let (_, found) = told(&world, "a", &[("p", "2")]);
    assert_eq!((found.status, found.reason), (Some(true), ConditionReason::Ok));
    assert!(
        found
            .message
            .ends_with("no callers by spec.serviceAccounts: q in east (default)"),
        "{}",
        found.message
    );
}

#[test]
fn of_many_pods_a_few_are_named() {
    let pods: Vec<_> = (0..STATUS_REPLICAS_MAX + 50)
        .map(|number| format!("p-{number:03}"))
        .collect();
    let both: &[&str] = &["a", "b"];
    let pods: Vec<_> = pods.iter().map(|pod| (pod.as_str(), both)).collect();
    let (callers, Finding { message, .. }) = told(&world(&pods), "a", &[]);
    assert_eq!(callers.replicas.len(), STATUS_REPLICAS_MAX);
    assert!(message.contains("ops/p-009 in east and 240 more: also"), "{message}");
    assert!(!message.contains("p-010"), "{message}");
}
