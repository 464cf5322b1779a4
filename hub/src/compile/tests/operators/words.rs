//! What operators are told of each other, and what they have to do with each other's Pods, vacant pairs and new namespaces.

use super::*;

/// In a ledger of before all contend, whoever's they are.
#[test]
fn no_condition_names_a_shard_of_another_hub_namespace() {
    let mut fleet = Fleet::new(&["shop-a", "shop-b"]);
    fleet.caller("east", "p", "op");
    let stranger = ShardName::new("strangers", "theirs").unwrap();
    fleet.apply_of(&stranger, spec(&[("east", &["shop-a"])]));
    fleet.compile(ALL);
    fleet.apply("ours", spec(&[("east", &["shop-a", "shop-b"])]));
    let world = fleet.compile(ALL);
    assert_eq!(world.refusal("ours"), Some(ConditionReason::Overlap));
    let message = world.message("ours");
    assert!(
        message.contains("east/shop-a (of a shard of another hub namespace)"),
        "{message}"
    );
    let verdict = &world.shards[&shard_name("ours")];
    assert_eq!(
        verdict.conflicts[0].owner,
        Some(stranger),
        "who asks the hub itself is told"
    );
}

/// One program has one ShardingConfig: a Pod is served by what one of them says.
#[test]
fn a_pod_that_two_operators_select_is_refused_as_any() {
    let views = |second: &str| {
        let mut fleet = fleet(&["shop-a"]);
        for (shard, operator) in [("r1", "rollouts"), ("p1", second)] {
            let namespace: &[&str] = if operator == "rollouts" && shard == "p1" {
                &["shop-b"]
            } else {
                &["shop-a"]
            };
            fleet.apply(shard, of(operator, &[("east", namespace)]));
        }
        let world = fleet.compile(ALL);
        world.view("east", "p").unwrap().shards.clone()
    };
    let of_one = views("rollouts");
    assert_eq!(of_one.len(), 2, "{of_one:?}");
    assert_eq!(views("prometheus"), of_one);
}

fn by_labels(operator: &str, key: &str) -> ShardingConfigSpec {
    let mut spec = of(operator, &[("east", &[])]);
    let selector = json!({"matchExpressions": [{"key": key, "operator": "DoesNotExist"}]});
    spec.clusters[0].namespace_selector = Some(serde_json::from_value(selector).unwrap());
    spec
}

#[test]
fn a_vacant_pair_is_left_to_shards_of_its_operator_alone() {
    for (operator, taken) in [("prometheus", false), ("rollouts", true)] {
        let mut fleet = fleet(&["shop-a", "shop-b"]);
        fleet.apply("r1", by_labels("rollouts", "crew"));
        fleet.compile(ALL);
        fleet.inventory("east", &["shop-a"]);
        fleet.compile(ALL);
        fleet.apply("other", of(operator, &[("east", &["shop-b"])]));
        let world = fleet.compile(0);
        assert_eq!(world.refusal("other"), None);
        let entry = world.state.ledger.get(&name_of("rollouts"), "east", "shop-b").unwrap();
        assert_eq!(entry.releasing_since.is_some(), taken, "{operator}");
        if !taken {
            assert_eq!(entry.owner, Some(shard_name("r1")));
            assert_eq!(grants(&world, "other"), ["shop-b"], "beside it");
        }
    }
}

/// Two operators make one Namespace in two members: each keeps it where it had it first, and is told of the other one.
#[test]
fn each_operator_keeps_a_namespace_where_it_had_it_first() {
    let homes = |steps: &[(&[&str], &[&str])]| {
        let mut fleet = fleet(&[]);
        fleet.inventory("west", &[]);
        fleet.apply("r1", of("rollouts", &[("east", &[]), ("west", &[])]));
        fleet.apply("p1", of("prometheus", &[("west", &[]), ("east", &[])]));
        fleet.compile(ALL);
        let mut world = None;
        for (east, west) in steps {
            fleet.inventory("east", east);
            fleet.inventory("west", west);
            fleet.compile(ALL);
            world = Some(fleet.compile(ALL));
        }
        let world = world.unwrap();
        ["rollouts", "prometheus"].map(|operator| {
            let in_cluster = |cluster: &&str| {
                let entry = world.state.ledger.get(&name_of(operator), cluster, "shop");
                entry.is_some_and(|entry| entry.owner.is_some())
            };
            let homes: Vec<_> = ["east", "west"].into_iter().filter(in_cluster).collect();
            let shard = if operator == "rollouts" { "r1" } else { "p1" };
            let wanted = &world.shards[&shard_name(shard)].wanted;
            let shadowed: usize = wanted.members.iter().map(|member| member.shadowed.len()).sum();
            (homes.join(" "), shadowed)
        })
    };
    let both: (&[&str], &[&str]) = (&["shop"], &["shop"]);
    let at = |home: &str, shadowed| (home.to_owned(), shadowed);
    assert_eq!(homes(&[both]), [at("east", 1), at("west", 1)], "both have won");
    assert_eq!(homes(&[(&["shop"], &[]), both]), [at("east", 1), at("east", 1)]);
    assert_eq!(homes(&[(&[], &["shop"]), both]), [at("west", 1), at("west", 1)]);
}
