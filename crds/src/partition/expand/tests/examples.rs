//! What users of the original may rely on, what is told beside the children, and everything that is wrong with a root.

use super::*;

/// Name, Pods, buckets by cluster (or of the label, without clusters) and the rest of what chooses, of each child.
fn told(children: &[Child]) -> Vec<String> {
    let told = children.iter().map(|child| {
        let selector = |selector: &_| Selector::from_label_selector(selector).unwrap().to_string();
        let pods = selector(child.spec.selector.as_ref().unwrap());
        let mut parts = vec![format!("{}: {pods}", child.name)];
        for entry in &child.spec.clusters {
            let buckets = entry.bucket_set().unwrap().map(|buckets| buckets.to_string());
            let chosen = entry.namespace_selector.as_ref().map(selector);
            let names = entry.namespaces.join(",");
            let name = entry.name.as_deref().unwrap();
            parts.push(format!("{name} {buckets:?} {chosen:?} [{names}]"));
        }
        for limit in &child.spec.limits {
            parts.push(selector(limit.selector.as_ref().unwrap()));
        }
        parts.join("; ")
    });
    told.collect()
}

/// The example of the original, with the union in place of the intersection that left objects to nobody.
#[test]
fn a_root_of_the_original_has_its_children() {
    let spec = spec(
        "{selector: {matchLabels: {app: s}}, root: {prefix: p, targetStatefulSet: s, canary: {replicas: 1, inNamespaces: [a, c], inShardHash: ['3']},
          auto: {shardingSize: 2, everyShardReplicas: 2}, resourceSelector: [{relateResources: [{apiGroups: [''], resources: [pods]}]}]}}",
    );
    let around = Surroundings {
        bucketing: Bucketing::legacy(),
        ..Surroundings::default()
    };
    let expansion = expand(&root_name(), &spec, &around).unwrap();
    let hash = |buckets: &[u16]| {
        let mut buckets: Vec<_> = buckets.iter().map(u16::to_string).collect();
        buckets.sort();
        format!("ctrlmesh.kusionstack.io/sharding-hash in ({})", buckets.join(","))
    };
    let first: Vec<u16> = (0..17).filter(|bucket| ![1, 3].contains(bucket)).collect();
    let second: Vec<u16> = (17..32).collect();
    assert_eq!(
        told(&expansion.children),
        [
            format!(
                "p-0-canary: app=s,statefulset.kubernetes.io/pod-name=s-0; {}",
                hash(&[1, 3])
            ),
            format!(
                "p-1-normal: app=s,statefulset.kubernetes.io/pod-name in (s-1,s-2); {}",
                hash(&first)
            ),
            format!(
                "p-2-normal: app=s,statefulset.kubernetes.io/pod-name in (s-3,s-4); {}",
                hash(&second)
            ),
        ]
    );
    // Of bucket 1, which has more than namespace a; c is in bucket 3 anyway.
    assert_eq!(expansion.widened, BTreeSet::from(["a".to_owned()]));
    let resources = &expansion.children[1].spec.limits[0].relate_resources;
    assert_eq!(resources[0].resources, ["pods"]);
}

#[test]
fn a_canary_by_name_takes_no_more_than_the_names() {
    let yaml = "{selector: {}, root: {prefix: p, targetStatefulSet: s, canary: {replicas: 1, inNamespaces: [a, b]}, auto: {shardingSize: 1, everyShardReplicas: 1}}}";
    let around = Surroundings {
        bucketing: Bucketing::new(crate::BucketAlgorithm::Xxh3, 2).unwrap(),
        ..Surroundings::default()
    };
    let expansion = expand(&root_name(), &spec(yaml), &around).unwrap();
    assert_eq!(
        told(&expansion.children),
        [
            "p-0-canary: statefulset.kubernetes.io/pod-name=s-0; ctrlmesh.kusionstack.io/namespace in (a,b)",
            "p-1-normal: statefulset.kubernetes.io/pod-name=s-1; ctrlmesh.kusionstack.io/namespace notin (a,b),ctrlmesh.kusionstack.io/sharding-hash in (0,1)",
        ]
    );
    assert_eq!(expansion.widened, BTreeSet::new());
}

#[test]
fn a_federated_root_has_its_children() {
    let spec = spec(
        "{selector: {}, callerClusters: [home], clusters: [{name: west, namespaces: [kube-system, a]}, {selector: {matchLabels: {region: us}}, namespaceSelector: {matchLabels: {tier: gold}}}],
          root: {prefix: p, targetStatefulSet: s, canary: {replicas: 2, inNamespaces: [a], inShardHash: ['0']}, auto: {shardingSize: 3, everyShardReplicas: 1}}}",
    );
    // Of 8 buckets a is in 7 and kube-system in 0.
    let expansion = expand(&root_name(), &spec, &around()).unwrap();
    assert_eq!(
        told(&expansion.children),
        [
            "p-0-canary: statefulset.kubernetes.io/pod-name in (s-0,s-1); west None None [a,kube-system]; north Some(\"0\") Some(\"tier=gold\") []; north Some(\"7\") Some(\"kubernetes.io/metadata.name=a,tier=gold\") []",
            "p-1-normal: statefulset.kubernetes.io/pod-name=s-2; north Some(\"1-3\") Some(\"tier=gold\") []",
            "p-2-normal: statefulset.kubernetes.io/pod-name=s-3; north Some(\"4-5\") Some(\"tier=gold\") []",
            "p-3-normal: statefulset.kubernetes.io/pod-name=s-4; north Some(\"6-7\") Some(\"kubernetes.io/metadata.name!=a,tier=gold\") []",
        ]
    );
}

#[test]
fn shards_without_pairs_and_without_pods_are_told() {
    let yaml = |size: u16| {
        let root =
            format!("{{prefix: p, targetStatefulSet: s, auto: {{shardingSize: {size}, everyShardReplicas: 2}}}}");
        spec(&format!(
            "{{selector: {{}}, callerClusters: [east], clusters: [{{name: east}}], root: {root}}}"
        ))
    };
    let around = Surroundings {
        pods: Some(Ordinals { start: 5, replicas: 7 }),
        ..around()
    };
    let names = |expansion: &Expansion, is: fn(&Child) -> bool| -> Vec<String> {
        let children = expansion.children.iter().filter(|child| is(child));
        children.map(|child| child.name.clone()).collect()
    };
    let expansion = expand(&root_name(), &yaml(10), &around).unwrap();
    assert_eq!(names(&expansion, |child| child.is_empty), ["p-9-normal", "p-10-normal"]);
    // Pods s-5 to s-11: the fourth shard has one of its two.
    assert_eq!(names(&expansion, |child| child.has_no_pods).len(), 6);
    assert_eq!(expansion.spare_pods, 0);
    let empty = &expansion.children[9].spec.clusters;
    assert_eq!(
        (empty[0].name.as_deref(), empty[0].bucket_set().unwrap()),
        (Some("east"), Some(BucketSet::default()))
    );
    assert_eq!(expand(&root_name(), &yaml(3), &around).unwrap().spare_pods, 1);
}

#[test]
fn who_is_disabled_has_no_children() {
    let disabled = spec("{root: {prefix: p, targetStatefulSet: s, disable: true}}");
    assert_eq!(expand(&root_name(), &disabled, &around()), Ok(Expansion::default()));
}

/// What is put into a root that is good, and which fields have problems then.
const WRONG: &[(&str, &[&str])] = &[
    ("root: {prefix: p, targetStatefulSet: s}", &["spec.root.auto: Required"]),
    (
        "root: {prefix: p, targetStatefulSet: s, auto: {shardingSize: 0, everyShardReplicas: -1}}",
        &[
            "spec.root.auto.shardingSize: Invalid",
            "spec.root.auto.everyShardReplicas: Invalid",
        ],
    ),
    (
        "root: {prefix: p, targetStatefulSet: s, auto: {shardingSize: 1025, everyShardReplicas: 4097}}",
        &[
            "spec.root.auto.shardingSize: Invalid",
            "spec.root.auto.everyShardReplicas: Invalid",
        ],
    ),
    (
        "root: {prefix: p, targetStatefulSet: s, auto: {shardingSize: 1, everyShardReplicas: 1}, canary: {inNamespaces: [a, a], percent: 101}}",
        &[
            "spec.root.canary.replicas: Required",
            "spec.root.canary.percent: Invalid",
            "spec.root.canary.inNamespaces[1]: Duplicate",
        ],
    ),
    (
        "root: {prefix: p, targetStatefulSet: s, auto: {shardingSize: 1, everyShardReplicas: 1}, canary: {replicas: 1}}",
        &["spec.root.canary: Required"],
    ),
    (
        "root: {prefix: p, targetStatefulSet: s, auto: {shardingSize: 1, everyShardReplicas: 1}, canary: {replicas: 1, inShardHash: ['8'], inNamespaces: [kube-system]}}",
        &[
            "spec.root.canary.inShardHash[0]: Invalid",
            "spec.root.canary.inNamespaces[0]: Invalid",
        ],
    ),
    (
        "root: {prefix: p, targetStatefulSet: s, auto: {shardingSize: 1, everyShardReplicas: 1}, canary: {replicas: 6, percent: 10}}",
        &["spec.root.canary.replicas: Invalid"],
    ),
    (
        "{selector: {matchLabels: {statefulset.kubernetes.io/pod-name: s-0}}, root: {prefix: p, targetStatefulSet: s, auto: {shardingSize: 2, everyShardReplicas: 1}}}",
        &["spec.selector: Invalid"],
    ),
    (
        "{selector: {matchLabels: {apps.kubernetes.io/pod-index: '1'}}, root: {prefix: p, targetStatefulSet: s, auto: {shardingSize: 2, everyShardReplicas: 1}}}",
        &["spec.selector: Invalid"],
    ),
    (
        "root: {prefix: p, targetStatefulSet: a-name-of-a-stateful-set-that-its-controller-takes-and-a-label-not, auto: {shardingSize: 2, everyShardReplicas: 1}}",
        &["spec.root.targetStatefulSet: Invalid"],
    ),
    (
        "root: {prefix: older, targetStatefulSet: s, auto: {shardingSize: 2, everyShardReplicas: 1}}",
        &["spec.root.prefix: Duplicate"],
    ),
    (
        "root: {prefix: by-hand, targetStatefulSet: s, auto: {shardingSize: 2, everyShardReplicas: 1}}",
        &["spec.root.prefix: Duplicate"],
    ),
    (
        "{callerClusters: [home], clusters: [{name: east, buckets: ['7-9']}], root: {prefix: p, targetStatefulSet: s, auto: {shardingSize: 2, everyShardReplicas: 1}}}",
        &["spec.clusters[0].buckets: Invalid"],
    ),
    (
        "{callerClusters: [home], clusters: [{name: east, buckets: [0-3]}, {name: east, buckets: [3]}], root: {prefix: p, targetStatefulSet: s, auto: {shardingSize: 2, everyShardReplicas: 1}}}",
        &["spec.clusters[1].buckets: Duplicate"],
    ),
    (
        "{callerClusters: [home], clusters: [{name: east, namespaceSelector: {matchLabels: {a: b}}}, {selector: {}, namespaceSelector: {matchLabels: {c: d}}}], root: {prefix: p, targetStatefulSet: s, auto: {shardingSize: 2, everyShardReplicas: 1}}}",
        &["spec.clusters[1]: Invalid"],
    ),
    (
        "{controller: {leaderElectionName: a-lease-of-a-name-that-leaves-no-room-for-the-names-of-shards-after-it-a-lease-of-a-name-that-leaves-no-room-for-the-names-of-shards}, root: {prefix: and-a-prefix-of-which-the-same-is-true-although-each-would-do-by-itself-and-a-prefix-of-which-the-same-is-true-although-each-would-do, targetStatefulSet: s, auto: {shardingSize: 1, everyShardReplicas: 1}}}",
        &["spec.root: Invalid"],
    ),
];

#[test]
fn what_is_wrong_with_a_root_names_field_and_fix() {
    let around = Surroundings {
        pods: Some(Ordinals { start: 0, replicas: 5 }),
        roots: BTreeMap::from([("first".to_owned(), "older".to_owned())]),
        others: BTreeSet::from(["by-hand-2-normal".to_owned()]),
        ..around()
    };
    for (yaml, expected) in WRONG {
        let problems = expand(&root_name(), &spec(yaml), &around).expect_err(yaml);
        let found: Vec<_> = problems
            .iter()
            .map(|problem| format!("{}: {:?}", problem.field, problem.reason))
            .collect();
        assert_eq!(found, *expected, "{yaml}: {problems:?}");
    }
}
