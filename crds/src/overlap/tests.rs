//! What two shards without clusters both have, by examples and against brute force over small universes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::shard::BucketAlgorithm;

const BUCKETS: u16 = 4;

fn keys() -> LabelKeys {
    LabelKeys::default()
}

fn labelling(keys: &LabelKeys) -> Labelling<'_> {
    Labelling {
        keys,
        bucketing: Bucketing::new(BucketAlgorithm::Xxh3, BUCKETS).unwrap(),
    }
}

fn spec(text: serde_json::Value) -> ShardingConfigSpec {
    serde_json::from_value(text).unwrap()
}

fn meeting(one: serde_json::Value, other: serde_json::Value) -> Option<String> {
    let (keys, extent) = (keys(), |text| Extent::of(&spec(text)).unwrap());
    let (one, other) = (extent(one), extent(other));
    let met = one.meets(&other, labelling(&keys));
    assert_eq!(
        met.is_some(),
        other.meets(&one, labelling(&keys)).is_some(),
        "it goes both ways"
    );
    met.map(|met| met.to_string())
}

fn limit(resource: &str, expressions: &[(&str, &[&str])]) -> serde_json::Value {
    let expressions: Vec<_> = expressions
        .iter()
        .map(|(key, values)| json!({"key": key, "operator": "In", "values": values}))
        .collect();
    json!({
        "relateResources": [{"apiGroups": ["*"], "resources": [resource]}],
        "selector": {"matchExpressions": expressions},
    })
}

#[test]
fn buckets_labels_kinds_and_homes_keep_shards_apart() {
    let (hash, namespace) = (
        "ctrlmesh.kusionstack.io/sharding-hash",
        "ctrlmesh.kusionstack.io/namespace",
    );
    let of = |limits: &[serde_json::Value]| json!({"limits": limits});
    let met = |one: &[serde_json::Value], other: &[serde_json::Value]| meeting(of(one), of(other));
    let low = [limit("pods", &[(hash, &["0", "1"])])];
    assert_eq!(met(&low, &[limit("pods", &[(hash, &["2", "3"])])]), None);
    assert_eq!(met(&low, &low).as_deref(), Some("pods of bucket 0"));
    assert_eq!(
        met(
            &[limit("pods", &[(hash, &["1"]), ("app", &["web"])])],
            &[limit("pods", &[(hash, &["1"]), ("app", &["mail"])])]
        ),
        None,
        "other labels"
    );
    let both = met(&low, &[limit("*", &[("app", &["web"])])]);
    assert_eq!(both.as_deref(), Some("pods of bucket 0 with app=web"));
    // The bucket of a namespace that is named is known: of four, that of ns-b is the second.
    let named = [limit("pods", &[(namespace, &["ns-b"])])];
    assert_eq!(met(&low, &named).as_deref(), Some("pods of namespace ns-b, bucket 1"));
    assert_eq!(met(&[limit("pods", &[(hash, &["0", "2", "3"])])], &named), None);
    assert_eq!(met(&low, &[limit("pods", &[(hash, &["none"])])]), None);
    // What the one does not name it has all of.
    let other_kinds = met(&low, &[limit("services", &[(hash, &["2"])])]);
    assert_eq!(other_kinds.as_deref(), Some("pods of bucket 0"));
    let nothing_named = meeting(json!({}), json!({}));
    assert_eq!(nothing_named.as_deref(), Some("all kinds"));
    let home = |clusters: &[&str]| json!({"callerClusters": clusters, "limits": low});
    assert_eq!(meeting(home(&["east"]), home(&["west"])), None);
    assert!(meeting(home(&["east"]), home(&["east"])).is_some());
    assert!(meeting(home(&["east"]), of(&low)).is_some(), "wherever callers run");
    assert_eq!(Extent::of(&spec(json!({"clusters": [{"name": "east"}]}))), None);
}

/// What the controller mesh applies in its own tests.
#[test]
fn shards_of_the_predecessor_have_nothing_in_common() {
    let text = include_str!("../../../tests/predecessors/kusionstack-e2e-sharding.yaml");
    let documents: Vec<_> = text.split("\n---").collect();
    let specs = documents.iter().map(|text| {
        let object: serde_json::Value = serde_yaml_ng::from_str(text).unwrap();
        object["spec"].clone()
    });
    let specs: Vec<_> = specs.collect();
    assert_eq!(meeting(specs[0].clone(), specs[1].clone()), None);
    let twice = meeting(specs[0].clone(), specs[0].clone());
    assert_eq!(twice.as_deref(), Some("configmaps of namespace ctrlmesh"));
}

#[test]
fn kinds_that_two_name_are_named() {
    let kinds = |group: &str, resource: &str| {
        vec![ResourceGroup {
            api_groups: vec![group.to_owned()],
            resources: vec![resource.to_owned()],
        }]
    };
    let shared = |one: (&str, &str), other: (&str, &str)| shared_kind(&kinds(one.0, one.1), &kinds(other.0, other.1));
    assert_eq!(shared(("", "nodes"), ("*", "nodes")).as_deref(), Some("nodes"));
    assert_eq!(
        shared(("shop.example", "*"), ("shop.example", "fleets")).as_deref(),
        Some("fleets.shop.example")
    );
    assert_eq!(shared(("a.example", "fleets"), ("b.example", "fleets")), None);
    assert_eq!(shared(("a.example", "fleets"), ("a.example", "ships")), None);
}

const APPS: [&str; 4] = ["a", "b", "c", "another"];
const GROUPS: [&str; 3] = ["", "apps", "other.example"];
const RESOURCES: [&str; 3] = ["pods", "services", "others"];

fn namespaces() -> Vec<String> {
    (0..64).map(|number| format!("ns-{number}")).collect()
}

fn expression() -> impl Strategy<Value = LabelSelectorRequirement> {
    let keys = keys();
    let key = prop::sample::select(vec![
        (
            "app".to_owned(),
            APPS[..3].iter().map(|app| (*app).to_owned()).collect::<Vec<_>>(),
        ),
        (
            keys.namespace().to_owned(),
            (0..4).map(|number| format!("ns-{number}")).collect(),
        ),
        (
            keys.sharding_hash().to_owned(),
            (0..5).map(|bucket| bucket.to_string()).collect(),
        ),
        (keys.control().to_owned(), vec!["true".to_owned(), "false".to_owned()]),
    ]);
    let operator = prop::sample::select(vec!["In", "In", "NotIn", "Exists", "DoesNotExist"]);
    (key, operator).prop_flat_map(|((key, values), operator)| {
        let most = values.len();
        prop::sample::subsequence(values, 1..=most).prop_map(move |values| LabelSelectorRequirement {
            key: key.clone(),
            operator: operator.to_owned(),
            values: operator.ends_with("In").then_some(values),
        })
    })
}

fn a_limit() -> impl Strategy<Value = ObjectLimiter> {
    let words = |all: [&str; 3]| {
        let all: Vec<_> = all[..2]
            .iter()
            .map(|word| (*word).to_owned())
            .chain([WILDCARD.to_owned()])
            .collect();
        prop::sample::subsequence(all, 1..=2)
    };
    let kinds =
        (words(GROUPS), words(RESOURCES)).prop_map(|(api_groups, resources)| ResourceGroup { api_groups, resources });
    let selector = prop::option::weighted(0.9, prop::collection::vec(expression(), 0..3));
    (prop::collection::vec(kinds, 0..3), selector).prop_map(|(relate_resources, expressions)| ObjectLimiter {
        relate_resources,
        selector: expressions.map(|expressions| LabelSelector {
            match_expressions: Some(expressions),
            match_labels: None,
        }),
    })
}

fn names(limit: &ObjectLimiter, group: &str, resource: &str) -> bool {
    let has = |words: &[String], word: &str| words.iter().any(|one| one == word || one == WILDCARD);
    let mut rules = limit.relate_resources.iter();
    limit.relate_resources.is_empty()
        || rules.any(|rule| has(&rule.api_groups, group) && has(&rule.resources, resource))
}

fn has(limits: &[ObjectLimiter], (group, resource): (&str, &str), labels: &BTreeMap<String, String>) -> bool {
    let named = limits.iter().filter(|limit| names(limit, group, resource));
    let mut selectors = named.filter_map(|limit| limit.selector.as_ref());
    selectors.all(|selector| Selector::from_label_selector(selector).unwrap().matches(labels))
}

/// Whether any object of a small world is both shards'.
fn is_any_both(ours: &[ObjectLimiter], theirs: &[ObjectLimiter]) -> bool {
    let keys = keys();
    let bucketing = labelling(&keys).bucketing;
    let objects = namespaces().into_iter().flat_map(|namespace| {
        let mut labels = BTreeMap::from([
            (
                keys.sharding_hash().to_owned(),
                bucketing.bucket_of(&namespace).to_string(),
            ),
            (keys.namespace().to_owned(), namespace),
            (keys.control().to_owned(), "true".to_owned()),
        ]);
        let bare = labels.clone();
        let with = APPS.map(|app| {
            labels.insert("app".to_owned(), app.to_owned());
            labels.clone()
        });
        with.into_iter().chain([bare])
    });
    let objects: Vec<_> = objects.collect();
    GROUPS.iter().any(|group| {
        RESOURCES.iter().any(|resource| {
            let named = ours.iter().chain(theirs).any(|limit| names(limit, group, resource));
            let counts = named || ours.is_empty() || theirs.is_empty();
            let kind = (*group, *resource);
            counts
                && objects
                    .iter()
                    .any(|labels| has(ours, kind, labels) && has(theirs, kind, labels))
        })
    })
}

proptest! {
    #[test]
    fn two_shards_overlap_if_and_only_if_there_may_be_an_object_of_both(
        ours in prop::collection::vec(a_limit(), 0..3),
        theirs in prop::collection::vec(a_limit(), 0..3),
    ) {
        let keys = keys();
        let extent = |limits: &[ObjectLimiter]| Extent::of(&ShardingConfigSpec {
            limits: limits.to_vec(),
            ..ShardingConfigSpec::default()
        }).unwrap();
        let met = extent(&ours).meets(&extent(&theirs), labelling(&keys));
        prop_assert_eq!(met.is_some(), is_any_both(&ours, &theirs), "{:?}", met);
    }

    /// What is narrowed never meets more.
    #[test]
    fn narrower_limits_meet_no_more(
        ours in prop::collection::vec(a_limit(), 1..3),
        more in prop::collection::vec(a_limit(), 1..3),
        theirs in prop::collection::vec(a_limit(), 1..3),
    ) {
        let keys = keys();
        let all_kinds = ObjectLimiter { selector: Some(LabelSelector::default()), ..ObjectLimiter::default() };
        let extent = |limits: &[ObjectLimiter]| {
            let limits = limits.iter().chain([&all_kinds]).cloned().collect();
            Extent::of(&ShardingConfigSpec { limits, ..ShardingConfigSpec::default() }).unwrap()
        };
        let (mut narrowed, theirs) = (extent(&ours), extent(&theirs));
        narrowed.narrow(&more);
        let is_met = |one: &Extent| one.meets(&theirs, labelling(&keys)).is_some();
        prop_assert!(!is_met(&narrowed) || is_met(&extent(&ours)));
    }
}
