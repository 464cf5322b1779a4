//! Children whose objects do not say yet what their root generates.

use super::*;

/// Objects of children are written one after the other, by a hub that has others to write.
#[test]
fn a_child_that_comes_has_nothing_of_what_a_sibling_has_whose_object_is_late() {
    let mut fleet = fleet();
    fleet.apply("root", root(2));
    grow(&mut fleet, ALL);
    let all = ["op-1-normal", "op-2-normal", "op-3-normal"];
    fleet.apply("root", root(3));
    let world = fleet.compile(ALL);
    let coming = world.state.roots[&shard_name("root")].coming.clone().unwrap();
    for name in ["op-3-normal", "op-2-normal", "op-1-normal"] {
        let uid = fleet.facts.shards[&shard_name("root")].uid.clone();
        fleet.apply(name, coming.child(name).unwrap().spec.clone());
        fleet.facts.shards.get_mut(&shard_name(name)).unwrap().root = Some(uid);
        for _ in 0..2 {
            let world = fleet.compile(ALL);
            let had = (0..32).map(|bucket| all.iter().filter(|name| has(&world, name, bucket)).count());
            assert!(had.into_iter().all(|owners| owners <= 1), "with {name}");
            let waits = !world.shards[&shard_name("op-3-normal")].awaited.is_empty();
            assert!(waits || name == "op-1-normal", "with {name}");
        }
    }
    let world = fleet.compile(ALL);
    assert_eq!((had_by(&world, &all), had_by(&world, &all[2..])), (32, 10));
}

/// A root whose two children share out pods with this label.
fn root_of(prefix: &str, app: &str) -> ShardingConfigSpec {
    let mut spec = root(2);
    spec.root.as_mut().unwrap().prefix = prefix.to_owned();
    let pods = json!([{
        "relateResources": [{"apiGroups": ["*"], "resources": ["pods"]}],
        "selector": {"matchLabels": {"app": app}},
    }]);
    spec.root.as_mut().unwrap().resource_selector = serde_json::from_value(pods).unwrap();
    spec
}

/// The object of this child says what its root generates.
fn write(fleet: &mut Fleet, root: &str, child: &str) {
    let children = &fleet.state.roots[&shard_name(root)];
    let generated = children.coming.as_ref().or(children.in_force.as_ref()).unwrap().clone();
    let uid = fleet.facts.shards[&shard_name(root)].uid.clone();
    fleet.apply(child, generated.child(child).unwrap().spec.clone());
    fleet.facts.shards.get_mut(&shard_name(child)).unwrap().root = Some(uid);
}

/// How many of these have pods of the bucket with this label.
fn owners(world: &World, names: &[&str], (bucket, app): (u16, &str)) -> usize {
    let key = Settings::default().keys.sharding_hash().to_owned();
    let labels = BTreeMap::from([(key, bucket.to_string()), ("app".to_owned(), app.to_owned())]);
    let has = |name: &&&str| world.rules(name).is_some() && told(world, name).matches(&labels);
    names.iter().filter(has).count()
}

const CHILDREN: [&str; 2] = ["op-1-normal", "op-2-normal"];

/// A root is in force at once, and the objects of its children say what they had until they are written.
#[test]
fn who_takes_what_a_root_drops_has_nothing_of_what_a_child_has_whose_object_is_late() {
    let all: Vec<_> = (0..32).collect();
    for (taker, takers) in [
        ("plain", vec!["plain"]),
        ("second", vec!["two-1-normal", "two-2-normal"]),
    ] {
        let mut fleet = fleet();
        let wants = |app: &str| match taker {
            "plain" => limited(&all, Some(app)),
            _ => root_of("two", app),
        };
        let grown = |fleet: &mut Fleet| {
            fleet.compile(ALL);
            if taker == "second" {
                for child in &takers {
                    write(fleet, taker, child);
                }
            }
            fleet.compile(ALL)
        };
        fleet.apply("root", root_of("op", "web"));
        fleet.apply(taker, wants("mail"));
        fleet.compile(ALL);
        for child in CHILDREN {
            write(&mut fleet, "root", child);
        }
        grown(&mut fleet);
        let names: Vec<_> = CHILDREN.iter().chain(&takers).copied().collect();
        let disjoint = |world: &World| {
            let mut met = all.iter().flat_map(|bucket| ["web", "mail"].map(|app| (*bucket, app)));
            met.all(|place| owners(world, &names, place) <= 1)
        };
        let is_had = |world: &World, at| owners(world, &takers, at) == 1;
        let has = |world: &World, app| all.iter().filter(|bucket| is_had(world, (**bucket, app))).count();
        fleet.apply("root", root_of("op", "mail"));
        fleet.apply(taker, wants("web"));
        let world = grown(&mut fleet);
        assert_eq!((world.refusal("root"), world.refusal(taker)), (None, None));
        for child in CHILDREN {
            let world = fleet.compile(ALL);
            assert!(disjoint(&world), "{taker} before {child}");
            let awaited = takers.iter().flat_map(|name| &world.shards[&shard_name(name)].awaited);
            assert!(awaited.count() > 0, "{taker} before {child}");
            write(&mut fleet, "root", child);
        }
        let by_all = fleet.state.run;
        let world = fleet.compile(by_all);
        assert!(
            disjoint(&world) && has(&world, "web") < 32,
            "{taker}: routers may let it through"
        );
        let world = fleet.compile(ALL);
        assert_eq!(
            (disjoint(&world), has(&world, "web"), has(&world, "mail")),
            (true, 32, 0),
            "{taker}"
        );
    }
}

/// One that waits for routers, and then does not go by what its root generates, has all of it once they have let go.
#[test]
fn a_child_has_nothing_of_what_one_waits_for_whose_object_is_late() {
    let mut fleet = fleet();
    fleet.apply("root", root(2));
    grow(&mut fleet, ALL);
    fleet.apply("root", root(3));
    let by_all = fleet.state.run;
    let world = grow(&mut fleet, by_all);
    let late = "op-3-normal";
    assert_eq!(had_by(&world, &[late]), 0);
    fleet.apply("root", root(4));
    fleet.apply(late, limited(&[0], None));
    let uid = fleet.facts.shards[&shard_name("root")].uid.clone();
    fleet.facts.shards.get_mut(&shard_name(late)).unwrap().root = Some(uid);
    fleet.compile(by_all);
    for child in ["op-4-normal", "op-1-normal", "op-2-normal"] {
        write(&mut fleet, "root", child);
    }
    fleet.compile(by_all);
    let names = ["op-1-normal", "op-2-normal", late, "op-4-normal"];
    let disjoint =
        |world: &World| (0..32).all(|bucket| names.iter().filter(|name| has(world, name, bucket)).count() <= 1);
    for _ in 0..2 {
        let world = fleet.compile(ALL);
        assert_eq!(world.refusal(late), Some(ConditionReason::Invalid));
        assert!(disjoint(&world) && had_by(&world, &[late]) > 0);
    }
    write(&mut fleet, "root", late);
    let by_all = fleet.state.run;
    assert!(disjoint(&fleet.compile(by_all)));
    let world = fleet.compile(ALL);
    assert_eq!((disjoint(&world), had_by(&world, &names)), (true, 32));
}
