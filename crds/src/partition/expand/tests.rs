//! Roots and their children: who has each namespace by the specs alone, read as a hub reads them, over random roots and
//! edits of them.

mod examples;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use proptest::prelude::*;

use super::super::{moves, tests::even};
use super::*;
use crate::labels::system_namespace;
use crate::selector::Selector;
use crate::sharding::{Auto, Canary, ClusterEntry};

const NAMESPACES: [&str; 12] = [
    "a",
    "b",
    "default",
    "kube-system",
    "ns-1",
    "ns-2",
    "ns-3",
    "ns-4",
    "ns-5",
    "tenant-1",
    "tenant-2",
    "portolan-system",
];
const CLUSTERS: [&str; 3] = ["east", "north", "west"];
const BUCKETS: u16 = 8;

fn root_name() -> ShardName {
    ShardName::new("ops", "root").unwrap()
}

fn spec(yaml: &str) -> ShardingConfigSpec {
    serde_yaml_ng::from_str(yaml).unwrap()
}

/// East and west are of region eu, all have labels of their own.
fn around<'a>() -> Surroundings<'a> {
    let labels = |cluster: &str| {
        let region = if cluster == "north" { "us" } else { "eu" };
        BTreeMap::from([("region".to_owned(), region.to_owned())])
    };
    Surroundings {
        bucketing: Bucketing::new(crate::BucketAlgorithm::Xxh3, BUCKETS).unwrap(),
        members: CLUSTERS.map(|cluster| (cluster.to_owned(), labels(cluster))).into(),
        ..Surroundings::default()
    }
}

fn with_children<'a>(around: &Surroundings<'a>, children: &'a [Child]) -> Surroundings<'a> {
    Surroundings {
        children: children.iter().map(|child| (child.name.clone(), &child.spec)).collect(),
        ..around.clone()
    }
}

fn labels_of(namespace: &str) -> BTreeMap<String, String> {
    let tier = if namespace.starts_with("ns-") { "gold" } else { "iron" };
    let labels = [("kubernetes.io/metadata.name", namespace), ("tier", tier)];
    labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

/// Whether a spec with clusters asks for the namespace.
fn wants(spec: &ShardingConfigSpec, around: &Surroundings<'_>, cluster: &str, namespace: &str) -> bool {
    spec.clusters.iter().any(|entry| {
        let buckets = entry.bucket_set().unwrap();
        let in_buckets = buckets.is_none_or(|buckets| buckets.contains(around.bucketing.bucket_of(namespace)));
        let chosen = entry
            .by_labels()
            .is_some_and(|selector| selector.matches(&labels_of(namespace)));
        entry.cluster_filter()(cluster, &around.members[cluster])
            && (entry.namespaces.iter().any(|name| name == namespace)
                || chosen && in_buckets && !system_namespace(namespace))
    })
}

/// Whether a spec without clusters shows an object of the namespace.
fn shows(spec: &ShardingConfigSpec, around: &Surroundings<'_>, namespace: &str) -> bool {
    let bucket = around.bucketing.bucket_of(namespace).to_string();
    let labels = [
        (around.keys.sharding_hash(), bucket.as_str()),
        (around.keys.namespace(), namespace),
    ];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let selectors = spec.limits.iter().filter_map(|limit| limit.selector.as_ref());
    let mut selectors = selectors.map(|selector| Selector::from_label_selector(selector).unwrap());
    selectors.all(|selector| selector.matches(&labels))
}

/// Whether the canary's criteria say so.
fn is_canarys(spec: &ShardingConfigSpec, around: &Surroundings<'_>, namespace: &str) -> bool {
    let bucket = around.bucketing.bucket_of(namespace);
    canary(spec.root.as_ref().unwrap()).is_some_and(|canary| {
        canary.in_namespaces.iter().any(|name| name == namespace)
            || canary.in_shard_hash.contains(&bucket.to_string())
            || canary.percent == Some(100)
    })
}

fn names(names: &'static [&'static str]) -> impl Strategy<Value = Vec<String>> {
    prop::sample::subsequence(names, 0..=names.len()).prop_map(|names| names.into_iter().map(str::to_owned).collect())
}

fn buckets() -> impl Strategy<Value = Option<Vec<IntOrString>>> {
    let some = prop::collection::btree_set(0..BUCKETS, 0..=usize::from(BUCKETS));
    let written = some.prop_map(|buckets| {
        let ranges = buckets.into_iter().collect::<BucketSet>().ranges();
        ranges.into_iter().map(IntOrString::String).collect()
    });
    prop::option::of(written)
}

/// Entries of one selector of namespaces each, by name or by labels.
fn entries() -> impl Strategy<Value = Vec<ClusterEntry>> {
    let selector = prop::sample::select(vec![
        "{}",
        "{matchLabels: {tier: gold}}",
        "{matchExpressions: [{key: kubernetes.io/metadata.name, operator: NotIn, values: [a]}]}",
    ]);
    let scope = (prop::option::of(selector), buckets(), names(&NAMESPACES), any::<bool>());
    let entry = scope.prop_map(|(selector, buckets, namespaces, default)| ClusterEntry {
        namespace_selector: selector.map(|selector| serde_yaml_ng::from_str(selector).unwrap()),
        buckets,
        namespaces,
        default,
        ..ClusterEntry::default()
    });
    (prop::collection::vec(entry, 0..=3), any::<bool>()).prop_map(|(mut entries, by_labels)| {
        for (index, entry) in entries.iter_mut().enumerate() {
            entry.default &= index == 0;
            entry.name = Some(CLUSTERS[index].to_owned());
        }
        if let Some(first) = entries.first_mut().filter(|_| by_labels) {
            first.name = None;
            first.selector = Some(serde_yaml_ng::from_str("{matchLabels: {region: eu}}").unwrap());
            entries.truncate(1);
        }
        entries
    })
}

fn canary_spec() -> impl Strategy<Value = Option<Canary>> {
    let hash = prop::collection::btree_set(0..BUCKETS, 0..4);
    let percent = prop::option::of(prop::sample::select(vec![0, 1, 10, 60, 100]));
    let criteria = (
        0..3,
        names(&["a", "ns-1", "ns-2", "tenant-1", "nowhere"]),
        hash,
        percent,
    );
    let canary = criteria.prop_map(|(replicas, in_namespaces, hash, percent)| Canary {
        replicas: Some(replicas),
        in_namespaces,
        in_shard_hash: hash.into_iter().map(|bucket| bucket.to_string()).collect(),
        percent,
    });
    prop::option::of(canary).prop_filter("it takes something", |canary| {
        let takes = |canary: &Canary| {
            !canary.in_namespaces.is_empty() || !canary.in_shard_hash.is_empty() || canary.percent.is_some()
        };
        canary.as_ref().is_none_or(takes)
    })
}

fn root() -> impl Strategy<Value = ShardingConfigSpec> {
    (entries(), canary_spec(), 1..30, 1..3, any::<bool>()).prop_map(|(clusters, canary, size, each, outside)| {
        ShardingConfigSpec {
            primary_cluster: outside
                .then(|| clusters.first().and_then(|entry| entry.name.clone()))
                .flatten(),
            clusters,
            caller_clusters: vec!["home".to_owned()],
            root: Some(Root {
                prefix: "demo".to_owned(),
                target_stateful_set: "demo".to_owned(),
                canary,
                auto: Some(Auto {
                    sharding_size: size,
                    every_shard_replicas: each,
                    ..Auto::default()
                }),
                ..Root::default()
            }),
            ..spec("selector: {matchLabels: {app: demo}}")
        }
    })
}

/// Each namespace has one owner, the canary where its criteria say so, and no other Pods.
fn check_children(
    spec: &ShardingConfigSpec,
    around: &Surroundings<'_>,
    children: &[Child],
) -> Result<(), TestCaseError> {
    let is_home = spec.clusters.is_empty();
    for (cluster, namespace) in CLUSTERS
        .into_iter()
        .flat_map(|cluster| NAMESPACES.map(|name| (cluster, name)))
    {
        let has = |spec: &ShardingConfigSpec| {
            if is_home {
                shows(spec, around, namespace)
            } else {
                wants(spec, around, cluster, namespace)
            }
        };
        let owners: Vec<_> = children
            .iter()
            .filter(|child| has(&child.spec))
            .map(|child| &child.name)
            .collect();
        let expected = usize::from(has(spec));
        prop_assert_eq!(owners.len(), expected, "{}/{} has {:?}", cluster, namespace, owners);
        if expected == 1 && is_canarys(spec, around, namespace) {
            prop_assert_eq!(owners[0], "demo-0-canary", "{}/{}", cluster, namespace);
        }
    }
    let pods = children.iter().flat_map(|child| {
        let selector = Selector::from_label_selector(child.spec.selector.as_ref().unwrap()).unwrap();
        let pods = selector
            .requirements()
            .iter()
            .find(|it| it.key().ends_with("pod-name"))
            .unwrap();
        pods.values().iter().cloned().collect::<Vec<_>>()
    });
    let pods: Vec<_> = pods.collect();
    prop_assert_eq!(
        pods.iter().collect::<BTreeSet<_>>().len(),
        pods.len(),
        "a Pod of two children"
    );
    Ok(())
}

proptest! {
    #[test]
    fn each_namespace_of_a_root_has_one_owner(spec in root()) {
        let around = around();
        let expansion = expand(&root_name(), &spec, &around).map_err(|problems| TestCaseError::fail(format!("{problems:?}")))?;
        check_children(&spec, &around, &expansion.children)?;
    }

    /// Also after an edit, and then no more has moved than must; what is there already does not change.
    #[test]
    fn an_edit_moves_what_it_must(before in root(), edited in root(), keep in any::<bool>()) {
        let mut after = edited;
        if keep {
            after.clusters.clone_from(&before.clusters);
            after.primary_cluster.clone_from(&before.primary_cluster);
        }
        let around = around();
        let first = expand(&root_name(), &before, &around).unwrap();
        let second = expand(&root_name(), &after, &with_children(&around, &first.children)).unwrap();
        check_children(&after, &around, &second.children)?;
        let again = expand(&root_name(), &after, &with_children(&around, &second.children)).unwrap();
        prop_assert_eq!(&again, &second);

        let parts = |expansion: &Expansion| -> Vec<Part> {
            let normal = expansion.children.iter().filter(|child| child.name.ends_with("-normal"));
            normal.map(|child| child.part.clone()).collect()
        };
        let (before, after) = (parts(&first), parts(&second));
        prop_assert!(even(&after));
        let pairs: Part = after.iter().flat_map(Part::pairs).collect();
        let fewest = moves(&before, &share_out(&pairs, after.len(), &before, None));
        prop_assert_eq!(moves(&before, &after), fewest);
    }

    #[test]
    fn a_larger_share_of_the_canary_has_all_of_a_smaller_one(less in 0..=100_i32, more in 0..=100_i32, buckets in 1..=1024_u16) {
        let (less, more) = (less.min(more), less.max(more));
        let bucketing = Bucketing::new(crate::BucketAlgorithm::Xxh3, buckets).unwrap();
        let taken = |percent: i32| {
            let root: Root = serde_yaml_ng::from_str(&format!("{{prefix: p, targetStatefulSet: s, canary: {{replicas: 1, percent: {percent}}}}}")).unwrap();
            Taken::new(&root, bucketing).buckets
        };
        prop_assert!(taken(less).without(&taken(more)).is_empty());
        prop_assert_eq!(taken(more).len(), (usize::from(buckets) * usize::try_from(more).unwrap()).div_ceil(100));
    }
}

/// A few kilobytes that would become 60 MiB: the first children tell.
#[test]
fn a_root_is_given_up_as_soon_as_it_weighs_too_much() {
    let values: Vec<_> = (0..900).map(|index| format!("{index:060}")).collect();
    let limit = serde_json::json!({
        "relateResources": [{"apiGroups": [""], "resources": ["pods"]}],
        "selector": {"matchExpressions": [{"key": "a", "operator": "In", "values": values}]},
    });
    let spec = |size: u16| -> ShardingConfigSpec {
        serde_json::from_value(serde_json::json!({
            "selector": {"matchLabels": {"app": "op"}}, "callerClusters": ["east"], "clusters": [{"name": "east"}],
            "limits": [limit],
            "root": {"prefix": "op", "targetStatefulSet": "op", "auto": {"shardingSize": size, "everyShardReplicas": 1}},
        }))
        .unwrap()
    };
    let problems = expand(&root_name(), &spec(1024), &around()).unwrap_err();
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0].reason, Reason::TooMuch, "{}", problems[0]);
    assert!(problems[0].message.contains("of 1024 children"), "{}", problems[0]);
    let fits = expand(&root_name(), &spec(64), &around()).unwrap();
    let bytes: usize = fits.children.iter().map(|child| json_bytes(&child.spec)).sum();
    assert_eq!(fits.bytes, bytes);
}

#[test]
fn the_first_child_has_the_kinds_of_which_one_has_all() {
    let root = spec(
        "
        selector: {matchLabels: {app: op}}
        clusterScoped: {resources: [{apiGroups: [shop.example], resources: [fleets]}]}
        root:
          prefix: op
          targetStatefulSet: op
          canary: {replicas: 1, percent: 10}
          auto: {everyShardReplicas: 1, shardingSize: 3}
        ",
    );
    let expansion = expand(&root_name(), &root, &around()).unwrap();
    let with = expansion
        .children
        .iter()
        .filter(|child| !child.spec.single_kinds().is_empty());
    let with: Vec<_> = with.map(|child| child.name.as_str()).collect();
    assert_eq!((expansion.children.len(), with), (4, vec!["op-1-normal"]));
}
