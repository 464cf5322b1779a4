//! Shards without clusters, which contend by what their limits say, and cluster-scoped kinds of which one shard has all.

use portolan_crds::{Auto, ClusterScoped, Contention, Root, Selector};

use super::*;

mod late;

const ALL: u64 = u64::MAX;

/// A fleet of a new ledger.
fn fleet() -> Fleet {
    let mut fleet = Fleet::new(&["shop-a"]);
    fleet.caller("east", "p", "op");
    fleet.state.ledger = Arc::new(Ledger::restore(Contention::Operator, [], 0, false));
    fleet
}

/// Pods of these buckets, with this label if any.
fn limited(buckets: &[u16], app: Option<&str>) -> ShardingConfigSpec {
    let values: Vec<_> = buckets.iter().map(u16::to_string).collect();
    let bucket = json!({"key": Settings::default().keys.sharding_hash(), "operator": "In", "values": values});
    let mut selector = json!({"matchExpressions": [bucket]});
    if let Some(app) = app {
        selector["matchLabels"] = json!({"app": app});
    }
    serde_json::from_value(json!({
        "selector": {"matchLabels": {"app": "op"}},
        "limits": [{"relateResources": [{"apiGroups": ["*"], "resources": ["pods"]}], "selector": selector}],
    }))
    .unwrap()
}

/// What routers are told of pods.
fn told(world: &World, name: &str) -> Selector {
    let rules = world.rules(name).unwrap();
    let selectors = rules
        .limits
        .iter()
        .map(|limit| Selector::parse(&limit.selector).unwrap());
    selectors.fold(Selector::everything(), |all, one| all.and(&one))
}

fn has(world: &World, name: &str, bucket: u16) -> bool {
    let keys = Settings::default().keys;
    let labels = BTreeMap::from([(keys.sharding_hash().to_owned(), bucket.to_string())]);
    world.rules(name).is_some() && told(world, name).matches(&labels)
}

#[test]
fn the_newer_of_two_that_have_some_of_the_same_is_refused() {
    let mut fleet = fleet();
    fleet.apply("a", limited(&[0, 1, 2], Some("web")));
    fleet.apply("b", limited(&[2], Some("mail")));
    fleet.apply("c", limited(&[2, 3], None));
    let other = ShardingConfigSpec {
        operator: Some("another".to_owned()),
        ..limited(&[2, 3], None)
    };
    fleet.apply("d", other);
    let world = fleet.compile(ALL);
    assert_eq!(
        (world.refusal("a"), world.refusal("b"), world.refusal("d")),
        (None, None, None)
    );
    assert_eq!(world.refusal("c"), Some(ConditionReason::Overlap));
    let message = world.message("c");
    assert!(
        message.contains("pods of bucket 2 with app=web (of ops/a)") && message.contains("set spec.operator"),
        "{message}"
    );
    assert!(world.rules("c").is_none());
    fleet.apply("c", limited(&[3], None));
    assert_eq!(fleet.compile(ALL).refusal("c"), None);
    // An older one does not take what a newer one has.
    fleet.apply("a", limited(&[0, 3], None));
    let world = fleet.compile(ALL);
    assert_eq!(world.refusal("a"), Some(ConditionReason::Overlap));
    assert!(
        told(&world, "a").to_string().contains("app=web"),
        "what it had it keeps"
    );
}

#[test]
fn what_was_accepted_before_stays_and_both_are_told() {
    let mut fleet = fleet();
    fleet.state.ledger = Arc::default();
    fleet.apply("a", limited(&[0], None));
    fleet.apply("b", limited(&[0], None));
    let world = fleet.compile(ALL);
    assert_eq!(
        (world.refusal("a"), world.refusal("b")),
        (None, None),
        "in a ledger of before nobody looks"
    );
    assert!(world.shards[&shard_name("b")].conflicts.is_empty());
    fleet.state.ledger = Arc::new(Ledger::restore(Contention::Operator, [], 0, false));
    let mut edit = limited(&[0], None);
    edit.service_accounts = vec!["op".to_owned()];
    fleet.apply("b", edit);
    let world = fleet.compile(ALL);
    for name in ["a", "b"] {
        assert_eq!(world.refusal(name), None, "{name}");
        assert_eq!(world.shards[&shard_name(name)].conflicts.len(), 1, "{name}");
    }
}

#[test]
fn what_an_edit_moves_is_told_where_it_goes_once_every_router_has_let_go() {
    let mut fleet = fleet();
    fleet.apply("a", limited(&[0, 1], None));
    fleet.apply("b", limited(&[2], None));
    fleet.compile(ALL);
    fleet.apply("a", limited(&[0], None));
    fleet.apply("b", limited(&[1, 2, 3], None));
    let by_all = fleet.state.run;
    let world = fleet.compile(by_all);
    assert_eq!((world.refusal("a"), world.refusal("b")), (None, None));
    assert!(has(&world, "a", 0) && !has(&world, "a", 1));
    assert!(has(&world, "b", 2) && !has(&world, "b", 1) && !has(&world, "b", 3));
    assert_eq!(
        world.shards[&shard_name("b")].awaited[0].told_in("ops"),
        "pods of bucket 1 (of ops/a)"
    );
    // Neither another run nor a restart tells it.
    let narrowed = world.state.run;
    assert!(!has(&fleet.compile(by_all), "b", 1));
    let (mut again, narrower) = (fleet.clone(), fleet.state.clone());
    again.restart();
    let world = again.compile(0);
    assert!(has(&world, "b", 2) && !has(&world, "b", 1));
    again.compile(1);
    assert!(has(&again.compile(1), "b", 1), "all have heard the new process");
    fleet.state = narrower;
    let world = fleet.compile(narrowed);
    assert!(has(&world, "b", 1) && has(&world, "b", 3) && !has(&world, "a", 1));
    assert!(world.shards[&shard_name("b")].awaited.is_empty());
}

#[test]
fn one_that_comes_after_another_has_nothing_until_that_is_gone_everywhere() {
    let mut fleet = fleet();
    fleet.apply("a", limited(&[0, 1], None));
    fleet.compile(ALL);
    fleet.delete("a");
    fleet.apply("b", limited(&[1], None));
    fleet.apply("c", limited(&[7], None));
    let by_all = fleet.state.run;
    let world = fleet.compile(by_all);
    assert!(!has(&world, "b", 1) && told(&world, "b").is_nothing());
    assert!(has(&world, "c", 7), "nobody had that");
    let gone = world.state.run;
    assert!(has(&fleet.compile(gone), "b", 1));
}

#[test]
fn two_that_change_places_have_nothing_of_it_in_between() {
    let mut fleet = fleet();
    fleet.apply("a", limited(&[0], None));
    fleet.apply("b", limited(&[1], None));
    fleet.compile(ALL);
    fleet.apply("a", limited(&[1], None));
    fleet.apply("b", limited(&[0], None));
    let by_all = fleet.state.run;
    let world = fleet.compile(by_all);
    for (name, bucket) in [("a", 0), ("a", 1), ("b", 0), ("b", 1)] {
        assert!(!has(&world, name, bucket), "{name} {bucket}");
    }
    let world = fleet.compile(world.state.run);
    assert!(has(&world, "a", 1) && has(&world, "b", 0) && !has(&world, "a", 0));
}

fn root(size: i32) -> ShardingConfigSpec {
    ShardingConfigSpec {
        selector: Some(serde_json::from_value(json!({"matchLabels": {"app": "op"}})).unwrap()),
        root: Some(Root {
            prefix: "op".to_owned(),
            target_stateful_set: "op".to_owned(),
            auto: Some(Auto {
                every_shard_replicas: 1,
                sharding_size: size,
                ..Auto::default()
            }),
            ..Root::default()
        }),
        ..ShardingConfigSpec::default()
    }
}

/// The children of a root of this size are there as it generates them.
fn grow(fleet: &mut Fleet, by_all: u64) -> World {
    let mut world = fleet.compile(by_all);
    for _ in 0..3 {
        let children = &world.state.roots[&shard_name("root")];
        let generated = children.coming.as_ref().or(children.in_force.as_ref()).unwrap().clone();
        let uid = fleet.facts.shards[&shard_name("root")].uid.clone();
        for child in &generated.expansion.children {
            let known = fleet.facts.shards.get(&shard_name(&child.name));
            if known.is_none_or(|known| known.spec.as_ref().is_ok_and(|spec| **spec != child.spec)) {
                fleet.apply(&child.name, child.spec.clone());
                let object = fleet.facts.shards.get_mut(&shard_name(&child.name)).unwrap();
                object.root = Some(uid.clone());
            }
        }
        world = fleet.compile(by_all);
    }
    world
}

#[test]
fn a_root_that_grows_hands_buckets_over_when_every_router_has_let_go() {
    let mut fleet = fleet();
    fleet.apply("root", root(2));
    grow(&mut fleet, ALL);
    let owners = |world: &World| -> Vec<Vec<String>> {
        let children = ["op-1-normal", "op-2-normal", "op-3-normal"];
        let of = |bucket| {
            children
                .iter()
                .filter(|name| has(world, name, bucket))
                .map(|name| (*name).to_owned())
                .collect()
        };
        (0..32).map(of).collect()
    };
    let before = owners(&fleet.compile(ALL));
    assert!(before.iter().all(|owners| owners.len() == 1), "{before:?}");
    fleet.apply("root", root(3));
    let by_all = fleet.state.run;
    let world = grow(&mut fleet, by_all);
    assert_eq!(world.refusal("root"), None);
    let between = owners(&world);
    for (bucket, (now, was)) in between.iter().zip(&before).enumerate() {
        assert!(now.is_empty() || now == was, "bucket {bucket}: {now:?} after {was:?}");
    }
    let moving = between.iter().filter(|owners| owners.is_empty()).count();
    let world = fleet.compile(world.state.run);
    let after = owners(&world);
    assert!(after.iter().all(|owners| owners.len() == 1), "{after:?}");
    let third = after.iter().filter(|owners| owners[0] == "op-3-normal").count();
    assert!(
        third >= 10 && third == moving,
        "what it is to have was nobody's: {third} of {moving}"
    );
    // Whoever comes beside it has none of them.
    fleet.apply("late", limited(&[31], None));
    let world = fleet.compile(ALL);
    assert_eq!(world.refusal("late"), Some(ConditionReason::Overlap));
    assert!(
        world.message("late").contains("pods of bucket 31 (of ops/root)"),
        "{}",
        world.message("late")
    );
}

/// How many buckets the shards are told of, counted for each.
fn had_by(world: &World, names: &[&str]) -> usize {
    let buckets = (0..32).flat_map(|bucket| names.iter().filter(move |name| has(world, name, bucket)));
    buckets.count()
}

#[test]
fn a_root_and_the_shard_that_it_was_or_becomes_hand_over_as_two_shards_do() {
    let (children, all) = (["op-1-normal", "op-2-normal"], (0..32).collect::<Vec<_>>());
    let mut fleet = fleet();
    fleet.apply("root", root(2));
    grow(&mut fleet, ALL);
    let world = fleet.compile(ALL);
    assert_eq!(had_by(&world, &children), 32);
    // The children are gone at once, and routers still serve them.
    fleet.apply("root", limited(&all, None));
    let by_all = fleet.state.run;
    let world = fleet.compile(by_all);
    assert_eq!((world.refusal("root"), had_by(&world, &["root"])), (None, 0));
    let world = fleet.compile(world.state.run);
    assert_eq!(had_by(&world, &["root"]), 32);
    for child in children {
        fleet.delete(child);
    }
    fleet.compile(ALL);
    fleet.apply("root", root(2));
    let by_all = fleet.state.run;
    let world = grow(&mut fleet, by_all);
    assert_eq!((world.refusal("root"), had_by(&world, &children)), (None, 0));
    let world = fleet.compile(world.state.run);
    assert_eq!(had_by(&world, &children), 32);
}

fn fleets(entries: &[(&str, &[&str])]) -> ShardingConfigSpec {
    let resources = serde_json::from_value(json!([{"apiGroups": ["shop.example"], "resources": ["fleets"]}]));
    ShardingConfigSpec {
        cluster_scoped: Some(ClusterScoped {
            resources: resources.unwrap(),
        }),
        ..spec(entries)
    }
}

/// Whether routers are told to show its callers fleets.
fn sees(world: &World, name: &str) -> bool {
    let limits = &world.rules(name).unwrap().limits;
    let about = limits
        .iter()
        .filter(|limit| limit.resources.iter().any(|rule| rule.resources == ["fleets"]));
    about
        .into_iter()
        .all(|limit| !Selector::parse(&limit.selector).unwrap().is_nothing())
}

#[test]
fn a_kind_without_namespaces_is_one_shards_of_its_operator() {
    let mut fleet = fleet();
    fleet.inventory("east", &["a", "b", "c"]);
    fleet.apply("a", spec(&[("east", &["a"])]));
    fleet.apply("b", spec(&[("east", &["b"])]));
    let other = ShardingConfigSpec {
        operator: Some("another".to_owned()),
        ..fleets(&[("east", &["a"])])
    };
    fleet.apply("other", other);
    let world = fleet.compile(ALL);
    assert!(
        sees(&world, "a") && sees(&world, "b"),
        "what nobody names is seen by all"
    );
    let by_all = fleet.state.run;
    fleet.apply("a", fleets(&[("east", &["a"])]));
    let world = fleet.compile(by_all);
    assert!(sees(&world, "a") && !sees(&world, "b") && sees(&world, "other"));
    fleet.apply("b", fleets(&[("east", &["b"])]));
    let world = fleet.compile(ALL);
    assert_eq!(world.refusal("b"), Some(ConditionReason::Overlap));
    let message = world.message("b");
    assert!(
        message.starts_with("spec.clusterScoped.resources: all fleets.shop.example (of ops/a)"),
        "{message}"
    );
    // It goes from the one to the other, and is nobody's until all routers have heard.
    fleet.apply("a", spec(&[("east", &["a"])]));
    let by_all = fleet.state.run;
    let world = fleet.compile(by_all);
    assert_eq!(world.refusal("b"), None);
    assert!(!sees(&world, "a") && !sees(&world, "b"));
    assert!(!sees(&fleet.compile(by_all), "b"));
    let heard = world.state.run;
    let world = fleet.compile(heard);
    assert!(!sees(&world, "a") && sees(&world, "b"));
    // One that comes later sees nothing of it, and nobody names it when it is gone.
    fleet.apply("c", spec(&[("east", &["c"])]));
    assert!(!sees(&fleet.compile(ALL), "c"));
    fleet.delete("b");
    let world = fleet.compile(ALL);
    assert!(sees(&world, "a") && sees(&world, "c"));
}
