//! The matcher against the rules of `ResourceRule` asked one by one, and the tables of what a word means.

use portolan_crds::circuit_breaker::ResourceRule;
use proptest::collection::vec;
use proptest::prelude::*;

use super::matcher::{Empty, MatcherBuilder};
use super::{Asked, AskedResource, Matcher};

/// Some rules, each of some rows.
fn matcher(rules: &[Vec<ResourceRule>], empty: Empty) -> Matcher {
    let mut rows = MatcherBuilder::default();
    for rule in rules {
        rows.add_each(rule, empty);
        rows.next_rule();
    }
    rows.build()
}

fn ids(matcher: &Matcher, asked: &Asked<'_>) -> Vec<usize> {
    let mut found = Vec::new();
    matcher.each(asked, |id| found.push(id));
    let (rows, mut again) = (matcher.rows(asked), Vec::new());
    matcher.each_of(&rows, |id| again.push(id));
    assert_eq!((&again, rows.is_empty()), (&found, found.is_empty()), "by its rows");
    found
}

/// The semantics of `ResourceRule`, word by word.
mod oracle {
    use super::*;

    fn word(list: &[String], empty: Empty, asked: Option<&str>) -> bool {
        if list.is_empty() {
            return empty == Empty::MatchesAll;
        }
        list.iter().any(|one| one == "*" || Some(one.as_str()) == asked)
    }

    fn resource(name: &str, asked: &AskedResource<'_>) -> bool {
        let of = asked.subresource;
        match name.split_once('/') {
            _ if name == "*" || name == "*/*" => true,
            None => of.is_none() && name == asked.resource,
            Some(("*", sub)) => of == Some(sub),
            Some((resource, "*")) => of.is_some() && resource == asked.resource,
            Some((resource, sub)) => of == Some(sub) && resource == asked.resource,
        }
    }

    pub(super) fn row(rule: &ResourceRule, empty: Empty, asked: &Asked<'_>) -> bool {
        let names_all = rule.resources.is_empty() && empty == Empty::MatchesAll;
        let resources = names_all
            || rule.resources.iter().any(|name| match &asked.resource {
                Some(asked) => resource(name, asked),
                None => name == "*" || name == "*/*",
            });
        let clusters = rule.clusters.is_empty()
            || rule
                .clusters
                .iter()
                .any(|one| one == "*" || asked.clusters.contains(&one.as_str()));
        let leases = rule
            .resources
            .iter()
            .any(|name| name == "leases" || name.starts_with("leases/"));
        let namespace = asked.resource.map(|_| asked.namespace.unwrap_or_default());
        resources
            && clusters
            && (leases || !asked.election)
            && word(&rule.api_groups, empty, asked.resource.map(|of| of.group))
            && word(&rule.verbs, empty, Some(asked.verb))
            && word(&rule.namespaces, empty, namespace)
    }

    pub(super) fn ids(rules: &[Vec<ResourceRule>], empty: Empty, asked: &Asked<'_>) -> Vec<usize> {
        let matches = |rows: &Vec<ResourceRule>| rows.iter().any(|one| row(one, empty, asked));
        (0..rules.len()).filter(|id| matches(&rules[*id])).collect()
    }
}

const GROUPS: [&str; 4] = ["", "apps", "coordination.k8s.io", "*"];
const RESOURCES: [&str; 12] = [
    "pods",
    "pods/exec",
    "pods/*",
    "*/scale",
    "*/exec",
    "*",
    "*/*",
    "deployments",
    "deployments/scale",
    "leases",
    "leases/status",
    "leases/*",
];
const VERBS: [&str; 4] = ["get", "list", "create", "*"];
const NAMESPACES: [&str; 5] = ["a", "b", "kube-system", "*", ""];
const CLUSTERS: [&str; 4] = ["east", "west", "north", "*"];

fn words(of: &'static [&'static str]) -> impl Strategy<Value = Vec<String>> {
    vec(prop::sample::select(of).prop_map(str::to_owned), 0..3)
}

fn row() -> impl Strategy<Value = ResourceRule> {
    let all = (
        words(&GROUPS),
        words(&RESOURCES),
        words(&VERBS),
        words(&NAMESPACES),
        words(&CLUSTERS),
    );
    all.prop_map(|(api_groups, resources, verbs, namespaces, clusters)| ResourceRule {
        api_groups,
        resources,
        verbs,
        namespaces,
        clusters,
    })
}

/// Owned words of a request.
type Question = (
    Option<(&'static str, &'static str, Option<&'static str>)>,
    &'static str,
    Option<&'static str>,
    Vec<&'static str>,
    bool,
);

fn question() -> impl Strategy<Value = Question> {
    let select = prop::sample::select::<&'static str>;
    let resource = (
        select(&["", "apps", "coordination.k8s.io"][..]),
        select(&["pods", "deployments", "leases", "nodes"][..]),
        prop::option::of(select(&["exec", "scale", "status"][..])),
    );
    (
        prop::option::weighted(0.9, resource),
        select(&["get", "list", "create", "other"][..]),
        prop::option::of(select(&["a", "b", "kube-system", "z"][..])),
        vec(select(&["east", "west", "north", "south"][..]), 0..4),
        any::<bool>(),
    )
}

fn asked(question: &Question) -> Asked<'_> {
    let (resource, verb, namespace, clusters, election) = question;
    Asked {
        resource: resource.map(|(group, resource, subresource)| AskedResource {
            group,
            resource,
            subresource,
        }),
        verb,
        namespace: *namespace,
        clusters,
        election: *election,
    }
}

proptest! {
    #[test]
    fn all_rules_at_once_are_each_rule_by_itself(
        rules in vec(vec(row(), 0..3), 0..150),
        // Seldom more than are kept without an allocation.
        times in prop::sample::select(&[1, 1, 1, 1, 1, 1, 1, 30][..]),
        before in prop::sample::select(&[0, 0, 0, 1_000, 1_100][..]),
        questions in vec(question(), 1..20),
    ) {
        // Rows that no request meets, so that sets begin behind those.
        let nothing = vec![ResourceRule { verbs: vec!["nothing".to_owned()], ..rule(&["pods"], &["z"]) }];
        let rules = [vec![nothing; before], vec![rules; times].concat()].concat();
        for empty in [Empty::MatchesNothing, Empty::MatchesAll] {
            let matcher = matcher(&rules, empty);
            for question in &questions {
                let asked = asked(question);
                prop_assert_eq!(ids(&matcher, &asked), oracle::ids(&rules, empty, &asked), "{:?}", asked);
            }
        }
    }
}

fn rule(resources: &[&str], namespaces: &[&str]) -> ResourceRule {
    let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    ResourceRule {
        api_groups: owned(&["*"]),
        resources: owned(resources),
        verbs: owned(&["*"]),
        namespaces: owned(namespaces),
        clusters: Vec::new(),
    }
}

fn meets(rule: &ResourceRule, resource: &str, namespace: Option<&str>, election: bool) -> bool {
    let resource = (!resource.is_empty()).then(|| {
        let (resource, subresource) = resource.split_once('/').map_or((resource, None), |(a, b)| (a, Some(b)));
        AskedResource {
            group: "",
            resource,
            subresource,
        }
    });
    let asked = Asked {
        resource,
        verb: "get",
        namespace,
        clusters: &["east"],
        election,
    };
    !ids(&matcher(&[vec![rule.clone()]], Empty::MatchesNothing), &asked).is_empty()
}

/// The predecessor's rules never saw a subresource, whatever they named.
#[test]
fn subresources_are_told_apart() {
    for (names, yes, no) in [
        (&["pods"][..], &["pods"][..], &["pods/exec", "pods/status"][..]),
        (&["pods/exec"], &["pods/exec"], &["pods", "pods/log"]),
        (&["pods/*"], &["pods/exec", "pods/log"], &["pods", "deployments/scale"]),
        (
            &["*/scale"],
            &["deployments/scale", "pods/scale"],
            &["deployments", "pods/exec"],
        ),
        (&["*"], &["pods", "pods/exec", ""], &[]),
        (&["*/*"], &["pods", "pods/exec", ""], &[]),
        (&["pods", "pods/*"], &["pods", "pods/exec"], &["deployments", ""]),
    ] {
        let rule = rule(names, &["*"]);
        for resource in yes {
            assert!(meets(&rule, resource, Some("a"), false), "{names:?} {resource}");
        }
        for resource in no {
            assert!(!meets(&rule, resource, Some("a"), false), "{names:?} {resource}");
        }
    }
}

#[test]
fn what_has_no_namespace_meets_any_namespace_or_the_empty_one() {
    assert!(!meets(&rule(&["*"], &["a", "b"]), "nodes", None, false));
    assert!(meets(&rule(&["*"], &["a", "*"]), "nodes", None, false));
    assert!(meets(&rule(&["*"], &[""]), "nodes", None, false));
    assert!(!meets(&rule(&["*"], &[""]), "pods", Some("a"), false));
    for named in ["a", ""] {
        assert!(!meets(&rule(&["*"], &[named]), "", None, false), "no resource");
    }
}

/// The predecessor's wildcards stopped elections.
#[test]
fn an_election_meets_rules_that_name_leases() {
    for (names, election) in [
        (&["*"][..], false),
        (&["*/*"], false),
        (&["leases"], true),
        (&["*", "leases"], true),
        (&["leases/status"], false),
        (&["*", "leases/status"], true),
    ] {
        let rule = rule(names, &["*"]);
        assert_eq!(meets(&rule, "leases", Some("a"), true), election, "{names:?}");
    }
    assert!(
        meets(&rule(&["*"], &["*"]), "leases", Some("a"), false),
        "another Lease"
    );
}

#[test]
fn a_thousand_rules_of_one_namespace_each_take_a_word_each() {
    let rules: Vec<_> = (0..1_000)
        .map(|index| vec![rule(&["pods"], &[&format!("ns-{index}")])])
        .collect();
    let matcher = matcher(&rules, Empty::MatchesNothing);
    let asked = |namespace| Asked {
        resource: Some(AskedResource {
            group: "",
            resource: "pods",
            subresource: None,
        }),
        verb: "get",
        namespace: Some(namespace),
        clusters: &["east"],
        election: false,
    };
    assert_eq!(ids(&matcher, &asked("ns-777")), [777]);
    assert_eq!(ids(&matcher, &asked("ns-1000")), [0; 0]);
}
