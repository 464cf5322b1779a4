//! Each rule by the smallest spec that breaks it, and the promise that no spec at all can make validation panic.

mod arbitrary;
mod cluster_scoped;
mod limits;
mod policies;

use arbitrary::{any_member, any_sharding, text};
use k8s_openapi::ByteString;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use proptest::prelude::*;

use super::*;
use crate::cluster::{Endpoint, MemberClusterSpec};
use crate::sharding::{ControllerConfig, ShardingConfigSpec};

const FEDERATED: &str = r"
selector: {matchLabels: {app: demo}}
callerClusters: [east]
clusters: [{name: east, namespaces: [ns-a, ns-b]}, {name: west, namespaces: [ns-c]}]
";

fn sharding(yaml: &str) -> Vec<Problem> {
    let spec: ShardingConfigSpec = serde_yaml_ng::from_str(yaml).unwrap();
    validate_sharding("demo", "operator-demo", &spec)
}

/// SEQUENCE { INTEGER 1 }: a certificate as far as validation looks.
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nMAMCAQE=\n-----END CERTIFICATE-----\n";

/// The least that routers need of a member.
fn reachable() -> MemberClusterSpec {
    MemberClusterSpec {
        endpoints: vec![Endpoint {
            url: "https://east".to_owned(),
            tls_server_name: None,
        }],
        ca_bundle: Some(ByteString(CERTIFICATE.as_bytes().to_vec())),
        ..MemberClusterSpec::default()
    }
}

/// Problems of a spec that gets what routers need where it does not say so itself.
fn member(yaml: &str) -> Vec<Problem> {
    let mut spec: MemberClusterSpec = serde_yaml_ng::from_str(yaml).unwrap();
    let reachable = reachable();
    if spec.endpoints.is_empty() {
        spec.endpoints = reachable.endpoints;
    }
    spec.ca_bundle = spec.ca_bundle.or(reachable.ca_bundle);
    validate_member("east", &spec)
}

/// `field: Reason` of each problem.
fn fields(problems: &[Problem]) -> Vec<String> {
    problems
        .iter()
        .map(|problem| format!("{}: {:?}", problem.field, problem.reason))
        .collect()
}

#[test]
fn good_specs_have_no_problem() {
    for yaml in [
        FEDERATED,
        "selector: {}",
        "{selector: {}, callerClusters: [east]}",
        "{selector: {}, callerClusters: [east, west], primaryCluster: hub, controller: {leaderElectionName: l}, clusters: [{selector: {matchLabels: {region: eu}}}]}",
        "{selector: {}, callerClusters: [east, west], primaryCluster: east, controller: {leaderElection: Disabled}}",
        "{selector: {}, controller: {leaderElectionName: l, leaderElectionResourceLock: configmapsleases}}",
        "{selector: {}, callerClusters: [east], clusters: [{name: east, namespaces: [kube-system]}, {name: west, namespaceSelector: {}}]}",
        "{selector: {}, callerClusters: [a], clusters: [{name: a, namespaces: [kube-system], namespaceSelector: {}, default: true}, {name: b}]}",
        "{selector: {}, limits: [{relateResources: [{apiGroups: [''], resources: [pods]}], selector: {matchLabels: {a: b}}}]}",
        "{selector: {}, limits: [{selector: {matchLabels: {a: b}}}, {}]}",
    ] {
        assert_eq!(sharding(yaml), vec![], "{yaml}");
    }
}

/// A spec, and the problems it has.
const SHARDING_RULES: &[(&str, &[&str])] = &[
    ("{}", &["spec.selector: Required"]),
    (
        "{selector: {matchLabels: {'a b': c, d: '-'}}}",
        &[
            "spec.selector.matchLabels[a b]: Invalid",
            "spec.selector.matchLabels[d]: Invalid",
        ],
    ),
    (
        "{selector: {matchExpressions: [{key: a, operator: In}, {key: a, operator: Near}]}}",
        &[
            "spec.selector.matchExpressions[0]: Invalid",
            "spec.selector.matchExpressions[1]: Invalid",
        ],
    ),
    (
        "{selector: {matchLabels: {a: b}, matchExpressions: [{key: a, operator: DoesNotExist}]}}",
        &["spec.selector: Invalid"],
    ),
    (
        "{selector: {}, controller: {leaderElectionName: Leader}}",
        &["spec.controller.leaderElectionName: Invalid"],
    ),
    (
        "{selector: {}, controller: {}}",
        &["spec.controller.leaderElectionName: Required"],
    ),
    (
        "{selector: {}, controller: {leaderElectionName: l, leaderElection: Disabled}}",
        &["spec.controller.leaderElectionName: Invalid"],
    ),
    (
        "{selector: {}, callerClusters: [a, b], primaryCluster: a}",
        &["spec.controller.leaderElectionName: Required"],
    ),
    (
        "{selector: {}, controller: {leaderElection: Disabled, leaderElectionResourceLock: configmaps}}",
        &["spec.controller.leaderElectionResourceLock: Invalid"],
    ),
    (
        "{selector: {}, clusters: [{name: east}]}",
        &["spec.callerClusters: Required"],
    ),
    (
        "{selector: {}, callerClusters: [east, east, We]}",
        &[
            "spec.callerClusters[2]: Invalid",
            "spec.callerClusters[1]: Duplicate",
            "spec.controller.leaderElectionName: Required",
            "spec.primaryCluster: Required",
        ],
    ),
    (
        "{selector: {}, callerClusters: [east], clusters: [{}, {name: a, selector: {}}]}",
        &["spec.clusters[0]: Required", "spec.clusters[1]: Invalid"],
    ),
    (
        "{selector: {}, callerClusters: [a], clusters: [{name: a}, {name: b}, {name: a}]}",
        &["spec.clusters[2].name: Duplicate"],
    ),
    (
        "{selector: {}, callerClusters: [a], clusters: [{name: a, namespaces: [x, y_z, x], namespaceSelector: {}}]}",
        &[
            "spec.clusters[0].namespaces[1]: Invalid",
            "spec.clusters[0].namespaces[2]: Duplicate",
        ],
    ),
    (
        "{selector: {}, callerClusters: [a], clusters: [{name: a, default: true}, {name: b}, {name: c, default: true}]}",
        &["spec.clusters[2].default: Duplicate"],
    ),
    (
        "{selector: {}, callerClusters: [a], clusters: [{name: a}], primaryCluster: b}",
        &["spec.primaryCluster: Invalid"],
    ),
    ("{selector: {}, primaryCluster: b}", &["spec.primaryCluster: Invalid"]),
    (
        "{selector: {}, limits: [{relateResources: [{}], selector: {}}]}",
        &[
            "spec.limits[0].relateResources[0].apiGroups: Required",
            "spec.limits[0].relateResources[0].resources: Required",
        ],
    ),
    (
        "{selector: {}, limits: [{relateResources: [{apiGroups: [apps/v1], resources: [pods/status, Pods]}]}]}",
        &[
            "spec.limits[0].relateResources[0].apiGroups[0]: Invalid",
            "spec.limits[0].relateResources[0].resources[0]: Invalid",
            "spec.limits[0].relateResources[0].resources[1]: Invalid",
        ],
    ),
];

#[test]
fn each_sharding_rule_names_its_field() {
    for (yaml, expected) in SHARDING_RULES {
        assert_eq!(fields(&sharding(yaml)), *expected, "{yaml}");
    }
}

#[test]
fn limits_that_hide_everything_are_refused() {
    let limits = |first: &str, second: &str| {
        let spec = format!(
            "{{selector: {{}}, limits: [{{relateResources: {first}, selector: {{matchLabels: {{a: b}}}}}}, {{relateResources: {second}, selector: {{matchLabels: {{a: c}}}}}}]}}"
        );
        fields(&sharding(&spec))
    };
    let refused = ["spec.limits[1].selector: Invalid"];
    assert_eq!(
        limits(
            "[{apiGroups: [''], resources: [pods]}]",
            "[{apiGroups: ['*'], resources: [services, pods]}]"
        ),
        refused
    );
    assert_eq!(limits("[]", "[{apiGroups: [apps], resources: ['*']}]"), refused);
    assert!(
        limits(
            "[{apiGroups: [''], resources: [pods]}]",
            "[{apiGroups: [''], resources: [services]}]"
        )
        .is_empty()
    );
    assert!(
        limits(
            "[{apiGroups: [''], resources: ['*']}]",
            "[{apiGroups: [apps], resources: ['*']}]"
        )
        .is_empty()
    );
}

#[test]
fn what_is_not_served_is_named() {
    let yaml = "
selector: {}
webhook: {certDir: /tmp, port: 9443}
root: {prefix: demo, targetStatefulSet: demo, auto: {shardingSize: 1, everyShardReplicas: 1, balance: Objects}}
unavailable: PartialStart
writeFence: Disabled
";
    let problems = sharding(yaml);
    assert_eq!(fields(&problems), ["spec.webhook: NotServed"]);
    assert_eq!(accepted_reason(&problems), ConditionReason::Ok, "all else is served");

    let problems = member("{access: Tunnel, identity: {mode: ServiceAccount}}");
    assert_eq!(
        fields(&problems),
        ["spec.access: NotImplemented", "spec.identity.mode: NotImplemented"]
    );
    assert_eq!(accepted_reason(&problems), ConditionReason::NotImplemented);
    assert_eq!(accepted_reason(&[]), ConditionReason::Ok);
}

#[test]
fn only_kinds_that_mean_the_same_everywhere_are_replicated() {
    let problems = |entries: &str| {
        fields(&sharding(&format!(
            "{{selector: {{}}, callerClusters: [a], clusters: [{{name: a}}], replicated: [{entries}]}}"
        )))
    };
    let good = [
        "",
        "{group: apiextensions.k8s.io, resource: customresourcedefinitions}",
        "{group: rbac.authorization.k8s.io, resource: clusterroles}, {group: storage.k8s.io, resource: storageclasses}",
    ];
    for good in good {
        assert_eq!(problems(good), [""; 0], "{good}");
    }
    for never in [
        "{group: '', resource: namespaces}",
        "{group: '', resource: nodes}",
        "{group: '', resource: persistentvolumes}",
        "{group: certificates.k8s.io, resource: certificatesigningrequests}",
        "{group: apiregistration.k8s.io, resource: apiservices}",
        "{group: admissionregistration.k8s.io, resource: validatingwebhookconfigurations}",
    ] {
        assert_eq!(problems(never), ["spec.replicated[0]: Invalid"], "{never}");
    }
    let twice = "{group: a.b, resource: cs}, {group: a.b, resource: cs}";
    assert_eq!(problems(twice), ["spec.replicated[1]: Duplicate"]);
    assert_eq!(
        problems("{group: '*', resource: cs}"),
        ["spec.replicated[0].group: Invalid"]
    );
    assert_eq!(
        problems("{group: a.b, resource: '*'}"),
        ["spec.replicated[0].resource: Invalid"]
    );
    let many = "{group: a.b, resource: cs}, ".repeat(17);
    assert_eq!(problems(&many)[0], "spec.replicated: Invalid");
}

#[test]
fn buckets_are_checked() {
    let problems = |entries: &str| {
        fields(&sharding(&format!(
            "{{selector: {{}}, callerClusters: [a], clusters: [{entries}]}}"
        )))
    };
    for good in [
        "{name: a, buckets: []}",
        "{name: a, buckets: [0, 2-4, '1023']}",
        "{name: a, buckets: [0-3]}, {name: a, buckets: [4]}, {name: b}",
        "{name: a, namespaces: [kube-system], buckets: [0-3]}, {selector: {}, buckets: [0-3]}",
    ] {
        assert_eq!(problems(good), [""; 0], "{good}");
    }
    let refused: &[(&str, &str)] = &[
        ("{name: a, buckets: [1024]}", "spec.clusters[0].buckets: Invalid"),
        ("{name: a, buckets: [-1]}", "spec.clusters[0].buckets: Invalid"),
        ("{name: a, buckets: ['3-1']}", "spec.clusters[0].buckets: Invalid"),
        ("{name: a, buckets: [0-3, 2]}", "spec.clusters[0].buckets: Duplicate"),
        (
            "{name: a, buckets: [0-3]}, {name: a, buckets: [3-5]}",
            "spec.clusters[1].buckets: Duplicate",
        ),
        (
            "{name: a, buckets: [0-3]}, {name: a}",
            "spec.clusters[1].name: Duplicate",
        ),
        ("{name: a}, {name: a, buckets: []}", "spec.clusters[1].name: Duplicate"),
    ];
    for (entries, expected) in refused {
        assert_eq!(problems(entries), [*expected], "{entries}");
    }
}

#[test]
fn a_root_is_checked() {
    let yaml = "
webhook: {certDir: /tmp, port: 9443}
root:
  prefix: Demo
  targetStatefulSet: ''
  auto: {shardingSize: 0, everyShardReplicas: 0, balance: Objects}
  canary: {replicas: -1, inNamespaces: ['*'], inShardHash: ['1', '01', '1024', x]}
  resourceSelector: [{relateResources: [{apiGroups: [''], resources: []}]}]
";
    let problems = sharding(yaml);
    let expected = [
        "spec.root.prefix: Invalid",
        "spec.root.targetStatefulSet: Invalid",
        "spec.root.auto.shardingSize: Invalid",
        "spec.root.auto.everyShardReplicas: Invalid",
        "spec.root.canary.replicas: Invalid",
        "spec.root.canary.inNamespaces[0]: Invalid",
        "spec.root.canary.inShardHash[1]: Invalid",
        "spec.root.canary.inShardHash[2]: Invalid",
        "spec.root.canary.inShardHash[3]: Invalid",
        "spec.root.resourceSelector[0].relateResources[0].resources: Required",
        "spec.webhook: NotServed",
    ];
    assert_eq!(fields(&problems), expected);
    assert_eq!(
        accepted_reason(&problems),
        ConditionReason::Invalid,
        "what is wrong comes before what is not served"
    );
}

#[test]
fn a_selector_that_members_are_asked_by_fits_into_a_url() {
    let of = |values: usize, field: &str| {
        let values: Vec<_> = (0..values).map(|value| format!("{value:040}")).collect();
        let selector = serde_json::json!({"matchExpressions": [{"key": "x", "operator": "In", "values": values}]});
        let mut spec = serde_json::json!({
            "selector": {"matchLabels": {"app": "op"}},
            "callerClusters": ["east"],
            "clusters": [{"name": "east", "namespaces": ["a"]}],
            "limits": [{"relateResources": [{"apiGroups": [""], "resources": ["pods"]}], "selector": {}}],
        });
        *spec.pointer_mut(field).unwrap() = selector;
        sharding(&spec.to_string())
    };
    for field in ["/selector", "/limits/0/selector"] {
        assert!(of(1_400, field).is_empty(), "{field}");
        let problems = of(2_000, field);
        assert_eq!(problems.len(), 1, "{field}: {problems:?}");
        assert!(problems[0].message.contains("61440 fit"), "{}", problems[0].message);
    }
    // What the hub itself looks at needs no URL.
    let mut of_namespaces = serde_json::json!({"name": "east"});
    let values: Vec<_> = (0..4_000).map(|value| format!("{value:040}")).collect();
    of_namespaces["namespaceSelector"] =
        serde_json::json!({"matchExpressions": [{"key": "x", "operator": "In", "values": values}]});
    let spec = serde_json::json!({
        "selector": {"matchLabels": {"app": "op"}}, "callerClusters": ["east"], "clusters": [of_namespaces],
    });
    assert!(sharding(&spec.to_string()).is_empty());
}

#[test]
fn the_whole_lease_name_must_fit() {
    let spec = ShardingConfigSpec {
        selector: Some(LabelSelector::default()),
        controller: Some(ControllerConfig {
            leader_election_name: Some("l".repeat(200)),
            ..ControllerConfig::default()
        }),
        ..ShardingConfigSpec::default()
    };
    assert_eq!(validate_sharding(&"s".repeat(50), "ns", &spec), vec![]);
    assert_eq!(
        fields(&validate_sharding(&"s".repeat(51), "ns", &spec)),
        ["spec.controller.leaderElectionName: Invalid"]
    );
    assert_eq!(fields(&validate_sharding("S", "ns", &spec)), ["metadata.name: Invalid"]);
}

#[test]
fn each_member_rule_names_its_field() {
    let cases: &[(&str, &[&str])] = &[
        ("{}", &[]),
        (
            "{accept: true, endpoints: [{url: 'https://east:6443', tlsServerName: kubernetes.default}]}",
            &[],
        ),
        (
            "{endpoints: [{url: 'http://east'}, {url: 'https://a'}, {url: 'https://a', tlsServerName: '*'}]}",
            &[
                "spec.endpoints[0].url: Invalid",
                "spec.endpoints[2].url: Duplicate",
                "spec.endpoints[2].tlsServerName: Invalid",
            ],
        ),
        (
            "{breaker: {consecutiveFailures: 5, failureRatio: 0.5, minRequests: 20, window: 30s, openFor: 5s, maxOpenFor: 2m, slowUnary: 500ms, slowList: 2s}}",
            &[],
        ),
        (
            "{breaker: {consecutiveFailures: 0, failureRatio: 0, minRequests: -1, window: 0s, openFor: 5, maxOpenFor: 25h, slowUnary: 0s, slowList: 25h}}",
            &[
                "spec.breaker.consecutiveFailures: Invalid",
                "spec.breaker.minRequests: Invalid",
                "spec.breaker.failureRatio: Invalid",
                "spec.breaker.window: Invalid",
                "spec.breaker.openFor: Invalid",
                "spec.breaker.maxOpenFor: Invalid",
                "spec.breaker.slowUnary: Invalid",
                "spec.breaker.slowList: Invalid",
            ],
        ),
        (
            "{breaker: {openFor: 3m, maxOpenFor: 2m59s}}",
            &["spec.breaker.maxOpenFor: Invalid"],
        ),
    ];
    for (yaml, expected) in cases {
        assert_eq!(fields(&member(yaml)), *expected, "{yaml}");
    }
    assert_eq!(
        fields(&validate_member("East", &reachable())),
        ["metadata.name: Invalid"]
    );
}

#[test]
fn what_agents_do_not_report_yet_must_be_given() {
    assert_eq!(
        fields(&validate_member("east", &MemberClusterSpec::default())),
        ["spec.endpoints: NotImplemented", "spec.caBundle: NotImplemented"]
    );
}

#[test]
fn a_bundle_holds_whole_certificates_and_nothing_else() {
    let pem = |label: &str, body: &str| format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n");
    let check = |bundle: &str| {
        let ca_bundle = Some(ByteString(bundle.as_bytes().to_vec()));
        validate_member(
            "east",
            &MemberClusterSpec {
                ca_bundle,
                ..reachable()
            },
        )
    };
    // SEQUENCE { INTEGER 1 }, in the short and in the long form of its length.
    let certificate = pem("CERTIFICATE", "MAMCAQE=") + "# a comment\n" + &pem("CERTIFICATE", "MIEDAgEB");
    assert_eq!(check(&certificate), vec![]);
    let refused = [
        String::new(),
        "not PEM".to_owned(),
        "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t".to_owned(),
        pem("CERTIFICATE", "MAMCAQ=="),
        pem("CERTIFICATE", ""),
        pem("CERTIFICATE", "*"),
        certificate.clone() + &pem("PRIVATE KEY", "MAMCAQE="),
        certificate.replace("-----END", "-----AND"),
    ];
    for bundle in refused {
        assert_eq!(fields(&check(&bundle)), ["spec.caBundle: Invalid"], "{bundle:?}");
    }
}

#[test]
fn problems_print_as_one_line() {
    let problems = sharding("{selector: {}, clusters: [{name: east}, {name: east}]}");
    assert_eq!(
        summary(&problems),
        "spec.callerClusters: required with clusters: name the member cluster where this shard's operator runs; spec.clusters[1].name: \"east\" is named by spec.clusters[0] already: merge their namespaces, or give both buckets of their own"
    );
    assert_eq!(problems[0].reason, Reason::Required);
}

proptest! {
    #[test]
    fn no_sharding_config_panics(spec in any_sharding(), name in text(), namespace in text()) {
        let problems = validate_sharding(&name, &namespace, &spec);
        prop_assert!(problems.iter().all(|problem| !problem.message.is_empty()));
    }

    #[test]
    fn what_passes_can_be_used(spec in any_sharding()) {
        if validate_sharding("demo", "ns", &spec).is_empty() {
            let selectors = spec.selector.iter().chain(spec.clusters.iter().filter_map(|entry| entry.selector.as_ref()));
            for selector in selectors {
                prop_assert!(crate::Selector::from_label_selector(selector).is_ok_and(|selector| !selector.is_nothing()));
            }
            prop_assert!(spec.clusters.is_empty() || spec.primary_cluster().is_some());
        }
    }

    #[test]
    fn no_member_cluster_panics(spec in any_member(), name in text()) {
        for problem in validate_member(&name, &spec) {
            prop_assert!(!problem.message.is_empty());
        }
    }
}

#[test]
fn what_is_held_by_hand_begins_and_ends() {
    let held = |rest: &str| fields(&member(&format!("{{breaker: {{byHand: [{{reason: x, {rest}}}]}}}}")));
    let first = "since: '2026-01-01T00:00:00Z'";
    assert_eq!(
        held(&format!("state: Open, {first}, until: '2026-01-31T00:00:00Z'")),
        [""; 0]
    );
    assert_eq!(held(&format!("state: Reset, {first}")), [""; 0]);
    let no_end = ["spec.breaker.byHand[0].until: Invalid"];
    assert_eq!(held(&format!("state: Open, {first}")), no_end);
    assert_eq!(
        held(&format!("state: Open, {first}, until: '2026-01-31T00:00:01Z'")),
        no_end
    );
    assert_eq!(
        held(&format!("state: Closed, {first}, until: '2026-01-01T00:00:00Z'")),
        no_end
    );
    let no_beginning = ["spec.breaker.byHand[0].since: Invalid"];
    assert_eq!(held("state: Reset"), no_beginning);
    assert_eq!(held("state: Open, until: '2026-01-31T00:00:00Z'"), no_beginning);
}
