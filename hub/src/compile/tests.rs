//! Laws of the compiler: one owner per pair whatever happens, order does not matter, same facts give same hashes; and
//! the rules of acceptance by example.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use portolan_crds::ledger::Slot;
use portolan_crds::{
    ConditionReason, ExplicitView, MemberClusterSpec, OperatorName, ShardingConfigSpec, WebhookConfig,
};
use proptest::prelude::*;
use serde_json::json;

use super::*;

mod alone;
mod credentials;
mod fence;
mod fleet;
mod handover;
mod held;
mod laws;
mod limits;
mod locks;
mod memo;
mod operators;
mod policies;
mod revisions;
mod root_runs;
mod roots;
mod too_much;
mod vacant;
mod weights;

use fleet::*;

/// The design's example: two members, exact namespaces.
#[test]
fn a_federated_shard_reaches_its_callers() {
    let mut fleet = Fleet::new(&["ns-a", "ns-b", "ns-c", "kube-system"]);
    fleet.caller("east", "p1", "op");
    fleet.caller("east", "p2", "other");
    fleet.caller("west", "p3", "op");
    let spec = ShardingConfigSpec {
        explicit_view: ExplicitView::Allow,
        ..spec(&[("east", &["ns-a", "ns-b"]), ("west", &["ns-c"])])
    };
    fleet.apply("shard", spec);
    let world = fleet.compile(0);
    assert_eq!(world.refusal("shard"), None);
    let view = world.view("east", "p1").unwrap();
    assert_eq!(view.shards, ["ops/shard"]);
    let shard = world.rules("shard").unwrap();
    assert_eq!((shard.primary_cluster.as_str(), shard.explicit_view), ("east", true));
    let members: Vec<_> = shard.members.iter().map(|member| member.cluster.as_str()).collect();
    assert_eq!(members, ["east", "west"]);
    for (cluster, namespaces) in [("east", &["ns-a", "ns-b"][..]), ("west", &["ns-c"])] {
        let grants = &world.owned(cluster, "shard").unwrap().namespaces;
        let names: Vec<_> = grants.iter().map(|grant| grant.namespace.as_str()).collect();
        assert_eq!(names, namespaces);
        let first = |grant: &v1::NamespaceGrant| grant.owner_count > 0 && grant.state() == v1::GrantState::Granted;
        assert!(grants.iter().all(|grant| first(grant) && grant.view_revision > 0));
    }
    assert_eq!(world.view("east", "p2"), None, "the selector does not match it");
    assert_eq!(world.view("west", "p3"), None, "west is no caller cluster");
    assert_eq!(
        world.agent_configs["east"].rest().caller_selectors[0].selector,
        "app=op"
    );
    assert!(world.agent_configs["west"].rest().caller_selectors.is_empty());
}

/// 33 KB of YAML whose cross product is megabytes, and `*` for all kinds.
#[test]
fn what_one_shard_limits_is_labelled_in_its_own_members_and_within_bounds() {
    use portolan_crds::GroupResource;
    let label = "x".repeat(59);
    let group = |at: usize| format!("g{at:03}.{label}.{label}.{label}");
    let groups: Vec<_> = (0..64).map(group).collect();
    let resources: Vec<_> = (0..256).map(|at| format!("r{at:03}{label}")).collect();
    let limits = |groups: &[String], resources: &[String]| {
        let related = json!([{"relateResources": [{"apiGroups": groups, "resources": resources}]}]);
        serde_json::from_value(related).unwrap()
    };
    let mut fleet = Fleet::new(&["a", "b"]);
    let mut evil = spec(&[("east", &["a"])]);
    evil.limits = limits(&groups, &resources);
    fleet.apply_of(&ShardName::new("evil", "evil").unwrap(), evil);
    let mut own = spec(&[("east", &["b"]), ("west", &["b2"])]);
    own.limits = limits(&[String::new()], &["secrets".to_owned()]);
    fleet.apply("own", own);
    let world = fleet.compile(0);
    let labelled = |cluster: &str| {
        let kinds = world.agent_configs[cluster].rest().labelled_kinds.iter();
        kinds.cloned().map(GroupResource::from).collect::<BTreeSet<_>>()
    };
    let secrets = GroupResource::new("", "secrets");
    let settings = &Settings::default().label_kinds;
    let others: BTreeSet<_> = settings.iter().cloned().chain([secrets.clone()]).collect();
    assert_eq!(labelled("west"), others, "evil is no shard of west");
    let (east, orders) = (labelled("east"), &world.agent_configs["east"]);
    assert!(others.is_subset(&east) && east.len() > 1_000);
    let bytes = prost::Message::encoded_len(&orders.to_wire());
    assert!(bytes < 1 << 20, "{bytes}");
    assert!(orders.left_out().kinds("evil") > 1_000 && orders.left_out().kinds("ops") == 0);
    assert_eq!(orders.left_out().by_author()["evil"].0, orders.left_out().kinds("evil"));
    let mut all = spec(&[("east", &["a"])]);
    all.limits = limits(&["*".to_owned()], &["*".to_owned()]);
    fleet.apply_of(&ShardName::new("evil", "evil").unwrap(), all);
    let world = fleet.compile(0);
    let any = v1::KindRef {
        group: "*".to_owned(),
        resource: "*".to_owned(),
    };
    let asks = |cluster: &str| world.agent_configs[cluster].rest().labelled_kinds.contains(&any);
    assert_eq!((asks("east"), asks("west")), (true, false));
}

#[test]
fn what_has_too_many_labels_is_chosen_by_no_selector() {
    let mut fleet = Fleet::new(&["fat", "slim"]);
    fleet.caller("east", "slim", "op");
    fleet.caller("east", "fat", "op");
    let pods = fleet.agent("east").callers.as_mut().unwrap();
    let fat = pods.get_mut("fat").unwrap();
    (fat.labels, fat.labels_cut) = (std::collections::HashMap::new(), 1 << 20);
    let namespaces = fleet.agent("east").namespaces.as_mut().unwrap();
    namespaces.get_mut("fat").unwrap().labels_cut = 1 << 20;
    let mut wanted = spec(&[("east", &[])]);
    let selector = |text: &str| serde_json::from_str::<LabelSelector>(text).unwrap();
    wanted.selector = Some(selector(
        r#"{"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}"#,
    ));
    wanted.clusters[0].namespace_selector = wanted.selector.clone();
    fleet.apply("shard", wanted.clone());
    let world = fleet.compile(0);
    let owned = |world: &World| {
        let owned = world.owned("east", "shard").unwrap().namespaces.iter();
        owned.map(|grant| grant.namespace.clone()).collect::<Vec<_>>()
    };
    assert_eq!(owned(&world), ["slim"]);
    assert!(world.view("east", "slim").is_some() && world.view("east", "fat").is_none());
    let unread = &world.unread_pods["ops"];
    assert!(unread.iter().any(|pod| pod.contains("pod-fat in east")), "{unread:?}");
    // Who asks for all namespaces asks for no label.
    wanted.clusters[0].namespace_selector = None;
    fleet.apply("shard", wanted);
    assert_eq!(owned(&fleet.compile(0)), ["fat", "slim"]);
}

#[test]
fn routers_are_told_which_new_namespaces_a_shard_takes() {
    let mut fleet = Fleet::new(&["kube-system", "ns-a"]);
    let mut wanted = spec(&[("east", &["kube-system", "ns-new"]), ("west", &[])]);
    wanted.clusters[0].namespace_selector =
        Some(serde_json::from_value(json!({"matchLabels": {"crew": "blue"}})).unwrap());
    wanted.clusters[0].default = true;
    fleet.apply("shard", wanted);
    let world = fleet.compile(0);
    assert_eq!(world.refusal("shard"), None);
    let owned = |cluster| {
        let owned = world.owned(cluster, "shard").unwrap().namespaces.iter();
        owned.map(|grant| grant.namespace.clone()).collect::<Vec<_>>()
    };
    assert_eq!(
        owned("east"),
        ["kube-system", "ns-new"],
        "names and a selector: what is labelled is not there"
    );
    assert_eq!(owned("west"), ["ns-a"]);
    let members = &world.rules("shard").unwrap().members;
    let rules: Vec<_> = members
        .iter()
        .map(|member| member.namespace_rules.clone().unwrap())
        .collect();
    let of = |names: &[&str], selector: &str, default_for_new| v1::NamespaceRules {
        names: names.iter().map(|name| (*name).to_owned()).collect(),
        selectors: vec![selector.to_owned()],
        default_for_new,
    };
    assert_eq!(
        rules,
        [of(&["kube-system", "ns-new"], "crew=blue", true), of(&[], "", false)]
    );
}

#[test]
fn a_shard_of_more_members_than_a_cursor_has_room_for_is_refused_when_it_is_applied() {
    let shard = || {
        let mut wanted = spec(&[("east", &["ns-a"])]);
        wanted.clusters[0].name = None;
        wanted.clusters[0].selector = Some(LabelSelector::default());
        wanted
    };
    let mut fleet = Fleet::new(&[]);
    for number in 2..180 {
        fleet.member(&format!("m{number}"));
    }
    fleet.apply("shard", shard());
    assert_eq!(fleet.compile(0).refusal("shard"), None);
    fleet.member("m180");
    assert_eq!(fleet.compile(0).refusal("shard"), None, "what is accepted stays so");
    fleet.apply("other", shard());
    let world = fleet.compile(0);
    let refusal = world.shards[&shard_name("other")].refusal.as_ref().unwrap();
    assert!(refusal.message.contains("181 member clusters"), "{}", refusal.message);
}

#[test]
fn an_original_manifest_has_its_home_cluster() {
    let mut fleet = Fleet::new(&["ns-a"]);
    fleet.caller("west", "p", "op");
    fleet.apply(
        "shard",
        ShardingConfigSpec {
            caller_clusters: Vec::new(),
            ..spec(&[])
        },
    );
    let world = fleet.compile(0);
    let shard = world.rules("shard").unwrap();
    assert_eq!(shard.primary_cluster, "", "that of each caller");
    let home = v1::ShardMember {
        cluster: String::new(),
        all_namespaces: true,
        namespace_rules: None,
    };
    assert_eq!(shard.members, [home]);
    assert_eq!(shard.enforcement(), v1::Enforcement::Audit);
    assert_eq!(world.owner("west", "ns-a"), None, "it divides objects, not namespaces");
}

#[test]
fn a_pod_in_two_shards_is_told_so() {
    let mut fleet = Fleet::new(&[]);
    fleet.caller("east", "p", "op");
    fleet.apply("a", spec(&[("east", &["ns-a"])]));
    fleet.apply("b", spec(&[("east", &["ns-b"])]));
    let world = fleet.compile(0);
    let view = world.view("east", "p").unwrap();
    assert_eq!(view.shards, ["ops/a", "ops/b"]);
    // The statuses of both tell.
    assert_eq!(world.callers[&shard_name("a")], world.callers[&shard_name("b")]);
}

#[test]
fn all_namespaces_are_those_of_the_inventory_but_the_systems() {
    let mut fleet = Fleet::new(&["ns-a", "kube-system"]);
    fleet.apply("shard", spec(&[("east", &[])]));
    fleet.compile(0);
    fleet.inventory("east", &["ns-a", "ns-b", "kube-system"]);
    let world = fleet.compile(0);
    assert_eq!(world.owner("east", "ns-b"), Some("shard"));
    assert_eq!(world.owner("east", "kube-system"), None);
}

#[test]
fn an_entry_may_have_names_and_a_selector() {
    let mut fleet = Fleet::new(&["ns-a", "ns-b", "kube-system", "kube-public"]);
    let mut both = spec(&[("east", &["kube-system"])]);
    both.clusters[0].namespace_selector = Some(LabelSelector::default());
    fleet.apply("shard", both);
    let world = fleet.compile(0);
    for (namespace, owner) in [
        ("ns-a", Some("shard")),
        ("ns-b", Some("shard")),
        ("kube-system", Some("shard")),
        ("kube-public", None),
    ] {
        assert_eq!(world.owner("east", namespace), owner, "{namespace}");
    }
}

#[test]
fn the_first_cluster_owns_and_the_others_are_shadowed() {
    let mut fleet = Fleet::new(&["ns-a", "ns-b"]);
    fleet.apply("shard", spec(&[("west", &["ns-a"]), ("east", &[])]));
    let world = fleet.compile(0);
    assert_eq!(world.owner("west", "ns-a"), Some("shard"));
    assert_eq!(world.owner("east", "ns-a"), None);
    let members = &world.shards[&shard_name("shard")].wanted.members;
    assert_eq!(members[1].shadowed, BTreeSet::from(["ns-a".to_owned()]));
}

#[test]
fn a_newcomer_of_the_same_name_is_shadowed_until_the_namespace_is_released() {
    let mut fleet = Fleet::new(&[]);
    fleet.inventory("west", &["ns-a"]);
    fleet.apply("shard", spec(&[("east", &[]), ("west", &[])]));
    assert_eq!(fleet.compile(0).owner("west", "ns-a"), Some("shard"));
    fleet.inventory("east", &["ns-a"]);
    let world = fleet.compile(u64::MAX);
    assert_eq!(world.owner("west", "ns-a"), Some("shard"), "a live namespace stays");
    assert_eq!(world.owner("east", "ns-a"), None);
    let members = &world.shards[&shard_name("shard")].wanted.members;
    assert_eq!(members[0].shadowed, BTreeSet::from(["ns-a".to_owned()]));
    assert!(members[1].shadowed.is_empty());

    // The namespace of west goes: routers let go of it first.
    fleet.inventory("west", &[]);
    let world = fleet.compile(0);
    let run = world.state.run;
    assert_eq!(world.owner("east", "ns-a"), None, "some router may still write to west");
    let world = fleet.compile(run);
    assert_eq!(world.owner("west", "ns-a"), None);
    assert_eq!(world.owner("east", "ns-a"), Some("shard"));
    assert!(world.shards[&shard_name("shard")].wanted.members[0].shadowed.is_empty());
}

#[test]
fn an_overlap_goes_to_the_older() {
    let mut fleet = Fleet::new(&["ns-a", "ns-b"]);
    fleet.apply("old", spec(&[("east", &["ns-a"])]));
    fleet.apply("new", spec(&[("east", &["ns-a", "ns-b"])]));
    let world = fleet.compile(u64::MAX);
    assert_eq!(world.refusal("old"), None);
    assert_eq!(world.refusal("new"), Some(ConditionReason::Overlap));
    assert!(
        world.message("new").contains("east/ns-a (of ops/old)"),
        "{}",
        world.message("new")
    );
    assert_eq!(
        world.owner("east", "ns-b"),
        None,
        "a spec is taken as a whole or not at all"
    );
    fleet.delete("old");
    let world = fleet.compile(0);
    assert_eq!(world.refusal("new"), None, "nobody goes on wanting it");
    assert_eq!(
        world.owner("east", "ns-a"),
        Some("old"),
        "some router may still serve it"
    );
    let world = fleet.compile(u64::MAX);
    assert_eq!(world.owner("east", "ns-a"), Some("new"));
    assert_eq!(
        world
            .state
            .ledger
            .get(&OperatorName::default(), "east", "ns-a")
            .unwrap()
            .owner_count,
        2
    );
}

#[test]
fn an_unserved_webhook_does_not_keep_the_shard_from_being_served() {
    let mut fleet = Fleet::new(&["ns-a"]);
    fleet.caller("east", "p", "op");
    fleet.apply("shard", spec(&[("east", &["ns-a"])]));
    fleet.compile(0);
    let webhook = Some(WebhookConfig {
        cert_dir: "/certs".to_owned(),
        port: 9443,
    });
    fleet.apply(
        "shard",
        ShardingConfigSpec {
            webhook,
            ..spec(&[("east", &["ns-a"])])
        },
    );
    let world = fleet.compile(0);
    assert_eq!(world.refusal("shard"), None);
    let accepted = world.state.accepted.values().next().unwrap();
    assert_eq!(accepted.generation, 2, "the spec with a webhook is in force");
}

#[test]
fn a_bad_edit_keeps_the_last_accepted_spec() {
    let mut fleet = Fleet::new(&["ns-a"]);
    fleet.caller("east", "p", "op");
    fleet.apply("shard", spec(&[("east", &["ns-a"])]));
    let good = fleet.compile(0);
    let bad_edits: [(ShardingConfigSpec, ConditionReason, &str); 3] = [
        (
            spec(&[("nowhere", &["ns-a"])]),
            ConditionReason::UnknownCluster,
            "spec.clusters[0].name",
        ),
        (
            ShardingConfigSpec {
                selector: None,
                ..spec(&[("east", &[])])
            },
            ConditionReason::Invalid,
            "spec.selector",
        ),
        (
            ShardingConfigSpec {
                caller_clusters: vec!["mars".to_owned()],
                ..spec(&[("east", &[])])
            },
            ConditionReason::UnknownCluster,
            "spec.callerClusters[0]",
        ),
    ];
    for (edit, reason, field) in bad_edits {
        fleet.apply("shard", edit);
        let world = fleet.compile(0);
        assert_eq!(world.refusal("shard"), Some(reason));
        assert!(world.message("shard").contains(field), "{}", world.message("shard"));
        assert_eq!(world.rules("shard"), good.rules("shard"));
        assert_eq!(world.owned("east", "shard"), good.owned("east", "shard"));
    }
}

/// Whoever writes in a namespace of the hub has only the members that allow it, and only as long as they do.
#[test]
fn a_member_says_which_namespaces_of_the_hub_may_have_it() {
    let mut fleet = Fleet::new(&["ns-a"]);
    fleet.caller("east", "p", "op");
    fleet.allow("east", &["another", "ops"]);
    fleet.apply("shard", spec(&[("east", &["ns-a"])]));
    let world = fleet.compile(0);
    assert_eq!(world.owner("east", "ns-a"), Some("shard"));
    assert_eq!(world.callers_of("shard"), 1);
    fleet.allow("west", &["another"]);
    fleet.apply("greedy", spec(&[("west", &["ns-a"])]));
    let world = fleet.compile(0);
    assert_eq!(world.refusal("greedy"), Some(ConditionReason::NotAllowed));
    let said = world.message("greedy");
    assert!(
        said.contains("spec.clusters[0].name") && said.contains("spec.allowedNamespaces"),
        "{said}"
    );
    assert_eq!(world.owner("west", "ns-a"), None);
    // Taken back: what it has is released, and its Pods there are nobody.
    fleet.allow("east", &["another"]);
    let world = fleet.compile(0);
    assert!(
        world
            .state
            .ledger
            .get(&OperatorName::default(), "east", "ns-a")
            .unwrap()
            .releasing_since
            .is_some()
    );
    assert_eq!(world.callers_of("shard"), 0);
}

/// A hub that restarts knows objects and its ledger, and nothing of agents.
#[test]
fn a_restart_gives_the_same_world_and_takes_nothing_away() {
    let mut fleet = Fleet::new(&["ns-a", "ns-b"]);
    fleet.caller("east", "p", "op");
    fleet.token("east", "gateway", "t");
    fleet.apply("shard", spec(&[("east", &[])]));
    let before = fleet.compile(0);

    let agents = std::mem::take(&mut fleet.facts.agents);
    // Meanwhile a bad edit came in.
    fleet.apply("shard", spec(&[("nowhere", &[])]));
    fleet.restart();
    let world = fleet.compile(0);
    assert_eq!(world.owner("east", "ns-b"), Some("shard"));
    let gone: Vec<_> = before.resources.keys().filter(|name| world.is_gone(name)).collect();
    assert!(gone.is_empty(), "{gone:?}");
    assert!(world.resources[&Ref::Identity("east".to_owned())].provisional);

    fleet.facts.agents = agents;
    let world = fleet.compile(0);
    assert_eq!(world.resources, before.resources);
}

#[test]
fn a_cordoned_member_takes_no_new_shards_and_keeps_the_old() {
    let mut fleet = Fleet::new(&["ns-a", "ns-b"]);
    fleet.apply("old", spec(&[("west", &["ns-a"])]));
    fleet.compile(0);
    let member = fleet.facts.members.get_mut("west").unwrap();
    let spec_in_force = MemberClusterSpec {
        cordoned: true,
        ..(**member.in_force.as_ref().unwrap()).clone()
    };
    member.in_force = Some(Arc::new(spec_in_force));
    fleet.apply("new", spec(&[("west", &["ns-b"])]));
    fleet.apply("old", spec(&[("west", &["ns-a"]), ("east", &["ns-a"])]));
    let world = fleet.compile(0);
    assert_eq!(world.refusal("new"), Some(ConditionReason::Cordoned));
    assert_eq!(world.refusal("old"), None);
    assert_eq!(world.owner("west", "ns-a"), Some("old"));
}

/// What changes often changes nothing else, or every watch would be planned anew.
#[test]
fn a_report_of_coverage_changes_one_resource() {
    let mut fleet = Fleet::new(&["ns-a"]);
    fleet.caller("east", "p", "op");
    fleet.apply("shard", spec(&[("east", &[])]));
    let before = fleet.compile(0);
    let pods = portolan_crds::GroupResource::new("", "pods");
    let coverage = BTreeMap::from([(pods, v1::KindCoverage::default())]);
    fleet.agent("east").coverage = Some(coverage);
    let after = fleet.compile(0);
    let changed = |name: &&Ref| before.resources.get(*name) != after.resources.get(*name);
    let changed: Vec<_> = after.resources.keys().filter(changed).collect();
    assert_eq!(changed, [&Ref::Coverage("east".to_owned())]);
    fleet.facts.silent.insert("east".to_owned());
    let silent = fleet.compile(0);
    let told = silent.body(&Ref::Coverage("east".to_owned()));
    let nothing = |coverage: &v1::Coverage| coverage.kinds.is_empty();
    assert!(matches!(told, Some(v1::resource::Body::Coverage(coverage)) if nothing(coverage)));
}

/// Until the agent has labelled a namespace, what is made in it may lack its labels too.
#[test]
fn namespaces_without_confirmed_labels_are_told() {
    let mut fleet = Fleet::new(&["ns-a", "ns-b", "kube-system", "other"]);
    fleet.apply(
        "shard",
        spec(&[("east", &["ns-a", "ns-b", "kube-system", "not-there"])]),
    );
    let pods = portolan_crds::GroupResource::new("", "pods");
    let complete = v1::KindCoverage {
        complete: true,
        ..v1::KindCoverage::default()
    };
    fleet.agent("east").coverage = Some(BTreeMap::from([(pods, complete)]));
    let told = |fleet: &Fleet| match fleet.clone().compile(0).body(&Ref::Coverage("east".to_owned())) {
        Some(v1::resource::Body::Coverage(told)) => (told.kinds.len(), told.unconfirmed.clone()),
        other => panic!("{other:?}"),
    };
    assert_eq!(told(&fleet), (1, vec!["ns-a".to_owned(), "ns-b".to_owned()]));
    fleet.label("east", "ns-a");
    assert_eq!(told(&fleet), (1, vec!["ns-b".to_owned()]));
    fleet.label("east", "ns-b");
    assert_eq!(told(&fleet), (1, Vec::new()));
    fleet
        .agent("east")
        .settling
        .insert("ns-a".to_owned(), std::time::Instant::now());
    assert_eq!(told(&fleet), (1, vec!["ns-a".to_owned()]));
    let namespaces = portolan_crds::GroupResource::new("", "namespaces");
    let told_namespaces = |at_admission| v1::KindCoverage {
        at_admission: Some(at_admission),
        ..v1::KindCoverage::default()
    };
    for (seen, kinds) in [(true, 2), (false, 0), (true, 2)] {
        let coverage = fleet.agent("east").coverage.as_mut().unwrap();
        coverage.insert(namespaces.clone(), told_namespaces(seen));
        assert_eq!(told(&fleet).0, kinds, "whether the agent sees namespaces");
    }
    let many: Vec<String> = (0..200).map(|number| format!("ns-{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    fleet.apply("shard", spec(&[("east", &many)]));
    fleet.inventory("east", &many);
    let (kinds, named) = told(&fleet);
    assert_eq!((kinds, named.len()), (0, 100), "too many to name");
}

#[test]
fn a_namespace_more_changes_what_is_owned_in_its_member_alone() {
    let mut fleet = Fleet::new(&["ns-a"]);
    for pod in 0..50 {
        fleet.caller("east", &format!("p-{pod}"), "op");
    }
    fleet.apply("shard", spec(&[("east", &[]), ("west", &["ns-w"])]));
    let before = fleet.compile(0);
    fleet.inventory("east", &["ns-a", "ns-b"]);
    let after = fleet.compile(0);
    let changed = |name: &&Ref| before.resources.get(*name) != after.resources.get(*name);
    let changed: Vec<_> = after.resources.keys().filter(changed).collect();
    assert_eq!(changed, [&owned_by("east", "shard")]);
}

#[test]
fn a_key_of_two_members_is_of_neither() {
    let mut fleet = Fleet::new(&[]);
    let shared = fleet.facts.pins["east"].signing_keys.clone();
    fleet.facts.pins.get_mut("west").unwrap().signing_keys.extend(shared);
    let world = fleet.compile(0);
    assert!(world.identity("east").unwrap().signing_keys.is_empty());
    assert_eq!(world.identity("west").unwrap().signing_keys.len(), 1);
}

#[test]
fn a_member_that_is_no_longer_accepted_is_taken_from_routers() {
    let mut fleet = Fleet::new(&[]);
    fleet.compile(0);
    fleet.facts.members.get_mut("west").unwrap().accept = false;
    let world = fleet.compile(0);
    let Some(v1::resource::Body::Target(target)) = world.body(&Ref::Target("west".to_owned())) else {
        panic!("nothing is told of it")
    };
    assert!(
        target.withdrawn && target.endpoints.is_empty(),
        "it is told apart from one that is not known yet"
    );
    assert!(world.is_gone(&Ref::gateway_credential("west")));
    assert!(!world.agent_configs.contains_key("west"));
}

/// As by a selector of another author that the API server refuses.
#[test]
fn of_a_member_with_unknown_callers_those_that_were_seen_are_taken_from_routers() {
    let mut fleet = Fleet::new(&["ns-a"]);
    fleet.apply("a", spec(&[("east", &["ns-a"])]));
    fleet.caller("east", "p", "op");
    fleet.caller("east", "elsewhere", "other");
    fleet.agent("east").unknown_callers.insert("evil".to_owned());
    fleet.agent("east").gone_callers.add("gone".to_owned());
    let world = fleet.compile(u64::MAX);
    let is_gone = |uid: &str| {
        world.is_gone(&Ref::View {
            home: "east".to_owned(),
            pod_uid: uid.to_owned(),
        })
    };
    let uids = ["p", "elsewhere", "gone", "never seen"];
    assert_eq!(uids.map(is_gone), [false, true, true, false]);
    fleet.agent("east").unknown_callers.clear();
    let world = fleet.compile(u64::MAX);
    let never = Ref::View {
        home: "east".to_owned(),
        pod_uid: "never seen".to_owned(),
    };
    assert!(world.is_gone(&never) && world.seen_callers.is_empty());
}
