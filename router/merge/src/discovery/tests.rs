//! Tables and laws of the union, and the documents made of it.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::json;

use super::render::{self, Format};
use super::union::{Served, unite};
use super::{Group, Named, Resource, ResponseKind, Subresource, Version, parse};

fn words(list: &[&str]) -> Vec<String> {
    list.iter().map(|word| (*word).to_owned()).collect()
}

fn resource(name: &str, verbs: &[&str]) -> Resource {
    Resource {
        resource: name.to_owned(),
        response_kind: Some(ResponseKind {
            kind: name.to_uppercase(),
            ..ResponseKind::default()
        }),
        scope: "Namespaced".to_owned(),
        singular_resource: name.trim_end_matches('s').to_owned(),
        verbs: words(verbs),
        ..Resource::default()
    }
}

fn group(name: &str, versions: &[(&str, Vec<Resource>)]) -> Group {
    Group {
        metadata: Named { name: name.to_owned() },
        versions: versions
            .iter()
            .map(|(version, resources)| Version {
                version: (*version).to_owned(),
                resources: resources.clone(),
                freshness: "Current".to_owned(),
            })
            .collect(),
    }
}

fn served<'a>(cluster: &'a str, primary: bool, groups: &'a [Group]) -> Served<'a> {
    Served {
        cluster,
        primary,
        aside: false,
        groups,
    }
}

fn names(groups: &[Group]) -> Vec<String> {
    let versions = groups.iter().flat_map(|group| {
        group.versions.iter().flat_map(|version| {
            let resources = version.resources.iter();
            resources.map(|one| format!("{}/{}/{}", group.metadata.name, version.version, one.resource))
        })
    });
    versions.collect()
}

#[test]
fn groups_and_resources_are_united_in_the_primarys_order() {
    let east = [
        group("z.io", &[("v1", vec![resource("zebras", &["get"])])]),
        group(
            "a.io",
            &[
                ("v2", vec![resource("ants", &["get"])]),
                ("v1", vec![resource("ants", &["get"])]),
            ],
        ),
    ];
    let west = [
        group("a.io", &[("v1", vec![resource("bees", &["get"])])]),
        group("m.io", &[("v1", vec![resource("mice", &["list"])])]),
    ];
    let united = unite(&[served("west", false, &west), served("east", true, &east)]);
    assert_eq!(
        names(&united.groups),
        [
            "z.io/v1/zebras",
            "a.io/v2/ants",
            "a.io/v1/ants",
            "a.io/v1/bees",
            "m.io/v1/mice"
        ]
    );
    assert!(united.conflicts.is_empty());
}

#[test]
fn verbs_and_subresources_are_those_of_all_that_serve_it() {
    let sub = |name: &str, verbs: &[&str]| Subresource {
        subresource: name.to_owned(),
        verbs: words(verbs),
        ..Subresource::default()
    };
    let mut here = resource("ships", &["get", "list", "watch"]);
    here.short_names = words(&["sh"]);
    here.subresources = vec![sub("status", &["get", "patch"]), sub("scale", &["get"])];
    let mut there = resource("ships", &["watch", "get"]);
    there.short_names = words(&["s", "sh"]);
    there.subresources = vec![sub("status", &["patch"])];
    let (east, west) = (
        [group("x.io", &[("v1", vec![here])])],
        [group("x.io", &[("v1", vec![there])])],
    );
    // A member without the kind does not narrow it.
    let united = unite(&[
        served("east", true, &east),
        served("west", false, &west),
        served("north", false, &[]),
    ]);
    let ship = &united.groups[0].versions[0].resources[0];
    assert_eq!(
        (ship.verbs.join(" "), ship.short_names.join(" ")),
        ("get watch".into(), "sh s".into())
    );
    assert_eq!(ship.subresources, [sub("status", &["patch"])]);
}

#[test]
fn versions_are_those_in_common_and_none_is_a_conflict() {
    let ships = || vec![resource("ships", &["get"])];
    let ports = || vec![resource("ports", &["get"])];
    let both = || [ships(), ports()].concat();
    let east = [group("x.io", &[("v3", ships()), ("v2", both())])];
    let west = [group("x.io", &[("v2", ships()), ("v1", both())])];
    let united = unite(&[served("east", true, &east), served("west", false, &west)]);
    assert_eq!(
        names(&united.groups),
        ["x.io/v2/ships"],
        "v3 and v1 are empty now and go"
    );
    let conflict = united.conflicts[0].to_string();
    assert!(
        conflict.starts_with("ports.x.io is left out") && conflict.contains("east: v2; west: v1"),
        "{conflict}"
    );
}

#[test]
fn another_scope_or_kind_is_a_conflict() {
    let mut cluster_wide = resource("ships", &["get"]);
    cluster_wide.scope = "Cluster".to_owned();
    let east = [group("x.io", &[("v1", vec![resource("ships", &["get"])])])];
    let west = [group("x.io", &[("v1", vec![cluster_wide])])];
    let united = unite(&[served("east", true, &east), served("west", false, &west)]);
    assert!(united.groups.is_empty());
    assert!(united.conflicts[0].offers["west"].contains("Cluster"));
}

#[test]
fn what_is_aside_adds_and_never_narrows() {
    let east = [group("x.io", &[("v2", vec![resource("ships", &["get", "list"])])])];
    let home = [group(
        "x.io",
        &[("v1", vec![resource("ships", &["get"]), resource("settings", &["get"])])],
    )];
    let aside = Served {
        aside: true,
        ..served("a-home", false, &home)
    };
    let united = unite(&[aside, served("east", true, &east)]);
    assert_eq!(names(&united.groups), ["x.io/v2/ships", "x.io/v1/settings"]);
    assert_eq!(united.groups[0].versions[0].resources[0].verbs.len(), 2);
}

#[test]
fn stale_is_what_is_stale_everywhere() {
    let fresh = [group("m.io", &[("v1", vec![resource("nodes", &["get"])])])];
    let mut stale = fresh.clone();
    stale[0].versions[0].freshness = "Stale".to_owned();
    let freshness = |a: &[Group], b: &[Group]| {
        unite(&[served("a", true, a), served("b", false, b)]).groups[0].versions[0]
            .freshness
            .clone()
    };
    assert_eq!(freshness(&stale, &fresh), "Current");
    assert_eq!(freshness(&stale, &stale), "Stale");
}

const DOCUMENT: &str = r#"{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":[
  {"metadata":{"name":"policy","creationTimestamp":null},"versions":[{"version":"v1","resources":[
    {"resource":"budgets","responseKind":{"group":"","version":"","kind":"Budget"},"scope":"Namespaced","singularResource":"budget",
     "verbs":["get","list"],"shortNames":["pdb"],"subresources":[
       {"subresource":"status","responseKind":{"group":"","version":"","kind":"Budget"},"verbs":["get"]},
       {"subresource":"eviction","responseKind":{"group":"x","version":"v3","kind":"Eviction"},"verbs":["create"]}]},
    {"resource":"tokens","responseKind":{"group":"","version":"","kind":""},"scope":"Cluster","singularResource":"","verbs":null,
     "subresources":[{"subresource":"request","responseKind":{"group":"","version":"","kind":"Request"},"verbs":["create"]}]}
  ],"freshness":"Current"}]}]}"#;

#[test]
fn legacy_documents_say_the_same() {
    let groups = parse(DOCUMENT.as_bytes()).unwrap();
    let list = render::resources(&groups, "policy", "v1").unwrap();
    assert_eq!(
        list,
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "policy/v1", "resources": [
            {"name": "budgets", "singularName": "budget", "namespaced": true, "kind": "Budget", "verbs": ["get", "list"], "shortNames": ["pdb"]},
            {"name": "budgets/status", "singularName": "", "namespaced": true, "kind": "Budget", "verbs": ["get"]},
            {"name": "budgets/eviction", "singularName": "", "namespaced": true, "group": "x", "version": "v3", "kind": "Eviction", "verbs": ["create"]},
            {"name": "tokens/request", "singularName": "", "namespaced": false, "kind": "Request", "verbs": ["create"]},
        ]})
    );
    let version = json!({"groupVersion": "policy/v1", "version": "v1"});
    assert_eq!(
        render::group(&groups, "policy").unwrap(),
        json!({"kind": "APIGroup", "apiVersion": "v1", "name": "policy", "versions": [version], "preferredVersion": version})
    );
    assert_eq!(render::group_list(&groups)["groups"][0]["name"], "policy");
    assert!(render::resources(&groups, "policy", "v9").is_none() && render::group(&groups, "none").is_none());
    assert_eq!(
        parse(br#"{"kind":"APIGroupList","groups":[]}"#),
        None,
        "an older server's answer"
    );
}

#[test]
fn the_aggregated_document_of_one_member_is_its_own() {
    let groups = parse(DOCUMENT.as_bytes()).unwrap();
    let united = unite(&[served("east", true, &groups)]);
    let written = render::aggregated(&united.groups, false, Format::V2);
    assert_eq!(parse(&written).unwrap(), groups);
    assert!(
        parse(&render::aggregated(&united.groups, true, Format::V2))
            .unwrap()
            .is_empty()
    );
}

fn any_groups() -> impl Strategy<Value = Vec<Group>> {
    let verbs = proptest::sample::subsequence(vec!["get", "list", "watch", "create"], 0..=4);
    let resources = proptest::collection::btree_map(0..4_usize, verbs, 0..3);
    let versions = proptest::collection::btree_map(0..3_usize, resources, 0..3);
    proptest::collection::btree_map(0..3_usize, versions, 0..3).prop_map(|groups| {
        let groups = groups.into_iter().map(|(name, versions)| {
            let versions: Vec<_> = versions
                .into_iter()
                .map(|(version, resources)| {
                    let resources = resources.into_iter();
                    let resources = resources
                        .map(|(name, verbs)| resource(&format!("r{name}s"), &verbs))
                        .collect();
                    (["v1", "v2", "v1beta1"][version], resources)
                })
                .collect();
            group(["", "a.io", "b.io"][name], &versions)
        });
        groups.collect()
    })
}

/// group, resource → versions with verbs.
fn offers(groups: &[Group], name: &str, resource: &str) -> Vec<(String, BTreeSet<String>)> {
    let group = groups.iter().find(|group| group.metadata.name == name);
    let versions = group.into_iter().flat_map(|group| &group.versions);
    let found = versions.flat_map(|version| {
        let same = version.resources.iter().filter(|one| one.resource == resource);
        same.map(|one| (version.version.clone(), one.verbs.iter().cloned().collect()))
    });
    found.collect()
}

proptest! {
    #[test]
    fn one_member_is_its_own_union(groups in any_groups()) {
        let once = unite(&[served("a", true, &groups)]);
        let twice = unite(&[served("a", true, &groups), served("b", false, &groups)]);
        prop_assert_eq!(&once, &twice);
        prop_assert_eq!(names(&once.groups), names(&groups));
    }

    #[test]
    fn the_order_of_members_is_of_no_effect(members in proptest::collection::vec(any_groups(), 1..4), seed in 0..6_usize) {
        let clusters = ["east", "north", "west"];
        let all: Vec<_> = members.iter().zip(clusters).enumerate().map(|(at, (groups, name))| served(name, at == 0, groups)).collect();
        let mut shuffled = all.clone();
        let length = shuffled.len();
        shuffled.rotate_left(seed % length);
        if seed > 2 { shuffled.reverse(); }
        let hash = |members: &[Served<'_>]| {
            let united = unite(members);
            (render::etag(&render::aggregated(&united.groups, false, Format::V2)), united.conflicts)
        };
        prop_assert_eq!(hash(&all), hash(&shuffled));
    }

    #[test]
    fn offered_is_what_works_on_every_member_that_has_it(members in proptest::collection::vec(any_groups(), 1..4)) {
        let clusters = ["east", "north", "west"];
        let all: Vec<_> = members.iter().zip(clusters).enumerate().map(|(at, (groups, name))| served(name, at == 0, groups)).collect();
        let united = unite(&all);
        for group in ["", "a.io", "b.io"] {
            for number in 0..4 {
                let resource = format!("r{number}s");
                let offered = offers(&united.groups, group, &resource);
                let having: Vec<_> = members.iter().map(|groups| offers(groups, group, &resource)).filter(|one| !one.is_empty()).collect();
                let conflict = united.conflicts.iter().any(|one| one.group == group && one.resource == resource);
                prop_assert_eq!(offered.is_empty(), having.is_empty() || conflict, "served somewhere: offered or told");
                for (version, verbs) in &offered {
                    for member in &having {
                        let (_, theirs) = member.iter().find(|(one, _)| one == version).expect("in common");
                        prop_assert!(verbs.is_subset(theirs));
                    }
                }
            }
        }
    }

    #[test]
    fn parsing_survives_anything(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(&bytes);
    }
}
