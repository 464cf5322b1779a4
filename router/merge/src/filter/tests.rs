//! What is evaluated from a namespace's name is what the labels would have said.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn names(names: &[&str]) -> Names {
    Arc::new(names.iter().map(|name| Arc::from(*name)).collect())
}

fn labels(selector: &str) -> NamespaceLabels {
    let selector = selector.replace('@', "ctrlmesh.kusionstack.io/");
    NamespaceLabels::of(
        &Selector::parse(&selector).unwrap(),
        &LabelKeys::default(),
        Bucketing::default(),
    )
}

#[test]
fn reach_and_labels_both_hold() {
    let filter = NamespaceFilter::only(names(&["ns-a", "ns-b"]));
    assert!(filter.admits("ns-a") && !filter.admits("ns-c") && !filter.admits(""));
    let filter = filter.with_labels(labels("@namespace notin (ns-b)"));
    assert!(filter.admits("ns-a") && !filter.admits("ns-b"));
    assert_eq!(
        filter.to_string(),
        "namespaces ns-a, ns-b whose labels would match ctrlmesh.kusionstack.io/namespace!=ns-b"
    );
    let filter = NamespaceFilter::except(names(&["ns-c"]));
    assert!(filter.admits("ns-a") && !filter.admits("ns-c") && !filter.is_everything());
    assert!(NamespaceFilter::except(names(&[])).is_everything());
    assert!(NamespaceFilter::only(names(&[])).is_nothing());
}

#[test]
fn a_share_is_its_content() {
    let only = |list: &[&str]| NamespaceFilter::only(names(list));
    let app = Selector::parse("app=foo").unwrap();
    let base = share_digest(Some(&only(&["ns-a", "ns-b"])), None);
    let same = share_digest(Some(&only(&["ns-b", "ns-a"]).with_placeless()), None);
    assert_eq!(base, same, "in any order, and whatever has no namespace");
    let hashed = |bucketing| {
        let selector = Selector::parse("ctrlmesh.kusionstack.io/sharding-hash in (1)").unwrap();
        let labels = NamespaceLabels::of(&selector, &LabelKeys::default(), bucketing);
        share_digest(Some(&only(&["ns-a", "ns-b"]).with_labels(labels)), None)
    };
    let others = [
        base,
        share_digest(Some(&only(&["ns-a"])), None),
        share_digest(Some(&only(&["ns-a", "ns-b", "ns-c"])), None),
        share_digest(Some(&only(&["ns-ans-b"])), None),
        share_digest(Some(&NamespaceFilter::except(names(&["ns-a", "ns-b"]))), None),
        share_digest(Some(&NamespaceFilter::all()), None),
        share_digest(Some(&only(&["ns-a", "ns-b"]).of_names()), None),
        share_digest(Some(&only(&["ns-a", "ns-b"])), Some(&app)),
        share_digest(None, Some(&app)),
        share_digest(None, Some(&Selector::nothing())),
        share_digest(None, None),
        hashed(Bucketing::default()),
        hashed(Bucketing::legacy()),
    ];
    let different: std::collections::BTreeSet<u64> = others.into_iter().collect();
    assert_eq!(different.len(), others.len());
}

#[test]
fn objects_without_a_namespace_pass_only_where_they_may() {
    let all = NamespaceFilter::all();
    assert!(!all.admits(""));
    assert!(all.clone().with_placeless().admits(""));
    assert!(!all.with_placeless().of_names().admits(""));
}

#[test]
fn buckets_follow_from_names_but_not_in_system_namespaces() {
    // default → 26, ns-a → 27 of 32; kube-system → 16.
    let filter = NamespaceFilter::all().with_labels(labels("@sharding-hash in (26,16),@control=true,app=foo"));
    assert!(filter.admits("default") && !filter.admits("ns-a"));
    assert!(!filter.admits("kube-system"), "agents leave it alone");
    assert!(
        NamespaceFilter::all()
            .with_labels(labels("@namespace=kube-system"))
            .admits("kube-system")
    );
    assert!(NamespaceFilter::all().with_labels(labels("app=foo")).is_everything());
}

#[test]
fn equal_filters_are_equal_and_others_not() {
    let one = NamespaceFilter::only(names(&["a"])).with_labels(labels("@namespace=a"));
    assert_eq!(
        one,
        NamespaceFilter::only(names(&["a"])).with_labels(labels("@namespace=a"))
    );
    assert_ne!(one, NamespaceFilter::only(names(&["a"])));
    assert_ne!(
        NamespaceFilter::only(names(&["a"])),
        NamespaceFilter::only(names(&["b"]))
    );
}

proptest! {
    /// The law behind switching from filter to selector without a relist: both select the same namespaces.
    #[test]
    fn a_filter_says_what_labels_would(
        namespace in "[a-z]([a-z0-9-]{0,6}[a-z0-9])?",
        operator in "in|notin",
        buckets in proptest::collection::btree_set(0_u16..32, 1..12),
        values in proptest::collection::btree_set("[a-c]", 1..3),
    ) {
        let buckets: Vec<_> = buckets.iter().map(u16::to_string).collect();
        let values: Vec<_> = values.into_iter().collect();
        let text = format!("@sharding-hash {operator} ({}),@namespace notin ({}),@control", buckets.join(","), values.join(","));
        let keys = LabelKeys::default();
        let would = BTreeMap::from([
            (keys.namespace().to_owned(), namespace.clone()),
            (keys.sharding_hash().to_owned(), Bucketing::default().bucket_of(&namespace).to_string()),
            (keys.control().to_owned(), "true".to_owned()),
        ]);
        let wanted = labels(&text);
        prop_assert_eq!(wanted.fits(&namespace), wanted.selector().matches(&would));
    }
}

#[test]
fn what_one_share_has_beyond_another_is_named_where_it_can_be() {
    let only = |these: &[&str]| NamespaceFilter::only(names(these));
    let except = |these: &[&str]| NamespaceFilter::except(names(these));
    let beyond = |one: &NamespaceFilter, other: &NamespaceFilter| {
        let named = one.beyond(other)?;
        Some(named.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
    };
    for (one, other, expected) in [
        (only(&["a", "b", "c"]), only(&["b"]), Some("a c")),
        (only(&["b"]), only(&["a", "b"]), Some("")),
        (only(&["a", "b"]), except(&["b", "c"]), Some("b")),
        (except(&["a"]), except(&["a", "b"]), Some("b")),
        (except(&["a", "b"]), except(&["a"]), Some("")),
        (NamespaceFilter::all(), except(&["a"]), Some("a")),
        (except(&["a"]), NamespaceFilter::all(), Some("")),
        (NamespaceFilter::all(), only(&["a"]), None),
        (only(&["a"]).of_names(), only(&["b"]), None),
    ] {
        assert_eq!(beyond(&one, &other).as_deref(), expected, "{one} beyond {other}");
    }
    assert_eq!(only(&[]).field_selector("a"), "metadata.namespace=a");
    assert_eq!(only(&[]).of_names().field_selector("a"), "metadata.name=a");
}

#[test]
fn a_namespace_that_says_to_be_in_one_is_none() {
    let own = NamespaceFilter::only(names(&["own"])).of_names();
    let read = |object: &str| own.admits_object(&crate::object_meta::json_item(object.as_bytes()).unwrap());
    assert!(read(r#"{"metadata":{"name":"own","uid":"u","resourceVersion":"1"}}"#));
    assert!(!read(
        r#"{"metadata":{"name":"own","namespace":"x","uid":"u","resourceVersion":"1","name":"kube-system"}}"#
    ));
    assert!(!read(
        r#"{"metadata":{"name":"own","uid":"u","resourceVersion":"1","name":"kube-system"}}"#
    ));
}
