//! What one author's specs weigh: the excess is refused by name, and nobody else has to do with it.

use portolan_crds::AUTHOR_BYTES_MAX;

use super::roots::sized;
use super::*;

const KIB: usize = 1024;

/// `spec` with limits of about so many bytes that narrow nothing else, each as large as a member may be asked by.
fn with_limits(spec: ShardingConfigSpec, bytes: usize) -> ShardingConfigSpec {
    let values: Vec<_> = (0..bytes / 63).map(|index| format!("{index:060}")).collect();
    let limits = values.chunks(800).map(|values| {
        let limit = json!({
            "relateResources": [{"apiGroups": [""], "resources": ["secrets"]}],
            "selector": {"matchExpressions": [{"key": "a", "operator": "NotIn", "values": values}]},
        });
        serde_json::from_value(limit).unwrap()
    });
    ShardingConfigSpec {
        limits: limits.collect(),
        ..spec
    }
}

fn heavy(namespace: &str) -> ShardingConfigSpec {
    with_limits(spec(&[("west", &[namespace])]), 700 * KIB)
}

fn evil(name: &str) -> ShardName {
    ShardName::new("evil", name).unwrap()
}

fn refusal<'a>(world: &'a World, name: &ShardName) -> Option<(ConditionReason, &'a str)> {
    let refusal = world.shards[name].refusal.as_ref()?;
    Some((refusal.reason, refusal.message.as_str()))
}

#[test]
fn what_is_too_much_of_one_author_is_refused_by_name() {
    let mut fleet = Fleet::new(&[]);
    for index in 0..30 {
        fleet.apply_of(&evil(&format!("e-{index:02}")), heavy(&format!("ns-{index}")));
    }
    fleet.apply("calm", spec(&[("west", &["mine"])]));
    let world = fleet.compile(u64::MAX);
    let accepted: Vec<_> = world
        .state
        .accepted
        .keys()
        .filter(|name| name.namespace() == "evil")
        .collect();
    let fitting = AUTHOR_BYTES_MAX / (700 * KIB);
    assert!((fitting - 1..=fitting).contains(&accepted.len()), "{accepted:?}");
    assert_eq!(accepted.first().map(|name| name.name()), Some("e-00"), "the oldest");
    assert_eq!(refusal(&world, &shard_name("calm")), None, "another's");
    let (reason, message) = refusal(&world, &evil("e-29")).unwrap();
    assert_eq!(reason, ConditionReason::TooMuch);
    for part in ["\"evil\"", "e-10 7", &AUTHOR_BYTES_MAX.to_string()] {
        assert!(message.contains(part), "{part}: {message}");
    }
    // What is in force stays, and may become less.
    let refused = evil("e-29");
    fleet.apply_of(&evil("e-00"), spec(&[("west", &["ns-0"])]));
    fleet.apply_of(&refused, heavy("ns-29"));
    let world = fleet.compile(u64::MAX);
    assert_eq!(refusal(&world, &evil("e-00")), None);
    let world_again = fleet.compile(u64::MAX);
    let refused = world_again
        .shards
        .values()
        .filter(|verdict| verdict.refusal.is_some())
        .count();
    let before = world
        .shards
        .values()
        .filter(|verdict| verdict.refusal.is_some())
        .count();
    assert!(
        refused <= before && refused < 30 - accepted.len(),
        "there is room again: {refused}"
    );
}

#[test]
fn a_root_weighs_what_its_children_repeat() {
    let mut fleet = Fleet::new(&[]);
    fleet.apply("root", with_limits(sized(1024), 60 * KIB));
    let world = fleet.compile(u64::MAX);
    let (reason, message) = refusal(&world, &shard_name("root")).unwrap();
    assert_eq!(reason, ConditionReason::TooMuch, "{message}");
    for part in ["spec.root", "of 1024 children", "limits", "shardingSize"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert!(world.state.roots.is_empty());
    fleet.apply("root", with_limits(sized(16), 60 * KIB));
    let world = fleet.compile(u64::MAX);
    assert_eq!(refusal(&world, &shard_name("root")), None);
    assert_eq!(world.state.roots.len(), 1);
}

/// As by an author who asks for more selectors than agents look for.
#[test]
fn children_of_a_root_that_is_not_looked_for_are_left_out_by_name() {
    let by = |app: &str, count: usize| {
        let values: Vec<_> = (0..count).map(|index| format!("{app}-{index:050}")).collect();
        let selector = json!({"matchExpressions": [{"key": "app", "operator": "In", "values": values}]});
        Some(serde_json::from_value(selector).unwrap())
    };
    let mut fleet = super::roots::fleet();
    for index in 0..50 {
        let name = format!("s{index:02}");
        let spec = ShardingConfigSpec {
            selector: by(&name, 900),
            ..spec(&[("west", &[&format!("own-{index}")])])
        };
        fleet.apply(&name, spec);
    }
    let root = ShardingConfigSpec {
        selector: by("root", 1_000),
        caller_clusters: vec!["east".to_owned()],
        ..sized(2)
    };
    fleet.apply("root", root);
    for _ in 0..2 {
        let world = fleet.compile(u64::MAX);
        fleet.write_children(&world);
    }
    let world = fleet.compile(u64::MAX);
    let left_out = world.agent_configs["east"].left_out();
    let is_left_out = |name: &ShardName| {
        let selector = caller_selector(&world.state.accepted[name]).unwrap().to_string();
        left_out.has_selector(name, &selector)
    };
    let children = world.state.accepted.keys();
    let children: Vec<_> = children
        .filter(|name| fleet.facts.shards[*name].root.is_some())
        .collect();
    assert_eq!(children.len(), 2);
    assert!(children.iter().all(|child| is_left_out(child)), "{children:?}");
    assert!(!is_left_out(&shard_name("s00")), "the shortest are looked for");
}

#[test]
fn roots_that_come_at_once_count_each_other() {
    let mut fleet = Fleet::new(&[]);
    for index in 0..4 {
        let mut spec = with_limits(sized(64), 60 * KIB);
        spec.root.as_mut().unwrap().prefix = format!("op-{index}");
        for entry in &mut spec.clusters {
            entry.namespaces = vec![format!("ns-{index}")];
        }
        fleet.apply(&format!("root-{index}"), spec);
    }
    for _ in 0..3 {
        let world = fleet.compile(u64::MAX);
        fleet.write_children(&world);
        let in_force: Vec<_> = world.state.roots.keys().map(ShardName::name).collect();
        assert_eq!(in_force, ["root-0", "root-1"]);
        let (reason, message) = refusal(&world, &shard_name("root-3")).unwrap();
        assert_eq!(reason, ConditionReason::TooMuch, "{message}");
        assert!(
            message.contains("in 64 children") && message.contains("root-0"),
            "{message}"
        );
    }
}
